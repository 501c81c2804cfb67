//! A thread's current state: a stack of contexts and a capture mode.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::Arc;

use crate::result::{
    Answer, CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, INVALID_CONTEXT, INVALID_DEVICE,
    INVALID_HANDLE, new_handle,
};
use crate::state::{DriverState, FakeContext, state};
use crate::stream::{FakeEvent, FakeStream, StreamOrder};
use crate::work::{broken, drain_gpu};

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
pub(crate) fn current() -> Answer<(u64, FakeContext)> {
    let handle = current_handle();
    let context = state().contexts.get(&handle).copied().ok_or(INVALID_CONTEXT)?;
    broken(context.gpu)?;
    Ok((handle, context))
}

/// Creates a context with its legacy stream.
pub(crate) fn create(gpu: usize) -> Answer<u64> {
    let handle = new_handle();
    let legacy = FakeStream::start(handle, gpu, StreamOrder::Legacy)?;
    let mut state = state();
    if gpu >= state.gpus.len() {
        legacy.close();
        return Err(INVALID_DEVICE);
    }
    let context = FakeContext { gpu, id: handle, legacy: legacy.handle };
    state.streams.insert(legacy.handle, legacy);
    state.contexts.insert(handle, context);
    Ok(handle)
}

/// Destroys a context with all that it owns. The real driver crashes where a handle of that is destroyed once more.
pub(crate) fn destroy(handle: u64) -> Answer {
    let removed = state().contexts.remove(&handle).ok_or(INVALID_CONTEXT)?;
    drain_gpu(removed.gpu);
    let mut state = state();
    let state = &mut *state;
    for stream in state.streams.values().filter(|stream| stream.context == handle) {
        stream.close();
    }
    let of_it = |stream: &Arc<FakeStream>| stream.context == handle;
    state.gone.extend(state.streams.extract_if(|_, stream| of_it(stream)).map(|(stream, _)| stream));
    state.gone.extend(state.events.extract_if(|_, event| event.context == handle).map(|(event, _)| event));
    state.modules.retain(|_, context| *context != handle);
    Ok(())
}

/// The handle that means the calling thread's default stream.
pub(crate) const PER_THREAD: u64 = 2;

/// The default streams of one thread, by context. They end with the thread.
#[derive(Default)]
struct ThreadStreams(Vec<(u64, u64)>);

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        let mut state = state();
        for (_, handle) in self.0.drain(..) {
            state.captures.remove(&handle);
            if let Some(stream) = state.streams.remove(&handle) {
                state.closing.push(Arc::downgrade(&stream));
                stream.close();
            }
        }
    }
}

thread_local! {
    static THREAD_STREAMS: RefCell<ThreadStreams> = RefCell::default();
}

/// The calling thread's default stream in a context, made when it is first asked for.
fn thread_stream(context: u64, gpu: usize) -> Answer<u64> {
    THREAD_STREAMS.with_borrow_mut(|streams| {
        if let Some((_, handle)) = streams.0.iter().find(|(of, _)| *of == context) {
            return Ok(*handle);
        }
        let stream = FakeStream::start(context, gpu, StreamOrder::PerThread)?;
        streams.0.push((context, stream.handle));
        let handle = stream.handle;
        state().streams.insert(handle, stream);
        Ok(handle)
    })
}

/// The stream that a handle means in the current context. A stream of another context is refused.
pub(crate) fn stream(handle: u64) -> Answer<Arc<FakeStream>> {
    let (current, context) = current()?;
    let handle = match handle {
        PER_THREAD => thread_stream(current, context.gpu)?,
        0 | 1 => context.legacy,
        handle => handle,
    };
    let stream = state().streams.get(&handle).cloned().ok_or(INVALID_HANDLE)?;
    if stream.context == current { Ok(stream) } else { Err(INVALID_HANDLE) }
}

/// The stream that a handle means, of whatever context.
pub(crate) fn stream_of_any(handle: u64) -> Answer<Arc<FakeStream>> {
    if handle <= PER_THREAD {
        return stream(handle);
    }
    state().streams.get(&handle).cloned().ok_or(INVALID_HANDLE)
}

/// The event of a handle.
pub(crate) fn event(handle: u64) -> Answer<Arc<FakeEvent>> {
    let event = state().events.get(&handle).cloned().ok_or(INVALID_HANDLE)?;
    broken(event.gpu)?;
    Ok(event)
}

/// Whether work for `stream` is being captured instead of run. Counts the operation.
pub(crate) fn captures(stream: &FakeStream) -> Answer<bool> {
    let mut state = state();
    break_implicit(&mut state, stream)?;
    match state.captures.get_mut(&stream.handle) {
        None => Ok(false),
        Some(capture) if !capture.valid => Err(CAPTURE_INVALIDATED),
        Some(capture) => {
            capture.operations += 1;
            Ok(true)
        }
    }
}

/// Captures of streams that the legacy one would have to wait for.
fn implicit(state: &DriverState, legacy: &FakeStream) -> Vec<u64> {
    let blocks = |handle: &&u64| {
        let stream = state.streams.get(handle);
        stream.is_some_and(|stream| stream.context == legacy.context && stream.order.is_blocking())
    };
    if legacy.order == StreamOrder::Legacy {
        state.captures.keys().filter(blocks).copied().collect()
    } else {
        Vec::new()
    }
}

/// Whether a capture under way makes the use of this stream an error, as it does for the legacy one.
pub(crate) fn is_implicitly_captured(stream: &FakeStream) -> bool {
    !implicit(&state(), stream).is_empty()
}

/// Using the legacy stream breaks captures of streams that it would have to wait for.
fn break_implicit(state: &mut DriverState, stream: &FakeStream) -> Answer {
    let broken = implicit(state, stream);
    for handle in &broken {
        if let Some(capture) = state.captures.get_mut(handle) {
            capture.valid = false;
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(CAPTURE_IMPLICIT) }
}

/// Breaks the capture of a stream, if there is one: it was waited for or asked about.
pub(crate) fn disturb(stream: &FakeStream) -> Answer {
    let mut state = state();
    break_implicit(&mut state, stream)?;
    match state.captures.get_mut(&stream.handle) {
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
