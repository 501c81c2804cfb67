//! Memory that lies in a PCI BAR and that the kernel's file calls take as it is: a drive's DMA ends in it, past the
//! host's memory.
//!
//! A [`Provider`] offers such memory; `p2pmem` is the only one: any PCI device whose driver publishes
//! peer-to-peer memory (the memory buffer of an NVMe drive, for example). [`device()`] makes a [`Device`]
//! of a provider. Its memory is mapped into this process, so its "streams" are the CPU: they copy at once.

mod device;
mod p2pmem;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use forebay_error::{Error, Result};

use crate::{Device, HostRange};

pub use p2pmem::P2pMem;

/// Offers memory in a PCI BAR.
pub trait Provider: Send + Sync + fmt::Debug {
    /// As users name it: `p2pmem:0000:03:00.0`.
    fn name(&self) -> &str;

    /// The PCI address of whose memory it is; empty if there is none.
    fn pci(&self) -> &str;

    /// Bytes that nobody has taken, and bytes in all.
    fn memory(&self) -> Result<(u64, u64)>;

    /// Takes `len` bytes, a multiple of a page.
    fn map(&self, len: usize) -> Result<Mapping>;
}

/// Memory of a provider in this process, given back when it is dropped.
#[derive(Debug)]
pub struct Mapping(HostRange);

impl Mapping {
    /// Maps the first `len` bytes of `file`, shared.
    pub fn of(file: &std::fs::File, len: usize) -> Result<Self> {
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os("cannot map the memory").with("bytes", len));
        }
        Ok(Self(HostRange::new(address.cast(), len)))
    }

    /// All of it: who may touch which part when is its owner's business.
    pub const fn range(&self) -> HostRange {
        self.0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and unmapped once; its owner promised that nobody uses it any more.
        unsafe { libc::munmap(self.0.start.cast(), self.0.len) };
    }
}

/// A provider's memory as a device with this index.
pub fn device(provider: impl Provider + 'static, index: usize) -> Arc<dyn Device> {
    Arc::new(device::BarDevice::new(Box::new(provider), index))
}

/// The devices of all providers of this machine, numbered from `first` on.
pub(crate) fn discover(first: usize) -> Vec<Arc<dyn Device>> {
    let found = p2pmem::discover(Path::new(p2pmem::BUS));
    (first..).zip(found).map(|(index, provider)| device(provider, index)).collect()
}

/// Whether a name is of the form that providers' names have.
pub fn is_name(text: &str) -> bool {
    text.starts_with(p2pmem::PREFIX)
}

/// Why no device has this name.
pub(crate) fn missing(name: &str) -> Error {
    p2pmem::missing(Path::new(p2pmem::BUS), name.trim_start_matches(p2pmem::PREFIX))
}
