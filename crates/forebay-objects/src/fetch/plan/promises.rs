//! Bytes that transfers will ask for soon.

use std::time::Instant;

use super::super::limits::PROMISED;

#[derive(Clone, Copy, Debug)]
struct Promise {
    start: u64,
    end: u64,
    at: Instant,
}

/// Promised bytes that no range asks for: apart from each other, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Promises(Vec<Promise>);

impl Promises {
    /// Adds `start..end`. Of bytes that were promised before, those before the old promise were asked for or come by another transfer.
    pub(crate) fn add(&mut self, start: u64, mut end: u64, now: Instant) {
        self.0.retain(|old| now.saturating_duration_since(old.at) < PROMISED);
        if let Some(own) = self.0.iter_mut().find(|old| old.start <= start && start <= old.end) {
            own.at = now;
            end = end.max(own.end);
            let own_start = own.start;
            let next = self.0.iter().map(|old| old.start).filter(|other| *other > own_start).min();
            let end = next.map_or(end, |next| end.min(next));
            if let Some(own) = self.0.iter_mut().find(|old| old.start == own_start) {
                own.end = end;
            }
            return;
        }
        for old in &self.0 {
            if old.start >= start {
                end = end.min(old.start);
            }
        }
        if start < end {
            self.0.push(Promise { start, end, at: now });
        }
    }

    /// The first byte of the oldest one that has this number of bytes or more.
    pub(crate) fn first(&mut self, bytes: u64, now: Instant) -> Option<u64> {
        self.0.retain(|old| now.saturating_duration_since(old.at) < PROMISED);
        self.0.iter().find(|one| one.end - one.start >= bytes).map(|one| one.start)
    }

    pub(crate) fn has(&self, at: u64) -> bool {
        self.end(at).is_some()
    }

    /// Until where the bytes from `at` on are promised.
    pub(crate) fn end(&self, at: u64) -> Option<u64> {
        self.0.iter().find(|old| old.start <= at && at < old.end).map(|old| old.end)
    }

    /// A range asks for these bytes.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        let parts = |old: Promise| {
            let before = Promise { end: old.end.min(start), ..old };
            let behind = Promise { start: old.start.max(end), ..old };
            [before, behind].into_iter().filter(|part| part.start < part.end)
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(parts).collect();
    }
}
