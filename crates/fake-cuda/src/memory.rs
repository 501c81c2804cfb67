//! Memory that the fake driver knows.
//!
//! Device memory has two addresses: the public one is reserved without any access, so that a CPU that touches it
//! crashes as it would with a real GPU; the other one is known to the fake alone.

use std::sync::Arc;

use crate::registration::Registration;
use crate::state::{Answer, INVALID_VALUE, OUT_OF_MEMORY, State};

/// Pages mapped by us, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

impl Pages {
    /// Zeroed memory that can be read and written.
    pub(crate) fn usable(len: usize) -> Answer<Self> {
        Self::map(len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Addresses that nobody may touch.
    pub(crate) fn forbidden(len: usize) -> Answer<Self> {
        Self::map(len, libc::PROT_NONE)
    }

    fn map(len: usize, protection: i32) -> Answer<Self> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            Err(OUT_OF_MEMORY)
        } else {
            Ok(Self { address: address as u64, len })
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by us and unmapped once.
        unsafe { libc::munmap(self.address as *mut _, self.len) };
    }
}

/// What a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocAsync`: belongs to no context.
    Pool,
    /// `cuMemMap`: belongs to no context.
    Virtual,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`.
    Registered,
}

impl Kind {
    /// Lives on the GPU: out of the CPU's reach, and of other GPUs'.
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Self::Device | Self::Pool | Self::Virtual)
    }
}

/// A range of known memory.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) kind: Kind,
    pub(crate) gpu: usize,
    pub(crate) context: u64,
    pub(crate) len: usize,
    /// Where the fake finds the bytes.
    pub(crate) bytes: u64,
    /// False until `cuMemSetAccess`.
    pub(crate) accessible: bool,
    /// Copies and sets of it are waited for by the call that queues them (`SYNC_MEMOPS`).
    pub(crate) is_synchronous: bool,
    /// Of registered memory.
    pub(crate) registration: Option<Registration>,
    /// Unmapped with the region.
    pub(crate) pages: Vec<Arc<Pages>>,
}

impl State {
    /// The region that holds `address`, with its first address.
    pub(crate) fn region(&self, address: u64) -> Option<(u64, &Region)> {
        let (&start, region) = self.regions.range(..=address).next_back()?;
        (address - start < region.len as u64).then_some((start, region))
    }

    /// Whether `len` bytes at `address` are known from end to end, as memory of one region.
    pub(crate) fn known(&self, address: u64, len: usize) -> bool {
        self.region(address).is_some_and(|(start, region)| {
            let end = (address - start).checked_add(len as u64);
            region.accessible && end.is_some_and(|end| end <= region.len as u64)
        })
    }

    /// Whether any of `start..start + len` is known already.
    pub(crate) fn overlaps(&self, start: u64, len: usize) -> bool {
        let before = self.regions.range(..start + len as u64).next_back();
        before.is_some_and(|(&other, region)| other + region.len as u64 > start)
    }

    /// Adds memory of one's own making. `kind` decides whether the CPU may touch it.
    pub(crate) fn add(&mut self, kind: Kind, gpu: usize, context: u64, len: usize) -> Answer<u64> {
        let usable = Arc::new(Pages::usable(len)?);
        let bytes = usable.address;
        let mut pages = vec![usable];
        let mut address = bytes;
        if kind.is_device() {
            // One page more, so that running off the end meets nothing.
            let public = Arc::new(Pages::forbidden(len + 4096)?);
            address = public.address;
            pages.push(public);
        }
        let region = Region {
            kind,
            gpu,
            context,
            len,
            bytes,
            accessible: true,
            is_synchronous: false,
            registration: None,
            pages,
        };
        self.regions.insert(address, region);
        Ok(address)
    }
}
