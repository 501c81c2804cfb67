//! Versioned blocks: each 4 KiB of a file say which version of which block of which file they are.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::random::mix;

pub const SIZE: usize = 4096;
const WORDS: u64 = SIZE as u64 / 8;
const MAGIC: u64 = 0x7E57_B10C_0000_0000;

/// What a block is after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Data,
    Zeros,
    /// Behind the end of the file.
    Gone,
}

/// A version with its kind. Versions of a block are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub version: u32,
    pub kind: Kind,
}

impl State {
    fn pack(self) -> u32 {
        self.version << 2 | self.kind as u32
    }

    fn unpack(word: u32) -> Self {
        let kind = [Kind::Data, Kind::Zeros, Kind::Gone, Kind::Gone][(word & 3) as usize];
        Self { version: word >> 2, kind }
    }
}

/// A block's history as far as readers need it: the version whose write has begun, and the one whose write is over.
#[derive(Debug)]
pub struct Cell {
    begun: AtomicU32,
    over: AtomicU32,
}

impl Cell {
    pub fn new(kind: Kind) -> Self {
        let word = State { version: 1, kind }.pack();
        Self { begun: AtomicU32::new(word), over: AtomicU32::new(word) }
    }

    /// Before a write; writers of a file come one by one.
    pub fn begin(&self, kind: Kind) {
        let version = self.begun().version + 1;
        self.begun.store(State { version, kind }.pack(), Ordering::SeqCst);
    }

    pub fn end(&self) {
        self.over.store(self.begun.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    pub fn begun(&self) -> State {
        State::unpack(self.begun.load(Ordering::SeqCst))
    }

    pub fn over(&self) -> State {
        State::unpack(self.over.load(Ordering::SeqCst))
    }
}

fn word(identity: u64, at: u64) -> u64 {
    identity.wrapping_add(at).wrapping_mul(0xD1B5_4A32_D192_ED03)
}

fn identity(file: u64, index: u64, version: u32) -> u64 {
    mix(mix(mix(file) ^ index) ^ u64::from(version))
}

/// Appends a block's bytes.
pub fn append(bytes: &mut Vec<u8>, file: u64, index: u64, version: u32) {
    for header in [MAGIC | file, index, u64::from(version)] {
        bytes.extend_from_slice(&header.to_le_bytes());
    }
    let identity = identity(file, index, version);
    for at in 3..WORDS {
        bytes.extend_from_slice(&word(identity, at).to_le_bytes());
    }
}

/// What a read found in the place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Data { file: u64, index: u64, version: u32 },
    Zeros,
    Torn,
}

/// Looks at a whole block.
pub fn look(bytes: &[u8]) -> Seen {
    let at =
        |index: usize| u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().unwrap_or_default());
    if bytes.iter().all(|byte| *byte == 0) {
        return Seen::Zeros;
    }
    let (magic, index, version) = (at(0), at(1), at(2) as u32);
    let identity = identity(magic & 0xFFFF_FFFF, index, version);
    let is_whole = magic & !0xFFFF_FFFF == MAGIC
        && (3..WORDS).all(|number| at(number as usize) == word(identity, number));
    if is_whole { Seen::Data { file: magic & 0xFFFF_FFFF, index, version } } else { Seen::Torn }
}

/// Whether a read that began when `low` was written and ended when `high` had begun may have found this.
pub fn is_good(bytes: &[u8], (file, index): (u64, u64), (low, high): (State, State)) -> Result<(), Seen> {
    let seen = look(bytes);
    let quiet = low == high;
    let good = match seen {
        Seen::Data { file: found, index: place, version } => {
            let is_here = found == file && place == index && (low.version..=high.version).contains(&version);
            is_here && [low, high].iter().all(|state| state.version != version || state.kind == Kind::Data)
        }
        // In between there may have been anything.
        Seen::Zeros if !quiet => {
            low.kind != Kind::Data || high.kind != Kind::Data || high.version - low.version > 1
        }
        Seen::Zeros => low.kind == Kind::Zeros,
        Seen::Torn => !quiet && is_mixture(bytes, (file, index), low.version..high.version + 1),
    };
    if good { Ok(()) } else { Err(seen) }
}

/// Whether each byte is one of these versions' or zero: what the kernel itself may give while a block is written.
fn is_mixture(bytes: &[u8], (file, index): (u64, u64), versions: Range<u32>) -> bool {
    let mut explained: Vec<bool> = bytes.iter().map(|byte| *byte == 0).collect();
    for version in versions {
        let mut whole = Vec::with_capacity(SIZE);
        append(&mut whole, file, index, version);
        for ((is_explained, found), want) in explained.iter_mut().zip(bytes).zip(&whole) {
            *is_explained |= found == want;
        }
    }
    explained.iter().all(|is_explained| *is_explained)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(version: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        append(&mut bytes, 5, 9, version);
        bytes
    }

    #[test]
    fn a_quiet_block_is_its_version_and_no_other() {
        let state = |version, kind| State { version, kind };
        let judge = |bytes: &[u8], low, high| is_good(bytes, (5, 9), (low, high)).is_ok();
        let (three, four) = (state(3, Kind::Data), state(4, Kind::Data));
        assert!(judge(&block(3), three, three));
        assert!(judge(&block(3), three, four) && judge(&block(4), three, four));
        assert!(
            !judge(&block(2), three, three)
                && !judge(&block(4), three, three)
                && !judge(&block(5), three, four)
        );
        let torn = [&block(3)[..2000], &block(4)[2000..]].concat();
        assert!(judge(&torn, three, four) && !judge(&torn, four, four));
        let stranger = [&block(2)[..2000], &block(4)[2000..]].concat();
        assert!(!judge(&stranger, three, four));
        assert!(judge(&[0; SIZE], three, state(4, Kind::Zeros)) && !judge(&[0; SIZE], three, four));
        assert!(judge(&[0; SIZE], state(4, Kind::Zeros), state(4, Kind::Zeros)));
        assert!(!judge(&[0; SIZE], state(4, Kind::Gone), state(4, Kind::Gone)));
        assert_eq!(is_good(&block(3), (5, 8), (three, three)), Err(look(&block(3))));
    }
}
