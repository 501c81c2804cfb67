//! Faults of a process while callers' pieces are with the resident kernel, on the machine's GPU:
//!
//! - `full`: kernels of the user fill the whole GPU, so that none of the engine's starts;
//! - `capture`: another thread captures a stream, globally;
//! - `exit`: the process exits;
//! - `reset`: the primary context is reset.
//!
//! `full` is not for the software GPU.
//!
//! `cargo run --release -p forebay-engine --example resident_faults [SCENE …]`. Each scene is a process of its own; one that does not
//! end in 30 s hangs. In the first two every byte is compared. Exit code 1 if a scene failed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::process::{Command, ExitCode};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::{Direction, File, Session, Transfer};
use forebay_gpu::{Context, Device, HostRange, Wait, fill_pattern};
use libloading::os::unix::Library;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SCENES: [&str; 4] = ["full", "capture", "exit", "reset"];
const LIMIT: Duration = Duration::from_secs(30);
const THREADS: u64 = 16;
const FILE: usize = 32 << 20;
const KEY: u64 = 5;
const GLOBAL: c_uint = 0;
const NON_BLOCKING: c_uint = 1;
const PROCESSORS: c_int = 16;

/// Threads of 1024 that stay for the given time: two blocks fill a multiprocessor.
const FILLER: &CStr = c"
.version 6.4
.target sm_75
.address_size 64
.visible .entry fill(.param .u64 life)
{
    .reg .pred %p1;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [life];
    mov.u64 %rd2, %globaltimer;
MORE:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p1, %rd3, %rd1;
    @%p1 bra MORE;
    ret;
}
";

/// The user's side: the driver, called as a program would.
struct User(Library);

impl User {
    fn open() -> Result<Self> {
        let path = std::env::var_os("FOREBAY_LIBCUDA").unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: the driver's library, or what stands for it; forebay loads the same one.
        Ok(Self(unsafe { Library::new(path) }?))
    }

    /// Calls a function of the driver.
    fn call<F: Copy>(&self, name: &str, call: impl FnOnce(F) -> c_int) -> Result<()> {
        // SAFETY: the callers below name the type of each function.
        let function: F = *unsafe { self.0.get::<F>(name.as_bytes()) }?;
        match call(function) {
            0 => Ok(()),
            code => Err(format!("{name}: error {code}").into()),
        }
    }

    fn enter(&self) -> Result<usize> {
        let mut context = 0usize;
        self.call("cuInit", |call: extern "C" fn(c_uint) -> c_int| call(0))?;
        let place = &raw mut context;
        self.call("cuDevicePrimaryCtxRetain", |call: extern "C" fn(*mut usize, c_int) -> c_int| {
            call(place, 0)
        })?;
        self.call("cuCtxSetCurrent", |call: extern "C" fn(usize) -> c_int| call(context))?;
        Ok(context)
    }

    fn stream(&self) -> Result<usize> {
        let mut stream = 0usize;
        let place = &raw mut stream;
        self.call("cuStreamCreate", |call: extern "C" fn(*mut usize, c_uint) -> c_int| {
            call(place, NON_BLOCKING)
        })?;
        Ok(stream)
    }

    /// The kernel that fills the GPU.
    fn filler(&self) -> Result<usize> {
        let (mut module, mut kernel) = (0usize, 0usize);
        let (text, name) = (FILLER.as_ptr(), c"fill".as_ptr());
        let place = &raw mut module;
        self.call("cuModuleLoadData", |call: extern "C" fn(*mut usize, *const c_char) -> c_int| {
            call(place, text)
        })?;
        let place = &raw mut kernel;
        type GetFunction = extern "C" fn(*mut usize, usize, *const c_char) -> c_int;
        self.call("cuModuleGetFunction", |call: GetFunction| call(place, module, name))?;
        Ok(kernel)
    }

    /// Fills the GPU for this long; returns once that is queued.
    fn fill(&self, kernel: usize, stream: usize, life: Duration) -> Result<()> {
        type GetAttribute = extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
        type Launch = extern "C" fn(
            usize,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            usize,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> c_int;
        let (mut processors, mut life) = (0, life.as_nanos() as u64);
        let place = &raw mut processors;
        self.call("cuDeviceGetAttribute", |call: GetAttribute| call(place, PROCESSORS, 0))?;
        let mut words: [*mut c_void; 1] = [(&raw mut life).cast()];
        let (blocks, words) = (2 * processors as c_uint, words.as_mut_ptr());
        self.call("cuLaunchKernel", |call: Launch| {
            call(kernel, blocks, 1, 1, 1024, 1, 1, 0, stream, words, null_mut())
        })
    }
}

/// What callers saw.
#[derive(Default)]
struct Seen {
    pieces: AtomicU64,
    resident: AtomicU64,
    errors: AtomicU64,
    /// The longest call, in microseconds.
    longest: AtomicU64,
}

/// Callers read and compare until `stop`; an error ends a caller.
fn read_until(session: &Session, file: &File, seen: &Seen, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                if let Err(error) = reads(session, file, seen, number, stop)
                    && seen.errors.fetch_add(1, Ordering::Relaxed) == 0
                {
                    println!("  the first error: {error}");
                }
            });
        }
    });
}

/// Pinned memory, for ever: copies of many threads to pageable memory keep every call out that makes an event, a stream or a module
/// (driver 580: a lock that prefers readers).
fn pinned(device: &dyn Device, len: usize) -> Result<&'static mut [u8]> {
    let bytes = vec![0u8; len + 4096].leak();
    let start = bytes.as_ptr().align_offset(4096);
    let bytes = &mut bytes[start..start + len];
    // SAFETY: the memory stays.
    unsafe { device.pin(HostRange::new(bytes.as_mut_ptr(), len)) }?;
    Ok(bytes)
}

fn reads(session: &Session, file: &File, seen: &Seen, number: u64, stop: &AtomicBool) -> Result<()> {
    const LENGTHS: [usize; 4] = [4096, 1000, 64 << 10, 256 << 10];
    let buffer = session.buffer(0, LENGTHS[3])?;
    let stream = session.devices().get(0)?.stream(Context::PRIMARY)?;
    let host = pinned(session.devices().get(0)?.as_ref(), LENGTHS[3])?;
    let mut wanted = vec![0u8; LENGTHS[3]];
    let mut random = number * 0x9E37_79B9 + 1;
    while !stop.load(Ordering::Relaxed) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let len = LENGTHS[(random >> 33) as usize % LENGTHS.len()];
        let offset = (random >> 20) % (FILE - len) as u64;
        let (file, memory) = (file.clone(), buffer.memory());
        let begun = Instant::now();
        let transfer = Transfer { file, offset, memory, len, direction: Direction::Read, allow_short: false };
        // SAFETY: the buffer is this thread's alone, and lives until this returns.
        let receipt = unsafe { session.run(&transfer) }?;
        seen.longest.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        // SAFETY: as above; the host's memory stays until the synchronisation.
        unsafe { stream.copy_out(HostRange::new(host.as_mut_ptr(), len), buffer.memory().address) }?;
        stream.synchronize(Wait::Block)?;
        fill_pattern(&mut wanted[..len], KEY, offset);
        if host[..len] != wanted[..len] {
            return Err(format!("WRONG: {len} bytes from {offset}").into());
        }
        seen.pieces.fetch_add(1, Ordering::Relaxed);
        seen.resident.fetch_add(u64::from(receipt.moved.resident > 0), Ordering::Relaxed);
    }
    Ok(())
}

/// Runs callers, lets them find the resident kernel, and lets `happen` happen while they go on.
fn scene(name: &str) -> Result<()> {
    let path = std::env::temp_dir().join(format!("forebay-faults-{}", std::process::id()));
    let mut bytes = vec![0; FILE];
    fill_pattern(&mut bytes, KEY, 0);
    std::fs::write(&path, bytes)?;
    let file = File::open(&path)?;
    std::fs::remove_file(&path)?;
    let session = Session::with_config(forebay_config::Config::from_env()?)?;
    // Loading a module and making a stream wait for other threads' calls.
    let user = User::open()?;
    user.enter()?;
    let (kernel, stream) = (if name == "full" { user.filler()? } else { 0 }, user.stream()?);
    let (seen, stop) = (Seen::default(), AtomicBool::new(false));
    let told = std::thread::scope(|scope| {
        scope.spawn(|| read_until(&session, &file, &seen, &stop));
        let told = happens(name, &user, (kernel, stream), &seen);
        stop.store(true, Ordering::Relaxed);
        told
    });
    let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
    println!(
        "  {} pieces, {} by the kernel; longest call {} us; callers that ended with an error: {}",
        get(&seen.pieces),
        get(&seen.resident),
        get(&seen.longest),
        get(&seen.errors)
    );
    told?;
    let wanted = if name == "reset" { THREADS } else { 0 };
    if get(&seen.errors) != wanted {
        return Err(format!("{wanted} callers were to end with an error").into());
    }
    Ok(())
}

fn happens(name: &str, user: &User, (kernel, stream): (usize, usize), seen: &Seen) -> Result<()> {
    let begun = Instant::now();
    while seen.resident.load(Ordering::Relaxed) < 200 {
        if begun.elapsed() > LIMIT / 3 {
            return Err("no copy uses the resident kernel".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = seen.pieces.load(Ordering::Relaxed);
    let more = |what: &str| -> Result<()> {
        let more = seen.pieces.load(Ordering::Relaxed) - before;
        println!("  {more} pieces {what}");
        if more == 0 { Err("callers stood still".into()) } else { Ok(()) }
    };
    match name {
        "full" => {
            user.fill(kernel, stream, Duration::from_millis(300))?;
            std::thread::sleep(Duration::from_millis(250));
            more("while the GPU was full")?;
        }
        "capture" => {
            let mut graph = 0usize;
            type Begin = extern "C" fn(usize, c_uint) -> c_int;
            user.call("cuStreamBeginCapture_v2", |call: Begin| call(stream, GLOBAL))?;
            std::thread::sleep(Duration::from_millis(200));
            let place = &raw mut graph;
            type End = extern "C" fn(usize, *mut usize) -> c_int;
            user.call("cuStreamEndCapture", |call: End| call(stream, place))?;
            more("during the capture")?;
        }
        "exit" => std::process::exit(0),
        _ => {
            type Reset = extern "C" fn(c_int) -> c_int;
            user.call("cuDevicePrimaryCtxReset_v2", |call: Reset| call(0))?;
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

/// Runs a scene in a process of its own.
fn run(name: &str) -> Result<bool> {
    if name == "full" && std::env::var_os("FOREBAY_LIBCUDA").is_some() {
        println!("{name}: skipped: the software GPU runs no kernels of users");
        return Ok(true);
    }
    let begun = Instant::now();
    let mut child = Command::new(std::env::current_exe()?).args(["--scene", name]).spawn()?;
    let code = loop {
        if let Some(status) = child.try_wait()? {
            break status.code();
        }
        if begun.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            println!("{name}: HANGS");
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let verdict = if code == Some(0) { "ok" } else { "FAILED" };
    println!("{name}: {verdict} after {:.1} s ({code:?})", begun.elapsed().as_secs_f64());
    Ok(code == Some(0))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.as_slice() {
        [flag, name] if flag == "--scene" => scene(name).map(|()| true),
        [] => SCENES.iter().try_fold(true, |good, name| Ok(run(name)? && good)),
        names => names.iter().try_fold(true, |good, name| Ok(run(name)? && good)),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
