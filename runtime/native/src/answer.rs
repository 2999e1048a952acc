//! Cassandra's answers for Python: the rows of a page, and the writer of their records.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyTuple};

use crate::avro::{NULL, VALUE};
use crate::form::{put_value, Form};
use crate::rows::{places, Places};

/// A page, and where its columns are.
struct Page {
    bytes: Py<PyBytes>,
    places: Places,
}

/// The columns of one row, a sequence of bytes and None. A column becomes a Python object when it is asked for.
#[pyclass(frozen, module = "cassandra_cdc_native")]
pub struct Row {
    page: Arc<Page>,
    first: usize,
    length: usize,
}

impl Row {
    /// The bytes of a column; None: null, or no such column.
    fn column<'a>(&'a self, py: Python<'a>, at: usize) -> Option<&'a [u8]> {
        let (start, end) = *self.page.places.get(self.first + at)?;
        self.page.bytes.bind(py).as_bytes().get(start as usize..end as usize)
    }

    fn object<'py>(&self, py: Python<'py>, at: usize) -> Option<Bound<'py, PyBytes>> {
        self.column(py, at).map(|bytes| PyBytes::new(py, bytes))
    }

    fn tuple<'py>(&self, py: Python<'py>, from: usize, to: usize) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, (from..to.max(from)).map(|at| self.object(py, at)))
    }
}

#[pymethods]
impl Row {
    fn __len__(&self) -> usize {
        self.length
    }

    /// A row equals the tuple of its columns.
    fn __eq__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> PyResult<bool> {
        let columns = self.tuple(py, 0, self.length)?;
        match other.cast::<Self>() {
            Ok(row) => columns.eq(row.get().tuple(py, 0, row.get().length)?),
            Err(_) => columns.eq(other),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.tuple(py, 0, self.length)?.hash()
    }

    /// A column; a slice gives a tuple. Raises IndexError.
    fn __getitem__<'py>(&self, py: Python<'py>, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(number) = at.extract::<isize>() {
            let at = if number < 0 { number + self.length as isize } else { number };
            if at < 0 || at as usize >= self.length {
                return Err(PyIndexError::new_err("row index out of range"));
            }
            return Ok(self.object(py, at as usize).into_pyobject(py)?.into_any());
        }
        let Ok(slice) = at.cast::<PySlice>() else {
            return Err(PyTypeError::new_err("a row is indexed by integers and slices"));
        };
        let range = slice.indices(self.length as isize)?;
        if range.step != 1 {
            return Err(PyValueError::new_err("a slice of a row has no step"));
        }
        Ok(self.tuple(py, range.start as usize, range.stop.max(0) as usize)?.into_any())
    }
}

/// The rows of a page. Raises IndexError if the page ends too early.
#[pyfunction]
pub fn rows<'py>(page: Bound<'py, PyBytes>, count: usize, columns: usize) -> PyResult<Bound<'py, PyList>> {
    let py = page.py();
    let page = Arc::new(found(page, count, columns)?);
    let found = PyList::empty(py);
    for row in 0..count {
        found.append(Row { page: page.clone(), first: row * columns, length: columns })?;
    }
    Ok(found)
}

/// The rows of a page without their first `width` columns, by a tuple of these. Raises IndexError if the page ends too early.
#[pyfunction]
pub fn rows_by_key<'py>(
    page: Bound<'py, PyBytes>,
    count: usize,
    columns: usize,
    width: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let py = page.py();
    let page = Arc::new(found(page, count, columns)?);
    let found = PyDict::new(py);
    for number in 0..count {
        let row = Row { page: page.clone(), first: number * columns, length: columns };
        let key = row.tuple(py, 0, width.min(columns))?;
        let rest = Row { first: row.first + width.min(columns), length: columns - width.min(columns), ..row };
        found.set_item(key, Py::new(py, rest)?)?;
    }
    Ok(found)
}

/// True if one of the columns from `start` to `end` has bytes.
#[pyfunction]
pub fn has_any(row: &Bound<'_, Row>, start: usize, end: usize) -> bool {
    let py = row.py();
    let row = row.get();
    (start..end.min(row.length)).any(|at| row.column(py, at).is_some_and(|bytes| !bytes.is_empty()))
}

fn found(page: Bound<'_, PyBytes>, count: usize, columns: usize) -> PyResult<Page> {
    let found = places(page.as_bytes(), count, columns);
    let places = found.map_err(|_| PyIndexError::new_err("the page ends inside of a row"))?;
    Ok(Page { bytes: page.unbind(), places })
}

/// A column's form, and the function for what the form refuses: it gives the field with the branch of the union.
struct Field {
    form: Form,
    convert: Py<PyAny>,
}

/// From a list to its innermost element: an `AS_` number of `schemas.avro_forms`, and the length of the type's values.
type PyForms = Vec<(u32, usize)>;

/// Writes records of nullable fields, one for each column.
#[pyclass(frozen, module = "cassandra_cdc_native")]
pub struct RecordWriter {
    fields: Vec<Field>,
}

#[pymethods]
impl RecordWriter {
    /// Each field: its forms, and the function.
    #[new]
    fn new(fields: Vec<(PyForms, Py<PyAny>)>) -> PyResult<Self> {
        let fields = fields.into_iter().map(|(forms, convert)| {
            let form =
                Form::of(&forms).ok_or_else(|| PyValueError::new_err(format!("no form of a field: {forms:?}")))?;
            Ok(Field { form, convert })
        });
        Ok(Self { fields: fields.collect::<PyResult<_>>()? })
    }

    /// The record whose columns begin at `start` of the row. Raises IndexError, and the errors of the functions.
    fn write<'py>(&self, py: Python<'py>, row: &Bound<'py, Row>, start: usize) -> PyResult<Bound<'py, PyBytes>> {
        let row = row.get();
        if start + self.fields.len() > row.length {
            return Err(PyIndexError::new_err("row index out of range"));
        }
        let mut out = Vec::with_capacity(16 * self.fields.len());
        for (at, field) in self.fields.iter().enumerate() {
            let Some(value) = row.column(py, start + at) else {
                out.push(NULL);
                continue;
            };
            let before = out.len();
            out.push(VALUE);
            if put_value(&mut out, &field.form, value).is_err() {
                out.truncate(before);
                let converted = field.convert.bind(py).call1((PyBytes::new(py, value),))?;
                out.extend_from_slice(converted.cast::<PyBytes>()?.as_bytes());
            }
        }
        Ok(PyBytes::new(py, &out))
    }
}
