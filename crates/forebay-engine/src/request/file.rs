//! A user's handle on a source.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{HostRange, LateNote, Location, StoredSum};

use crate::runtime::sys;
use crate::source::piece::{Direction, Piece};
use crate::source::version::FileVersion;
use crate::source::{
    Descriptors, DirectAlignment, Facts, Fd, FileSource, Fill, OpenOptions, Request, Requests, Residency,
    Shortage, Source, StateToken, adopt, call_error, residency,
};

/// Bytes for which a memory file gets its pages in one call.
const ROOM_AT_ONCE: u64 = 256 << 20;

/// An open file or other source. Cheap to clone; closed with the last clone and the last transfer that uses it.
#[derive(Clone)]
pub struct File {
    source: Arc<dyn Source>,
    file: Option<Arc<FileSource>>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({})", self.source.name())
    }
}

/// Makes a request and waits for its answer. A write only reads the memory.
fn answer_of(requests: &dyn Requests, direction: Direction, memory: HostRange, offset: u64) -> Result<usize> {
    let (answer, answered) = std::sync::mpsc::sync_channel(1);
    let request = Request { direction, offset, memory, ahead: 0 };
    requests.start(request, Box::new(move |got| drop(answer.send(got))));
    // Exactly one answer comes: until then the memory is the request's.
    let missing = |_| Err(Error::new(ErrorKind::Internal, "a source gave no answer"));
    match answered.recv().unwrap_or_else(missing)? {
        done if done > memory.len => {
            Err(Error::new(ErrorKind::Internal, "a source answered with more bytes than were asked for"))
        }
        0 if direction == Direction::Write => Err(Error::new(ErrorKind::Io, "the source took no bytes")),
        done => Ok(done),
    }
}

impl OpenOptions {
    /// A file that the caller has open, by the caller's descriptor: see [`File::adopt`]. Of these options only the
    /// cache policy and the calls apply; the descriptor decides about access.
    ///
    /// # Safety
    /// As [`File::adopt`].
    pub unsafe fn adopt(self, fd: RawFd) -> Result<File> {
        // SAFETY: passed on.
        unsafe { adopt::adopt(self, fd) }.map(File::from_file_source)
    }

    /// Opens the file: a path, or a URL of a scheme that the program registered
    /// ([`forebay_source::register`]).
    pub fn open(self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        let location = if self.access().make { Location::of_new(path) } else { Location::of(path) };
        match location? {
            Location::Url(opener) => File::from_source(opener.open(path, self.access())?),
            Location::Path => self.open_source(path).map(File::from_file_source),
        }
    }
}

impl File {
    /// Opens a file for reading.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::default().open(path)
    }

    /// Options for opening: writing, creating, cache policy.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// A file that the caller has open, by the caller's descriptor (any but O_PATH, of a regular file or block device).
    ///
    /// The descriptor stays the caller's: forebay never closes it, never changes its flags or position, and moves
    /// nothing by it. forebay opens the file again through /proc with the same access, once with O_DIRECT and once
    /// without. Where /proc or permissions forbid that, there is one duplicate, which shares the caller's open file
    /// description (its flags, and locks by `flock`), and [`File::direct_refused`] or [`File::buffered_refused`] says
    /// why. The caller may close its descriptor or reuse the number: transfers go on with the file that they began
    /// with.
    ///
    /// The caller keeps its locks. forebay closes its own descriptors some seconds after their last use, but not while
    /// the process has POSIX locks on the file, since closing one would release them. `exec` closes them in any case: a
    /// process that replaces itself loses its POSIX locks.
    ///
    /// # Safety
    /// `fd` is open, and nobody closes it before this returns.
    pub unsafe fn adopt(fd: RawFd) -> Result<Self> {
        // SAFETY: passed on.
        unsafe { OpenOptions::default().adopt(fd) }
    }

    /// Whether a descriptor is of this file, too. False for a closed one.
    pub fn is_behind(&self, fd: RawFd) -> bool {
        self.file.as_ref().is_some_and(|file| sys::identity(fd) == Some(file.descriptors.identity))
    }

    /// Whether a path is a URL of a server, rather than a file of this machine.
    pub fn is_url(path: impl AsRef<Path>) -> bool {
        forebay_source::opener_of(path).is_some()
    }

    /// A handle on any source. One that offers a descriptor is opened again by it, as by [`File::adopt`].
    pub fn from_source(source: Arc<dyn Source>) -> Result<Self> {
        let Fill::Descriptor(fd) = source.fill() else { return Ok(Self { source, file: None }) };
        // SAFETY: the source keeps the descriptor open.
        let file = unsafe { adopt::adopt_of_source(fd.as_raw_fd()) }?;
        Ok(Self { source, file: Some(Arc::new(file)) })
    }

    pub(crate) fn from_file_source(file: FileSource) -> Self {
        forebay_sys::descriptor_table::make_room();
        let file = Arc::new(file);
        Self { source: file.clone(), file: Some(file) }
    }

    pub(crate) fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// The file that is open for it, where the kernel has one.
    pub(crate) fn opened(&self) -> Option<&Arc<FileSource>> {
        self.file.as_ref()
    }

    /// The descriptors of that file.
    pub(crate) fn descriptors(&self) -> Option<&Descriptors> {
        self.file.as_ref().map(|file| &file.descriptors)
    }

    /// How a source without a descriptor is asked for bytes.
    pub(crate) fn requests(&self) -> Option<&dyn Requests> {
        match self.source.fill() {
            Fill::Descriptor(_) => None,
            Fill::Requests(source) => Some(source),
        }
    }

    pub(crate) fn same_source(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.source, &other.source)
    }

    /// The path it was opened by; `None` for sources without one, and adopted files.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().filter(|file| !file.is_adopted).map(|file| file.path.as_path())
    }

    /// Whether it is open for reading, and for writing.
    pub fn access(&self) -> (bool, bool) {
        self.file.as_ref().map_or_else(|| self.source.access(), |file| file.access())
    }

    /// Whether the kernel puts all writes at the end of the file (O_APPEND), whatever their offset.
    pub fn is_append(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.flags & libc::O_APPEND != 0)
    }

    /// How its bytes travel, and what of its server is left out, where receipts say so.
    pub fn facts(&self) -> Facts {
        self.source.facts()
    }

    /// What compares its bytes with the checksum that its store keeps, or why there is none to compare with.
    pub fn stored_sum(&self) -> Option<Result<Box<dyn StoredSum>>> {
        self.source.stored_sum()
    }

    /// Bytes that each of its sites gave so far, by name; none where it has one place alone.
    pub fn bytes_by_site(&self) -> Vec<(String, u64)> {
        self.source.bytes_by_site()
    }

    /// Says, when they have ended, what receipts say of transfers from now on: "held up: server …".
    pub fn late_note(&self) -> Option<LateNote> {
        self.source.late_note()
    }

    /// A name for messages.
    pub fn name(&self) -> String {
        self.source.name()
    }

    /// Its length in bytes now.
    pub fn len(&self) -> Result<u64> {
        self.source.len()
    }

    /// A length that it had lately: that of an object, or of a file of a server, without asking the server again.
    pub fn len_lately(&self) -> Result<u64> {
        self.source.len_lately()
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> Result<bool> {
        self.source.is_empty()
    }

    /// Distinguishes its present state from the next. `None` where its source has nothing that does.
    pub fn state(&self) -> Result<Option<StateToken>> {
        self.source.state()
    }

    /// Whether all that is read is of the state in which it was opened, or the read fails.
    pub fn reads_one_state(&self) -> bool {
        self.source.reads_one_state()
    }

    /// As [`File::state`], once the next change is sure to give it another.
    pub(crate) fn distinct_state(&self) -> Result<Option<StateToken>> {
        if let Some(file) = &self.file {
            FileVersion::distinct(file.fd())?;
        }
        // The source says it, as behind the transfer: its token need not be the file's.
        self.state()
    }

    /// Fills host memory on the calling thread, by plain reads or by requests: for headers and tables. Fewer bytes are an error of
    /// kind [`ErrorKind::ShortRead`].
    pub fn read_host(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let (mut done, len) = (0, into.len());
        self.check()?;
        while done < len {
            let (rest, at) = (&mut into[done..], offset + done as u64);
            let got = match self.source.fill() {
                Fill::Descriptor(fd) => rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut *rest, at))
                    .map_err(|errno| {
                        Error::from_errno(errno.raw_os_error(), "cannot read").with("offset", offset)
                    }),
                Fill::Requests(requests) => answer_of(requests, Direction::Read, HostRange::of_mut(rest), at),
            };
            done += match got.map_err(|error| error.with("path", self.name()))? {
                0 => {
                    let error = Error::new(ErrorKind::ShortRead, "the file ended early");
                    return Err(error.with("offset", offset).with("bytes", len).with("path", self.name()));
                }
                more => more,
            };
        }
        Ok(())
    }

    /// Writes host memory on the calling thread, as [`File::read_host`] reads: for headers and small files.
    pub fn write_host(&self, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        self.check()?;
        while !bytes.is_empty() {
            let put = match self.source.fill() {
                Fill::Descriptor(fd) => rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, bytes, offset))
                    .map_err(|errno| Error::from_errno(errno.raw_os_error(), "cannot write")),
                Fill::Requests(requests) => {
                    answer_of(requests, Direction::Write, HostRange::of(bytes), offset)
                }
            };
            let done = put.map_err(|error| error.with("offset", offset).with("path", self.name()))?;
            (bytes, offset) = (&bytes[done..], offset + done as u64);
        }
        Ok(())
    }

    /// Cuts or extends the file; the new part is a hole. A source without a descriptor is not cut.
    pub fn set_len(&self, len: u64) -> Result<()> {
        if let Some(requests) = self.requests()
            && len >= self.len()?
        {
            return self.grow(requests, len);
        }
        let file = self.local("cut the file")?;
        // SAFETY: no pointers are passed.
        if unsafe { libc::ftruncate(file.fd(), len as libc::off_t) } < 0 {
            return Err(Error::last_os("cannot set the file's length").with("path", self.name()));
        }
        Ok(())
    }

    /// A source without a descriptor: what lies before a byte beyond its end reads as zeros.
    fn grow(&self, requests: &dyn Requests, len: u64) -> Result<()> {
        if self.len()? < len {
            answer_of(requests, Direction::Write, HostRange::of(&[0]), len - 1)?;
        }
        Ok(())
    }

    /// Makes a file that is about to be written whole `len` bytes long. In memory it gets its pages now: that takes half
    /// the time while nobody writes. Elsewhere it is a hole, which disks fill at their own pace.
    pub fn make_room(&self, len: u64) -> Result<()> {
        if self.descriptors().is_some_and(|file| file.is_memory) {
            self.local("make room")?;
            for start in (0..len).step_by(ROOM_AT_ONCE as usize) {
                match self.reserve(start, ROOM_AT_ONCE.min(len - start)) {
                    // A signal takes back what the call did. The rest comes as it is written.
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => break,
                    made => made.or_else(|error| self.unreserved(len, &error))?,
                }
            }
        }
        self.set_len(len)
    }

    /// Reserves space for the first `len` bytes and makes the file at least that long. Where the file system cannot
    /// reserve, the file is only made longer.
    pub fn preallocate(&self, len: u64) -> Result<()> {
        if let Some(requests) = self.requests() {
            return self.grow(requests, len);
        }
        self.local("reserve space")?;
        if len == 0 { Ok(()) } else { self.reserve(0, len).or_else(|error| self.unreserved(len, &error)) }
    }

    /// Reserves space, in the order of the file, for a write that makes it longer and is asked for in several requests. How many
    /// of its `len` bytes from `offset` on have room: all where the file system cannot reserve. None is [`ErrorKind::NoSpace`].
    pub fn room_for(&self, offset: u64, len: u64) -> Result<u64> {
        let Some(file) = self.descriptors() else { return Ok(len) };
        let shortages = file.reserve_now(&[Piece { offset, address: 0, len: len as usize }]);
        match shortages.first() {
            None => Ok(len),
            Some(Shortage { from, errno, .. }) if *from == offset => {
                Err(call_error(*errno, Direction::Write, offset).with("file", self.name()))
            }
            Some(Shortage { from, .. }) => Ok(from - offset),
        }
    }

    fn reserve(&self, start: u64, len: u64) -> std::io::Result<()> {
        let fd = self.file.as_ref().map_or(-1, |file| file.fd());
        // SAFETY: no pointers are passed.
        match unsafe { libc::fallocate(fd, 0, start as libc::off_t, len as libc::off_t) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// What there is instead of reserved space, if anything.
    fn unreserved(&self, len: u64, error: &std::io::Error) -> Result<()> {
        let error =
            Error::from_io(error, "cannot reserve space").with("path", self.name()).with("bytes", len);
        match error.kind() {
            ErrorKind::Unsupported if self.len()? < len => self.set_len(len),
            ErrorKind::Unsupported => Ok(()),
            ErrorKind::NoSpace if error.errno() == libc::EFBIG => {
                Err(error.hint("the file system holds no file of this size: use a smaller one"))
            }
            ErrorKind::NoSpace => Err(error.hint("free some space (df -h) or write elsewhere")),
            _ => Err(error),
        }
    }

    /// Makes written bytes durable (fdatasync).
    pub fn sync(&self) -> Result<()> {
        self.source.sync()
    }

    /// How much of a range is in the page cache.
    pub fn residency(&self, offset: u64, len: u64) -> Result<Residency> {
        residency::measure(&self.local("tell the residency")?.descriptors, offset, len)
    }

    /// Writes dirty pages back and drops the file's pages from the page cache. Pages that are mapped or pinned by
    /// anybody stay: check [`File::residency`] after.
    pub fn drop_cache(&self) -> Result<()> {
        let file = self.local("drop the cache")?;
        // A file opened for reading may still have dirty pages from another descriptor; fdatasync covers them too.
        file.sync()?;
        // SAFETY: no pointers are passed.
        let errno = unsafe { libc::posix_fadvise(file.fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if errno != 0 {
            return Err(
                Error::from_errno(errno, "cannot drop the file's page cache").with("path", self.name())
            );
        }
        Ok(())
    }

    /// What O_DIRECT asks of this file; `None` where it has none (see [`File::direct_refused`]).
    pub fn alignment(&self) -> Option<DirectAlignment> {
        self.file.as_ref()?.descriptors.direct.as_ref().map(|(_, alignment)| *alignment)
    }

    /// Why the file has no O_DIRECT.
    pub fn direct_refused(&self) -> Option<&str> {
        self.file.as_ref()?.direct_refused.as_deref()
    }

    /// Why an adopted file has no descriptor for the page cache: unaligned pieces fail then.
    pub fn buffered_refused(&self) -> Option<&str> {
        self.file.as_ref()?.buffered_refused.as_deref()
    }

    /// The buffered descriptor.
    pub fn raw_fd(&self) -> Option<RawFd> {
        self.file.as_ref().map(|file| file.fd())
    }

    /// The O_DIRECT descriptor.
    pub fn direct_fd(&self) -> Option<RawFd> {
        self.file.as_ref()?.descriptors.direct.as_ref().map(|(fd, _)| fd.as_raw_fd())
    }

    /// Another descriptor of ours for the file, to hand to a library: with O_DIRECT where there is one.
    pub fn duplicate(&self) -> Result<OwnedFd> {
        let file = self.to_duplicate()?;
        duplicate(file.direct.as_ref().map_or(&file.buffered, |(fd, _)| fd))
    }

    /// The same without O_DIRECT.
    pub fn duplicate_buffered(&self) -> Result<OwnedFd> {
        duplicate(&self.to_duplicate()?.buffered)
    }

    fn to_duplicate(&self) -> Result<&Descriptors> {
        self.descriptors().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the source is not a file").with("source", self.name())
        })
    }

    /// What an engine keeps of the file for as long as it is open: one value of each type, made when first asked for.
    /// `None` for a source that is not a file.
    pub fn attached<T: Any + Default + Send + Sync>(&self) -> Option<Arc<T>> {
        self.file.as_ref().map(|file| file.descriptors.attached.get())
    }

    /// The file system's name (`ext4`, `tmpfs`, …); `none` for sources that are not files.
    pub fn file_system(&self) -> &'static str {
        match &self.file {
            Some(file) => file.file_system(),
            None => self.source.facts().file_system.unwrap_or("none"),
        }
    }

    /// Major and minor number of the block device that holds it (of itself, for a block device).
    pub fn device_number(&self) -> (u32, u32) {
        self.file.as_ref().map_or((0, 0), |file| file.device)
    }

    /// An error if the program closed the descriptor: its number may be another file's.
    fn check(&self) -> Result<()> {
        self.descriptors().map_or(Ok(()), Descriptors::check)
    }

    fn local(&self, what: &str) -> Result<&FileSource> {
        let file = self.file.as_deref().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("cannot {what} of a source that is not a file"))
                .with("source", self.source.name())
        })?;
        file.descriptors.check()?;
        Ok(file)
    }
}

fn duplicate(fd: &Fd) -> Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(Error::last_os("cannot duplicate a descriptor"));
    }
    // SAFETY: the descriptor is new and ours alone.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    fd.check()?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn room_is_pages_in_memory_and_a_hole_elsewhere() {
        let program = std::env::current_exe().unwrap();
        for (folder, expected) in [(Path::new("/dev/shm"), 300 << 20), (program.parent().unwrap(), 0)] {
            let temporary = tempfile::NamedTempFile::new_in(folder).unwrap();
            let file = File::options().read(true).write(true).open(temporary.path()).unwrap();
            file.make_room((300 << 20) - 5).unwrap();
            let found = temporary.as_file().metadata().unwrap();
            assert_eq!((found.len(), found.blocks() * 512), ((300 << 20) - 5, expected), "{folder:?}");
            file.make_room(0).unwrap();
            assert!(file.is_empty().unwrap());
        }
    }
}
