//! Memory that the fake driver knows.
//!
//! Device memory has two addresses: the public one is reserved without any access, so that a CPU that touches it
//! crashes as it would with a real GPU; the other one is known to the fake alone.

mod pages;
mod pinned;
mod registration;

use std::sync::Arc;

pub(crate) use pages::MappedPages;
pub(crate) use pinned::PinnedFilePages;
pub(crate) use registration::{
    HostRegistration, PORTABLE, READ_ONLY_SUPPORTED, RegistrationRefusal, examine,
};

/// What a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionKind {
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

impl RegionKind {
    /// Lives on the GPU: out of the CPU's reach, and of other GPUs'.
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Self::Device | Self::Pool | Self::Virtual)
    }
}

/// A range of known memory.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    pub(crate) kind: RegionKind,
    pub(crate) gpu: usize,
    pub(crate) context: u64,
    /// No other memory has it, now or later.
    pub(crate) id: u64,
    pub(crate) len: usize,
    /// Where the fake finds the bytes.
    pub(crate) bytes: u64,
    /// False until `cuMemSetAccess`.
    pub(crate) accessible: bool,
    /// Copies and sets of it are waited for by the call that queues them (`SYNC_MEMOPS`).
    pub(crate) is_synchronous: bool,
    /// Of registered memory.
    pub(crate) registration: Option<HostRegistration>,
    /// Unmapped with the region.
    pub(crate) pages: Vec<Arc<MappedPages>>,
}
