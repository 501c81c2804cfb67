//! The child program: signals are passed to it, and its exit code is returned.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};

use forebay_error::{Error, ErrorKind};

use crate::console::Failure;

/// Signals sent to this process that are meant for the program.
const PASSED_ON: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// The program's process while it runs.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// A signal that came before there was a program.
static EARLY: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid pointer (SA_SIGINFO).
    if unsafe { (*info).si_code } == libc::SI_KERNEL {
        // From the terminal: the program is in the same process group and has got it too.
        return;
    }
    match CHILD.load(Ordering::SeqCst) {
        0 => EARLY.store(signal, Ordering::SeqCst),
        // SAFETY: kill may be called in a handler; the process is our child and not yet reaped. errno is put back for
        // the code that was interrupted.
        child => unsafe {
            let errno = *libc::__errno_location();
            libc::kill(child, signal);
            *libc::__errno_location() = errno;
        },
    }
}

/// Passes signals on until it is dropped.
struct Guard([(libc::c_int, libc::sigaction); PASSED_ON.len()]);

impl Guard {
    fn new() -> Self {
        EARLY.store(0, Ordering::SeqCst);
        Self(PASSED_ON.map(|signal| {
            // SAFETY: all-zero bytes are a valid sigaction; the handler does only what handlers may; what was there is
            // kept for `drop`.
            unsafe {
                let mut ours: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = pass_on;
                ours.sa_sigaction = handler as libc::sighandler_t;
                ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigaction(signal, &ours, &mut before);
                // Signals that this process ignores (nohup) the program ignores, too.
                if before.sa_sigaction == libc::SIG_IGN {
                    libc::sigaction(signal, &before, std::ptr::null_mut());
                }
                (signal, before)
            }
        }))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        for (signal, before) in &self.0 {
            // SAFETY: puts back what sigaction gave in `new`.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
    }
}

/// Runs the program to its end and returns its exit code, 128 and the signal's number if one ended it.
pub(super) fn run(mut command: Command) -> Result<i32, Failure> {
    let guard = Guard::new();
    let mut child = command.spawn().map_err(|error| cannot_run(&command, &error))?;
    let id = child.id() as libc::pid_t;
    CHILD.store(id, Ordering::SeqCst);
    let early = EARLY.swap(0, Ordering::SeqCst);
    if early != 0 {
        // SAFETY: our own child, not yet reaped.
        unsafe { libc::kill(id, early) };
    }
    // SAFETY: all-zero bytes are a valid siginfo_t, and it is a valid place for the answer. The child stays a zombie:
    // while its number is in CHILD it is nobody else's.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        while libc::waitid(libc::P_PID, id as libc::id_t, &mut info, libc::WEXITED | libc::WNOWAIT) != 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
    }
    CHILD.store(0, Ordering::SeqCst);
    let status = child.wait().map_err(|error| Error::from_io(&error, "cannot wait for the program"))?;
    drop(guard);
    Ok(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1))
}

/// As shells do: 127 for a program that is not there, 126 for one that cannot be run.
fn cannot_run(command: &Command, error: &std::io::Error) -> Failure {
    let program = command.get_program().to_string_lossy();
    let reason = Error::from_io(error, "cannot run the program").with("program", &program);
    if reason.kind() == ErrorKind::NotFound {
        return Failure { error: reason.hint(format!("check the name: command -v {program}")), code: 127 };
    }
    Failure { error: reason.hint("check that it is a program that you may run: ls -lL"), code: 126 }
}
