//! A file, registered with NVIDIA's library for as long as it is open.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_engine::{File, Native, PerProcess};
use forebay_error::{Error, Result};
use forebay_gpu::{Context, Device};

use crate::LibraryState;
use crate::abi::{Calls, Description, FileHandle};
use crate::explain;
use crate::opened::Opened;

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
    /// A descriptor of our own: the library refuses one that is registered already.
    fd: Option<OwnedFd>,
    limit: Duration,
}

impl Registration {
    /// The registration, made by the first who asks.
    pub(super) fn get(
        &self,
        file: &File,
        device: &Arc<dyn Device>,
        opened: &Opened,
        limit: Duration,
    ) -> Result<&Registered> {
        let registered = self.0.get_or_init(|| register(file, device, opened, limit).map(Native::new));
        registered.as_ref().map(|registered| &**registered).map_err(Error::clone)
    }
}

fn register(file: &File, device: &Arc<dyn Device>, opened: &Opened, limit: Duration) -> Result<Registered> {
    let fd = file.duplicate()?;
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
    let (status, handle, fd) =
        LibraryState::of_process().threads.call("cuFileHandleRegister", limit, register)??;
    if !explain::is_ok(status) {
        return Err(explain::registration(status, file.device_number(), file.file_system()));
    }
    Ok(Registered { handle, device: device.clone(), calls, fd: Some(fd), limit })
}

impl Drop for Registered {
    fn drop(&mut self) {
        let (calls, handle, fd, device) = (self.calls, self.handle, self.fd.take(), self.device.clone());
        LibraryState::of_process().threads.send("cuFileHandleDeregister", self.limit, move || {
            // Where there is no context any more, the library may do without.
            let _ = device.enter(Context::PRIMARY);
            // SAFETY: registered in `register`, and no transfer uses it any more: each keeps its file open.
            unsafe { (calls.deregister)(handle as FileHandle) };
            drop(fd);
        });
    }
}
