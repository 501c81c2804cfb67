//! Requests that are not answered yet, and what of them no range asks for.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use forebay_error::{Error, Result};
use forebay_source::{Answer, HostRange, Request};

use crate::pace::deadline;

/// A request.
struct Asked {
    offset: u64,
    memory: HostRange,
    /// Bytes that did not come yet.
    left: u64,
    /// Parts of it in ranges under way.
    under_way: usize,
    error: Option<Error>,
    /// Since when calls for its bytes have failed, and how often.
    vain: Option<(Instant, u32)>,
    answer: Answer,
}

/// Bytes of a request that no range asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Todo {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) request: u64,
}

/// Requests of an object.
#[derive(Default)]
pub(crate) struct AskedRequests {
    all: HashMap<u64, Asked>,
    next: u64,
    /// By start and request: the end, and the turn.
    todo: BTreeMap<(u64, u64), (u64, i64)>,
    /// By turn: the oldest first.
    turns: BTreeMap<i64, (u64, u64)>,
    last_turn: i64,
    first_turn: i64,
    answers: Vec<(Answer, Result<usize>)>,
}

impl AskedRequests {
    /// A request of at least a byte, all of which lies in the object.
    pub(crate) fn add(&mut self, Request { offset, memory, .. }: Request, answer: Answer) -> u64 {
        self.next += 1;
        let left = memory.len as u64;
        let asked = Asked { offset, memory, left, under_way: 0, error: None, vain: None, answer };
        self.all.insert(self.next, asked);
        self.next
    }

    /// Answers one that is no request yet.
    pub(crate) fn answer(&mut self, answer: Answer, result: Result<usize>) {
        self.answers.push((answer, result));
    }

    /// Answers for callers to call when they hold no lock.
    pub(crate) fn take_answers(&mut self) -> Vec<(Answer, Result<usize>)> {
        std::mem::take(&mut self.answers)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn has_todo(&self) -> bool {
        !self.todo.is_empty()
    }

    /// Puts bytes behind all others, or before them where they were asked for already.
    pub(crate) fn put(&mut self, Todo { start, end, request }: Todo, is_first: bool) {
        let turn = if is_first { &mut self.first_turn } else { &mut self.last_turn };
        *turn += if is_first { -1 } else { 1 };
        self.turns.insert(*turn, (start, request));
        self.todo.insert((start, request), (end, *turn));
    }

    /// The bytes whose turn it is.
    pub(crate) fn oldest(&self) -> Option<Todo> {
        let (start, request) = *self.turns.first_key_value()?.1;
        Some(Todo { start, end: self.todo.get(&(start, request))?.0, request })
    }

    /// The first bytes at `from` or behind it.
    pub(crate) fn behind(&self, from: u64) -> Option<Todo> {
        let (&(start, request), &(end, _)) = self.todo.range((from, 0)..).next()?;
        Some(Todo { start, end, request })
    }

    /// The last bytes that begin before `until`.
    pub(crate) fn before(&self, until: u64) -> Option<Todo> {
        let (&(start, request), &(end, _)) = self.todo.range(..(until, 0)).next_back()?;
        Some(Todo { start, end, request })
    }

    /// Takes the first bytes of some, up to `until`.
    pub(crate) fn take(&mut self, Todo { start, end, request }: Todo, until: u64) -> Todo {
        if let Some((_, turn)) = self.todo.remove(&(start, request)) {
            self.turns.remove(&turn);
        }
        if until < end {
            // Others have their turn before the rest of a long one.
            self.put(Todo { start: until, end, request }, false);
        }
        Todo { start, end: end.min(until), request }
    }

    /// Memory of bytes of a request; `None`: it has failed, or ended.
    pub(crate) fn memory(&self, request: u64, start: u64, end: u64) -> Option<HostRange> {
        let asked = self.all.get(&request).filter(|asked| asked.error.is_none())?;
        Some(asked.memory.after((start - asked.offset) as usize).first((end - start) as usize))
    }

    /// A range asks for a part of it.
    pub(crate) fn begin(&mut self, request: u64) {
        if let Some(asked) = self.all.get_mut(&request) {
            asked.under_way += 1;
        }
    }

    /// Bytes came.
    pub(crate) fn came(&mut self, request: u64, bytes: u64) {
        let Some(asked) = self.all.get_mut(&request) else { return };
        asked.left = asked.left.saturating_sub(bytes);
        asked.vain = None;
    }

    /// A range does not ask for its part any more: all of it came, or the caller puts the rest back.
    pub(crate) fn end(&mut self, request: u64) {
        if let Some(asked) = self.all.get_mut(&request) {
            asked.under_way -= 1;
        }
        self.finish(request);
    }

    /// A call for bytes of it failed. Whether they may be asked for again; otherwise it fails.
    pub(crate) fn may_retry(&mut self, request: u64, error: &Error, now: Instant) -> bool {
        let Some(asked) = self.all.get_mut(&request) else { return false };
        let (since, times) = asked.vain.get_or_insert((now, 0));
        *times += 1;
        if now.saturating_duration_since(*since) < deadline() {
            return asked.error.is_none();
        }
        let error = error.clone().with("attempts", *times);
        self.fail(request, &error);
        false
    }

    /// It fails when nothing can arrive in its memory any more.
    pub(crate) fn fail(&mut self, request: u64, error: &Error) {
        let Some(asked) = self.all.get_mut(&request) else { return };
        asked.error.get_or_insert_with(|| error.clone());
        let bytes = (asked.offset, 0)..(asked.offset + asked.memory.len as u64, 0);
        let of_it: Vec<_> = self
            .todo
            .range(bytes)
            .filter(|((_, of), _)| *of == request)
            .map(|(key, (_, turn))| (*key, *turn))
            .collect();
        for (key, turn) in of_it {
            self.todo.remove(&key);
            self.turns.remove(&turn);
        }
        self.finish(request);
    }

    /// All fail.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.todo.clear();
        self.turns.clear();
        let all: Vec<_> = self.all.keys().copied().collect();
        for request in all {
            self.fail(request, error);
        }
    }

    fn finish(&mut self, request: u64) {
        let is_over = |asked: &Asked| asked.under_way == 0 && (asked.left == 0 || asked.error.is_some());
        if !self.all.get(&request).is_some_and(is_over) {
            return;
        }
        if let Some(Asked { answer, error, memory, .. }) = self.all.remove(&request) {
            self.answers.push((answer, error.map_or(Ok(memory.len), Err)));
        }
    }
}
