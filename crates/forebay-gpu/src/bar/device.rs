//! Memory of a provider as a [`Device`].

use std::collections::HashMap;
use std::sync::Mutex;

use forebay_error::{Error, ErrorKind, Result};

use super::{Mapping, Provider};
use crate::host::HostStream;
use crate::{
    AllocationKind, Context, Device, DeviceInfo, DeviceRange, HostRange, MemoryKind, PointerInfo, Stream,
    StreamIdentity, host,
};

/// A provider with the memory that was taken from it.
#[derive(Debug)]
pub(super) struct BarDevice {
    provider: Box<dyn Provider>,
    info: DeviceInfo,
    taken: Mutex<HashMap<u64, Mapping>>,
}

impl BarDevice {
    pub(super) fn new(provider: Box<dyn Provider>, index: usize) -> Self {
        let node = std::fs::read_to_string(format!("{}/{}/numa_node", super::p2pmem::BUS, provider.pci()));
        let info = DeviceInfo {
            index,
            name: provider.name().to_owned(),
            uuid: identity(provider.name()),
            pci: provider.pci().to_owned(),
            numa_node: node.ok().and_then(|text| text.trim().parse().ok()),
            total_memory: provider.memory().map_or(0, |(_, total)| total),
            driver_version: 0,
            capability: (0, 0),
            is_host: false,
            is_bar: true,
        };
        Self { provider, info, taken: Mutex::default() }
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Mapping>> {
        self.taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The memory that `address` lies in.
    fn range(&self, address: u64) -> Option<DeviceRange> {
        let taken = self.taken();
        let mut all = taken.iter().map(|(start, mapping)| DeviceRange::new(*start, mapping.range().len));
        all.find(|range| range.contains(address))
    }
}

/// Sixteen bytes that name a device as a GPU's UUID does: two hashes (FNV-1a) of its name.
fn identity(name: &str) -> [u8; 16] {
    let hash = |seed: u64| {
        name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let both = [hash(0xcbf2_9ce4_8422_2325), hash(0x8422_2325_cbf2_9ce4)];
    let mut id = [0; 16];
    for (half, word) in id.as_chunks_mut::<8>().0.iter_mut().zip(both) {
        half.copy_from_slice(&word.to_le_bytes());
    }
    id
}

#[cold]
fn no_streams() -> Error {
    Error::new(ErrorKind::Unsupported, "memory in a PCI BAR has no streams of its own")
        .hint("transfer without a stream")
}

impl Device for BarDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate(&self, len: usize) -> Result<u64> {
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "cannot allocate 0 bytes"));
        }
        let mapping = self.provider.map(len.next_multiple_of(forebay_sys::page_size()))?;
        let address = mapping.range().address();
        self.taken().insert(address, mapping);
        Ok(address)
    }

    fn allocate_kind(&self, kind: AllocationKind, len: usize) -> Result<u64> {
        match kind {
            AllocationKind::Device => self.allocate(len),
            AllocationKind::HostHeap | AllocationKind::HostMap => host::allocate(kind, len),
            AllocationKind::Virtual | AllocationKind::PinnedHost | AllocationKind::Managed => {
                Err(Error::new(ErrorKind::Unsupported, format!("a PCI BAR has no {kind:?} allocations"))
                    .hint("use -m 0, 3 or 4"))
            }
        }
    }

    unsafe fn free(&self, address: u64) {
        self.taken().remove(&address);
    }

    unsafe fn free_kind(&self, kind: AllocationKind, memory: DeviceRange) {
        // SAFETY: the caller promises the same.
        unsafe {
            match kind {
                AllocationKind::HostHeap | AllocationKind::HostMap => host::free(kind, memory),
                _ => self.free(memory.start),
            }
        }
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        self.provider.memory()
    }

    fn classify(&self, address: u64) -> Result<PointerInfo> {
        let range = self.range(address);
        let kind = if range.is_some() { MemoryKind::Bar } else { MemoryKind::Host };
        Ok(PointerInfo { kind, device: range.map(|_| self.info.index), context: Context::PRIMARY, range })
    }

    unsafe fn pin(&self, memory: HostRange) -> Result<u64> {
        Ok(memory.address())
    }

    unsafe fn unpin(&self, _address: *mut u8) {}

    fn can_place(&self) -> Result<()> {
        Ok(())
    }

    fn stream(&self, _context: Context) -> Result<Box<dyn Stream>> {
        Ok(Box::new(HostStream))
    }

    unsafe fn identify(&self, _handle: u64) -> Result<StreamIdentity> {
        Err(no_streams())
    }

    unsafe fn owns_stream(&self, _handle: u64) -> bool {
        false
    }

    unsafe fn foreign_stream(&self, _handle: u64) -> Result<Box<dyn Stream>> {
        Err(no_streams())
    }

    fn kernels(&self, _context: Context) -> Result<()> {
        Ok(())
    }
}
