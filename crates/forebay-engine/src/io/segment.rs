//! One contiguous range on its way between a source and host memory: what the kernel was asked, what came, what is
//! next. Lanes (with io_uring or blocking calls) and callers' threads share this logic.

use std::os::fd::{AsRawFd, RawFd};

use forebay_config::CachePolicy;
use forebay_error::{Error, ErrorKind, Result};

use super::refusal;
use crate::request::receipt::Moved;
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;
use crate::source::{Descriptors, Fd, Fill, Source};

/// Aligned writes of at least this many bytes go by O_DIRECT under the `auto` policy; smaller ones are cheaper and
/// soon durable enough through the page cache.
const DIRECT_WRITE_LEAST: usize = 64 << 10;

/// Writes to memory file systems of at least this many bytes go through a mapping: `pwrite` lets one thread write to
/// a file at a time, a mapping all lanes.
const MAPPED_WRITE_LEAST: usize = 128 << 10;

/// How the bytes of a segment travel, for the receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Cached,
    Direct,
    Buffered,
    Requested,
    /// By the drive, to or from the device's own memory.
    Placed,
}

/// A range `start..start+len` of a source inside a window of host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Index of the entry in its batch; of the first one, where it has several.
    pub(crate) entry: u32,
    /// How many entries it has: neighbours in the source.
    pub(crate) entries: u32,
    /// First wanted offset in the source.
    pub(crate) start: u64,
    /// Wanted bytes.
    pub(crate) len: usize,
    /// Where the bytes of a single entry go to or come from on the device (or host, for the host engine).
    pub(crate) address: u64,
    /// Offset in the source that `host` stands for: at most `start`, lower when a read is aligned out.
    pub(crate) base: u64,
    /// Host memory of the window.
    pub(crate) host: *mut u8,
    /// Bytes of the window that are to be moved.
    pub(crate) window: usize,
    /// Bytes of the window that are done, from its start.
    pub(crate) done: usize,
    /// Bytes that the page cache had.
    pub(crate) cached: usize,
    /// Bytes from the start that the drive moved to or from the device's memory before the way changed.
    pub(crate) placed: usize,
    /// The way of the bytes that the page cache had not.
    pub(crate) way: Way,
    /// `host` lies in the lane's registered memory.
    pub(crate) registered: bool,
    /// An error was reported for it.
    pub(crate) failed: bool,
    /// Its call in the ring asks the page cache without waiting.
    pub(crate) asks_cache: bool,
    /// The errno by which the kernel refused to have the drive move it.
    pub(crate) refused: Option<i32>,
}

/// What a segment has of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) entry: u32,
    /// Its first byte, counted from the segment's first wanted one.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The caller's address of that byte.
    pub(crate) address: u64,
    /// The same, counted from the start of the entry.
    pub(crate) before: u64,
}

/// What a segment needs next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Nothing: its bytes are there, or the source has no more.
    Done,
    /// Another kernel call for the rest.
    Again,
    /// It failed.
    Failed(Error),
}

impl Segment {
    /// The host address of the first wanted byte.
    pub(crate) fn wanted(&self) -> *mut u8 {
        self.host.wrapping_add((self.start - self.base) as usize)
    }

    /// What the entries have of its first `upto` wanted bytes.
    pub(crate) fn shares(self, pieces: &[Piece], upto: usize) -> impl Iterator<Item = Share> {
        let range = self.entry as usize..(self.entry + self.entries) as usize;
        let (start, end) = (self.start, self.start + upto as u64);
        (self.entry..).zip(&pieces[range]).filter_map(move |(entry, piece)| {
            let from = start.max(piece.offset);
            let to = end.min(piece.offset + piece.len as u64);
            let before = from - piece.offset;
            let len = to.checked_sub(from).filter(|len| *len > 0)? as usize;
            Some(Share { entry, at: (from - start) as usize, len, address: piece.address + before, before })
        })
    }

    /// Its entries as segments of their own, in the same place of the window: through the page cache.
    pub(crate) fn alone(self, pieces: &[Piece]) -> impl Iterator<Item = Self> {
        self.shares(pieces, self.len).map(move |share| {
            let start = self.start + share.at as u64;
            let host = self.wanted().wrapping_add(share.at);
            let Share { entry, len, address, .. } = share;
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

    /// What was not read becomes zeros, not what was in the window before. Nothing of the file is in it then.
    pub(crate) fn clear_rest(&mut self) {
        let good = self.good();
        // SAFETY: the window has room for the wanted bytes.
        unsafe { std::ptr::write_bytes(self.wanted().wrapping_add(good), 0, self.len - good) };
    }

    /// All of it was dealt with through the page cache.
    pub(crate) fn complete_by_cache(&mut self) {
        self.fall_back();
        (self.done, self.cached) = (self.window, 0);
    }

    /// Wanted bytes that are there, from the first one on.
    pub(crate) fn good(&self) -> usize {
        if self.failed {
            return 0;
        }
        let reached = self.base + self.done as u64;
        (reached.saturating_sub(self.start) as usize).min(self.len)
    }

    /// The way each good byte took.
    pub(crate) fn moved(&self) -> Moved {
        let good = self.good();
        let (cached, placed) = (self.cached.min(good) as u64, self.placed.min(good) as u64);
        let rest = good as u64 - cached - placed;
        let mut moved = Moved { cached, placed, ..Moved::default() };
        match self.way {
            Way::Cached => moved.cached += rest,
            Way::Direct => moved.direct = rest,
            Way::Buffered => moved.buffered = rest,
            Way::Requested => moved.requested = rest,
            Way::Placed => moved.placed += rest,
        }
        moved
    }

    /// The same, without what lies between its entries.
    pub(crate) fn moved_for(&self, pieces: &[Piece]) -> Moved {
        let mut moved = self.moved();
        if self.entries > 1 {
            let wanted: usize = self.shares(pieces, self.good()).map(|share| share.len).sum();
            let mut between = moved.total().saturating_sub(wanted as u64);
            for bytes in [&mut moved.direct, &mut moved.buffered, &mut moved.cached, &mut moved.requested] {
                let less = between.min(*bytes);
                *bytes -= less;
                between -= less;
            }
        }
        moved
    }

    fn is_direct(&self) -> bool {
        matches!(self.way, Way::Direct | Way::Placed)
    }

    fn is_complete(&self) -> bool {
        self.base + self.done as u64 >= self.start + self.len as u64
    }

    /// Leaves O_DIRECT: the rest goes through the page cache, without the aligned-out edges. What is done stays done.
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

    /// Takes what the page cache has without waiting, then chooses the way for the rest. True if all bytes are there.
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
        let got =
            unsafe { file.calls.read(file.buffered.as_raw_fd(), self.wanted(), self.len, self.start, true) };
        self.take_cached(got, file, align, policy)
    }

    /// The first call of this segment asks the page cache, by the ring.
    pub(crate) fn ask_cache(&mut self) {
        self.asks_cache = true;
    }

    /// Takes in what the page cache gave (bytes or a negative errno) and chooses the way for the rest. True if all
    /// bytes are there.
    pub(crate) fn take_cached(
        &mut self,
        got: isize,
        file: &Descriptors,
        align: u64,
        policy: CachePolicy,
    ) -> bool {
        let skip = (self.start - self.base) as usize;
        self.asks_cache = false;
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

    fn may_be_direct(&self, file: &Descriptors, align: u64, policy: CachePolicy) -> bool {
        file.direct.is_some() && policy != CachePolicy::Keep && self.is_aligned(file, align)
    }

    /// Host memory too unaligned for O_DIRECT: takes warm bytes straight into it, so that only cold ones go through
    /// the window. True if all bytes are there.
    pub(crate) fn read_in_place(&mut self, file: &Descriptors, policy: CachePolicy) -> bool {
        let may = self.registered && self.entries == 1 && self.len > 0 && policy != CachePolicy::Bypass;
        if !may || !file.is_resident(self.start) {
            return false;
        }
        let target = self.address as *mut u8;
        // SAFETY: for the host engine `address` is the caller's memory, vouched for as long as the transfer runs.
        let got = unsafe { file.calls.read(file.buffered.as_raw_fd(), target, self.len, self.start, true) };
        if got != self.len as isize {
            file.missed();
            return false;
        }
        (self.base, self.host, self.window) = (self.start, target, self.len);
        (self.done, self.cached, self.registered) = (self.len, self.len, false);
        true
    }

    fn fall_back_to_exact(&mut self) {
        let skip = (self.start - self.base) as usize;
        self.done = skip;
        self.window = skip + self.len;
    }

    /// Chooses the way of a write whose bytes are in the window.
    pub(crate) fn choose_write(&mut self, file: &Descriptors, align: u64, policy: CachePolicy) {
        let large = policy == CachePolicy::Bypass || self.len >= DIRECT_WRITE_LEAST;
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
    pub(crate) fn advance(&mut self, direction: Direction, result: isize, align: u64) -> Next {
        match (direction, result) {
            // ECANCELED: a signal kept the kernel from starting a thread for it. Nobody cancels what the kernel has begun.
            (_, errno) if [libc::EINTR, libc::EAGAIN, libc::ECANCELED].contains(&(-errno as i32)) => {
                Next::Again
            }
            (_, errno) if errno < 0 => self.refused(direction, -errno as i32),
            (Direction::Write, 0) => Next::Failed(Error::new(ErrorKind::Io, "the file took no bytes")),
            (Direction::Read, 0) => Next::Done,
            (_, bytes) => {
                self.done += bytes as usize;
                if self.is_complete() {
                    return Next::Done;
                }
                if self.is_direct() && self.done as u64 & (align - 1) != 0 {
                    // A short direct call: near the end of the file. The page cache knows the rest.
                    self.placed = if self.way == Way::Placed { self.done } else { 0 };
                    self.fall_back();
                }
                Next::Again
            }
        }
    }

    fn refused(&mut self, direction: Direction, errno: i32) -> Next {
        if self.way == Way::Direct && matches!(errno, libc::EINVAL | libc::EOPNOTSUPP) {
            self.fall_back();
            return Next::Again;
        }
        if self.way == Way::Placed && refusal::is_of_the_way(errno) {
            self.refused = Some(errno);
            return Next::Failed(refusal::error(&refusal::of_errno(errno, direction)));
        }
        let doing = match direction {
            Direction::Read => "cannot read",
            Direction::Write => "cannot write",
        };
        let error = Error::from_errno(errno, doing).with("offset", self.base + self.done as u64);
        Next::Failed(match errno {
            libc::ENOSPC => error.hint("free some space (df -h) or write elsewhere"),
            libc::EDQUOT => error.hint("the disk quota is used up (quota -s)"),
            libc::EFBIG => error.hint("the file would pass the limit of its size (ulimit -f)"),
            libc::EIO => error.hint("the storage reports an error: see dmesg"),
            libc::EBADF => error.hint("open the file for this direction"),
            _ => error,
        })
    }

    /// The rest by blocking calls on this thread.
    pub(crate) fn run_blocking(
        &mut self,
        direction: Direction,
        file: &Descriptors,
        align: u64,
    ) -> Result<()> {
        if self.is_direct() {
            file.check_direct()?;
        }
        loop {
            let result = self.call(direction, file);
            match self.advance(direction, result, align) {
                Next::Done => return Ok(()),
                Next::Again => {}
                Next::Failed(error) => return Err(error),
            }
        }
    }

    /// Memory, length and offset of the next kernel call.
    pub(crate) fn next_call(&self) -> (*mut u8, usize, u64) {
        if self.asks_cache {
            return (self.wanted(), self.len, self.start);
        }
        (self.host.wrapping_add(self.done), self.window - self.done, self.base + self.done as u64)
    }

    fn call(&self, direction: Direction, file: &Descriptors) -> isize {
        let (buffer, left, offset) = self.next_call();
        // SAFETY: `done..window` of the window is valid memory of this segment alone.
        unsafe {
            match direction {
                Direction::Read => file.calls.read(self.fd(file), buffer, left, offset, false),
                Direction::Write
                    if file.is_memory && (left >= MAPPED_WRITE_LEAST || file.mapping.is_making_room()) =>
                {
                    match file.write_mapped(buffer, left, offset) {
                        refused if refused <= 0 => file.calls.write(self.fd(file), buffer, left, offset),
                        written => written,
                    }
                }
                Direction::Write => file.calls.write(self.fd(file), buffer, left, offset),
            }
        }
    }
}

/// The granularity to which O_DIRECT reads of a source are rounded out, in bytes: at least a page, so that direct and
/// buffered pieces never share one.
pub(crate) fn granularity(source: &dyn Source) -> u64 {
    const PAGE: u64 = 4096;
    match source.fill() {
        Fill::Descriptor(Descriptors { direct: Some((_, alignment)), .. }) => {
            u64::from(alignment.offset).max(PAGE)
        }
        _ => PAGE,
    }
}
