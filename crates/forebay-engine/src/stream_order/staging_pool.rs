//! Pinned memory of a stream server: each stream's words and list, and the buffers that bytes pass through.
//!
//! A stream owns the buffers that its operations use, so that no operation waits for memory that another stream holds:
//! where streams share a hardware connection, such a wait could be for itself. Each stream has a buffer of 64 KiB. Larger
//! operations use rings of larger buffers, whose number is limited; a stream that gets none goes on in smaller steps.

use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{CopyPiece, Device, Word};

use crate::runtime::pinned::PinnedPages;
use crate::tuning::plan::CELL;
use crate::tuning::streams::{RINGS, STREAMS_AT_ONCE};

/// Bytes of a buffer beyond its chunk: a read may be aligned out by a page at either end.
const SLACK: usize = 8 << 10;
/// The most pieces of a list.
pub(super) const PIECES: usize = 64;

// Offsets in a stream's memory. What the device writes and what the CPU writes lie in different cache lines.

/// The word with the number that the stream has reached, which the device writes.
const REACHED_AT: usize = 0;
/// The word with the number that the stream may pass, which the CPU writes.
const GO_AT: usize = 128;
/// The list of [`PIECES`] that a kernel copies.
const LIST_AT: usize = 256;
/// The stream's small buffer, behind the first page.
const BUFFER_AT: usize = 4096;
/// All of a stream's memory.
const STREAM_BYTES: usize = BUFFER_AT + CELL + SLACK;

/// Memory that a chunk passes through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagingBuffer {
    pub(super) host: u64,
    pub(super) device: u64,
    pub(super) len: usize,
}

/// Buffers that the chunks of an operation use in turns.
#[derive(Debug)]
pub(crate) struct StagingRing {
    pub(super) chunk: usize,
    pub(super) buffers: Vec<StagingBuffer>,
    size: Option<usize>,
    _pages: Arc<PinnedPages>,
}

/// A stream's own memory: its words, its list, its small buffer.
#[derive(Debug)]
pub(super) struct StreamMemory {
    /// The number that the stream has reached.
    pub(super) reached: Word,
    /// The number that the stream may pass.
    pub(super) go: Word,
    pub(super) list: StagingBuffer,
    pub(super) small: Arc<StagingRing>,
    /// The last number that was used with these words.
    pub(super) number: u32,
}

/// All memory that is pinned for one device's streams.
#[derive(Default)]
pub(super) struct StagingPool {
    free: Vec<StreamMemory>,
    rings: Vec<Arc<StagingRing>>,
    made: [usize; RINGS.len()],
}

fn buffer(pages: &PinnedPages, at: usize, len: usize) -> StagingBuffer {
    StagingBuffer { host: pages.as_ptr() as u64 + at as u64, device: pages.reach() + at as u64, len }
}

fn word(pages: &PinnedPages, at: usize) -> Word {
    Word { host: pages.as_ptr() as u64 + at as u64, device: pages.reach() + at as u64 }
}

fn stream_memory(pages: &Arc<PinnedPages>, at: usize) -> StreamMemory {
    let buffers = vec![buffer(pages, at + BUFFER_AT, CELL + SLACK)];
    StreamMemory {
        reached: word(pages, at + REACHED_AT),
        go: word(pages, at + GO_AT),
        list: buffer(pages, at + LIST_AT, PIECES * size_of::<CopyPiece>()),
        small: Arc::new(StagingRing { chunk: CELL, buffers, size: None, _pages: pages.clone() }),
        number: 0,
    }
}

impl StreamMemory {
    /// The same memory for another stream. `number` was not used yet.
    pub(super) fn again(&self, number: u32) -> Self {
        let Self { reached, go, list, ref small, .. } = *self;
        Self { reached, go, list, small: small.clone(), number }
    }
}

impl StagingPool {
    /// Memory for a new stream.
    pub(super) fn stream_memory(&mut self, device: &Arc<dyn Device>) -> Result<StreamMemory> {
        if let Some(memory) = self.free.pop() {
            return Ok(memory);
        }
        let pages = Arc::new(PinnedPages::new(device, STREAMS_AT_ONCE * STREAM_BYTES)?);
        self.free.extend((1..STREAMS_AT_ONCE).map(|index| stream_memory(&pages, index * STREAM_BYTES)));
        Ok(stream_memory(&pages, 0))
    }

    /// A ring of this size. `None` if there are enough of them, or no more memory can be pinned.
    pub(super) fn ring(&mut self, device: &Arc<dyn Device>, size: usize) -> Option<Arc<StagingRing>> {
        if let Some(at) = self.rings.iter().position(|ring| ring.size == Some(size)) {
            return Some(self.rings.swap_remove(at));
        }
        let (chunk, buffers, most) = RINGS[size];
        if self.made[size] >= most {
            return None;
        }
        let each = chunk + SLACK;
        let pages = Arc::new(PinnedPages::new(device, buffers * each).ok()?);
        self.made[size] += 1;
        let buffers = (0..buffers).map(|index| buffer(&pages, index * each, each)).collect();
        Some(Arc::new(StagingRing { chunk, buffers, size: Some(size), _pages: pages }))
    }

    /// Takes back a ring that a stream does not use any more.
    pub(super) fn give_ring(&mut self, ring: Arc<StagingRing>) {
        self.rings.push(ring);
    }

    pub(super) fn give_memory(&mut self, memory: StreamMemory) {
        self.free.push(memory);
    }
}

/// Ring sizes for an operation of this many bytes, best first: the smallest that takes it as a whole, or else the largest
/// and then smaller ones. None if the stream's own buffer takes it.
pub(super) fn sizes_for(bytes: usize) -> impl Iterator<Item = usize> {
    let fits = RINGS.iter().position(|(chunk, ..)| bytes <= *chunk).unwrap_or(RINGS.len() - 1);
    (0..=fits).rev().filter(move |_| bytes > CELL)
}

impl StagingRing {
    pub(super) fn is_of(&self, size: usize) -> bool {
        self.size == Some(size)
    }
}
