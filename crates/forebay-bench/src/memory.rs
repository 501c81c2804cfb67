//! Memory that workers own: at the device, and pinned at the host.

use std::sync::Arc;

use forebay_engine::Memory;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{AllocationKind, Device, DeviceRange, HostRange};

/// Memory that transfers end in; freed when dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<dyn Device>,
    kind: AllocationKind,
    address: u64,
    len: usize,
}

impl DeviceMemory {
    /// Allocates `len` bytes of `kind`.
    pub fn new(device: &Arc<dyn Device>, kind: AllocationKind, len: usize) -> Result<Self> {
        let address = device.allocate_kind(kind, len).map_err(|error| match error.kind() {
            ErrorKind::DeviceOutOfMemory | ErrorKind::OutOfMemory => {
                error.with("bytes", len).hint("use a smaller I/O size (-i) or fewer threads (-w)")
            }
            _ => error,
        })?;
        Ok(Self { device: device.clone(), kind, address, len })
    }

    /// Where it begins.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the CPU can reach it.
    pub fn on_host(&self) -> bool {
        self.device.info().is_host
            || matches!(
                self.kind,
                AllocationKind::PinnedHost | AllocationKind::HostHeap | AllocationKind::HostMap
            )
    }

    /// The engine's name for the address `at` bytes into it.
    pub fn at(&self, at: usize) -> Memory {
        let address = self.address + at as u64;
        if self.on_host() && !self.device.info().is_host {
            return Memory::new(forebay_gpu::host::device(), address);
        }
        Memory::new(self.device.clone(), address)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by this device with this kind and length; workers wait for their transfers before they
        // release their memory.
        unsafe { self.device.free_kind(self.kind, DeviceRange::new(self.address, self.len)) };
    }
}

/// Page-aligned host memory, pinned for a device; released when dropped.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    device: Arc<dyn Device>,
    memory: HostRange,
    seen: u64,
}

impl PinnedMemory {
    pub(crate) fn new(device: &Arc<dyn Device>, len: usize) -> Result<Self> {
        let len = len.max(1).next_multiple_of(forebay_sys::page_size());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a fresh anonymous mapping of a length that is not 0.
        let pointer = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if pointer == libc::MAP_FAILED {
            return Err(Error::last_os("cannot allocate host memory")
                .with("bytes", len)
                .hint("use a smaller I/O size (-i) or fewer threads (-w)"));
        }
        let memory = HostRange::new(pointer.cast(), len);
        // SAFETY: the mapping lives until `drop`, which unpins it first.
        match unsafe { device.pin(memory) } {
            Ok(seen) => Ok(Self { device: device.clone(), memory, seen }),
            Err(error) => {
                // SAFETY: the mapping made above, used by nobody.
                unsafe { libc::munmap(pointer, len) };
                Err(error.with("bytes", len))
            }
        }
    }

    /// The address at the host.
    pub(crate) const fn pointer(&self) -> *mut u8 {
        self.memory.start
    }

    /// The address that the device reaches it by.
    pub(crate) const fn seen(&self) -> u64 {
        self.seen
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: pinned and mapped in `new`; the movers wait for their copies before they drop it.
        unsafe {
            self.device.unpin(self.memory.start);
            libc::munmap(self.memory.start.cast(), self.memory.len);
        }
    }
}
