//! Queues of copies and kernels on a GPU.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_error::{Error, ErrorKind, Result};

use super::error::CudaFailure;
use super::event::CudaEvent;
use super::gpu::{CudaGpu, OwningContext, WaitValueForm};
use super::guard::ContextGuard;
use super::kernels::{CheckResult, Kernels};
use super::post::{self, WordForm};
use super::sys::{HOST_DEVICE_MAP, HOST_PORTABLE, Handle, STREAM_WAIT_VALUE_GEQ, STREAM_WRITE_VALUE_DEFAULT};
use crate::host::check_offset;
use crate::{
    DeviceRange, Event, Gather, HostRange, PatternCheck, Post, RefusedPosts, Resident, Stream, Wait,
};

/// A stream of one context, made by forebay or by another library.
#[derive(Debug)]
pub(crate) struct CudaStream {
    pub(super) gpu: &'static CudaGpu,
    context: Handle,
    pub(super) stream: Handle,
    /// Of a stream of ours, which is destroyed with this value.
    owner: Option<OwningContext>,
    /// The event that `synchronize` waits for, made when first needed.
    mark: OnceCell<CudaEvent>,
    /// The context's kernels, looked up when first needed.
    kernels: OnceCell<Kernels>,
    /// Where `check_pattern` counts, made when first needed.
    scratch: OnceCell<CheckScratch>,
    /// How words are written and waited for here, asked when first needed.
    words: OnceCell<WordForm>,
    /// Its number among streams that run resident kernels, taken when first needed.
    resident_number: OnceCell<u32>,
}

impl CudaStream {
    /// A stream that this value destroys.
    pub(super) fn owned(gpu: &'static CudaGpu, context: Handle, stream: Handle) -> Self {
        Self::new(gpu, context, stream, Some(OwningContext::new(gpu, context)))
    }

    /// A stream that stays its maker's.
    pub(super) fn foreign(gpu: &'static CudaGpu, context: Handle, stream: Handle) -> Self {
        Self::new(gpu, context, stream, None)
    }

    fn new(gpu: &'static CudaGpu, context: Handle, stream: Handle, owner: Option<OwningContext>) -> Self {
        let (mark, kernels, scratch) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self {
            gpu,
            context,
            stream,
            owner,
            mark,
            kernels,
            scratch,
            words: OnceCell::new(),
            resident_number: OnceCell::new(),
        }
    }

    /// The context's compiled kernels; the context is current.
    pub(super) fn kernels(&self) -> Result<Kernels> {
        get_or_try_init(&self.kernels, || self.gpu.kernels(self.context)).copied()
    }

    fn mark(&self) -> Result<&CudaEvent> {
        get_or_try_init(&self.mark, || CudaEvent::new(self.gpu, self.context))
    }

    #[inline]
    fn enter(&self) -> Result<ContextGuard, CudaFailure> {
        self.gpu.enter(self.context)
    }
}

impl Stream for CudaStream {
    fn handle(&self) -> u64 {
        self.stream
    }

    unsafe fn copy_in(&self, dst: u64, src: HostRange) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: the caller promises that both ranges stay valid until the copy is done.
        Ok(unsafe {
            self.gpu.driver.symbols.cuMemcpyHtoDAsync_v2(dst, src.start.cast(), src.len, self.stream)
        }?)
    }

    unsafe fn copy_out(&self, dst: HostRange, src: u64) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: the caller promises that both ranges stay valid until the copy is done.
        Ok(unsafe {
            self.gpu.driver.symbols.cuMemcpyDtoHAsync_v2(dst.start.cast(), src, dst.len, self.stream)
        }?)
    }

    unsafe fn copy_across(&self, dst: u64, src: DeviceRange) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: the caller promises that both ranges stay valid until the copy is done.
        Ok(unsafe { self.gpu.driver.symbols.cuMemcpyDtoDAsync_v2(dst, src.start, src.len, self.stream) }?)
    }

    unsafe fn gather(&self, gather: &Gather) -> Result<()> {
        if gather.count == 0 {
            return Ok(());
        }
        let _guard = self.enter()?;
        let kernels = self.kernels()?;
        // SAFETY: the caller promises that all that the gather names stays valid.
        Ok(unsafe { kernels.gather(self.gpu.driver, self.stream, gather) }?)
    }

    unsafe fn checksums(&self, list: u64, count: usize, results: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let count = u32::try_from(count).map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "too many ranges for one kernel").with("count", count)
        })?;
        let _guard = self.enter()?;
        let kernels = self.kernels()?;
        // SAFETY: the caller promises that the list, all it names and the results stay valid.
        Ok(unsafe { kernels.checksums(self.gpu.driver, self.stream, list, count, results) }?)
    }

    unsafe fn zero(&self, dst: DeviceRange) -> Result<()> {
        if dst.len == 0 {
            return Ok(());
        }
        let _guard = self.enter()?;
        // SAFETY: the caller promises that the range stays valid.
        Ok(unsafe { self.gpu.driver.symbols.cuMemsetD8Async(dst.start, 0, dst.len, self.stream) }?)
    }

    unsafe fn scatter(&self, list: u64, count: usize, longest: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        // A grid's first dimension holds 2^31 - 1 blocks.
        let count = i32::try_from(count).map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "too many pieces for one kernel").with("count", count)
        })?;
        let _guard = self.enter()?;
        let kernels = self.kernels()?;
        // SAFETY: the caller promises that the list and all it names stay valid.
        Ok(unsafe { kernels.scatter(self.gpu.driver, self.stream, list, count as u32, longest) }?)
    }

    unsafe fn resident(&self, resident: &Resident) -> Result<()> {
        let _guard = self.enter()?;
        let kernels = self.kernels()?;
        let number = *get_or_try_init(&self.resident_number, || self.gpu.take_resident_number())?;
        // SAFETY: the caller promises that the mailboxes, and all that is posted in them, stay valid.
        Ok(unsafe { kernels.resident(self.gpu.driver, self.stream, resident, number) }?)
    }

    unsafe fn fill_pattern(&self, dst: DeviceRange, key: u64, offset: u64) -> Result<()> {
        check_offset(offset)?;
        if dst.len == 0 {
            return Ok(());
        }
        let _guard = self.enter()?;
        let kernels = self.kernels()?;
        // SAFETY: the caller promises that the range stays valid.
        Ok(unsafe { kernels.fill(self.gpu.driver, self.stream, [dst.start, dst.len as u64, key, offset]) }?)
    }

    unsafe fn check_pattern(&self, src: DeviceRange, key: u64, offset: u64) -> Result<PatternCheck> {
        check_offset(offset)?;
        if src.len == 0 {
            return Ok(PatternCheck::default());
        }
        let _guard = self.enter()?;
        let (symbols, kernels) = (&self.gpu.driver.symbols, self.kernels()?);
        let scratch = get_or_try_init(&self.scratch, || CheckScratch::new(self.gpu, self.context))?;
        // SAFETY: the caller promises that the range stays valid; the scratch lives as long as the stream, and no
        // other check uses it: a stream is used by one thread at a time, and this one waits below.
        unsafe {
            scratch.host.write(CheckResult::START);
            symbols.cuMemcpyHtoDAsync_v2(
                scratch.device,
                scratch.host.cast(),
                size_of::<CheckResult>(),
                self.stream,
            )?;
            kernels.check(
                self.gpu.driver,
                self.stream,
                [src.start, src.len as u64, key, offset],
                scratch.device,
            )?;
            symbols.cuMemcpyDtoHAsync_v2(
                scratch.host.cast(),
                scratch.device,
                size_of::<CheckResult>(),
                self.stream,
            )?;
        }
        self.synchronize(Wait::Block)?;
        // SAFETY: the copy out is done.
        Ok(unsafe { scratch.host.read() }.into())
    }

    fn event(&self) -> Result<Box<dyn Event>> {
        Ok(Box::new(CudaEvent::new(self.gpu, self.context)?))
    }

    fn record(&self, event: &dyn Event) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: both live; an event of another device or context is the driver's to refuse.
        Ok(unsafe { self.gpu.driver.symbols.cuEventRecord(event_handle(event)?, self.stream) }?)
    }

    fn wait_event(&self, event: &dyn Event) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: both live.
        Ok(unsafe { self.gpu.driver.symbols.cuStreamWaitEvent(self.stream, event_handle(event)?, 0) }?)
    }

    unsafe fn wait_value(&self, flag: u64, value: u32) -> Result<()> {
        let form = self.gpu.wait_value_form()?;
        let _guard = self.enter()?;
        let symbols = &self.gpu.driver.symbols;
        // SAFETY: the caller promises that the word stays valid until the stream has passed.
        Ok(unsafe {
            match form {
                WaitValueForm::First => {
                    symbols.cuStreamWaitValue32(self.stream, flag, value, STREAM_WAIT_VALUE_GEQ)
                }
                WaitValueForm::Second => {
                    symbols.cuStreamWaitValue32_v2(self.stream, flag, value, STREAM_WAIT_VALUE_GEQ)
                }
            }
        }?)
    }

    unsafe fn post(&self, posts: &[Post]) -> Result<(), RefusedPosts> {
        let entered = self.enter().map_err(|failure| RefusedPosts { posted: 0, error: failure.into() });
        let _guard = entered?;
        let form = *self.words.get_or_init(|| self.gpu.word_form());
        // SAFETY: passed on; the stream's context is current.
        unsafe { post::post(self, form, posts) }
    }

    unsafe fn write_value(&self, flag: u64, value: u32) -> Result<()> {
        let form = *self.words.get_or_init(|| self.gpu.word_form());
        if form == WordForm::Callback {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the GPU or its driver lacks stream memory operations",
            ));
        }
        let _guard = self.enter()?;
        let (symbols, flags) = (&self.gpu.driver.symbols, STREAM_WRITE_VALUE_DEFAULT);
        // SAFETY: the caller promises that the word stays valid until it is written.
        Ok(unsafe {
            match form {
                WordForm::First => symbols.cuStreamWriteValue32(self.stream, flag, value, flags),
                _ => symbols.cuStreamWriteValue32_v2(self.stream, flag, value, flags),
            }
        }?)
    }

    fn callback(&self, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        let _guard = self.enter()?;
        // Boxed twice: the driver carries one plain pointer, a boxed closure is a fat one.
        let data = Box::into_raw(Box::new(call));
        let symbols = &self.gpu.driver.symbols;
        // SAFETY: `run_callback` takes such a pointer and frees it. The driver calls it once, or never if the
        // context breaks first: then the closure is leaked, which is safe.
        let launched = unsafe { symbols.cuLaunchHostFunc(self.stream, run_callback, data.cast()) };
        if launched.is_err() {
            // SAFETY: the driver did not take it.
            drop(unsafe { Box::from_raw(data) });
        }
        Ok(launched?)
    }

    fn synchronize(&self, wait: Wait) -> Result<()> {
        let mark = self.mark()?;
        self.record(mark)?;
        mark.wait(wait)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let Some(owner) = &self.owner else { return };
        if let Some(number) = self.resident_number.get() {
            self.gpu.give_resident_number(*number);
        }
        // The driver finishes queued work before it frees the stream, and does not wait for that here.
        if let Some(_guard) = owner.enter() {
            // SAFETY: created by us, destroyed once.
            let _ = unsafe { self.gpu.driver.symbols.cuStreamDestroy_v2(self.stream) };
        }
    }
}

/// A counter in device memory and the pinned host memory that it travels through.
#[derive(Debug)]
struct CheckScratch {
    gpu: &'static CudaGpu,
    owner: OwningContext,
    device: u64,
    host: *mut CheckResult,
}

// SAFETY: the pointer is to memory that only this value owns.
unsafe impl Send for CheckScratch {}

impl CheckScratch {
    /// Allocates in the current context, which is `context`.
    fn new(gpu: &'static CudaGpu, context: Handle) -> Result<Self> {
        let symbols = &gpu.driver.symbols;
        let owner = OwningContext::new(gpu, context);
        let mut scratch = Self { gpu, owner, device: 0, host: std::ptr::null_mut() };
        // SAFETY: both are valid places. If the second call fails, dropping `scratch` frees the first's memory.
        unsafe {
            symbols.cuMemAlloc_v2(&raw mut scratch.device, size_of::<CheckResult>())?;
            let place = (&raw mut scratch.host).cast::<*mut c_void>();
            symbols.cuMemHostAlloc(place, size_of::<CheckResult>(), HOST_PORTABLE | HOST_DEVICE_MAP)?;
        }
        Ok(scratch)
    }
}

impl Drop for CheckScratch {
    fn drop(&mut self) {
        let Some(_guard) = self.owner.enter() else { return };
        // SAFETY: allocated by us; `check_pattern` waits for all that uses it.
        unsafe {
            if self.device != 0 {
                let _ = self.gpu.driver.symbols.cuMemFree_v2(self.device);
            }
            if !self.host.is_null() {
                let _ = self.gpu.driver.symbols.cuMemFreeHost(self.host.cast());
            }
        }
    }
}

/// Runs a closure from [`CudaStream::callback`].
///
/// # Safety
/// `data` came from there and is used once.
unsafe extern "C" fn run_callback(data: *mut c_void) {
    // SAFETY: the caller promises it.
    let call = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic must not cross into the driver; the panic hook has told of it.
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// The driver's handle of an event; host memory's events have none.
fn event_handle(event: &dyn Event) -> Result<Handle> {
    match event.handle() {
        0 => Err(Error::new(ErrorKind::InvalidInput, "the event belongs to another device")),
        handle => Ok(handle),
    }
}

/// `OnceCell::get_or_try_init`, which is not stable yet.
fn get_or_try_init<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}
