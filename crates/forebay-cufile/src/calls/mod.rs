//! The functions of the interface, and the frame around each.

mod batch;
mod buffer;
mod driver;
mod file;
mod parameter;
mod statistics;
mod stream;
mod topology;
mod transfer;
mod vector;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_sys::forks;

use crate::abi::{CUfileError, code};
use crate::status::{self, RefusedCall};

/// Whether this process is a child of the one that used the library: its threads, and the GPU's state, are gone.
fn is_forked() -> bool {
    forks::count() > 0
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of <pthread.h>.
const CANCEL_DISABLE: c_int = 1;

/// `errno` of this thread.
fn errno() -> c_int {
    // SAFETY: the address of this thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Runs a call of the interface; `None` where a panic ended it, or in a child of fork, before it touches any lock.
///
/// A program's `pthread_cancel` waits until it is over: a cancellation unwinds the stack from within some call of libc,
/// past locks and I/O in flight. Where the program asked for asynchronous ones it strikes at the second call here. So
/// there must be nothing to unwind from here up to the program: nothing to drop, and no frame that stops an unwinding,
/// which is why the interface is `extern "C-unwind"`.
///
/// The program's `errno` stays as it was: our own system calls change it, those of a call that succeeds, too.
fn run<T: Copy>(call: impl FnOnce() -> T) -> Option<T> {
    let kept = errno();
    let mut before = 0;
    // SAFETY: sets a state of this thread; a place of ours.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
    let result = caught(call);
    // SAFETY: sets it back.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    status::set_errno(kept);
    result
}

/// A frame of its own: what catches panics would stop a cancellation.
#[inline(never)]
fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    if is_forked() { None } else { catch_unwind(AssertUnwindSafe(call)).ok() }
}

/// What a call comes to that could not be carried out.
fn broken() -> c_int {
    if is_forked() { code::INVALID_CONTEXT_ERROR } else { code::INTERNAL_ERROR }
}

/// Runs a call of the interface.
fn guarded(call: impl FnOnce() -> Result<(), RefusedCall>) -> CUfileError {
    status::answer(run(call).unwrap_or_else(|| Err(RefusedCall(broken()))))
}

/// As [`guarded`], for calls that give bytes or an errno.
fn guarded_bytes(call: impl FnOnce() -> Result<usize, c_int>) -> isize {
    status::bytes_or_errno(run(call).unwrap_or_else(|| Err(broken())))
}

/// As [`guarded`], for calls that give nothing, or a number that is 0 where there is none.
fn guarded_plain<T: Copy + Default>(call: impl FnOnce() -> T) -> T {
    run(call).unwrap_or_default()
}

/// Writes to a place that a program gave; one that is null is an error.
///
/// # Safety
/// `place` is null or valid.
unsafe fn give<T>(place: *mut T, value: T) -> Result<(), RefusedCall> {
    if place.is_null() {
        return Err(RefusedCall(code::INVALID_VALUE));
    }
    // SAFETY: not null, and valid as the caller promises.
    unsafe { place.write(value) };
    Ok(())
}
