//! A partition update of a mutation: `change_agent/db/mutation.py`, `serialization_header.py`, `rows.py`, `clustering.py`.
//!
//! The Python modules give the grammar and Cassandra's sources; each function here has the name of theirs. All bytes are
//! slices of the window that is read.

use std::borrow::Cow;
use std::ops::Range;

use crate::input::{require, Input, Refused, Taken};
use crate::table::{Column, ColumnList, KnownColumns, TableLayout};

const TIMESTAMP_EPOCH: i64 = 1_442_880_000_000_000;
const DELETION_TIME_EPOCH: i64 = 1_442_880_000;
const LARGE_SET: usize = 64;
/// Long.MIN_VALUE: no timestamp; a deletion with it deletes nothing.
pub const NO_TIMESTAMP: i64 = i64::MIN;
const MAX_DELETION_TIME: i64 = 0xFFFF_FFFD;
const EXPIRED_LIVENESS_TTL: i64 = 0x7FFF_FFFF;

const IS_EMPTY: u8 = 0x01;
const IS_REVERSED: u8 = 0x02;
const HAS_PARTITION_DELETION: u8 = 0x04;
const HAS_STATIC_ROW: u8 = 0x08;
const HAS_ROW_ESTIMATE: u8 = 0x10;

const END_OF_PARTITION: u8 = 0x01;
const IS_MARKER: u8 = 0x02;
const HAS_TIMESTAMP: u8 = 0x04;
const HAS_TTL: u8 = 0x08;
const HAS_DELETION: u8 = 0x10;
const HAS_ALL_COLUMNS: u8 = 0x20;
const HAS_COMPLEX_DELETION: u8 = 0x40;
const EXTENSION: u8 = 0x80;

const IS_STATIC: u8 = 0x01;
const HAS_SHADOWABLE_DELETION: u8 = 0x02;

const CELL_IS_DELETED: u8 = 0x01;
const CELL_IS_EXPIRING: u8 = 0x02;
const CELL_HAS_EMPTY_VALUE: u8 = 0x04;
const CELL_USES_ROW_TIMESTAMP: u8 = 0x08;
const CELL_USES_ROW_TTL: u8 = 0x10;

/// Everything in its scope that was written at or before `timestamp` is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// Microseconds.
    pub timestamp: i64,
    /// Seconds.
    pub local_time: i64,
}

/// The row marker. `expiration` is None where `ttl` is 0.
#[derive(Debug, Clone, Copy)]
pub struct Liveness {
    /// Microseconds.
    pub timestamp: i64,
    /// Seconds.
    pub ttl: i64,
    /// Seconds of Unix time.
    pub expiration: Option<i64>,
}

/// All cells of one multi-cell column are deleted.
#[derive(Debug)]
pub struct ComplexDeletion {
    /// Index of the column among those of its kind.
    pub column: usize,
    /// When.
    pub deletion: Deletion,
}

/// One value; None for a tombstone.
#[derive(Debug)]
pub struct Cell<'a> {
    /// Index of the column among those of its kind.
    pub column: usize,
    /// None unless the column is multi-cell.
    pub path: Option<&'a [u8]>,
    /// CQL bytes.
    pub value: Option<Cow<'a, [u8]>>,
    /// Microseconds.
    pub timestamp: i64,
    /// Seconds.
    pub ttl: i64,
    /// Seconds of Unix time.
    pub local_time: Option<i64>,
}

/// One clustering; its parts are ranges in the lists of the update.
#[derive(Debug)]
pub struct Row {
    /// In `values`.
    pub clustering: Range<usize>,
    /// The row marker.
    pub liveness: Option<Liveness>,
    /// The row's deletion.
    pub deletion: Option<Deletion>,
    /// In `complex_deletions`.
    pub complex_deletions: Range<usize>,
    /// In `cells`.
    pub cells: Range<usize>,
}

impl Row {
    fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.complex_deletions.is_empty() && self.liveness.is_none() && self.deletion.is_none()
    }
}

/// All rows between two clustering prefixes are deleted.
#[derive(Debug)]
pub struct RangeTombstone {
    /// In `values`.
    pub start: Range<usize>,
    /// Whether rows of the prefix itself are.
    pub start_inclusive: bool,
    /// In `values`.
    pub end: Range<usize>,
    /// Whether rows of the prefix itself are.
    pub end_inclusive: bool,
    /// When.
    pub deletion: Deletion,
}

#[derive(Debug)]
struct Marker {
    values: Range<usize>,
    ends: Option<Deletion>,
    end_inclusive: bool,
    starts: Option<Deletion>,
    start_inclusive: bool,
}

/// What one update changes; filled again for each one, so that nothing is allocated for it in the long run.
#[derive(Debug, Default)]
pub struct Update<'a> {
    /// As Cassandra stores it.
    pub partition_key: &'a [u8],
    /// All of the partition.
    pub partition_deletion: Option<Deletion>,
    /// None where it is empty.
    pub static_row: Option<Row>,
    /// Those that are not empty.
    pub rows: Vec<Row>,
    /// Ranges, in order.
    pub ranges: Vec<RangeTombstone>,
    /// Clustering values of rows and bounds: None where one is absent.
    pub values: Vec<Option<&'a [u8]>>,
    /// Of all rows.
    pub complex_deletions: Vec<ComplexDeletion>,
    /// Of all rows, each in the order of the log.
    pub cells: Vec<Cell<'a>>,
    markers: Vec<Marker>,
    chosen: Vec<usize>,
}

struct Header {
    min_timestamp: i64,
    min_local_time: i64,
    min_ttl: i64,
    static_columns: ColumnList,
    regular_columns: ColumnList,
    unsigned_times: bool,
}

impl Header {
    fn timestamp(&self, data: &mut Input<'_>) -> Taken<i64> {
        Ok(self.min_timestamp.wrapping_add(data.vint()? as i64))
    }

    fn local_time(&self, data: &mut Input<'_>) -> Taken<i64> {
        let seconds = data.vint32()? + self.min_local_time;
        Ok(if self.unsigned_times { seconds.rem_euclid(1 << 32) } else { wrapped_int(seconds) })
    }

    fn ttl(&self, data: &mut Input<'_>) -> Taken<i64> {
        let ttl = wrapped_int(data.vint32()? + self.min_ttl);
        require(ttl >= 0)?;
        Ok(ttl)
    }

    fn deletion(&self, data: &mut Input<'_>) -> Taken<Deletion> {
        let timestamp = self.timestamp(data)?;
        Ok(Deletion { timestamp, local_time: checked_time(self.local_time(data)?)? })
    }
}

fn wrapped_int(value: i64) -> i64 {
    i64::from(value as i32)
}

fn checked_time(seconds: i64) -> Taken<i64> {
    require((0..=MAX_DELETION_TIME).contains(&seconds))?;
    Ok(seconds)
}

fn expiration_time(seconds: i64, ttl: i64) -> Taken<i64> {
    require(seconds >= ttl || ttl == EXPIRED_LIVENESS_TTL)?;
    checked_time(seconds)
}

impl<'a> Update<'a> {
    fn clear(&mut self) {
        self.partition_deletion = None;
        self.static_row = None;
        self.rows.clear();
        self.ranges.clear();
        self.values.clear();
        self.complex_deletions.clear();
        self.cells.clear();
        self.markers.clear();
    }

    /// What stands behind the table id.
    pub fn read(&mut self, data: &mut Input<'a>, table: &mut TableLayout, unsigned_times: bool) -> Taken<()> {
        self.clear();
        self.partition_key = data.sized()?;
        let flags = data.byte()?;
        if flags & IS_EMPTY != 0 {
            return Ok(());
        }
        require(flags & IS_REVERSED == 0 && flags & HAS_ROW_ESTIMATE != 0)?;
        let header = read_header(data, table, flags & HAS_STATIC_ROW != 0, unsigned_times)?;
        if flags & HAS_PARTITION_DELETION != 0 {
            self.partition_deletion = Some(header.deletion(data)?);
        }
        if flags & HAS_STATIC_ROW != 0 {
            self.read_static_row(data, table, &header)?;
        }
        data.vint()?;
        self.read_unfiltereds(data, table, &header)
    }

    fn read_static_row(&mut self, data: &mut Input<'a>, table: &TableLayout, header: &Header) -> Taken<()> {
        let flags = data.byte()?;
        require(flags & (END_OF_PARTITION | IS_MARKER) == 0 && flags & EXTENSION != 0)?;
        let extended_flags = data.byte()?;
        require(extended_flags & IS_STATIC != 0)?;
        let row = self.read_row_body(data, &table.static_columns, header, flags, extended_flags, 0..0)?;
        self.static_row = Some(row).filter(|row| !row.is_empty());
        Ok(())
    }

    fn read_unfiltereds(&mut self, data: &mut Input<'a>, table: &TableLayout, header: &Header) -> Taken<()> {
        loop {
            let flags = data.byte()?;
            if flags & END_OF_PARTITION != 0 {
                return self.pair_markers();
            }
            let extended_flags = if flags & EXTENSION != 0 { data.byte()? } else { 0 };
            if flags & IS_MARKER != 0 {
                let marker = self.read_marker(data, table, header)?;
                self.markers.push(marker);
                continue;
            }
            require(extended_flags & IS_STATIC == 0)?;
            let clustering = self.read_values(data, table, table.clustering.len())?;
            let row = self.read_row_body(data, &table.regular_columns, header, flags, extended_flags, clustering)?;
            if !row.is_empty() {
                self.rows.push(row);
            }
        }
    }

    fn read_values(&mut self, data: &mut Input<'a>, table: &TableLayout, size: usize) -> Taken<Range<usize>> {
        let start = self.values.len();
        let mut presence = 0;
        for (index, column) in table.clustering[..size].iter().enumerate() {
            if index % 32 == 0 {
                presence = data.vint()?;
            }
            self.values.push(if presence & 2 != 0 {
                None
            } else if presence & 1 != 0 {
                Some(&[])
            } else {
                Some(read_value(data, column.length)?)
            });
            presence >>= 2;
        }
        Ok(start..self.values.len())
    }

    fn read_row_body(
        &mut self,
        data: &mut Input<'a>,
        known: &KnownColumns,
        header: &Header,
        flags: u8,
        extended_flags: u8,
        clustering: Range<usize>,
    ) -> Taken<Row> {
        let mut liveness = if flags & HAS_TIMESTAMP != 0 { read_liveness(data, header, flags)? } else { None };
        let mut deletion = if flags & HAS_DELETION != 0 { Some(header.deletion(data)?) } else { None };
        let all = if extended_flags & IS_STATIC != 0 { &header.static_columns } else { &header.regular_columns };
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        let is_subset = flags & HAS_ALL_COLUMNS == 0 && read_column_subset(data, all, &mut chosen)?;
        let (first_cell, first_complex) = (self.cells.len(), self.complex_deletions.len());
        for index in if is_subset { &chosen[..] } else { &all[..] } {
            let column = known.column(*index);
            if column.is_complex {
                let has_deletion = flags & HAS_COMPLEX_DELETION != 0;
                self.read_complex_column(data, header, column, *index, liveness.as_ref(), has_deletion)?;
            } else {
                let cell = read_cell(data, header, column, *index, liveness.as_ref())?;
                if column.dropped_us.is_none_or(|dropped| cell.timestamp > dropped) {
                    self.cells.push(cell);
                }
            }
        }
        self.chosen = chosen;
        if let Some(deleted) = deletion {
            self.leave_out_cells(first_cell, deleted.timestamp);
            liveness = liveness.filter(|each| each.timestamp > deleted.timestamp);
            if extended_flags & HAS_SHADOWABLE_DELETION != 0 && liveness.is_some() {
                deletion = None;
            }
        }
        Ok(Row {
            clustering,
            liveness,
            deletion,
            complex_deletions: first_complex..self.complex_deletions.len(),
            cells: first_cell..self.cells.len(),
        })
    }

    fn leave_out_cells(&mut self, first: usize, deleted_until: i64) {
        let mut kept = first;
        for index in first..self.cells.len() {
            if self.cells[index].timestamp > deleted_until {
                self.cells.swap(kept, index);
                kept += 1;
            }
        }
        self.cells.truncate(kept);
    }

    fn read_complex_column(
        &mut self,
        data: &mut Input<'a>,
        header: &Header,
        column: &Column,
        index: usize,
        liveness: Option<&Liveness>,
        has_deletion: bool,
    ) -> Taken<()> {
        let mut deleted_until = NO_TIMESTAMP;
        if has_deletion {
            let timestamp = header.timestamp(data)?;
            let local_time = header.local_time(data)?;
            if timestamp > column.dropped_us.unwrap_or(NO_TIMESTAMP) {
                deleted_until = timestamp;
                let deletion = Deletion { timestamp, local_time: checked_time(local_time)? };
                self.complex_deletions.push(ComplexDeletion { column: index, deletion });
            }
        }
        for _ in 0..data.length()? {
            let cell = read_cell(data, header, column, index, liveness)?;
            let is_dropped = column.dropped_us.is_some_and(|dropped| cell.timestamp <= dropped);
            if !is_dropped && cell.timestamp >= deleted_until {
                self.cells.push(cell);
            }
        }
        Ok(())
    }

    fn read_marker(&mut self, data: &mut Input<'a>, table: &TableLayout, header: &Header) -> Taken<Marker> {
        let kind = data.byte()?;
        let size = data.short()?;
        require(size <= table.clustering.len())?;
        // EXCL_END, INCL_START, EXCL_END_INCL_START, INCL_END_EXCL_START, INCL_END, EXCL_START
        let (ends, starts, end_inclusive, start_inclusive) = match kind {
            0 => (true, false, false, false),
            1 => (false, true, false, true),
            2 => (true, true, false, true),
            5 => (true, true, true, false),
            6 => (true, false, true, false),
            7 => (false, true, false, false),
            _ => return Err(Refused),
        };
        require(size > 0 || !(ends && starts))?;
        let values = self.read_values(data, table, size)?;
        let ends = if ends { Some(header.deletion(data)?) } else { None };
        let starts = if starts { Some(header.deletion(data)?) } else { None };
        Ok(Marker { values, ends, end_inclusive, starts, start_inclusive })
    }

    /// Starts and ends alternate (MutableDeletionInfo.Builder).
    fn pair_markers(&mut self) -> Taken<()> {
        let mut opened: Option<&Marker> = None;
        for marker in &self.markers {
            require(opened.is_some() == marker.ends.is_some())?;
            if let Some(start) = opened {
                require(start.starts == marker.ends)?;
                self.ranges.push(RangeTombstone {
                    start: start.values.clone(),
                    start_inclusive: start.start_inclusive,
                    end: marker.values.clone(),
                    end_inclusive: marker.end_inclusive,
                    deletion: start.starts.ok_or(Refused)?,
                });
            }
            opened = marker.starts.is_some().then_some(marker);
        }
        require(opened.is_none())
    }
}

fn read_header(data: &mut Input<'_>, table: &mut TableLayout, has_static: bool, unsigned_times: bool) -> Taken<Header> {
    let min_timestamp = TIMESTAMP_EPOCH.wrapping_add(data.vint()? as i64);
    let min_local_time = wrapped_int(data.vint32()? + DELETION_TIME_EPOCH);
    let min_ttl = data.vint32()?;
    let static_columns = if has_static { table.static_columns.read_list(data)? } else { ColumnList::from([]) };
    let regular_columns = table.regular_columns.read_list(data)?;
    Ok(Header { min_timestamp, min_local_time, min_ttl, static_columns, regular_columns, unsigned_times })
}

/// Which of the header's columns a row has: fills `chosen`, and false where it has all.
fn read_column_subset(data: &mut Input<'_>, all: &[usize], chosen: &mut Vec<usize>) -> Taken<bool> {
    let encoded = data.vint()?;
    if encoded == 0 {
        return Ok(false);
    }
    let total = all.len();
    if total < LARGE_SET {
        require(encoded >> total == 0)?;
        chosen.extend(all.iter().enumerate().filter(|(index, _)| encoded >> index & 1 == 0).map(|(_, column)| column));
        return Ok(true);
    }
    require(encoded <= total as u64)?;
    let missing = encoded as usize;
    let present = total - missing;
    if present < total / 2 {
        for index in read_indexes(data, present, total)? {
            chosen.push(all[index]);
        }
        return Ok(true);
    }
    let mut absent = read_indexes(data, missing, total)?.into_iter().peekable();
    for (index, column) in all.iter().enumerate() {
        if absent.next_if_eq(&index).is_none() {
            chosen.push(*column);
        }
    }
    Ok(true)
}

/// Strictly ascending indexes below `total`.
fn read_indexes(data: &mut Input<'_>, count: usize, total: usize) -> Taken<Vec<usize>> {
    let mut indexes = Vec::with_capacity(count);
    let mut next = 0;
    for _ in 0..count {
        let index = data.vint()?;
        require(next <= index && index < total as u64)?;
        indexes.push(index as usize);
        next = index + 1;
    }
    Ok(indexes)
}

fn read_value<'a>(data: &mut Input<'a>, length: Option<usize>) -> Taken<&'a [u8]> {
    match length {
        Some(length) => data.bytes(length),
        None => data.sized(),
    }
}

fn read_liveness(data: &mut Input<'_>, header: &Header, flags: u8) -> Taken<Option<Liveness>> {
    let timestamp = header.timestamp(data)?;
    let (mut ttl, mut expiration) = (0, None);
    if flags & HAS_TTL != 0 {
        ttl = header.ttl(data)?;
        expiration = Some(expiration_time(header.local_time(data)?, ttl)?);
    }
    let expiration = expiration.filter(|_| ttl != 0);
    Ok((timestamp != NO_TIMESTAMP).then_some(Liveness { timestamp, ttl, expiration }))
}

fn read_cell<'a>(
    data: &mut Input<'a>,
    header: &Header,
    column: &Column,
    index: usize,
    liveness: Option<&Liveness>,
) -> Taken<Cell<'a>> {
    let flags = data.byte()?;
    let timestamp = match liveness {
        Some(marker) if flags & CELL_USES_ROW_TIMESTAMP != 0 => marker.timestamp,
        None if flags & (CELL_USES_ROW_TIMESTAMP | CELL_USES_ROW_TTL) != 0 => return Err(Refused),
        _ => header.timestamp(data)?,
    };
    let (mut ttl, mut local_time) = (0, None);
    if flags & (CELL_IS_DELETED | CELL_IS_EXPIRING | CELL_USES_ROW_TTL) != 0 {
        match liveness {
            Some(marker) if flags & CELL_USES_ROW_TTL != 0 => (ttl, local_time) = (marker.ttl, marker.expiration),
            _ => {
                let seconds = header.local_time(data)?;
                ttl = if flags & CELL_IS_EXPIRING != 0 { header.ttl(data)? } else { 0 };
                local_time = Some(expiration_time(seconds, ttl)?);
            }
        }
    }
    let path = if column.is_complex { Some(data.sized()?) } else { None };
    let mut value = Some(Cow::Borrowed(&[][..]));
    if flags & CELL_HAS_EMPTY_VALUE == 0 {
        let found = read_value(data, column.length)?;
        let is_live_counter = column.is_counter && local_time.is_none();
        value = Some(if is_live_counter { clear_local_shards(found)? } else { Cow::Borrowed(found) });
    }
    if local_time.is_some() && ttl == 0 {
        require(value.is_some_and(|value| value.is_empty()))?;
        value = None;
    }
    Ok(Cell { column: index, path, value, timestamp, ttl, local_time })
}

/// A counter's value as Cassandra's reader returns it (CounterContext.clearAllLocal).
fn clear_local_shards(context: &[u8]) -> Taken<Cow<'_, [u8]>> {
    let (count, elements) = context.split_at_checked(2).ok_or(Refused)?;
    let count = i16::from_be_bytes([count[0], count[1]]);
    if count >= 0 {
        return Ok(Cow::Borrowed(context));
    }
    let claimed = usize::from(count.unsigned_abs());
    let (elements, shards) = elements.split_at_checked(2 * claimed).ok_or(Refused)?;
    let kept: Vec<u8> = elements.chunks_exact(2).filter(|each| each[0] & 0x80 != 0).flatten().copied().collect();
    if kept.len() == elements.len() {
        return Ok(Cow::Borrowed(context));
    }
    let size = i16::try_from(kept.len() / 2).map_err(|_| Refused)?;
    Ok(Cow::Owned([&size.to_be_bytes()[..], &kept, shards].concat()))
}
