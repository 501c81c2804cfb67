//! Functions that only KvikIO looks up: copies that find out where their addresses are, many of them at once, and
//! newer names.

use std::ffi::{c_int, c_uint, c_void};

use super::context::cuCtxCreate_v2;
use super::memory::{cuMemcpyDtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2};
use crate::entry::export;
use crate::result::{Answer, INVALID_VALUE};
use crate::state::state;

fn answer(code: c_int) -> Answer {
    if code == 0 { Ok(()) } else { Err(code) }
}

fn is_on_gpu(address: u64) -> bool {
    state().region(address).is_some_and(|(_, region)| region.kind.is_device())
}

export! {
    fn cuCtxCreate_v4(out: *mut u64, _parameters: *mut c_void, flags: c_uint, device: c_int) {
        answer(cuCtxCreate_v2(out, flags, device))
    }

    fn cuMemGetAddressRange_v2(start: *mut u64, len: *mut usize, address: u64) {
        let state = state();
        let (at, region) = state.region(address).ok_or(INVALID_VALUE)?;
        start.write(at);
        len.write(region.len);
        Ok(())
    }

    fn cuMemcpyAsync(dst: u64, src: u64, len: usize, stream: u64) {
        answer(match (is_on_gpu(dst), is_on_gpu(src)) {
            (false, _) => cuMemcpyDtoHAsync_v2(dst as *mut c_void, src, len, stream),
            (true, false) => cuMemcpyHtoDAsync_v2(dst, src as *const c_void, len, stream),
            (true, true) => cuMemcpyDtoDAsync_v2(dst, src, len, stream),
        })
    }

    fn cuMemcpyBatchAsync_v2(
        dst: *const u64,
        src: *const u64,
        lens: *const usize,
        count: usize,
        _attributes: *mut c_void,
        _indices: *const usize,
        _attribute_count: usize,
        stream: u64,
    ) {
        for at in 0..count {
            answer(cuMemcpyAsync(dst.add(at).read(), src.add(at).read(), lens.add(at).read(), stream))?;
        }
        Ok(())
    }
}
