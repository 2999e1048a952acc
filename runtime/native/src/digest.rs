//! The digest of a changed row, whose form `change_agent/events/digest.py` gives.

use md5::{Digest, Md5};

use crate::table::KnownColumns;
use crate::update::{Deletion, RangeTombstone, Row, Update};

const ABSENT: i32 = -1;

/// Writes the canonical form of a change into a buffer that is used again, and sums it up.
#[derive(Debug, Default)]
pub struct Digester {
    form: Vec<u8>,
}

impl Digester {
    /// Of one row or static row. `kind` is the index of the kind in MutationKind.
    pub fn of_row(
        &mut self,
        table_id: &[u8; 16],
        kind: u8,
        update: &Update<'_>,
        row: &Row,
        known: &KnownColumns,
    ) -> [u8; 16] {
        self.begin(table_id, kind, update.partition_key);
        self.put_clustering(&update.values[row.clustering.clone()]);
        if let Some(deletion) = row.deletion {
            self.put_deletion(deletion);
        }
        if let Some(liveness) = row.liveness {
            self.form.push(b'L');
            self.put_times(&[liveness.timestamp, liveness.ttl, liveness.expiration.unwrap_or(-1)]);
        }
        for each in &update.complex_deletions[row.complex_deletions.clone()] {
            self.form.push(b'X');
            self.put_sized(&known.column(each.column).name);
            self.put_deletion(each.deletion);
        }
        for cell in &update.cells[row.cells.clone()] {
            self.form.push(b'C');
            self.put_sized(&known.column(cell.column).name);
            self.put_optional(cell.path);
            self.put_optional(cell.value.as_deref());
            self.put_times(&[cell.timestamp, cell.ttl, cell.local_time.unwrap_or(-1)]);
        }
        self.sum()
    }

    /// Of one range deletion.
    pub fn of_range(&mut self, table_id: &[u8; 16], kind: u8, update: &Update<'_>, range: &RangeTombstone) -> [u8; 16] {
        self.begin(table_id, kind, update.partition_key);
        self.put_deletion(range.deletion);
        self.put_clustering(&update.values[range.start.clone()]);
        self.form.push(u8::from(range.start_inclusive));
        self.put_clustering(&update.values[range.end.clone()]);
        self.form.push(u8::from(range.end_inclusive));
        self.sum()
    }

    /// Of one partition deletion.
    pub fn of_partition(
        &mut self,
        table_id: &[u8; 16],
        kind: u8,
        partition_key: &[u8],
        deletion: Deletion,
    ) -> [u8; 16] {
        self.begin(table_id, kind, partition_key);
        self.put_deletion(deletion);
        self.sum()
    }

    fn begin(&mut self, table_id: &[u8; 16], kind: u8, partition_key: &[u8]) {
        self.form.clear();
        self.form.extend_from_slice(table_id);
        self.form.push(kind);
        self.put_sized(partition_key);
    }

    fn put_clustering(&mut self, values: &[Option<&[u8]>]) {
        self.form.extend_from_slice(&(values.len() as i16).to_be_bytes());
        for value in values {
            self.put_optional(*value);
        }
    }

    fn put_deletion(&mut self, deletion: Deletion) {
        self.form.push(b'D');
        self.put_times(&[deletion.timestamp, deletion.local_time]);
    }

    fn put_times(&mut self, times: &[i64]) {
        for time in times {
            self.form.extend_from_slice(&time.to_be_bytes());
        }
    }

    fn put_optional(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.form.extend_from_slice(&ABSENT.to_be_bytes()),
            Some(value) => self.put_sized(value),
        }
    }

    fn put_sized(&mut self, value: &[u8]) {
        self.form.extend_from_slice(&(value.len() as i32).to_be_bytes());
        self.form.extend_from_slice(value);
    }

    fn sum(&self) -> [u8; 16] {
        Md5::digest(&self.form).into()
    }
}
