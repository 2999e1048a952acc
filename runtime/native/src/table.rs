//! What the core needs of one table, worked out once by Python: `change_agent/events/native_tables.py`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::form::Form;
use crate::input::{Input, Refused, Taken};

/// Of lists of columns that are kept for one table: bytes that are not Cassandra's could make any number of them.
const MAX_LISTS: usize = 256;

/// A clustering column: the fixed length of its values, if they have one, and its form in a key.
#[derive(Debug, Clone)]
pub struct ClusteringColumn {
    /// None: the length stands before each value.
    pub length: Option<usize>,
    /// None in a table without events, whose keys nobody writes.
    pub form: Option<Form>,
}

/// How the cells of one column are laid out: ColumnLayout.
#[derive(Debug, Clone)]
pub struct Column {
    /// UTF-8.
    pub name: Vec<u8>,
    /// Columns of the same name, static and regular, share a number.
    pub name_id: u32,
    /// One cell for each element.
    pub is_complex: bool,
    /// Cassandra clears local shards of it on reading.
    pub is_counter: bool,
    /// None: the length stands before each value.
    pub length: Option<usize>,
    /// Microseconds; cells that are not newer are left out.
    pub dropped_us: Option<i64>,
}

/// Indexes of columns in wire order.
pub type ColumnList = Arc<[usize]>;

/// The columns of one kind of a table, and the lists of them that headers named so far: KnownColumns.
#[derive(Debug, Clone, Default)]
pub struct KnownColumns {
    columns: Vec<Column>,
    by_name: HashMap<Vec<u8>, usize>,
    lists: HashMap<Vec<u8>, ColumnList>,
    last: Option<(Vec<u8>, ColumnList)>,
}

impl KnownColumns {
    /// Of two columns of one name the later one counts.
    pub fn new(columns: Vec<Column>) -> Self {
        let by_name = columns.iter().enumerate().map(|(index, column)| (column.name.clone(), index)).collect();
        Self { columns, by_name, ..Self::default() }
    }

    /// One of an index that a list gave.
    pub fn column(&self, index: usize) -> &Column {
        &self.columns[index]
    }

    /// Columns => Vint count, {Name}
    pub fn read_list(&mut self, data: &mut Input<'_>) -> Taken<ColumnList> {
        let start = data.left();
        if let Some((encoded, list)) = &self.last {
            // A statement names the same columns every time.
            if start.starts_with(encoded) {
                data.bytes(encoded.len())?;
                return Ok(Arc::clone(list));
            }
        }
        let count = data.length()?;
        let mut names = Vec::with_capacity(count.min(64));
        for _ in 0..count {
            names.push(data.sized()?);
        }
        let encoded = &start[..start.len() - data.remaining()];
        let list = match self.lists.get(encoded) {
            Some(known) => Arc::clone(known),
            None => self.keep(encoded, &names)?,
        };
        self.last = Some((encoded.to_vec(), Arc::clone(&list)));
        Ok(list)
    }

    fn keep(&mut self, encoded: &[u8], names: &[&[u8]]) -> Taken<ColumnList> {
        let list: ColumnList =
            names.iter().map(|name| self.by_name.get(*name).copied().ok_or(Refused)).collect::<Taken<_>>()?;
        if self.lists.len() >= MAX_LISTS {
            self.lists.clear();
        }
        self.lists.insert(encoded.to_vec(), Arc::clone(&list));
        Ok(list)
    }
}

/// A table that the core decodes.
#[derive(Debug, Clone)]
pub struct TableLayout {
    /// 16 bytes.
    pub id: [u8; 16],
    /// Tables of one number publish to one topic.
    pub topic: usize,
    /// Whether its changes become events.
    pub is_published: bool,
    /// Of each partition key column; empty in a table without events.
    pub partition: Vec<Form>,
    /// Clustering columns in order.
    pub clustering: Vec<ClusteringColumn>,
    /// Static ones.
    pub static_columns: KnownColumns,
    /// Regular ones.
    pub regular_columns: KnownColumns,
    /// Of the columns, by `name_id`.
    pub names: Vec<Vec<u8>>,
}
