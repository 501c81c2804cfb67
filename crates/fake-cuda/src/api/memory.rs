//! Allocating, registering, telling pointers apart, copying.

use std::ffi::{c_int, c_uchar, c_uint, c_void};
use std::sync::Arc;

use super::device::attribute;
use crate::access;
use crate::context::{self, captures, current, forbidden_in_capture};
use crate::driver_lock;
use crate::entry::export;
use crate::memory::{MemoryRegion, PORTABLE, READ_ONLY_SUPPORTED, RegionKind, RegistrationRefusal, examine};
use crate::result::{
    ALREADY_REGISTERED, Answer, INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, NOT_REGISTERED,
    NOT_SUPPORTED, OUT_OF_MEMORY, new_handle,
};
use crate::state::state;
use crate::stream::FakeStream;
use crate::work::{broken, drain_gpu};

/// The attribute "the GPU reaches registered memory at the CPU's address".
const HOST_POINTER_FOR_REGISTERED: c_int = 91;
/// The pointer attribute "copies and sets are synchronous".
const POINTER_SYNC_MEMOPS: c_int = 6;
/// The attribute "host memory can be registered".
const HOST_REGISTER: c_int = 99;

/// The kind of handle that is a dma-buf, and the pages that it is made of.
const DMA_BUF_FD: c_int = 1;
const PAGE: u64 = 4096;

/// Allocates memory of a kind in the current context.
fn allocate(kind: RegionKind, len: usize) -> Answer<u64> {
    let (handle, context) = current()?;
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    let mut state = state();
    let counted = kind.is_device() || kind == RegionKind::Managed;
    if counted {
        state.take(context.gpu, len)?;
    }
    let owner = if kind == RegionKind::Pool { 0 } else { handle };
    let added = state.add(kind, context.gpu, owner, len);
    if counted && added.is_err() {
        state.give(context.gpu, len);
    }
    added
}

/// What a device attribute is just now.
fn device_attribute(name: c_int) -> c_int {
    let other = state().attributes.get(&name).copied();
    other.unwrap_or_else(|| attribute(name))
}

/// Registers host memory for a GPU, or for all of them.
fn register(context: u64, gpu: usize, start: u64, len: usize, flags: c_uint) -> Answer {
    if device_attribute(HOST_REGISTER) == 0 {
        return Err(NOT_SUPPORTED);
    }
    let read_only_supported = device_attribute(READ_ONLY_SUPPORTED) != 0;
    if start.checked_add(len as u64).is_none() {
        return Err(INVALID_VALUE);
    }
    if state().overlaps(start, len) {
        return Err(ALREADY_REGISTERED);
    }
    let registration = match examine(start, len, flags, read_only_supported) {
        Ok(registration) => Some(registration),
        Err(RegistrationRefusal::Code(code)) => return Err(code),
        Err(RegistrationRefusal::Hangs) => {
            state().hazards += 1;
            return Err(INVALID_VALUE);
        }
    };
    driver_lock::hold(len);
    let (kind, pages) = (RegionKind::Registered, Vec::new());
    let bytes = start;
    let (accessible, is_synchronous) = (true, false);
    let region = MemoryRegion {
        kind,
        gpu,
        context,
        id: new_handle(),
        len,
        bytes,
        accessible,
        is_synchronous,
        registration,
        pages,
    };
    let mut state = state();
    // Another thread may have been faster while this one looked at the pages.
    if state.overlaps(start, len) {
        return Err(ALREADY_REGISTERED);
    }
    if flags & PORTABLE != 0 && !state.may_pin(len) {
        return Err(OUT_OF_MEMORY);
    }
    state.regions.insert(start, region);
    Ok(())
}

/// Removes the region that starts at `address`, if it is one of `kinds`.
fn remove(address: u64, kinds: &[RegionKind], otherwise: c_int) -> Answer<MemoryRegion> {
    let mut state = state();
    let kind = state.regions.get(&address).map(|region| region.kind);
    if !kind.is_some_and(|kind| kinds.contains(&kind)) {
        return Err(otherwise);
    }
    let region = state.regions.remove(&address).ok_or(otherwise)?;
    if region.kind.is_device() || region.kind == RegionKind::Managed {
        state.give(region.gpu, region.len);
    }
    Ok(region)
}

/// What each pointer attribute says of an address, as 8 bytes of which the attribute's type takes its part.
fn pointer_attribute(name: c_int, address: u64) -> Answer<(u64, usize)> {
    let state = state();
    let Some((start, region)) = state.region(address) else { return Err(INVALID_VALUE) };
    let on_host = matches!(region.kind, RegionKind::Pinned | RegionKind::Registered);
    // Of mapped memory: all that was reserved, mapped or not.
    let reserved =
        (region.kind == RegionKind::Virtual).then(|| state.reservations.range(..=start).next_back());
    let (range, range_len) = reserved.flatten().map_or((start, region.len), |(at, pages)| (*at, pages.len));
    Ok(match name {
        1 => (region.context, 8),
        2 => (if on_host { 1 } else { 2 }, 4),
        3 | 4 => (address, 8),
        7 => (region.id, 8),
        8 => (u64::from(region.kind == RegionKind::Managed), 4),
        9 => (region.gpu as u64, 4),
        11 => (range, 8),
        12 => (range_len as u64, 8),
        13 => (u64::from(region.accessible), 4),
        16 => (if region.accessible { 3 } else { 0 }, 4),
        _ => return Err(INVALID_VALUE),
    })
}

/// # Safety
/// `to` has room for `len` bytes.
unsafe fn put(to: *mut c_void, (value, len): (u64, usize)) {
    // SAFETY: the caller promises it; a word has no less than `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), to.cast(), len) };
}

/// Whether a range is known from end to end. One that only begins in known memory is refused.
fn is_known(address: u64, len: usize) -> Answer<bool> {
    let state = state();
    let known = state.known(address, len);
    if !known && state.region(address).is_some() { Err(INVALID_VALUE) } else { Ok(known) }
}

/// Queues a copy. Both addresses may be of any kind; an end that is not known is taken as pageable host memory,
/// which the real driver stages (in) or waits for (out).
///
/// # Safety
/// Unknown addresses are host memory of that length.
unsafe fn copy(stream: &Arc<FakeStream>, dst: u64, src: u64, len: usize) -> Answer {
    if captures(stream)? || len == 0 {
        return Ok(());
    }
    let (gpu, mut staged) = (stream.gpu, None);
    let (src_known, dst_known) = (is_known(src, len)?, is_known(dst, len)?);
    if !src_known {
        // SAFETY: the caller promises it.
        staged = Some(unsafe { std::slice::from_raw_parts(src as *const u8, len) }.to_vec());
        state().unpinned_copies += 1;
    }
    let pageable = (!dst_known).then_some(dst);
    stream.push("async:copy", move || {
        // SAFETY: the caller, who is waiting, promises that much host memory.
        let pageable = pageable.map(|to| unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) });
        match (&staged, pageable) {
            (None, None) => access::transfer(gpu, src, dst, len),
            (Some(bytes), None) => access::write(gpu, dst, bytes),
            (None, Some(to)) => access::read(gpu, src, to),
            (Some(bytes), Some(to)) => {
                to.copy_from_slice(bytes);
                Ok(())
            }
        }
    });
    if pageable.is_some() {
        state().unpinned_copies += 1;
        stream.drain();
        broken(gpu)?;
    }
    Ok(())
}

/// Waits for queued work where the memory requires it (`SYNC_MEMOPS`).
fn settle(stream: &FakeStream, addresses: &[u64]) -> Answer {
    let asks = |address: &u64| state().region(*address).is_some_and(|(_, region)| region.is_synchronous);
    if addresses.iter().any(asks) {
        stream.drain();
        broken(stream.gpu)?;
    }
    Ok(())
}

/// The device's end of a copy must be known from end to end.
fn must_know(address: u64, len: usize) -> Answer {
    if len == 0 || state().known(address, len) { Ok(()) } else { Err(INVALID_VALUE) }
}

export! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (_, context) = current()?;
        let state = state();
        let gpu = &state.gpus[context.gpu];
        free.write(gpu.total - gpu.used);
        total.write(gpu.total);
        Ok(())
    }

    fn cuMemAlloc_v2(address: *mut u64, len: usize) {
        forbidden_in_capture()?;
        address.write(allocate(RegionKind::Device, len)?);
        Ok(())
    }

    fn cuMemAllocManaged(address: *mut u64, len: usize, _flags: c_uint) {
        forbidden_in_capture()?;
        address.write(allocate(RegionKind::Managed, len)?);
        Ok(())
    }

    fn cuMemAllocAsync(address: *mut u64, len: usize, handle: u64) {
        context::stream(handle)?;
        address.write(allocate(RegionKind::Pool, len)?);
        Ok(())
    }

    fn cuMemFreeAsync(address: u64, handle: u64) {
        let stream = context::stream(handle)?;
        must_know(address, 1)?;
        stream.push("async:free", move || remove(address, &[RegionKind::Pool, RegionKind::Device], INVALID_VALUE).map(drop));
        Ok(())
    }

    fn cuMemFree_v2(address: u64) {
        forbidden_in_capture()?;
        let (_, context) = current().inspect_err(|_| {
            // A broken GPU reaches nothing any more; the memory may be another's by the time that it is mended.
            let _ = remove(address as u64, &[RegionKind::Registered], NOT_REGISTERED);
        })?;
        // As the real one, waits for what may still use the memory.
        drain_gpu(context.gpu);
        remove(address, &[RegionKind::Device, RegionKind::Managed, RegionKind::Pool], INVALID_VALUE).map(drop)
    }

    fn cuMemHostAlloc(address: *mut *mut c_void, len: usize, _flags: c_uint) {
        forbidden_in_capture()?;
        address.write(allocate(RegionKind::Pinned, len)? as *mut c_void);
        Ok(())
    }

    fn cuMemFreeHost(address: *mut c_void) {
        forbidden_in_capture()?;
        let (_, context) = current()?;
        drain_gpu(context.gpu);
        remove(address as u64, &[RegionKind::Pinned], INVALID_VALUE).map(drop)
    }

    fn cuMemHostRegister_v2(address: *mut c_void, len: usize, flags: c_uint) {
        forbidden_in_capture()?;
        let (handle, context) = current()?;
        register(handle, context.gpu, address as u64, len, flags)
    }

    fn cuMemHostUnregister(address: *mut c_void) {
        forbidden_in_capture()?;
        let found = current();
        if let Ok((_, context)) = &found {
            // As the real one, waits for what may still use the memory.
            drain_gpu(context.gpu);
        }
        // A broken GPU refuses the call, but the owner unmaps the pages: nothing of them outlives the reset.
        let removed = remove(address as u64, &[RegionKind::Registered], NOT_REGISTERED).map(drop);
        found.and(removed)
    }

    fn cuMemHostGetDevicePointer_v2(device: *mut u64, address: *mut c_void, _flags: c_uint) {
        current()?;
        must_know(address as u64, 1)?;
        // Without this a GPU has addresses of its own for registered memory. The fake only says so.
        let same = device_attribute(HOST_POINTER_FOR_REGISTERED) != 0;
        device.write(address as u64 ^ if same { 0 } else { 1 << 60 });
        Ok(())
    }

    fn cuMemGetHandleForAddressRange(handle: *mut c_int, address: u64, len: usize, kind: c_int, flags: u64) {
        current()?;
        if kind != DMA_BUF_FD || flags != 0 || !(address | len as u64).is_multiple_of(PAGE) || len == 0 {
            return Err(INVALID_VALUE);
        }
        let state = state();
        let (start, region) = state.region(address).ok_or(INVALID_VALUE)?;
        // Ranges end with the page that holds the memory's end.
        if start != address || len != region.len.next_multiple_of(PAGE as usize) {
            return Err(INVALID_VALUE);
        }
        handle.write(region.pages[0].export().ok_or(NOT_SUPPORTED)?);
        Ok(())
    }

    fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) {
        current()?;
        if (target, scope) == (0, 100) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuPointerGetAttribute(to: *mut c_void, name: c_int, address: u64) {
        put(to, pointer_attribute(name, address)?);
        Ok(())
    }

    fn cuPointerSetAttribute(value: *const c_uint, name: c_int, address: u64) {
        let is_synchronous = value.read() != 0;
        if name != POINTER_SYNC_MEMOPS {
            return Err(INVALID_VALUE);
        }
        let mut state = state();
        let start = state.region(address).map(|(start, _)| start).ok_or(INVALID_VALUE)?;
        let region = state.regions.get_mut(&start).ok_or(INVALID_VALUE)?;
        if !region.kind.is_device() {
            return Err(INVALID_VALUE);
        }
        region.is_synchronous = is_synchronous;
        Ok(())
    }

    fn cuPointerGetAttributes(count: c_uint, names: *const c_int, places: *mut *mut c_void, address: u64) {
        if !state().initialised {
            return Err(NOT_INITIALIZED);
        }
        if state().contexts.is_empty() {
            return Err(INVALID_CONTEXT);
        }
        for index in 0..count as usize {
            let name = names.add(index).read();
            // The plural form answers zeros for an address that the driver does not know.
            let nothing = (0, if [2, 8, 9, 13, 16].contains(&name) { 4 } else { 8 });
            put(places.add(index).read(), pointer_attribute(name, address).unwrap_or(nothing));
        }
        Ok(())
    }

    fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, len: usize, handle: u64) {
        let stream = context::stream(handle)?;
        must_know(dst, len)?;
        must_know(src, len)?;
        copy(&stream, dst, src, len)?;
        settle(&stream, &[dst, src])
    }

    fn cuMemsetD8Async(dst: u64, value: c_uchar, len: usize, handle: u64) {
        let stream = context::stream(handle)?;
        must_know(dst, len)?;
        if captures(&stream)? {
            return Ok(());
        }
        let gpu = stream.gpu;
        stream.push("async:set", move || access::set(gpu, dst, value, len));
        settle(&stream, &[dst])
    }

    fn cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, len: usize, handle: u64) {
        let stream = context::stream(handle)?;
        must_know(dst, len)?;
        copy(&stream, dst, src as u64, len)
    }

    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, len: usize, handle: u64) {
        let stream = context::stream(handle)?;
        must_know(src, len)?;
        copy(&stream, dst as u64, src, len)
    }
}
