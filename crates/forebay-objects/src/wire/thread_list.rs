//! The threads of a network, and which of them takes the next call.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::mail::Mailbox;

/// The most threads.
const MOST_THREADS: usize = 8;

/// A thread of the network.
#[derive(Debug)]
pub(super) struct ThreadPlace {
    pub(super) mailbox: Arc<Mailbox>,
    /// Connections that it serves.
    pub(super) lines: AtomicUsize,
    /// It hardly waits: others take its next calls.
    pub(super) is_busy: AtomicBool,
}

impl ThreadPlace {
    pub(super) fn new(mailbox: Mailbox) -> Self {
        Self { mailbox: Arc::new(mailbox), lines: AtomicUsize::new(0), is_busy: AtomicBool::new(false) }
    }

    fn lines(&self) -> usize {
        self.lines.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }
}

/// All threads.
#[derive(Debug, Default)]
pub(super) struct ThreadList {
    all: Vec<Arc<ThreadPlace>>,
    /// A thread starts others.
    starts: bool,
}

impl ThreadList {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The caller is to start some. False: another one does.
    pub(super) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.starts, true)
    }

    /// It was started; `None`: it cannot be.
    pub(super) fn started(&mut self, place: Option<Arc<ThreadPlace>>) {
        self.starts = false;
        self.all.extend(place);
        // What came before it was known.
        self.wake_all();
    }

    pub(super) fn remove(&mut self, place: &Arc<ThreadPlace>) {
        self.all.retain(|one| !Arc::ptr_eq(one, place));
    }

    /// How many there may be beside these, where all of them are busy: twice as many at most.
    pub(super) fn growth(&self) -> usize {
        if !self.all.iter().all(|place| place.is_busy()) {
            return 0;
        }
        let most = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
        most.saturating_sub(self.all.len()).min(self.all.len())
    }

    pub(super) fn wake_all(&self) {
        self.all.iter().for_each(|place| place.mailbox.wake());
    }

    /// Has a thread look at the queue: the first one that is not busy, else the one with the fewest connections. False: there is none.
    pub(super) fn wake_one(&self) -> bool {
        let light = self.all.iter().find(|place| !place.is_busy());
        let place = light.or_else(|| self.all.iter().min_by_key(|place| place.lines()));
        if let Some(place) = place {
            place.mailbox.wake();
        }
        place.is_some()
    }

    /// Whether the next call is for another thread, that has fewer connections than this busy one; it is woken.
    pub(super) fn gives_away(&self, place: &ThreadPlace) -> bool {
        if !place.is_busy() {
            return false;
        }
        let other = self.all.iter().find(|other| other.lines() + 1 < place.lines());
        if let Some(other) = other {
            other.mailbox.wake();
        }
        other.is_some()
    }

    /// All are busy, or none is.
    #[cfg(test)]
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.all.iter().for_each(|place| place.is_busy.store(is_busy, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::wire::poller::Poller;

    #[test]
    fn threads_double_where_all_are_busy() {
        let most = std::thread::available_parallelism().unwrap().get().min(MOST_THREADS);
        let mut list = ThreadList::default();
        assert_eq!(list.growth(), 0);
        for count in 1..=most {
            let (_, waker) = Poller::new().unwrap();
            list.started(Some(Arc::new(ThreadPlace::new(Mailbox::new(waker)))));
            assert_eq!(list.growth(), 0, "the new one is not busy");
            list.set_busy(true);
            assert_eq!(list.growth(), count.min(most - count));
        }
    }
}
