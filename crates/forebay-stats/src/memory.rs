//! The memory that the counters live in: a memfd, a file, or nobody else's.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind as IoKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forebay_error::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::layout::{CounterRegion, SIZE};

/// The memfd's name.
pub(crate) const NAME: &str = "forebay-counters";
/// How names of files end that take the memfd's place.
pub(crate) const SUFFIX: &str = ".counters";
/// Names a directory; the counters are a file there, which stays when the process is gone.
pub const DIRECTORY_VARIABLE: &str = "FOREBAY_COUNTERS_DIR";

/// Mapped counters.
pub(crate) struct CounterMemory {
    region: NonNull<CounterRegion<AtomicU64>>,
    /// Found by readers under /proc/PID/fd; none if nobody is to find it.
    file: Option<File>,
}

// SAFETY: the region is atomics only and lives until the value is dropped.
unsafe impl Send for CounterMemory {}
// SAFETY: as above.
unsafe impl Sync for CounterMemory {}

impl std::ops::Deref for CounterMemory {
    type Target = CounterRegion<AtomicU64>;
    fn deref(&self) -> &Self::Target {
        // SAFETY: mapped, readable and writable, of that size, until drop; atomics may be shared.
        unsafe { self.region.as_ref() }
    }
}

impl CounterMemory {
    /// Memory that others find: in `directory` if there is one, else a memfd.
    pub(crate) fn shared(directory: Option<&OsStr>) -> Result<Self> {
        let file = match directory {
            Some(directory) => in_directory(Path::new(directory))?,
            None => memfd()?,
        };
        Self::map(Some(file))
    }

    /// Memory that nobody finds.
    pub(crate) fn hidden() -> Result<Self> {
        Self::map(None)
    }

    fn map(file: Option<File>) -> Result<Self> {
        let (flags, fd) = match &file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Error::last_os("cannot map the counters"));
        }
        let memory = NonNull::new(at.cast()).map(|region| Self { region, file });
        let memory = memory.ok_or_else(|| Error::new(ErrorKind::Internal, "counters mapped at address 0"))?;
        if memory.file.is_some() && !children::protect(at as usize) {
            return Err(Error::new(
                ErrorKind::Busy,
                "cannot make counters: this process has too many of them",
            ));
        }
        Ok(memory)
    }
}

impl Drop for CounterMemory {
    fn drop(&mut self) {
        children::forget(self.region.as_ptr() as usize);
        // SAFETY: mapped by us with this size; nothing borrows it any more.
        unsafe { libc::munmap(self.region.as_ptr().cast(), SIZE) };
    }
}

fn memfd() -> Result<File> {
    let cannot =
        |errno: Errno| Error::from_errno(errno.raw_os_error(), "cannot make a memory file for the counters");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = above_standard(File::from(memfd_create(c"forebay-counters", flags).map_err(cannot)?))?;
    make_private(&file)?;
    make_long(&file)?;
    // Readers map or read it without fear that it shrinks. A kernel without seals does no harm.
    let _ = fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW);
    Ok(file)
}

/// A new file `PID.counters`, or `PID.2.counters` where the process had another program before.
fn in_directory(directory: &Path) -> Result<File> {
    let pid = std::process::id();
    for attempt in 1..100 {
        let mut name = OsString::from(pid.to_string());
        if attempt > 1 {
            name.push(format!(".{attempt}"));
        }
        name.push(SUFFIX);
        let path = directory.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        match options.open(&path) {
            Ok(file) => {
                let file = above_standard(file)?;
                make_private(&file)?;
                // Room now: a full disk would be a SIGBUS later.
                // SAFETY: a call on a descriptor of ours.
                let errno = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, SIZE as i64) };
                if errno != 0 {
                    let _ = std::fs::remove_file(&path);
                    let error = Error::from_errno(errno, "cannot make room for the counters");
                    return Err(error.with("path", path.display()));
                }
                return Ok(file);
            }
            Err(error) if error.kind() == IoKind::AlreadyExists => {}
            Err(error) => {
                let error = Error::from_io(&error, "cannot make a file for the counters");
                return Err(error
                    .with("path", path.display())
                    .hint(format!("name a directory that may be written: {DIRECTORY_VARIABLE}=/tmp")));
            }
        }
    }
    Err(Error::new(ErrorKind::AlreadyExists, "cannot make a file for the counters: too many are there")
        .with("directory", directory.display())
        .with("pid", pid)
        .hint(format!("rm {}/{pid}.*{SUFFIX}", directory.display())))
}

/// Descriptors 0 to 2 stay the program's, even if it closed them.
fn above_standard(file: File) -> Result<File> {
    if file.as_raw_fd() > 2 {
        return Ok(file);
    }
    rustix::io::fcntl_dupfd_cloexec(&file, 3)
        .map(File::from)
        .map_err(|errno| Error::from_errno(errno.raw_os_error(), "cannot make a descriptor for the counters"))
}

fn make_private(file: &File) -> Result<()> {
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
        .map_err(|error| Error::from_io(&error, "cannot protect the counters"))
}

fn make_long(file: &File) -> Result<()> {
    // A file beyond the limit costs the process a signal, not an error.
    if let Some(limit) = getrlimit(Resource::Fsize).current
        && limit < SIZE as u64
    {
        let error =
            Error::new(ErrorKind::NoSpace, "cannot make counters: the limit of file sizes forbids it");
        return Err(error.with("limit", limit).hint("ulimit -f unlimited"));
    }
    file.set_len(SIZE as u64).map_err(|error| Error::from_io(&error, "cannot size the counters"))
}

/// A forked child has its parent's counters mapped. It must not count in them: in the child, memory of its own
/// takes their place.
mod children {
    use super::{AtomicUsize, Once, Ordering, SIZE};

    static MAPPED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

    /// Called in a child before anything else runs there: only a system call, no locks, no allocation.
    extern "C" fn in_child() {
        for place in &MAPPED {
            let at = place.load(Ordering::Relaxed);
            if at != 0 {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                // SAFETY: replaces exactly our own mapping; it holds atomics, for which zero is a value.
                unsafe { libc::mmap(at as *mut _, SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
            }
        }
    }

    pub(super) fn protect(at: usize) -> bool {
        static ONCE: Once = Once::new();
        // SAFETY: the handler is a function of this library that only does what a child may do.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
        MAPPED.iter().any(|place| place.compare_exchange(0, at, Ordering::SeqCst, Ordering::Relaxed).is_ok())
    }

    pub(super) fn forget(at: usize) {
        for place in &MAPPED {
            let _ = place.compare_exchange(at, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}
