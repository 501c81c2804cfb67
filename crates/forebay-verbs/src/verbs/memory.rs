//! The protection domain, and its memory regions.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_error::Result;
use forebay_sys::{DeviceRange, HostRange};

use super::cm::Id;
use super::errors::{check_errno, made};
use super::load::Libraries;
use super::sys;
use crate::{Access, Device, Handle, Memory, Region, Why};

/// What regions, windows and connections hold.
pub(super) struct Inner {
    pub(super) libraries: &'static Libraries,
    pub(super) pd: NonNull<sys::IbvPd>,
    pub(super) device: Device,
    /// RDMA READs that the device answers, and that it has under way.
    pub(super) limits: (u8, u8),
    /// Keeps the device's context open.
    pub(super) anchor: Id,
}

// SAFETY: libibverbs locks what several threads use.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    pub(super) fn context(&self) -> *mut sys::IbvContext {
        self.anchor.context()
    }

    /// Registers host memory or a dma-buf for local use and whatever else is said.
    ///
    /// # Safety
    /// As [`Domain::register`].
    pub(super) unsafe fn register(self: &Arc<Self>, memory: Memory<'_>, access: Access) -> Result<Region> {
        let bits = access.bits().cast_signed();
        let ibv = &self.libraries.ibv;
        // SAFETY: the domain lives as long as the region; the rest is as the caller promises.
        let raw = unsafe {
            match memory {
                Memory::Host(HostRange { start, len }) => {
                    ibv.ibv_reg_mr(self.pd.as_ptr(), start.cast(), len, bits)
                }
                Memory::DmaBuf { fd, offset, range: DeviceRange { start, len } } => {
                    let function = self.libraries.reg_dmabuf_mr.ok_or_else(|| {
                        Why::OldLibrary
                            .error("cannot register a dma-buf: libibverbs has no function for it")
                            .hint("libibverbs 34 or later is needed")
                    })?;
                    function(self.pd.as_ptr(), offset, len, start, fd.as_raw_fd(), bits)
                }
            }
        };
        let what = match memory {
            Memory::Host(_) => "cannot register memory",
            Memory::DmaBuf { .. } => "cannot register a dma-buf",
        };
        let raw = made(raw, what)
            .map_err(|error| error.with("bytes", memory.range().len).with("device", &self.device.name))?;
        let handle = Mr { raw: Some(raw), domain: Arc::clone(self) };
        // SAFETY: the registration was just made.
        let keys = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Ok(Region::new(keys, &memory, access, Box::new(handle)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.libraries.is_own_process() {
            // SAFETY: all that is of the domain holds it, so there is nothing left.
            unsafe { self.libraries.ibv.ibv_dealloc_pd(self.pd.as_ptr()) };
        }
    }
}

/// A registration.
pub(super) struct Mr {
    pub(super) raw: Option<NonNull<sys::IbvMr>>,
    pub(super) domain: Arc<Inner>,
}

// SAFETY: libibverbs locks what several threads use.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Handle for Mr {
    fn release(&mut self) -> Result<()> {
        let libraries = self.domain.libraries;
        if let Some(raw) = self.raw.filter(|_| libraries.is_own_process()) {
            // SAFETY: it is ours, and forgotten once it is gone.
            check_errno(unsafe { libraries.ibv.ibv_dereg_mr(raw.as_ptr()) }, "cannot deregister memory")?;
        }
        self.raw = None;
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // What cannot be deregistered stays so until the process ends, and its keys work as long as a connection of the domain does: a
        // user of keys calls `release`, and breaks the connection where that fails.
        let _ = self.release();
    }
}

/// A window.
pub(super) struct Mw {
    pub(super) raw: Option<NonNull<sys::IbvMw>>,
    pub(super) domain: Arc<Inner>,
}

// SAFETY: as of registrations; its key is written only through `&mut Window`.
unsafe impl Send for Mw {}
// SAFETY: as above.
unsafe impl Sync for Mw {}

impl Handle for Mw {
    fn release(&mut self) -> Result<()> {
        if let Some(raw) = self.raw.filter(|_| self.domain.libraries.is_own_process()) {
            // SAFETY: it is ours, and forgotten once it is gone; its context is open as long as its domain.
            unsafe {
                if let Some(dealloc) = (*(*raw.as_ptr()).context).dealloc_mw {
                    check_errno(dealloc(raw.as_ptr()), "cannot free a memory window")?;
                }
            }
        }
        self.raw = None;
        Ok(())
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // Nothing is lost by a window that stays until the process ends.
        let _ = self.release();
    }
}
