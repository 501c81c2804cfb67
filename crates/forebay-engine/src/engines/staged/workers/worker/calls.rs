//! The kernel's side of a lane: reads and writes by the ring, by blocking calls, or by a source without a descriptor.

use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::time::Instant;

use forebay_config::CachePolicy;
use forebay_error::{Error, Result};

use super::{Lane, LaneUnit};
use crate::engines::staged::job::Job;
use crate::io::ahead::ahead;
use crate::io::ring::{Ring, RingCompletion, RingFile, RingOperation};
use crate::io::segment::{Segment, SegmentStep};
use crate::io::wake::DueAnswer;
use crate::request::receipt::Way;
use crate::source::piece::Direction;
use crate::source::read_balance::ReadBy;
use crate::source::residency::{Warmth, is_counted_whole};
use crate::source::{CachedReads, Descriptors, Fd, Request, Requests};
use crate::tuning::lanes::DEPTH;
use crate::tuning::plan::SHORT_BATCH;

/// Host memory of this size that was not used yet gets its pages before a source fills it: small tensors, of which frameworks make
/// thousands. Frameworks ask for huge pages for larger ones. 5 000 tensors of 95 KB: 0.26 s of CPU, 0.4 s by a fault for each page.
const POPULATED: RangeInclusive<usize> = 32 << 10..=1 << 20;

impl Lane {
    pub(super) fn begin_read(&mut self, unit: usize) {
        let job = self.job(unit);
        if self.is_lost(unit, &job) {
            return;
        }
        let is_host = self.is_host;
        let by_ring = self.asks_by_ring(unit, &job);
        for index in 0..self.units[unit].segments.len() {
            match job.batch.file.descriptors() {
                None => self.ask(unit, index, &job),
                Some(file) if self.asks_server(unit, index, &job, file) => {
                    self.ask(unit, index, &job);
                }
                Some(file) if by_ring => {
                    self.units[unit].segments[index].ask_cache(is_host);
                    if let Some(ring) = &mut self.ring
                        && let Err(error) = engage(ring, &file.buffered, file.id, true)
                    {
                        self.fail(unit, index, error);
                        continue;
                    }
                    self.backlog.push_back((unit, index));
                    self.add_pending(unit, 1);
                }
                Some(file) => {
                    let segment = &mut self.units[unit].segments[index];
                    if is_host && job.warmth != Warmth::Cold && segment.read_in_place(file, job.cache) {
                        continue;
                    }
                    self.read(unit, index, &job, file);
                }
            }
        }
        if self.pending(unit) == 0 {
            self.loaded(unit);
        }
    }

    /// Whether the server of a mounted file is asked for a segment beside the kernel: not for what the page cache has as a whole, nor
    /// for many small pieces.
    fn asks_server(&self, unit: usize, index: usize, job: &Job, file: &Descriptors) -> bool {
        let Some(mount) = &job.mount else { return false };
        let segments = &self.units[unit].segments;
        let segment = &segments[index];
        // Of a range that the page cache has in part, a look by the kernel's calls would have it read ahead.
        let is_cached =
            || job.warmth != Warmth::Cold && is_counted_whole(file, segment.start, segment.len as u64);
        if segments.len() > 1 || segment.len == 0 || is_cached() {
            return false;
        }
        mount.asks_server(&job.completion)
    }

    /// The kernel reads what the server of a mounted file did not give.
    fn asked_in_vain(&mut self, unit: usize, index: usize, error: Error) {
        let job = self.job(unit);
        let (Some(mount), Some(file)) = (&job.mount, job.batch.file.descriptors()) else {
            return self.fail(unit, index, error);
        };
        mount.give_up(&error, &job.completion);
        // The program may have closed its descriptor since the server was asked.
        if let Err(error) = file.check() {
            return self.fail(unit, index, error);
        }
        let Segment { entry, entries, start, len, address, .. } = self.units[unit].segments[index];
        let range = (start, start + len as u64);
        let memory = self.units[unit].memory.host;
        self.units[unit].segments[index] = self.lay_out(&job, (entry, entries), range, address, memory);
        self.read(unit, index, &job, file);
    }

    /// Reads from the page cache on this thread, by the way that is faster now, or goes on otherwise.
    fn read(&mut self, unit: usize, index: usize, job: &Job, file: &Descriptors) {
        let segment = &mut self.units[unit].segments[index];
        let may_choose = job.warmth == Warmth::Warm && job.cache != CachePolicy::Bypass;
        let reads = file.cached_reads(segment.len).filter(|_| may_choose);
        let begun = Instant::now();
        let by_mapping = |reads: &&CachedReads| reads.balance.next() == ReadBy::Other;
        let is_mapped = reads.filter(by_mapping).is_some_and(|reads| segment.read_mapped(file, reads));
        if !is_mapped && !segment.read_cached(file, job.align, job.cache, job.warmth) {
            self.go_on(unit, index, job, file);
        }
        let segment = &self.units[unit].segments[index];
        if let Some(reads) = reads
            && segment.good() == segment.len
        {
            let way = if is_mapped { ReadBy::Other } else { ReadBy::Usual };
            reads.balance.learn(way, segment.len, begun.elapsed());
        }
    }

    /// Starts a work that the drive moves by itself.
    pub(super) fn begin_placed(&mut self, unit: usize, job: &Job) {
        let Some(file) = job.batch.file.descriptors() else { return };
        if self.is_lost(unit, job) {
            return;
        }
        for index in 0..self.units[unit].segments.len() {
            if self.units[unit].segments[index].len > 0 {
                self.go_on(unit, index, job, file);
            }
        }
        if self.pending(unit) == 0 {
            self.finish(unit);
        }
    }

    /// Fails a work whose file's descriptor the program has closed, before any byte is moved through that number.
    fn is_lost(&mut self, unit: usize, job: &Job) -> bool {
        let Some(file) = job.batch.file.descriptors() else { return false };
        let checked = file.check();
        checked.inspect_err(|error| self.fail_units(&[unit], error)).is_err()
    }

    /// Whether a pack asks the page cache by the ring: one system call for all its pieces, and a registered descriptor,
    /// whose reference count lanes do not fight over.
    fn asks_by_ring(&self, unit: usize, job: &Job) -> bool {
        self.ring.is_some()
            && job.warmth == Warmth::Warm
            && self.units[unit].segments.len() >= SHORT_BATCH
            && job.batch.file.descriptors().is_some_and(|file| !file.is_memory)
    }

    pub(super) fn begin_write(&mut self, unit: usize) {
        let job = self.job(unit);
        if self.is_lost(unit, &job) {
            return;
        }
        for index in 0..self.units[unit].segments.len() {
            let segment = &mut self.units[unit].segments[index];
            if segment.failed || segment.len == 0 {
                continue;
            }
            match job.batch.file.descriptors() {
                None => self.ask(unit, index, &job),
                Some(file) => {
                    segment.choose_write(file, job.align, job.cache);
                    self.go_on(unit, index, &job, file);
                }
            }
        }
        if self.pending(unit) == 0 {
            self.finish(unit);
        }
    }

    /// Makes the segment's next kernel call: by the ring if it may take long, at once otherwise.
    fn go_on(&mut self, unit: usize, index: usize, job: &Job, file: &Descriptors) {
        let segment = &mut self.units[unit].segments[index];
        let may_wait = !matches!(segment.way, Way::Cached | Way::Requested) && segment.done < segment.window;
        if may_wait && let Some(ring) = &mut self.ring {
            let is_lasting = job.plan.len() > 1 || job.batch.pieces.len() > 1;
            if let Err(error) = engage(ring, segment.descriptor(file), file.id, is_lasting) {
                return self.fail(unit, index, error);
            }
            self.backlog.push_back((unit, index));
            self.add_pending(unit, 1);
            return;
        }
        if let Err(error) = segment.run_blocking(job.batch.direction, file, job.align) {
            self.call_failed(unit, index, error);
        }
    }

    /// Hands a segment to a source without a descriptor, or to the server of a mounted file.
    fn ask(&mut self, unit: usize, index: usize, job: &Job) {
        let source: &dyn Requests = match (job.batch.file.requests(), &job.mount) {
            (Some(source), _) => source,
            (None, Some(mount)) => mount.requests(),
            (None, None) => return,
        };
        let segment = &mut self.units[unit].segments[index];
        if job.mount.is_some() && self.is_host && segment.entries == 1 {
            // A server's bytes need no alignment.
            *segment = Segment {
                entry: segment.entry,
                ..Segment::whole(segment.start, segment.len, segment.address)
            };
        }
        segment.way = Way::Requested;
        segment.done = (segment.start - segment.base) as usize;
        let (direction, offset, memory) = (job.batch.direction, segment.start, segment.wanted());
        if self.is_host && direction == Direction::Read && POPULATED.contains(&memory.len) {
            // SAFETY: the memory of a read, which nobody else uses until it has ended.
            unsafe { forebay_sys::populate(memory.start, memory.len) };
        }
        let request = Request { direction, offset, memory, ahead: ahead(&job.batch.pieces, segment) };
        self.add_pending(unit, 1);
        self.asked += 1;
        let due = DueAnswer::new(self.wake.clone(), user_data(unit, index));
        source.start(request, Box::new(move |result| due.give(result)));
    }

    pub(super) fn take_answers(&mut self) -> bool {
        if self.asked == 0 {
            return false;
        }
        self.wake.answers(&mut self.answers);
        if self.answers.is_empty() {
            return false;
        }
        let mut answers = std::mem::take(&mut self.answers);
        self.asked -= answers.len();
        for (user, result) in answers.drain(..) {
            let (unit, index) = from_user_data(user);
            match result {
                Ok(bytes) => {
                    self.came(unit, index, bytes);
                }
                Err(error) => self.asked_in_vain(unit, index, error),
            }
            self.answered(unit);
        }
        self.answers = answers;
        true
    }

    /// A source, or the server of a mounted file, gave this many bytes of a segment.
    fn came(&mut self, unit: usize, index: usize, bytes: usize) {
        let LaneUnit { segments, active, .. } = &mut self.units[unit];
        segments[index].done += bytes;
        if let Some(active) = active
            && let Some(mount) = &active.job.mount
        {
            mount.note_piece(&active.job.completion);
        }
    }

    /// Queues waiting segments as far as the ring has room, and starts them.
    pub(super) fn feed_ring(&mut self) {
        let Some(ring) = self.ring.as_mut().filter(|_| !self.backlog.is_empty()) else { return };
        let mut failed = Vec::new();
        let mut any = false;
        while ring.outstanding() < DEPTH
            && let Some((unit, index)) = self.backlog.pop_front()
        {
            let LaneUnit { segments, active, .. } = &self.units[unit];
            let (Some(active), segment) = (active, &segments[index]) else { continue };
            let Some(file) = active.job.batch.file.descriptors() else { continue };
            let (memory, offset) = segment.next_call();
            let operation = RingOperation {
                direction: active.job.batch.direction,
                on: RingFile { fd: segment.fd(file), file: file.id },
                memory,
                offset,
                user: user_data(unit, index),
                registered: segment.is_call_registered(),
                nowait: segment.asks_cache,
            };
            any = true;
            // SAFETY: the unit's memory and the job's file stay until the operation is harvested.
            if let Err(error) = unsafe { ring.queue(&operation) } {
                failed.push((unit, index, error));
            }
        }
        if any {
            ring.submit();
        }
        for (unit, index, error) in failed {
            self.call_failed(unit, index, error);
            self.answered(unit);
        }
    }

    pub(super) fn harvest(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        ring.poll();
        let mut completed = std::mem::take(&mut self.completed);
        ring.harvest(&mut completed);
        let any = !completed.is_empty();
        for RingCompletion { user, result } in completed.drain(..) {
            let (unit, index) = from_user_data(user);
            self.operation_done(unit, index, result);
        }
        self.completed = completed;
        any
    }

    fn operation_done(&mut self, unit: usize, index: usize, result: i32) {
        let job = self.job(unit);
        let Some(file) = job.batch.file.descriptors() else { return };
        let segment = &mut self.units[unit].segments[index];
        let (memory, offset) = segment.next_call();
        let result = file.calls.completed(job.batch.direction, memory, offset, result);
        if segment.asks_cache {
            if segment.take_cached(result as isize, file, job.align, job.cache) {
                self.answered(unit);
            } else {
                self.backlog.push_back((unit, index));
            }
            return;
        }
        match segment.advance(job.batch.direction, result as isize, job.align) {
            SegmentStep::Again if segment.done < segment.window => {
                self.backlog.push_back((unit, index));
                return;
            }
            SegmentStep::Failed(error) => self.call_failed(unit, index, error),
            SegmentStep::Done | SegmentStep::Again => {}
        }
        self.answered(unit);
    }

    fn pending(&self, unit: usize) -> usize {
        self.units[unit].active.as_ref().map_or(0, |active| active.pending)
    }

    fn add_pending(&mut self, unit: usize, more: usize) {
        if let Some(active) = &mut self.units[unit].active {
            active.pending += more;
        }
    }

    /// Counts a segment of the unit as answered.
    fn answered(&mut self, unit: usize) {
        let Some(active) = &mut self.units[unit].active else { return };
        active.pending -= 1;
        if active.pending > 0 {
            return;
        }
        match active.job.batch.direction {
            Direction::Read if active.job.mover.is_none() => self.loaded(unit),
            Direction::Read | Direction::Write => self.finish(unit),
        }
    }
}

/// Makes a descriptor ready for the ring, and checks that it still is of its file. The ring keeps files that are used more
/// than once.
fn engage(ring: &mut Ring, fd: &Fd, file: u64, is_lasting: bool) -> Result<()> {
    let on = RingFile { fd: fd.as_raw_fd(), file };
    if ring.has_file(on) {
        return Ok(());
    }
    if is_lasting {
        ring.register_file(on);
    }
    fd.check().inspect_err(|_| ring.forget_file(on))
}

fn user_data(unit: usize, index: usize) -> u64 {
    (unit as u64) << 32 | index as u64
}

fn from_user_data(user: u64) -> (usize, usize) {
    ((user >> 32) as usize, (user & 0xFFFF_FFFF) as usize)
}
