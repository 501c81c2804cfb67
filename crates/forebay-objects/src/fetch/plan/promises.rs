//! Bytes that transfers will ask for soon.

use std::time::Instant;

use super::super::limits::{PROMISED, RANGE, READ_AHEAD};

#[derive(Clone, Copy, Debug)]
struct Promise {
    start: u64,
    end: u64,
    at: Instant,
}

/// Runs that are remembered: of some lanes at different places of an object.
const REMEMBERED: usize = 64;

/// Bytes that were asked for one behind the other.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    /// Until where its requests promised bytes.
    promised: u64,
    reading: Reading,
}

/// Whether a run goes on behind what its requests promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reading {
    /// It did not yet.
    Once,
    /// It did: a transfer follows the other.
    Onward,
    /// Bytes that were read ahead were not asked for in time.
    Slow,
}

/// Promised bytes that no range asks for.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Apart from each other, the oldest first.
    all: Vec<Promise>,
    /// Bytes of requests in this pass over the object, apart from each other: a lane that was held up promises them once more.
    asked: Vec<Run>,
}

impl Promises {
    /// Bytes are asked for, and these are promised behind them. Where they were before, another pass begins. Returns how many bytes
    /// more are likely to be asked for: one transfer follows another through the object.
    pub(crate) fn asked(&mut self, start: u64, end: u64, ahead: u64) -> u64 {
        let is_again = self.asked.iter().any(|run| run.start < end && start < run.end);
        if is_again || self.asked.len() >= REMEMBERED {
            self.asked.clear();
        }
        let mut new = Run { start, end, promised: end.saturating_add(ahead), reading: Reading::Once };
        self.asked.retain(|run| {
            let (is_before, is_behind) = (run.end == start, run.start == end);
            if is_before {
                new.start = run.start;
                // Not behind the short reads of a file's head.
                if run.promised <= start && run.end - run.start >= RANGE {
                    new.reading = new.reading.max(Reading::Onward);
                }
            }
            if is_behind {
                new.end = run.end;
            }
            if is_before || is_behind {
                new.promised = new.promised.max(run.promised);
                new.reading = new.reading.max(run.reading);
            }
            !(is_before || is_behind)
        });
        self.asked.push(new);
        if new.reading == Reading::Onward { READ_AHEAD } else { 0 }
    }

    /// A range waited for bytes at `at` longer than they are waited for.
    pub(crate) fn waited(&mut self, at: u64) {
        if let Some(run) = self.asked.iter_mut().find(|run| run.start <= at && at <= run.end + READ_AHEAD) {
            run.reading = Reading::Slow;
        }
    }

    /// Adds `start..end`, but for bytes that were asked for.
    pub(crate) fn add(&mut self, mut start: u64, end: u64, now: Instant) {
        self.all.retain(|old| now.saturating_duration_since(old.at) < PROMISED);
        while start < end {
            let next = self.asked.iter().filter(|run| run.end > start).map(|run| (run.start, run.end)).min();
            let (from, to) = next.unwrap_or((end, end));
            self.add_unasked(start, from.min(end), now);
            start = start.max(to).max(from);
        }
    }

    /// Of bytes that were promised before, those before the old promise were asked for or come by another transfer.
    fn add_unasked(&mut self, start: u64, end: u64, now: Instant) {
        let next =
            |from: u64, all: &[Promise]| all.iter().map(|old| old.start).filter(|other| *other > from).min();
        if let Some(index) = self.all.iter().position(|old| old.start <= start && start <= old.end) {
            let next = next(self.all[index].start, &self.all).unwrap_or(end);
            let own = &mut self.all[index];
            (own.at, own.end) = (now, own.end.max(end.min(next)));
            return;
        }
        let end = next(start, &self.all).map_or(end, |next| end.min(next));
        if start < end {
            self.all.push(Promise { start, end, at: now });
        }
    }

    /// The first byte of the oldest one that has this number of bytes or more.
    pub(crate) fn first(&mut self, bytes: u64, now: Instant) -> Option<u64> {
        self.all.retain(|old| now.saturating_duration_since(old.at) < PROMISED);
        self.all.iter().find(|one| one.end - one.start >= bytes).map(|one| one.start)
    }

    pub(crate) fn has(&self, at: u64) -> bool {
        self.end(at).is_some()
    }

    /// Until where the bytes from `at` on are promised.
    pub(crate) fn end(&self, at: u64) -> Option<u64> {
        self.all.iter().find(|old| old.start <= at && at < old.end).map(|old| old.end)
    }

    /// A range asks for these bytes.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        let parts = |old: Promise| {
            let before = Promise { end: old.end.min(start), ..old };
            let behind = Promise { start: old.start.max(end), ..old };
            [before, behind].into_iter().filter(|part| part.start < part.end)
        };
        self.all = std::mem::take(&mut self.all).into_iter().flat_map(parts).collect();
    }
}
