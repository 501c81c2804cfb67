//! One contiguous range on its way between a source and host memory: which call comes next, and what its result means.
//! Lanes (with io_uring or blocking calls) and callers' threads share these rules.

use std::os::fd::{AsRawFd, RawFd};

use forebay_config::CachePolicy;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{DeviceRange, HostRange};

use super::refusal;
use crate::request::receipt::{Moved, Way};
use crate::runtime::sys;
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;
use crate::source::{CachedReads, Descriptors, Fd, MemoryWrite, call_error};
use crate::tuning::files::MIN_MAPPED_WRITE;
use crate::tuning::machine::MANY;
use crate::tuning::plan::CELL;

/// A range `start..start+len` of a source inside a window of host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Index in the batch of its entry, or of the first one.
    pub(crate) entry: u32,
    /// Number of entries: neighbours in the source.
    pub(crate) entries: u32,
    /// First wanted offset in the source.
    pub(crate) start: u64,
    /// Wanted bytes.
    pub(crate) len: usize,
    /// Address of a single entry's bytes on the device (or host, for the host engine).
    pub(crate) address: u64,
    /// Offset in the source that `host` stands for: at most `start`, lower when a read is aligned out.
    pub(crate) base: u64,
    /// Host memory of the window.
    pub(crate) host: *mut u8,
    /// Bytes of the window.
    pub(crate) window: usize,
    /// Bytes of the window that are done, from its start.
    pub(crate) done: usize,
    /// Bytes that the page cache had.
    pub(crate) cached: usize,
    /// Bytes from the start that the drive moved to or from the device's memory before the way changed.
    pub(crate) placed: usize,
    /// The way of the bytes that the page cache did not have.
    pub(crate) way: Way,
    /// `host` lies in the lane's registered memory.
    pub(crate) registered: bool,
    /// An error was reported for it.
    pub(crate) failed: bool,
    /// Other segments move the rest of an entry.
    pub(crate) is_part: bool,
    /// The segment's call in the ring reads only cached pages, and does not wait.
    pub(crate) asks_cache: bool,
    /// That call reads straight into the caller's host memory, not into the window.
    pub(crate) asks_in_place: bool,
    /// The errno by which the kernel refused to have the drive move it.
    pub(crate) refused: Option<i32>,
    /// Calls in a row that ended with ECANCELED.
    pub(crate) cancellations: u16,
}

/// The part of an entry that lies in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryShare {
    pub(crate) entry: u32,
    /// The first byte of the share, counted from the segment's first wanted byte.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The caller's address of that byte.
    pub(crate) address: u64,
    /// The first byte of the share, counted from the start of the entry.
    pub(crate) before: u64,
}

/// What follows a call.
#[derive(Debug)]
pub(crate) enum SegmentStep {
    /// No more calls: the bytes are there, or the source has no more.
    Done,
    /// Another kernel call for the rest.
    Again,
    /// The segment failed.
    Failed(Error),
}

impl Segment {
    /// A range of one entry that goes straight to or from memory at `address`: nothing is done yet.
    pub(crate) fn whole(start: u64, len: usize, address: u64) -> Self {
        Self {
            entry: 0,
            entries: 1,
            start,
            len,
            address,
            base: start,
            host: address as *mut u8,
            window: len,
            done: 0,
            cached: 0,
            placed: 0,
            way: Way::Cached,
            registered: false,
            failed: false,
            is_part: false,
            asks_cache: false,
            asks_in_place: false,
            refused: None,
            cancellations: 0,
        }
    }

    /// The segment with our memory at `host` as its window, which stands for the offsets `low..high`.
    pub(crate) fn in_window(self, (low, high): (u64, u64), host: *mut u8) -> Self {
        Self { base: low, host, window: (high - low) as usize, registered: true, ..self }
    }

    /// The wanted bytes in the window.
    pub(crate) fn wanted(&self) -> HostRange {
        HostRange::new(self.host.wrapping_add((self.start - self.base) as usize), self.len)
    }

    /// The wanted bytes in the caller's host memory.
    fn in_place(&self) -> HostRange {
        DeviceRange::new(self.address, self.len).as_host()
    }

    /// The parts of its entries in the first `upto` wanted bytes.
    pub(crate) fn shares(self, pieces: &[Piece], upto: usize) -> impl Iterator<Item = EntryShare> {
        let range = self.entry as usize..(self.entry + self.entries) as usize;
        let (start, end) = (self.start, self.start + upto as u64);
        (self.entry..).zip(&pieces[range]).filter_map(move |(entry, piece)| {
            let from = start.max(piece.offset);
            let to = end.min(piece.offset + piece.len as u64);
            let before = from - piece.offset;
            let len = to.checked_sub(from).filter(|len| *len > 0)? as usize;
            Some(EntryShare {
                entry,
                at: (from - start) as usize,
                len,
                address: piece.address + before,
                before,
            })
        })
    }

    /// Splits the segment: each entry becomes a segment at the same place of the window, through the page cache.
    pub(crate) fn alone(self, pieces: &[Piece]) -> impl Iterator<Item = Self> {
        self.shares(pieces, self.len).map(move |share| {
            let start = self.start + share.at as u64;
            let host = self.wanted().after(share.at).start;
            let EntryShare { entry, len, address, .. } = share;
            Self {
                entry,
                entries: 1,
                start,
                len,
                address,
                base: start,
                host,
                window: len,
                done: 0,
                cached: 0,
                way: Way::Buffered,
                ..self
            }
        })
    }

    /// Clears the bytes that were not read, so that earlier contents of the window do not show.
    pub(crate) fn clear_rest(&mut self) {
        let good = self.good();
        // SAFETY: the window has room for the wanted bytes.
        unsafe { self.wanted().after(good).bytes_mut().fill(0) };
    }

    /// Marks all of it as done through the page cache.
    pub(crate) fn complete_by_cache(&mut self) {
        self.fall_back();
        (self.done, self.cached) = (self.window, 0);
    }

    /// Wanted bytes that are there, from the first one on.
    pub(crate) fn good(&self) -> usize {
        let reached = self.base + self.done as u64;
        (reached.saturating_sub(self.start) as usize).min(self.len)
    }

    /// An error was reported for it. A read delivers nothing; bytes written are in the file.
    pub(crate) fn fail(&mut self, direction: Direction) {
        self.failed = true;
        if direction == Direction::Read {
            (self.done, self.cached, self.placed) = (0, 0, 0);
        }
    }

    /// Good bytes by the way that they took.
    pub(crate) fn moved(&self) -> Moved {
        let good = self.good();
        let (cached, placed) = (self.cached.min(good) as u64, self.placed.min(good) as u64);
        let rest = good as u64 - cached - placed;
        let mut moved = Moved::of(Way::Cached, cached);
        moved[Way::Drive] = placed;
        moved[self.way] += rest;
        moved
    }

    /// As [`Self::moved`], without the bytes between the segment's entries.
    pub(crate) fn moved_for(&self, pieces: &[Piece]) -> Moved {
        if self.entries == 1 {
            return self.moved();
        }
        let wanted: usize = self.shares(pieces, self.good()).map(|share| share.len).sum();
        self.moved().up_to(wanted as u64)
    }

    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.way, Way::Direct | Way::Drive)
    }

    fn is_complete(&self) -> bool {
        self.base + self.done as u64 >= self.start + self.len as u64
    }

    /// Moves the rest through the page cache instead of O_DIRECT, without the aligned-out edges. Done bytes stay done.
    fn fall_back(&mut self) {
        self.way = Way::Buffered;
        let skip = (self.start - self.base) as usize;
        self.done = self.done.max(skip);
        self.window = skip + self.len;
    }

    /// The descriptor for the segment's way.
    pub(crate) fn descriptor<'a>(&self, file: &'a Descriptors) -> &'a Fd {
        match &file.direct {
            Some((direct, _)) if self.is_direct() => direct,
            _ => &file.buffered,
        }
    }

    pub(crate) fn fd(&self, file: &Descriptors) -> RawFd {
        self.descriptor(file).as_raw_fd()
    }

    /// Copies bytes that the page cache has from a mapping. True if all are there.
    pub(crate) fn read_mapped(&mut self, file: &Descriptors, reads: &CachedReads) -> bool {
        // SAFETY: the window has room for the wanted bytes.
        let is_done = unsafe { file.read_mapped(reads, self.wanted(), self.start) };
        if is_done {
            (self.done, self.cached) = ((self.start - self.base) as usize + self.len, self.len);
        }
        is_done
    }

    /// Reads what the page cache has, without waiting, then chooses the way for the rest. True if all bytes are there.
    pub(crate) fn read_cached(
        &mut self,
        file: &Descriptors,
        align: u64,
        policy: CachePolicy,
        warmth: Warmth,
    ) -> bool {
        if self.len == 0 {
            self.done = (self.start - self.base) as usize;
            return true;
        }
        if file.is_memory {
            self.way = Way::Cached;
            self.fall_back_to_exact();
            return false;
        }
        let direct = self.may_be_direct(file, align, policy);
        let is_cold = || match warmth {
            Warmth::Warm => false,
            Warmth::Cold => true,
            Warmth::Mixed => !file.is_resident(self.start),
        };
        if direct && (policy == CachePolicy::Bypass || is_cold()) {
            self.way = Way::Direct;
            return false;
        }
        // SAFETY: the window has room for the wanted bytes.
        let got = unsafe { file.calls.read(file.buffered.as_raw_fd(), self.wanted(), self.start, true) };
        self.take_cached(got, file, align, policy)
    }

    /// Makes the first call one that asks the page cache, by the ring: for host memory without a copy.
    pub(crate) fn ask_cache(&mut self, is_host: bool) {
        self.asks_cache = true;
        self.asks_in_place = is_host && self.registered && self.entries == 1;
    }

    /// Whether the next call reads to or writes from the lane's registered memory.
    pub(crate) fn is_call_registered(&self) -> bool {
        self.registered && !self.asks_in_place
    }

    /// All of it is in the caller's host memory, out of the page cache.
    fn came_in_place(&mut self) {
        (self.base, self.host, self.window) = (self.start, self.address as *mut u8, self.len);
        (self.done, self.cached, self.registered) = (self.len, self.len, false);
    }

    /// Takes in the page cache's answer (bytes or a negative errno) and chooses the way for the rest. True if all bytes
    /// are there.
    pub(crate) fn take_cached(
        &mut self,
        got: isize,
        file: &Descriptors,
        align: u64,
        policy: CachePolicy,
    ) -> bool {
        self.asks_cache = false;
        let is_in_place = std::mem::take(&mut self.asks_in_place);
        if is_in_place && got == self.len as isize {
            self.came_in_place();
            return true;
        }
        // The window has none of a part that came to the caller's memory.
        let got = if is_in_place { got.min(0) } else { got };
        let skip = (self.start - self.base) as usize;
        self.cached = got.max(0) as usize;
        self.done = skip + self.cached;
        if self.cached == self.len {
            return true;
        }
        file.missed();
        let refuses = got == -(libc::EOPNOTSUPP as isize);
        if self.may_be_direct(file, align, policy) && !refuses {
            self.way = Way::Direct;
            self.done &= !(align as usize - 1);
            self.cached = self.done.saturating_sub(skip);
        } else {
            self.way = Way::Buffered;
            self.window = skip + self.len;
        }
        false
    }

    /// Whether a read of bytes that are not in the page cache leaves the buffered descriptor alone.
    pub(crate) fn is_direct_where_cold(&self, file: &Descriptors, align: u64, policy: CachePolicy) -> bool {
        self.len > 0 && !file.is_memory && self.may_be_direct(file, align, policy)
    }

    fn may_be_direct(&self, file: &Descriptors, align: u64, policy: CachePolicy) -> bool {
        file.direct.is_some() && policy != CachePolicy::Keep && self.is_aligned(file, align)
    }

    /// Reads warm bytes straight into host memory that is not aligned for O_DIRECT, so that only cold ones go through the
    /// window. True if all bytes are there.
    pub(crate) fn read_in_place(&mut self, file: &Descriptors, policy: CachePolicy) -> bool {
        let may = self.registered && self.entries == 1 && self.len > 0 && policy != CachePolicy::Bypass;
        if !may || !file.is_resident(self.start) {
            return false;
        }
        let target = self.in_place();
        // SAFETY: for the host engine `address` is the caller's memory, vouched for as long as the transfer runs.
        let got = unsafe { file.calls.read(file.buffered.as_raw_fd(), target, self.start, true) };
        if got != self.len as isize {
            file.missed();
            return false;
        }
        self.came_in_place();
        true
    }

    fn fall_back_to_exact(&mut self) {
        let skip = (self.start - self.base) as usize;
        self.done = skip;
        self.window = skip + self.len;
    }

    /// Chooses the way of a write.
    pub(crate) fn choose_write(&mut self, file: &Descriptors, align: u64, policy: CachePolicy) {
        let large = policy == CachePolicy::Bypass || self.len >= CELL;
        let direct = file.direct.is_some()
            && !file.is_memory
            && policy != CachePolicy::Keep
            && large
            && self.is_aligned(file, align);
        self.way = if direct { Way::Direct } else { Way::Cached };
    }

    /// Whether O_DIRECT can move the window as it is.
    fn is_aligned(&self, file: &Descriptors, align: u64) -> bool {
        let memory = file.direct.as_ref().map_or(1, |(_, alignment)| u64::from(alignment.memory.max(1)));
        self.base & (align - 1) == 0
            && self.window as u64 & (align - 1) == 0
            && (self.host as u64).is_multiple_of(memory)
    }

    /// Takes in the result of a kernel call: bytes, or a negative errno.
    pub(crate) fn advance(&mut self, direction: Direction, result: isize, align: u64) -> SegmentStep {
        let is_cancelled = result == -(libc::ECANCELED as isize);
        self.cancellations = if is_cancelled { self.cancellations + 1 } else { 0 };
        match (direction, result) {
            // A signal kept the kernel from starting a thread for the call. No call that has begun is cancelled.
            _ if is_cancelled && usize::from(self.cancellations) < MANY => SegmentStep::Again,
            (_, errno) if [libc::EINTR, libc::EAGAIN].contains(&(-errno as i32)) => SegmentStep::Again,
            (_, errno) if errno < 0 => self.refused(direction, -errno as i32),
            (Direction::Write, 0) => SegmentStep::Failed(Error::new(ErrorKind::Io, "the file took no bytes")),
            (Direction::Read, 0) => SegmentStep::Done,
            (_, bytes) => {
                self.done += bytes as usize;
                if self.is_complete() {
                    return SegmentStep::Done;
                }
                if self.is_direct() && self.done as u64 & (align - 1) != 0 {
                    // A short direct call: near the end of the file. The page cache has the rest.
                    self.placed = if self.way == Way::Drive { self.done } else { 0 };
                    self.fall_back();
                }
                SegmentStep::Again
            }
        }
    }

    fn refused(&mut self, direction: Direction, errno: i32) -> SegmentStep {
        if self.way == Way::Direct && matches!(errno, libc::EINVAL | libc::EOPNOTSUPP) {
            self.fall_back();
            return SegmentStep::Again;
        }
        if self.way == Way::Drive && refusal::is_of_the_way(errno) {
            self.refused = Some(errno);
            return SegmentStep::Failed(refusal::error(&refusal::of_errno(errno, direction)));
        }
        SegmentStep::Failed(call_error(errno, direction, self.base + self.done as u64))
    }

    /// Moves the rest by blocking calls on this thread.
    pub(crate) fn run_blocking(
        &mut self,
        direction: Direction,
        file: &Descriptors,
        align: u64,
    ) -> Result<()> {
        let mut was_direct = self.is_direct();
        if was_direct {
            file.check_direct()?;
        }
        loop {
            let result = self.call(direction, file);
            match self.advance(direction, result, align) {
                SegmentStep::Done => return Ok(()),
                SegmentStep::Again => {}
                SegmentStep::Failed(error) => return Err(error),
            }
            if was_direct && !self.is_direct() {
                // The rest uses the other descriptor, which may not have been checked.
                file.check()?;
                was_direct = false;
            }
        }
    }

    /// Memory and offset of the next kernel call.
    pub(crate) fn next_call(&self) -> (HostRange, u64) {
        if self.asks_cache {
            return (if self.asks_in_place { self.in_place() } else { self.wanted() }, self.start);
        }
        (HostRange::new(self.host, self.window).after(self.done), self.base + self.done as u64)
    }

    fn call(&self, direction: Direction, file: &Descriptors) -> isize {
        let (memory, offset) = self.next_call();
        // SAFETY: `done..window` of the window is valid memory of this segment alone.
        unsafe {
            match direction {
                Direction::Read => file.calls.read(self.fd(file), memory, offset, false),
                Direction::Write if file.is_memory && file.calls.may_map() => {
                    let how = (self.is_part, memory.len >= MIN_MAPPED_WRITE);
                    match file.write_memory(memory, offset, how) {
                        MemoryWrite::Done(written) => written as isize,
                        MemoryWrite::ByCalls(most) => {
                            file.calls.write(self.fd(file), memory.first(most), offset)
                        }
                        MemoryWrite::NoRoom(errno) => -(errno as isize),
                    }
                }
                Direction::Write => file.calls.write(self.fd(file), memory, offset),
            }
        }
    }
}

/// The granularity to which O_DIRECT reads of a source are rounded out, in bytes: at least a page, so that direct and
/// buffered pieces never share one.
pub(crate) fn granularity(file: Option<&Descriptors>) -> u64 {
    match file {
        Some(Descriptors { direct: Some((_, alignment)), .. }) => {
            u64::from(alignment.offset).max(sys::page())
        }
        _ => sys::page(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Host memory at an odd address, and the lane's window for it.
    #[test]
    fn warm_bytes_of_the_ring_go_to_host_memory_without_a_copy() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let file = crate::File::open(file.path()).expect("it opens");
        let Some(file) = file.descriptors() else { panic!("a file has a descriptor") };
        let (mut caller, mut window) = ([0u8; 101], [0u8; 8192]);
        let target = &raw mut caller[1];
        let laid_out = Segment::whole(4000, 100, target as u64).in_window((0, 8192), window.as_mut_ptr());
        let take = |segment: &mut Segment, got| segment.take_cached(got, file, 4096, CachePolicy::Keep);

        let mut segment = laid_out;
        segment.ask_cache(true);
        assert_eq!(segment.next_call(), (HostRange::new(target, 100), 4000));
        assert!(!segment.is_call_registered() && take(&mut segment, 100));
        // Nothing is left to copy: the bytes are where they belong.
        assert!(!segment.registered && segment.good() == 100 && segment.moved()[Way::Cached] == 100);

        // What is not all there is read through the window from its first byte on.
        for got in [40, 0, -(libc::EAGAIN as isize)] {
            let mut segment = laid_out;
            segment.ask_cache(true);
            assert!(!take(&mut segment, got) && segment.registered && segment.is_call_registered());
            assert_eq!(segment.good(), 0);
            assert_eq!(segment.next_call(), (HostRange::of_mut(&mut window[4000..4100]), 4000));
        }

        // A GPU's bytes are copied from there.
        let mut segment = laid_out;
        segment.ask_cache(false);
        assert_eq!(segment.next_call().0.start, window.as_mut_ptr().wrapping_add(4000));
        assert!(segment.is_call_registered() && take(&mut segment, 100) && segment.registered);
    }

    #[test]
    fn a_call_that_is_cancelled_again_and_again_fails() {
        let cancelled = -(libc::ECANCELED as isize);
        let mut segment = Segment::whole(0, 8192, 0);
        for _ in 1..MANY {
            assert!(matches!(segment.advance(Direction::Read, cancelled, 4096), SegmentStep::Again));
        }
        // Progress resets the count.
        assert!(matches!(segment.advance(Direction::Read, 4096, 4096), SegmentStep::Again));
        for _ in 1..MANY {
            assert!(matches!(segment.advance(Direction::Read, cancelled, 4096), SegmentStep::Again));
        }
        let last = segment.advance(Direction::Read, cancelled, 4096);
        assert!(matches!(last, SegmentStep::Failed(error) if error.kind() == ErrorKind::Cancelled));
    }
}
