//! Sources: where stored bytes live, and how lanes read and write them.

pub(crate) mod adopt;
mod calls;
mod descriptor;
mod file;
mod idle;
mod mapping;
mod memory;
pub(crate) mod piece;
mod preallocation;
mod ranges;
pub(crate) mod read_balance;
mod read_mapping;
mod reservation;
pub(crate) mod residency;
pub(crate) mod version;
pub(crate) mod writers;

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use forebay_config::CachePolicy;
use forebay_error::Result;
use forebay_sys::OwnLine;

pub(crate) use calls::call_error;
pub use calls::{Calls, Fault, Faulty, Kernel};
pub(crate) use descriptor::Fd;
pub use file::{DirectAlignment, OpenOptions};
pub(crate) use file::{FileSource, LOCAL_FILE_SYSTEMS, TMPFS};
use forebay_source::BesideFile;
pub use forebay_source::{
    Answer, DeviceRange, Facts, Fill, HostRange, Request, RequestShape, Requests, Source, StateToken,
};
use mapping::WriteMapping;
pub(crate) use mapping::{MemoryWrite, touch};
pub use memory::MemorySource;
pub(crate) use preallocation::WriteIntent;
pub(crate) use read_mapping::CachedReads;
pub(crate) use reservation::Shortage;
pub use residency::Residency;

use crate::runtime::fork::Native;
use crate::runtime::lock;
use crate::runtime::sys::{self, Identity};
use crate::source::piece::Piece;
use crate::source::version::FileVersion;
use crate::tuning::plan::CELL;

/// The descriptors of a file.
#[derive(Debug)]
pub struct Descriptors {
    /// Unique among all files of a process, unlike numbers of descriptors.
    pub(crate) id: u64,
    /// Whether a trial of the engine `p2p` on it holds for no other file; found out on first use.
    pub(crate) is_alone: OnceLock<bool>,
    /// For buffered I/O.
    pub(crate) buffered: Fd,
    /// Opened with O_DIRECT, with the alignment that it needs.
    pub(crate) direct: Option<(Fd, DirectAlignment)>,
    /// The file that both descriptors are open for.
    pub(crate) identity: Identity,
    /// The file is memory (tmpfs): always warm.
    pub(crate) is_memory: bool,
    /// What kind of file it is.
    pub(crate) nature: FileNature,
    /// Bytes read since it was opened: files that are read often are pinned. See [`Descriptors::count_small`].
    pub(crate) demand: OwnLine<AtomicU64>,
    /// A mapping of a memory file, for writes by many lanes at once; made when first needed. See [`Descriptors::mapping`].
    mapping: Native<WriteMapping>,
    /// Large reads of cached pages, by calls or through another mapping.
    reads: Native<CachedReads>,
    /// Reads in a row that found their page in the page cache.
    pub(crate) hits: AtomicU8,
    /// The file's own cache policy, if it has one.
    pub(crate) cache: Option<CachePolicy>,
    /// The source that lies behind it; found when a large read comes first.
    beside: OnceLock<Option<Arc<dyn BesideFile>>>,
    /// State that engines keep with it.
    pub(crate) attached: Attached,
    /// The kernel, or a test double in front of it.
    pub(crate) calls: Box<dyn Calls>,
}

/// State that engines keep with a file while it is open: one value of each type.
#[derive(Default)]
pub(crate) struct Attached(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl Attached {
    /// The value of this type, made on first use.
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
pub(crate) struct FileNature {
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

impl FileNature {
    fn is_memory(self) -> bool {
        file::MEMORY_FILE_SYSTEMS.contains(&self.magic)
    }
}

impl Descriptors {
    /// The source that lies behind the file, past the kernel.
    pub(crate) fn beside(&self) -> Option<Arc<dyn BesideFile>> {
        let find = || forebay_source::beside(self.buffered.as_fd(), self.nature.magic);
        self.beside.get_or_init(find).clone()
    }

    pub(crate) fn new(
        buffered: Fd,
        direct: Option<(Fd, DirectAlignment)>,
        identity: Identity,
        nature: FileNature,
        (cache, calls): (Option<CachePolicy>, Option<Box<dyn Calls>>),
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            is_alone: OnceLock::new(),
            buffered,
            direct,
            identity,
            is_memory: nature.is_memory(),
            nature,
            demand: OwnLine::default(),
            mapping: Native::new(WriteMapping::default()),
            reads: Native::new(CachedReads::default()),
            hits: AtomicU8::new(0),
            cache,
            beside: OnceLock::new(),
            attached: Attached::default(),
            calls: calls.unwrap_or_else(|| Box::new(Kernel)),
        }
    }

    /// Counts the bytes of a small read. Returns the counts before and after: a thread that reads the same
    /// file again and again tells of several reads at once, so that many do not fight over one word.
    pub(crate) fn count_small(&self, bytes: u64) -> (u64, u64) {
        thread_local!(static UNTOLD: Cell<(u64, u64)> = const { Cell::new((u64::MAX, 0)) });
        let (id, untold) = UNTOLD.get();
        let bytes = if id == self.id { untold + bytes } else { bytes };
        let is_told = id != self.id || bytes >= CELL as u64 / 2;
        UNTOLD.set((self.id, if is_told { 0 } else { bytes }));
        if is_told { (self.demand.fetch_add(bytes, Relaxed), bytes) } else { (self.demand.load(Relaxed), 0) }
    }

    /// An error if the program closed the buffered descriptor: see [`Owned`](crate::runtime::owned::Owned).
    pub(crate) fn check(&self) -> Result<()> {
        self.buffered.check()
    }

    /// An error if the program closed the descriptor for O_DIRECT.
    pub(crate) fn check_direct(&self) -> Result<()> {
        self.direct.as_ref().map_or(Ok(()), |(fd, _)| fd.check())
    }

    /// Whether this is the state of another file: the program closed our descriptor and reused its number.
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

    /// The descriptor to map pages by: of an opening of ours, if there is one. Mapped pages keep the opening for some time
    /// after the last use, and with a shared one also the caller's `flock`.
    pub(crate) fn for_pages(&self) -> RawFd {
        self.opened_apart().unwrap_or_else(|| self.buffered.as_raw_fd())
    }

    /// A descriptor that does not share the caller's opening.
    fn opened_apart(&self) -> Option<RawFd> {
        let all = [Some(&self.buffered), self.direct.as_ref().map(|(fd, _)| fd)];
        all.into_iter().flatten().find(|fd| !fd.is_shared()).map(AsRawFd::as_raw_fd)
    }

    /// Writes to a memory file: see [`WriteMapping::write`].
    ///
    /// # Safety
    /// The memory is readable.
    pub(crate) unsafe fn write_memory(
        &self,
        memory: HostRange,
        offset: u64,
        (is_part, is_large): (bool, bool),
    ) -> MemoryWrite {
        let Some(mapping) = self.mapping() else { return MemoryWrite::ByCalls(memory.len) };
        let fd = self.buffered.as_raw_fd();
        // SAFETY: passed on.
        unsafe { mapping.write(fd, memory, offset, (is_part, is_large || mapping.is_making_room())) }
    }

    /// The mapping for writes. `None` in a forked child, where a thread that does not exist may hold its locks: there
    /// `pwrite` does all.
    fn mapping(&self) -> Option<&WriteMapping> {
        (!self.mapping.is_elsewhere()).then(|| &*self.mapping)
    }

    /// Whether it is a memory file that is sealed against writing. Mappings that exist already could still be stored to.
    pub(crate) fn is_sealed(&self) -> bool {
        self.is_memory && sys::is_sealed(self.buffered.as_raw_fd())
    }

    /// A job is about to write these pieces: pages of a tmpfs file are allocated ahead.
    pub(crate) fn intend(&self, pieces: &[Piece]) -> Option<WriteIntent> {
        let mapping = self.mapping().filter(|_| self.nature.magic == TMPFS)?;
        Some(mapping.intend(pieces))
    }
}
