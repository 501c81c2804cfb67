//! For tests: finding the shared library, putting it in the driver's place, and controlling it.
//!
//! A test executable holds this crate twice: as Rust code, of which only this file is used, and as the shared library
//! that the code under test loads. All control goes through the latter, which has the state.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::api::Leaks;

const FILE: &str = "libfake_cuda.so";

/// Where the shared library is. Cargo builds it together with every crate that has this one as a dependency and puts
/// it beside the test executables; where it is not there, it is built.
pub fn library_path() -> Result<PathBuf, String> {
    let executable =
        std::env::current_exe().map_err(|error| format!("cannot find the test executable: {error}"))?;
    if let Some(found) = beside(&executable) {
        return Ok(found);
    }
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--manifest-path", manifest, "--target-dir"]);
    // A folder of its own: the one in use may be locked by the cargo that runs this test.
    let target = std::env::temp_dir().join("fake-cuda-target");
    let status = command.arg(&target).status().map_err(|error| format!("cannot run cargo: {error}"))?;
    let built = target.join("debug").join(FILE);
    if status.success() && built.exists() {
        Ok(built)
    } else {
        Err(format!("cargo build gave no {FILE}: {status}"))
    }
}

/// Looks where cargo may have put the library: `target/PROFILE/deps` (this build's own) before `target/PROFILE`.
fn beside(executable: &Path) -> Option<PathBuf> {
    let folders = executable.ancestors().skip(1).take(3);
    folders.flat_map(|folder| [folder.join("deps").join(FILE), folder.join(FILE)]).find(|path| path.exists())
}

/// Puts the fake in the driver's place for this process: sets `FOREBAY_LIBCUDA`. To be called before anything asks
/// for devices and before other threads read the environment. The first call does it; later ones answer the same.
pub fn install() -> Result<&'static Fake, String> {
    static FAKE: OnceLock<Result<Fake, String>> = OnceLock::new();
    let make = || {
        let path = library_path()?;
        // SAFETY: the documentation requires this before other threads use the environment.
        unsafe { std::env::set_var("FOREBAY_LIBCUDA", &path) };
        Fake::load(&path)
    };
    FAKE.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// The loaded fake: the same instance that the code under test uses.
#[derive(Debug)]
pub struct Fake {
    library: Library,
}

/// The driver's answer in a test's own calls.
fn done(call: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call}: {code}")) }
}

/// Calls a function of the library: `call!(self, "name", fn(type, …) -> type, argument, …)`.
macro_rules! call {
    ($fake:expr, $name:literal, ($($type:ty),*) $(-> $result:ty)?, $($argument:expr),*) => {{
        let name = concat!($name, "\0").as_bytes();
        // SAFETY: the symbol is this crate's own and has this type.
        let function = unsafe { $fake.library.get::<unsafe extern "C" fn($($type),*) $(-> $result)?>(name) };
        let function = function.expect(concat!($name, " is exported"));
        // SAFETY: pointers among the arguments are to live places.
        unsafe { function($($argument),*) }
    }};
}

#[allow(clippy::expect_used, clippy::missing_panics_doc)]
impl Fake {
    fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: the library is this crate's own; loading it runs nothing.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| format!("cannot load {}: {error}", path.display()))?;
        Ok(Self { library })
    }

    /// Lets the call of `name` after the next `after` ones fail with `code`, and `times - 1` more (0: all of them).
    pub fn fail_next(&self, name: &str, code: i32, after: u64, times: u64) {
        let name = CString::new(name).unwrap_or_default();
        call!(
            self,
            "fake_cuda_fail_next",
            (*const c_char, c_int, u64, u64),
            name.as_ptr(),
            code,
            after,
            times
        );
    }

    /// Forgets faults, hangs, broken GPUs, counts, delays and attributes. Allocations stay.
    pub fn reset(&self) {
        call!(self, "fake_cuda_reset", (),);
    }

    /// Sets the greatest delay before each piece of queued work.
    pub fn set_delay_us(&self, micros: u64) {
        call!(self, "fake_cuda_set_delay_us", (u64), micros);
    }

    /// Sets the delay before each piece of work on a default stream (legacy or per thread), beside that.
    pub fn set_default_stream_delay_us(&self, micros: u64) {
        call!(self, "fake_cuda_set_default_stream_delay_us", (u64), micros);
    }

    /// Sets how long registering a MiB takes, in which no other call begins, and counts from here.
    pub fn set_register_us(&self, micros: u64) {
        call!(self, "fake_cuda_set_register_us", (u64), micros);
    }

    /// Microseconds in which registrations kept other calls waiting, and those of the longest.
    pub fn registering_us(&self) -> (u64, u64) {
        let all = call!(self, "fake_cuda_registering_us", () -> u64,);
        (all, call!(self, "fake_cuda_longest_register_us", () -> u64,))
    }

    /// Lets that many bytes more be registered for every GPU, and no others, until the next reset.
    pub fn limit_pins(&self, more: usize) {
        call!(self, "fake_cuda_limit_pins", (usize), more);
    }

    /// How often a driver function was called since the last reset.
    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap_or_default();
        call!(self, "fake_cuda_calls", (*const c_char) -> u64, name.as_ptr())
    }

    /// How many copies had a host end that was not pinned, since the last reset.
    pub fn unpinned_copies(&self) -> u64 {
        call!(self, "fake_cuda_unpinned_copies", () -> u64,)
    }

    /// Sets a device attribute to another value, on all GPUs, until the next reset.
    pub fn set_attribute(&self, name: i32, value: i32) {
        call!(self, "fake_cuda_set_attribute", (c_int, c_int), name, value);
    }

    /// How many calls hang now.
    pub fn hanging(&self) -> u64 {
        call!(self, "fake_cuda_hanging", () -> u64,)
    }

    /// Lets all calls that hang go on.
    pub fn let_go(&self) {
        call!(self, "fake_cuda_let_go", (),);
    }

    /// Lets the next call of a driver function hang that long, or until [`Self::let_go`], before it goes on.
    pub fn hang_next(&self, name: &str, millis: u64) {
        let name = CString::new(name).unwrap_or_default();
        call!(self, "fake_cuda_hang_next", (*const c_char, u64), name.as_ptr(), millis);
    }

    /// Bytes registered now for one GPU only: pins that every GPU may use are not counted.
    pub fn registered_bytes(&self) -> u64 {
        call!(self, "fake_cuda_registered_bytes", () -> u64,)
    }

    /// How many registrations the real driver would never have come back from, since the last reset.
    pub fn hazards(&self) -> u64 {
        call!(self, "fake_cuda_hazards", () -> u64,)
    }

    /// Counts what is alive.
    pub fn leaks(&self) -> Leaks {
        let mut leaks = Leaks::default();
        call!(self, "fake_cuda_leaks", (*mut Leaks), &raw mut leaks);
        leaks
    }

    /// Reads device memory past all streams; `None` if that range is not known.
    pub fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let code = call!(self, "fake_cuda_peek", (u64, *mut u8, usize, c_int) -> c_int, address, bytes.as_mut_ptr(), len, 0);
        (code == 0).then_some(bytes)
    }

    /// Writes device memory past all streams; false if that range is not known.
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let from = bytes.as_ptr().cast_mut();
        call!(self, "fake_cuda_peek", (u64, *mut u8, usize, c_int) -> c_int, address, from, bytes.len(), 1)
            == 0
    }

    /// Creates a context besides the primary one and makes it current on this thread.
    pub fn create_context(&self, device: i32) -> Result<u64, String> {
        let mut context = 0;
        let code =
            call!(self, "cuCtxCreate_v2", (*mut u64, c_uint, c_int) -> c_int, &raw mut context, 0, device);
        done("cuCtxCreate", code).map(|()| context)
    }

    /// Destroys such a context.
    pub fn destroy_context(&self, context: u64) -> Result<(), String> {
        done("cuCtxDestroy", call!(self, "cuCtxDestroy_v2", (u64) -> c_int, context))
    }

    /// Resets the primary context, as `cudaDeviceReset` does.
    pub fn reset_primary(&self, device: i32) -> Result<(), String> {
        let code = call!(self, "cuDevicePrimaryCtxReset_v2", (c_int) -> c_int, device);
        done("cuDevicePrimaryCtxReset", code)
    }

    /// Retains and answers the primary context, as another user of CUDA in the process does.
    pub fn retain_primary(&self, device: i32) -> Result<u64, String> {
        let mut context = 0;
        let code =
            call!(self, "cuDevicePrimaryCtxRetain", (*mut u64, c_int) -> c_int, &raw mut context, device);
        done("cuDevicePrimaryCtxRetain", code).map(|()| context)
    }

    /// The context that is current on this thread, 0 if there is none.
    pub fn current_context(&self) -> u64 {
        let mut context = 0;
        call!(self, "cuCtxGetCurrent", (*mut u64) -> c_int, &raw mut context);
        context
    }

    /// Makes a context (0: none) current on this thread.
    pub fn set_current_context(&self, context: u64) -> Result<(), String> {
        done("cuCtxSetCurrent", call!(self, "cuCtxSetCurrent", (u64) -> c_int, context))
    }

    /// Allocates in the current context.
    pub fn allocate(&self, len: usize) -> Result<u64, String> {
        let mut address = 0;
        let code = call!(self, "cuMemAlloc_v2", (*mut u64, usize) -> c_int, &raw mut address, len);
        done("cuMemAlloc", code).map(|()| address)
    }

    /// Allocates from the pool of the current context's device.
    pub fn allocate_from_pool(&self, len: usize) -> Result<u64, String> {
        let mut address = 0;
        let code = call!(self, "cuMemAllocAsync", (*mut u64, usize, u64) -> c_int, &raw mut address, len, 0);
        done("cuMemAllocAsync", code).map(|()| address)
    }

    /// Reserves addresses, and maps memory of device 0 at the first of them: each part of its own. Lengths are multiples of 2 MiB.
    pub fn map_parts(&self, reserved: usize, parts: &[usize]) -> Result<u64, String> {
        type Access = *const [c_int; 3];
        // Pinned memory, of a device, number 0; to be read and written.
        let (property, access) = ([1, 0, 1, 0], [1, 0, 3]);
        let mut address = 0;
        let place = &raw mut address;
        let reserve = call!(self, "cuMemAddressReserve", (*mut u64, usize, usize, u64, u64) -> c_int, place, reserved, 0, 0, 0);
        done("cuMemAddressReserve", reserve)?;
        let mut at = address;
        for &len in parts {
            let mut memory = 0;
            let out = &raw mut memory;
            let create = call!(self, "cuMemCreate", (*mut u64, usize, *const [c_int; 4], u64) -> c_int, out, len, &raw const property, 0);
            done("cuMemCreate", create)?;
            let map = call!(self, "cuMemMap", (u64, usize, usize, u64, u64) -> c_int, at, len, 0, memory, 0);
            done("cuMemMap", map)?;
            done("cuMemRelease", call!(self, "cuMemRelease", (u64) -> c_int, memory))?;
            let allow = call!(self, "cuMemSetAccess", (u64, usize, Access, usize) -> c_int, at, len, &raw const access, 1);
            done("cuMemSetAccess", allow)?;
            at += len as u64;
        }
        Ok(address)
    }

    /// Gives back what [`Fake::map_parts`] made.
    pub fn unmap_parts(&self, address: u64, reserved: usize, parts: &[usize]) -> Result<(), String> {
        let mut at = address;
        for &len in parts {
            done("cuMemUnmap", call!(self, "cuMemUnmap", (u64, usize) -> c_int, at, len))?;
            at += len as u64;
        }
        done("cuMemAddressFree", call!(self, "cuMemAddressFree", (u64, usize) -> c_int, address, reserved))
    }

    /// Frees memory of [`Fake::allocate`] and [`Fake::allocate_from_pool`].
    pub fn free(&self, address: u64) -> Result<(), String> {
        done("cuMemFree", call!(self, "cuMemFree_v2", (u64) -> c_int, address))
    }

    /// Creates a stream in the current context: `flags` 0 is a blocking one, 1 a non-blocking one.
    pub fn create_stream(&self, flags: u32) -> Result<u64, String> {
        let mut stream = 0;
        let code = call!(self, "cuStreamCreate", (*mut u64, c_uint) -> c_int, &raw mut stream, flags);
        done("cuStreamCreate", code).map(|()| stream)
    }

    /// Destroys such a stream.
    pub fn destroy_stream(&self, stream: u64) -> Result<(), String> {
        done("cuStreamDestroy", call!(self, "cuStreamDestroy_v2", (u64) -> c_int, stream))
    }

    /// Begins a capture: mode 0 is global, 1 of this thread, 2 relaxed.
    pub fn begin_capture(&self, stream: u64, mode: i32) -> Result<(), String> {
        done(
            "cuStreamBeginCapture",
            call!(self, "cuStreamBeginCapture_v2", (u64, c_int) -> c_int, stream, mode),
        )
    }

    /// Ends a capture and answers how many operations it caught; an error if something broke it.
    pub fn end_capture(&self, stream: u64) -> Result<u64, String> {
        let mut graph = 0;
        let code = call!(self, "cuStreamEndCapture", (u64, *mut u64) -> c_int, stream, &raw mut graph);
        done("cuStreamEndCapture", code).map(|()| graph)
    }

    /// This thread's capture mode.
    pub fn capture_mode(&self) -> i32 {
        let mut mode = 2;
        call!(self, "cuThreadExchangeStreamCaptureMode", (*mut c_int) -> c_int, &raw mut mode);
        let found = mode;
        call!(self, "cuThreadExchangeStreamCaptureMode", (*mut c_int) -> c_int, &raw mut mode);
        found
    }
}
