//! Measures the protocol alone: preads and mailboxes, beside copies by the driver. No Session, no receipts, no order.
//!
//! Each line is one way of one kind of work; CPU is that of the process, the launcher's thread included, for each operation.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::thread::{ScopedJoinHandle, Thread, park_timeout, scope, sleep};
use std::time::{Duration, Instant};

use forebay_gpu::{
    Access, Context, CopyPiece, Device, Devices, Event, HostRange, Naps, Resident, Stream, Wait, pattern_word,
};

use self::mailbox::Mailbox;
use super::Result;

mod atomics {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../../../forebay-gpu/examples/common/mod.rs"]
mod common;

#[path = "../../src/engines/resident/mailbox.rs"]
#[allow(dead_code, reason = "callers here withdraw nothing")]
mod mailbox;

const FILE: u64 = 1 << 30;
const PAGE: usize = 4096;
const WINDOW: usize = 64 << 20;
const MAILBOXES_AT: usize = 256;
/// As in the engine: when a launch ends, and when the launcher looks.
const IDLE_NS: u32 = 200_000;
const LAUNCH_NS: u32 = 970_000;
const LAUNCH_LONG_NS: u32 = 765_000;
const FIRST_LOOK: Duration = Duration::from_micros(900);
const LOOK: Duration = Duration::from_micros(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The kernel that stays, from or to a slot.
    Mailbox,
    /// The same from pages of the file that are registered.
    Registered,
    Spinning,
    Blocking,
}

const WAYS: [Way; 4] = [Way::Mailbox, Way::Spinning, Way::Blocking, Way::Registered];

#[derive(Clone, Copy)]
struct Work {
    way: Way,
    bytes: usize,
    threads: usize,
    writes: bool,
}

/// Pinned memory by its address, and where the device reaches it. Kept for good, as all memory here.
#[derive(Clone, Copy)]
struct Pinned {
    host: usize,
    reach: u64,
}

impl Pinned {
    fn new(device: &dyn Device, len: usize) -> Result<Self> {
        let len = len.next_multiple_of(PAGE);
        let memory = vec![0_u8; len + PAGE].leak();
        let host = memory.as_mut_ptr().wrapping_add(memory.as_ptr().align_offset(PAGE));
        // SAFETY: whole pages that stay.
        let reach = unsafe { device.pin(HostRange::new(host, len)) }?;
        Ok(Self { host: host as usize, reach })
    }
}

/// Mailboxes, and what launches the kernel while there is work.
struct Launches {
    pages: Pinned,
    count: usize,
    launch: AtomicU32,
    is_over: AtomicBool,
    launcher: OnceLock<Thread>,
}

impl Launches {
    fn mailbox(&self, index: usize) -> &Mailbox {
        // SAFETY: zeroed pages that stay, all of atomics; mailboxes are aligned in them.
        unsafe { &*((self.pages.host + MAILBOXES_AT) as *const Mailbox).add(index) }
    }

    fn has_ended(&self) -> bool {
        // SAFETY: as above; the device writes the first word.
        let ended = unsafe { AtomicU32::from_ptr(self.pages.host as *mut u32) };
        ended.load(Ordering::SeqCst) == self.launch.load(Ordering::SeqCst)
    }

    fn run(&self, stream: &dyn Stream, life: u32) -> Result<()> {
        let _naps = Naps::start();
        let _ = self.launcher.set(std::thread::current());
        while !self.is_over.load(Ordering::Relaxed) {
            if !(0..self.count).any(|index| self.mailbox(index).is_open()) {
                park_timeout(Duration::from_millis(1));
                continue;
            }
            let number = self.launch.fetch_add(1, Ordering::SeqCst) + 1;
            let ended = self.pages.reach;
            let (mailboxes, count) = (ended + MAILBOXES_AT as u64, self.count as u32);
            // SAFETY: the mailboxes stay, and callers wait for what they post.
            unsafe {
                stream.resident(&Resident { mailboxes, count, idle: IDLE_NS, life, ended, number })?;
            }
            sleep(FIRST_LOOK);
            while !self.has_ended() {
                sleep(LOOK);
            }
            sleep(LOOK);
        }
        Ok(())
    }
}

struct Caller<'a> {
    work: Work,
    file: &'a File,
    /// The file's pages, if they are registered.
    pages: u64,
    slot: Pinned,
    target: u64,
    stream: Box<dyn Stream>,
    event: Box<dyn Event>,
    mailbox: &'a Mailbox,
    launches: &'a Launches,
    yields: bool,
}

impl Caller<'_> {
    fn one(&self, offset: u64) -> Result<()> {
        let Work { way, bytes, writes, .. } = self.work;
        // SAFETY: the slot is this thread's, and the device has left it alone since the last wait.
        let slot = unsafe { std::slice::from_raw_parts_mut(self.slot.host as *mut u8, bytes) };
        if writes {
            self.copy(self.target, self.slot.reach)?;
            return Ok(self.file.write_all_at(slot, offset)?);
        }
        if way == Way::Registered {
            return self.copy(self.pages + offset, self.target);
        }
        self.file.read_exact_at(slot, offset)?;
        self.copy(self.slot.reach, self.target)
    }

    fn copy(&self, src: u64, dst: u64) -> Result<()> {
        let len = self.work.bytes;
        if matches!(self.work.way, Way::Mailbox | Way::Registered) {
            return self.post(CopyPiece { src, dst, len: len as u64 });
        }
        // SAFETY: both ends are this thread's, and stay until the wait.
        unsafe {
            if self.work.writes {
                self.stream.copy_out(HostRange::new(self.slot.host as *mut u8, len), src)
            } else {
                self.stream.copy_in(dst, HostRange::new(self.slot.host as *const u8, len))
            }
        }?;
        self.stream.record(self.event.as_ref())?;
        Ok(self.event.wait(if self.work.way == Way::Spinning { Wait::Spin } else { Wait::Block })?)
    }

    fn post(&self, piece: CopyPiece) -> Result<()> {
        let number = self.mailbox.post(piece);
        fence(Ordering::SeqCst);
        loop {
            if self.launches.is_over.load(Ordering::Relaxed) {
                return Err("no launch will come".into());
            }
            if self.launches.has_ended() {
                self.launches.launcher.get().map(Thread::unpark).unwrap_or_default();
            }
            for _ in 0..if self.yields { 1 } else { 16 } {
                if self.mailbox.answer(number).is_some() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if self.yields {
                std::thread::yield_now();
            }
        }
    }
}

/// A thread's operations until the time is up; how many.
fn repeat(caller: &Caller<'_>, seed: u64, deadline: Instant) -> std::result::Result<u64, String> {
    let (bytes, mut count) = (caller.work.bytes as u64, 0);
    while Instant::now() < deadline {
        count += 1;
        let offset = pattern_word(seed, count << 3) % (FILE / bytes) * bytes;
        caller.one(offset).map_err(|error| error.to_string())?;
    }
    Ok(count)
}

/// One line: operations and bytes a second, and what each cost.
fn measure(device: &dyn Device, (file, pages): (&File, u64), work: Work, limit: Duration) -> Result<()> {
    let Work { way, bytes, threads, writes } = work;
    let yields = threads >= std::thread::available_parallelism()?.get();
    let launches = &Launches {
        pages: Pinned::new(device, MAILBOXES_AT + threads * size_of::<Mailbox>())?,
        count: threads,
        launch: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
        launcher: OnceLock::new(),
    };
    let start = |index| -> Result<_> {
        let (stream, target) = (device.stream(Context::PRIMARY)?, device.allocate(bytes)?);
        let (event, slot) = (stream.event()?, Pinned::new(device, bytes)?);
        let mailbox = launches.mailbox(index);
        Ok(Caller { work, file, pages, slot, target, stream, event, mailbox, launches, yields })
    };
    let callers = (0..threads).map(start).collect::<Result<Vec<_>>>()?;
    let stream = device.stream(Context::PRIMARY)?;
    let (before, begun) = (common::cpu(), Instant::now());
    let count = scope(|scope| {
        let launcher = matches!(way, Way::Mailbox | Way::Registered).then(|| {
            scope.spawn(move || {
                let ended =
                    launches.run(stream.as_ref(), if bytes > 64 << 10 { LAUNCH_LONG_NS } else { LAUNCH_NS });
                launches.is_over.store(true, Ordering::Relaxed);
                ended.map_err(|error| error.to_string())
            })
        });
        let repeat = |(caller, seed)| scope.spawn(move || repeat(&caller, seed, begun + limit));
        let threads: Vec<_> = callers.into_iter().zip(1..).map(repeat).collect();
        let count: std::result::Result<u64, String> =
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a caller died")?).sum();
        launches.is_over.store(true, Ordering::Relaxed);
        launcher.map_or(Ok(Ok(())), ScopedJoinHandle::join).map_err(|_| "the launcher died")??;
        count
    });
    let (count, took, after) = (count? as f64, begun.elapsed().as_secs_f64(), common::cpu());
    println!(
        "{:>4} KiB x {threads:<3} {:<6} {:<11} {:>8.1} K/s {:>6.2} GB/s {:>6.2} us user {:>6.2} us system",
        bytes >> 10,
        if writes { "write" } else { "read" },
        format!("{way:?}").to_lowercase(),
        count / took / 1e3,
        count * bytes as f64 / took / 1e9,
        (after.0 - before.0) * 1e6 / count,
        (after.1 - before.1) * 1e6 / count,
    );
    Ok(())
}

fn register(device: &dyn Device, file: &File) -> Result<u64> {
    let (len, protection, flags) = (FILE as usize, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE);
    // SAFETY: a new mapping, which stays.
    let pages = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
    if pages == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    for at in (0..FILE as usize).step_by(WINDOW) {
        // SAFETY: pages of the mapping, which stays.
        unsafe {
            device.register(HostRange::new(pages.cast::<u8>().wrapping_add(at), WINDOW), Access::ReadOnly)
        }?;
    }
    Ok(pages as u64)
}

/// Warm reads; or, with `direct`, random reads and writes by O_DIRECT, meant for `taskset -c 0`.
pub(crate) fn run(directory: &Path, seconds: u64, direct: bool) -> Result<()> {
    let devices = Devices::discover();
    let (device, limit) = (devices.get(0)?.clone(), Duration::from_secs(seconds));
    device.kernels(Context::PRIMARY)?;
    let path = directory.join(format!("forebay-bare-{}", std::process::id()));
    let made = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    println!("device: {}, {} CPUs", device.info().name, std::thread::available_parallelism()?);
    let all = |file: &File, pages, ways: &[Way], works: &[(usize, usize, bool)]| {
        let each = works.iter().flat_map(|work| ways.iter().map(move |way| (*way, *work)));
        each.into_iter().try_for_each(|(way, (kib, threads, writes))| {
            measure(device.as_ref(), (file, pages), Work { way, bytes: kib << 10, threads, writes }, limit)
        })
    };
    let work = || -> Result<()> {
        (0..FILE).step_by(1 << 20).try_for_each(|at| made.write_all_at(&vec![0x5A; 1 << 20], at))?;
        made.sync_all()?;
        if direct {
            let works = [(4, 4), (4, 8), (64, 4), (64, 8)].map(|(kib, n)| [(kib, n, false), (kib, n, true)]);
            let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path)?;
            return all(&file, 0, &WAYS[..3], works.as_flattened());
        }
        let works = [(4, 1), (4, 4), (4, 16), (4, 64), (64, 16), (1024, 16)].map(|(kib, n)| (kib, n, false));
        all(&made, register(device.as_ref(), &made)?, &WAYS, &works)
    };
    let result = work();
    std::fs::remove_file(&path)?;
    result
}
