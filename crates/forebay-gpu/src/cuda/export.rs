//! GPU memory as dma-bufs, into which other devices write.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use forebay_error::{Error, ErrorKind, Result};

use super::error::{CudaFailure, MISSING};
use super::gpu::CudaGpu;
use super::guard::ContextGuard;
use super::sys::{
    ATTRIBUTE_DMA_BUF, ATTRIBUTE_FLUSH_WRITES, ATTRIBUTE_WRITES_ORDERING, FLUSH_BY_HOST,
    FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER, Handle, MEMORY_TYPE_DEVICE, POINTER_BUFFER_ID, POINTER_CONTEXT,
    POINTER_DEVICE_ORDINAL, POINTER_IS_MANAGED, POINTER_MEMORY_TYPE, POINTER_RANGE_SIZE, POINTER_RANGE_START,
    RANGE_HANDLE_DMA_BUF, WRITES_ORDERED_FOR_OWNER,
};
use crate::{Allocation, Context, DeviceRange, DmaBuf};

fn refused(gpu: &CudaGpu, why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, why.to_owned()).with("device", gpu.info.index)
}

/// As [`crate::Device::can_export`].
pub(super) fn can_export(gpu: &CudaGpu) -> Result<()> {
    let asked = |attribute| gpu.driver.attribute(gpu.device, attribute).unwrap_or(0);
    if asked(ATTRIBUTE_DMA_BUF) != 1 {
        return Err(refused(gpu, "the GPU's driver makes no dma-bufs of its memory").hint(
            "dma-bufs need NVIDIA's open kernel modules (modinfo -F license nvidia says Dual MIT/GPL) and kernel 5.12 or later",
        ));
    }
    if asked(ATTRIBUTE_WRITES_ORDERING) < WRITES_ORDERED_FOR_OWNER
        && asked(ATTRIBUTE_FLUSH_WRITES) & FLUSH_BY_HOST == 0
    {
        return Err(refused(gpu, "the GPU's driver cannot flush what other devices write to its memory"));
    }
    Ok(())
}

/// As [`crate::Device::allocation`].
pub(super) fn allocation(gpu: &CudaGpu, address: u64) -> Result<Allocation> {
    let _guard = ContextGuard::relaxed(gpu.driver);
    let (mut id, mut range, mut context): (u64, DeviceRange, Handle) = (0, DeviceRange::default(), 0);
    let (mut kind, mut managed, mut ordinal): (c_uint, c_uint, c_int) = (0, 0, -1);
    let names = [
        POINTER_BUFFER_ID,
        POINTER_RANGE_START,
        POINTER_RANGE_SIZE,
        POINTER_CONTEXT,
        POINTER_MEMORY_TYPE,
        POINTER_IS_MANAGED,
        POINTER_DEVICE_ORDINAL,
    ];
    let mut places: [*mut c_void; 7] = [
        (&raw mut id).cast(),
        (&raw mut range.start).cast(),
        (&raw mut range.len).cast(),
        (&raw mut context).cast(),
        (&raw mut kind).cast(),
        (&raw mut managed).cast(),
        (&raw mut ordinal).cast(),
    ];
    // SAFETY: as many names as places, and each place has its attribute's type.
    unsafe {
        gpu.driver.symbols.cuPointerGetAttributes(
            names.len() as c_uint,
            names.as_ptr(),
            places.as_mut_ptr(),
            address,
        )
    }?;
    if kind != MEMORY_TYPE_DEVICE || managed != 0 || ordinal != gpu.device {
        return Err(refused(gpu, "the memory is not plain memory of the GPU"));
    }
    if id == 0 || range.len == 0 {
        return Err(refused(gpu, "the GPU's driver does not say which allocation the memory belongs to"));
    }
    Ok(Allocation { id, range, context: gpu.context(context) })
}

/// As [`crate::Device::export`].
pub(super) fn export(gpu: &CudaGpu, allocation: &Allocation) -> Result<DmaBuf> {
    let _guard = gpu.enter(gpu.raw(allocation.context)?)?;
    // Dma-bufs are made of whole pages of the host.
    let page = forebay_sys::page_size() as u64;
    let start = allocation.range.start & !(page - 1);
    let end = allocation.range.end().next_multiple_of(page);
    let mut fd: c_int = -1;
    // SAFETY: the place has room for a descriptor, which is what this kind of handle is.
    let made = unsafe {
        gpu.driver.symbols.cuMemGetHandleForAddressRange(
            (&raw mut fd).cast(),
            start,
            (end - start) as usize,
            RANGE_HANDLE_DMA_BUF,
            0,
        )
    };
    if let Err(failure) = made {
        let why = "the GPU's driver makes no dma-buf of this memory";
        let error = refused(gpu, why).source(Error::from(failure));
        return Err(error.hint("allocate it by cuMemAlloc (cudaMalloc): memory of pools has no dma-buf"));
    }
    // SAFETY: the descriptor is new and ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(DmaBuf { fd, offset: allocation.range.start - start })
}

/// As [`crate::Device::flush_writes`].
pub(super) fn flush_writes(gpu: &CudaGpu, context: Context) -> Result<()> {
    let _guard = gpu.enter(gpu.raw(context)?)?;
    // SAFETY: no pointers are passed.
    match unsafe { gpu.driver.symbols.cuFlushGPUDirectRDMAWrites(FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER) } {
        Ok(()) => Ok(()),
        // Where the order is kept anyway nothing is to be flushed.
        Err(CudaFailure { code: MISSING, .. }) if is_ordered(gpu) => Ok(()),
        Err(failure) => Err(failure.into()),
    }
}

fn is_ordered(gpu: &CudaGpu) -> bool {
    let ordering = gpu.driver.attribute(gpu.device, ATTRIBUTE_WRITES_ORDERING);
    ordering.is_ok_and(|ordering| ordering >= WRITES_ORDERED_FOR_OWNER)
}
