//! Bytes that transfers will ask for soon.

use std::time::Instant;

use super::super::limits::PROMISED;

#[derive(Clone, Copy, Debug)]
struct Promise {
    start: u64,
    end: u64,
    at: Instant,
}

/// Ranges of asked bytes that are remembered: of some lanes at different places of an object.
const REMEMBERED: usize = 64;

/// Promised bytes that no range asks for.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Apart from each other, the oldest first.
    all: Vec<Promise>,
    /// Bytes of requests in this pass over the object, apart from each other: a lane that was held up promises them once more.
    asked: Vec<(u64, u64)>,
}

impl Promises {
    /// Bytes are asked for. Where they were before, another pass begins.
    pub(crate) fn asked(&mut self, mut start: u64, mut end: u64) {
        let is_again = self.asked.iter().any(|(from, to)| *from < end && start < *to);
        if is_again || self.asked.len() >= REMEMBERED {
            self.asked.clear();
        }
        self.asked.retain(|(from, to)| {
            let is_neighbour = *from == end || *to == start;
            if is_neighbour {
                (start, end) = (start.min(*from), end.max(*to));
            }
            !is_neighbour
        });
        self.asked.push((start, end));
    }

    /// Adds `start..end`, but for bytes that were asked for.
    pub(crate) fn add(&mut self, mut start: u64, end: u64, now: Instant) {
        self.all.retain(|old| now.saturating_duration_since(old.at) < PROMISED);
        while start < end {
            let next = self.asked.iter().filter(|(_, to)| *to > start).min().copied();
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
