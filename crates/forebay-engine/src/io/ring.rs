//! A lane's io_uring: registered buffers where the memory limit allows, an eventfd that wakes the lane out of a wait.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, Fixed, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use forebay_config::files::APART;
use forebay_error::{Error, ErrorKind, Result};

use super::wake::Wake;
use crate::request::receipt::Note;
use crate::runtime::owned::lost;
use crate::runtime::sys::{self, Identity};
use crate::source::piece::Direction;

/// Submission queue entries.
const ENTRIES: u32 = 512;
/// User data of the eventfd's read.
const WAKE: u64 = u64::MAX;
/// The most bytes of one operation: above this the kernel's 32-bit result would not hold it.
const OPERATION_MOST: usize = 1 << 30;
/// Files that a lane keeps registered while it is busy.
const FILES: u32 = 16;
/// Where the eventfd is registered, behind those.
const WAKE_AT: u32 = FILES;
/// How long a ring that is given up may take to end what it has begun.
const SETTLES: Duration = Duration::from_secs(10);

/// A descriptor, and the file whose it is: as soon as a file is closed, its descriptor's number may be another file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registrable {
    pub(crate) fd: RawFd,
    /// [`Descriptors::id`](crate::source::Descriptors).
    pub(crate) file: u64,
}

/// An operation to queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) direction: Direction,
    pub(crate) on: Registrable,
    pub(crate) buffer: *mut u8,
    pub(crate) len: usize,
    pub(crate) offset: u64,
    pub(crate) user: u64,
    /// The buffer lies in the registered memory.
    pub(crate) registered: bool,
    /// A read that takes only what the page cache has.
    pub(crate) nowait: bool,
}

/// An operation's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) user: u64,
    pub(crate) result: i32,
}

pub(crate) struct Ring {
    /// Dropping it closes its number: see [`Ring::drop`].
    uring: ManuallyDrop<IoUring>,
    identity: Option<Identity>,
    /// By which the thread knows it, whatever becomes of its descriptor.
    index: Option<u32>,
    broken: bool,
    polled: bool,
    fixed: bool,
    files: Option<Vec<Option<Registrable>>>,
    /// Operations in the kernel, without the eventfd's read.
    outstanding: usize,
    armed: bool,
    /// Where the eventfd's read puts its bytes, at whatever time: see [`Ring::drop`].
    count: ManuallyDrop<Box<u64>>,
    wake_fd: RawFd,
}

impl Ring {
    /// A ring for the calling thread. Notes tell what had to be left out.
    ///
    /// `memory` is registered, if any is given. `polled` lets a thread of the kernel take submissions.
    pub(crate) fn new(
        memory: Option<(*mut u8, usize)>,
        polled: bool,
        wake: &Wake,
        notes: &mut Vec<Note>,
    ) -> Result<Self> {
        let ring = if polled { build_polled() } else { build() }.map_err(|error| explain(&error))?;
        let ring = apart(ring);
        let register = |(start, len): (*mut u8, usize)| {
            let iovec = libc::iovec { iov_base: start.cast(), iov_len: len };
            // SAFETY: the memory belongs to the lane's arena, which outlives the ring.
            unsafe { ring.submitter().register_buffers(&[iovec]) }
        };
        let fixed = match memory.map(register) {
            None => false,
            Some(Ok(())) => true,
            Some(Err(error)) => {
                notes.push(Note {
                    text: format!("io_uring works without registered buffers: {error}"),
                    hint: Some("raise the limit of locked memory: ulimit -l unlimited".to_owned()),
                });
                false
            }
        };
        let files = ring
            .submitter()
            .register_files_sparse(FILES + 1)
            .and_then(|()| ring.submitter().register_files_update(WAKE_AT, &[wake.as_raw_fd()]))
            .is_ok()
            .then(|| vec![None; FILES as usize]);
        let index = register_ring(ring.as_raw_fd());
        Ok(Self {
            identity: sys::identity(ring.as_raw_fd()),
            uring: ManuallyDrop::new(ring),
            index,
            broken: false,
            polled,
            fixed,
            files,
            outstanding: 0,
            armed: false,
            count: ManuallyDrop::new(Box::new(0)),
            wake_fd: wake.as_raw_fd(),
        })
    }

    /// Operations in flight.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Queues an operation; it starts with the next [`Ring::submit`] or [`Ring::wait`].
    ///
    /// # Safety
    /// The buffer stays valid, and the descriptor open, until the operation is reported as completed.
    pub(crate) unsafe fn queue(&mut self, operation: &Operation) -> Result<()> {
        let file =
            self.files.as_ref().and_then(|files| files.iter().position(|slot| *slot == Some(operation.on)));
        let entry = self.entry(operation, file);
        self.push(&entry)?;
        self.outstanding += 1;
        Ok(())
    }

    fn entry(&self, operation: &Operation, file: Option<usize>) -> squeue::Entry {
        let Operation { direction, on: Registrable { fd, .. }, buffer, offset, .. } = *operation;
        let len = operation.len.min(OPERATION_MOST) as u32;
        let registered = operation.registered && self.fixed;
        let flags = if operation.nowait { libc::RWF_NOWAIT } else { 0 };
        // The builder's type differs by the kind of descriptor, so each operation is spelled out for both.
        macro_rules! build {
            ($operation:ident $(, $index:literal)?) => {
                match file {
                    Some(at) => opcode::$operation::new(Fixed(at as u32), buffer, len $(, $index)?)
                        .offset(offset)
                        .rw_flags(flags)
                        .build(),
                    None => opcode::$operation::new(Fd(fd), buffer, len $(, $index)?)
                        .offset(offset)
                        .rw_flags(flags)
                        .build(),
                }
            };
        }
        let entry = match (direction, registered) {
            (Direction::Read, true) => build!(ReadFixed, 0),
            (Direction::Read, false) => build!(Read),
            (Direction::Write, true) => build!(WriteFixed, 0),
            (Direction::Write, false) => build!(Write),
        };
        entry.user_data(operation.user)
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<()> {
        // SAFETY: `queue` passes its caller's promise on; the eventfd's buffer is boxed and lives with the ring.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.submit();
            if self.broken {
                return Err(lost());
            }
        }
        Ok(())
    }

    /// Registers a descriptor for the time that the lane is busy: each operation on it is then a little cheaper.
    pub(crate) fn register_file(&mut self, new: Registrable) {
        let Some(files) = &mut self.files else { return };
        if files.contains(&Some(new)) {
            return;
        }
        // Who had the number before is closed, so none of his operations is left.
        let before = files.iter().position(|slot| slot.is_some_and(|old| old.fd == new.fd));
        if let Some(place) = before.or_else(|| files.iter().position(Option::is_none)) {
            files[place] = None;
            if self.update_files(place as u32, &[new.fd])
                && let Some(files) = &mut self.files
            {
                files[place] = Some(new);
            }
        }
    }

    /// Whether a descriptor is registered: the ring holds its file then, whatever becomes of the number.
    pub(crate) fn has_file(&self, on: Registrable) -> bool {
        self.files.as_ref().is_some_and(|files| files.contains(&Some(on)))
    }

    /// Lets go of one.
    pub(crate) fn forget_file(&mut self, on: Registrable) {
        let Some(files) = &mut self.files else { return };
        if let Some(place) = files.iter().position(|slot| *slot == Some(on)) {
            files[place] = None;
            self.update_files(place as u32, &[-1]);
        }
    }

    /// Puts descriptors into the table; whether they are there.
    fn update_files(&self, first: u32, fds: &[RawFd]) -> bool {
        let update = FilesUpdate { first, reserved: 0, fds: fds.as_ptr() as u64 };
        // SAFETY: the structure, and the list that it names, live through the call.
        let call = |ring: RawFd, how: u32| unsafe {
            let what = REGISTER_FILES_UPDATE | how;
            libc::syscall(libc::SYS_io_uring_register, ring, what, &raw const update, fds.len())
        };
        let done = match self.index.map(|index| call(index as RawFd, USE_REGISTERED_RING)) {
            Some(done) if done >= 0 => done,
            // Before Linux 6.3 only a number will do.
            _ => call(self.uring.as_raw_fd(), 0),
        };
        done == fds.len() as libc::c_long
    }

    /// Lets go of all registered descriptors. A registered descriptor keeps its file open (and its mount busy), so an
    /// idle lane holds none.
    pub(crate) fn forget_files(&mut self) {
        let Some(files) = &mut self.files else { return };
        if files.iter().any(Option::is_some) {
            files.fill(None);
            // A failure would leave a stale entry that the next registration overwrites.
            self.update_files(0, &[-1; FILES as usize]);
        }
    }

    /// Starts what is queued.
    pub(crate) fn submit(&mut self) {
        while self.enter(0, 0, None).is_err_and(|error| interrupted(&error)) {}
    }

    /// Starts what is queued and waits until `want` operations have completed, the lane is woken, or `limit` has passed.
    /// A lane that is to wait for several must set a limit.
    pub(crate) fn wait(&mut self, want: usize, limit: Option<Duration>) {
        if limit.is_none() && !self.armed {
            self.arm();
        }
        // A signal, or the end of the time, is as good as a completion.
        let _ = self.enter(if limit.is_none() { 1 } else { want }, 0, limit);
    }

    fn arm(&mut self) {
        let count = (&raw mut **self.count).cast();
        let read = match self.files {
            Some(_) => opcode::Read::new(Fixed(WAKE_AT), count, 8).build(),
            None => opcode::Read::new(Fd(self.wake_fd), count, 8).build(),
        };
        // A ring that does not take it is broken.
        self.armed = self.push(&read.user_data(WAKE)).is_ok();
    }

    /// Whether the kernel takes nothing from it any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Waits for what a broken ring has begun, as far as it says. Its memory, which is mapped, keeps it alive.
    pub(crate) fn settle(&mut self) {
        let (start, mut late) = (Instant::now(), Vec::new());
        loop {
            self.harvest(&mut late);
            let queued = self.uring.submission().len();
            if self.outstanding <= queued || start.elapsed() > SETTLES {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Moves what has completed to `into`.
    pub(crate) fn harvest(&mut self, into: &mut Vec<Completed>) {
        for entry in self.uring.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())) {
            match entry {
                (WAKE, _) => self.armed = false,
                (user, result) => {
                    self.outstanding -= 1;
                    into.push(Completed { user, result });
                }
            }
        }
    }

    /// Lets the kernel post completions that it holds back until the thread asks (deferred task work).
    pub(crate) fn poll(&mut self) {
        // The kernel's own thread posts completions by itself.
        if self.outstanding == 0 || self.polled {
            return;
        }
        let mut submission = self.uring.submission();
        submission.sync();
        let idle = submission.is_empty() && !submission.taskrun();
        drop(submission);
        if !idle {
            // What a signal kept it from comes with the next.
            let _ = self.enter(0, GETEVENTS, None);
        }
    }

    /// The one call that starts, waits and takes in. An error that is not for a moment breaks the ring.
    fn enter(&mut self, want: usize, more: u32, limit: Option<Duration>) -> io::Result<()> {
        let queue = self.uring.submission();
        let (queued, sleeps) = (queue.len(), self.polled && queue.need_wakeup());
        let has_more = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if self.polled && !sleeps && want == 0 && !has_more && more == 0 {
            return Ok(());
        }
        let time = limit.map(Timespec::from);
        let argument = Argument {
            signals: 0,
            size: 0,
            reserved: 0,
            time: time.as_ref().map_or(0, |time| std::ptr::from_ref(time) as u64),
        };
        let (argument, size, extended) = match &time {
            Some(_) => (&raw const argument, size_of::<Argument>(), EXT_ARG),
            None => (std::ptr::null(), 0, 0),
        };
        let waits = if want > 0 || has_more { GETEVENTS } else { 0 };
        let wakes = if sleeps { SQ_WAKEUP } else { 0 };
        let (ring, known) =
            self.index.map_or((self.uring.as_raw_fd(), 0), |index| (index as RawFd, REGISTERED_RING));
        let flags = more | waits | wakes | extended | known;
        // SAFETY: the arguments live through the call.
        let done = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, ring, queued as u32, want as u32, flags, argument, size)
        };
        if done >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        self.broken |= !interrupted(&error) && error.raw_os_error() != Some(libc::ETIME);
        Err(error)
    }
}

impl Drop for Ring {
    /// Closes the ring's number only if it still is the ring's. Otherwise what is mapped stays.
    fn drop(&mut self) {
        if !self.armed {
            // SAFETY: dropped here, once. A read that is in flight writes there until the kernel is done with the ring, which
            // may be later: its eight bytes are left to it.
            unsafe { ManuallyDrop::drop(&mut self.count) };
        }
        if let Some(index) = self.index {
            let update = RingUpdate { index, reserved: 0, fd: 0 };
            // SAFETY: the structure lives through the call. It goes with the thread where this fails.
            unsafe {
                let (call, ring) = (libc::SYS_io_uring_register, self.uring.as_raw_fd());
                libc::syscall(call, ring, UNREGISTER_RING_FDS, &raw const update, 1);
            }
        }
        if self.identity.is_some() && sys::identity(self.uring.as_raw_fd()) == self.identity {
            // SAFETY: dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.uring) };
        }
    }
}

// The interface of linux/io_uring.h that is used here.
const GETEVENTS: u32 = 1 << 0;
const SQ_WAKEUP: u32 = 1 << 1;
const EXT_ARG: u32 = 1 << 3;
const REGISTERED_RING: u32 = 1 << 4;
const REGISTER_FILES_UPDATE: u32 = 6;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;
const USE_REGISTERED_RING: u32 = 1 << 31;

/// `struct io_uring_getevents_arg`
#[repr(C)]
struct Argument {
    signals: u64,
    size: u32,
    reserved: u32,
    time: u64,
}

/// `struct io_uring_files_update`
#[repr(C)]
struct FilesUpdate {
    first: u32,
    reserved: u32,
    fds: u64,
}

/// `struct io_uring_rsrc_update`
#[repr(C)]
struct RingUpdate {
    index: u32,
    reserved: u32,
    fd: u64,
}

/// Has the calling thread know a ring by an index (Linux 5.18), which nobody can close; it goes with the thread.
fn register_ring(fd: RawFd) -> Option<u32> {
    let mut update = RingUpdate { index: u32::MAX, reserved: 0, fd: fd as u64 };
    // SAFETY: the structure lives through the call.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, &raw mut update, 1) };
    (done == 1).then_some(update.index)
}

/// The same ring under a number that a program does not come by.
fn apart(ring: IoUring) -> IoUring {
    // SAFETY: no pointers are passed.
    let copy = unsafe { libc::fcntl(ring.as_raw_fd(), libc::F_DUPFD_CLOEXEC, APART) };
    if copy < 0 {
        return ring;
    }
    // SAFETY: the descriptor is new, ours alone, and of the ring with these parameters.
    unsafe { IoUring::from_fd(copy, ring.params().clone()) }.unwrap_or(ring)
}

/// How long the kernel's thread looks for submissions before it sleeps, in milliseconds.
const POLL_IDLE: u32 = 50;

/// A ring whose submissions a thread of the kernel takes: submitting needs no system call while it is awake.
fn build_polled() -> io::Result<IoUring> {
    IoUring::builder().setup_sqpoll(POLL_IDLE).setup_single_issuer().setup_cqsize(ENTRIES * 4).build(ENTRIES)
}

/// The best ring that this kernel has.
fn build() -> io::Result<IoUring> {
    let modern = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(ENTRIES * 4)
        .build(ENTRIES);
    match modern {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_cqsize(ENTRIES * 4).build(ENTRIES)
        }
        other => other,
    }
}

fn interrupted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Why there is no io_uring, with what to type.
fn explain(error: &io::Error) -> Error {
    let told = Error::new(ErrorKind::Unsupported, format!("io_uring is not to be had: {error}"));
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => told.hint(
            "a container's seccomp profile or sysctl kernel.io_uring_disabled forbids it: \
             run with --security-opt seccomp=unconfined (or a profile that allows io_uring_*), sysctl kernel.io_uring_disabled=0",
        ),
        Some(libc::ENOSYS) => told.hint("the kernel is older than 5.1, or built without it"),
        Some(libc::ENOMEM) => told.hint("raise the limit of locked memory: ulimit -l unlimited"),
        _ => told,
    }
}
