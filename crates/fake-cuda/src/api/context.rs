//! Contexts, and the thread's capture mode.

use std::ffi::{c_int, c_uint};

use crate::context::{self, MODE_RELAXED};
use crate::entry::export;
use crate::result::{INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, PEER_ACCESS_ALREADY_ENABLED};
use crate::state::state;
use crate::work::drain_gpu;

export! {
    fn cuDevicePrimaryCtxRetain(out: *mut u64, device: c_int) {
        let known = state().gpu(device)?.primary;
        if known == 0 {
            context::forbidden_in_capture()?;
            let made = context::create(device as usize)?;
            state().gpu(device)?.primary = made;
        }
        let mut state = state();
        let gpu = state.gpu(device)?;
        gpu.primary_references += 1;
        out.write(gpu.primary);
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let mut state = state();
        let gpu = state.gpu(device)?;
        // The context stays: what a reset at the last release destroys is more than the fake models.
        gpu.primary_references = gpu.primary_references.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        let mut state = state();
        let gpu = state.gpu(device)?;
        flags.write(0);
        active.write(c_int::from(gpu.primary_references > 0));
        Ok(())
    }

    fn cuCtxCreate_v2(out: *mut u64, _flags: c_uint, device: c_int) {
        state().gpu(device)?;
        context::forbidden_in_capture()?;
        let made = context::create(device as usize)?;
        context::push(made);
        out.write(made);
        Ok(())
    }

    fn cuCtxDestroy_v2(handle: u64) {
        context::destroy(handle)?;
        if context::current_handle() == handle {
            context::pop();
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        let gpu = state().gpu(device)?.primary;
        if gpu != 0 {
            context::destroy(gpu)?;
        }
        let mut state = state();
        let gpu = state.gpu(device)?;
        (gpu.primary, gpu.primary_references) = (0, 0);
        Ok(())
    }

    fn cuCtxGetCurrent(out: *mut u64) {
        if !state().initialised {
            return Err(NOT_INITIALIZED);
        }
        out.write(context::current_handle());
        Ok(())
    }

    fn cuCtxSetCurrent(handle: u64) {
        if handle != 0 && !state().contexts.contains_key(&handle) {
            return Err(INVALID_CONTEXT);
        }
        context::pop();
        if handle != 0 {
            context::push(handle);
        }
        Ok(())
    }

    fn cuCtxPushCurrent_v2(handle: u64) {
        if !state().contexts.contains_key(&handle) {
            return Err(INVALID_CONTEXT);
        }
        context::push(handle);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: *mut u64) {
        let popped = context::pop().ok_or(INVALID_CONTEXT)?;
        if !out.is_null() {
            out.write(popped);
        }
        Ok(())
    }

    fn cuCtxGetDevice(device: *mut c_int) {
        let handle = context::current_handle();
        let context = state().contexts.get(&handle).copied().ok_or(INVALID_CONTEXT)?;
        device.write(context.gpu as c_int);
        Ok(())
    }

    fn cuCtxGetId(handle: u64, id: *mut u64) {
        let handle = if handle == 0 { context::current_handle() } else { handle };
        id.write(state().contexts.get(&handle).ok_or(INVALID_CONTEXT)?.id);
        Ok(())
    }

    fn cuCtxSynchronize() {
        let (_, current) = context::current()?;
        context::forbidden_in_capture()?;
        drain_gpu(current.gpu);
        crate::work::broken(current.gpu)
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: c_uint) {
        let (_, context) = context::current()?;
        let mut state = state();
        let peer = state.contexts.get(&peer).ok_or(INVALID_CONTEXT)?.gpu;
        if flags != 0 || peer == context.gpu {
            return Err(INVALID_VALUE);
        }
        if state.peers.insert((context.gpu, peer)) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        let wanted = mode.read();
        if !(0..=MODE_RELAXED).contains(&wanted) {
            return Err(INVALID_VALUE);
        }
        mode.write(context::exchange_mode(wanted));
        Ok(())
    }
}
