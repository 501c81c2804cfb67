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
    kind: ThreadKind,
    /// The context that is current and stays so, 0 if there is none: an adopted thread's, or that of a series.
    entered: Handle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadKind {
    /// The program's own.
    Plain,
    /// Forebay's own: its capture mode is relaxed for good and nobody else changes its context.
    Adopted,
    /// The program's, in a [`CallSeries`] of which no call has entered a context yet, or one has.
    Begun,
    Entered,
}

/// What one call, or the first of a series, changed on the thread.
#[derive(Clone, Copy)]
struct Changed {
    driver: &'static CudaDriver,
    /// The context was pushed and must be popped.
    pushed: bool,
    /// The thread's capture mode before, where it was changed.
    mode: Option<c_int>,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread { kind: ThreadKind::Plain, entered: 0 }) };
    /// Of a series.
    static CHANGED: Cell<Option<Changed>> = const { Cell::new(None) };
}

/// A context is current, and calls leave stream captures alone, while this lives.
pub(crate) struct ContextGuard {
    changed: Option<Changed>,
    /// Bound to the thread that entered.
    _thread: PhantomData<*const ()>,
}

impl ContextGuard {
    /// Makes `context` current. On an adopted thread, and from the second call of a series on, this is usually one comparison;
    /// elsewhere three short driver calls, five where another context was current.
    #[inline]
    pub(crate) fn enter(driver: &'static CudaDriver, context: Handle) -> Result<Self, CudaFailure> {
        let thread = THREAD.get();
        if thread.entered == context {
            return Ok(Self::of(None));
        }
        Self::enter_anew(driver, context, thread.kind)
    }

    #[inline(never)]
    fn enter_anew(
        driver: &'static CudaDriver,
        context: Handle,
        kind: ThreadKind,
    ) -> Result<Self, CudaFailure> {
        if kind == ThreadKind::Adopted {
            bind(driver, context)?;
            return Ok(Self::of(None));
        }
        let mut guard = Self::relaxed(driver);
        let (mode, mut current) = (guard.changed.and_then(|changed| changed.mode), 0);
        // SAFETY: `current` is a valid place for a handle; `context` is a live one.
        unsafe {
            driver.symbols.cuCtxGetCurrent(&raw mut current)?;
            if current != context {
                driver.symbols.cuCtxPushCurrent_v2(context)?;
            }
        }
        guard.changed = Some(Changed { driver, pushed: current != context, mode });
        if kind == ThreadKind::Begun {
            // The end of the series undoes it.
            CHANGED.set(guard.changed.take());
            THREAD.set(Thread { kind: ThreadKind::Entered, entered: context });
        }
        Ok(guard)
    }

    const fn of(changed: Option<Changed>) -> Self {
        Self { changed, _thread: PhantomData }
    }

    /// Only relaxes the capture mode: for calls that need no context. In a series of which no call has entered one yet it is undone at
    /// its own end, as outside of series: what it found is then the program's own mode, which the series finds again.
    #[inline]
    pub(crate) fn relaxed(driver: &'static CudaDriver) -> Self {
        if matches!(THREAD.get().kind, ThreadKind::Adopted | ThreadKind::Entered) {
            return Self::of(None);
        }
        // A driver without this function knows no captures either, so a failure needs no answer.
        let mode = exchange_mode(driver, CAPTURE_MODE_RELAXED);
        Self::of(mode.map(|_| Changed { driver, pushed: false, mode }))
    }
}

impl Drop for ContextGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(changed) = self.changed {
            changed.undo();
        }
    }
}

impl Changed {
    fn undo(self) {
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
/// would be three more. For code of ours alone: what changes the context meanwhile puts it back, and the first call is one that enters
/// a context (a copy), not one that only relaxes the capture mode.
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
        let is_outermost = THREAD.get().kind == ThreadKind::Plain;
        if is_outermost {
            THREAD.set(Thread { kind: ThreadKind::Begun, entered: 0 });
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
        let kind = THREAD.get().kind;
        // The thread may have become forebay's own.
        if matches!(kind, ThreadKind::Begun | ThreadKind::Entered) {
            THREAD.set(Thread { kind: ThreadKind::Plain, entered: 0 });
        }
        if kind == ThreadKind::Entered
            && let Some(changed) = CHANGED.get()
        {
            changed.undo();
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
    if THREAD.get().kind == ThreadKind::Adopted {
        return;
    }
    let _ = exchange_mode(driver, CAPTURE_MODE_RELAXED);
    THREAD.set(Thread { kind: ThreadKind::Adopted, entered: 0 });
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
    THREAD.set(Thread { kind: ThreadKind::Adopted, entered: context });
    Ok(())
}
