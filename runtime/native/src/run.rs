//! Encoded events between the reader and their messages: `change_agent/publishing/outgoing.py`, natively.
//!
//! An event is encoded once, but for its column set: that is an index into the list of its message, which nobody knows yet.

use std::collections::HashMap;
use std::sync::Arc;

use crate::avro::{put_count, put_long, NULL};
use crate::token::token;

/// One encoded event, in the buffer of its table.
#[derive(Debug)]
pub struct Event {
    /// Where its bytes begin, where its column set belongs between them, and where they end.
    pub start: usize,
    /// See `start`.
    pub column_set_at: usize,
    /// See `start`.
    pub end: usize,
    /// Where its Avro key stands.
    pub key: std::ops::Range<usize>,
    /// Index into the column sets of the table's events.
    pub column_set: usize,
    /// The top 16 bits of the partition's token, from the smallest to the largest.
    pub bucket: u16,
    /// Estimated bytes in a message, as `outgoing.event_size` has them.
    pub size: usize,
    /// Microseconds; the highest.
    pub writetime_us: Option<i64>,
}

/// The events that one table has in one batch.
#[derive(Debug, Default)]
pub struct TableEvents {
    /// Index of the table.
    pub table: usize,
    /// Bytes of all events.
    pub buffer: Vec<u8>,
    /// In the order of the log.
    pub events: Vec<Event>,
    column_sets: Vec<Vec<u8>>,
    by_names: HashMap<Vec<u32>, usize>,
    last_names: Vec<u32>,
    last_set: usize,
}

impl TableEvents {
    /// None yet.
    pub fn new(table: usize) -> Self {
        Self { table, last_set: usize::MAX, ..Self::default() }
    }

    /// The number of a column set, given by the numbers of its names.
    pub fn column_set(&mut self, name_ids: &[u32], names: &[Vec<u8>]) -> usize {
        if self.last_set != usize::MAX && self.last_names == name_ids {
            return self.last_set;
        }
        let set = match self.by_names.get(name_ids) {
            Some(set) => *set,
            None => {
                self.column_sets.push(encoded_set(name_ids, names));
                self.by_names.insert(name_ids.to_vec(), self.column_sets.len() - 1);
                self.column_sets.len() - 1
            }
        };
        self.last_names.clear();
        self.last_names.extend_from_slice(name_ids);
        self.last_set = set;
        set
    }
}

fn encoded_set(name_ids: &[u32], names: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    if !name_ids.is_empty() {
        put_count(&mut out, name_ids.len());
        for id in name_ids {
            crate::avro::put_bytes(&mut out, &names[*id as usize]);
        }
    }
    out.push(NULL);
    out
}

/// `schemas.topics.partition_of_token`, before the modulo.
pub fn bucket_of(partition_key: &[u8]) -> u16 {
    ((token(partition_key) >> 48) + 32_768) as u16
}

/// Some events of a batch's table, in order; those in front can be taken away.
#[derive(Debug, Clone)]
pub struct EventRun {
    data: Arc<TableEvents>,
    order: Vec<u32>,
    front: usize,
    size: usize,
}

impl EventRun {
    /// All events of a table.
    pub fn whole(data: TableEvents) -> Self {
        let order = (0..data.events.len() as u32).collect();
        let size = data.events.iter().map(|event| event.size).sum();
        Self { data: Arc::new(data), order, front: 0, size }
    }

    /// Events that are left.
    pub fn len(&self) -> usize {
        self.order.len() - self.front
    }

    /// Their estimated bytes in messages.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The first one that is left.
    pub fn first(&self) -> Option<&Event> {
        self.order.get(self.front).map(|index| &self.data.events[*index as usize])
    }

    /// The Avro key of the first one.
    pub fn first_key(&self) -> Option<&[u8]> {
        self.first().map(|event| &self.data.buffer[event.key.clone()])
    }

    fn events(&self) -> impl Iterator<Item = &Event> {
        self.order[self.front..].iter().map(|index| &self.data.events[*index as usize])
    }

    /// The same events by the topic partition that each belongs to: (partition, run), partitions without events left out.
    pub fn split(&self, partitions: usize) -> Vec<(usize, Self)> {
        let mut orders = vec![Vec::new(); partitions];
        for index in &self.order[self.front..] {
            orders[usize::from(self.data.events[*index as usize].bucket) % partitions].push(*index);
        }
        let runs = orders.into_iter().enumerate().filter(|(_, order)| !order.is_empty());
        runs.map(|(partition, order)| (partition, self.part(order))).collect()
    }

    fn part(&self, order: Vec<u32>) -> Self {
        let size = order.iter().map(|index| self.data.events[*index as usize].size).sum();
        Self { data: Arc::clone(&self.data), order, front: 0, size }
    }

    /// Take away from the front what fits; the first one whatever its size, where `takes_any`.
    pub fn take(&mut self, max_events: usize, max_bytes: usize, takes_any: bool) -> Self {
        let (mut count, mut size) = (0, 0);
        for event in self.events().take(max_events) {
            if (count > 0 || !takes_any) && size + event.size > max_bytes {
                break;
            }
            count += 1;
            size += event.size;
        }
        let taken = self.order[self.front..self.front + count].to_vec();
        self.front += count;
        self.size -= size;
        Self { data: Arc::clone(&self.data), order: taken, front: 0, size }
    }
}

/// The bytes of a message of these events, of one table and one segment, behind the fields of its `head`.
///
/// ```text
/// MutationEvents => node_id segment_id keyspace table table_id key_schema column_sets events
/// ```
pub fn pack(head: &[u8], runs: &[EventRun]) -> Vec<u8> {
    let mut numbers: HashMap<&[u8], i64> = HashMap::new();
    let (mut sets, mut body) = (Vec::new(), Vec::new());
    for run in runs {
        let mut known = vec![None; run.data.column_sets.len()];
        for event in run.events() {
            let number = *known[event.column_set].get_or_insert_with(|| {
                let encoded = &run.data.column_sets[event.column_set][..];
                let next = numbers.len() as i64;
                *numbers.entry(encoded).or_insert_with(|| {
                    sets.extend_from_slice(encoded);
                    next
                })
            });
            body.extend_from_slice(&run.data.buffer[event.start..event.column_set_at]);
            put_long(&mut body, number);
            body.extend_from_slice(&run.data.buffer[event.column_set_at..event.end]);
        }
    }
    let mut message = Vec::with_capacity(head.len() + sets.len() + body.len() + 24);
    message.extend_from_slice(head);
    put_array(&mut message, numbers.len(), &sets);
    put_array(&mut message, runs.iter().map(EventRun::len).sum(), &body);
    message
}

fn put_array(out: &mut Vec<u8>, count: usize, items: &[u8]) {
    if count > 0 {
        put_count(out, count);
        out.extend_from_slice(items);
    }
    out.push(NULL);
}
