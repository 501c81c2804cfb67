//! Host memory as a [`Device`].

use forebay_error::{Error, ErrorKind, Result};

use super::memory::{allocate, free, meminfo};
use super::stream::HostStream;
use crate::{
    Access, AllocationKind, Context, Device, DeviceInfo, DeviceRange, HostRange, MemoryKind, PointerInfo,
    Stream,
};

/// Host memory: all of it belongs to the device, pinning is nothing, copies are done at once.
#[derive(Debug)]
pub(super) struct HostDevice {
    info: DeviceInfo,
}

impl HostDevice {
    pub(super) fn new() -> Self {
        Self {
            info: DeviceInfo {
                index: 0,
                name: "host memory".to_owned(),
                uuid: [0; 16],
                pci: String::new(),
                numa_node: None,
                total_memory: meminfo("MemTotal"),
                driver_version: 0,
                capability: (0, 0),
                is_host: true,
                is_bar: false,
            },
        }
    }
}

impl Device for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate(&self, len: usize) -> Result<u64> {
        allocate(AllocationKind::Device, len)
    }

    fn allocate_kind(&self, kind: AllocationKind, len: usize) -> Result<u64> {
        allocate(kind, len)
    }

    unsafe fn free(&self, address: u64) {
        // SAFETY: the caller promises the same.
        unsafe { free(AllocationKind::Device, DeviceRange::new(address, 0)) };
    }

    unsafe fn free_kind(&self, kind: AllocationKind, memory: DeviceRange) {
        // SAFETY: the caller promises the same.
        unsafe { free(kind, memory) };
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        Ok((meminfo("MemAvailable"), self.info.total_memory))
    }

    fn classify(&self, _address: u64) -> Result<PointerInfo> {
        Ok(PointerInfo { kind: MemoryKind::Host, device: None, context: Context::PRIMARY, range: None })
    }

    unsafe fn pin(&self, memory: HostRange) -> Result<u64> {
        Ok(memory.address())
    }

    unsafe fn unpin(&self, _address: *mut u8) {}

    fn can_register(&self, _access: Access) -> Result<()> {
        Err(no_need())
    }

    unsafe fn register(&self, _pages: HostRange, _access: Access) -> Result<()> {
        Err(no_need())
    }

    unsafe fn unregister(&self, _address: *mut u8) -> Result<()> {
        Err(no_need())
    }

    fn can_place(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "the memory is host memory")
            .hint("use memory in a PCI BAR: -d p2pmem:PCI-ADDRESS"))
    }

    fn enable_peer(&self, peer: &dyn Device) -> Result<()> {
        if peer.info().is_host {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported, "host memory has no streams that reach into a GPU"))
    }

    fn stream(&self, _context: Context) -> Result<Box<dyn Stream>> {
        Ok(Box::new(HostStream))
    }

    unsafe fn foreign_stream(&self, _handle: u64) -> Result<Box<dyn Stream>> {
        Ok(Box::new(HostStream))
    }

    fn kernels(&self, _context: Context) -> Result<()> {
        Ok(())
    }
}

/// The CPU reads all that it maps: there is nothing to register.
#[cold]
fn no_need() -> Error {
    Error::new(ErrorKind::Unsupported, "host memory needs no registration")
}
