//! From the bytes of a section to encoded events: entries, mutations, events.
//!
//! An entry becomes events as `change_agent/events/mutation_events.py` makes them, or it is refused whole. Behind a refused
//! entry the core goes on only when it is asked anew, so order holds.

use std::collections::{HashMap, HashSet};
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::avro::{put_bytes, put_clustering, put_count, put_long, put_optional, put_partition, NULL, VALUE};
use crate::digest::Digester;
use crate::input::{require, Input, Refused, Taken};
use crate::run::{bucket_of, Event, EventRun, TableEvents};
use crate::table::{KnownColumns, TableLayout};
use crate::update::{Deletion, RangeTombstone, Row, Update, NO_TIMESTAMP};

const ENTRY_PREFIX: usize = 8;
const ENTRY_OVERHEAD: usize = 12;
const MIN_MUTATION_SIZE: usize = 10;
/// Bytes of an event beside its keys, estimated: `outgoing.event_size`.
const EVENT_BYTES: usize = 64;

/// Indexes in MutationKind.
const ROW: u8 = 0;
const ROW_DELETION: u8 = 1;
const STATIC_ROW: u8 = 2;
const RANGE_DELETION: u8 = 3;
const PARTITION_DELETION: u8 = 4;

const NO_MARKER: i64 = -1;
const MARKER_STAYS: i64 = 0;

/// Which bytes of a window are to be read.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Of the first entry in the window.
    pub offset: usize,
    /// The same place in the segment.
    pub position: i64,
    /// No entry that ends behind this position is taken.
    pub end: i64,
    /// Of the segment's version.
    pub unsigned_times: bool,
}

/// How much one batch may become.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Events; the last entry may exceed it.
    pub events: usize,
    /// Encoded bytes; likewise.
    pub bytes: usize,
}

/// What became of the entries in front of a window.
#[derive(Debug, Default)]
pub struct Batch {
    /// End of the last entry that was taken.
    pub end: i64,
    /// Entries that were taken.
    pub entries: usize,
    /// Those of them without events.
    pub skipped: usize,
    /// End of the last entry with events.
    pub events_end: i64,
    /// Of the last event.
    pub last_writetime_us: Option<i64>,
    /// By table.
    pub runs: Vec<(usize, EventRun)>,
    /// What the core panicked with at the first entry, if it did.
    pub panic: Option<String>,
}

/// The tables of a schema, and what decoding them keeps.
#[derive(Debug, Default)]
pub struct Core {
    tables: Vec<TableLayout>,
    by_id: HashMap<[u8; 16], usize>,
    skipped: HashSet<[u8; 16]>,
    scratch: Scratch,
}

/// Buffers that are used again.
#[derive(Debug, Default)]
struct Scratch {
    digester: Digester,
    /// Avro.
    key: Vec<u8>,
    /// Columns of an event, in order.
    name_ids: Vec<u32>,
    /// By `name_id`: the event that named the column last.
    named_by: Vec<u64>,
    event: u64,
}

impl Scratch {
    fn begin_columns(&mut self) {
        self.name_ids.clear();
        self.event += 1;
    }

    fn add_column(&mut self, name_id: u32) {
        let index = name_id as usize;
        if index >= self.named_by.len() {
            self.named_by.resize(index + 1, 0);
        }
        if self.named_by[index] != self.event {
            self.named_by[index] = self.event;
            self.name_ids.push(name_id);
        }
    }
}

impl Core {
    /// Decode by these tables. Entries of one update of a `skipped` table are not decoded.
    pub fn new(tables: Vec<TableLayout>, skipped: HashSet<[u8; 16]>) -> Self {
        let by_id = tables.iter().enumerate().map(|(index, table)| (table.id, index)).collect();
        Self { tables, by_id, skipped, ..Self::default() }
    }

    /// Take entries from the place on, until one is refused, is not whole in the window, or the batch is full.
    pub fn encode(&mut self, window: &[u8], place: Place, limits: Limits) -> Batch {
        let mut batch = Batch { end: place.position, ..Batch::default() };
        let mut collected = Collected::default();
        let mut update = Update::default();
        let mut left = &window[place.offset..];
        while collected.events < limits.events && collected.bytes() < limits.bytes {
            let Some(payload) = next_payload(left, place.end - batch.end) else { break };
            let end = batch.end + (payload.len() + ENTRY_OVERHEAD) as i64;
            let before = collected.events;
            let mark = collected.mark();
            let taken = catch_unwind(AssertUnwindSafe(|| {
                self.take_mutation(payload, end, place.unsigned_times, &mut update, &mut collected)
            }));
            if !matches!(taken, Ok(Ok(()))) {
                collected.forget_behind(&mark, before);
                // Behind good entries it comes again, as the first one of the next batch.
                batch.panic = taken.err().filter(|_| batch.entries == 0).map(|cause| message_of(cause.as_ref()));
                break;
            }
            batch.end = end;
            batch.entries += 1;
            if collected.events > before {
                batch.events_end = end;
                batch.last_writetime_us = collected.last_writetime_us;
            } else {
                batch.skipped += 1;
            }
            left = &left[payload.len() + ENTRY_OVERHEAD..];
        }
        batch.runs = collected.into_runs();
        batch
    }

    fn take_mutation<'a>(
        &mut self,
        payload: &'a [u8],
        position: i64,
        unsigned_times: bool,
        update: &mut Update<'a>,
        collected: &mut Collected,
    ) -> Taken<()> {
        if payload[0] == 1 && !self.skipped.is_empty() {
            // Most of what a node writes for itself.
            let id = payload.get(1..17).and_then(|id| <[u8; 16]>::try_from(id).ok());
            if id.is_some_and(|id| self.skipped.contains(&id)) {
                return Ok(());
            }
        }
        let mut data = Input::new(payload);
        let count = data.length()?;
        require(count > 0)?;
        let mut seen = Vec::new();
        let mut ordinal = 0;
        for _ in 0..count {
            let id: [u8; 16] = data.bytes(16)?.try_into().map_err(|_| Refused)?;
            let index = *self.by_id.get(&id).ok_or(Refused)?;
            if count > 1 {
                require(!seen.contains(&index))?;
                seen.push(index);
            }
            update.read(&mut data, &mut self.tables[index], unsigned_times)?;
            if self.tables[index].is_published {
                let slot = collected.slot(index, self.tables[index].topic)?;
                self.add_changes(index, update, position, &mut ordinal, collected, slot)?;
            }
        }
        require(data.remaining() == 0)
    }

    /// Deletions of many rows stand before what may live on.
    fn add_changes(
        &mut self,
        index: usize,
        update: &Update<'_>,
        position: i64,
        ordinal: &mut i64,
        collected: &mut Collected,
        slot: usize,
    ) -> Taken<()> {
        let table = &self.tables[index];
        // Also where nothing comes of it: what is no key of this table is for Python.
        self.scratch.key.clear();
        put_partition(&mut self.scratch.key, table, update.partition_key)?;
        let mut adder = Adder {
            table,
            update,
            partition_size: self.scratch.key.len(),
            scratch: &mut self.scratch,
            bucket: bucket_of(update.partition_key),
            position,
            ordinal,
            out: &mut collected.tables[slot],
            added: 0,
            last_writetime_us: None,
        };
        if let Some(deletion) = update.partition_deletion {
            adder.add_partition_deletion(deletion)?;
        }
        for range in &update.ranges {
            adder.add_range_deletion(range)?;
        }
        if let Some(row) = &update.static_row {
            adder.add_row(STATIC_ROW, row)?;
        }
        for row in &update.rows {
            adder.add_row(row_kind(row), row)?;
        }
        let (added, last) = (adder.added, adder.last_writetime_us);
        collected.events += added;
        if added > 0 {
            collected.last_writetime_us = last;
        }
        Ok(())
    }
}

/// The payload of the entry at the front; None where there is none that is whole and right, and within `space`.
fn next_payload(window: &[u8], space: i64) -> Option<&[u8]> {
    let prefix = window.get(..ENTRY_PREFIX)?;
    let size = usize::try_from(i32_at(prefix)).ok()?;
    let whole = size + ENTRY_OVERHEAD;
    if size < MIN_MUTATION_SIZE || whole as i64 > space || whole > window.len() {
        return None;
    }
    let size_crc = i32_at(&prefix[4..]) as u32;
    if crc32fast::hash(&prefix[..4]) != size_crc {
        return None;
    }
    let payload = &window[ENTRY_PREFIX..ENTRY_PREFIX + size];
    let mut hasher = crc32fast::Hasher::new_with_initial(size_crc);
    hasher.update(payload);
    (hasher.finalize() == i32_at(&window[ENTRY_PREFIX + size..]) as u32).then_some(payload)
}

fn i32_at(bytes: &[u8]) -> i32 {
    i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn row_kind(row: &Row) -> u8 {
    let is_deletion =
        row.deletion.is_some() && row.liveness.is_none() && row.cells.is_empty() && row.complex_deletions.is_empty();
    if is_deletion {
        ROW_DELETION
    } else {
        ROW
    }
}

/// What a panic said.
pub fn message_of(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().map(String::as_str).or_else(|| cause.downcast_ref::<&str>().copied());
    text.unwrap_or("unknown").to_owned()
}

/// Events of a batch while it grows.
#[derive(Debug, Default)]
struct Collected {
    tables: Vec<TableEvents>,
    /// Topic and table of each of them.
    owners: Vec<(usize, usize)>,
    events: usize,
    last_writetime_us: Option<i64>,
}

impl Collected {
    /// Where the events of a table go. Refuses a second table of one topic: its events must not pass those of the first.
    fn slot(&mut self, table: usize, topic: usize) -> Taken<usize> {
        if let Some(slot) = self.owners.iter().position(|owner| owner.0 == topic) {
            require(self.owners[slot].1 == table)?;
            return Ok(slot);
        }
        self.owners.push((topic, table));
        self.tables.push(TableEvents::new(table));
        Ok(self.tables.len() - 1)
    }

    fn bytes(&self) -> usize {
        self.tables.iter().map(|table| table.buffer.len()).sum()
    }

    fn mark(&self) -> Vec<(usize, usize)> {
        self.tables.iter().map(|table| (table.events.len(), table.buffer.len())).collect()
    }

    fn forget_behind(&mut self, mark: &[(usize, usize)], events: usize) {
        for (slot, table) in self.tables.iter_mut().enumerate() {
            let (kept, bytes) = mark.get(slot).copied().unwrap_or((0, 0));
            table.events.truncate(kept);
            table.buffer.truncate(bytes);
        }
        self.events = events;
    }

    fn into_runs(self) -> Vec<(usize, EventRun)> {
        let filled = self.tables.into_iter().filter(|table| !table.events.is_empty());
        filled.map(|table| (table.table, EventRun::whole(table))).collect()
    }
}

/// Adds the events of one update.
struct Adder<'a, 'b> {
    table: &'a TableLayout,
    update: &'a Update<'b>,
    /// Of the part of the key, in `scratch`, that all rows of the partition share.
    partition_size: usize,
    scratch: &'a mut Scratch,
    bucket: u16,
    position: i64,
    ordinal: &'a mut i64,
    out: &'a mut TableEvents,
    added: usize,
    last_writetime_us: Option<i64>,
}

/// The times of an event.
struct Times {
    writetime_us: Option<i64>,
    live_us: Option<i64>,
    deletion_us: Option<i64>,
    expiry_s: Option<i64>,
    marker_expiry_s: Option<i64>,
}

impl Times {
    fn of_deletion(deletion: Deletion) -> Self {
        Self {
            writetime_us: Some(deletion.timestamp),
            live_us: None,
            deletion_us: Some(deletion.timestamp),
            expiry_s: None,
            marker_expiry_s: None,
        }
    }
}

impl<'a> Adder<'a, '_> {
    fn columns_of(&self, kind: u8) -> &'a KnownColumns {
        let table: &'a TableLayout = self.table;
        if kind == STATIC_ROW {
            &table.static_columns
        } else {
            &table.regular_columns
        }
    }

    fn add_partition_deletion(&mut self, deletion: Deletion) -> Taken<()> {
        let partition_key = self.update.partition_key;
        let digest = self.scratch.digester.of_partition(&self.table.id, PARTITION_DELETION, partition_key, deletion);
        self.scratch.begin_columns();
        self.add(PARTITION_DELETION, &[], digest, &Times::of_deletion(deletion), None)
    }

    fn add_range_deletion(&mut self, range: &RangeTombstone) -> Taken<()> {
        let digest = self.scratch.digester.of_range(&self.table.id, RANGE_DELETION, self.update, range);
        self.scratch.begin_columns();
        self.add(RANGE_DELETION, &[], digest, &Times::of_deletion(range.deletion), Some(range))
    }

    fn add_row(&mut self, kind: u8, row: &Row) -> Taken<()> {
        let known = self.columns_of(kind);
        let digest = self.scratch.digester.of_row(&self.table.id, kind, self.update, row, known);
        let times = self.row_times(kind, row);
        let update = self.update;
        self.add(kind, &update.values[row.clustering.clone()], digest, &times, None)
    }

    /// The times of a row's event, and its columns.
    fn row_times(&mut self, kind: u8, row: &Row) -> Times {
        let known = self.columns_of(kind);
        self.scratch.begin_columns();
        let (mut writetime, mut live) = (NO_TIMESTAMP, NO_TIMESTAMP);
        // What is written without a TTL keeps the row, whatever expires beside it.
        let (mut expiry, mut is_permanent, mut marker_expiry) = (-1, false, NO_MARKER);
        if let Some(deletion) = row.deletion {
            writetime = deletion.timestamp;
        }
        if let Some(liveness) = row.liveness {
            writetime = writetime.max(liveness.timestamp);
            expiry = liveness.expiration.unwrap_or(-1);
            is_permanent = liveness.expiration.is_none();
            marker_expiry = liveness.expiration.unwrap_or(MARKER_STAYS);
        }
        for each in &self.update.complex_deletions[row.complex_deletions.clone()] {
            writetime = writetime.max(each.deletion.timestamp);
            self.scratch.add_column(known.column(each.column).name_id);
        }
        for cell in &self.update.cells[row.cells.clone()] {
            self.scratch.add_column(known.column(cell.column).name_id);
            writetime = writetime.max(cell.timestamp);
            if cell.value.is_some() {
                live = live.max(cell.timestamp);
                match cell.local_time {
                    Some(local_time) if cell.ttl != 0 => expiry = expiry.max(local_time),
                    _ => is_permanent = true,
                }
            }
        }
        Times {
            writetime_us: (writetime != NO_TIMESTAMP).then_some(writetime),
            live_us: (live != NO_TIMESTAMP).then_some(live),
            deletion_us: row.deletion.map(|deletion| deletion.timestamp),
            expiry_s: (!is_permanent && expiry >= 0).then_some(expiry),
            marker_expiry_s: Some(marker_expiry),
        }
    }

    fn add(
        &mut self,
        kind: u8,
        clustering: &[Option<&[u8]>],
        digest: [u8; 16],
        times: &Times,
        range: Option<&RangeTombstone>,
    ) -> Taken<()> {
        let (table, update) = (self.table, self.update);
        let key = &mut self.scratch.key;
        key.truncate(self.partition_size);
        put_clustering(key, table, clustering)?;
        let column_set = self.out.column_set(&self.scratch.name_ids, &table.names);
        let out = &mut self.out.buffer;
        let start = out.len();
        put_long(out, self.position);
        put_long(out, *self.ordinal);
        put_count(out, usize::from(kind));
        put_bytes(out, key);
        let key = out.len() - key.len()..out.len();
        put_bytes(out, update.partition_key);
        if !clustering.is_empty() {
            put_count(out, clustering.len());
            for value in clustering {
                match value {
                    None => out.push(NULL),
                    Some(value) => {
                        out.push(VALUE);
                        put_bytes(out, value);
                    }
                }
            }
        }
        out.push(NULL);
        out.extend_from_slice(&digest);
        put_optional(out, times.writetime_us);
        put_optional(out, times.live_us);
        put_optional(out, times.deletion_us);
        put_optional(out, times.expiry_s);
        match range {
            None => out.push(NULL),
            Some(range) => put_bounds(out, range, update),
        }
        let column_set_at = out.len();
        put_optional(out, times.marker_expiry_s);
        let end = out.len();
        self.out.events.push(Event {
            start,
            column_set_at,
            end,
            size: EVENT_BYTES + 2 * key.len(),
            key,
            column_set,
            bucket: self.bucket,
            writetime_us: times.writetime_us,
        });
        *self.ordinal += 1;
        self.added += 1;
        self.last_writetime_us = times.writetime_us;
        Ok(())
    }
}

fn put_bounds(out: &mut Vec<u8>, range: &RangeTombstone, update: &Update<'_>) {
    out.push(VALUE);
    put_prefix(out, &update.values[range.start.clone()]);
    out.push(u8::from(range.start_inclusive));
    put_prefix(out, &update.values[range.end.clone()]);
    out.push(u8::from(range.end_inclusive));
}

/// A null inside a bound ends the prefix that it stands for, as an absent component does.
fn put_prefix(out: &mut Vec<u8>, values: &[Option<&[u8]>]) {
    if !values.is_empty() {
        put_count(out, values.len());
        for value in values {
            put_bytes(out, value.unwrap_or_default());
        }
    }
    out.push(NULL);
}
