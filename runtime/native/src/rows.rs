//! Rows of Cassandra's answers, as the connector reads and writes them: `source_connector/rows/raw_page.py` and
//! `source_connector/encoding/avro_transcoder.py`.
//!
//! ```text
//! Row     => {Column}
//!   Column  => Int32 and that many bytes; negative: null       (native protocol v4 specification, section 4.2.5.2)
//! Value   => {Field}
//!   Field   => 0, null | 2, Avro of the column's type
//! List    => Int32 count, {Int32 and that many bytes}
//! ```

use crate::avro::{put_bytes, put_count, put_long, put_uuid, NULL};
use crate::input::{require, Refused, Taken};

/// How the bytes of a type's values become Avro: the `AS_` numbers of `schemas.avro_forms`, with the length of a value.
#[derive(Debug, Clone)]
pub enum FieldForm {
    /// Not copied.
    Other,
    /// Length and bytes, which have to be UTF-8.
    Text,
    /// Length and bytes.
    Bytes,
    /// A zigzag vint of the big-endian number.
    Signed(usize),
    /// A zigzag vint of the days since 1970.
    Date,
    /// Length and text with dashes.
    Uuid,
    /// One byte.
    Boolean,
    /// The bytes in reverse order.
    Floating(usize),
    /// Length and bytes, if these are the shortest form of the number.
    Varint,
    /// A zigzag vint of the nanoseconds as microseconds.
    Time,
    /// The count, each element in its own form, and a zero byte.
    List(Box<FieldForm>),
}

/// Append the Avro of a value, without the branch of its union. Refuses what must be converted the slow way.
pub fn put_field(out: &mut Vec<u8>, form: &FieldForm, value: &[u8]) -> Taken<()> {
    match form {
        FieldForm::Other => return Err(Refused),
        FieldForm::Text => {
            std::str::from_utf8(value).map_err(|_| Refused)?;
            put_bytes(out, value);
        }
        FieldForm::Bytes => put_bytes(out, value),
        FieldForm::Signed(length) => {
            require(value.len() == *length && !value.is_empty())?;
            let negative = if value[0] & 0x80 == 0 { 0 } else { -1 };
            put_long(out, value.iter().fold(negative, |number, byte| number << 8 | i64::from(*byte)));
        }
        FieldForm::Date => {
            let value: [u8; 4] = value.try_into().map_err(|_| Refused)?;
            put_long(out, i64::from(u32::from_be_bytes(value)) - 0x8000_0000);
        }
        FieldForm::Uuid => put_uuid(out, value.try_into().map_err(|_| Refused)?),
        FieldForm::Boolean => {
            require(value.len() == 1)?;
            out.push(u8::from(value[0] != 0));
        }
        FieldForm::Floating(length) => {
            // A NaN of 4 bytes may change when Python converts it, as the slow way does.
            require(value.len() == *length && !(*length == 4 && value[0] & 0x7F == 0x7F && value[1] >= 0x80))?;
            out.extend(value.iter().rev());
        }
        FieldForm::Varint => {
            // No bytes are a null. The first byte says if this is perhaps not the shortest form.
            require(value.len() == 1 || (value.len() > 1 && value[0] != 0 && value[0] != 0xFF))?;
            put_bytes(out, value);
        }
        FieldForm::Time => {
            let nanoseconds = i64::from_be_bytes(value.try_into().map_err(|_| Refused)?);
            require(nanoseconds >= 0)?;
            put_long(out, nanoseconds / 1000);
        }
        FieldForm::List(element) => put_list(out, element, value)?,
    }
    Ok(())
}

fn put_list(out: &mut Vec<u8>, element: &FieldForm, value: &[u8]) -> Taken<()> {
    let (count, mut left) = size(value)?;
    require(count <= value.len() / 4)?;
    if count > 0 {
        put_count(out, count);
    }
    for _ in 0..count {
        let (length, behind) = size(left)?;
        // A null element has a size of more than there is.
        let (found, behind) = behind.split_at_checked(length).ok_or(Refused)?;
        put_field(out, element, found)?;
        left = behind;
    }
    out.push(NULL);
    Ok(())
}

/// An unsigned Int32, and the bytes after it.
fn size(data: &[u8]) -> Taken<(usize, &[u8])> {
    let (found, behind) = data.split_first_chunk::<4>().ok_or(Refused)?;
    Ok((u32::from_be_bytes(*found) as usize, behind))
}

/// Where the columns of a page's rows are: start and end of each. A null starts behind its end.
pub type Places = Vec<(u32, u32)>;

/// The place of a null.
pub const NULL_PLACE: (u32, u32) = (1, 0);

/// Find the columns of `count` rows with `columns` each. Refuses if the page ends too early or is too large.
pub fn places(page: &[u8], count: usize, columns: usize) -> Taken<Places> {
    require(u32::try_from(page.len()).is_ok())?;
    let mut left = page;
    // Each column has 4 bytes at least, so a count that is wrong reserves no more than the page has.
    let mut found = Places::with_capacity(count.saturating_mul(columns).min(page.len() / 4));
    for _ in 0..count.checked_mul(columns).ok_or(Refused)? {
        let (length, behind) = size(left)?;
        if length > i32::MAX as usize {
            found.push(NULL_PLACE);
            left = behind;
            continue;
        }
        let start = page.len() - behind.len();
        (_, left) = behind.split_at_checked(length).ok_or(Refused)?;
        found.push((start as u32, (start + length) as u32));
    }
    Ok(found)
}
