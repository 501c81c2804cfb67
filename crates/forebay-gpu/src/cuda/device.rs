//! A GPU as a [`Device`].

use forebay_error::{Error, ErrorKind, Result};

use super::default_streams;
use super::export;
use super::gpu::CudaGpu;
use super::guard;
use super::memory;
use super::register;
use super::stream::CudaStream;
use super::sys::{CAPTURE_ERRORS, Handle, LAST_DEFAULT_STREAM, STREAM_NON_BLOCKING};
use crate::{
    Access, Allocation, AllocationKind, Context, DefaultStream, DefaultWork, Device, DeviceInfo, DeviceRange,
    DmaBuf, HostRange, PointerInfo, Stream, StreamIdentity,
};

/// A GPU. What it knows lives in [`CudaGpu`], which streams and events share.
#[derive(Debug)]
pub(crate) struct CudaDevice(pub(crate) &'static CudaGpu);

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn allocate(&self, len: usize) -> Result<u64> {
        memory::allocate(self.0, AllocationKind::Device, len)
    }

    fn allocate_kind(&self, kind: AllocationKind, len: usize) -> Result<u64> {
        memory::allocate(self.0, kind, len)
    }

    unsafe fn free(&self, address: u64) {
        // SAFETY: the caller promises the same.
        unsafe { memory::free(self.0, AllocationKind::Device, DeviceRange::new(address, 0)) };
    }

    unsafe fn free_kind(&self, kind: AllocationKind, memory: DeviceRange) {
        // SAFETY: the caller promises the same.
        unsafe { memory::free(self.0, kind, memory) };
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        memory::info(self.0)
    }

    fn classify(&self, address: u64) -> Result<PointerInfo> {
        memory::classify(self.0, address)
    }

    unsafe fn pin(&self, memory: HostRange) -> Result<u64> {
        // SAFETY: the caller promises the same.
        unsafe { memory::pin(self.0, memory) }
    }

    unsafe fn unpin(&self, address: *mut u8) {
        // SAFETY: the caller promises the same.
        unsafe { memory::unpin(self.0, address) };
    }

    fn can_register(&self, access: Access) -> Result<()> {
        register::can_register(self.0, access)
    }

    unsafe fn register(&self, pages: HostRange, access: Access) -> Result<()> {
        // SAFETY: the caller promises the same.
        unsafe { register::register(self.0, pages, access) }
    }

    unsafe fn unregister(&self, address: *mut u8) -> Result<()> {
        // SAFETY: the caller promises the same.
        unsafe { register::unregister(self.0, address) }
    }

    fn can_place(&self) -> Result<()> {
        let text = "drives do not reach GPU memory: CUDA gives programs no pages of it";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    fn can_export(&self) -> Result<()> {
        export::can_export(self.0)
    }

    fn allocation(&self, address: u64) -> Result<Allocation> {
        export::allocation(self.0, address)
    }

    fn export(&self, allocation: &Allocation) -> Result<DmaBuf> {
        export::export(self.0, allocation)
    }

    fn flush_writes(&self, context: Context) -> Result<()> {
        export::flush_writes(self.0, context)
    }

    fn enable_peer(&self, peer: &dyn Device) -> Result<()> {
        register::enable_peer(self.0, peer.info())
    }

    fn stream(&self, context: Context) -> Result<Box<dyn Stream>> {
        let gpu = self.0;
        let context = gpu.raw(context)?;
        let _guard = gpu.enter(context)?;
        let mut stream = 0;
        // SAFETY: `stream` is a valid place for a handle; the context is current.
        unsafe { gpu.driver.symbols.cuStreamCreate(&raw mut stream, STREAM_NON_BLOCKING) }?;
        Ok(Box::new(CudaStream::owned(gpu, context, stream)))
    }

    unsafe fn identify(&self, handle: u64) -> Result<StreamIdentity> {
        // SAFETY: passed on.
        let (context, _guard) = unsafe { enter_stream(self.0, handle) }?;
        let mut id = 0;
        // SAFETY: as above; `id` is a valid place.
        let told = unsafe { self.0.driver.symbols.cuStreamGetId(handle, &raw mut id) };
        let id = if told.is_ok() { id } else { handle };
        Ok(StreamIdentity { context: self.0.context(context), id })
    }

    unsafe fn owns_stream(&self, handle: u64) -> bool {
        // SAFETY: passed on.
        let Ok((context, _guard)) = (unsafe { enter_stream(self.0, handle) }) else { return false };
        let Ok(_inside) = self.0.enter(context) else { return false };
        let mut device = -1;
        // SAFETY: a valid place.
        unsafe { self.0.driver.symbols.cuCtxGetDevice(&raw mut device) }.is_ok() && device == self.0.device
    }

    unsafe fn foreign_stream(&self, handle: u64) -> Result<Box<dyn Stream>> {
        // SAFETY: passed on.
        let (context, _guard) = unsafe { enter_stream(self.0, handle) }?;
        Ok(Box::new(CudaStream::foreign(self.0, context, handle)))
    }

    fn default_stream(&self, context: Context, which: DefaultStream) -> Result<Box<dyn Stream>> {
        let context = self.0.raw(context)?;
        Ok(Box::new(CudaStream::foreign(self.0, context, default_streams::handle(which))))
    }

    fn default_work(&self, context: Context) -> Result<DefaultWork> {
        default_streams::work(self.0, context)
    }

    fn is_legacy_captured(&self, context: Context) -> Result<bool> {
        default_streams::is_captured(self.0, context)
    }

    fn kernels_memory(&self, context: Context, address: u64) -> Option<DeviceRange> {
        memory::of_kernels(self.0, context, address)
    }

    fn make_synchronous(&self, address: u64) -> Result<()> {
        default_streams::make_synchronous(self.0, address)
    }

    fn is_in_use(&self) -> bool {
        self.0.primary_if_active().is_some()
    }

    fn kernels(&self, context: Context) -> Result<()> {
        let context = self.0.raw(context)?;
        let _guard = self.0.enter(context)?;
        self.0.kernels(context).map(|_| ())
    }

    fn adopt_thread(&self) {
        guard::adopt(self.0.driver);
    }

    fn enter(&self, context: Context) -> Result<()> {
        Ok(guard::settle(self.0.driver, self.0.raw(context)?)?)
    }
}

/// The context of a stream that is not being captured, and a guard under which the stream may be asked about. Work
/// that starts when a stream gets there cannot be part of a graph: a graph runs later, and repeatedly.
///
/// # Safety
/// `stream` is live.
unsafe fn enter_stream(gpu: &CudaGpu, stream: Handle) -> Result<(Handle, guard::ContextGuard)> {
    let symbols = &gpu.driver.symbols;
    let is_default = stream <= LAST_DEFAULT_STREAM;
    let (mut context, mut status) = (0, 0);
    let guard = if is_default {
        context = default_stream_context(gpu)?;
        gpu.enter(context)?
    } else {
        guard::ContextGuard::relaxed(gpu.driver)
    };
    // SAFETY: the caller promises that the stream is live; `status` is a valid place. A driver without this function
    // knows no captures.
    match unsafe { symbols.cuStreamIsCapturing(stream, &raw mut status) } {
        Ok(()) if status != 0 => {
            return Err(Error::new(ErrorKind::Unsupported, "the stream is being captured")
                .hint("end the capture first: transfers cannot be part of a graph"));
        }
        // The legacy stream, while another one is captured that would have to wait for it.
        Err(failure) if is_default && CAPTURE_ERRORS.contains(&failure.code) => {
            return Err(Error::new(ErrorKind::Unsupported, "another stream is being captured")
                .hint("use a stream of your own during a capture, not the default one"));
        }
        _ => {}
    }
    if !is_default {
        // SAFETY: as above; `context` is a valid place.
        unsafe { symbols.cuStreamGetCtx(stream, &raw mut context) }?;
    }
    Ok((context, guard))
}

/// A default stream belongs to the context that is current, if that is one of this device; else to its primary one.
fn default_stream_context(gpu: &CudaGpu) -> Result<Handle> {
    let symbols = &gpu.driver.symbols;
    let (mut current, mut device) = (0, -1);
    // SAFETY: both are valid places.
    let here = unsafe {
        symbols.cuCtxGetCurrent(&raw mut current).is_ok()
            && current != 0
            && symbols.cuCtxGetDevice(&raw mut device).is_ok()
    };
    if here && device == gpu.device { Ok(current) } else { Ok(gpu.primary()?) }
}
