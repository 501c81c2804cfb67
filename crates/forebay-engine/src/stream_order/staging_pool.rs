//! Pinned memory of a courier: where streams have their words and lists, and the staging that bytes pass through.
//!
//! A stream owns the staging that its operations use, so that no operation ever waits for memory that another stream
//! holds: a wait like that could end up waiting for itself where streams share a hardware connection. Each stream has
//! room for 64 KiB; larger operations use rings of larger rooms, of which there are so many. Streams that come too late
//! for one go on in smaller steps.

use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{CopyPiece, Device, Word};

use crate::runtime::pinned::PinnedPages;

/// The longest piece of a list: more pieces use more of the device.
pub(super) const PIECE: usize = 64 << 10;
/// What a room has beyond its chunk: a read may be aligned out by a page at either end.
const SLACK: usize = 8 << 10;
/// The most pieces of a list.
pub(super) const PIECES: usize = 64;

/// Offsets in a berth. What the device writes and what the CPU writes lie in different cache lines.
const REACHED: usize = 0;
const GO: usize = 128;
const LIST: usize = 256;
const CELL: usize = 4096;
const BERTH: usize = CELL + PIECE + SLACK;
/// Berths that are pinned together.
const BERTHS: usize = 16;

/// A size of rings.
struct Size {
    chunk: usize,
    rooms: usize,
    /// How many rings of it there may be.
    most: usize,
}

/// 128 MiB and 96 MiB at most.
const SIZES: [Size; 2] =
    [Size { chunk: 512 << 10, rooms: 2, most: 124 }, Size { chunk: 4 << 20, rooms: 3, most: 8 }];

/// Memory that a chunk passes through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(super) host: u64,
    pub(super) device: u64,
    pub(super) len: usize,
}

/// Rooms that the chunks of an operation use in turns.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(super) chunk: usize,
    pub(super) rooms: Vec<Room>,
    size: Option<usize>,
    _pages: Arc<PinnedPages>,
}

/// A stream's place: its words, its list, its own small room.
#[derive(Debug)]
pub(super) struct Berth {
    /// The number that the stream has reached.
    pub(super) reached: Word,
    /// The number up to which it may go.
    pub(super) go: Word,
    pub(super) list: Room,
    pub(super) cell: Arc<Ring>,
    /// The last number that was used here.
    pub(super) number: u32,
}

/// All that is pinned for one device.
#[derive(Default)]
pub(super) struct Pool {
    berths: Vec<Berth>,
    rings: Vec<Arc<Ring>>,
    made: [usize; SIZES.len()],
}

fn room(pages: &PinnedPages, at: usize, len: usize) -> Room {
    Room { host: pages.as_ptr() as u64 + at as u64, device: pages.reach() + at as u64, len }
}

fn word(pages: &PinnedPages, at: usize) -> Word {
    Word { host: pages.as_ptr() as u64 + at as u64, device: pages.reach() + at as u64 }
}

fn berth(pages: &Arc<PinnedPages>, at: usize) -> Berth {
    let rooms = vec![room(pages, at + CELL, PIECE + SLACK)];
    Berth {
        reached: word(pages, at + REACHED),
        go: word(pages, at + GO),
        list: room(pages, at + LIST, PIECES * size_of::<CopyPiece>()),
        cell: Arc::new(Ring { chunk: PIECE, rooms, size: None, _pages: pages.clone() }),
        number: 0,
    }
}

impl Berth {
    /// The same place for another stream. `number` is one that was not used.
    pub(super) fn again(&self, number: u32) -> Self {
        let Self { reached, go, list, ref cell, .. } = *self;
        Self { reached, go, list, cell: cell.clone(), number }
    }
}

impl Pool {
    /// A stream's place.
    pub(super) fn berth(&mut self, device: &Arc<dyn Device>) -> Result<Berth> {
        if let Some(berth) = self.berths.pop() {
            return Ok(berth);
        }
        let pages = Arc::new(PinnedPages::new(device, BERTHS * BERTH)?);
        self.berths.extend((1..BERTHS).map(|index| berth(&pages, index * BERTH)));
        Ok(berth(&pages, 0))
    }

    /// A ring of this size. `None` where there are so many already, or no more memory can be pinned.
    pub(super) fn ring(&mut self, device: &Arc<dyn Device>, size: usize) -> Option<Arc<Ring>> {
        if let Some(at) = self.rings.iter().position(|ring| ring.size == Some(size)) {
            return Some(self.rings.swap_remove(at));
        }
        let Size { chunk, rooms, most } = SIZES[size];
        if self.made[size] >= most {
            return None;
        }
        let each = chunk + SLACK;
        let pages = Arc::new(PinnedPages::new(device, rooms * each).ok()?);
        self.made[size] += 1;
        let rooms = (0..rooms).map(|index| room(&pages, index * each, each)).collect();
        Some(Arc::new(Ring { chunk, rooms, size: Some(size), _pages: pages }))
    }

    /// Takes back what a stream has no use for.
    pub(super) fn give_ring(&mut self, ring: Arc<Ring>) {
        self.rings.push(ring);
    }

    pub(super) fn give_berth(&mut self, berth: Berth) {
        self.berths.push(berth);
    }
}

/// The sizes that suit an operation of so many bytes, best first: the smallest that takes it as a whole, or else the
/// largest and then smaller ones. None: the stream's own cell will do.
pub(super) fn sizes_for(bytes: usize) -> impl Iterator<Item = usize> {
    let fits = SIZES.iter().position(|size| bytes <= size.chunk).unwrap_or(SIZES.len() - 1);
    (0..=fits).rev().filter(move |_| bytes > PIECE)
}

impl Ring {
    pub(super) fn is_of(&self, size: usize) -> bool {
        self.size == Some(size)
    }
}
