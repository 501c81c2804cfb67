//! Which offsets a worker touches, in which order.

use std::ops::Range;
use std::time::{Duration, Instant};

use forebay_gpu::pattern_word;

use crate::workload::job::IoSize;

/// How long a pass by time goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassTime {
    /// Not counted, before the rest.
    pub(crate) ramp: Duration,
    /// Counted, at most.
    pub(crate) time: Duration,
    /// The pass ends when its rate stays within this many percent.
    pub(crate) steady_percent: Option<f64>,
}

impl PassTime {
    /// All of it counts.
    pub(crate) const fn plain(time: Duration) -> Self {
        Self { ramp: Duration::ZERO, time, steady_percent: None }
    }

    /// When no more I/Os begin.
    pub(crate) fn end(self, now: Instant) -> Instant {
        now + self.ramp + self.time
    }
}

/// How long a pass goes.
#[derive(Clone, Debug)]
pub(crate) enum PassLength {
    /// Once over the data.
    Once,
    /// This long.
    For(PassTime),
    /// As many I/Os as another pass did, by job, worker and source.
    Counts(Vec<Vec<Vec<u64>>>),
}

/// One I/O to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoOp {
    /// File offset.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: usize,
    /// Whether it writes.
    pub(crate) write: bool,
}

/// The parameters of an [`IoPlan`].
#[derive(Clone, Debug)]
pub(crate) struct PlanSpec {
    /// The part of the file.
    pub(crate) part: Range<u64>,
    /// Bytes per I/O.
    pub(crate) io: IoSize,
    /// Whether offsets are random.
    pub(crate) random: bool,
    /// Random offsets are multiples of this.
    pub(crate) align: u64,
    /// Whether I/Os write.
    pub(crate) write: bool,
    /// Percent of reads where both are mixed.
    pub(crate) mix: Option<u8>,
    /// Seed of this worker.
    pub(crate) seed: u64,
}

/// A worker's I/Os, one by one; the same spec gives the same I/Os.
#[derive(Clone, Debug)]
pub(crate) struct IoPlan {
    spec: PlanSpec,
    position: u64,
    index: u64,
    draws: u64,
    remaining: Option<u64>,
    deadline: Option<Instant>,
}

impl IoPlan {
    /// Once over the part.
    pub(crate) fn once(spec: PlanSpec) -> Self {
        let remaining =
            if spec.random { Some(((spec.part.end - spec.part.start) / spec.io.max).max(1)) } else { None };
        Self { position: spec.part.start, index: 0, draws: 0, remaining, deadline: None, spec }
    }

    /// Over and over until `deadline`.
    pub(crate) fn until(spec: PlanSpec, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), remaining: None, ..Self::once(spec) }
    }

    /// Exactly this many I/Os.
    pub(crate) fn count(spec: PlanSpec, ops: u64) -> Self {
        Self { remaining: Some(ops), ..Self::once(spec) }
    }

    fn draw(&mut self) -> u64 {
        self.draws += 1;
        pattern_word(self.spec.seed, self.draws << 3)
    }

    /// The next I/O, or `None` at the end. `now` is compared to the deadline: when the worker's last I/O ended, so that no I/O asks the
    /// clock for it. A worker that has several in flight may begin some after the deadline, until one of them ends.
    pub(crate) fn next(&mut self, now: Instant) -> Option<IoOp> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return None;
        }
        if let Some(remaining) = &mut self.remaining {
            *remaining = remaining.checked_sub(1)?;
        }
        let part = self.spec.part.clone();
        if part.is_empty() {
            return None;
        }
        let write = match self.spec.mix {
            Some(reads) => self.draw() % 100 >= u64::from(reads),
            None => self.spec.write,
        };
        if self.spec.random {
            let which = if self.spec.io.is_fixed() { 0 } else { self.draw() };
            let len = self.spec.io.nth(which).min(part.end - part.start);
            let slots = (part.end - part.start - len) / self.spec.align + 1;
            let offset = part.start + self.draw() % slots * self.spec.align;
            return Some(IoOp { offset, len: len as usize, write });
        }
        if self.position >= part.end {
            if self.deadline.is_none() && self.remaining.is_none() {
                return None;
            }
            self.position = part.start;
        }
        let len = self.spec.io.nth(self.index).min(part.end - self.position);
        self.index += 1;
        let op = IoOp { offset: self.position, len: len as usize, write };
        self.position += len;
        Some(op)
    }
}

/// Worker `index` of `count`'s part of `range`, cut at multiples of `unit`.
pub(crate) fn part(range: &Range<u64>, unit: u64, index: usize, count: usize) -> Range<u64> {
    let units = (range.end - range.start).div_ceil(unit);
    let cut = |index: usize| (range.start + units * index as u64 / count as u64 * unit).min(range.end);
    cut(index)..cut(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(part: Range<u64>, io: IoSize, random: bool) -> PlanSpec {
        PlanSpec { part, io, random, align: 4096, write: false, mix: None, seed: 3 }
    }

    fn all(mut plan: IoPlan) -> Vec<IoOp> {
        let now = Instant::now();
        std::iter::from_fn(|| plan.next(now)).collect()
    }

    #[test]
    fn once_over_covers_every_byte_once() {
        for (end, io) in
            [(100_000, IoSize::fixed(4096)), (99_999, IoSize { min: 4096, max: 16384, step: 4096 })]
        {
            let mut next = 5;
            for op in all(IoPlan::once(spec(5..end, io, false))) {
                assert_eq!(op.offset, next);
                next += op.len as u64;
            }
            assert_eq!(next, end);
        }
    }

    #[test]
    fn random_stays_inside_and_repeats_with_its_seed() {
        let io = IoSize { min: 4096, max: 65536, step: 4096 };
        let plan = IoPlan::once(spec(8192..1 << 20, io, true));
        let ops = all(plan.clone());
        assert_eq!(ops, all(plan));
        assert_eq!(ops.len(), 15);
        for op in ops {
            assert!(
                op.offset >= 8192 && op.offset + op.len as u64 <= 1 << 20 && op.offset % 4096 == 0,
                "{op:?}"
            );
        }
    }

    #[test]
    fn none_begins_at_the_deadline() {
        let deadline = Instant::now();
        let mut plan = IoPlan::until(spec(0..8192, IoSize::fixed(4096), false), deadline);
        let before = deadline.checked_sub(std::time::Duration::from_nanos(1)).unwrap();
        assert!((0..5).all(|_| plan.next(before).is_some()), "over and over");
        assert!(plan.next(deadline).is_none());
    }

    #[test]
    fn a_count_wraps() {
        assert_eq!(all(IoPlan::count(spec(0..8192, IoSize::fixed(4096), false), 5)).len(), 5);
    }

    #[test]
    fn parts_tile_the_range() {
        for (len, count) in [(10 << 20, 3), (5 << 20, 8), (12345, 2)] {
            let mut next = 7;
            for index in 0..count {
                let part = part(&(7..7 + len), 1 << 20, index, count);
                assert_eq!(part.start, next.min(7 + len));
                next = part.end;
            }
            assert_eq!(next, 7 + len);
        }
    }

    #[test]
    fn a_mix_is_about_what_was_asked() {
        let mut spec = spec(0..1 << 30, IoSize::fixed(4096), true);
        spec.mix = Some(30);
        let ops = all(IoPlan::count(spec, 10_000));
        let reads = ops.iter().filter(|op| !op.write).count();
        assert!((2800..3200).contains(&reads), "{reads}");
    }
}
