//! A warm file as memory that a device's kernels read in place.

use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use super::gather::Desk;
use super::pin::Pin;
use super::pin_cache::{Answer, Shelf, Want};
use super::shared::{PATIENCE, Shared};
use super::window::Pinned;
use crate::request::file::File;
use crate::request::receipt::Note;
use crate::runtime::fork::{Birth, Native, from_before};
use crate::runtime::pinned::PinnedPages;
use crate::source::version::FileVersion;
use crate::source::{Descriptors, Fill};

/// A file whose pages one device reads in place.
///
/// What kernels see through [`Map::address`] is the page cache: bytes that others write to the file appear there, at
/// any time and in any order. A file that is cut short, punched or overwritten by O_DIRECT leaves its old pages to the
/// map, and no kernel faults. So the rule is: bytes that a kernel read are the file's if [`Map::check`] is fine
/// *afterwards*; [`Map::gather`] and [`Map::gather_at`] do that by themselves. `docs/concepts/warm-files.md` has all rules.
///
/// The pages stay pinned, and count against the budget, until the map and the gathers that it started are dropped. The
/// CPU never gets a slice: a file that is cut short would end the process.
#[derive(Debug)]
pub struct Map {
    pub(super) inner: Native<Arc<Inner>>,
}

pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    birth: Birth,
    pub(super) file: File,
    pinned: Arc<Pinned>,
    pub(super) version: FileVersion,
    pub(super) address: u64,
    pins: Vec<Arc<Pin>>,
    /// What its gathers need; made by the first one.
    pub(super) desk: Mutex<Option<Desk>>,
    /// Pinned memory for offsets, between gathers.
    pub(super) rooms: Mutex<Vec<PinnedPages>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("file", &self.file)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Map {
    pub(super) fn new(shared: Arc<Shared>, file: &File) -> Result<Self> {
        let Fill::Descriptor(descriptors) = file.source().fill() else {
            return Err(
                Error::new(ErrorKind::Unsupported, "only files can be mapped").with("source", file.name())
            );
        };
        let refuse = |reason: super::Reason| reason.error().with("file", file.name());
        descriptors.check()?;
        shared.shelf.verdict(descriptors, forebay_gpu::Access::ReadOnly).map_err(refuse)?;
        let named = |error: Error| error.with("file", file.name());
        let fd = descriptors.buffered.as_raw_fd();
        settled(&shared.shelf, descriptors).map_err(named)?;
        let access = forebay_gpu::Access::ReadOnly;
        let (version, pinned) = shared.shelf.enter(file.source(), fd, access).map_err(named)?;
        if version.len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty file cannot be mapped")
                .with("file", file.name()));
        }
        let pins = pin_all(&shared, file, &pinned).inspect_err(|_| shared.give_up(&pinned))?;
        let Some(address) = pinned.address(0) else {
            return Err(Error::new(ErrorKind::Internal, "a file with pins has no addresses"));
        };
        let (file, desk, rooms) = (file.clone(), Mutex::default(), Mutex::default());
        let inner = Inner { birth: Birth::here(), shared, file, pinned, version, address, pins, desk, rooms };
        Ok(Self { inner: Native::new(Arc::new(inner)) })
    }

    /// The device address of the file's first byte. Kernels of this device may read [`Map::len`] bytes from there as
    /// long as the map lives; nobody may write, and the CPU may do neither.
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// Bytes of the file when it was mapped.
    pub fn len(&self) -> u64 {
        self.inner.version.len
    }

    /// Whether it maps no bytes: never, since empty files are not mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state of the file that is mapped.
    pub fn version(&self) -> FileVersion {
        self.inner.version
    }

    /// Bytes that it keeps in memory, as counted against the budget.
    pub fn pinned_bytes(&self) -> u64 {
        self.inner.pins.iter().map(|pin| pin.len()).sum()
    }

    /// Whether the file is still what was mapped: if it is, all that kernels have read so far were its bytes.
    /// [`ErrorKind::Busy`] if it was changed.
    pub fn check(&self) -> Result<()> {
        self.inner.check()
    }

    /// Maps the file as it is now, if it was changed. Addresses change with it. True if it was.
    pub fn refresh(&mut self) -> Result<bool> {
        if self.inner.is_elsewhere() {
            return Err(from_before("this file was mapped"));
        }
        if self.inner.check().is_ok() {
            return Ok(false);
        }
        self.inner.shared.shelf.discard(&self.inner.pinned);
        *self = Self::new(self.inner.shared.clone(), &self.inner.file)?;
        Ok(true)
    }
}

/// Waits until the file has been left alone long enough for its pages to be pinned.
fn settled(shelf: &Shelf, file: &Descriptors) -> Result<()> {
    let deadline = Instant::now() + shelf.settle * 3;
    loop {
        let version = FileVersion::of(file.buffered.as_raw_fd())?;
        let settle = shelf.settle_of(file, shelf.writers(file, &version));
        if !version.is_young(settle) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(
                Error::new(ErrorKind::Busy, "the file keeps changing").hint("map it when its writer is done")
            );
        }
        std::thread::sleep(settle / 10);
    }
}

/// Has all windows registered, and waits for them.
fn pin_all(shared: &Arc<Shared>, file: &File, pinned: &Arc<Pinned>) -> Result<Vec<Arc<Pin>>> {
    let Fill::Descriptor(descriptors) = file.source().fill() else { return Ok(Vec::new()) };
    let registrar = |request| shared.register(request);
    let ask = |window| shared.shelf.ask(file.source(), descriptors, pinned, window, Want::Surely, &registrar);
    let refuse = |reason: super::Reason| Err(reason.error().with("file", file.name()));
    let mut pins = Vec::with_capacity(pinned.windows());
    // All are asked for at once, so that none waits for our reading of the answer. Those that are there are held, or
    // the later ones would take their place.
    let mut held = Vec::new();
    for window in 0..pinned.windows() {
        match ask(window) {
            Answer::No(reason) => return refuse(reason),
            Answer::Ready(pin) => held.push(pin),
            Answer::Pending(_) => {}
        }
    }
    for window in 0..pinned.windows() {
        loop {
            let seen = shared.shelf.bell.count();
            match pinned.answer(window) {
                Answer::Ready(pin) => break pins.push(pin),
                Answer::Pending(since) if since.elapsed() < PATIENCE * 6 => {
                    shared.shelf.bell.wait(seen, Duration::from_millis(100));
                }
                Answer::Pending(_) => {
                    return refuse(super::Reason::new("a registration did not end"));
                }
                Answer::No(reason) => return refuse(reason),
            }
        }
    }
    drop(held);
    if pinned.is_stale() {
        return Err(Error::new(ErrorKind::Busy, "the file changed while it was mapped")
            .with("file", file.name())
            .hint("map it again"));
    }
    Ok(pins)
}

impl Inner {
    /// Whether all that kernels have read was the file's. What it has lost is found out where that is in doubt.
    pub(super) fn check(&self) -> Result<()> {
        self.check_version()?;
        if !self.pinned.is_watched() || self.pinned.has_kept(0, self.version.len) {
            return Ok(());
        }
        self.shared.shelf.discard(&self.pinned);
        Err(self.changed())
    }

    /// Whether its version is the same.
    pub(super) fn check_version(&self) -> Result<()> {
        if self.birth.is_elsewhere() {
            return Err(from_before("this file was mapped"));
        }
        let Fill::Descriptor(file) = self.file.source().fill() else { return Ok(()) };
        if FileVersion::of(file.buffered.as_raw_fd())? == self.version && !self.pinned.is_stale() {
            return Ok(());
        }
        Err(self.changed())
    }

    fn changed(&self) -> Error {
        Error::new(ErrorKind::Busy, "the file was changed since it was mapped")
            .with("file", self.file.name())
            .hint("call refresh() and start over")
    }

    /// What receipts of gathers say beside.
    pub(super) fn notes(&self) -> Vec<Note> {
        self.pinned.suspects().note().into_iter().collect()
    }
}
