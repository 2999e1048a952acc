//! A cursor over bytes that never reads beyond their end: `change_agent/data_input.py`.
//!
//! Cassandra source: o.a.c.io.util.DataInputPlus, o.a.c.utils.vint.VIntCoding.

/// The native core does not take these bytes. It is no error yet: Python decodes them, and says what is wrong, if anything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// What reading gives.
pub type Taken<T> = Result<T, Refused>;

/// Refuse unless this holds.
pub fn require(holds: bool) -> Taken<()> {
    if holds {
        Ok(())
    } else {
        Err(Refused)
    }
}

/// Reads big-endian values one after the other; refuses at the end of the bytes.
#[derive(Debug)]
pub struct Input<'a> {
    left: &'a [u8],
}

impl<'a> Input<'a> {
    /// A cursor at the first of these bytes.
    pub fn new(data: &'a [u8]) -> Self {
        Self { left: data }
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        self.left.len()
    }

    /// What is left, for those who compare it as a whole.
    pub fn left(&self) -> &'a [u8] {
        self.left
    }

    /// `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Taken<&'a [u8]> {
        let (found, left) = self.left.split_at_checked(length).ok_or(Refused)?;
        self.left = left;
        Ok(found)
    }

    /// Byte: 0..255.
    pub fn byte(&mut self) -> Taken<u8> {
        let (first, left) = self.left.split_first().ok_or(Refused)?;
        self.left = left;
        Ok(*first)
    }

    /// UInt16.
    pub fn short(&mut self) -> Taken<usize> {
        let found = self.bytes(2)?;
        Ok(usize::from(found[0]) << 8 | usize::from(found[1]))
    }

    /// Vint: 1 to 9 bytes. The leading one bits of the first byte count the bytes that follow.
    pub fn vint(&mut self) -> Taken<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let extra = first.leading_ones();
        let high = u64::from(first) & (0xFF >> extra);
        let low = self.bytes(extra as usize)?;
        Ok(low.iter().fold(high, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Vint of a Java int, which may be negative: its sign fills all 64 bits (VIntCoding.readUnsignedVInt32).
    pub fn vint32(&mut self) -> Taken<i64> {
        let value = self.vint()? as i64;
        require(i32::try_from(value).is_ok())?;
        Ok(value)
    }

    /// Vint that counts bytes or things of at least one byte each, so it cannot exceed what is left.
    pub fn length(&mut self) -> Taken<usize> {
        let length = self.vint()?;
        require(length <= self.left.len() as u64)?;
        Ok(length as usize)
    }

    /// Vint length, then that many bytes (o.a.c.utils.ByteBufferUtil.readWithVIntLength).
    pub fn sized(&mut self) -> Taken<&'a [u8]> {
        let length = self.length()?;
        self.bytes(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vints_of_all_lengths() {
        assert_eq!(Input::new(&[0x7F]).vint(), Ok(0x7F));
        assert_eq!(Input::new(&[0x80, 0x80]).vint(), Ok(0x80));
        assert_eq!(Input::new(&[0xFF; 9]).vint(), Ok(u64::MAX));
        assert_eq!(Input::new(&[0xFF; 9]).vint32(), Ok(-1));
        assert_eq!(Input::new(&[0xFE; 8]).vint(), Ok(0x00FE_FEFE_FEFE_FEFE));
    }

    #[test]
    fn nothing_is_read_beyond_the_end() {
        assert_eq!(Input::new(&[]).byte(), Err(Refused));
        assert_eq!(Input::new(&[0xFF; 8]).vint(), Err(Refused));
        assert_eq!(Input::new(&[5, 1, 2]).sized(), Err(Refused));
        assert_eq!(Input::new(&[0xF0, 0x80, 0, 0, 0]).vint32(), Err(Refused));
    }
}
