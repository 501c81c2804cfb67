//! A batch on its way through NVIDIA's library.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_engine::{Batch, Completion, Direction, Moved, Piece, Way, keep_memory};
use forebay_error::{Error, ErrorKind, Result};

use crate::abi::{Calls, FileHandle};
use crate::explain;
use crate::threads::CallPost;

/// Bytes of a call: the library's default maximum, and few enough to distinguish a hang from a long read.
const CHUNK: u64 = 16 << 20;
/// Writes that begin and end at multiples of this share no block with their neighbours.
const BLOCK: u64 = 4096;

/// A part of an entry, for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    entry: u32,
    /// Bytes from the entry's start.
    at: u64,
    len: usize,
}

/// A batch, cut.
pub(super) struct Job {
    pub(super) batch: Arc<Batch>,
    /// Index of its first entry in the completion.
    pub(super) base: u32,
    pub(super) completion: Arc<Completion>,
    pub(super) chunks: Vec<Chunk>,
    pub(super) calls: Calls,
    /// The file's, which the batch keeps open.
    pub(super) handle: usize,
    pub(super) limit: Duration,
    pub(super) next: AtomicUsize,
}

/// Cuts pieces at multiples of [`CHUNK`] in the file.
pub(super) fn cut(pieces: &[Piece]) -> Vec<Chunk> {
    let mut chunks = Vec::with_capacity(pieces.len());
    for (entry, piece) in (0..).zip(pieces) {
        let (mut offset, end) = (piece.offset, piece.offset + piece.len as u64);
        while offset < end {
            let next = end.min((offset & !(CHUNK - 1)) + CHUNK);
            chunks.push(Chunk { entry, at: offset - piece.offset, len: (next - offset) as usize });
            offset = next;
        }
    }
    chunks
}

/// How many threads may work on a batch. Where the library writes a part of a block it may read the block, change it and
/// write it back: neighbours that share one are written one after the other.
pub(super) fn width(batch: &Batch, lanes: usize) -> usize {
    let splits = |piece: &Piece| (piece.offset | piece.len as u64) & (BLOCK - 1) != 0;
    let in_order =
        batch.direction == Direction::Write && batch.pieces.len() > 1 && batch.pieces.iter().any(splits);
    if in_order { 1 } else { lanes }
}

impl Job {
    fn take(&self) -> Option<usize> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.chunks.len()).then_some(index)
    }

    /// Moves chunks until none is left; false if the thread was given up meanwhile.
    pub(super) fn run(self: &Arc<Self>, post: &CallPost) -> bool {
        let memory = &self.batch.memory;
        // It may have left another context on this thread.
        let entered = memory.device.enter(memory.context);
        while let Some(index) = self.take() {
            let Chunk { entry, at, .. } = self.chunks[index];
            if self.completion.is_cancelled() {
                self.completion.leave_out(self.base + entry, at);
                self.completion.work_done(Moved::default());
                continue;
            }
            let mut good = 0;
            let result = match &entered {
                Ok(()) => self.carry(index, post, &mut good),
                Err(error) => Some(Err(error.clone())),
            };
            let Some(result) = result else { return false };
            self.settle(index, good, result.err());
        }
        true
    }

    /// Moves one chunk; none if the thread was given up meanwhile.
    fn carry(self: &Arc<Self>, index: usize, post: &CallPost, good: &mut usize) -> Option<Result<()>> {
        let len = self.chunks[index].len;
        while *good < len {
            let what = match self.batch.direction {
                Direction::Read => "cuFileRead",
                Direction::Write => "cuFileWrite",
            };
            post.begin(what, self.limit, Some((self.clone(), index, *good)));
            let (moved, errno) = self.call(index, *good);
            if !post.end() {
                return None;
            }
            match moved {
                // The end of the file.
                0 if self.batch.direction == Direction::Read => break,
                0 => return Some(Err(self.error(index, "NVIDIA's libcufile writes nothing"))),
                moved if moved > 0 && moved as usize <= len - *good => *good += moved as usize,
                moved if moved > 0 => {
                    return Some(Err(
                        self.error(index, "NVIDIA's libcufile moved more than it was asked for")
                    ));
                }
                -1 if errno == libc::EINTR => {}
                moved => {
                    let doing = match self.batch.direction {
                        Direction::Read => "cannot read by NVIDIA's libcufile",
                        Direction::Write => "cannot write by NVIDIA's libcufile",
                    };
                    return Some(Err(explain::bytes(moved, errno, doing)
                        .with("file", self.batch.file.name())
                        .with("offset", self.offset(index))));
                }
            }
        }
        Some(Ok(()))
    }

    /// One call of the library: what it answers, and errno.
    fn call(&self, index: usize, good: usize) -> (isize, i32) {
        let Chunk { entry, at, len } = self.chunks[index];
        let piece = self.batch.pieces[entry as usize];
        let offset = (piece.offset + at) as i64 + good as i64;
        let address = piece.address + at + good as u64;
        let handle = self.handle as FileHandle;
        // SAFETY: errno is this thread's.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: the handle is registered as long as the batch's file is open. The caller that submitted the batch
        // keeps its memory valid until the completion resolves; `keep` keeps it if the call takes longer.
        let moved = unsafe {
            match self.batch.direction {
                Direction::Read => (self.calls.read)(handle, address as *mut c_void, len - good, offset, 0),
                Direction::Write => {
                    (self.calls.write)(handle, address as *const c_void, len - good, offset, 0)
                }
            }
        };
        (moved, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    fn offset(&self, index: usize) -> u64 {
        let Chunk { entry, at, .. } = self.chunks[index];
        self.batch.pieces[entry as usize].offset + at
    }

    fn error(&self, index: usize, text: &str) -> Error {
        Error::new(ErrorKind::Io, text)
            .with("file", self.batch.file.name())
            .with("offset", self.offset(index))
    }

    /// Records the end of a chunk with `good` good bytes.
    fn settle(&self, index: usize, good: usize, error: Option<Error>) {
        let Chunk { entry, at, len } = self.chunks[index];
        let until = at + good as u64;
        match error {
            Some(error) => self.completion.fail(self.base + entry, until, error),
            None if good < len => self.completion.cut(self.base + entry, until),
            None => {}
        }
        self.completion.work_done(Moved::of(Way::Requested, good as u64));
    }

    /// The call for a chunk never came back. What it may still write to, or read, is kept for ever.
    pub(super) fn give_up(&self, index: usize, good: usize, error: &Error) {
        let piece = self.batch.pieces[self.chunks[index].entry as usize];
        keep_memory(piece.address..piece.address + piece.len as u64);
        self.settle(index, good, Some(error.clone()));
    }

    /// Fails what nobody has begun.
    pub(super) fn refuse_rest(&self, error: &Error) {
        while let Some(index) = self.take() {
            self.settle(index, 0, Some(error.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_at_the_file_s_multiples() {
        let piece = |offset, len| Piece { offset, address: 0, len };
        let chunks = cut(&[piece(CHUNK - 10, 20), piece(5, 0), piece(0, 2 * CHUNK as usize)]);
        let all: Vec<_> = chunks.iter().map(|chunk| (chunk.entry, chunk.at, chunk.len)).collect();
        let whole = CHUNK as usize;
        assert_eq!(all, [(0, 0, 10), (0, 10, 10), (2, 0, whole), (2, CHUNK, whole)]);
    }
}
