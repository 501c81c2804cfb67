//! Marks in a GPU's streams.

use std::time::{Duration, Instant};

use forebay_error::Result;

use super::error::CudaFailure;
use super::gpu::{CudaGpu, OwningContext};
use super::sys::{
    CONTEXT_IS_DESTROYED, EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING, Handle, INVALID_HANDLE, NOT_READY,
};
use crate::{Event, Naps, Wait};

/// Naps before a wait is left to the driver.
const NAPS: u32 = 100;

/// An event of one context. Waiting for it sleeps; it takes no time stamps.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    gpu: &'static CudaGpu,
    context: Handle,
    owner: OwningContext,
    event: Handle,
}

impl CudaEvent {
    pub(super) fn new(gpu: &'static CudaGpu, context: Handle) -> Result<Self> {
        let _guard = gpu.enter(context)?;
        let mut event = 0;
        // SAFETY: `event` is a valid place for a handle; the context is current.
        unsafe {
            gpu.driver.symbols.cuEventCreate(&raw mut event, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING)
        }?;
        Ok(Self { gpu, context, owner: OwningContext::new(gpu, context), event })
    }

    /// Asks once. The context is current.
    #[inline]
    fn query(&self) -> Result<bool, CudaFailure> {
        // SAFETY: the event lives as long as `self`.
        match unsafe { self.gpu.driver.symbols.cuEventQuery(self.event) } {
            Ok(()) => Ok(true),
            Err(CudaFailure { code: NOT_READY, .. }) => Ok(false),
            Err(failure) => Err(gone(failure)),
        }
    }

    fn sleep(&self) -> Result<(), CudaFailure> {
        // SAFETY: the event lives as long as `self`.
        unsafe { self.gpu.driver.symbols.cuEventSynchronize(self.event) }.map_err(gone)
    }
}

/// What is wrong with an event of ours that the driver does not know. We destroy it only when it is
/// dropped, so its context has taken it along: a reset of the device ends the events first.
fn gone(failure: CudaFailure) -> CudaFailure {
    match failure.code {
        INVALID_HANDLE => CudaFailure { code: CONTEXT_IS_DESTROYED, ..failure },
        _ => failure,
    }
}

impl Event for CudaEvent {
    fn is_done(&self) -> Result<bool> {
        let _guard = self.gpu.enter(self.context)?;
        Ok(self.query()?)
    }

    fn wait(&self, wait: Wait) -> Result<()> {
        let _guard = self.gpu.enter(self.context)?;
        match wait {
            Wait::Block => self.sleep()?,
            Wait::Spin => {
                while !self.query()? {
                    std::hint::spin_loop();
                }
            }
            Wait::Nap(length) => {
                if !napped(length, || self.query())? {
                    self.sleep()?;
                }
            }
            Wait::SpinThenBlock(limit) => {
                let start = Instant::now();
                while !self.query()? {
                    if start.elapsed() >= limit {
                        self.sleep()?;
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
        }
        Ok(())
    }

    fn handle(&self) -> u64 {
        self.event
    }
}

/// Sleeps `length` at a time until `done`, at most [`NAPS`] times; whether it is done.
fn napped(
    length: Duration,
    mut done: impl FnMut() -> Result<bool, CudaFailure>,
) -> Result<bool, CudaFailure> {
    if done()? {
        return Ok(true);
    }
    let naps = Naps::start();
    for _ in 0..NAPS {
        naps.sleep(length);
        if done()? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // The driver keeps an event that is still pending until its mark is reached.
        if let Some(_guard) = self.owner.enter() {
            // SAFETY: created by us, destroyed once.
            let _ = unsafe { self.gpu.driver.symbols.cuEventDestroy_v2(self.event) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_the_driver_does_not_know_has_lost_its_context() {
        let failure = |code| CudaFailure { call: "cuEventQuery", code };
        assert_eq!(gone(failure(INVALID_HANDLE)), failure(CONTEXT_IS_DESTROYED));
        assert_eq!(gone(failure(700)), failure(700));
    }
}
