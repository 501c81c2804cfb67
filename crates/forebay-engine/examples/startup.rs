//! Measures the cost of a first transfer, step by step, in milliseconds: `startup FILE [THREADS]`.
//!
//! On device 0: pages that one thread touches and pins by itself, as many at once, or all by one call, in huge pages and in
//! small ones; streams and their first copies (with the variable `STARTUP_PINS`). Without it: a session, its first reads and
//! three of the whole file, which should be warm.

use std::error::Error;
use std::thread;
use std::time::Instant;

use forebay_config::Config;
use forebay_engine::{File, Session};
use forebay_gpu::{Context, Device, Devices, HostRange, Wait};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const MIB: usize = 1 << 20;
/// About what a lane pins that has all its memory: eight slots of 2 MiB, cells and lists.
const LANE: usize = 20 * MIB;

fn timed<T>(what: &str, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let start = Instant::now();
    let done = work()?;
    println!("{:9.3} ms  {what}", start.elapsed().as_secs_f64() * 1e3);
    Ok(done)
}

/// Anonymous memory, at a huge page's border.
fn map(len: usize, huge: bool) -> usize {
    // SAFETY: a fresh mapping, which stays.
    unsafe {
        let over = len + 2 * MIB;
        let (read_write, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let raw = libc::mmap(std::ptr::null_mut(), over, read_write, flags, -1, 0);
        assert_ne!(raw, libc::MAP_FAILED);
        let start = (raw as usize).next_multiple_of(2 * MIB);
        libc::madvise(start as *mut _, len, if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
        start
    }
}

fn touch(start: usize, len: usize) {
    // SAFETY: mapped above.
    unsafe { libc::madvise(start as *mut _, len, libc::MADV_POPULATE_WRITE) };
}

fn pin(device: &dyn Device, start: usize, len: usize) -> Outcome {
    // SAFETY: mapped above, for good.
    unsafe { device.pin(HostRange::new(start as *mut u8, len)) }?;
    Ok(())
}

/// Does it on several threads at once.
fn at_once(threads: usize, work: impl Fn(usize) -> Outcome + Sync) -> Outcome {
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|index| {
                scope.spawn({
                    let work = &work;
                    move || work(index)
                })
            })
            .collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread died")?)
    })
}

fn pins(device: &dyn Device, threads: usize) -> Outcome {
    for (huge, pages) in [(true, "huge pages"), (false, "4 KiB pages")] {
        let start = map(LANE, huge);
        timed(&format!("touch 20 MiB, {pages}"), || {
            touch(start, LANE);
            Ok(())
        })?;
        timed(&format!("pin 20 MiB, {pages}"), || pin(device, start, LANE))?;
        let start = map(4 * MIB, huge);
        timed(&format!("touch 4 MiB, {pages}"), || {
            touch(start, 4 * MIB);
            Ok(())
        })?;
        timed(&format!("pin 4 MiB, {pages}"), || pin(device, start, 4 * MIB))?;
        let all = map(threads * LANE, huge);
        timed(&format!("{threads} threads touch and pin 20 MiB each, {pages}"), || {
            at_once(threads, |index| {
                touch(all + index * LANE, LANE);
                pin(device, all + index * LANE, LANE)
            })
        })?;
        for size in [4 * MIB, LANE] {
            let all = map(threads * size, huge);
            timed(&format!("{threads} threads touch {} MiB each, {pages}", size / MIB), || {
                at_once(threads, |index| {
                    touch(all + index * size, size);
                    Ok(())
                })
            })?;
            timed(&format!("pin these {} MiB by one call, {pages}", threads * size / MIB), || {
                pin(device, all, threads * size)
            })?;
        }
    }
    Ok(())
}

fn streams(device: &dyn Device, threads: usize) -> Outcome {
    let target = device.allocate(MIB)?;
    let start = map(2 * MIB, true);
    touch(start, 2 * MIB);
    pin(device, start, 2 * MIB)?;
    timed("load the kernels", || Ok(device.kernels(Context::PRIMARY)?))?;
    for round in ["first", "second"] {
        let stream = timed(&format!("the {round} stream"), || Ok(device.stream(Context::PRIMARY)?))?;
        let event = timed("  an event", || Ok(stream.event()?))?;
        for copy in ["first", "second"] {
            timed(&format!("  its {copy} copy of 1 MiB, and the wait"), || {
                // SAFETY: pinned memory and an allocation of that size; waited for.
                unsafe { stream.copy_in(target, HostRange::new(start as *const u8, MIB)) }?;
                stream.record(event.as_ref())?;
                Ok(event.wait(Wait::Spin)?)
            })?;
        }
    }
    timed(&format!("{threads} threads make a stream each"), || {
        at_once(threads, |_| device.stream(Context::PRIMARY).map(drop).map_err(Into::into))
    })
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: startup FILE [THREADS]")?;
    let threads = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let session_first = std::env::var_os("STARTUP_PINS").is_none();
    let devices = Devices::discover();
    let Some(device) = devices.gpus.first() else { return Err("no GPU".into()) };
    timed("the context", || {
        device.adopt_thread();
        Ok(device.allocate(MIB)?)
    })?;
    if !session_first {
        pins(device.as_ref(), threads)?;
        streams(device.as_ref(), threads)?;
        return Ok(());
    }
    let session = timed("a session", || Ok(Session::with_config(Config::from_env()?)?))?;
    let file = timed("open the file", || Ok(File::open(&path)?))?;
    let len = file.len()? as usize;
    let mut small = session.buffer(0, MIB)?;
    let mut large = session.buffer(0, len)?;
    for round in ["first", "second", "third"] {
        timed(&format!("the {round} read of 1 MiB"), || Ok(session.read(&file, 0, &mut small)?))?;
    }
    for round in ["first", "second", "third"] {
        let start = Instant::now();
        let receipt = session.read(&file, 0, &mut large)?;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{:9.3} ms  the {round} read of all: {:.1} GB/s\n{receipt}",
            seconds * 1e3,
            len as f64 / seconds / 1e9
        );
    }
    Ok(())
}
