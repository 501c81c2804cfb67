//! XDR (RFC 4506) over borrowed bytes: nothing is allocated, and no length is believed.

use std::fmt;

use forebay_error::{Error, ErrorKind};

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read the server's reply: {}", self.0)
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(ErrorKind::Io, malformed.to_string())
    }
}

/// Writes into a buffer of fixed size. What has no room is counted, not written: [`XdrWriter::finish`] tells.
#[derive(Debug)]
pub struct XdrWriter<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> XdrWriter<'a> {
    /// Writes from the first byte of `bytes`.
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    /// Bytes so far.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A 32-bit number.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_be_bytes());
    }

    /// 32-bit numbers.
    pub fn words<const N: usize>(&mut self, values: &[u32; N]) {
        self.raw(values.map(u32::to_be_bytes).as_flattened());
    }

    /// A 64-bit number.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_be_bytes());
    }

    /// Bytes whose number both sides know, with their pad.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.raw(bytes);
        self.raw(&[0; 3][..pad(bytes.len())]);
    }

    /// Bytes behind their number.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
        }
        self.len = end;
    }

    /// How many bytes were written; an error if they had no room.
    pub const fn finish(self) -> Result<usize, Malformed> {
        if self.len <= self.bytes.len() { Ok(self.len) } else { Err(Malformed("a call is too long")) }
    }
}

/// A truth value: 0 or 1.
pub const fn truth(word: u32) -> Result<bool, Malformed> {
    match word {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("a truth value is neither 0 nor 1")),
    }
}

/// Bytes of pad behind `len` bytes.
pub const fn pad(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// Reads from a message.
#[derive(Clone, Debug)]
pub struct XdrReader<'a> {
    bytes: &'a [u8],
}

impl<'a> XdrReader<'a> {
    /// Reads from the first byte of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The bytes not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// A 32-bit number.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// 32-bit numbers.
    #[inline]
    pub fn words<const N: usize>(&mut self) -> Result<[u32; N], Malformed> {
        let (words, _) = self.bytes.as_chunks().0.split_first_chunk().ok_or(Malformed("it ends early"))?;
        self.bytes = &self.bytes[N * 4..];
        Ok(words.map(u32::from_be_bytes))
    }

    /// A 64-bit number.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A truth value: 0 or 1.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        truth(self.u32()?)
    }

    /// As many bytes as `N`, a multiple of 4.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.bytes.split_first_chunk().ok_or(Malformed("it ends early"))?;
        self.bytes = rest;
        Ok(*head)
    }

    /// Bytes whose number is known, with their pad.
    #[inline]
    pub fn fixed(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let padded = len + pad(len);
        let (head, rest) = self.bytes.split_at_checked(padded).ok_or(Malformed("it ends early"))?;
        self.bytes = rest;
        Ok(&head[..len])
    }

    /// Bytes behind their number, which is at most `most`.
    #[inline]
    pub fn opaque(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(Malformed("a length is beyond what it may be"));
        }
        self.fixed(len)
    }

    /// Leaves bytes out.
    #[inline]
    pub fn skip(&mut self, len: usize) -> Result<(), Malformed> {
        self.fixed(len).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(number: u32, long: u64, bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            let mut place = [0xEE; 256];
            let mut writer = XdrWriter::new(&mut place);
            writer.u32(number);
            writer.opaque(&bytes);
            writer.u64(long);
            let len = writer.finish().unwrap();
            prop_assert_eq!(len % 4, 0);
            let mut reader = XdrReader::new(&place[..len]);
            prop_assert_eq!(reader.u32(), Ok(number));
            prop_assert_eq!(reader.opaque(99), Ok(&bytes[..]));
            prop_assert_eq!(reader.u64(), Ok(long));
            prop_assert!(reader.rest().is_empty());
            prop_assert!(reader.u32().is_err());
        }

        #[test]
        fn nothing_is_read_beyond_the_end(bytes in prop::collection::vec(any::<u8>(), 0..40), most in 0usize..64) {
            let mut reader = XdrReader::new(&bytes);
            if let Ok(found) = reader.opaque(most) {
                prop_assert!(found.len() <= most);
                prop_assert!(4 + found.len() + pad(found.len()) <= bytes.len());
            }
        }
    }

    #[test]
    fn words_are_read_whole_or_not_at_all() {
        let bytes = [1u32, 2, 3].map(u32::to_be_bytes).concat();
        let mut reader = XdrReader::new(&bytes);
        assert_eq!(reader.words(), Ok([1, 2]));
        assert!(reader.words::<2>().is_err());
        assert_eq!(reader.words(), Ok([3]));
        assert!(XdrReader::new(&bytes[..7]).words::<2>().is_err());
    }

    #[test]
    fn a_call_without_room_is_an_error() {
        let mut place = [0; 8];
        let mut writer = XdrWriter::new(&mut place);
        writer.u64(1);
        writer.u32(2);
        assert_eq!(writer.finish(), Err(Malformed("a call is too long")));
        assert_eq!(place, 1u64.to_be_bytes());
    }

    #[test]
    fn lengths_beyond_the_limit_are_refused_before_they_are_used() {
        let mut bytes = vec![0xFF; 4];
        bytes.extend([0; 64]);
        assert!(XdrReader::new(&bytes).opaque(128).is_err());
    }
}
