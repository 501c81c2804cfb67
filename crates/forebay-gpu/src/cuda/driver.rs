//! The driver's library: found at run time, loaded once, never unloaded.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use forebay_config::{env, files};
use forebay_error::{Error, ErrorKind, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::error::CudaFailure;
use super::sys::Symbols;

/// The name that every driver installs. `libcuda.so` without the number may be a toolkit's stub.
const LIBRARY: &str = "libcuda.so.1";
/// Names another library, for tests and odd installations.
const LIBRARY_VARIABLE: &str = "FOREBAY_LIBCUDA";
/// Comma-separated symbols to treat as absent. Heeded only together with [`LIBRARY_VARIABLE`].
const HIDE_VARIABLE: &str = "FOREBAY_HIDE_SYMBOLS";

static DRIVER: OnceLock<Result<CudaDriver>> = OnceLock::new();

/// The loaded driver.
pub struct CudaDriver {
    pub(crate) symbols: Symbols,
    name: String,
    _library: Library,
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("name", &self.name).finish_non_exhaustive()
    }
}

impl CudaDriver {
    /// Driver API version as 1000 × major + 10 × minor.
    pub fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: `version` is a valid place for an int.
        unsafe { self.symbols.cuDriverGetVersion(&raw mut version) }?;
        Ok(version)
    }

    /// The name that the library was loaded by.
    pub fn library(&self) -> &str {
        &self.name
    }

    /// Initialises the driver. Harmless when repeated.
    pub(crate) fn initialise(&self) -> Result<()> {
        // SAFETY: takes no pointers; zero is the only flag there is.
        Ok(unsafe { self.symbols.cuInit(0) }?)
    }

    pub(crate) fn device_count(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: `count` is a valid place for an int.
        unsafe { self.symbols.cuDeviceGetCount(&raw mut count) }?;
        Ok(count)
    }

    pub(crate) fn device(&self, ordinal: i32) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: `device` is a valid place for an int.
        unsafe { self.symbols.cuDeviceGet(&raw mut device, ordinal) }?;
        Ok(device)
    }

    pub(crate) fn attribute(&self, device: c_int, attribute: c_int) -> Result<i32, CudaFailure> {
        let mut value = 0;
        // SAFETY: `value` is a valid place for an int.
        unsafe { self.symbols.cuDeviceGetAttribute(&raw mut value, attribute, device) }?;
        Ok(value)
    }

    pub(crate) fn device_name(&self, device: c_int) -> Result<String> {
        let mut text = [0; 256];
        // SAFETY: the buffer and its length belong together; the driver ends the text with a zero.
        unsafe { self.symbols.cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int, device) }?;
        Ok(c_text(&text))
    }

    pub(crate) fn device_uuid(&self, device: c_int) -> Result<[u8; 16]> {
        let mut uuid = [0; 16];
        // The newer form also tells the parts of a MIG-partitioned GPU apart.
        // SAFETY: the driver writes 16 bytes.
        unsafe {
            self.symbols
                .cuDeviceGetUuid_v2(&raw mut uuid, device)
                .or_else(|_| self.symbols.cuDeviceGetUuid(&raw mut uuid, device))
        }?;
        Ok(uuid)
    }

    pub(crate) fn device_pci(&self, device: c_int) -> Result<String> {
        let mut text = [0; 32];
        // SAFETY: the buffer and its length belong together; the driver ends the text with a zero.
        unsafe { self.symbols.cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, device) }?;
        Ok(c_text(&text).to_ascii_lowercase())
    }

    pub(crate) fn device_memory(&self, device: c_int) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size.
        unsafe { self.symbols.cuDeviceTotalMem_v2(&raw mut bytes, device) }?;
        Ok(bytes as u64)
    }
}

/// The driver, loaded on the first call. Says why not if there is none; creates no context.
pub fn driver() -> Result<&'static CudaDriver> {
    DRIVER.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// The driver if it has been loaded before.
pub(crate) fn loaded() -> Option<&'static CudaDriver> {
    DRIVER.get()?.as_ref().ok()
}

/// The functions of the driver API that forebay knows and this driver lacks.
pub fn symbols_missing() -> Result<Vec<&'static str>> {
    Ok(driver()?.symbols.missing())
}

/// Whether the driver's library is loaded in this process. Loads nothing.
pub(crate) fn is_in_process() -> bool {
    if loaded().is_some() {
        return true;
    }
    let name = other_library().unwrap_or_else(|| LIBRARY.to_owned());
    // SAFETY: with RTLD_NOLOAD no code of a library runs. The reference is released on drop.
    unsafe { open(&name, RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.is_ok()
}

fn other_library() -> Option<String> {
    env::text(LIBRARY_VARIABLE).filter(|name| !name.is_empty())
}

fn load() -> Result<CudaDriver> {
    let other = other_library();
    let hidden = other.as_ref().and_then(|_| env::text(HIDE_VARIABLE)).unwrap_or_default();
    let name = other.unwrap_or_else(|| LIBRARY.to_owned());
    // SAFETY: loading runs the library's constructors; the system's CUDA driver, or the one that the user named,
    // is trusted with that.
    let opened = unsafe { open(&name, RTLD_NOW | RTLD_LOCAL) };
    let library = opened.map_err(|reason| missing_library(&name, &reason))?;
    let hidden: Vec<&str> = hidden.split(',').map(str::trim).collect();
    // SAFETY: as above; the library lives in the same struct, which is never dropped.
    let symbols = unsafe { Symbols::load(&library, &hidden) };
    Ok(CudaDriver { symbols, name, _library: library })
}

/// Opens a library; why not, if it cannot be.
///
/// # Safety
/// As [`Library::open`].
unsafe fn open(name: &str, flags: c_int) -> std::result::Result<Library, String> {
    if let Some(obstacle) = name.contains('/').then(|| files::obstacle(Path::new(name))).flatten() {
        return Err(obstacle.to_string());
    }
    // libloading's own words are only "dlopen failed"; the reason stands in its source.
    let reason = |error: &libloading::Error| {
        std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
    };
    // SAFETY: as the caller promises.
    unsafe { Library::open(Some(name), flags) }.map_err(|error| reason(&error))
}

fn missing_library(name: &str, reason: &str) -> Error {
    Error::new(ErrorKind::DriverMissing, format!("cannot load the GPU driver: {reason}"))
        .with("library", name)
        .hint("install the NVIDIA driver (https://www.nvidia.com/drivers), then check it with nvidia-smi")
        .hint("in a container: start it with --gpus all (or --device nvidia.com/gpu=all)")
}

/// The text before the first zero.
fn c_text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
