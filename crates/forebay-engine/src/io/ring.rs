//! A lane's io_uring: registered buffers where the memory limit allows, an eventfd that wakes the lane out of a wait.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, Fixed, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::HostRange;
use forebay_sys::descriptor_table::HIGH_DESCRIPTOR;

use super::wake::WakeEvent;
use crate::request::receipt::Note;
use crate::runtime::owned::lost;
use crate::runtime::sys::{self, Identity};
use crate::source::piece::Direction;
use crate::tuning::files::FILES;
use crate::tuning::lanes::DEPTH;
use crate::tuning::machine::{BRIEF_WAIT, PATIENCE};

/// User data of the eventfd's read.
const WAKE_DATA: u64 = u64::MAX;
/// The most bytes of one operation: above this the kernel's 32-bit result would not hold it.
const MAX_OPERATION_BYTES: usize = 1 << 30;
/// Where the eventfd is registered, behind the files.
const WAKE_SLOT: u32 = FILES;
/// Entries of the submission queue: there is always room.
const ENTRIES: u32 = 4 * DEPTH as u32;
/// Pieces of memory that can be registered: a lane's memory grows twice.
const MAX_BUFFERS: u32 = 3;

/// A descriptor and its file: when a file is closed, the number may become another file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingFile {
    pub(crate) fd: RawFd,
    /// [`Descriptors::id`](crate::source::Descriptors).
    pub(crate) file: u64,
}

/// An operation to queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingOperation {
    pub(crate) direction: Direction,
    pub(crate) on: RingFile,
    pub(crate) memory: HostRange,
    pub(crate) offset: u64,
    pub(crate) user: u64,
    /// The memory lies in the registered memory.
    pub(crate) registered: bool,
    /// A read that takes only what the page cache has.
    pub(crate) nowait: bool,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingCompletion {
    pub(crate) user: u64,
    pub(crate) result: i32,
}

pub(crate) struct Ring {
    /// Dropping it closes its number: see [`Ring::drop`].
    uring: ManuallyDrop<IoUring>,
    identity: Option<Identity>,
    /// The thread's index for it, which stays valid if the descriptor is closed.
    index: Option<u32>,
    broken: bool,
    polled: bool,
    /// Registered memory: addresses where it begins and ends.
    fixed: Vec<HostRange>,
    files: Option<Vec<Option<RingFile>>>,
    /// Operations in the kernel, without the eventfd's read.
    outstanding: usize,
    armed: bool,
    /// Where the eventfd's read puts its bytes, perhaps late: see [`Ring::drop`].
    count: ManuallyDrop<Box<u64>>,
    wake_fd: RawFd,
}

/// What a lane says whose memory, or a part of it, the kernel did not register.
fn unregistered(error: &io::Error) -> Note {
    Note {
        text: format!("io_uring works without registered buffers: {error}"),
        hint: Some("raise the limit of locked memory: ulimit -l unlimited".to_owned()),
    }
}

impl Ring {
    /// A ring for the calling thread. Notes tell what it works without.
    ///
    /// `memory` is registered, if any is given. `polled` lets a thread of the kernel take submissions.
    pub(crate) fn new(
        memory: Option<HostRange>,
        polled: bool,
        wake: &WakeEvent,
        notes: &mut Vec<Note>,
    ) -> Result<Self> {
        let ring = if polled { build_polled() } else { build() }.map_err(|error| explain(&error))?;
        let ring = move_high(ring);
        let fixed = match memory.map(|memory| register_first(&ring, memory)) {
            None => Vec::new(),
            Some(Ok(())) => memory.into_iter().collect(),
            Some(Err(error)) => {
                notes.push(unregistered(&error));
                Vec::new()
            }
        };
        let files = ring
            .submitter()
            .register_files_sparse(FILES + 1)
            .and_then(|()| ring.submitter().register_files_update(WAKE_SLOT, &[wake.as_raw_fd()]))
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

    /// Registers more of the lane's memory, if the first could be. Operations on it are dearer where that fails:
    /// the note says so.
    pub(crate) fn register_more(&mut self, memory: HostRange) -> Option<Note> {
        let at = self.fixed.len() as u32;
        if !(1..MAX_BUFFERS).contains(&at) {
            return None;
        }
        // SAFETY: the memory is the lane's, which outlives the ring.
        match unsafe { self.uring.submitter().register_buffers_update(at, &[sys::iovec(memory)], None) } {
            Ok(()) => {
                self.fixed.push(memory);
                None
            }
            Err(error) => Some(unregistered(&error)),
        }
    }

    /// Operations in flight.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Queues an operation; it starts with the next [`Ring::submit`] or [`Ring::wait`].
    ///
    /// # Safety
    /// The buffer stays valid, and the descriptor open, until the operation is reported as completed.
    pub(crate) unsafe fn queue(&mut self, operation: &RingOperation) -> Result<()> {
        let file =
            self.files.as_ref().and_then(|files| files.iter().position(|slot| *slot == Some(operation.on)));
        let entry = self.entry(operation, file);
        self.push(&entry)?;
        self.outstanding += 1;
        Ok(())
    }

    fn entry(&self, operation: &RingOperation, file: Option<usize>) -> squeue::Entry {
        let RingOperation { direction, on: RingFile { fd, .. }, memory, offset, .. } = *operation;
        let (buffer, len) = (memory.start, memory.len.min(MAX_OPERATION_BYTES) as u32);
        let is_in = |fixed: &HostRange| (fixed.start..fixed.after(fixed.len).start).contains(&buffer);
        let fixed = operation.registered.then(|| self.fixed.iter().position(is_in)).flatten();
        let flags = if operation.nowait { libc::RWF_NOWAIT } else { 0 };
        // The builder's type differs by the kind of descriptor, so each operation is spelled out for both.
        macro_rules! build {
            ($operation:ident $(, $index:expr)?) => {
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
        let entry = match (direction, fixed) {
            (Direction::Read, Some(index)) => build!(ReadFixed, index as u16),
            (Direction::Read, None) => build!(Read),
            (Direction::Write, Some(index)) => build!(WriteFixed, index as u16),
            (Direction::Write, None) => build!(Write),
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

    /// Registers a descriptor while the lane is busy: operations on it are cheaper then.
    pub(crate) fn register_file(&mut self, new: RingFile) {
        let Some(files) = &mut self.files else { return };
        if files.contains(&Some(new)) {
            return;
        }
        // The file that had the number before is closed, so none of its operations is left.
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

    /// Whether a descriptor is registered: the ring then holds its file, even if the number is closed.
    pub(crate) fn has_file(&self, on: RingFile) -> bool {
        self.files.as_ref().is_some_and(|files| files.contains(&Some(on)))
    }

    /// Unregisters a descriptor.
    pub(crate) fn forget_file(&mut self, on: RingFile) {
        let Some(files) = &mut self.files else { return };
        if let Some(place) = files.iter().position(|slot| *slot == Some(on)) {
            files[place] = None;
            self.update_files(place as u32, &[-1]);
        }
    }

    /// Puts descriptors into the table. Returns whether they are there.
    fn update_files(&self, first: u32, fds: &[RawFd]) -> bool {
        let update = FilesUpdate { first, reserved: 0, fds: fds.as_ptr() as u64 };
        // SAFETY: the structure, and the list that it names, live through the call.
        let call = |ring: RawFd, how: u32| unsafe {
            let what = REGISTER_FILES_UPDATE | how;
            libc::syscall(libc::SYS_io_uring_register, ring, what, &raw const update, fds.len())
        };
        let done = match self.index.map(|index| call(index as RawFd, USE_REGISTERED_RING)) {
            Some(done) if done >= 0 => done,
            // Before Linux 6.3 the kernel takes only a descriptor.
            _ => call(self.uring.as_raw_fd(), 0),
        };
        done == fds.len() as libc::c_long
    }

    /// Unregisters all descriptors. A registered descriptor keeps its file open (and its mount busy), so an
    /// idle lane holds none.
    pub(crate) fn forget_files(&mut self) {
        let Some(files) = &mut self.files else { return };
        if files.iter().any(Option::is_some) {
            files.fill(None);
            // A failure would leave a stale entry that the next registration overwrites.
            self.update_files(0, &[-1; FILES as usize]);
        }
    }

    /// Starts queued operations.
    pub(crate) fn submit(&mut self) {
        while self.enter(0, 0, None).is_err_and(|error| interrupted(&error)) {}
    }

    /// Starts queued operations and waits until `want` operations have completed, the lane is woken, or `limit` has passed.
    /// A wait for several operations needs a limit.
    pub(crate) fn wait(&mut self, want: usize, limit: Option<Duration>) {
        if limit.is_none() && !self.armed {
            self.arm();
        }
        // A signal and the end of the time end the wait like a completion.
        let _ = self.enter(if limit.is_none() { 1 } else { want }, 0, limit);
    }

    fn arm(&mut self) {
        let count = (&raw mut **self.count).cast();
        let read = match self.files {
            Some(_) => opcode::Read::new(Fixed(WAKE_SLOT), count, 8).build(),
            None => opcode::Read::new(Fd(self.wake_fd), count, 8).build(),
        };
        // If the ring does not take it, the ring is broken.
        self.armed = self.push(&read.user_data(WAKE_DATA)).is_ok();
    }

    /// Whether the kernel takes no more operations from it.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Waits for operations that a broken ring has begun, as far as the kernel reports them. Its mapped memory keeps it alive.
    pub(crate) fn settle(&mut self) {
        let (start, mut late) = (Instant::now(), Vec::new());
        loop {
            self.harvest(&mut late);
            let queued = self.uring.submission().len();
            if self.outstanding <= queued || start.elapsed() > PATIENCE {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Moves completions to `into`.
    pub(crate) fn harvest(&mut self, into: &mut Vec<RingCompletion>) {
        for entry in self.uring.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())) {
            match entry {
                (WAKE_DATA, _) => self.armed = false,
                (user, result) => {
                    self.outstanding -= 1;
                    into.push(RingCompletion { user, result });
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
            // Completions that a signal held back come with the next call.
            let _ = self.enter(0, GETEVENTS, None);
        }
    }

    /// The system call that starts operations, waits, and takes in completions. A lasting error breaks the ring.
    fn enter(&mut self, want: usize, more: u32, limit: Option<Duration>) -> io::Result<()> {
        let queue = self.uring.submission();
        let (queued, sleeps) = (queue.len(), self.polled && queue.need_wakeup());
        let has_more = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if self.polled && !sleeps && want == 0 && !has_more && more == 0 {
            return Ok(());
        }
        let time = limit.map(Timespec::from);
        let argument = EnterArgument {
            signals: 0,
            size: 0,
            reserved: 0,
            time: time.as_ref().map_or(0, |time| std::ptr::from_ref(time) as u64),
        };
        let (argument, size, extended) = match &time {
            Some(_) => (&raw const argument, size_of::<EnterArgument>(), EXT_ARG),
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
    /// Closes the descriptor only if it still is the ring's. Otherwise the mapped memory stays.
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
struct EnterArgument {
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

/// Registers a lane's first memory, with room for more (Linux 5.19).
fn register_first(ring: &IoUring, memory: HostRange) -> io::Result<()> {
    let (iovec, submitter) = (sys::iovec(memory), ring.submitter());
    // SAFETY: the memory is the lane's, which outlives the ring.
    unsafe {
        match submitter.register_buffers_sparse(MAX_BUFFERS) {
            Ok(()) => submitter.register_buffers_update(0, &[iovec], None),
            Err(_) => submitter.register_buffers(&[iovec]),
        }
    }
}

/// Registers a ring with the calling thread (Linux 5.18): the index cannot be closed, and ends with the thread.
fn register_ring(fd: RawFd) -> Option<u32> {
    let mut update = RingUpdate { index: u32::MAX, reserved: 0, fd: fd as u64 };
    // SAFETY: the structure lives through the call.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, &raw mut update, 1) };
    (done == 1).then_some(update.index)
}

/// The same ring under a high descriptor, which a program's own files do not get.
fn move_high(ring: IoUring) -> IoUring {
    // SAFETY: no pointers are passed.
    let copy = unsafe { libc::fcntl(ring.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) };
    if copy < 0 {
        return ring;
    }
    // SAFETY: the descriptor is new, ours alone, and of the ring with these parameters.
    unsafe { IoUring::from_fd(copy, ring.params().clone()) }.unwrap_or(ring)
}

/// A ring whose submissions a thread of the kernel takes: they need no system call while it is awake.
fn build_polled() -> io::Result<IoUring> {
    let asleep_after = (BRIEF_WAIT / 2).as_millis() as u32;
    IoUring::builder()
        .setup_sqpoll(asleep_after)
        .setup_single_issuer()
        .setup_cqsize(ENTRIES * 4)
        .build(ENTRIES)
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
    let told = Error::new(ErrorKind::Unsupported, format!("io_uring is not available: {error}"));
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
