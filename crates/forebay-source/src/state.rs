//! States: a value that distinguishes the states of a source's bytes.

use std::fmt;

/// The state of a source. Tokens of one source are compared, also in other processes; what they hold means nothing else.
///
/// It has three parts. The *content* changes with every change of the bytes or their number. The *number* distinguishes
/// objects of the same content, on one machine. The *touched* part changes with the object's name and rights, too.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StateToken {
    bytes: Box<[u8]>,
    /// The first number, and the memory touched.
    cuts: [u16; 2],
}

impl StateToken {
    /// A state that its content alone tells: an ETag, a change attribute. At most 65535 bytes count.
    pub fn new(content: &[u8]) -> Self {
        Self::of_parts(content, &[], &[])
    }

    /// A state of three parts, of at most 65535 bytes together: more is left out.
    pub fn of_parts(content: &[u8], number: &[u8], touched: &[u8]) -> Self {
        let end = |len: usize| len.min(usize::from(u16::MAX));
        let cuts = [end(content.len()), end(content.len() + number.len())];
        let mut bytes = [content, number, touched].concat();
        bytes.truncate(usize::from(u16::MAX));
        Self { bytes: bytes.into(), cuts: cuts.map(|cut| cut as u16) }
    }

    fn parts(&self) -> [&[u8]; 3] {
        let [number, touched] = self.cuts.map(usize::from);
        [&self.bytes[..number], &self.bytes[number..touched], &self.bytes[touched..]]
    }

    /// The part that tells bytes apart, for a digest of it.
    pub fn content(&self) -> &[u8] {
        self.parts()[0]
    }

    /// Whether the bytes are the same, as far as states tell: a new name, other rights or a copy make no difference.
    pub fn has_bytes_of(&self, other: &Self) -> bool {
        self.parts()[0] == other.parts()[0]
    }

    /// Whether it is the same object on this machine, with the same bytes: a change of its name or rights alone makes no difference.
    pub fn is_object_of(&self, other: &Self) -> bool {
        self.parts()[..2] == other.parts()[..2]
    }

    /// For another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.cuts.map(u16::to_le_bytes).as_flattened(), &self.bytes].concat()
    }

    /// What [`StateToken::to_bytes`] gave; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (cuts, bytes) = bytes.split_first_chunk::<4>()?;
        let cuts = [[cuts[0], cuts[1]], [cuts[2], cuts[3]]].map(u16::from_le_bytes);
        let is_one = cuts[0] <= cuts[1] && usize::from(cuts[1]) <= bytes.len();
        is_one.then(|| Self { bytes: bytes.into(), cuts })
    }
}

impl fmt::Display for StateToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StateToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateToken({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_number_and_what_is_touched_tell_different_things() {
        let of = StateToken::of_parts;
        let first = of(b"content", b"1", b"a");
        for (other, same_bytes, same_object) in [
            (of(b"content", b"1", b"a"), true, true),
            (of(b"content", b"1", b"b"), true, true),
            (of(b"content", b"2", b"a"), true, false),
            (of(b"content", b"2", b"b"), true, false),
            (of(b"cont", b"ent1", b"a"), false, false),
            (of(b"other", b"1", b"a"), false, false),
        ] {
            assert_eq!((first.has_bytes_of(&other), first.is_object_of(&other)), (same_bytes, same_object));
            assert_eq!(StateToken::from_bytes(&other.to_bytes()), Some(other));
        }
        assert_ne!(first, of(b"content", b"1", b"b"));
    }

    #[test]
    fn what_is_no_token_is_none() {
        for bytes in [&[][..], &[1], &[1, 0, 0, 0, 7], &[0, 0, 2, 0, 7]] {
            assert_eq!(StateToken::from_bytes(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_part_that_is_missing_is_not_the_same() {
        let of = StateToken::of_parts;
        assert!(!of(b"c", b"1", b"").is_object_of(&of(b"c", b"2", b"")));
        assert!(!of(b"c", b"1", b"").is_object_of(&of(b"c", b"", b"")));
        assert!(of(b"c", b"1", b"").is_object_of(&of(b"c", b"1", b"")));
        assert!(of(b"c", b"", b"a").is_object_of(&of(b"c", b"", b"a")));
        assert!(of(b"c", b"", b"").is_object_of(&of(b"c", b"", b"")));
    }

    #[test]
    fn the_end_of_a_long_content_counts() {
        let of = |end: &[u8]| StateToken::new(&[&[7; 300], end].concat());
        assert!(!of(b"version 1").has_bytes_of(&of(b"version 2")));
        assert_eq!(StateToken::from_bytes(&of(b"1").to_bytes()), Some(of(b"1")));
        assert_eq!(StateToken::new(&vec![7; 70_000]).to_string().len(), 2 * usize::from(u16::MAX));
    }
}
