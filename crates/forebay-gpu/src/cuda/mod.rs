//! GPUs through the CUDA driver API.
//!
//! The driver's library is loaded at run time and each of its functions may be absent: a machine without a driver,
//! or with an old one, gets a typed error that says why. Finding the devices creates no context; a device's primary
//! context is retained when memory, a stream or a kernel first needs it.

mod default_streams;
mod device;
mod driver;
mod error;
mod event;
mod export;
mod gpu;
mod guard;
mod images;
mod kernels;
mod memory;
mod post;
mod register;
mod stream;
mod sys;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_error::{Error, ErrorKind, Result};

use crate::Device;
use device::CudaDevice;
use gpu::CudaGpu;

pub use driver::{CudaDriver, driver, symbols_missing};
pub use guard::CallSeries;

static GPUS: OnceLock<Result<Vec<&'static CudaGpu>>> = OnceLock::new();
/// The process that looked for them, by its number; 0 before.
static FINDER: AtomicU32 = AtomicU32::new(0);

/// The GPUs of this machine in the driver's order, or why there are none. Found once per process; later calls give
/// the same answer. A child that was forked after that finds none where its parent found some.
pub fn devices() -> Result<Vec<Arc<dyn Device>>> {
    let here = std::process::id();
    let finder =
        FINDER.compare_exchange(0, here, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|other| other);
    let gpus = match GPUS.get() {
        // The parent found none, or why there are none.
        Some(Ok(gpus)) if gpus.is_empty() => gpus,
        Some(Err(error)) => return Err(error.clone()),
        _ if ![0, here].contains(&finder) => return Err(forked()),
        _ => GPUS.get_or_init(discover).as_ref().map_err(Clone::clone)?,
    };
    Ok(gpus.iter().map(|&gpu| Arc::new(CudaDevice(gpu)) as Arc<dyn Device>).collect())
}

/// How calls of this thread stand to stream captures of other threads: as `mode` says (the driver's numbers; 2 leaves
/// them alone) from now on. The mode before; `None`, and nothing happens, where nobody has loaded a driver in this process
/// yet (then nobody captures either), or one without captures. For what others do in the midst of our work, such as an
/// allocator: our own calls are guarded one by one.
pub fn exchange_capture_mode(mode: i32) -> Option<i32> {
    let is_here = match FINDER.load(Ordering::Acquire) {
        // Others may use the driver before we do.
        0 => driver::is_in_process(),
        finder => finder == std::process::id(),
    };
    guard::exchange_mode(is_here.then(driver)?.ok()?, mode)
}

/// What helps a child that was forked too late.
const SPAWN: &str =
    "start children by exec (Python: multiprocessing.set_start_method(\"spawn\") or \"forkserver\")";

/// The driver answers nothing in a child of the process that initialised it.
fn forked() -> Error {
    Error::new(
        ErrorKind::DriverMissing,
        "the GPU cannot be used here: the process forked after its parent had initialised the driver",
    )
    .hint(SPAWN)
    .hint("or fork before the parent uses a GPU")
}

/// Refuses an address that only the process has from which this one was forked: GPU memory, and host memory that the
/// driver keeps from children. Nothing else distinguishes them from the host's pages here, and touching them ends the
/// process.
pub fn check_inherited(address: u64) -> Result<()> {
    // Asked first, and all that a process without a GPU pays.
    if !matches!(GPUS.get(), Some(Ok(gpus)) if !gpus.is_empty()) {
        return Ok(());
    }
    if FINDER.load(Ordering::Acquire) == std::process::id() || is_readable(address) {
        return Ok(());
    }
    let text = "the memory is a GPU's or its driver's: a process that was forked cannot reach it";
    Err(Error::new(ErrorKind::DriverMissing, text)
        .hint(SPAWN)
        .hint("or copy it to the host's memory before the fork"))
}

/// Whether the byte there can be read.
fn is_readable(address: u64) -> bool {
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: address as *mut _, iov_len: 1 };
    // SAFETY: the kernel writes at most one byte to `byte`, and itself checks the address that it reads.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    // Where the call is forbidden, nothing is known.
    moved == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// The GPU with this ordinal among those found.
fn gpu(ordinal: usize) -> Option<&'static CudaGpu> {
    GPUS.get()?.as_ref().ok()?.get(ordinal).copied()
}

fn discover() -> Result<Vec<&'static CudaGpu>> {
    let driver = driver()?;
    driver.initialise()?;
    // GPUs live as long as the process, as the driver's own state does.
    (0..driver.device_count()?)
        .map(|ordinal| Ok(&*Box::leak(Box::new(CudaGpu::new(driver, ordinal)?))))
        .collect()
}
