//! A lane's host memory: slots, cells and the lists of its scatter kernels, in one mapping.

use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{CopyPiece, Device};

use crate::io::plan::{CELL, PACK_MOST};
use crate::runtime::pinned::PinnedPages;

/// Cells per lane: small cold reads that can be in flight at once.
pub(crate) const CELLS: usize = 64;
/// Pieces in a cell's list: one kernel delivers at most so many cells.
const CELL_LIST: usize = CELLS;

/// One slot or cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Host address.
    pub(crate) host: *mut u8,
    /// The device's address of the same memory.
    pub(crate) device: u64,
    pub(crate) len: usize,
    /// The kernel list that belongs to it.
    pub(crate) list: *mut CopyPiece,
    pub(crate) list_device: u64,
    pub(crate) list_len: usize,
}

impl Room {
    /// No room at all.
    pub(crate) const NONE: Self = Self {
        host: std::ptr::null_mut(),
        device: 0,
        len: 0,
        list: std::ptr::null_mut(),
        list_device: 0,
        list_len: 0,
    };
}

/// Slots first, then cells, then lists.
#[derive(Debug)]
pub(crate) struct Arena {
    /// The lane waits for all copies before it drops its arena.
    pages: PinnedPages,
    pub(crate) slots: Vec<Room>,
    pub(crate) cells: Vec<Room>,
}

impl Arena {
    pub(crate) fn new(device: &Arc<dyn Device>, slots: usize, slot_size: usize) -> Result<Self> {
        let data = slots * slot_size + CELLS * CELL;
        let piece = size_of::<CopyPiece>();
        let lists = (slots * PACK_MOST + CELLS * CELL_LIST) * piece;
        let pages = PinnedPages::new(device, data + lists)?;
        let (base, reach) = (pages.as_ptr(), pages.reach());
        let (mut at, mut list_at) = (0, data);
        let mut room = |len: usize, list_len: usize| {
            // SAFETY: both offsets lie in the mapping, whose size is the sum of all rooms and lists.
            let (host, list) = unsafe { (base.add(at), base.add(list_at)) };
            let room = Room {
                host,
                device: reach + at as u64,
                len,
                list: list.cast(),
                list_device: reach + list_at as u64,
                list_len,
            };
            at += len;
            list_at += list_len * piece;
            room
        };
        let slots = (0..slots).map(|_| room(slot_size, PACK_MOST)).collect();
        let cells = (0..CELLS).map(|_| room(CELL, CELL_LIST)).collect();
        Ok(Self { pages, slots, cells })
    }

    /// Address and length of slots and cells together, for registration with an io_uring.
    pub(crate) fn data(&self) -> (*mut u8, usize) {
        (self.pages.as_ptr(), self.slots.iter().chain(&self.cells).map(|room| room.len).sum())
    }
}
