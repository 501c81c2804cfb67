//! Memory that several threads of ours share, pinned at once.
//!
//! Pinning holds the driver's lock, so that threads which each pin their own wait for each other; and the pages are cleared
//! first, which takes longer. So each thread touches its own part, at the same time, and the last one pins all. Where that is
//! too much, it pins the parts one by one, in order: as many as can be.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use forebay_error::Result;
use forebay_gpu::{Device, HostRange};
use forebay_sys::page_size;

use crate::runtime::lock;
use crate::runtime::pinned::{give_back, touch};
use crate::runtime::sys::Pages;
use crate::runtime::traffic;

/// Equal parts of one mapping, then the tail of each: parts that are huge pages stay aligned.
#[derive(Debug)]
pub(crate) struct PinnedGroup {
    pages: ManuallyDrop<Pages>,
    device: Arc<dyn Device>,
    part: usize,
    tail: usize,
    /// The group before this one: its pages are touched first.
    before: Weak<Self>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Parts that are not touched yet.
    missing: usize,
    /// Of each part.
    reaches: Option<Vec<Result<Reach>>>,
    /// Offsets of the pinned parts.
    pinned: Vec<usize>,
}

/// The device's address of the mapping, from which it reaches a part, and that for its tail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) part: u64,
    pub(crate) tail: u64,
}

/// A thread's part. Where it is dropped without having been touched, the others are pinned without waiting for it.
#[derive(Debug)]
pub(crate) struct GroupPart {
    group: Arc<PinnedGroup>,
    index: usize,
    at: usize,
    tail_at: usize,
    has_arrived: bool,
}

impl PinnedGroup {
    /// `parts` of at least `part` bytes each, and `tail` more elsewhere, zeroed. They come after those of the group `before`: all
    /// threads of a process together clear pages no faster than a few.
    pub(crate) fn parts(
        device: &Arc<dyn Device>,
        parts: usize,
        (part, tail): (usize, usize),
        before: Weak<Self>,
    ) -> Result<Vec<GroupPart>> {
        let (part, tail) = (part.next_multiple_of(page_size()), tail.next_multiple_of(page_size()));
        let group = Arc::new(Self {
            pages: ManuallyDrop::new(Pages::new(parts * (part + tail))?),
            device: device.clone(),
            part,
            tail,
            before,
            state: Mutex::new(State { missing: parts, reaches: None, pinned: Vec::new() }),
            changed: Condvar::new(),
        });
        let place = |index| GroupPart {
            group: group.clone(),
            index,
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
        self.changed.notify_all();
        let all = self.pages.range();
        let parts = all.len / (self.part + self.tail);
        let (reaches, pinned) = match self.pin(0, all.len) {
            Ok(reach) => (vec![Ok(Reach { part: reach, tail: reach }); parts], vec![0]),
            Err(_) if parts > 1 => self.pin_parts(parts),
            Err(error) => (vec![Err(error)], Vec::new()),
        };
        let mut state = lock(&self.state);
        (state.reaches, state.pinned) = (Some(reaches), pinned);
        self.changed.notify_all();
    }

    fn wait_for<T>(&self, find: impl Fn(&State) -> Option<T>) -> T {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = find(&state) {
                return found;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Pins the tails, then the parts that can be. Also returns the offsets of the pinned parts.
    fn pin_parts(&self, parts: usize) -> (Vec<Result<Reach>>, Vec<usize>) {
        let tail = match self.pin(parts * self.part, parts * self.tail) {
            Ok(tail) => tail,
            Err(error) => return (vec![Err(error); parts], Vec::new()),
        };
        let mut pinned = vec![parts * self.part];
        let mut pin = |index: usize| {
            let part = self.pin(index * self.part, self.part);
            match &part {
                Ok(_) => pinned.push(index * self.part),
                // The lane that was to use this part ends: others may need the memory.
                Err(_) => give_back(self.range(index * self.part, self.part)),
            }
            part.map(|part| Reach { part, tail })
        };
        ((0..parts).map(&mut pin).collect(), pinned)
    }

    fn range(&self, at: usize, len: usize) -> HostRange {
        self.pages.range().after(at).first(len)
    }

    /// The device's address of the mapping, to reach this range of it.
    fn pin(&self, at: usize, len: usize) -> Result<u64> {
        // SAFETY: the pages live until they are unpinned: see `drop`.
        let reach = unsafe { self.device.pin(self.range(at, len)) };
        reach.map(|reach| reach.wrapping_sub(at as u64))
    }
}

impl GroupPart {
    /// The mapping; the part's and its tail's offsets in it.
    pub(crate) fn place(&self) -> (HostRange, usize, usize) {
        (self.group.pages.range(), self.at, self.tail_at)
    }

    /// The group that this part belongs to.
    pub(crate) fn group(&self) -> Weak<PinnedGroup> {
        Arc::downgrade(&self.group)
    }

    /// Has the kernel allocate its pages, by the calling thread, once those of the group before are there.
    pub(crate) fn touch(&self) {
        if let Some(before) = self.group.before.upgrade() {
            before.wait_for(|state| (state.missing == 0).then_some(()));
        }
        touch(self.group.range(self.at, self.group.part));
        touch(self.group.range(self.tail_at, self.group.tail));
    }

    /// The part may be pinned. The last one pins them all.
    pub(crate) fn arrive(&mut self) {
        if !std::mem::replace(&mut self.has_arrived, true) {
            self.group.arrive();
        }
    }

    /// Where the device reaches it, once it is pinned: all parts arrive or are dropped.
    pub(crate) fn wait(&self) -> Result<Reach> {
        self.group.wait_for(|state| Some(state.reaches.as_ref()?[self.index].clone()))
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
        let pinned = std::mem::take(&mut lock(&self.state).pinned);
        if pinned.is_empty() {
            return;
        }
        let device = self.device.clone();
        // Unpinning waits for all streams, one of which may wait for this thread.
        traffic::when_clear(move || {
            for at in pinned {
                // SAFETY: pinned in `pin`; owners wait for their copies before they drop their parts.
                unsafe { device.unpin(pages.range().after(at).start) };
            }
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
        let mut parts = PinnedGroup::parts(&host(), 3, (5000, 10), Weak::new()).unwrap();
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
        assert!(lock(&late.group.state).reaches.is_none());
        drop(late);
        let mut places: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 8192]);
    }
    #[test]
    fn a_group_is_touched_after_the_one_before() {
        let mut first = PinnedGroup::parts(&host(), 1, (4096, 0), Weak::new()).unwrap().pop().unwrap();
        let second = PinnedGroup::parts(&host(), 1, (4096, 0), first.group()).unwrap().pop().unwrap();
        let waiting = thread::spawn(move || second.touch());
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiting.is_finished());
        first.arrive();
        waiting.join().unwrap();
        let third = PinnedGroup::parts(&host(), 1, (4096, 0), first.group()).unwrap().pop().unwrap();
        drop(first);
        third.touch();
    }
}
