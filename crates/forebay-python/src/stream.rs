//! The order of transfers and of what others have queued on a GPU.
//!
//! An allocator of a framework hands out memory whose last kernel may not have run yet, and counts on everybody queueing
//! behind it. Transfers do not queue on that stream: so they start when the work queued on it is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_gpu::{Device, Event};
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::session::{gpu, session};
use crate::wait;

/// A mark in a user's stream: work queued before it must be done.
pub(crate) struct Mark(Box<dyn Event>);

impl Mark {
    /// Marks where the stream `handle` of `device` is now; `None` if it has nothing left to do.
    pub(crate) fn set(device: &Arc<dyn Device>, handle: u64) -> PyResult<Option<Self>> {
        // SAFETY: a stream that a framework calls its current one, or that the caller gave, lives during the call.
        let stream = unsafe { device.foreign_stream(handle) }.or_raise()?;
        let event = stream.event().or_raise()?;
        stream.record(event.as_ref()).or_raise()?;
        let is_done = event.is_done().or_raise()?;
        Ok((!is_done).then_some(Self(event)))
    }

    /// Waits at most `limit`. True when it is reached, or when asking failed: [`Mark::check`] tells.
    pub(crate) fn wait_timeout(&self, limit: Duration) -> bool {
        let started = Instant::now();
        loop {
            if self.0.is_done().unwrap_or(true) {
                return true;
            }
            let waited = started.elapsed();
            if waited >= limit {
                return false;
            }
            // Short kernels are over soon; long ones are not worth a busy CPU.
            if waited > Duration::from_micros(50) {
                std::thread::sleep((waited / 16).min(Duration::from_millis(1)));
            }
        }
    }

    /// The error of the work before the mark, if it failed.
    pub(crate) fn check(&self) -> Result<(), forebay_error::Error> {
        self.0.is_done().map(|_| ())
    }

    /// Waits with the GIL released.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait::patiently(py, None, |limit| self.wait_timeout(limit))?;
        self.check().or_raise()
    }
}

/// How this thread's calls of the driver stand to stream captures of other threads from now on (2: they leave them
/// alone); the mode before, `None` where there is no driver.
#[pyfunction]
pub(crate) fn exchange_capture_mode(mode: i32) -> Option<i32> {
    forebay_gpu::cuda::exchange_capture_mode(mode)
}

/// Waits until the work queued on a CUDA stream of GPU `device_index` (its handle as a number; 0: the default stream)
/// is done.
#[pyfunction]
pub(crate) fn wait_stream(py: Python<'_>, device_index: usize, stream: u64) -> PyResult<()> {
    let device = gpu(&session()?, device_index)?;
    match Mark::set(&device, stream)? {
        Some(mark) => mark.wait(py),
        None => Ok(()),
    }
}
