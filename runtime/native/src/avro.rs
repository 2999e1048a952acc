//! Avro binary as `change_agent/events/events_writer.py` and `change_agent/events/avro_key.py` write it.
//!
//! ```text
//! Long => zigzag, 7 bits a byte, lowest first
//! ```
//!
//! Avro specification 1.11, "Binary Encoding".

use crate::form::{put_value, Form};
use crate::input::{require, Refused, Taken};
use crate::table::TableLayout;

/// The null of a union, also the end of an array.
pub const NULL: u8 = 0;
/// The other branch of a union.
pub const VALUE: u8 = 2;

/// Avro of the NaN of Python's `math.nan`: 0x7FF8000000000000.
const NAN: [u8; 8] = [0, 0, 0, 0, 0, 0, 0xF8, 0x7F];

/// Avro's int and long.
pub fn put_long(out: &mut Vec<u8>, number: i64) {
    let mut zigzag = (number as u64) << 1 ^ (number >> 63) as u64;
    while zigzag > 0x7F {
        out.push(zigzag as u8 & 0x7F | 0x80);
        zigzag >>= 7;
    }
    out.push(zigzag as u8);
}

/// A number of things.
pub fn put_count(out: &mut Vec<u8>, count: usize) {
    put_long(out, count as i64);
}

/// Avro's bytes and string.
pub fn put_bytes(out: &mut Vec<u8>, value: &[u8]) {
    put_count(out, value.len());
    out.extend_from_slice(value);
}

/// A union of null and long.
pub fn put_optional(out: &mut Vec<u8>, number: Option<i64>) {
    match number {
        None => out.push(NULL),
        Some(number) => {
            out.push(VALUE);
            put_long(out, number);
        }
    }
}

/// The part of a key that all rows of a partition share. Refuses what does not look as its types have it.
pub fn put_partition(out: &mut Vec<u8>, table: &TableLayout, partition_key: &[u8]) -> Taken<()> {
    if let [form] = &table.partition[..] {
        return put_value(out, form, partition_key);
    }
    // CompositeType: of each component UInt16 length, bytes and a zero byte.
    let mut left = partition_key;
    for form in &table.partition {
        let (length, behind) = left.split_at_checked(2).ok_or(Refused)?;
        let (value, behind) =
            behind.split_at_checked(usize::from(length[0]) << 8 | usize::from(length[1])).ok_or(Refused)?;
        put_value(out, form, value)?;
        left = behind.get(1..).ok_or(Refused)?;
    }
    require(left.is_empty())
}

/// The rest of a key: of a row, or of a partition where `clustering` is empty.
pub fn put_clustering(out: &mut Vec<u8>, table: &TableLayout, clustering: &[Option<&[u8]>]) -> Taken<()> {
    if clustering.is_empty() {
        out.resize(out.len() + table.clustering.len(), NULL);
        return Ok(());
    }
    for (column, value) in table.clustering.iter().zip(clustering) {
        match value {
            None => out.push(NULL),
            Some(value) => {
                out.push(VALUE);
                match column.form.as_ref().ok_or(Refused)? {
                    // Cassandra has one row for all of them, so the row has one key.
                    Form::Floating(8) if is_nan(value) => out.extend(NAN),
                    form => put_value(out, form, value)?,
                }
            }
        }
    }
    Ok(())
}

fn is_nan(value: &[u8]) -> bool {
    value.try_into().is_ok_and(|value| f64::from_be_bytes(value).is_nan())
}

/// A UUID as text with dashes.
pub fn put_uuid(out: &mut Vec<u8>, value: &[u8; 16]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    put_count(out, 36);
    for (index, byte) in value.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 0x0F)]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longs_at_the_borders() {
        for (number, expected) in [(0, &[0_u8][..]), (-1, &[1]), (63, &[126]), (64, &[0x80, 1]), (-65, &[0x81, 1])] {
            let mut out = Vec::new();
            put_long(&mut out, number);
            assert_eq!(out, expected);
        }
        let mut out = Vec::new();
        put_long(&mut out, i64::MIN);
        assert_eq!(out, [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1]);
    }

    #[test]
    fn nan_of_any_bytes() {
        for bits in [0x7FF8_0000_0000_0000_u64, 0xFFF8_0000_0000_0001, 0x7FF0_0000_0000_0001] {
            assert!(is_nan(&bits.to_be_bytes()));
        }
        for number in [f64::INFINITY, f64::NEG_INFINITY, 0.0, f64::MAX] {
            assert!(!is_nan(&number.to_be_bytes()));
        }
        assert!(!is_nan(&[0x7F, 0xF8, 0, 0]));
        assert_eq!(NAN, 0x7FF8_0000_0000_0000_u64.to_le_bytes());
    }
}
