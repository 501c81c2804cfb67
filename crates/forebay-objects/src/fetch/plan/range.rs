//! One range under way.

use std::collections::VecDeque;
use std::time::Instant;

/// Bytes of a range that are asked for, or thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `None`: they lie between two requests.
    pub(crate) request: Option<u64>,
}

/// A range under way. What is in no part was promised: requests for it may still come.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The next byte that comes.
    pub(crate) at: u64,
    /// From there on, in order.
    pub(crate) parts: VecDeque<Part>,
    /// Since when it has waited for a request.
    pub(crate) paused: Option<Instant>,
    /// Gets no more parts.
    pub(crate) is_ending: bool,
}

impl Range {
    /// The first bytes in no part, at `from` or behind it, and before `to`.
    pub(crate) fn hole(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        if self.is_ending || to <= self.at || self.end <= from {
            return None;
        }
        let mut start = self.at.max(from);
        let mut index = self.parts.partition_point(|part| part.end <= start);
        while let Some(part) = self.parts.get(index)
            && part.start <= start
            && start < to
        {
            start = part.end;
            index += 1;
        }
        let end = self.parts.get(index).map_or(self.end, |part| part.start).min(self.end);
        (start < to && start < end).then_some((start, end))
    }

    /// Puts a part into a hole. Whether the range goes on with it.
    pub(crate) fn attach(&mut self, part: Part) -> bool {
        let index = self.parts.partition_point(|other| other.start < part.start);
        self.parts.insert(index, part);
        part.start == self.at && self.paused.is_some()
    }

    /// Whether it has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.at < self.end
    }
}
