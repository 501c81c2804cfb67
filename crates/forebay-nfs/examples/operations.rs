//! Operations to count instructions of: `operations MEMORY FORM BYTES COUNT FILE`.
//!
//! Memory is `host`, `gpu` (0), `bar` (memory that behaves as a PCI BAR), `cufile` (GPU 0 through the libcufile.so that
//! `LIBCUFILE` names), `placed` (host memory, into which an NFS server in this process places bytes over a fabric in this process),
//! `rdma` (the same into memory of GPU 0) or `client` (host memory, without the engine: eight reads under way, and each answer asks
//! for the next); forms are `read` and `write` (synchronous), `submit` (reads with a ticket), `batch` (256 reads) and `stream` (reads
//! in the order of a stream). Variables choose engine, lanes and cache policy. `bench/instructions.py` runs it.

use std::error::Error;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;

use forebay_config::Config;
use forebay_engine::{Batch, Buffer, Direction, Piece, Session, Transfer};
use forebay_gpu::bar::{Mapping, Provider};
use forebay_gpu::{Devices, bar, host};
use forebay_nfs::NfsSource;
use forebay_verbs::{DeviceRange, HostRange, Memory};
use libloading::os::unix::Library;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const PAGE: u64 = 4096;
const BATCH: usize = 256;

/// Memory that O_DIRECT takes, as it would that of a BAR.
#[derive(Debug)]
struct Memfd;

impl Provider for Memfd {
    fn name(&self) -> &'static str {
        "p2pmem:memfd"
    }

    fn pci(&self) -> &'static str {
        ""
    }

    fn memory(&self) -> forebay_error::Result<(u64, u64)> {
        Ok((1 << 30, 1 << 30))
    }

    fn map(&self, len: usize) -> forebay_error::Result<Mapping> {
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(c"bar".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(forebay_error::Error::last_os("cannot make a memory file"));
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len as u64).map_err(|error| forebay_error::Error::from_io(&error, "cannot size it"))?;
        Mapping::of(&file, len)
    }
}

/// What a C function answers, as an error if it is not 0.
fn done(call: &str, code: c_int) -> Outcome {
    if code == 0 { Ok(()) } else { Err(format!("{call}: {code}").into()) }
}

/// Calls a C function of a library: `call!(library, "name", (type, …) -> type, argument, …)`.
macro_rules! call {
    ($library:expr, $name:expr, ($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        // SAFETY: the C interface's type; pointers among the arguments are to live places.
        unsafe { $library.get::<unsafe extern "C" fn($($type),*) -> $result>($name)?($($argument),*) }
    }};
}

fn load(variable: &str) -> Outcome<Library> {
    let path = std::env::var(variable).map_err(|_| format!("{variable} is not set"))?;
    // SAFETY: a library of this build.
    Ok(unsafe { Library::new(path) }?)
}

/// The software GPU, with its primary context current on this thread.
fn driver() -> Outcome<Library> {
    let driver = load("FOREBAY_LIBCUDA")?;
    let mut context = 0_usize;
    done("cuInit", call!(driver, b"cuInit", (u32) -> c_int, 0))?;
    let code = call!(driver, b"cuDevicePrimaryCtxRetain", (*mut usize, c_int) -> c_int, &raw mut context, 0);
    done("cuDevicePrimaryCtxRetain", code)?;
    done("cuCtxSetCurrent", call!(driver, b"cuCtxSetCurrent", (usize) -> c_int, context))?;
    Ok(driver)
}

/// `CUfileError_t` in a register, and `CUfileDescr_t`.
type Answer = u64;
type Descr = [u64; 3];

/// 4 KiB through the C interface.
fn cufile(form: &str, bytes: usize, count: usize, path: &str) -> Outcome {
    let driver = driver()?;
    let library = load("LIBCUFILE")?;
    let file = File::options().read(true).write(true).open(path)?;
    let places = file.metadata()?.len() / bytes as u64;
    let (mut memory, mut handle) = (0_usize, 0_usize);
    done(
        "cuMemAlloc",
        call!(driver, b"cuMemAlloc_v2", (*mut usize, usize) -> c_int, &raw mut memory, bytes),
    )?;
    let mut descr: Descr = [1, file.as_raw_fd() as u64, 0];
    let open = call!(library, b"cuFileDriverOpen", () -> Answer,);
    done("cuFileDriverOpen", open as c_int)?;
    let registered = call!(library, b"cuFileHandleRegister", (*mut usize, *mut Descr) -> Answer, &raw mut handle, &raw mut descr);
    done("cuFileHandleRegister", registered as c_int)?;
    let name: &[u8] = if form == "write" { b"cuFileWrite" } else { b"cuFileRead" };
    for index in 0..count {
        let offset = offset(index, places, bytes) as i64;
        let moved =
            call!(library, name, (usize, usize, usize, i64, i64) -> isize, handle, memory, bytes, offset, 0);
        if moved != bytes as isize {
            return Err(format!("cuFile answered {moved}").into());
        }
    }
    Ok(())
}

/// The file as an NFS server in this process has it, by RDMA over one connection. The server ends with the process.
fn on_server(path: &str) -> Outcome<forebay_nfs::NfsFile> {
    let (fake, server) = (fake_verbs::Fake::new(), Arc::new(fake_nfs::Server::start()));
    server.put("/export/file", std::fs::read(path)?);
    std::mem::forget(fake_nfs::Placing::start(&fake, server.clone()));
    let rdma = forebay_nfs::RdmaOptions::by(Arc::new(fake), fake_nfs::Placing::address());
    let options = forebay_nfs::NfsOptions { connections: 1, rdma: Some(rdma), ..Default::default() };
    let url = forebay_nfs::NfsUrl::parse(&server.url("/export/file", "3"))?;
    Ok(forebay_nfs::open(&url, &options)?)
}

/// Reads by the NFS client alone.
struct ClientReads {
    file: forebay_nfs::NfsFile,
    /// Where each of those under way puts its bytes.
    memory: Vec<u64>,
    registered: Option<Arc<forebay_verbs::RegisteredMemory>>,
    bytes: usize,
    places: u64,
    count: usize,
    asked: AtomicUsize,
    ended: AtomicUsize,
    waits: Thread,
}

impl ClientReads {
    /// Asks for the next read, into memory that is free again.
    fn ask(self: &Arc<Self>, slot: usize) {
        let index = self.asked.fetch_add(1, Ordering::Relaxed);
        if index >= self.count {
            self.ended.fetch_add(1, Ordering::Release);
            return self.waits.unpark();
        }
        let this = self.clone();
        let answer = Box::new(move |result: forebay_error::Result<usize>| {
            if result.is_ok_and(|bytes| bytes == this.bytes) {
                this.ask(slot);
            } else {
                std::process::abort();
            }
        });
        let (address, offset) = (self.memory[slot], offset(index, self.places, self.bytes));
        // SAFETY: the memory outlives the reads, and each has a range of its own.
        unsafe {
            if let Some(memory) = &self.registered {
                self.file.place(offset, DeviceRange::new(address, self.bytes), memory.clone(), answer);
            } else {
                let memory = HostRange::new(address as *const u8, self.bytes);
                self.file.start(forebay_nfs::Direction::Read, offset, memory, answer);
            }
        }
    }
}

/// Reads by the NFS client alone: `read` has memory registered for each call, `registered` once for all.
fn client(form: &str, bytes: usize, count: usize, path: &str) -> Outcome {
    const UNDER_WAY: usize = 8;
    let file = on_server(path)?;
    let mut memory = vec![0u8; bytes * UNDER_WAY];
    let registered = if form == "registered" {
        let range = Memory::Host(HostRange::of_mut(&mut memory));
        // SAFETY: the memory outlives the registration.
        Some(unsafe { forebay_verbs::RegisteredMemory::new(&file.client().domain()?, range) }?)
    } else {
        None
    };
    let reads = Arc::new(ClientReads {
        places: file.opened().size / bytes as u64,
        file,
        memory: memory.chunks_mut(bytes).map(|range| range.as_mut_ptr() as u64).collect(),
        registered,
        bytes,
        count,
        asked: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
        waits: std::thread::current(),
    });
    (0..UNDER_WAY).for_each(|slot| reads.ask(slot));
    while reads.ended.load(Ordering::Acquire) < UNDER_WAY {
        std::thread::park();
    }
    Ok(())
}

/// Where operation `index` begins: no two neighbours, so that each is one of its own.
fn offset(index: usize, places: u64, bytes: usize) -> u64 {
    index as u64 * 7919 % places * bytes as u64
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, memory, form, bytes, count, path] = arguments.as_slice() else {
        return Err(
            "use: operations host|gpu|bar|cufile|placed|rdma|client read|write|submit|batch|stream|registered BYTES COUNT FILE"
                .into(),
        );
    };
    let (bytes, count): (usize, usize) = (bytes.parse()?, count.parse()?);
    match memory.as_str() {
        "cufile" => return cufile(form, bytes, count, path),
        "client" => return client(form, bytes, count, path),
        _ => {}
    }
    let devices =
        Devices { gpus: Vec::new(), bars: vec![bar::device(Memfd, 0)], host: host::device(), missing: None };
    let session =
        if memory == "bar" { Session::on_devices(Config::from_env()?, devices)? } else { Session::open()? };
    let file = if matches!(memory.as_str(), "placed" | "rdma") {
        forebay_engine::File::from_source(Arc::new(NfsSource::new(on_server(path)?, (true, true))))?
    } else {
        forebay_engine::File::options().write(true).open(path)?
    };
    let places = file.len()? / (bytes as u64).max(PAGE);
    let device = match memory.as_str() {
        "gpu" | "rdma" => session.devices().gpus.first(),
        "bar" => session.devices().bars.first(),
        _ => Some(&session.devices().host),
    };
    let device = device.ok_or("there is no such memory")?.clone();
    let buffer = Buffer::new(device, bytes * if form == "batch" { BATCH } else { 1 })?;
    let direction = if form == "write" { Direction::Write } else { Direction::Read };
    let transfer = |index| Transfer {
        file: file.clone(),
        offset: offset(index, places, bytes),
        memory: buffer.memory(),
        len: bytes,
        direction,
        allow_short: false,
    };
    match form.as_str() {
        "read" | "write" => {
            for index in 0..count {
                // SAFETY: the buffer outlives the call.
                unsafe { session.run(&transfer(index)) }?;
            }
        }
        "submit" => {
            for index in 0..count {
                // SAFETY: the buffer outlives the ticket, which is waited for.
                unsafe { session.submit(vec![transfer(index)]) }?.wait().into_result()?;
            }
        }
        "batch" => {
            for start in (0..count).step_by(BATCH) {
                let piece = |index: usize| Piece {
                    offset: offset(start + index, places, bytes),
                    address: buffer.address() + (index * bytes) as u64,
                    len: bytes,
                };
                let pieces = (0..BATCH).map(piece).collect();
                let memory = buffer.memory();
                let batch = Batch { file: file.clone(), memory, direction, pieces, allow_short: false };
                // SAFETY: as above.
                unsafe { session.submit_batch(batch) }?.wait().into_result()?;
            }
        }
        "stream" => {
            let (driver, mut stream) = (driver()?, 0_u64);
            let code = call!(driver, b"cuStreamCreate", (*mut u64, u32) -> c_int, &raw mut stream, 1);
            done("cuStreamCreate", code)?;
            for index in 0..count {
                // SAFETY: as above; the stream lives as long as the process.
                unsafe { session.submit_on(stream, vec![transfer(index)]) }?.wait().into_result()?;
            }
        }
        _ => return Err(format!("no such form: {form}").into()),
    }
    Ok(())
}
