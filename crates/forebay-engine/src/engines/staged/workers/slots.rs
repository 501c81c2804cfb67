//! A lane's host memory: slots, cells and the lists of its scatter kernels. The first slot is pinned at once with those of
//! the lanes that start together, so that copies begin soon; more when the lane needs it.

use std::sync::{Arc, Weak};

use forebay_error::Result;
use forebay_gpu::{CopyPiece, Device, DeviceRange, HostRange};

use crate::io::plan::{CELL, MAX_PACK_PIECES};
use crate::runtime::pinned_group::{GroupPart, PinnedGroup, Reach};
use crate::tuning::lanes::{CELLS, GROUP};

/// Pieces in a cell's list: one kernel delivers all cells at most.
const CELL_LIST: usize = CELLS;

/// One slot or cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMemory {
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

impl SlotMemory {
    /// No memory: the drive uses the caller's, or it is not pinned yet.
    pub(crate) const NONE: Self = Self {
        host: std::ptr::null_mut(),
        device: 0,
        len: 0,
        list: std::ptr::null_mut(),
        list_device: 0,
        list_len: 0,
    };
}

/// A lane's memory in one group: its slots and cells, then their lists.
#[derive(Debug)]
pub(crate) struct LanePart {
    /// The lane waits for all copies before it drops its memory.
    part: GroupPart,
    slots: usize,
    slot_size: usize,
    cells: usize,
}

impl LanePart {
    /// A slot for each of the lanes that start together, group by group, which the last of each pins. Fewer where memory is
    /// short.
    pub(crate) fn first(device: &Arc<dyn Device>, lanes: usize, slot_size: usize) -> Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        let mut most = GROUP;
        while all.len() < lanes {
            let before = all.last().map_or_else(Weak::new, |last| last.part.group());
            match Self::of_each(device, most.min(lanes - all.len()), (1, slot_size, 0), before) {
                Ok(parts) => all.extend(parts),
                Err(_) if most > 1 => most = 1,
                Err(error) if all.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(all)
    }

    /// A slot for a lane that takes the place of one that died. The lane pins it.
    pub(crate) fn again(device: &Arc<dyn Device>, slot_size: usize) -> Result<Self> {
        let part = Self::of_each(device, 1, (1, slot_size, 0), Weak::new())?.pop();
        Ok(part.unwrap_or_else(|| unreachable!("one was asked for")))
    }

    /// More slots for one lane, and cells. With where the device reaches them.
    pub(crate) fn more(
        device: &Arc<dyn Device>,
        slots: usize,
        slot_size: usize,
        cells: usize,
    ) -> Result<(Self, Reach)> {
        let more = Self::of_each(device, 1, (slots, slot_size, cells), Weak::new())?.pop();
        let Some(mut more) = more else { unreachable!("one was asked for") };
        more.part.touch();
        more.part.arrive();
        let reach = more.part.wait()?;
        Ok((more, reach))
    }

    fn of_each(
        device: &Arc<dyn Device>,
        lanes: usize,
        (slots, slot_size, cells): (usize, usize, usize),
        before: Weak<PinnedGroup>,
    ) -> Result<Vec<Self>> {
        let data = slots * slot_size + cells * CELL;
        let lists = (slots * MAX_PACK_PIECES + cells * CELL_LIST) * size_of::<CopyPiece>();
        let parts = PinnedGroup::parts(device, lanes, (data, lists), before)?;
        Ok(parts.into_iter().map(|part| Self { part, slots, slot_size, cells }).collect())
    }

    /// See [`GroupPart`].
    pub(crate) fn group(&mut self) -> &mut GroupPart {
        &mut self.part
    }

    /// The slots, then the cells, of memory that the device reaches at `reach`.
    pub(crate) fn memory(&self, reach: Reach) -> impl Iterator<Item = SlotMemory> {
        let (all, mut at, mut list_at) = self.part.place();
        let lens = std::iter::repeat_n((self.slot_size, MAX_PACK_PIECES), self.slots);
        lens.chain(std::iter::repeat_n((CELL, CELL_LIST), self.cells)).map(move |(len, list_len)| {
            let memory = SlotMemory {
                host: all.after(at).start,
                device: reach.part.wrapping_add(at as u64),
                len,
                list: all.after(list_at).start.cast(),
                list_device: reach.tail.wrapping_add(list_at as u64),
                list_len,
            };
            at += len;
            list_at += list_len * size_of::<CopyPiece>();
            memory
        })
    }

    /// How many slots.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The device's addresses of slots and cells, where it reaches the group at `reach`.
    pub(crate) fn range(&self, reach: Reach) -> DeviceRange {
        DeviceRange::new(reach.part.wrapping_add(self.part.place().1 as u64), self.data().len)
    }

    /// Slots and cells together, for registration with an io_uring.
    pub(crate) fn data(&self) -> HostRange {
        let (all, at, _) = self.part.place();
        all.after(at).first(self.slots * self.slot_size + self.cells * CELL)
    }
}
