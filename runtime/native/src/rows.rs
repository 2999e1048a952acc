//! Where the columns of Cassandra's answers are: `source_connector/rows/raw_page.py`.
//!
//! ```text
//! Row     => {Column}
//!   Column  => Int32 and that many bytes; negative: null       (native protocol v4 specification, section 4.2.5.2)
//! ```

use crate::form::size;
use crate::input::{require, Refused, Taken};

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
