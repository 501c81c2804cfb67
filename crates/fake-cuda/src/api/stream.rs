//! Streams, events, captures, host functions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::context::{
    self, MODE_GLOBAL, MODE_RELAXED, MODE_THREAD, PER_THREAD, captures, current, disturb,
    forbidden_in_capture, is_implicitly_captured,
};
use crate::entry::export;
use crate::result::{
    Answer, CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURED_EVENT, INVALID_CONTEXT, INVALID_HANDLE,
    INVALID_VALUE, NOT_READY, new_handle,
};
use crate::state::{StreamCapture, state};
use crate::stream::{FakeEvent, FakeStream, StreamOrder};
use crate::work::broken;

const NON_BLOCKING: c_uint = 1;
const WAIT_VALUE_GEQ: c_uint = 0;

/// To destroy what went with its context crashes the real driver.
fn crashes_if_gone(handle: u64) -> Answer {
    let mut state = state();
    let is_gone = state.gone.contains(&handle);
    state.hazards += u64::from(is_gone);
    if is_gone { Err(INVALID_HANDLE) } else { Ok(()) }
}

/// Asking about an event of a captured stream is refused; asking at all is forbidden while others capture.
fn may_ask(event: &FakeEvent) -> Answer {
    if event.captured.load(Ordering::Relaxed) { Err(CAPTURED_EVENT) } else { forbidden_in_capture() }
}

/// `CUstreamBatchMemOpParams`, of an operation on a word.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WordOperation {
    operation: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    alias: u64,
    rest: u64,
}

const OPERATION_WAIT: c_uint = 1;
const OPERATION_WRITE: c_uint = 2;
/// The driver takes no more operations in one call.
const OPERATIONS_MAX: c_uint = 256;

/// Checks an operation on a word before any is queued.
fn check_word(address: u64, flags: c_uint) -> Answer {
    let good = flags == WAIT_VALUE_GEQ && address.is_multiple_of(4) && state().known(address, 4);
    if good { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Runs on a word of `gpu`.
fn on_word(gpu: usize, address: u64, work: impl FnOnce(&AtomicU32)) -> Answer {
    let word = state().reach(gpu, address, 4)? as u64;
    // SAFETY: known memory; its alignment was checked when the operation was queued.
    work(unsafe { AtomicU32::from_ptr(word as *mut u32) });
    Ok(())
}

fn push_wait(stream: &FakeStream, address: u64, value: u32) {
    let gpu = stream.gpu;
    stream.push("async:wait", move || {
        on_word(gpu, address, |word| {
            // Many streams may wait at once, and the machine may be small.
            let mut nap = Duration::from_micros(20);
            while (word.load(Ordering::Acquire).wrapping_sub(value) as i32) < 0 {
                std::thread::sleep(nap);
                nap = (nap + Duration::from_micros(20)).min(Duration::from_millis(2));
            }
        })
    });
}

fn push_write(stream: &FakeStream, address: u64, value: u32) {
    let gpu = stream.gpu;
    stream.push("async:write", move || on_word(gpu, address, |word| word.store(value, Ordering::Release)));
}

fn wait_value(handle: u64, address: u64, value: u32, flags: c_uint) -> Answer {
    let stream = context::stream(handle)?;
    check_word(address, flags)?;
    if !captures(&stream)? {
        push_wait(&stream, address, value);
    }
    Ok(())
}

fn write_value(handle: u64, address: u64, value: u32, flags: c_uint) -> Answer {
    let stream = context::stream(handle)?;
    check_word(address, flags)?;
    if !captures(&stream)? {
        push_write(&stream, address, value);
    }
    Ok(())
}

/// As the real one: all of them in order, or none.
fn word_batch(handle: u64, operations: &[WordOperation], flags: c_uint) -> Answer {
    let stream = context::stream(handle)?;
    for one in operations {
        if flags != 0 || ![OPERATION_WAIT, OPERATION_WRITE].contains(&one.operation) {
            return Err(INVALID_VALUE);
        }
        check_word(one.address, one.flags)?;
    }
    if captures(&stream)? {
        return Ok(());
    }
    for one in operations {
        if one.operation == OPERATION_WAIT {
            push_wait(&stream, one.address, one.value as u32);
        } else {
            push_write(&stream, one.address, one.value as u32);
        }
    }
    Ok(())
}

export! {
    fn cuStreamCreate(out: *mut u64, flags: c_uint) {
        forbidden_in_capture()?;
        let (handle, context) = current()?;
        let order = if flags & NON_BLOCKING == 0 { StreamOrder::Blocking } else { StreamOrder::NonBlocking };
        let stream = FakeStream::start(handle, context.gpu, order)?;
        out.write(stream.handle);
        state().streams.insert(stream.handle, stream);
        Ok(())
    }

    fn cuStreamDestroy_v2(handle: u64) {
        forbidden_in_capture()?;
        crashes_if_gone(handle)?;
        let mut state = state();
        let ours = |stream: &Arc<FakeStream>| matches!(stream.order, StreamOrder::Legacy | StreamOrder::PerThread);
        if state.streams.get(&handle).is_none_or(ours) {
            return Err(INVALID_HANDLE);
        }
        let stream = state.streams.remove(&handle).ok_or(INVALID_HANDLE)?;
        state.captures.remove(&handle);
        state.closing.push(Arc::downgrade(&stream));
        stream.close();
        Ok(())
    }

    fn cuStreamGetCtx(handle: u64, out: *mut u64) {
        if handle <= 2 {
            let here = context::current_handle();
            if here == 0 {
                return Err(INVALID_CONTEXT);
            }
            out.write(here);
            return Ok(());
        }
        out.write(state().streams.get(&handle).ok_or(INVALID_HANDLE)?.context);
        Ok(())
    }

    fn cuStreamSynchronize(handle: u64) {
        let stream = context::stream(handle)?;
        disturb(&stream)?;
        forbidden_in_capture()?;
        stream.drain();
        broken(stream.gpu)
    }

    fn cuStreamQuery(handle: u64) {
        let stream = context::stream(handle)?;
        disturb(&stream)?;
        forbidden_in_capture()?;
        if stream.is_idle() { broken(stream.gpu) } else { Err(NOT_READY) }
    }

    fn cuStreamWaitEvent(handle: u64, event: u64, _flags: c_uint) {
        let stream = context::stream(handle)?;
        let event = context::event(event)?;
        if captures(&stream)? {
            return Ok(());
        }
        if let Some((other, mark)) = event.mark() {
            stream.push("async:wait", move || {
                other.wait_for(mark);
                Ok(())
            });
        }
        Ok(())
    }

    fn cuStreamWaitValue32(handle: u64, address: u64, value: u32, flags: c_uint) {
        wait_value(handle, address, value, flags)
    }

    fn cuStreamWaitValue32_v2(handle: u64, address: u64, value: u32, flags: c_uint) {
        wait_value(handle, address, value, flags)
    }

    fn cuStreamWriteValue32(handle: u64, address: u64, value: u32, flags: c_uint) {
        write_value(handle, address, value, flags)
    }

    fn cuStreamWriteValue32_v2(handle: u64, address: u64, value: u32, flags: c_uint) {
        write_value(handle, address, value, flags)
    }

    fn cuStreamBatchMemOp_v2(handle: u64, count: c_uint, operations: *const WordOperation, flags: c_uint) {
        if count > OPERATIONS_MAX {
            return Err(INVALID_VALUE);
        }
        let operations = if count == 0 { &[] } else { std::slice::from_raw_parts(operations, count as usize) };
        word_batch(handle, operations, flags)
    }

    fn cuStreamGetId(handle: u64, id: *mut u64) {
        id.write(context::stream_of_any(handle)?.id);
        Ok(())
    }

    fn cuLaunchHostFunc(handle: u64, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) {
        let stream = context::stream(handle)?;
        if captures(&stream)? {
            return Ok(());
        }
        let data = data as u64;
        stream.push("async:host", move || {
            // SAFETY: the caller promises that the function may be called once with its data, on any thread.
            unsafe { function(data as *mut c_void) };
            Ok(())
        });
        Ok(())
    }

    fn cuEventCreate(out: *mut u64, _flags: c_uint) {
        let (context, current) = current()?;
        let handle = new_handle();
        state().events.insert(handle, Arc::new(FakeEvent::new(context, current.gpu)));
        out.write(handle);
        Ok(())
    }

    fn cuEventDestroy_v2(handle: u64) {
        crashes_if_gone(handle)?;
        state().events.remove(&handle).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord(event: u64, handle: u64) {
        let stream = context::stream(handle)?;
        let event = context::event(event)?;
        if event.context != stream.context {
            return Err(INVALID_HANDLE);
        }
        let captured = captures(&stream)?;
        event.captured.store(captured, Ordering::Relaxed);
        if !captured {
            event.record(&stream);
        }
        Ok(())
    }

    fn cuEventQuery(event: u64) {
        let event = context::event(event)?;
        may_ask(&event)?;
        match event.mark() {
            Some((stream, mark)) if !stream.is_done(mark) => Err(NOT_READY),
            _ => broken(event.gpu),
        }
    }

    fn cuEventSynchronize(event: u64) {
        let event = context::event(event)?;
        may_ask(&event)?;
        if let Some((stream, mark)) = event.mark() {
            stream.wait_for(mark);
        }
        broken(event.gpu)
    }

    fn cuStreamBeginCapture_v2(handle: u64, mode: c_int) {
        let stream = context::stream(handle)?;
        if handle < PER_THREAD || ![MODE_GLOBAL, MODE_THREAD, MODE_RELAXED].contains(&mode) {
            return Err(INVALID_VALUE);
        }
        let thread = std::thread::current().id();
        state().captures.insert(stream.handle, StreamCapture { mode, thread, valid: true, operations: 0 });
        Ok(())
    }

    fn cuStreamEndCapture(handle: u64, graph: *mut u64) {
        let stream = context::stream(handle)?;
        let capture = state().captures.remove(&stream.handle).ok_or(INVALID_VALUE)?;
        // The "graph" is only the number of operations that were captured.
        graph.write(if capture.valid { capture.operations } else { 0 });
        if capture.valid { Ok(()) } else { Err(CAPTURE_INVALIDATED) }
    }

    fn cuStreamIsCapturing(handle: u64, status: *mut c_int) {
        let stream = context::stream_of_any(handle)?;
        if is_implicitly_captured(&stream) {
            return Err(CAPTURE_IMPLICIT);
        }
        status.write(match state().captures.get(&stream.handle) {
            None => 0,
            Some(capture) => if capture.valid { 1 } else { 2 },
        });
        Ok(())
    }
}
