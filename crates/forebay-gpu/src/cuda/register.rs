//! Memory that others map or own, used in place: pages that the CPU maps, and memory of another GPU.

use std::ffi::{c_int, c_uint};

use forebay_error::{Error, ErrorKind, Result};

use super::error::CudaFailure;
use super::gpu::CudaGpu;
use super::sys::{
    ATTRIBUTE_HOST_POINTER_FOR_REGISTERED, ATTRIBUTE_HOST_REGISTER, ATTRIBUTE_READ_ONLY_HOST_REGISTER,
    HOST_DEVICE_MAP, HOST_READ_ONLY, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY,
    PEER_ACCESS_ALREADY_ENABLED,
};
use crate::{Access, DeviceInfo, HostRange};

/// What the GPU must be able to do, by the driver's name for it.
const NEEDED: [(c_int, &str); 2] = [
    (ATTRIBUTE_HOST_REGISTER, "HOST_REGISTER_SUPPORTED"),
    (ATTRIBUTE_HOST_POINTER_FOR_REGISTERED, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"),
];
const NEEDED_READ_ONLY: (c_int, &str) =
    (ATTRIBUTE_READ_ONLY_HOST_REGISTER, "READ_ONLY_HOST_REGISTER_SUPPORTED");

/// As [`crate::Device::can_register`].
pub(super) fn can_register(gpu: &CudaGpu, access: Access) -> Result<()> {
    let read_only = (access == Access::ReadOnly).then_some(NEEDED_READ_ONLY);
    for (attribute, name) in NEEDED.into_iter().chain(read_only) {
        if gpu.driver.attribute(gpu.device, attribute)? != 1 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the GPU or its driver cannot use the CPU's mappings in place",
            )
            .with("device", gpu.info.index)
            .with("attribute", name)
            .hint(
                "update the NVIDIA driver (see nvidia-smi); a vGPU or an integrated GPU may never have it",
            ));
        }
    }
    Ok(())
}

/// # Safety
/// As [`crate::Device::register`].
pub(super) unsafe fn register(gpu: &CudaGpu, pages: HostRange, access: Access) -> Result<()> {
    let HostRange { start, len } = pages;
    let _guard = gpu.enter_primary()?;
    let symbols = &gpu.driver.symbols;
    // Not portable: a window that every GPU maps costs each of them address space and time.
    let flags = match access {
        Access::ReadOnly => HOST_DEVICE_MAP | HOST_READ_ONLY,
        Access::ReadWrite => HOST_DEVICE_MAP,
    };
    // SAFETY: the caller promises that the range is mapped and stays so.
    unsafe { symbols.cuMemHostRegister_v2(start.cast(), len, flags) }
        .map_err(|failure| explain(failure, len, access))?;
    let reached = device_address(gpu, start);
    if matches!(reached, Ok(reached) if reached == pages.address()) {
        return Ok(());
    }
    // SAFETY: registered above, and nothing uses it yet.
    let _ = unsafe { symbols.cuMemHostUnregister(start.cast()) };
    Err(match reached {
        Ok(_) => Error::new(ErrorKind::Unsupported, "the GPU sees registered memory at another address")
            .with("device", gpu.info.index),
        Err(failure) => Error::from(failure).with("len", len),
    })
}

/// The address by which the GPU reaches registered memory; the context is current.
fn device_address(gpu: &CudaGpu, address: *mut u8) -> Result<u64, CudaFailure> {
    let mut reached = 0;
    // SAFETY: `reached` is a valid place; the driver knows which addresses are registered.
    unsafe { gpu.driver.symbols.cuMemHostGetDevicePointer_v2(&raw mut reached, address.cast(), 0) }?;
    Ok(reached)
}

/// # Safety
/// As [`crate::Device::unregister`].
pub(super) unsafe fn unregister(gpu: &CudaGpu, address: *mut u8) -> Result<()> {
    let _guard = gpu.enter_primary()?;
    // SAFETY: the caller promises that it was registered here and is unused.
    Ok(unsafe { gpu.driver.symbols.cuMemHostUnregister(address.cast()) }?)
}

/// What a refused registration means: the driver's codes are about memory in general, ours are pages of a file.
#[cold]
fn explain(failure: CudaFailure, len: usize, access: Access) -> Error {
    let error = match failure.code {
        INVALID_VALUE => Error::new(
            ErrorKind::InvalidInput,
            "cannot pin the pages: the file was cut short, or its file system does not allow it",
        ),
        OUT_OF_MEMORY => {
            Error::new(ErrorKind::OutOfMemory, "the GPU driver cannot pin that much host memory").hint(
                "register less at a time, or check MemAvailable in /proc/meminfo and the cgroup's limit",
            )
        }
        NOT_SUPPORTED => {
            Error::new(ErrorKind::Unsupported, "the GPU driver does not register such memory here")
                .hint("update the NVIDIA driver (see nvidia-smi)")
        }
        _ => Error::from(failure),
    };
    error.with("len", len).with("access", format!("{access:?}"))
}

/// As [`crate::Device::enable_peer`].
pub(super) fn enable_peer(gpu: &CudaGpu, peer: &DeviceInfo) -> Result<()> {
    let peer = known(peer)?;
    if std::ptr::eq(gpu, peer) {
        return Ok(());
    }
    let (symbols, mut can) = (&gpu.driver.symbols, 0);
    // SAFETY: `can` is a valid place.
    unsafe { symbols.cuDeviceCanAccessPeer(&raw mut can, gpu.device, peer.device) }?;
    if can == 0 {
        return Err(Error::new(ErrorKind::Unsupported, "the GPUs do not reach each other's memory")
            .with("device", gpu.info.index)
            .with("peer", peer.info.index)
            .hint("nvidia-smi topo -p2p r shows which do"));
    }
    let other = peer.primary()?;
    let _guard = gpu.enter_primary()?;
    let no_flags: c_uint = 0;
    // SAFETY: `other` is a live context, kept for good.
    match unsafe { symbols.cuCtxEnablePeerAccess(other, no_flags) } {
        Err(CudaFailure { code, .. }) if code != PEER_ACCESS_ALREADY_ENABLED => {
            Err(Error::from(CudaFailure { call: "cuCtxEnablePeerAccess", code })
                .with("device", gpu.info.index)
                .with("peer", peer.info.index))
        }
        _ => Ok(()),
    }
}

/// The GPU of ours that `info` describes.
fn known(info: &DeviceInfo) -> Result<&'static CudaGpu> {
    super::gpu(info.index).filter(|gpu| !info.is_host && gpu.info.uuid == info.uuid).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "a GPU has peers among GPUs only").with("peer", &info.name)
    })
}
