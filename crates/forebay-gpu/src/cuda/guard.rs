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
    series: Series,
}

/// How far a [`CallSeries`] of the calling thread is.
#[derive(Clone, Copy)]
enum Series {
    None,
    /// No call has entered a context yet.
    Begun,
    Entered(Entered),
}

/// What the first call of a series changed, and its end undoes.
#[derive(Clone, Copy)]
struct Entered {
    driver: &'static CudaDriver,
    context: Handle,
    pushed: bool,
    mode: Option<c_int>,
}

thread_local! {
    static THREAD: Cell<Thread> =
        const { Cell::new(Thread { adopted: false, bound: 0, series: Series::None }) };
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
    /// Makes `context` current. On an adopted thread, and from the second call of a series on, this is usually one comparison;
    /// elsewhere three short driver calls, five where another context was current.
    #[inline]
    pub(crate) fn enter(driver: &'static CudaDriver, context: Handle) -> Result<Self, CudaFailure> {
        let thread = THREAD.get();
        if thread.adopted {
            if thread.bound != context {
                bind(driver, context)?;
            }
            return Ok(Self::nothing(driver));
        }
        if let Series::Entered(entered) = thread.series
            && entered.context == context
        {
            return Ok(Self::nothing(driver));
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
        if let Series::Begun = thread.series {
            let (pushed, mode) = (guard.pushed, guard.mode);
            let entered = Entered { driver, context, pushed, mode };
            THREAD.set(Thread { series: Series::Entered(entered), ..thread });
            // The end of the series undoes it.
            (guard.pushed, guard.mode) = (false, None);
        }
        Ok(guard)
    }

    /// Undoes nothing.
    fn nothing(driver: &'static CudaDriver) -> Self {
        Self { driver, pushed: false, mode: None, _thread: PhantomData }
    }

    /// Only relaxes the capture mode: for calls that need no context.
    #[inline]
    pub(crate) fn relaxed(driver: &'static CudaDriver) -> Self {
        let (mut mode, thread) = (CAPTURE_MODE_RELAXED, THREAD.get());
        let is_relaxed = thread.adopted || matches!(thread.series, Series::Entered(_));
        // A driver without this function knows no captures either, so a failure needs no answer.
        // SAFETY: `mode` is a valid place for an int and holds a valid mode.
        let changed =
            !is_relaxed && unsafe { driver.symbols.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.is_ok();
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

/// Driver calls of this thread that follow one another: the first that enters a context stays there, and the others find it
/// entered. The thread is as it was found when this is dropped. A short read of a caller's thread makes three to five calls; each
/// would be three more. For code of ours alone: what changes the context meanwhile puts it back.
#[derive(Debug)]
pub struct CallSeries {
    /// It is not within another one, nor on a thread that needs none.
    is_outermost: bool,
    /// Of the thread that began it.
    _thread: PhantomData<*const ()>,
}

impl CallSeries {
    /// Asks the driver nothing.
    #[inline]
    #[must_use]
    pub fn begin() -> Self {
        let thread = THREAD.get();
        let is_outermost = !thread.adopted && matches!(thread.series, Series::None);
        if is_outermost {
            THREAD.set(Thread { series: Series::Begun, ..thread });
        }
        Self { is_outermost, _thread: PhantomData }
    }
}

impl Drop for CallSeries {
    #[inline]
    fn drop(&mut self) {
        if !self.is_outermost {
            return;
        }
        let thread = THREAD.get();
        THREAD.set(Thread { series: Series::None, ..thread });
        if let Series::Entered(Entered { driver, pushed, mode, .. }) = thread.series {
            drop(ContextGuard { driver, pushed, mode, _thread: PhantomData });
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
    THREAD.set(Thread { adopted: true, bound: 0, ..THREAD.get() });
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
    THREAD.set(Thread { adopted: true, bound: context, ..THREAD.get() });
    Ok(())
}
