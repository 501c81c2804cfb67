//! How many bytes of long pieces are posted at once: pieces that share the link end later than the kernel reckons, and it
//! with them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_gpu::Resident;

use crate::tuning::machine::LINK_BYTES_PER_NS;
use crate::tuning::plan::CELL;
use crate::tuning::resident::{LONG_BYTES, MAX_LAUNCH, MAX_PIECE};

/// Longest piece that is short: where all blocks copy one of these, a launch with the lifetime [`life`] ends in time.
const SHORT: u64 = CELL as u64;

/// The kernel's parameter for [`MAX_LAUNCH`], in nanoseconds. It assumes that a block has 4 GB/s of the link; where all
/// blocks copy it has less, and the kernel ends later.
pub(super) const fn life(are_long: bool) -> u32 {
    let begun = Resident::BLOCKS as u64 * SHORT + if are_long { LONG_BYTES } else { 0 };
    let late = Resident::late(begun, LINK_BYTES_PER_NS) + Resident::takes(0);
    (MAX_LAUNCH.as_nanos() as u64 - late) as u32
}

const _: () = assert!(Resident::takes(MAX_PIECE) < life(true) as u64);

/// Pieces of more than [`SHORT`] in mailboxes.
#[derive(Debug, Default)]
pub(super) struct LongPieces {
    bytes: AtomicU64,
    were_posted: AtomicBool,
}

/// A piece's part of the bytes that may be posted, until it is dropped.
#[derive(Debug)]
pub(super) struct PieceRoom<'a> {
    pieces: &'a LongPieces,
    len: u64,
}

impl LongPieces {
    /// Room for a piece. A short one needs none.
    pub(super) fn room(&self, len: u64) -> Option<PieceRoom<'_>> {
        let len = if len > SHORT { len } else { 0 };
        if len > 0 {
            let add = |bytes: u64| (bytes + len <= LONG_BYTES).then_some(bytes + len);
            self.bytes.try_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
            self.were_posted.store(true, Ordering::Relaxed);
        }
        Some(PieceRoom { pieces: self, len })
    }

    /// Whether there were any since the last question.
    pub(super) fn were_posted(&self) -> bool {
        self.were_posted.swap(false, Ordering::Relaxed)
    }
}

impl Drop for PieceRoom<'_> {
    fn drop(&mut self) {
        if self.len > 0 {
            self.pieces.bytes.fetch_sub(self.len, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_long_pieces_are_bounded() {
        let pieces = LongPieces::default();
        let short: Vec<_> = (0..1000).map(|_| pieces.room(SHORT).unwrap()).collect();
        assert!(!pieces.were_posted());
        let mut long: Vec<_> = (0..16).map(|_| pieces.room(LONG_BYTES / 16).unwrap()).collect();
        assert!(pieces.were_posted() && !pieces.were_posted());
        assert!(pieces.room(SHORT + 1).is_none() && pieces.room(SHORT).is_some());
        long.pop();
        let other = pieces.room(SHORT + 1).unwrap();
        assert!(pieces.room(LONG_BYTES / 16).is_none());
        drop((short, long, other));
        assert!(pieces.room(LONG_BYTES).is_some());
    }
}
