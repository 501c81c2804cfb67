//! A completion queue with its event descriptor, and the number of posted operations.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use forebay_error::Result;

use super::cm::set_nonblocking;
use super::errors::made;
use super::memory::Inner;
use super::sys;
use crate::Kind;

/// A completion queue.
pub(super) struct Queue {
    raw: NonNull<sys::IbvCq>,
    channel: NonNull<sys::CompChannel>,
    domain: Arc<Inner>,
}

// SAFETY: libibverbs locks what several threads use.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(domain: &Arc<Inner>, entries: u32) -> Result<Self> {
        let ibv = &domain.libraries.ibv;
        // SAFETY: the context is open as long as the domain, which the queue holds.
        let channel = unsafe { ibv.ibv_create_comp_channel(domain.context()) };
        let channel = made(channel, "cannot make an event channel")?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: as above.
        let raw =
            unsafe { ibv.ibv_create_cq(domain.context(), entries, ptr::null_mut(), channel.as_ptr(), 0) };
        let raw = made(raw, "cannot make a completion queue").inspect_err(|_| {
            // SAFETY: nothing uses it.
            unsafe { ibv.ibv_destroy_comp_channel(channel.as_ptr()) };
        })?;
        let queue = Self { raw, channel, domain: Arc::clone(domain) };
        set_nonblocking(queue.fd())?;
        Ok(queue)
    }

    pub(super) const fn raw(&self) -> *mut sys::IbvCq {
        self.raw.as_ptr()
    }

    pub(super) const fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as the queue.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Takes completions; how many, or a negative number.
    pub(super) fn poll(&self, out: &mut [sys::Wc]) -> c_int {
        // SAFETY: the queue lives; `out` has room for that many.
        unsafe { ((*self.domain.context()).poll_cq)(self.raw(), out.len() as c_int, out.as_mut_ptr()) }
    }

    /// Has the next completion make the descriptor readable.
    pub(super) fn arm(&self) -> c_int {
        // SAFETY: the queue lives.
        unsafe { ((*self.domain.context()).req_notify_cq)(self.raw(), 0) }
    }

    /// Takes what made the descriptor readable.
    pub(super) fn drain(&self) {
        let ibv = &self.domain.libraries.ibv;
        let (mut cq, mut user, mut count) = (ptr::null_mut(), ptr::null_mut(), 0);
        // SAFETY: the channel lives and does not block; `cq` and `user` take the answers.
        while unsafe { ibv.ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut user) } == 0 {
            count += 1;
        }
        if count > 0 {
            // SAFETY: this many events were taken.
            unsafe { ibv.ibv_ack_cq_events(self.raw(), count) };
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let libraries = self.domain.libraries;
        if libraries.is_own_process() {
            // SAFETY: its queue pair is gone before it, and its events are acknowledged.
            unsafe {
                libraries.ibv.ibv_destroy_cq(self.raw());
                libraries.ibv.ibv_destroy_comp_channel(self.channel.as_ptr());
            }
        }
    }
}

/// An operation that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) quiet: bool,
    /// The send slot whose bytes it takes.
    pub(super) slot: Option<u32>,
}

/// The posted operations, in order. The device reports only some; each of these also ends all earlier ones.
#[derive(Debug)]
pub(super) struct SendQueue {
    posted: VecDeque<Posted>,
    first: u64,
    depth: usize,
    untold: usize,
    free_slots: Vec<u32>,
}

impl SendQueue {
    pub(super) fn new(depth: u32, slots: u32) -> Self {
        let posted = VecDeque::with_capacity(depth as usize);
        Self { posted, first: 0, depth: depth as usize, untold: 0, free_slots: (0..slots).rev().collect() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.posted.len() >= self.depth
    }

    pub(super) fn take_slot(&mut self) -> Option<u32> {
        self.free_slots.pop()
    }

    pub(super) fn give_slot(&mut self, slot: Option<u32>) {
        self.free_slots.extend(slot);
    }

    /// The number that the next operation has at the device, and whether the device is to tell of it: a quiet one only now and
    /// then, so that the queue is emptied.
    pub(super) fn next(&self, quiet: bool) -> (u64, bool) {
        (self.first + self.posted.len() as u64, !quiet || self.untold + 1 >= self.depth.div_ceil(2))
    }

    /// Counts an operation that was posted under [`SendQueue::next`].
    pub(super) fn push(&mut self, posted: Posted, told: bool) {
        self.untold = if told { 0 } else { self.untold + 1 };
        self.posted.push_back(posted);
    }

    /// The operation of this number ended, and with it all before it.
    pub(super) fn pop(&mut self, number: u64) -> Option<Posted> {
        while self.first <= number {
            let posted = self.posted.pop_front()?;
            self.first += 1;
            self.give_slot(posted.slot);
            if self.first > number {
                return Some(posted);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_told_ones_end_the_quiet_ones() {
        let mut queue = SendQueue::new(8, 8);
        let mut told = Vec::new();
        for id in 0..8 {
            assert!(!queue.is_full());
            let slot = queue.take_slot();
            let (number, tell) = queue.next(id != 6);
            queue.push(Posted { id, kind: Kind::Send, quiet: id != 6, slot }, tell);
            assert_eq!(number, id);
            told.extend(tell.then_some(number));
        }
        assert!(queue.is_full() && queue.take_slot().is_none());
        assert_eq!(told, [3, 6], "the fourth quiet one, and the one that asked for it");
        assert_eq!(queue.pop(3).map(|posted| (posted.id, posted.quiet)), Some((3, true)));
        assert_eq!(queue.free_slots.len(), 4);
        assert_eq!(queue.pop(3), None, "told once");
        assert_eq!(queue.pop(6).map(|posted| (posted.id, posted.quiet)), Some((6, false)));
        assert!(!queue.is_full());
        assert_eq!(queue.next(true).0, 8);
        assert_eq!(queue.pop(100), None);
    }
}
