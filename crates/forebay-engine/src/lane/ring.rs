//! A lane's io_uring: registered buffers where the memory limit allows, an eventfd that wakes the lane out of a wait.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use forebay_error::{Error, ErrorKind, Result};

use crate::receipt::Note;
use crate::sys::EventFd;
use crate::transfer::Direction;

/// Submission queue entries.
const ENTRIES: u32 = 512;
/// User data of the eventfd's read.
const WAKE: u64 = u64::MAX;
/// The most bytes of one operation: above this the kernel's 32-bit result would not hold it.
const OPERATION_MOST: usize = 1 << 30;
/// Files that a lane keeps registered while it is busy.
const FILES: u32 = 16;

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
    uring: IoUring,
    polled: bool,
    fixed: bool,
    files: Option<Vec<Option<Registrable>>>,
    /// Operations in the kernel, without the eventfd's read.
    outstanding: usize,
    armed: bool,
    count: Box<u64>,
    wake_fd: RawFd,
}

impl Ring {
    /// A ring for the calling thread. Notes tell what had to be left out.
    ///
    /// `memory` is registered, if any is given. `polled` lets a thread of the kernel take submissions.
    pub(crate) fn new(
        memory: Option<(*mut u8, usize)>,
        polled: bool,
        wake: &EventFd,
        notes: &mut Vec<Note>,
    ) -> Result<Self> {
        let ring = if polled { build_polled() } else { build() }.map_err(|error| explain(&error))?;
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
        let files = ring.submitter().register_files_sparse(FILES).is_ok().then(|| vec![None; FILES as usize]);
        Ok(Self {
            uring: ring,
            polled,
            fixed,
            files,
            outstanding: 0,
            armed: false,
            count: Box::new(0),
            wake_fd: wake.fd(),
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
            self.submit()?;
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
            let done = self.uring.submitter().register_files_update(place as u32, &[new.fd]);
            files[place] = done.is_ok().then_some(new);
        }
    }

    /// Lets go of all registered descriptors. A registered descriptor keeps its file open (and its mount busy), so an
    /// idle lane holds none.
    pub(crate) fn forget_files(&mut self) {
        let Some(files) = &mut self.files else { return };
        if files.iter().any(Option::is_some) {
            files.fill(None);
            let none = vec![-1; files.len()];
            // A failure would leave a stale entry that the next registration overwrites.
            let _ = self.uring.submitter().register_files_update(0, &none);
        }
    }

    /// Starts what is queued.
    pub(crate) fn submit(&mut self) -> Result<()> {
        loop {
            match self.uring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if interrupted(&error) => {}
                Err(error) => return Err(Error::from_io(&error, "io_uring refused a submission")),
            }
        }
    }

    /// Starts what is queued and waits until `want` operations have completed, the lane is woken, or `limit` has passed.
    /// A lane that is to wait for several must set a limit.
    pub(crate) fn wait(&mut self, want: usize, limit: Option<Duration>) -> Result<()> {
        if limit.is_none() && !self.armed {
            let read =
                opcode::Read::new(Fd(self.wake_fd), (&raw mut *self.count).cast(), 8).build().user_data(WAKE);
            self.push(&read)?;
            self.armed = true;
        }
        let waited = match limit {
            None => self.uring.submit_and_wait(1),
            Some(limit) => {
                let time = Timespec::from(limit);
                self.uring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&time))
            }
        };
        match waited {
            Ok(_) => Ok(()),
            Err(error) if interrupted(&error) || error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            Err(error) => Err(Error::from_io(&error, "waiting on io_uring failed")),
        }
    }

    /// Whether a read of the eventfd is in flight: a signal then shows in the ring, not to [`EventFd::sleep`].
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
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
    pub(crate) fn poll(&mut self) -> Result<()> {
        // The kernel's own thread posts completions by itself.
        if self.outstanding == 0 || self.polled {
            return Ok(());
        }
        let mut submission = self.uring.submission();
        submission.sync();
        let idle = submission.is_empty() && !submission.taskrun();
        drop(submission);
        if idle { Ok(()) } else { self.submit_and_run() }
    }

    fn submit_and_run(&mut self) -> Result<()> {
        const GETEVENTS: u32 = 1;
        let queued = self.uring.submission().len() as u32;
        // SAFETY: no argument is passed.
        let done = unsafe { self.uring.submitter().enter::<libc::sigset_t>(queued, 0, GETEVENTS, None) };
        match done {
            Ok(_) => Ok(()),
            Err(error) if interrupted(&error) => Ok(()),
            Err(error) => Err(Error::from_io(&error, "io_uring refused a submission")),
        }
    }
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
