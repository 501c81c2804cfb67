//! Errors of calls, with the reason that they mean.

use std::ffi::c_int;
use std::ptr;

use forebay_error::{Error, Result};

use super::load::no_device;
use crate::Why;

pub(super) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The error of a call that answers -1 and sets errno.
pub(super) fn check(code: c_int, doing: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => match last_errno() {
            errno @ (libc::ENODEV | libc::EACCES | libc::EPERM | libc::ENOSYS) => {
                Err(no_device(errno, doing))
            }
            errno @ (libc::ENETUNREACH | libc::EHOSTUNREACH) => {
                Err(Why::NoRoute.mark(Error::from_errno(errno, doing)))
            }
            // Queues of many devices are locked memory, too.
            errno @ libc::ENOMEM => Err(memlock(Error::from_errno(errno, doing))),
            // iWARP meets a port where nobody listens as TCP does, within the call.
            errno @ libc::ECONNREFUSED => Err(Why::Rejected.mark(Error::from_errno(errno, doing))),
            errno @ libc::ETIMEDOUT => Err(Why::Unreachable.mark(Error::from_errno(errno, doing))),
            errno => Err(Error::from_errno(errno, doing)),
        },
    }
}

/// The error of a call that answers with an errno, or with -1 and sets it.
pub(super) fn check_errno(code: c_int, doing: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        ..0 => check(code, doing),
        errno => Err(Error::from_errno(errno, doing)),
    }
}

/// A call that answers with an object or sets errno.
pub(super) fn made<T>(raw: *mut T, doing: &str) -> Result<ptr::NonNull<T>> {
    ptr::NonNull::new(raw).ok_or_else(|| match last_errno() {
        libc::ENOMEM => memlock(Error::from_errno(libc::ENOMEM, doing)),
        errno @ (libc::EOPNOTSUPP | libc::ENOSYS) => Why::Unsupported.mark(Error::from_errno(errno, doing)),
        errno @ libc::ENODEV => Why::DeviceRemoved.mark(Error::from_errno(errno, doing)),
        errno => Error::from_errno(errno, doing),
    })
}

/// No memory: the limit of locked memory, as a rule.
fn memlock(error: Error) -> Error {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` takes the answer.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY {
        let error = Why::Memlock.mark(error).with("locked_limit", limit.rlim_cur);
        return error
            .hint(
                "ulimit -l unlimited (for good: /etc/security/limits.conf; a service: LimitMEMLOCK=infinity)",
            )
            .hint("in a container: --ulimit memlock=-1 or --cap-add IPC_LOCK");
    }
    error
}
