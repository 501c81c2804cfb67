//! Entering a context for the length of one call, and leaving the thread as it was found.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;

use super::driver::CudaDriver;
use super::error::CudaFailure;
use super::sys::{CAPTURE_MODE_RELAXED, Handle};

/// What forebay knows about the calling thread.
#[derive(Clone, Copy)]
struct Thread {
    /// The thread is forebay's own: its capture mode is relaxed for good and nobody else changes its context.
    adopted: bool,
    /// On an adopted thread: the context that is current, 0 if unknown.
    bound: Handle,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread { adopted: false, bound: 0 }) };
}

/// A context is current, and calls leave stream captures alone, while this lives.
pub(crate) struct ContextGuard {
    driver: &'static CudaDriver,
    /// The context was pushed and must be popped.
    pushed: bool,
    /// The thread's capture mode before, where it was changed.
    mode: Option<c_int>,
    /// Bound to the thread that entered.
    _thread: PhantomData<*const ()>,
}

impl ContextGuard {
    /// Makes `context` current. On an adopted thread this is usually one comparison; elsewhere three short driver
    /// calls, five where another context was current.
    #[inline]
    pub(crate) fn enter(driver: &'static CudaDriver, context: Handle) -> Result<Self, CudaFailure> {
        let thread = THREAD.get();
        if thread.adopted {
            if thread.bound != context {
                bind(driver, context)?;
            }
            return Ok(Self { driver, pushed: false, mode: None, _thread: PhantomData });
        }
        let mut guard = Self::relaxed(driver);
        let mut current = 0;
        // SAFETY: `current` is a valid place for a handle; `context` is a live one.
        unsafe {
            driver.symbols.cuCtxGetCurrent(&raw mut current)?;
            if current != context {
                driver.symbols.cuCtxPushCurrent_v2(context)?;
                guard.pushed = true;
            }
        }
        Ok(guard)
    }

    /// Only relaxes the capture mode: for calls that need no context.
    #[inline]
    pub(crate) fn relaxed(driver: &'static CudaDriver) -> Self {
        let mut mode = CAPTURE_MODE_RELAXED;
        // A driver without this function knows no captures either, so a failure needs no answer.
        // SAFETY: `mode` is a valid place for an int and holds a valid mode.
        let changed = !THREAD.get().adopted
            && unsafe { driver.symbols.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.is_ok();
        Self { driver, pushed: false, mode: changed.then_some(mode), _thread: PhantomData }
    }
}

impl Drop for ContextGuard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: undoes what `enter` did on this same thread; the places are valid.
        unsafe {
            if self.pushed {
                let mut popped = 0;
                let _ = self.driver.symbols.cuCtxPopCurrent_v2(&raw mut popped);
            }
            if let Some(mut mode) = self.mode {
                let _ = self.driver.symbols.cuThreadExchangeStreamCaptureMode(&raw mut mode);
            }
        }
    }
}

/// Exchanges the calling thread's capture mode; `None` where the driver cannot.
pub(crate) fn exchange_mode(driver: &CudaDriver, mut mode: c_int) -> Option<c_int> {
    // SAFETY: `mode` is a valid place for an int; the driver refuses a value that is none of its own.
    unsafe { driver.symbols.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.ok()?;
    Some(mode)
}

/// Marks the calling thread as forebay's own: see [`crate::Device::adopt_thread`].
pub(crate) fn adopt(driver: &'static CudaDriver) {
    if THREAD.get().adopted {
        return;
    }
    let mut mode = CAPTURE_MODE_RELAXED;
    // SAFETY: `mode` is a valid place for an int and holds a valid mode.
    let _ = unsafe { driver.symbols.cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    THREAD.set(Thread { adopted: true, bound: 0 });
}

/// Adopts the calling thread and makes `context` current on it, whatever another library has left there.
pub(crate) fn settle(driver: &'static CudaDriver, context: Handle) -> Result<(), CudaFailure> {
    adopt(driver);
    bind(driver, context)
}

#[cold]
fn bind(driver: &'static CudaDriver, context: Handle) -> Result<(), CudaFailure> {
    // SAFETY: `context` is a live handle.
    unsafe { driver.symbols.cuCtxSetCurrent(context) }?;
    THREAD.set(Thread { adopted: true, bound: context });
    Ok(())
}
