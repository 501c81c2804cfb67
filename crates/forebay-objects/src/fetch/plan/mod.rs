//! Which ranges of an object are asked for, and where their bytes go: a state machine without clock, thread or connection.
//!
//! Requests come in any order. What directly follows them and was promised ([`Request::ahead`]) is asked for with them, so that later
//! requests find their bytes under way. A range whose next bytes nobody asks for waits for a while, and ends then: what others asked
//! for behind them is put back, and asked for by ranges of its own.

mod asked;
mod promises;
mod range;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Instant;

use forebay_error::{Error, Result};
use forebay_source::{Answer, HostRange, Request};

use self::asked::{AskedRequests, Todo};
use self::promises::Promises;
use self::range::{Part, Range};
use super::limits::{GAP, LONGEST, LONGEST_OUT_OF_ORDER, LONGEST_PROMISED, OUT_OF_ORDER, PROMISED, RANGE};
use crate::pace::UnderWay;

/// Names a range of a plan.
pub(crate) type RangeId = u64;

/// A range that is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewRange {
    pub(crate) id: RangeId,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Where the next bytes of a range go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeRoom {
    Memory(HostRange),
    /// Thrown away: at most this number.
    Skip(u64),
    Later,
    Enough,
}

/// The plan of an object.
pub(crate) struct Plan {
    /// Bytes of the object.
    len: u64,
    asked: AskedRequests,
    promises: Promises,
    ranges: BTreeMap<RangeId, Range>,
    next: RangeId,
    /// When something was asked for, or came, last.
    moved: Option<Instant>,
}

impl Plan {
    /// Nothing is asked for yet.
    pub(crate) fn new(len: u64) -> Self {
        let (asked, promises) = (AskedRequests::default(), Promises::default());
        Self { len, asked, promises, ranges: BTreeMap::new(), next: 0, moved: None }
    }

    /// Takes a request. Returns ranges that go on with it.
    pub(crate) fn ask(&mut self, mut request: Request, answer: Answer, now: Instant) -> Vec<RangeId> {
        let left = self.len.saturating_sub(request.offset);
        request.memory = request.memory.first(usize::try_from(left).unwrap_or(usize::MAX));
        if request.memory.len == 0 {
            self.asked.answer(answer, Ok(0));
            return Vec::new();
        }
        self.moved = Some(now);
        let (start, end) = (request.offset, request.offset + request.memory.len as u64);
        let likely = self.promises.asked(start, end, request.ahead);
        let until = end.saturating_add(request.ahead).saturating_add(likely).min(self.len);
        let id = self.asked.add(request, answer);
        let resumed = self.place(id, start, end);
        self.promise(end, until, now);
        resumed
    }

    /// Bytes are promised: those that no range has under way, and no request asks for.
    fn promise(&mut self, mut at: u64, until: u64, now: Instant) {
        while at < until {
            at = self.covered_until(at, until);
            let others = self.ranges.values().filter(|range| !range.is_ending && range.start > at);
            let end = others.map(|range| range.start).min().unwrap_or(until).min(until);
            self.promises.add(at, end, now);
            at = at.max(end);
        }
    }

    /// Puts bytes of a request into ranges under way, and the rest aside.
    fn place(&mut self, request: u64, mut start: u64, end: u64) -> Vec<RangeId> {
        let mut resumed = Vec::new();
        while start < end {
            let holes = self.ranges.iter().filter_map(|(id, range)| Some((range.hole(start, end)?, *id)));
            let Some(((from, to), id)) = holes.min() else {
                self.asked.put(Todo { start, end, request }, false);
                break;
            };
            if start < from {
                self.asked.put(Todo { start, end: from, request }, false);
            }
            let part = Part { start: from, end: to.min(end), request: Some(request) };
            self.asked.begin(request);
            if self.ranges.get_mut(&id).is_some_and(|range| range.attach(part)) {
                resumed.push(id);
            }
            start = part.end;
        }
        resumed
    }

    /// The first byte from `at` on that no range and no request covers. What of a range came is covered, too: requests that are started
    /// by several threads do not come in order.
    fn covered_until(&self, mut at: u64, until: u64) -> u64 {
        while at < until {
            let mut ranges = self.ranges.values().filter(|range| !range.is_ending);
            let by_range = ranges.find(|range| range.start <= at && at < range.end).map(|range| range.end);
            let by_todo = || self.asked.behind(at).filter(|todo| todo.start == at).map(|todo| todo.end);
            match by_range.or_else(by_todo) {
                Some(end) => at = end,
                None => break,
            }
        }
        at
    }

    /// The next range for requests.
    pub(crate) fn next_range(&mut self) -> Option<NewRange> {
        let seed = self.asked.oldest()?;
        let mut start = seed.start;
        while let Some(before) = self.asked.before(start)
            && before.end <= start
            && start - before.end <= GAP
            && seed.start - before.start <= RANGE / 2
        {
            start = before.start;
        }
        self.new_range(start)
    }

    /// The next range for promised bytes: a whole one. A shorter rest may grow with the next request.
    pub(crate) fn next_ahead(&mut self, now: Instant) -> Option<NewRange> {
        let start = self.promises.first(RANGE, now)?;
        self.new_range(start)
    }

    fn new_range(&mut self, start: u64) -> Option<NewRange> {
        let reach = self.reach(start);
        let limit = if reach - start <= LONGEST { reach } else { start + RANGE };
        let mut range =
            Range { start, end: start, at: start, parts: [].into(), paused: None, is_ending: false };
        while let Some((end, todo)) = self.step(range.end, limit, !range.parts.is_empty()) {
            let request = todo.map(|todo| {
                self.asked.take(todo, limit);
                self.asked.begin(todo.request);
                todo.request
            });
            let is_gap = todo.is_none() && !self.promises.has(range.end);
            if todo.is_some() || is_gap {
                range.parts.push_back(Part { start: range.end, end, request });
            }
            range.end = end;
        }
        self.promises.remove(range.start, range.end);
        if range.start == range.end {
            return None;
        }
        self.next += 1;
        let new = NewRange { id: self.next, start: range.start, end: range.end };
        self.ranges.insert(new.id, range);
        Some(new)
    }

    /// How far a range from `start` on may reach.
    fn reach(&self, start: u64) -> u64 {
        let mut at = start;
        let mut has_any = false;
        while let Some((end, todo)) = self.step(at, start + LONGEST + 1, has_any) {
            has_any |= todo.is_some();
            at = end;
        }
        at
    }

    /// What comes at `at` in a range that ends at `limit` at most: bytes that were asked for, that were promised, or that lie
    /// between requests.
    fn step(&self, at: u64, limit: u64, has_any: bool) -> Option<(u64, Option<Todo>)> {
        if at >= limit {
            return None;
        }
        let next = self.asked.behind(at);
        if let Some(todo) = next.filter(|todo| todo.start == at) {
            return Some((todo.end.min(limit), Some(todo)));
        }
        let until = next.map_or(limit, |todo| todo.start.min(limit));
        if let Some(end) = self.promises.end(at) {
            let end = end.min(until);
            let others = self.ranges.values().filter(|range| range.start > at).map(|range| range.start);
            return Some((others.min().map_or(end, |other| other.min(end)), None));
        }
        let has_near = next.is_some_and(|todo| todo.start - at <= GAP && todo.start < limit);
        (has_any && has_near).then_some((until, None))
    }

    /// Where the next bytes of a range go.
    pub(crate) fn room(&mut self, id: RangeId, now: Instant) -> RangeRoom {
        let Some(range) = self.ranges.get_mut(&id) else { return RangeRoom::Enough };
        let Some(part) = range.parts.front().copied() else {
            let room = Self::wait(range, self.moved, now);
            if range.is_ending {
                self.promises.waited(range.at);
            }
            return room;
        };
        if part.start > range.at {
            return Self::wait(range, self.moved, now);
        }
        (range.paused, self.moved) = (None, Some(now));
        let (at, end) = (range.at, part.end);
        let memory = part.request.and_then(|request| self.asked.memory(request, at, end));
        memory.map_or(RangeRoom::Skip(end - at), RangeRoom::Memory)
    }

    /// Nobody asks for the next bytes of a range.
    fn wait(range: &mut Range, moved: Option<Instant>, now: Instant) -> RangeRoom {
        if range.at >= range.end {
            return RangeRoom::Enough;
        }
        if !range.is_ending && now < Self::waits_until(range, moved, now) {
            range.paused.get_or_insert(now);
            return RangeRoom::Later;
        }
        match range.parts.front().map(|part| part.start) {
            Some(next) if next - range.at <= GAP => {
                range.parts.push_front(Part { start: range.at, end: next, request: None });
                range.paused = None;
                RangeRoom::Skip(next - range.at)
            }
            _ => {
                range.is_ending = true;
                RangeRoom::Enough
            }
        }
    }

    fn waits_until(range: &Range, moved: Option<Instant>, now: Instant) -> Instant {
        let since = range.paused.unwrap_or(now);
        let moved = moved.map_or(since, |moved| since.max(moved));
        if range.parts.is_empty() {
            return (moved + PROMISED).min(since + LONGEST_PROMISED);
        }
        (moved + OUT_OF_ORDER).min(since + LONGEST_OUT_OF_ORDER)
    }

    /// Bytes of a range came.
    pub(crate) fn filled(&mut self, id: RangeId, bytes: u64) {
        let Some(range) = self.ranges.get_mut(&id) else { return };
        range.at += bytes;
        let Some(part) = range.parts.front().copied() else { return };
        if let Some(request) = part.request {
            self.asked.came(request, bytes);
        }
        if part.end <= range.at {
            range.parts.pop_front();
            if let Some(request) = part.request {
                self.asked.end(request);
            }
        }
    }

    /// A range has ended: what of it did not come is put back, or fails. Whether its error may pass is `retries`.
    pub(crate) fn ended(&mut self, id: RangeId, result: &Result<()>, retries: bool, now: Instant) {
        let Some(range) = self.ranges.remove(&id) else { return };
        let parts = range.parts.iter().filter_map(|part| Some((part, part.request?)));
        for (part, request) in parts.clone() {
            let is_put = match result {
                Err(error) if !retries => {
                    self.asked.fail(request, error);
                    false
                }
                Err(error) => self.asked.may_retry(request, error, now),
                Ok(()) => self.asked.memory(request, part.start, part.end).is_some(),
            };
            if is_put {
                self.asked.put(Todo { start: part.start.max(range.at), end: part.end, request }, true);
            }
        }
        parts.for_each(|(_, request)| self.asked.end(request));
        if result.is_err() && retries && range.parts.back().is_none_or(|last| last.end < range.end) {
            let from = range.parts.back().map_or(range.at, |last| last.end);
            self.promise(from, range.end, now);
        }
    }

    /// All requests fail: the object is another one.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.promises = Promises::default();
        self.asked.fail_all(error);
    }

    /// Answers for callers to call when they hold no lock.
    pub(crate) fn take_answers(&mut self) -> Vec<(Answer, Result<usize>)> {
        self.asked.take_answers()
    }

    /// Whether requests wait for a range.
    pub(crate) fn has_todo(&self) -> bool {
        self.asked.has_todo()
    }

    /// Whether every request was answered.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// How many ranges are under way, and how many of them do not wait for requests alone.
    pub(crate) fn under_way(&self) -> UnderWay {
        let active = self.ranges.values().filter(|range| !range.is_idle() || range.paused.is_none()).count();
        UnderWay { open: self.ranges.len(), active }
    }

    /// Bytes of a range that came.
    pub(crate) fn came(&self, id: RangeId) -> u64 {
        self.ranges.get(&id).map_or(0, |range| range.at - range.start)
    }

    /// No requests come any more. Returns the ranges that waited for them.
    pub(crate) fn close(&mut self) -> Vec<RangeId> {
        self.promises = Promises::default();
        let idle = self.ranges.iter_mut().filter(|(_, range)| range.is_idle());
        idle.map(|(id, range)| {
            range.is_ending = true;
            *id
        })
        .collect()
    }

    /// Ranges whose wait is over, and when the next one's is.
    pub(crate) fn overdue(&self, now: Instant) -> (Vec<RangeId>, Option<Instant>) {
        let paused = self.ranges.iter().filter(|(_, range)| range.paused.is_some());
        let times = paused.map(|(id, range)| (*id, Self::waits_until(range, self.moved, now)));
        let (over, waiting): (Vec<_>, Vec<_>) = times.partition(|(_, until)| *until <= now);
        (over.into_iter().map(|(id, _)| id).collect(), waiting.into_iter().map(|(_, until)| until).min())
    }
}
