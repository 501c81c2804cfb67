//! Allocates pages of memory files ahead of the lanes that write to them.
//!
//! Lanes that write new pages through a mapping allocate them in page faults, and spend most of their time on the kernel's
//! locks. `fallocate` makes pages faster than all of them (it does not clear pages), but holds the inode's lock, for which
//! others spin. So one lane at a time calls it, a step ahead of the writes. Lanes that need pages meanwhile sleep here; the
//! others go on copying into existing pages. Only pages that a job writes are allocated: holes stay holes, and a file grows
//! no further than its bytes.
//!
//! A job's pages are allocated in the order of the file, and a part of an entry is written when all before it are there. So
//! what a full file system takes has no gap, and the file ends with it.

use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use rustix::fs::FallocateFlags;

use super::mapping::touch;
use super::ranges::Ranges;
use crate::runtime::lock;
use crate::runtime::sys::{self, page};
use crate::source::piece::Piece;
use crate::tuning::files::{ALLOCATION_STEP, FRESH, INTERRUPTIONS};

/// The state of a file's pages.
#[derive(Debug, Default)]
pub(crate) struct Preallocation {
    state: Mutex<AllocationState>,
    served: Condvar,
}

#[derive(Debug, Default)]
struct AllocationState {
    jobs: Vec<WriteJob>,
    /// Pages that exist, as long as there are jobs.
    made: Ranges,
    /// Pages that threads wait for.
    needs: Vec<SpaceNeed>,
    /// The last number of a job or need.
    count: u64,
    /// A thread allocates.
    is_busy: bool,
    /// Space is short: a step was halved so often.
    halvings: u32,
    /// The file system does not allocate: pages come as they are written.
    is_refused: bool,
    /// When the file's time of change was set last.
    touched: Option<Instant>,
    /// Threads that write through the mapping.
    writers: usize,
}

/// Pages that a job will write, each range of them in order.
#[derive(Debug)]
struct WriteJob {
    number: u64,
    pages: Ranges,
    /// Those for which there is no room, up to the end of their range: it is not tried again, so that no gap comes before
    /// bytes of this job.
    without_room: Ranges,
    /// Why.
    errno: i32,
}

/// Pages that a thread is about to write.
#[derive(Clone, Copy, Debug)]
struct SpaceNeed {
    number: u64,
    first: u64,
    last: u64,
    /// Its bytes.
    start: u64,
    end: u64,
    /// The file must reach its end: it is written through a mapping.
    grows: bool,
    /// Of no job: its pages were made.
    has_pages: bool,
}

/// The next step of a thread that allocates.
enum AllocationStep {
    Make {
        first: u64,
        last: u64,
    },
    /// The pages of a need of no job.
    MakeAlone(SpaceNeed),
    Grow {
        end: u64,
    },
    Serve(u64),
}

/// What there is for a write.
#[derive(Debug)]
pub(super) enum Room<'a> {
    /// It may write through the mapping, up to this offset.
    Mapped(MappedWriter<'a>, u64),
    /// It may write by calls, up to this offset: the kernel says how much of that is possible.
    ByCalls(u64),
    /// None: this errno.
    None(i32),
}

/// As long as this lives, pages are allocated ahead of a job's writes.
#[derive(Debug)]
pub(crate) struct WriteIntent {
    allocation: Arc<Preallocation>,
    number: u64,
}

impl Drop for WriteIntent {
    fn drop(&mut self) {
        let mut state = lock(&self.allocation.state);
        state.jobs.retain(|job| job.number != self.number);
        if state.jobs.is_empty() {
            // Somebody may punch out these pages before the next job begins.
            (state.made, state.halvings) = (Ranges::default(), 0);
        }
    }
}

/// One thread that writes through the mapping.
#[derive(Debug)]
pub(super) struct MappedWriter<'a> {
    allocation: &'a Preallocation,
    fd: RawFd,
}

impl Drop for MappedWriter<'_> {
    /// The last one sets the time of change once more: others would have to wait for the thread that allocates.
    fn drop(&mut self) {
        let mut state = lock(&self.allocation.state);
        state.writers -= 1;
        if state.writers == 0 {
            touch(self.fd);
            state.touched = Some(Instant::now());
        }
    }
}

impl Preallocation {
    /// A job is about to write these pieces.
    pub(super) fn intend(self: &Arc<Self>, pieces: &[Piece]) -> WriteIntent {
        let pages = Ranges::of(pieces.iter().filter(|piece| piece.len > 0).map(pages_of));
        let mut state = lock(&self.state);
        state.count += 1;
        let number = state.count;
        state.jobs.push(WriteJob { number, pages, without_room: Ranges::default(), errno: 0 });
        WriteIntent { allocation: self.clone(), number }
    }

    /// Announces a write of `start..end`. Waits until the pages before it in its job are there, and its own as far as there
    /// is room. If it `maps`, also until the file is long enough, and shows a fresh time of change.
    pub(super) fn enter(&self, fd: RawFd, (start, end): (u64, u64), maps: bool) -> Room<'_> {
        let mut state = lock(&self.state);
        state.count += 1;
        let (number, first, last) = (state.count, start / page(), end.div_ceil(page()));
        let need = SpaceNeed { number, first, last, start, end, grows: maps, has_pages: false };
        state.writers += usize::from(maps);
        let writer = maps.then(|| MappedWriter { allocation: self, fd });
        if !state.is_met(&need, fd) {
            state.needs.push(need);
        }
        while state.waits(need.number) {
            if state.is_busy {
                state = self.served.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state.is_busy = true;
                drop(state);
                self.serve(fd);
                state = lock(&self.state);
            }
        }
        let (reach, errno) = state.reach(&need);
        drop(state);
        match writer {
            _ if reach <= start => Room::None(errno),
            Some(writer) if sys::length(fd).is_ok_and(|len| reach <= len) => Room::Mapped(writer, reach),
            // A file that could not be made longer is left to `pwrite`, which says why.
            _ => Room::ByCalls(reach),
        }
    }

    /// Allocates until no thread waits. Threads add their needs before.
    fn serve(&self, fd: RawFd) {
        let mut state = lock(&self.state);
        loop {
            if !state.is_fresh() {
                touch(fd);
                state.touched = Some(Instant::now());
            }
            let Some(next) = state.next(fd) else { break };
            match next {
                AllocationStep::Serve(number) => {
                    state.needs.retain(|need| need.number != number);
                    self.served.notify_all();
                }
                AllocationStep::Make { first, last } => {
                    drop(state);
                    let made = make(fd, first, last);
                    state = lock(&self.state);
                    state.learn(first, last, made);
                }
                AllocationStep::MakeAlone(need) => {
                    drop(state);
                    let made = make(fd, need.first, need.last);
                    state = lock(&self.state);
                    state.learn_alone(need.number, made);
                    self.served.notify_all();
                }
                AllocationStep::Grow { end } => {
                    // Only for the last byte; `ftruncate` could shrink a file that another process has just made longer.
                    if sys::allocate(fd, FallocateFlags::empty(), end - 1, 1).is_err() {
                        let beyond = |need: &SpaceNeed| need.end >= end;
                        state.needs.retain(|need| !beyond(need));
                        self.served.notify_all();
                    }
                }
            }
        }
        // No thread waits: needs are added under the same lock.
        state.is_busy = false;
    }

    /// Whether a thread allocates now, and holds the inode's lock.
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.state).is_busy
    }
}

impl AllocationState {
    fn waits(&self, number: u64) -> bool {
        self.needs.iter().any(|need| need.number == number)
    }

    fn is_fresh(&self) -> bool {
        self.touched.is_some_and(|at| at.elapsed() < FRESH)
    }

    fn is_met(&self, need: &SpaceNeed, fd: RawFd) -> bool {
        let is_long_enough = || self.is_fresh() && sys::length(fd).is_ok_and(|len| need.end <= len);
        self.lacks(need).is_none() && (!need.grows || is_long_enough())
    }

    /// The next pages to make for a need, and how far its job goes from there.
    fn lacks(&self, need: &SpaceNeed) -> Option<(u64, u64)> {
        if self.is_refused {
            return None;
        }
        self.jobs.iter().find_map(|job| {
            let (start, stop) = job.range_of(need.first)?;
            Some((self.made.first_gap(start, need.last.min(stop))?, stop))
        })
    }

    /// How far the bytes of a need have room, and why no further.
    fn reach(&self, need: &SpaceNeed) -> (u64, i32) {
        let stop = |job: &WriteJob| Some((job.range_of(need.first)?.1, job.errno));
        match self.jobs.iter().filter_map(stop).min().filter(|(stop, _)| *stop < need.last) {
            Some((stop, errno)) => ((stop * page()).max(need.start), errno),
            None => (need.end, 0),
        }
    }

    fn next(&self, fd: RawFd) -> Option<AllocationStep> {
        let need = self.needs.first()?;
        if let Some((first, stop)) = self.lacks(need) {
            let step = (ALLOCATION_STEP / page()) >> self.halvings;
            return Some(AllocationStep::Make { first, last: (first + step).min(stop) });
        }
        let (end, _) = self.reach(need);
        let is_short = need.grows && need.start < end && sys::length(fd).is_ok_and(|len| len < end);
        let is_of_job = || self.jobs.iter().any(|job| job.range_of(need.first).is_some());
        Some(match is_short {
            true if !need.has_pages && !self.is_refused && !is_of_job() => AllocationStep::MakeAlone(*need),
            true => AllocationStep::Grow { end },
            false => AllocationStep::Serve(need.number),
        })
    }

    /// Takes in the result of a step.
    fn learn(&mut self, first: u64, last: u64, made: Result<(), i32>) {
        match made {
            // Part of it may fit.
            Err(errno) if is_full(errno) && last - first > 1 => {
                let half = (last - first) / 2;
                self.halvings = (ALLOCATION_STEP / page()).ilog2() - half.ilog2();
            }
            Err(errno) if is_full(errno) => {
                for job in &mut self.jobs {
                    if let Some((_, stop)) = job.range_of(first) {
                        job.without_room.insert(first, stop);
                        job.errno = errno;
                    }
                }
            }
            Ok(()) | Err(libc::EINTR) => self.made.insert(first, last),
            Err(_) => self.is_refused = true,
        }
    }

    /// The same of the pages of a need that belongs to no job. Where there is no room, `pwrite` writes what fits.
    fn learn_alone(&mut self, number: u64, made: Result<(), i32>) {
        match made {
            Ok(()) => {
                if let Some(need) = self.needs.iter_mut().find(|need| need.number == number) {
                    need.has_pages = true;
                }
            }
            Err(errno) if is_full(errno) || errno == libc::EINTR => {
                self.needs.retain(|need| need.number != number);
            }
            Err(_) => self.is_refused = true,
        }
    }
}

impl WriteJob {
    /// The range that a page is in, up to where there is room for it.
    fn range_of(&self, page: u64) -> Option<(u64, u64)> {
        let (start, end) = self.pages.holding(page)?;
        Some((start, self.without_room.first_in(start, end).unwrap_or(end)))
    }
}

/// The pages that a piece has bytes of.
fn pages_of(piece: &Piece) -> (u64, u64) {
    (piece.offset / page(), piece.offset.saturating_add(piece.len as u64).div_ceil(page()))
}

/// Whether this errno says that there is no room.
pub(super) fn is_full(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::ENOMEM | libc::EDQUOT | libc::EFBIG)
}

/// Makes pages. Those beyond the end of the file stay there until it grows.
fn make(fd: RawFd, first: u64, last: u64) -> Result<(), i32> {
    // Looking costs a hundredth of making; where it is not allowed making what is there does no harm.
    let (start, len) = (first * page(), (last - first) * page());
    if sys::cachestat(fd, start, len).is_ok_and(|bytes| bytes >= len) {
        return Ok(());
    }
    (0..INTERRUPTIONS)
        .map(|_| sys::allocate(fd, FallocateFlags::KEEP_SIZE, start, len))
        .find(|made| *made != Err(libc::EINTR))
        .unwrap_or(Err(libc::EINTR))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn piece(offset: u64, len: usize) -> Piece {
        Piece { offset, address: 0, len }
    }

    fn scratch(len: u64) -> std::fs::File {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(len).unwrap();
        file
    }

    fn enter(allocation: &Preallocation, file: &std::fs::File, start: u64, end: u64) {
        let Room::Mapped(_writer, reach) = allocation.enter(file.as_raw_fd(), (start, end), true) else {
            panic!("no room for {start}..{end}");
        };
        assert_eq!(reach, end);
    }

    fn allocated(file: &std::fs::File) -> u64 {
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn room_is_made_ahead_within_what_a_job_writes() {
        let (allocation, file) = (Arc::new(Preallocation::default()), scratch(1 << 30));
        let pieces = [piece(100 << 20, 40 << 20), piece(140 << 20, 1 << 20), piece(500 << 20, 1)];
        let intent = allocation.intend(&pieces);
        enter(&allocation, &file, 100 << 20, 101 << 20);
        assert_eq!(allocated(&file), ALLOCATION_STEP);
        enter(&allocation, &file, 101 << 20, 116 << 20);
        assert_eq!(allocated(&file), ALLOCATION_STEP, "it was there");
        enter(&allocation, &file, 140 << 20, 141 << 20);
        assert_eq!(allocated(&file), 41 << 20, "all before it, and no further than the job goes");
        enter(&allocation, &file, 500 << 20, (500 << 20) + 1);
        assert_eq!(allocated(&file), (41 << 20) + page(), "a page for the last byte");
        enter(&allocation, &file, 200 << 20, 201 << 20);
        assert_eq!(allocated(&file), (41 << 20) + page(), "no job writes there");
        drop(intent);
        enter(&allocation, &file, 120 << 20, 121 << 20);
        assert_eq!(allocated(&file), (41 << 20) + page(), "the job is over");
        assert_eq!(file.metadata().unwrap().len(), 1 << 30);
    }

    #[test]
    fn a_file_grows_no_further_than_its_bytes() {
        let (allocation, file) = (Arc::new(Preallocation::default()), scratch(0));
        let _intent = allocation.intend(&[piece(0, 64 << 20)]);
        for end in [1 << 20, 4 << 20] {
            enter(&allocation, &file, end - (1 << 20), end);
            assert_eq!(file.metadata().unwrap().len(), end);
            assert_eq!(allocated(&file), ALLOCATION_STEP);
        }
    }

    #[test]
    fn a_write_shows_in_the_time_of_change() {
        let (allocation, file) = (Arc::new(Preallocation::default()), scratch(1 << 20));
        let modified = || file.metadata().unwrap().modified().unwrap();
        let mut before = modified();
        for _ in 0..3 {
            std::thread::sleep(2 * FRESH);
            let writer = allocation.enter(file.as_raw_fd(), (0, 1 << 20), true);
            assert!(matches!(writer, Room::Mapped(..)));
            let entered = modified();
            assert!(entered > before, "before the first byte");
            std::thread::sleep(2 * FRESH);
            drop(writer);
            before = modified();
            assert!(before > entered, "after the last one");
        }
    }

    #[test]
    fn many_threads_get_their_room() {
        let (allocation, file) = (Arc::new(Preallocation::default()), scratch(0));
        let _intent = allocation.intend(&[piece(0, 256 << 20)]);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (allocation, fd) = (&allocation, file.as_raw_fd());
                scope.spawn(move || {
                    for step in 0..32 {
                        let start = (step * 8 + thread) << 20;
                        let writer = allocation.enter(fd, (start, start + (1 << 20)), true);
                        assert!(sys::cachestat(fd, start, 1 << 20).unwrap() == 1 << 20, "pages are there");
                        drop(writer);
                    }
                });
            }
        });
        assert_eq!((file.metadata().unwrap().len(), allocated(&file)), (256 << 20, 256 << 20));
        assert!(lock(&allocation.state).needs.is_empty());
    }

    #[test]
    fn a_file_that_may_not_grow_is_left_to_others() {
        // SAFETY: a name that ends with NUL; the descriptor is ours.
        let file: std::fs::File = unsafe {
            let fd = libc::memfd_create(c"room".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0 && libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW) == 0);
            std::os::fd::FromRawFd::from_raw_fd(fd)
        };
        let allocation = Arc::new(Preallocation::default());
        let _intent = allocation.intend(&[piece(0, 1 << 20)]);
        let room = allocation.enter(file.as_raw_fd(), (0, 1 << 20), true);
        assert!(matches!(room, Room::ByCalls(reach) if reach == 1 << 20), "{room:?}");
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}
