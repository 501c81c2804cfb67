//! Memory that is registered for a call, by a key that ends with it: the caller's, or pages of ours in its place.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_error::Result;
use forebay_verbs::{Access, Domain, Memory, Pages, Region};

use crate::network::job::JobPart;
use crate::network::options::RegionCounts;
use crate::protocol::io_call::IoOperation;

/// Memory that is registered for a call. It ends before it is counted out.
pub(super) struct CallRegion {
    // Ends before the pages do.
    pub(super) region: Region,
    /// In place of the caller's memory, where a fork would take it from the device.
    copy: Option<Pages>,
    _counted: RegionCount,
}

impl CallRegion {
    /// Registers the memory of a call.
    ///
    /// # Safety
    /// The memory is the call's until the region has ended.
    pub(super) unsafe fn new(
        domain: &dyn Domain,
        part: &JobPart,
        access: Access,
        counted: RegionCount,
    ) -> Result<Self> {
        let len = part.io.count as usize;
        let copy = if domain.copies_at_fork() { None } else { Some(Pages::new(len)?) };
        let memory = copy.as_ref().map_or(part.memory.first(len), Pages::range);
        if copy.is_some() && matches!(part.io.operation, IoOperation::Write { .. }) {
            // SAFETY: both have that many bytes; nobody changes those of the caller.
            unsafe { ptr::copy_nonoverlapping(part.memory.start, memory.start, len) };
        }
        // SAFETY: as the caller promises; the pages are ours.
        let region = unsafe { domain.register(Memory::Host(memory), access)? };
        Ok(Self { region, copy, _counted: counted })
    }

    /// Brings the first bytes of a READ to where the caller wants them. There are that many.
    pub(super) fn deliver(&self, part: &JobPart, count: usize) {
        if let Some(pages) = &self.copy {
            let from = pages.range().first(count);
            // SAFETY: both have that many bytes; the caller's memory is the call's until it ends, which only this thread does.
            unsafe { ptr::copy_nonoverlapping(from.start, part.memory.start, from.len) };
        }
    }
}

/// One of the ranges that are registered, or being registered, for calls.
pub(super) struct RegionCount(Arc<RegionCounts>);

impl RegionCount {
    /// With what tells whether others have some.
    pub(super) fn new(held: &Arc<RegionCounts>) -> (Self, OtherRegions) {
        let before = held.begun.load(Ordering::SeqCst);
        let others = held.now.fetch_add(1, Ordering::SeqCst);
        held.begun.fetch_add(1, Ordering::SeqCst);
        (Self(held.clone()), OtherRegions { others, begun: before.wrapping_add(1) })
    }
}

impl Drop for RegionCount {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What others had registered when something was begun.
pub(super) struct OtherRegions {
    others: usize,
    begun: usize,
}

impl OtherRegions {
    /// Before something that is not counted itself.
    pub(super) fn now(held: &RegionCounts) -> Self {
        let begun = held.begun.load(Ordering::SeqCst);
        Self { others: held.now.load(Ordering::SeqCst), begun }
    }

    /// Whether what failed may have failed by what others had: then, or since.
    pub(super) fn has_others(&self, held: &RegionCounts) -> bool {
        self.others > 0 || held.begun.load(Ordering::SeqCst) != self.begun
    }
}
