//! The native core: for the agent, from the bytes of a commit log section to the bytes of messages; for the connector, from
//! the bytes of an answer to rows and their records (`answer`, `rows`).
//!
//! The agent's contract with Python stands in `docs/architecture.md` and, for types, in `change_agent/events/native_core.py`: what the
//! core takes becomes the same events as in Python, byte for byte; all else it refuses, and Python reads it.

mod answer;
mod avro;
mod core;
mod digest;
mod form;
mod frame;
mod input;
mod published;
mod rows;
mod run;
mod table;
mod token;
mod update;

use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::core::{message_of, Core, Limits, Place};
use crate::form::Form;
use crate::table::{ClusteringColumn, Column, KnownColumns, TableLayout};

create_exception!(cassandra_cdc_native, CoreError, PyException, "The core panicked: its message.");

/// A CQL type's form in a key: the `AS_` number of `schemas.avro_forms`, and the bytes of its values.
type PyForm = (u32, usize);
/// Name, number of the name, complex, counter, fixed length or -1, dropped at (microseconds).
type PyColumn = (Vec<u8>, u32, bool, bool, i64, Option<i64>);

/// The definition of a table, compiled once.
#[pyclass(frozen, module = "cassandra_cdc_native")]
struct Table {
    layout: TableLayout,
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (*, table_id, topic, is_published, partition, clustering, static_columns, regular_columns, names))]
    #[allow(clippy::too_many_arguments)] // keywords of Python's one call
    fn new(
        table_id: [u8; 16],
        topic: usize,
        is_published: bool,
        partition: Vec<PyForm>,
        clustering: Vec<(i64, Option<PyForm>)>,
        static_columns: Vec<PyColumn>,
        regular_columns: Vec<PyColumn>,
        names: Vec<Vec<u8>>,
    ) -> PyResult<Self> {
        let clustering = clustering
            .into_iter()
            .map(|(length, form)| Ok(ClusteringColumn { length: fixed(length), form: form.map(form_of).transpose()? }));
        let layout = TableLayout {
            id: table_id,
            topic,
            is_published,
            partition: partition.into_iter().map(form_of).collect::<PyResult<_>>()?,
            clustering: clustering.collect::<PyResult<_>>()?,
            static_columns: columns_of(static_columns, names.len())?,
            regular_columns: columns_of(regular_columns, names.len())?,
            names,
        };
        if is_published && (layout.partition.is_empty() || layout.clustering.iter().any(|each| each.form.is_none())) {
            return Err(PyValueError::new_err("a published table needs forms of all its key columns"));
        }
        Ok(Self { layout })
    }
}

/// The form of a key's column. Python encodes the keys of tables with other types.
fn form_of(form: PyForm) -> PyResult<Form> {
    match form {
        (1..=6, _) | (7, 8) => Form::of(&[form]),
        _ => None,
    }
    .ok_or_else(|| PyValueError::new_err(format!("no form of a key: {} of {} bytes", form.0, form.1)))
}

fn fixed(length: i64) -> Option<usize> {
    usize::try_from(length).ok()
}

fn columns_of(columns: Vec<PyColumn>, names: usize) -> PyResult<KnownColumns> {
    if columns.iter().any(|column| column.1 as usize >= names) {
        return Err(PyValueError::new_err("a column has a name that is not listed"));
    }
    let columns = columns.into_iter().map(|(name, name_id, is_complex, is_counter, length, dropped_us)| Column {
        name,
        name_id,
        is_complex,
        is_counter,
        length: fixed(length),
        dropped_us,
    });
    Ok(KnownColumns::new(columns.collect()))
}

/// Some encoded events of one table and one segment, in order.
#[pyclass(module = "cassandra_cdc_native")]
struct EventRun {
    run: run::EventRun,
}

#[pymethods]
impl EventRun {
    fn __len__(&self) -> usize {
        self.run.len()
    }

    /// Their estimated bytes in messages.
    #[getter]
    fn size(&self) -> usize {
        self.run.size()
    }

    /// The Avro key of the first event.
    #[getter]
    fn first_key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.run.first_key().map(|key| PyBytes::new(py, key))
    }

    /// Write time of the first event, in microseconds.
    #[getter]
    fn first_writetime_us(&self) -> Option<i64> {
        self.run.first().and_then(|event| event.writetime_us)
    }

    /// The same events by topic partition.
    fn split(&self, partitions: usize) -> PyResult<Vec<(usize, Self)>> {
        let parts = guarded(|| self.run.split(partitions))?;
        Ok(parts.into_iter().map(|(partition, run)| (partition, Self { run })).collect())
    }

    /// Take from the front what a message with so much room takes; the first event whatever its size, where `takes_any`.
    fn take(&mut self, max_events: usize, max_bytes: usize, takes_any: bool) -> PyResult<Self> {
        guarded(|| self.run.take(max_events, max_bytes, takes_any)).map(|run| Self { run })
    }
}

/// What became of the entries in front of a window.
#[pyclass(frozen, get_all, module = "cassandra_cdc_native")]
struct EncodedEntries {
    /// End of the last entry that was taken.
    end: i64,
    /// Entries that were taken.
    entries: usize,
    /// Those of them without events.
    skipped: usize,
    /// End of the last entry with events.
    events_end: i64,
    /// Write time of the last event, in microseconds.
    last_writetime_us: Option<i64>,
    /// Index of the table, and its events.
    runs: Vec<(usize, Py<EventRun>)>,
}

/// Encodes entries by the tables of a schema.
#[pyclass(module = "cassandra_cdc_native")]
struct Encoder {
    core: Core,
}

#[pymethods]
impl Encoder {
    /// `skipped` are ids of tables whose entries have no events, and are not decoded.
    #[new]
    fn new(tables: Vec<PyRef<'_, Table>>, skipped: Vec<[u8; 16]>) -> Self {
        let tables = tables.iter().map(|table| table.layout.clone()).collect();
        Self { core: Core::new(tables, skipped.into_iter().collect()) }
    }

    /// The entries from `offset` of the window on; None where the first one is refused. Raises CoreError for a panic at it.
    #[pyo3(signature = (window, *, offset, position, end, unsigned_times, max_events, max_bytes))]
    #[allow(clippy::too_many_arguments)] // keywords of Python's one call
    fn encode(
        &mut self,
        py: Python<'_>,
        window: &Bound<'_, PyBytes>,
        offset: usize,
        position: i64,
        end: i64,
        unsigned_times: bool,
        max_events: usize,
        max_bytes: usize,
    ) -> PyResult<Option<EncodedEntries>> {
        let bytes = window.as_bytes();
        let place = Place { offset, position, end, unsigned_times };
        let limits = Limits { events: max_events, bytes: max_bytes };
        let core = &mut self.core;
        let batch = py.detach(|| guarded(|| core.encode(bytes, place, limits)))?;
        if let Some(message) = batch.panic {
            return Err(CoreError::new_err(message));
        }
        if batch.entries == 0 {
            return Ok(None);
        }
        let runs = batch.runs.into_iter().map(|(table, run)| Ok((table, Py::new(py, EventRun { run })?)));
        Ok(Some(EncodedEntries {
            end: batch.end,
            entries: batch.entries,
            skipped: batch.skipped,
            events_end: batch.events_end,
            last_writetime_us: batch.last_writetime_us,
            runs: runs.collect::<PyResult<_>>()?,
        }))
    }
}

/// The bytes of a message of these events, behind the fields of its head. Raises CoreError.
#[pyfunction]
fn pack<'py>(py: Python<'py>, head: &[u8], runs: Vec<PyRef<'py, EventRun>>) -> PyResult<Bound<'py, PyBytes>> {
    let runs: Vec<run::EventRun> = runs.iter().map(|each| each.run.clone()).collect();
    let message = py.detach(|| guarded(|| run::pack(head, &runs)))?;
    Ok(PyBytes::new(py, &message))
}

/// The Murmur3 token of a partition key.
#[pyfunction]
#[pyo3(name = "token")]
fn token_of(partition_key: &[u8]) -> i64 {
    token::token(partition_key)
}

/// The result, or the panic as an error.
fn guarded<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|cause| CoreError::new_err(message_of(cause.as_ref())))
}

#[pymodule]
fn cassandra_cdc_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CoreError", module.py().get_type::<CoreError>())?;
    module.add_class::<Table>()?;
    module.add_class::<Encoder>()?;
    module.add_class::<EncodedEntries>()?;
    module.add_class::<EventRun>()?;
    module.add_class::<answer::Row>()?;
    module.add_class::<answer::RecordWriter>()?;
    module.add_class::<published::PublishedChanges>()?;
    module.add_function(wrap_pyfunction!(answer::rows, module)?)?;
    module.add_function(wrap_pyfunction!(answer::rows_by_key, module)?)?;
    module.add_function(wrap_pyfunction!(answer::has_any, module)?)?;
    module.add_function(wrap_pyfunction!(frame::record_frame, module)?)?;
    module.add_function(wrap_pyfunction!(pack, module)?)?;
    module.add_function(wrap_pyfunction!(token_of, module)?)
}
