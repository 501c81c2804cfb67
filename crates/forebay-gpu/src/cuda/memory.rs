//! Memory of a GPU and memory that a GPU knows: allocating, pinning, telling kinds apart.

use std::ffi::{c_int, c_uint, c_void};

use forebay_error::{Error, ErrorKind, Result};

use super::error::CudaFailure;
use super::gpu::CudaGpu;
use super::sys::{
    ATTRIBUTE_VIRTUAL_MEMORY, HOST_DEVICE_MAP, HOST_PORTABLE, Handle, INVALID_CONTEXT, INVALID_VALUE,
    MANAGED_ATTACH_GLOBAL, MEM_ACCESS_READ_WRITE, MEM_ALLOCATION_PINNED, MEM_GRANULARITY_MINIMUM,
    MEM_LOCATION_DEVICE, MEMORY_TYPE_DEVICE, MEMORY_TYPE_HOST, MEMORY_TYPE_UNIFIED, MemAccess, MemLocation,
    MemProp, OUT_OF_MEMORY, POINTER_ACCESS_FLAGS, POINTER_ACCESS_READ_WRITE, POINTER_CONTEXT,
    POINTER_DEVICE_ORDINAL, POINTER_IS_MANAGED, POINTER_MEMORY_TYPE, POINTER_RANGE_SIZE, POINTER_RANGE_START,
};
use crate::{AllocationKind, Context, DeviceRange, HostRange, MemoryKind, PointerInfo, host};

/// Allocates in the primary context. Kinds that the driver need not know create no context.
pub(super) fn allocate(gpu: &CudaGpu, kind: AllocationKind, len: usize) -> Result<u64> {
    if len == 0 {
        return Err(Error::new(ErrorKind::InvalidInput, "cannot allocate 0 bytes"));
    }
    if matches!(kind, AllocationKind::HostHeap | AllocationKind::HostMap) {
        return host::allocate(kind, len);
    }
    let _guard = gpu.enter_primary()?;
    let symbols = &gpu.driver.symbols;
    let mut address = 0u64;
    // SAFETY: `address` is a valid place for an address and for a pointer, which has the same size.
    let allocated = unsafe {
        match kind {
            AllocationKind::Device => symbols.cuMemAlloc_v2(&raw mut address, len),
            AllocationKind::Managed => {
                symbols.cuMemAllocManaged(&raw mut address, len, MANAGED_ATTACH_GLOBAL)
            }
            AllocationKind::PinnedHost => {
                symbols.cuMemHostAlloc((&raw mut address).cast(), len, HOST_PORTABLE | HOST_DEVICE_MAP)
            }
            AllocationKind::Virtual => allocate_virtual(gpu, len).map(|mapped| address = mapped),
            AllocationKind::HostHeap | AllocationKind::HostMap => unreachable!("answered above"),
        }
    };
    allocated.map(|()| address).map_err(|failure| explain(gpu, failure, kind, len))
}

/// Frees what [`allocate`] gave. Failures have no one to tell and are dropped.
///
/// # Safety
/// As [`crate::Device::free_kind`]; the length matters only to the virtual and host kinds.
pub(super) unsafe fn free(gpu: &CudaGpu, kind: AllocationKind, memory: DeviceRange) {
    if matches!(kind, AllocationKind::HostHeap | AllocationKind::HostMap) {
        // SAFETY: the caller promises that the memory came from there.
        unsafe { host::free(kind, memory) };
        return;
    }
    let Ok(_guard) = gpu.enter_primary() else { return };
    let symbols = &gpu.driver.symbols;
    // SAFETY: the caller promises that the memory came from the matching call and is unused.
    let _ = unsafe {
        match kind {
            AllocationKind::Device | AllocationKind::Managed => symbols.cuMemFree_v2(memory.start),
            AllocationKind::PinnedHost => symbols.cuMemFreeHost(memory.start as *mut c_void),
            AllocationKind::Virtual => free_virtual(gpu, memory),
            AllocationKind::HostHeap | AllocationKind::HostMap => Ok(()),
        }
    };
}

/// Free and total bytes.
pub(super) fn info(gpu: &CudaGpu) -> Result<(u64, u64)> {
    let _guard = gpu.enter_primary()?;
    Ok(free_and_total(gpu)?)
}

fn free_and_total(gpu: &CudaGpu) -> Result<(u64, u64), CudaFailure> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are valid places; the primary context is current.
    unsafe { gpu.driver.symbols.cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
    Ok((free as u64, total as u64))
}

/// Adds to a failed allocation what a reader needs to act.
#[cold]
fn explain(gpu: &CudaGpu, failure: CudaFailure, kind: AllocationKind, len: usize) -> Error {
    if failure.code == OUT_OF_MEMORY && kind == AllocationKind::PinnedHost {
        return Error::new(ErrorKind::OutOfMemory, "the GPU driver cannot pin that much host memory")
            .with("asked", len)
            .hint(
                "use fewer or smaller buffers, or check MemAvailable in /proc/meminfo and the cgroup's limit",
            );
    }
    let error = Error::from(failure).with("asked", len).with("device", gpu.info.index);
    match free_and_total(gpu) {
        Ok((free, total)) if failure.code == OUT_OF_MEMORY => error.with("free", free).with("total", total),
        _ => error,
    }
}

fn virtual_prop(gpu: &CudaGpu) -> MemProp {
    MemProp {
        kind: MEM_ALLOCATION_PINNED,
        handle_types: 0,
        location: MemLocation { kind: MEM_LOCATION_DEVICE, id: gpu.device },
        windows_metadata: 0,
        flags: [0; 8],
    }
}

/// `len` rounded up to what the device maps in one piece.
fn virtual_len(gpu: &CudaGpu, len: usize) -> Result<usize, CudaFailure> {
    let prop = virtual_prop(gpu);
    let mut granularity = 0;
    // SAFETY: both are valid places.
    unsafe {
        gpu.driver.symbols.cuMemGetAllocationGranularity(
            &raw mut granularity,
            &raw const prop,
            MEM_GRANULARITY_MINIMUM,
        )
    }?;
    Ok(len.next_multiple_of(granularity.max(1)))
}

fn allocate_virtual(gpu: &CudaGpu, len: usize) -> Result<u64, CudaFailure> {
    let symbols = &gpu.driver.symbols;
    if gpu.driver.attribute(gpu.device, ATTRIBUTE_VIRTUAL_MEMORY)? == 0 {
        return Err(CudaFailure { call: "cuMemAddressReserve", code: super::sys::NOT_SUPPORTED });
    }
    let len = virtual_len(gpu, len)?;
    let mut address = 0;
    // SAFETY: `address` is a valid place.
    unsafe { symbols.cuMemAddressReserve(&raw mut address, len, 0, 0, 0) }?;
    let mapped = map_virtual(gpu, DeviceRange::new(address, len));
    if mapped.is_err() {
        // SAFETY: the range was reserved above and nothing is mapped in it.
        let _ = unsafe { symbols.cuMemAddressFree(address, len) };
    }
    mapped.map(|()| address)
}

/// Backs the reserved range with device memory; on failure the range is empty again.
fn map_virtual(gpu: &CudaGpu, range: DeviceRange) -> Result<(), CudaFailure> {
    let DeviceRange { start, len } = range;
    let symbols = &gpu.driver.symbols;
    let prop = virtual_prop(gpu);
    let mut memory: Handle = 0;
    let access = MemAccess { location: prop.location, flags: MEM_ACCESS_READ_WRITE };
    // SAFETY: all places are valid and the range is ours. The memory outlives its handle as long as it is mapped.
    unsafe {
        symbols.cuMemCreate(&raw mut memory, len, &raw const prop, 0)?;
        let mapped = symbols.cuMemMap(start, len, 0, memory, 0);
        let released = symbols.cuMemRelease(memory);
        mapped?;
        let usable = released.and_then(|()| symbols.cuMemSetAccess(start, len, &raw const access, 1));
        if usable.is_err() {
            let _ = symbols.cuMemUnmap(start, len);
        }
        usable
    }
}

/// # Safety
/// As [`free`].
unsafe fn free_virtual(gpu: &CudaGpu, memory: DeviceRange) -> Result<(), CudaFailure> {
    let len = virtual_len(gpu, memory.len)?;
    // SAFETY: the caller promises that the range came from `allocate_virtual` and is unused.
    unsafe {
        gpu.driver.symbols.cuMemUnmap(memory.start, len)?;
        gpu.driver.symbols.cuMemAddressFree(memory.start, len)
    }
}

/// # Safety
/// As [`crate::Device::pin`].
pub(super) unsafe fn pin(gpu: &CudaGpu, memory: HostRange) -> Result<u64> {
    let _guard = gpu.enter_primary()?;
    let symbols = &gpu.driver.symbols;
    let explain = |failure: CudaFailure| Error::from(failure).with("len", memory.len);
    let (address, mut device) = (memory.start.cast(), 0);
    // SAFETY: the caller promises that the memory is mapped; `device` is a valid place.
    unsafe {
        symbols
            .cuMemHostRegister_v2(address, memory.len, HOST_PORTABLE | HOST_DEVICE_MAP)
            .map_err(explain)?;
        if let Err(failure) = symbols.cuMemHostGetDevicePointer_v2(&raw mut device, address, 0) {
            let _ = symbols.cuMemHostUnregister(address);
            return Err(explain(failure));
        }
    }
    Ok(device)
}

/// # Safety
/// As [`crate::Device::unpin`].
pub(super) unsafe fn unpin(gpu: &CudaGpu, address: *mut u8) {
    if let Ok(_guard) = gpu.enter_primary() {
        // SAFETY: the caller promises that it was pinned and is unused.
        let _ = unsafe { gpu.driver.symbols.cuMemHostUnregister(address.cast()) };
    }
}

/// What the driver knows about an address; all zero for one that it does not know.
#[derive(Default)]
struct Attributes {
    context: Handle,
    kind: c_uint,
    managed: c_uint,
    ordinal: c_int,
    range: DeviceRange,
}

/// Tells what `address` is. Creates no context: before there is one, the driver knows no memory at all.
pub(super) fn classify(gpu: &CudaGpu, address: u64) -> Result<PointerInfo> {
    let _guard = super::guard::ContextGuard::relaxed(gpu.driver);
    let attributes = match attributes(gpu, address) {
        Ok(attributes) => attributes,
        // So some drivers say that they do not know the address.
        Err(CudaFailure { code: INVALID_VALUE | INVALID_CONTEXT, .. }) => Attributes::default(),
        Err(failure) => return Err(failure.into()),
    };
    let kind = match attributes.kind {
        _ if attributes.managed != 0 => MemoryKind::Managed,
        MEMORY_TYPE_DEVICE => MemoryKind::Device,
        MEMORY_TYPE_HOST => MemoryKind::Pinned,
        MEMORY_TYPE_UNIFIED => MemoryKind::Managed,
        _ => {
            return Ok(PointerInfo {
                kind: MemoryKind::Host,
                device: None,
                context: Context::PRIMARY,
                range: None,
            });
        }
    };
    let owner = usize::try_from(attributes.ordinal).ok().and_then(super::gpu);
    Ok(PointerInfo {
        kind,
        device: owner.map(|owner| owner.info.index),
        context: owner.map_or(Context::PRIMARY, |owner| owner.context(attributes.context)),
        range: Some(attributes.range).filter(|range| range.len > 0),
    })
}

/// See [`crate::Device::kernels_memory`].
pub(super) fn of_kernels(gpu: &CudaGpu, context: Context, address: u64) -> Option<DeviceRange> {
    let info = classify(gpu, address).ok()?;
    let is_plain =
        info.kind == MemoryKind::Device && info.device == Some(gpu.info.index) && info.context == context;
    let told = info.range.filter(|_| is_plain)?;
    let _guard = gpu.enter(gpu.raw(context).ok()?).ok()?;
    // Of mapped memory that is all of the reservation, of which parts may have no memory: this one ends with its mapping.
    let mut mapped = DeviceRange::default();
    // SAFETY: places of those types.
    unsafe {
        gpu.driver.symbols.cuMemGetAddressRange_v2(&raw mut mapped.start, &raw mut mapped.len, address)
    }
    .ok()?;
    let (start, end) = (told.start.max(mapped.start), told.end().min(mapped.end()));
    // Mapped memory may be for reading only. Drivers that do not know the attribute map none.
    let (name, mut access) = (POINTER_ACCESS_FLAGS, 0u64);
    let mut place = (&raw mut access).cast::<c_void>();
    // SAFETY: one name and its place.
    let asked =
        unsafe { gpu.driver.symbols.cuPointerGetAttributes(1, &raw const name, &raw mut place, address) };
    (asked.is_err() || access == POINTER_ACCESS_READ_WRITE)
        .then(|| DeviceRange::new(start, end.saturating_sub(start) as usize))
}

fn attributes(gpu: &CudaGpu, address: u64) -> Result<Attributes, CudaFailure> {
    let mut found = Attributes { ordinal: -1, ..Attributes::default() };
    let names = [
        POINTER_CONTEXT,
        POINTER_MEMORY_TYPE,
        POINTER_IS_MANAGED,
        POINTER_DEVICE_ORDINAL,
        POINTER_RANGE_START,
        POINTER_RANGE_SIZE,
    ];
    let mut places: [*mut c_void; 6] = [
        (&raw mut found.context).cast(),
        (&raw mut found.kind).cast(),
        (&raw mut found.managed).cast(),
        (&raw mut found.ordinal).cast(),
        (&raw mut found.range.start).cast(),
        (&raw mut found.range.len).cast(),
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
    Ok(found)
}
