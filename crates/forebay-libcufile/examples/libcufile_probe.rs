//! Tries NVIDIA's libcufile on this machine, step by step: first by plain calls, then through the engine `libcufile`.
//!
//! `cargo run --release -p forebay-libcufile --example libcufile_probe -- FILE…`
//!
//! Each step is printed before it is made, with its result behind it, so that a hang shows its place. A step that takes
//! longer than 60 seconds ends the program. Files that do not exist are made (1 MiB), and removed; others are only read.
//! The library is the one that the engine would take, or `FOREBAY_VENDOR_LIBCUFILE`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an example that prints and ends")]

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_config::Config;
use forebay_engine::{Buffer, File, Session};
use forebay_gpu::{Context, fill_pattern};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

const LIMIT: Duration = Duration::from_mins(1);
const SIZE: usize = 1 << 20;

#[repr(C)]
#[derive(Debug)]
struct Status {
    code: c_int,
    cuda: c_int,
}

/// Seconds since the start at which the present step began, plus one; 0 between steps.
static STEP: AtomicU64 = AtomicU64::new(0);

fn watch(begin: Instant) {
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let since = STEP.load(Ordering::Relaxed);
        if since > 0 && begin.elapsed().as_secs() + 1 > since + LIMIT.as_secs() {
            println!("HANGS: given up after {} s", LIMIT.as_secs());
            std::process::exit(3);
        }
    }
}

fn step<T: std::fmt::Debug>(begin: Instant, name: &str, run: impl FnOnce() -> T) -> T {
    print!("{name:<44} ");
    std::io::stdout().flush().unwrap();
    STEP.store(begin.elapsed().as_secs() + 1, Ordering::Relaxed);
    let started = Instant::now();
    let result = run();
    STEP.store(0, Ordering::Relaxed);
    println!("{result:?}  ({:.1} ms)", started.elapsed().as_secs_f64() * 1e3);
    result
}

/// The library that the engine names in its receipt, or the variable's.
fn library(session: &Session) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FOREBAY_VENDOR_LIBCUFILE") {
        return Some(PathBuf::from(named));
    }
    let election = session.elect(&session.device(0).ok()?);
    match election {
        Ok(election) => {
            let note = election.notes.iter().find_map(|note| note.text.split_once(" at "))?;
            Some(PathBuf::from(note.1))
        }
        Err(error) => {
            println!("the engine says: {error:?}");
            None
        }
    }
}

fn main() {
    let begin = Instant::now();
    std::thread::spawn(move || watch(begin));
    let config = Config { engine: Some("libcufile".to_owned()), ..Config::from_env().unwrap() };
    let session = Session::with_config(config).unwrap();
    if session.devices().gpus.is_empty() {
        println!("no GPU: {:?}", session.devices().missing);
        std::process::exit(2);
    }
    let device = session.device(0).unwrap();
    println!("{}, {}", device.info().name, device.info().pci);
    let _ = step(begin, "election of the engine libcufile", || {
        session.elect(&device).map(|election| election.title())
    });
    let Some(path) = library(&session) else { std::process::exit(1) };
    let buffer = session.buffer(0, SIZE).unwrap();
    device.enter(Context::PRIMARY).unwrap();
    let files: Vec<String> = std::env::args().skip(1).collect();
    let library = step(begin, &format!("dlopen {}", path.display()), || {
        // SAFETY: the library that the user named is trusted with its constructors.
        unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
    });
    let Ok(library) = library else { std::process::exit(1) };
    by_plain_calls(begin, &library, &buffer, &files);
    for name in &files {
        by_engine(begin, &session, name);
    }
    // The library may hang when it is taken down.
    println!("done");
    std::process::exit(0);
}

fn by_plain_calls(begin: Instant, library: &Library, buffer: &Buffer, files: &[String]) {
    let function = |name: &str| {
        // SAFETY: only looked up.
        unsafe { library.get::<*mut c_void>(format!("{name}\0").as_bytes()) }
            .map(libloading::os::unix::Symbol::as_raw_ptr)
    };
    let stdin = || std::fs::read_link("/proc/self/fd/0").map_err(|error| error.kind());
    let before = stdin();
    if let Ok(open) = function("cuFileDriverOpen") {
        step(begin, "cuFileDriverOpen", || {
            // SAFETY: the interface gives the function this type.
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> Status>(open)() }
        });
        println!("standard input: {before:?} before, {:?} after", stdin());
    }
    if let Ok(ask) = function("cuFileGetVersion") {
        step(begin, "cuFileGetVersion", || {
            let mut version = 0;
            // SAFETY: as above; the place is writable.
            let status = unsafe {
                std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_int) -> Status>(ask)(&raw mut version)
            };
            (status, version)
        });
    }
    if let Ok(ask) = function("cuFileDriverGetProperties") {
        step(begin, "cuFileDriverGetProperties (14 words)", || {
            let mut words = [0u32; 14];
            // SAFETY: as above; 56 bytes.
            let status = unsafe {
                std::mem::transmute::<*mut c_void, extern "C" fn(*mut u32) -> Status>(ask)(words.as_mut_ptr())
            };
            (status, words)
        });
    }
    for name in files {
        let (Ok(register), Ok(read), Ok(deregister)) =
            (function("cuFileHandleRegister"), function("cuFileRead"), function("cuFileHandleDeregister"))
        else {
            println!("functions are missing");
            return;
        };
        println!("-- {name}");
        let made = make(name);
        for (flags, how) in [(libc::O_DIRECT, "O_DIRECT"), (0, "buffered")] {
            let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(name);
            let Ok(file) = step(begin, &format!("open {how}"), || file) else { continue };
            let mut handle = 0usize;
            let status = step(begin, "cuFileHandleRegister", || {
                let mut description = [1u64, file.as_raw_fd() as u64, 0];
                // SAFETY: as above; both places are writable.
                unsafe {
                    std::mem::transmute::<*mut c_void, extern "C" fn(*mut usize, *mut u64) -> Status>(
                        register,
                    )(&raw mut handle, description.as_mut_ptr())
                }
            });
            if status.code != 0 {
                continue;
            }
            for (len, offset) in [(SIZE, 0), (4096, 4096), (1000, 77)] {
                step(begin, &format!("cuFileRead {len} at {offset}: answer, errno"), || {
                    // SAFETY: as above; the buffer has room.
                    let got = unsafe {
                        std::mem::transmute::<*mut c_void, extern "C" fn(usize, u64, usize, i64, i64) -> isize>(
                            read,
                        )(handle, buffer.address(), len, offset, 0)
                    };
                    (got, std::io::Error::last_os_error().raw_os_error())
                });
                step(begin, "the same bytes as an ordinary read", || same(buffer, name, len, offset as u64));
            }
            step(begin, "cuFileHandleDeregister", || {
                // SAFETY: as above; registered above.
                unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(usize)>(deregister)(handle) }
            });
        }
        if made {
            let _ = std::fs::remove_file(name);
        }
    }
}

/// Makes the file if it is not there.
fn make(name: &str) -> bool {
    if Path::new(name).exists() {
        return false;
    }
    let mut bytes = vec![0; SIZE];
    fill_pattern(&mut bytes, 1, 0);
    std::fs::write(name, bytes).is_ok()
}

fn same(buffer: &Buffer, name: &str, len: usize, offset: u64) -> bool {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; len];
    let read = std::fs::File::open(name).and_then(|file| file.read_exact_at(&mut bytes, offset));
    read.is_ok() && buffer.to_vec().is_ok_and(|got| got[..len] == bytes)
}

fn by_engine(begin: Instant, session: &Session, name: &str) {
    println!("-- {name}, through the engine");
    let made = make(name);
    let _ = step(begin, "read by the engine libcufile", || {
        let file = File::open(name)?;
        let mut buffer = session.buffer(0, SIZE.min(file.len()? as usize))?;
        let receipt = session.read(&file, 0, &mut buffer)?;
        Ok::<_, forebay_error::Error>((receipt.to_string(), same(&buffer, name, buffer.len(), 0)))
    });
    if made {
        let _ = step(begin, "write by the engine libcufile", || {
            let file = File::options().write(true).open(name)?;
            let mut buffer = session.buffer(0, 70_000)?;
            buffer.copy_from_slice(&vec![9; 70_000])?;
            let receipt = session.write(&file, 1000, &buffer)?;
            Ok::<_, forebay_error::Error>((receipt.to_string(), same(&buffer, name, 70_000, 1000)))
        });
        let _ = std::fs::remove_file(name);
    }
}
