//! The frame of a record, from the connector's child to its host: `source_connector/host/record_frame.py`.
//!
//! ```text
//! RECORD => Length (Uint32) Type (Uint8) Seq (Uint64) SchemaId (Uint32) EventTime (Int64) Key (Bytes)
//!           HasValue (Uint8) Value (Bytes) Count (Uint16) Count times: Name (Text) Value (Text)
//! ```

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

const RECORD: u8 = 8;
/// Of the length itself, which does not count.
const LENGTH_SIZE: usize = 4;

/// The frame. None if it cannot be written so: a text that has no UTF-8, or too many properties or bytes.
#[pyfunction]
pub fn record_frame<'py>(
    py: Python<'py>,
    seq: u64,
    schema_id: u32,
    time_ms: i64,
    key: &[u8],
    value: Option<&[u8]>,
    properties: &Bound<'py, PyDict>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let mut out = Vec::with_capacity(key.len() + value.map_or(0, <[u8]>::len) + 64 * (1 + properties.len()));
    out.extend_from_slice(&[0; LENGTH_SIZE]);
    out.push(RECORD);
    out.extend_from_slice(&seq.to_be_bytes());
    out.extend_from_slice(&schema_id.to_be_bytes());
    out.extend_from_slice(&time_ms.to_be_bytes());
    put(&mut out, key);
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(&mut out, value);
    }
    let Ok(count) = u16::try_from(properties.len()) else { return Ok(None) };
    out.extend_from_slice(&count.to_be_bytes());
    for (name, text) in properties.iter() {
        let (Ok(name), Ok(text)) = (name.cast::<PyString>(), text.cast::<PyString>()) else { return Ok(None) };
        let (Ok(name), Ok(text)) = (name.to_str(), text.to_str()) else { return Ok(None) };
        put(&mut out, name.as_bytes());
        put(&mut out, text.as_bytes());
    }
    let Ok(length) = u32::try_from(out.len() - LENGTH_SIZE) else { return Ok(None) };
    out[..LENGTH_SIZE].copy_from_slice(&length.to_be_bytes());
    Ok(Some(PyBytes::new(py, &out)))
}

/// The bytes after their length. A length that does not fit is too long for the frame, too, which is refused at its end.
fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}
