//! Faults on demand, and the record of operations.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_verbs::{Kind, Remote};

use crate::{Refusal, lock};

/// Which of a connection's two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that connected; paired in band, that of a domain which [`crate::Fake`] opened.
    Client,
    /// The one that accepted; paired in band, that of a domain which [`crate::Fake::serving`] opened.
    Server,
}

/// What goes wrong with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It, and all behind it, is late.
    Delay(Duration),
    /// It seems to succeed, and has no effect.
    Lose,
    /// Of a message: it arrives behind this many later ones.
    Hold(u32),
    /// Both ends are disconnected before it.
    Disconnect,
    /// The peer does not answer: the poster's end is down, and the peer does not see it.
    Unreachable,
    /// The poster's end is down before it, and the peer is never told.
    Vanish,
    /// The peer finds it malformed: both ends are down.
    Refuse,
    /// The poster's device is removed before it.
    RemoveDevice,
}

/// A fault: which operations, and what happens to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    side: Side,
    kind: Kind,
    skip: u32,
    times: u32,
    what: What,
}

impl Fault {
    /// The next operation of this kind that this side posts.
    pub const fn on(side: Side, kind: Kind, what: What) -> Self {
        Self { side, kind, skip: 0, times: 1, what }
    }

    /// Leaves this many operations alone first.
    #[must_use]
    pub const fn after(mut self, operations: u32) -> Self {
        self.skip = operations;
        self
    }

    /// Happens this often.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    waiting: AtomicUsize,
    list: Mutex<Vec<Fault>>,
}

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        let mut list = lock(&self.list);
        list.push(fault);
        self.waiting.store(list.len(), Ordering::Release);
    }

    /// What happens to an operation that is posted now.
    pub(crate) fn take(&self, side: Side, kind: Kind) -> Option<What> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut list = lock(&self.list);
        let mut found = None;
        for fault in list.iter_mut().filter(|fault| fault.side == side && fault.kind == kind) {
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if found.is_none() && fault.times > 0 {
                fault.times -= 1;
                found = Some(fault.what);
            }
        }
        list.retain(|fault| fault.times > 0);
        self.waiting.store(list.len(), Ordering::Release);
        found
    }
}

/// One operation that was carried out, or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the poster's connection.
    pub connection: u64,
    /// Which end posted it.
    pub side: Side,
    /// What it was.
    pub kind: Kind,
    /// The peer's memory, of a WRITE or READ; of a message with invalidation its key.
    pub remote: Option<Remote>,
    /// Bytes.
    pub len: u32,
    /// Why it was refused.
    pub refused: Option<Refusal>,
}

/// The operations carried out since the fabric was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages.
    pub sends: u64,
    /// RDMA WRITEs.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written: u64,
    /// RDMA READs.
    pub reads: u64,
    /// Bytes that they read.
    pub read: u64,
    /// Operations refused by the table of keys.
    pub refused: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    on: AtomicBool,
    entries: Mutex<Vec<Entry>>,
    sends: AtomicU64,
    writes: AtomicU64,
    written: AtomicU64,
    reads: AtomicU64,
    read: AtomicU64,
    refused: AtomicU64,
}

impl Journal {
    pub(crate) fn record(&self, on: bool) {
        if on {
            lock(&self.entries).clear();
        }
        self.on.store(on, Ordering::Release);
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        lock(&self.entries).clone()
    }

    pub(crate) fn note(&self, entry: Entry) {
        let add = |counter: &AtomicU64, value: u64| {
            counter.fetch_add(value, Ordering::Relaxed);
        };
        match (entry.refused, entry.kind) {
            (Some(_), _) => add(&self.refused, 1),
            (None, Kind::Send) => add(&self.sends, 1),
            (None, Kind::Write) => {
                add(&self.writes, 1);
                add(&self.written, entry.len.into());
            }
            (None, Kind::Read) => {
                add(&self.reads, 1);
                add(&self.read, entry.len.into());
            }
            _ => {}
        }
        if self.on.load(Ordering::Acquire) {
            lock(&self.entries).push(entry);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            sends: get(&self.sends),
            writes: get(&self.writes),
            written: get(&self.written),
            reads: get(&self.reads),
            read: get(&self.read),
            refused: get(&self.refused),
        }
    }
}
