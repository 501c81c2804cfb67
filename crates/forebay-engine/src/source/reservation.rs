//! Reserves space for a write that makes a file longer and that lanes move in parts.
//!
//! Lanes move parts in any order. On a full file system one of them finds no room, and a later one may find some: the file would
//! end behind what counts, with a gap. To cut it off afterwards is not safe: between a look at the length and `ftruncate` another
//! writer may have made the file longer, and would lose bytes. So space is reserved in the order of the file before the first
//! part is written, and nothing is written behind the end of it.

use std::os::fd::AsRawFd;

use super::Descriptors;
use super::file::RESERVING_FILE_SYSTEMS;
use super::preallocation::is_full;
use super::ranges::Ranges;
use crate::runtime::sys::{self, page};
use crate::source::piece::Piece;
use crate::tuning::files::INTERRUPTIONS;

/// A range of a write for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// Why.
    pub(crate) errno: i32,
}

impl Descriptors {
    /// Reserves space for pieces that make the file longer, also in its holes. What there is no room for. In memory pages are
    /// made beside the writes instead.
    pub(crate) fn reserve(&self, pieces: &[Piece]) -> Vec<Shortage> {
        if self.is_memory { Vec::new() } else { self.reserve_now(pieces) }
    }

    /// The same, in memory too.
    pub(crate) fn reserve_now(&self, pieces: &[Piece]) -> Vec<Shortage> {
        let mut shortages: Vec<Shortage> = Vec::new();
        let end = |piece: &Piece| piece.offset.saturating_add(piece.len as u64);
        let grows = |old: u64| pieces.iter().any(|piece| end(piece) > old);
        if !RESERVING_FILE_SYSTEMS.contains(&self.nature.magic) || !self.len().is_ok_and(grows) {
            return shortages;
        }
        // What passes the limit of a file's size fails by itself, with all that is behind it.
        let limit = sys::file_size_limit();
        for (start, until) in Ranges::of(pieces.iter().map(|piece| (piece.offset, end(piece)))).0 {
            // Once the file system was full, no room is looked for behind that.
            let full = shortages.last().map(|shortage| (start, shortage.errno));
            if let Err((from, errno)) = full.map_or_else(|| self.reserve_range(start, until.min(limit)), Err)
            {
                shortages.push(Shortage { from, until, errno });
            }
        }
        shortages
    }

    /// Reserves what there is room for, to a page. Where that ends, and why.
    fn reserve_range(&self, start: u64, end: u64) -> Result<(), (u64, i32)> {
        // O_DIRECT takes the last part up to there as well.
        let mut at = start & !(page() - 1);
        let mut step = end.saturating_sub(at);
        let mut interruptions = 0;
        while at < end {
            let len = step.min(end - at);
            match self.calls.reserve(self.buffered.as_raw_fd(), at, len) {
                Ok(()) => at += len,
                Err(errno) if is_full(errno) && len <= page() => return Err((at.max(start), errno)),
                Err(errno) if is_full(errno) => step = (len / 2).next_multiple_of(page()),
                Err(libc::EINTR) if interruptions < INTERRUPTIONS => interruptions += 1,
                // It cannot reserve: space is found as the parts are written.
                Err(_) => break,
            }
        }
        Ok(())
    }
}
