//! Memory that several threads of ours share, pinned at once.
//!
//! Pinning holds the driver's lock, so that threads which each pin their own wait for each other; and the pages are cleared
//! first, which takes longer. So each thread touches its own part, at the same time, and the last one pins all.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use forebay_error::Result;
use forebay_gpu::Device;

use crate::runtime::lock::lock;
use crate::runtime::pinned::touch;
use crate::runtime::sys::Pages;
use crate::runtime::traffic;

/// Equal parts of one mapping, then the tail of each: parts that are huge pages stay aligned.
#[derive(Debug)]
pub(crate) struct PinnedGroup {
    pages: ManuallyDrop<Pages>,
    device: Arc<dyn Device>,
    part: usize,
    tail: usize,
    state: Mutex<State>,
    pinned: Condvar,
}

#[derive(Debug)]
struct State {
    /// Parts that are not touched yet.
    missing: usize,
    /// The device's address of the mapping.
    reach: Option<Result<u64>>,
}

/// A thread's part. Where it is dropped without having been touched, the others are pinned without waiting for it.
#[derive(Debug)]
pub(crate) struct GroupPart {
    group: Arc<PinnedGroup>,
    at: usize,
    tail_at: usize,
    has_arrived: bool,
}

impl PinnedGroup {
    /// `parts` of at least `part` bytes each, and `tail` more elsewhere, zeroed.
    pub(crate) fn parts(
        device: &Arc<dyn Device>,
        parts: usize,
        (part, tail): (usize, usize),
    ) -> Result<Vec<GroupPart>> {
        let (part, tail) = (part.next_multiple_of(4096), tail.next_multiple_of(4096));
        let group = Arc::new(Self {
            pages: ManuallyDrop::new(Pages::new(parts * (part + tail))?),
            device: device.clone(),
            part,
            tail,
            state: Mutex::new(State { missing: parts, reach: None }),
            pinned: Condvar::new(),
        });
        let place = |index| GroupPart {
            group: group.clone(),
            at: index * part,
            tail_at: parts * part + index * tail,
            has_arrived: false,
        };
        Ok((0..parts).map(place).collect())
    }

    fn arrive(&self) {
        let mut state = lock(&self.state);
        state.missing -= 1;
        if state.missing > 0 {
            return;
        }
        drop(state);
        // SAFETY: the pages live until they are unpinned: see `drop`.
        let reach = unsafe { self.device.pin(self.pages.as_ptr(), self.pages.len()) };
        lock(&self.state).reach = Some(reach);
        self.pinned.notify_all();
    }
}

impl GroupPart {
    /// The mapping's address for the CPU; the part's and its tail's offsets in it.
    pub(crate) fn place(&self) -> (*mut u8, usize, usize) {
        (self.group.pages.as_ptr(), self.at, self.tail_at)
    }

    /// Has the kernel allocate its pages, by the calling thread.
    pub(crate) fn touch(&self) {
        let start = self.group.pages.as_ptr();
        touch(start.wrapping_add(self.at), self.group.part);
        touch(start.wrapping_add(self.tail_at), self.group.tail);
    }

    /// The part may be pinned. The last one pins them all.
    pub(crate) fn arrive(&mut self) {
        if !std::mem::replace(&mut self.has_arrived, true) {
            self.group.arrive();
        }
    }

    /// The mapping's address for the device, once it is pinned: all parts arrive or are dropped.
    pub(crate) fn wait(&self) -> Result<u64> {
        let mut state = lock(&self.group.state);
        loop {
            if let Some(reach) = &state.reach {
                return reach.clone();
            }
            state = self.group.pinned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for GroupPart {
    fn drop(&mut self) {
        self.arrive();
    }
}

impl Drop for PinnedGroup {
    fn drop(&mut self) {
        // SAFETY: taken out once, here.
        let pages = unsafe { ManuallyDrop::take(&mut self.pages) };
        let Some(Ok(_)) = lock(&self.state).reach else { return };
        let device = self.device.clone();
        // Unpinning waits for all streams, one of which may wait for this thread.
        traffic::when_clear(move || {
            // SAFETY: pinned in `arrive`; owners wait for their copies before they drop their parts.
            unsafe { device.unpin(pages.as_ptr()) };
        });
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn host() -> Arc<dyn Device> {
        forebay_gpu::Devices::discover().host
    }

    #[test]
    fn parts_are_pinned_when_all_have_arrived() {
        let mut parts = PinnedGroup::parts(&host(), 3, (5000, 10)).unwrap();
        let late = parts.pop().unwrap();
        let waiting: Vec<_> = parts
            .into_iter()
            .map(|mut part| {
                thread::spawn(move || {
                    part.touch();
                    part.arrive();
                    part.wait().unwrap();
                    part.place().1
                })
            })
            .collect();
        assert!(lock(&late.group.state).reach.is_none());
        drop(late);
        let mut places: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 8192]);
    }
}
