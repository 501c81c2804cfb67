//! Addresses and memory apart: reserve, create, map, permit.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::entry::export;
use crate::memory::{MappedPages, MemoryRegion, RegionKind};
use crate::result::{INVALID_VALUE, new_handle};
use crate::state::{PhysicalMemory, state};

const GRANULARITY: usize = 2 << 20;

/// `CUmemAllocationProp` as far as it is looked at.
#[repr(C)]
pub struct Prop {
    kind: c_int,
    handle_types: c_int,
    location_kind: c_int,
    location_id: c_int,
}

export! {
    fn cuMemGetAllocationGranularity(granularity: *mut usize, _prop: *const c_void, _option: c_int) {
        granularity.write(GRANULARITY);
        Ok(())
    }

    fn cuMemAddressReserve(address: *mut u64, len: usize, _alignment: usize, _wanted: u64, _flags: u64) {
        if !len.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        let pages = MappedPages::forbidden(len)?;
        address.write(pages.address);
        state().reservations.insert(pages.address, pages);
        Ok(())
    }

    fn cuMemAddressFree(address: u64, len: usize) {
        let mut state = state();
        if state.reservations.get(&address).is_none_or(|pages| pages.len != len) || state.overlaps(address, len) {
            return Err(INVALID_VALUE);
        }
        state.reservations.remove(&address);
        Ok(())
    }

    fn cuMemCreate(memory: *mut u64, len: usize, prop: *const Prop, _flags: u64) {
        let prop = &*prop;
        if !len.is_multiple_of(GRANULARITY) || prop.kind != 1 || prop.location_kind != 1 || prop.handle_types != 0 {
            return Err(INVALID_VALUE);
        }
        let mut state = state();
        state.gpu(prop.location_id)?;
        let gpu = prop.location_id as usize;
        state.take(gpu, len)?;
        let handle = new_handle();
        let pages = Arc::new(MappedPages::usable(len)?);
        state.physical.insert(handle, PhysicalMemory { gpu, pages });
        memory.write(handle);
        Ok(())
    }

    fn cuMemRelease(memory: u64) {
        let mut state = state();
        let physical = state.physical.remove(&memory).ok_or(INVALID_VALUE)?;
        // Memory still mapped is freed when its mapping ends.
        if Arc::strong_count(&physical.pages) == 1 {
            state.give(physical.gpu, physical.pages.len);
        }
        Ok(())
    }

    fn cuMemMap(address: u64, len: usize, offset: usize, memory: u64, _flags: u64) {
        let mut state = state();
        let physical = state.physical.get(&memory).ok_or(INVALID_VALUE)?;
        let (gpu, pages) = (physical.gpu, physical.pages.clone());
        let reserved = state.reservations.range(..=address).next_back();
        let inside = reserved.is_some_and(|(start, range)| address + len as u64 <= start + range.len as u64);
        if !inside || offset != 0 || len > pages.len || state.overlaps(address, len) {
            return Err(INVALID_VALUE);
        }
        let bytes = pages.address;
        let region = MemoryRegion {
            kind: RegionKind::Virtual,
            gpu,
            context: 0,
            id: new_handle(),
            len,
            bytes,
            accessible: false,
            is_synchronous: false,
            registration: None,
            pages: vec![pages],
        };
        state.regions.insert(address, region);
        Ok(())
    }

    fn cuMemSetAccess(address: u64, len: usize, access: *const c_void, count: usize) {
        let mut state = state();
        let region = state.regions.get_mut(&address).ok_or(INVALID_VALUE)?;
        if access.is_null() || count == 0 || region.kind != RegionKind::Virtual || region.len != len {
            return Err(INVALID_VALUE);
        }
        region.accessible = true;
        Ok(())
    }

    fn cuMemUnmap(address: u64, len: usize) {
        let mut state = state();
        if state.regions.get(&address).is_none_or(|region| region.kind != RegionKind::Virtual || region.len != len) {
            return Err(INVALID_VALUE);
        }
        let region = state.regions.remove(&address).ok_or(INVALID_VALUE)?;
        let pages = &region.pages[0];
        if Arc::strong_count(pages) == 1 {
            state.give(region.gpu, pages.len);
        }
        Ok(())
    }
}
