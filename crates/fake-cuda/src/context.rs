//! What a thread has current: a stack of contexts and a capture mode.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::Arc;

use crate::state::{
    Answer, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, Context, INVALID_CONTEXT, INVALID_DEVICE,
    INVALID_HANDLE, new_handle, state,
};
use crate::stream::{Event, Order, Stream, broken};

pub(crate) const MODE_GLOBAL: c_int = 0;
pub(crate) const MODE_THREAD: c_int = 1;
pub(crate) const MODE_RELAXED: c_int = 2;

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static MODE: Cell<c_int> = const { Cell::new(MODE_GLOBAL) };
}

/// The handle on top of this thread's stack, 0 if there is none.
pub(crate) fn current_handle() -> u64 {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

pub(crate) fn push(context: u64) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

pub(crate) fn pop() -> Option<u64> {
    STACK.with_borrow_mut(Vec::pop)
}

pub(crate) fn exchange_mode(mode: c_int) -> c_int {
    MODE.replace(mode)
}

/// The current context. Answers the fault of earlier work in it, as most of the driver's functions do.
pub(crate) fn current() -> Answer<(u64, Context)> {
    let handle = current_handle();
    let context = state().contexts.get(&handle).copied().ok_or(INVALID_CONTEXT)?;
    broken(context.gpu)?;
    Ok((handle, context))
}

/// Creates a context with its legacy stream.
pub(crate) fn create(gpu: usize) -> Answer<u64> {
    let handle = new_handle();
    let legacy = Stream::start(handle, gpu, Order::Legacy)?;
    let mut state = state();
    if gpu >= state.gpus.len() {
        legacy.close();
        return Err(INVALID_DEVICE);
    }
    let context = Context { gpu, id: handle, legacy: legacy.handle };
    state.streams.insert(legacy.handle, legacy);
    state.contexts.insert(handle, context);
    Ok(handle)
}

/// The stream that a handle means in the current context. A stream of another context is refused.
pub(crate) fn stream(handle: u64) -> Answer<Arc<Stream>> {
    let (current, context) = current()?;
    let handle = if handle <= 2 { context.legacy } else { handle };
    let stream = state().streams.get(&handle).cloned().ok_or(INVALID_HANDLE)?;
    if stream.context == current { Ok(stream) } else { Err(INVALID_HANDLE) }
}

/// The stream that a handle means, of whatever context.
pub(crate) fn stream_of_any(handle: u64) -> Answer<Arc<Stream>> {
    if handle <= 2 {
        return stream(handle);
    }
    state().streams.get(&handle).cloned().ok_or(INVALID_HANDLE)
}

/// The event of a handle.
pub(crate) fn event(handle: u64) -> Answer<Arc<Event>> {
    let event = state().events.get(&handle).cloned().ok_or(INVALID_HANDLE)?;
    broken(event.gpu)?;
    Ok(event)
}

/// Whether work for `stream` is being captured instead of run. Counts the operation.
pub(crate) fn captures(stream: &Stream) -> Answer<bool> {
    let mut state = state();
    match state.captures.get_mut(&stream.handle) {
        None => Ok(false),
        Some(capture) if !capture.valid => Err(CAPTURE_INVALIDATED),
        Some(capture) => {
            capture.operations += 1;
            Ok(true)
        }
    }
}

/// Breaks the capture of a stream, if there is one: it was waited for or asked about.
pub(crate) fn disturb(stream: &Stream) -> Answer {
    match state().captures.get_mut(&stream.handle) {
        None => Ok(()),
        Some(capture) => {
            capture.valid = false;
            Err(CAPTURE_UNSUPPORTED)
        }
    }
}

/// To be called by every function that a capture under way forbids. Refuses, and breaks those captures, unless this
/// thread's mode permits it.
pub(crate) fn forbidden_in_capture() -> Answer {
    let mode = MODE.get();
    if mode == MODE_RELAXED {
        return Ok(());
    }
    let here = std::thread::current().id();
    let mut hit = false;
    for capture in state().captures.values_mut() {
        let own = capture.thread == here && capture.mode != MODE_RELAXED;
        let others = mode == MODE_GLOBAL && capture.mode == MODE_GLOBAL;
        if own || others {
            capture.valid = false;
            hit = true;
        }
    }
    if hit { Err(CAPTURE_UNSUPPORTED) } else { Ok(()) }
}
