//! A file, registered with NVIDIA's library for as long as it is open.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_error::{Error, Result};
use forebay_gpu::{Context, Device};

use super::Office;
use super::abi::{Calls, Description, FileHandle};
use super::explain;
use super::opened::Opened;
use crate::runtime::fork::Native;
use crate::runtime::process::PerProcess;
use crate::source::{Descriptors, file_system_name};

/// Where a file keeps its registration.
#[derive(Debug, Default)]
pub(crate) struct Registration(OnceLock<Result<Native<Registered>>>);

/// A registered file.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) handle: usize,
    /// In whose context the library was called.
    device: Arc<dyn Device>,
    calls: Calls,
    /// A descriptor of our own: the library refuses one that somebody has registered before.
    fd: Option<OwnedFd>,
    limit: Duration,
}

impl Registration {
    /// The registration, made by the first who asks.
    pub(super) fn get(
        &self,
        file: &Descriptors,
        device: &Arc<dyn Device>,
        opened: &Opened,
        limit: Duration,
    ) -> Result<&Registered> {
        let registered = self.0.get_or_init(|| register(file, device, opened, limit).map(Native::new));
        registered.as_ref().map(|registered| &**registered).map_err(Error::clone)
    }
}

fn register(
    file: &Descriptors,
    device: &Arc<dyn Device>,
    opened: &Opened,
    limit: Duration,
) -> Result<Registered> {
    let best = file.direct.as_ref().map_or(&file.buffered, |(fd, _)| fd);
    let fd = duplicate(best.as_raw_fd())?;
    best.check()?;
    let calls = opened.library.calls;
    let own = device.clone();
    let register = move || {
        own.enter(Context::PRIMARY)?;
        let (mut handle, mut description) = (std::ptr::null_mut(), Description::of(fd.as_raw_fd()));
        // SAFETY: both places are writable, and the descriptor is open.
        let status = unsafe { (calls.register)(&raw mut handle, &raw mut description) };
        // The descriptor was the call's own until now: a call that hangs must not meet another file under its number.
        Ok::<_, Error>((status, handle as usize, fd))
    };
    let (status, handle, fd) = Office::of_process().crew.call("cuFileHandleRegister", limit, register)??;
    if !explain::is_ok(status) {
        let numbers = (libc::major(file.nature.mount), libc::minor(file.nature.mount));
        return Err(explain::registration(status, numbers, file_system_name(file.nature.magic)));
    }
    Ok(Registered { handle, device: device.clone(), calls, fd: Some(fd), limit })
}

fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(Error::last_os("cannot duplicate a descriptor").hint("ulimit -n 65536"));
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

impl Drop for Registered {
    fn drop(&mut self) {
        let (calls, handle, fd, device) = (self.calls, self.handle, self.fd.take(), self.device.clone());
        Office::of_process().crew.send("cuFileHandleDeregister", self.limit, move || {
            // Where there is no context any more, the library may do without.
            let _ = device.enter(Context::PRIMARY);
            // SAFETY: registered in `register`, and no transfer uses it any more: each keeps its file open.
            unsafe { (calls.deregister)(handle as FileHandle) };
            drop(fd);
        });
    }
}
