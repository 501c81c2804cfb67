//! Bytes that came before it was known what they are: heads, sizes of chunks, and what came behind them.

use std::io::Result;

use forebay_source::HostRange;

use super::head::LONGEST;
use super::stream::Stream;

/// Its first size. Bytes of a body that come with the head are copied from here: of an 8 MiB range at most a thousandth.
const FIRST: usize = 8 << 10;

/// A buffer.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Bytes that were used up.
    start: usize,
    /// The end of those that came.
    end: usize,
}

impl Input {
    /// Bytes that came.
    pub(super) fn came(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The first of them were used.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives more of them, at most this number; 0: the connection was closed.
    pub(super) fn receive(&mut self, stream: &mut Stream, most: usize) -> Result<usize> {
        if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len() {
            let size = (self.bytes.len() * 2).clamp(FIRST, LONGEST.max(FIRST));
            self.bytes.resize(size.max(self.end + 1), 0);
        }
        let free = &mut self.bytes[self.end..];
        let most = free.len().min(most);
        // SAFETY: the bytes are borrowed for the call.
        let got = unsafe { stream.receive(HostRange::of_mut(&mut free[..most]))? };
        self.end += got;
        Ok(got)
    }
}
