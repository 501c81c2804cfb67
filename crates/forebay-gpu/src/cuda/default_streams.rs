//! The default streams of a context: what stands on them, and what may be asked while a stream is captured.
//!
//! Measured with driver 580 (`bench/legacy_order.cu`): a query of the legacy stream answers "not ready" while the legacy
//! stream, any thread's default stream or any other blocking stream has work. Work on a thread's default stream waits
//! for the legacy one, and for that thread's own. During the capture of a blocking stream a query of the legacy stream
//! breaks the capture; `cuStreamIsCapturing` only tells of it.

use forebay_error::Result;

use super::error::{CudaFailure, MISSING};
use super::gpu::CudaGpu;
use super::guard::ContextGuard;
use super::sys::{CAPTURE_ERRORS, Handle, NOT_READY, POINTER_SYNC_MEMOPS, STREAM_LEGACY, STREAM_PER_THREAD};
use crate::{Context, DefaultStream, DefaultWork};

/// The driver's name of a default stream.
pub(super) fn handle(which: DefaultStream) -> Handle {
    match which {
        DefaultStream::Legacy => STREAM_LEGACY,
        DefaultStream::PerThread => STREAM_PER_THREAD,
    }
}

/// Whether a capture under way forbids the use of the legacy stream.
pub(super) fn is_captured(gpu: &CudaGpu, context: Context) -> Result<bool> {
    let context = gpu.raw(context)?;
    let mut current = 0;
    // SAFETY: a valid place for a handle.
    unsafe { gpu.driver.symbols.cuCtxGetCurrent(&raw mut current) }?;
    // The question itself is allowed in every capture.
    let _guard = if current == context { None } else { Some(gpu.enter(context)?) };
    Ok(is_captured_here(gpu)?)
}

/// The driver call itself; the context is current.
fn is_captured_here(gpu: &CudaGpu) -> Result<bool, CudaFailure> {
    let mut status = 0;
    // SAFETY: `status` is a valid place; the legacy stream is always live.
    match unsafe { gpu.driver.symbols.cuStreamIsCapturing(STREAM_LEGACY, &raw mut status) } {
        Ok(()) => Ok(status != 0),
        Err(failure) if CAPTURE_ERRORS.contains(&failure.code) => Ok(true),
        // A driver without this function knows no captures.
        Err(CudaFailure { code: MISSING, .. }) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// What stands on the default streams. Asks for captures first: a query would break them.
pub(super) fn work(gpu: &CudaGpu, context: Context) -> Result<DefaultWork> {
    let _guard = gpu.enter(gpu.raw(context)?)?;
    if is_captured_here(gpu)? {
        return Ok(DefaultWork::Captured);
    }
    // SAFETY: the legacy stream is always live.
    match unsafe { gpu.driver.symbols.cuStreamQuery(STREAM_LEGACY) } {
        Ok(()) => Ok(DefaultWork::Done),
        Err(failure) if failure.code == NOT_READY => Ok(DefaultWork::Pending),
        Err(failure) => Err(failure.into()),
    }
}

/// Copies and sets of this memory that the user starts from now on are done when the call returns.
pub(super) fn make_synchronous(gpu: &CudaGpu, address: u64) -> Result<()> {
    let _guard = ContextGuard::relaxed(gpu.driver);
    let on = 1u32;
    let value = (&raw const on).cast();
    // SAFETY: the attribute is a `u32`, read during the call; the driver refuses an address that it does not know.
    Ok(unsafe { gpu.driver.symbols.cuPointerSetAttribute(value, POINTER_SYNC_MEMOPS, address) }?)
}
