//! How CQL bytes become Avro without a Python value in between: `schemas/avro_forms.py`.
//!
//! The agent writes keys with it, and the connector values: `change_agent/events/avro_key.py`,
//! `source_connector/encoding/avro_transcoder.py`.
//!
//! ```text
//! List    => Int32 count, {Int32 and that many bytes}
//! ```

use crate::avro::{put_bytes, put_count, put_long, put_uuid, NULL};
use crate::input::{require, Refused, Taken};

/// How the bytes of a type's values become Avro: the `AS_` numbers of `schemas.avro_forms`, with the length of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
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
    List(Box<Form>),
}

impl Form {
    /// The form of a number of `schemas.avro_forms` and the length of a value, from a list to its innermost element.
    pub fn of(forms: &[(u32, usize)]) -> Option<Self> {
        let Some(((number, length), inner)) = forms.split_first() else {
            return Some(Self::Other);
        };
        Some(match (number, length) {
            (0, _) => Self::Other,
            (1, _) => Self::Text,
            (2, _) => Self::Bytes,
            (3, 1 | 2 | 4 | 8) => Self::Signed(*length),
            (4, 4) => Self::Date,
            (5, 16) => Self::Uuid,
            (6, 1) => Self::Boolean,
            (7, 4 | 8) => Self::Floating(*length),
            (8, _) => Self::Varint,
            (9, 8) => Self::Time,
            (10, _) => Self::List(Box::new(Self::of(inner)?)),
            _ => return None,
        })
    }
}

/// Append the Avro of a value, without the branch of its union. Refuses what must be converted the slow way.
pub fn put_value(out: &mut Vec<u8>, form: &Form, value: &[u8]) -> Taken<()> {
    match form {
        Form::Other => return Err(Refused),
        Form::Text => {
            std::str::from_utf8(value).map_err(|_| Refused)?;
            put_bytes(out, value);
        }
        Form::Bytes => put_bytes(out, value),
        Form::Signed(length) => {
            require(value.len() == *length && !value.is_empty())?;
            let negative = if value[0] & 0x80 == 0 { 0 } else { -1 };
            put_long(out, value.iter().fold(negative, |number, byte| number << 8 | i64::from(*byte)));
        }
        Form::Date => {
            let value: [u8; 4] = value.try_into().map_err(|_| Refused)?;
            put_long(out, i64::from(u32::from_be_bytes(value)) - 0x8000_0000);
        }
        Form::Uuid => put_uuid(out, value.try_into().map_err(|_| Refused)?),
        Form::Boolean => {
            require(value.len() == 1)?;
            out.push(u8::from(value[0] != 0));
        }
        Form::Floating(length) => {
            // A NaN of 4 bytes may change when Python converts it, as the slow way does.
            require(value.len() == *length && !(*length == 4 && value[0] & 0x7F == 0x7F && value[1] >= 0x80))?;
            out.extend(value.iter().rev());
        }
        Form::Varint => {
            // No bytes are a null. The first byte says if this is perhaps not the shortest form.
            require(value.len() == 1 || (value.len() > 1 && value[0] != 0 && value[0] != 0xFF))?;
            put_bytes(out, value);
        }
        Form::Time => {
            let nanoseconds = i64::from_be_bytes(value.try_into().map_err(|_| Refused)?);
            require(nanoseconds >= 0)?;
            put_long(out, nanoseconds / 1000);
        }
        Form::List(element) => put_list(out, element, value)?,
    }
    Ok(())
}

fn put_list(out: &mut Vec<u8>, element: &Form, value: &[u8]) -> Taken<()> {
    let (count, mut left) = size(value)?;
    require(count <= value.len() / 4)?;
    if count > 0 {
        put_count(out, count);
    }
    for _ in 0..count {
        let (length, behind) = size(left)?;
        // A null element has a size of more than there is.
        let (found, behind) = behind.split_at_checked(length).ok_or(Refused)?;
        put_value(out, element, found)?;
        left = behind;
    }
    out.push(NULL);
    Ok(())
}

/// An unsigned Int32, and the bytes after it.
pub fn size(data: &[u8]) -> Taken<(usize, &[u8])> {
    let (found, behind) = data.split_first_chunk::<4>().ok_or(Refused)?;
    Ok((u32::from_be_bytes(*found) as usize, behind))
}
