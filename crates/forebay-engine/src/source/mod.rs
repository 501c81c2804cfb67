//! Sources: where stored bytes live, and how a lane gets at them.

pub(crate) mod adopt;
mod calls;
mod descriptor;
mod file;
mod idle;
mod mapping;
mod memory;
pub(crate) mod piece;
pub(crate) mod residency;
mod room;
pub(crate) mod version;

use std::any::Any;
use std::fmt;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use forebay_error::Result;

pub use calls::{Calls, Fault, Faulty, Kernel};
pub(crate) use descriptor::Fd;
pub use file::{DirectAlignment, OpenOptions};
pub(crate) use file::{FileSource, TMPFS, file_system_name};
use mapping::Mapping;
pub(crate) use mapping::touch;
pub use memory::MemorySource;
pub use residency::Residency;
pub(crate) use room::Intent;

use crate::runtime::lock::lock;
use crate::runtime::sys::{self, Identity};
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;
use crate::source::version::FileVersion;

/// Where stored bytes live. A source offers capabilities; so far one, [`Fill`].
pub trait Source: Send + Sync + fmt::Debug {
    /// A name for messages.
    fn name(&self) -> String;

    /// Its length in bytes now.
    fn len(&self) -> Result<u64>;

    /// Whether it holds no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// How its bytes come into host memory, and go back.
    fn fill(&self) -> Fill<'_>;

    /// Makes written bytes durable.
    fn sync(&self) -> Result<()>;
}

/// The capability to fill host memory with a source's bytes, or to take them from there.
#[derive(Debug)]
pub enum Fill<'a> {
    /// A file: the lane calls the kernel itself.
    Descriptor(&'a Descriptors),
    /// Anything else: the source works on its own threads and reports back.
    Requests(&'a dyn Requests),
}

/// The descriptors of a file.
#[derive(Debug)]
pub struct Descriptors {
    /// No two files of a process ever have the same, unlike the numbers of descriptors.
    pub(crate) id: u64,
    /// Whether a trial of the engine `p2p` on it speaks for no other file; found out when first asked.
    pub(crate) is_alone: OnceLock<bool>,
    /// For buffered I/O.
    pub(crate) buffered: Fd,
    /// A second one, opened with O_DIRECT, and what it asks for.
    pub(crate) direct: Option<(Fd, DirectAlignment)>,
    /// What file they are of.
    pub(crate) identity: Identity,
    /// The bytes are memory by nature (tmpfs): always warm.
    pub(crate) is_memory: bool,
    /// What kind of file it is.
    pub(crate) nature: Nature,
    /// Bytes that were read of it since it was opened: what is read often is worth pinning.
    pub(crate) demand: AtomicU64,
    /// A mapping of a memory file, for writes by many lanes at once; made when first needed.
    pub(crate) mapping: Mapping,
    /// Reads in a row that found their page in the page cache.
    pub(crate) hits: AtomicU8,
    /// What to do about the page cache, if the file was opened with a wish of its own.
    pub(crate) cache: Option<forebay_config::CachePolicy>,
    /// What engines keep of it.
    pub(crate) attached: Attached,
    /// The kernel, or a test double in front of it.
    pub(crate) calls: Box<dyn Calls>,
}

/// What engines keep of a file for as long as it is open: one value of each type.
#[derive(Default)]
pub(crate) struct Attached(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl Attached {
    /// The value of this type, made when first asked for.
    pub(crate) fn get<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut all = lock(&self.0);
        if let Some(found) = all.iter().find_map(|value| value.clone().downcast().ok()) {
            return found;
        }
        let made = Arc::<T>::default();
        all.push(made.clone());
        made
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attached({})", lock(&self.0).len())
    }
}

/// What kind of file a descriptor is of, as found when it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nature {
    /// The file system's magic number.
    pub(crate) magic: i64,
    /// A regular file, as opposed to a block device.
    pub(crate) is_regular: bool,
    /// The device number of the file system, or of the block device.
    pub(crate) mount: u64,
    /// Bytes when it was opened.
    pub(crate) opened_len: u64,
    /// Opened for reading and writing.
    pub(crate) is_writable: bool,
}

impl Descriptors {
    /// An `id` that nobody had before.
    pub(crate) fn next_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Relaxed)
    }

    /// An error if the program closed what pages are read and written by: see [`Owned`](crate::runtime::owned::Owned).
    pub(crate) fn check(&self) -> Result<()> {
        self.buffered.check()
    }

    /// The same for O_DIRECT.
    pub(crate) fn check_direct(&self) -> Result<()> {
        self.direct.as_ref().map_or(Ok(()), |(fd, _)| fd.check())
    }

    /// Whether this is the state of some other file: the program closed our descriptor, and gave its number away.
    pub(crate) fn is_strange(&self, version: &FileVersion) -> bool {
        version.id() != self.identity
    }

    /// Bytes now.
    pub(crate) fn len(&self) -> Result<u64> {
        self.check()?;
        sys::length(self.buffered.as_raw_fd())
    }

    /// A descriptor that we opened for reading only, so that its open file description is ours alone.
    pub(crate) fn opened_by_us(&self) -> Option<RawFd> {
        self.opened_apart().filter(|_| !self.nature.is_writable)
    }

    /// The descriptor to map pages by: one of an opening of ours, if there is any. Mapped pages keep their descriptor's file
    /// open for some time after the last use, and the caller's `flock` with it, if it shares his opening.
    pub(crate) fn for_pages(&self) -> RawFd {
        self.opened_apart().unwrap_or_else(|| self.buffered.as_raw_fd())
    }

    /// A descriptor that does not share the caller's opening.
    fn opened_apart(&self) -> Option<RawFd> {
        let all = [Some(&self.buffered), self.direct.as_ref().map(|(fd, _)| fd)];
        all.into_iter().flatten().find(|fd| !fd.is_shared()).map(AsRawFd::as_raw_fd)
    }

    /// Writes to a memory file through its mapping. Bytes, or 0 or less where that cannot be done.
    ///
    /// # Safety
    /// `buffer..buffer+len` is readable.
    pub(crate) unsafe fn write_mapped(&self, buffer: *const u8, len: usize, offset: u64) -> isize {
        // SAFETY: passed on.
        unsafe { self.mapping.write(self.buffered.as_raw_fd(), buffer, len, offset) }
    }

    /// Whether it is a memory file that nobody may write any more. What is mapped already could be stored to all the same.
    pub(crate) fn is_sealed(&self) -> bool {
        self.is_memory && sys::is_sealed(self.buffered.as_raw_fd())
    }

    /// A job is about to write these pieces of a tmpfs file: room is made ahead of it.
    pub(crate) fn intend(&self, pieces: &[Piece]) -> Option<Intent> {
        (self.nature.magic == TMPFS).then(|| self.mapping.intend(pieces)).flatten()
    }

    /// Whether the page at `offset` is in the page cache. After a run of hits the file is taken to be warm and the
    /// kernel is not asked, until a read misses.
    pub(crate) fn is_resident(&self, offset: u64) -> bool {
        const TRUSTED: u8 = 32;
        let hits = self.hits.load(Relaxed);
        if hits >= TRUSTED {
            return true;
        }
        let hit = residency::page(self.buffered.as_raw_fd(), offset);
        // Races between threads only make the run of hits a little shorter or longer.
        self.hits.store(if hit { hits + 1 } else { 0 }, Relaxed);
        hit
    }

    /// A read that did not wait found that bytes are missing.
    pub(crate) fn missed(&self) {
        self.hits.store(0, Relaxed);
    }

    /// What a few samples of `ranges` (offset, length) say.
    pub(crate) fn warmth(&self, ranges: impl ExactSizeIterator<Item = (u64, u64)>) -> Warmth {
        const SAMPLES: usize = 4;
        if self.is_memory {
            return Warmth::Warm;
        }
        let single = ranges.len() == 1;
        let step = ranges.len().div_ceil(SAMPLES).max(1);
        let (mut warm, mut cold) = (false, false);
        let fd = self.buffered.as_raw_fd();
        let mut sample = |offset| if residency::page(fd, offset) { warm = true } else { cold = true };
        for (offset, len) in ranges.step_by(step) {
            sample(offset);
            if single && len > 4096 {
                (1..=SAMPLES as u64).for_each(|part| sample(offset + (len - 1) / SAMPLES as u64 * part));
            }
        }
        match (warm, cold) {
            (true, false) => Warmth::Warm,
            (false, true) => Warmth::Cold,
            _ => Warmth::Mixed,
        }
    }
}

/// One piece of work for a source without a descriptor.
#[derive(Debug)]
pub struct Request {
    /// Read fills `buffer`, Write takes it.
    pub direction: Direction,
    /// Offset in the source.
    pub offset: u64,
    /// Address of host memory that stays valid until `done` is called.
    pub buffer: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: the lane that made the request keeps the buffer valid and untouched until it is answered, so the source
// may use it from any thread.
unsafe impl Send for Request {}

/// Answers a [`Request`]: bytes moved (fewer at the end of the source) or an error.
pub type Answer = Box<dyn FnOnce(Result<usize>) + Send>;

/// A source that completes requests from its own threads.
pub trait Requests: Send + Sync + fmt::Debug {
    /// Starts a request; `done` is called exactly once, from any thread, perhaps before this returns.
    fn start(&self, request: Request, done: Answer);
}
