//! Measures the cost of letting a GPU read a file's cached pages in place: registering windows of a mapping, copying
//! and gathering from them. A step that fails says so, and the next one goes on.
//!
//! `cargo run --release -p forebay-gpu --example pin_costs -- FILE`, where FILE is in the page cache (4 GiB, say).

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use common::cpu;
use forebay_gpu::{
    Access, AllocationKind, Context, CopyPiece, Device, DeviceRange, Devices, Error, ErrorKind, Event,
    Gather, GatherReport, HostRange, Result, Stream, Wait,
};

const MIB: usize = 1 << 20;
const SIZES: [usize; 6] = [16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, 1024 * MIB];
const WINDOW: usize = 64 * MIB;
const REPEATS: usize = 5;

/// A part of the table.
type Step = fn(&Bench) -> Result<()>;

/// The mapped file and the device that reads it.
struct Bench {
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    file: File,
    base: *mut u8,
    len: usize,
    /// Device memory as large as the largest window.
    target: u64,
}

/// Wall time, user and system CPU since [`Clock::start`].
struct Clock {
    start: Instant,
    cpu: (f64, f64),
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), cpu: cpu() }
    }

    /// Wall seconds; CPU seconds per GB of `bytes`, as text.
    fn stop(&self, bytes: usize) -> (f64, String) {
        let wall = self.start.elapsed().as_secs_f64();
        let (user, system) = cpu();
        let gigabytes = bytes as f64 / 1e9;
        let (user, system) = ((user - self.cpu.0) / gigabytes, (system - self.cpu.1) / gigabytes);
        (wall, format!("{user:.4} + {system:.4} CPU s/GB"))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn errno(doing: &str) -> Error {
    let error = std::io::Error::last_os_error();
    Error::from_errno(error.raw_os_error().unwrap_or(0), doing)
}

fn size(bytes: usize) -> String {
    if bytes >= MIB { format!("{} MiB", bytes / MIB) } else { format!("{bytes} B") }
}

/// The sum of the present pages of all zones called Movable: pages that a long pin moves elsewhere first.
fn movable_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Node"), _) => inside = line.contains("Movable"),
            (Some("present"), Some(count)) if inside => sum += count.parse::<u64>().unwrap_or(0),
            _ => {}
        }
    }
    sum
}

/// Something registered or allocated, given back when dropped.
struct Held<'a> {
    give_back: Box<dyn FnMut() + 'a>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        (self.give_back)();
    }
}

/// Memory of a kind, freed when dropped.
fn memory(bench: &Bench, kind: AllocationKind, len: usize) -> Result<(u64, Held<'_>)> {
    let address = bench.device.allocate_kind(kind, len)?;
    // SAFETY: allocated above with that kind and length; all work is waited for before the guard is dropped.
    let give_back = Box::new(move || unsafe { bench.device.free_kind(kind, DeviceRange::new(address, len)) });
    Ok((address, Held { give_back }))
}

impl Bench {
    fn open(path: &str) -> Result<Self> {
        let devices = Devices::discover();
        let device = devices.get(0)?;
        let info = device.info();
        println!("device: {} (driver {})", info.name, info.driver_version);
        let file = File::open(path).map_err(|_| errno("cannot open file").with("path", path))?;
        let len = file.metadata().map_err(|_| errno("cannot look at file"))?.len() as usize / 4096 * 4096;
        // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            let (access, flags) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(errno("cannot map file").with("path", path));
        }
        let stream = device.stream(Context::PRIMARY)?;
        device.kernels(Context::PRIMARY)?;
        let target = device.allocate(1 << 30)?;
        println!("file: {path}, {len} bytes mapped");
        Ok(Self { device, stream, file, base: base.cast(), len, target })
    }

    /// The windows of `size` bytes; the last one may be shorter.
    fn windows(&self, size: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        (0..self.len).step_by(size).map(move |at| (self.base.wrapping_add(at), size.min(self.len - at)))
    }

    fn register(&self, (address, len): (*mut u8, usize)) -> Result<()> {
        // SAFETY: the file stays mapped until the program ends.
        unsafe { self.device.register(HostRange::new(address, len), Access::ReadOnly) }
    }

    fn unregister(&self, address: *mut u8) -> Result<()> {
        // SAFETY: every step waits for its work before it unregisters.
        unsafe { self.device.unregister(address) }
    }

    /// Registers the whole file in windows; the guard unregisters it.
    fn registered(&self, size: usize) -> Result<Held<'_>> {
        let windows: Vec<_> = self.windows(size).collect();
        let mut done = Vec::new();
        let outcome = windows.into_iter().try_for_each(|window| {
            self.register(window)?;
            done.push(window.0);
            Ok(())
        });
        let give_back = Box::new(move || {
            let _ = self.stream.synchronize(Wait::Block);
            for address in done.drain(..) {
                let _ = self.unregister(address);
            }
        });
        let held = Held { give_back };
        outcome.map(|()| held)
    }

    fn copy(&self, (address, len): (*mut u8, usize)) -> Result<()> {
        // SAFETY: registered by the caller, who waits; the target has room for the largest window.
        unsafe { self.stream.copy_in(self.target, HostRange::new(address, len)) }
    }
}

/// 1: what the machine says.
fn attributes(bench: &Bench) -> Result<()> {
    println!("zone Movable: {} pages present", movable_pages());
    for access in [Access::ReadOnly, Access::ReadWrite] {
        match bench.device.can_register(access) {
            Ok(()) => println!("can register {access:?}: yes"),
            Err(error) => println!("can register {access:?}: no: {error}"),
        }
    }
    let clock = Clock::start();
    // SAFETY: reads pages in; changes none.
    let code = unsafe { libc::madvise(bench.base.cast(), bench.len, libc::MADV_POPULATE_READ) };
    if code != 0 {
        return Err(errno("cannot populate the mapping"));
    }
    let (wall, cpu) = clock.stop(bench.len);
    println!("MADV_POPULATE_READ: {:.1} ms, {cpu}", wall * 1e3);
    Ok(())
}

/// 2: registering and unregistering alone.
fn registration(bench: &Bench) -> Result<()> {
    for window in SIZES {
        let clock = Clock::start();
        let held = bench.registered(window)?;
        let (wall, cpu) = clock.stop(bench.len);
        let count = bench.len.div_ceil(window) as f64;
        let each = wall * 1e3 / count;
        println!("{:>9}: register   {:>8.1} ms, {each:>7.2} ms each, {cpu}", size(window), wall * 1e3);
        let clock = Clock::start();
        drop(held);
        let (wall, cpu) = clock.stop(bench.len);
        let each = wall * 1e3 / count;
        println!("{:>9}  unregister {:>8.1} ms, {each:>7.2} ms each, {cpu}", "", wall * 1e3);
    }
    Ok(())
}

/// 3: a first read: the next window is registered while the last one is copied.
fn first_read(bench: &Bench) -> Result<()> {
    for window in SIZES {
        let mut done = Vec::new();
        let clock = Clock::start();
        let outcome = bench.windows(window).try_for_each(|part| {
            bench.register(part)?;
            done.push(part.0);
            bench.copy(part)
        });
        let waited = bench.stream.synchronize(Wait::Block);
        let (wall, cpu) = clock.stop(bench.len);
        for address in done {
            bench.unregister(address)?;
        }
        outcome.and(waited)?;
        println!("{:>9}: {:>6.2} GB/s, {cpu}", size(window), bench.len as f64 / wall / 1e9);
    }
    Ok(())
}

/// 4: reading registered pages.
fn repeated_read(bench: &Bench) -> Result<()> {
    let _held = bench.registered(WINDOW)?;
    let clock = Clock::start();
    let mut rates = Vec::new();
    for _ in 0..REPEATS {
        let start = Instant::now();
        bench.windows(WINDOW).try_for_each(|window| bench.copy(window))?;
        bench.stream.synchronize(Wait::Block)?;
        rates.push(bench.len as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    let (_, cpu) = clock.stop(REPEATS * bench.len);
    println!("copies of {}: {:.2} GB/s, {cpu}", size(WINDOW), median(rates));
    Ok(())
}

/// Last, since a driver may take offence: one copy that spans two registrations.
fn across(bench: &Bench) -> Result<()> {
    if bench.len < 2 * WINDOW {
        println!("the file is too small");
        return Ok(());
    }
    let _held = bench.registered(WINDOW)?;
    let range = (bench.base.wrapping_add(WINDOW / 2), WINDOW);
    bench.copy(range).and_then(|()| bench.stream.synchronize(Wait::Block))?;
    println!("works");
    Ok(())
}

/// Offsets of pieces that lie in the file, on multiples of their size.
fn offsets(len: usize, count: usize, piece: usize) -> Vec<u64> {
    let (places, mut state) = ((len / piece).max(1) as u64, 7u64);
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % places * piece as u64
    };
    (0..count).map(next).collect()
}

/// Puts words where a device reaches them, through pinned memory if need be.
fn put(bench: &Bench, to: u64, words: &[u64]) -> Result<()> {
    let len = size_of_val(words);
    let (pinned, _held) = memory(bench, AllocationKind::PinnedHost, len)?;
    // SAFETY: `pinned` is host memory of that length; the copy is waited for.
    unsafe {
        std::ptr::copy_nonoverlapping(words.as_ptr(), pinned as *mut u64, words.len());
        bench.stream.copy_in(to, HostRange::new(pinned as *const u8, len))?;
    }
    bench.stream.synchronize(Wait::Block)
}

/// The report of a gather, after all work.
fn report(bench: &Bench, from: u64) -> Result<GatherReport> {
    let len = size_of::<GatherReport>();
    let (pinned, _held) = memory(bench, AllocationKind::PinnedHost, len)?;
    // SAFETY: `pinned` is host memory of that length, read after the copy is done.
    unsafe {
        bench.stream.copy_out(HostRange::new(pinned as *mut u8, len), from)?;
        bench.stream.synchronize(Wait::Block)?;
        Ok((pinned as *const GatherReport).read())
    }
}

/// 5: gathering random pieces by a kernel.
fn gathers(bench: &Bench) -> Result<()> {
    let _held = bench.registered(WINDOW)?;
    // A small file is for trying the program out, over the fake driver for instance.
    let scale = if bench.len < (1 << 30) { 128 } else { 1 };
    for (piece, count) in [(512, (1 << 20) / scale), (4096, (1 << 20) / scale), (64 << 10, (1 << 16) / scale)]
    {
        for kind in [AllocationKind::Device, AllocationKind::PinnedHost] {
            gather(bench, piece, count, kind)?;
        }
    }
    for kind in [AllocationKind::PinnedHost, AllocationKind::Device] {
        scatter(bench, kind)?;
    }
    Ok(())
}

fn gather(bench: &Bench, piece: usize, count: usize, kind: AllocationKind) -> Result<()> {
    let words = offsets(bench.len, count, piece);
    let (list, _list) = memory(bench, kind, 8 * count)?;
    let (out, _out) = memory(bench, AllocationKind::Device, piece * count)?;
    let (found, _found) = memory(bench, AllocationKind::Device, size_of::<GatherReport>())?;
    put(bench, list, &words)?;
    put(bench, found, &[GatherReport::START.refused, GatherReport::START.first])?;
    let asked = Gather {
        base: bench.base as u64,
        len: bench.len as u64,
        offsets: list,
        count: count as u64,
        piece: piece as u64,
        out,
        report: found,
    };
    let mut seconds = Vec::new();
    for _ in 0..=REPEATS {
        let start = Instant::now();
        // SAFETY: all that it names is valid until the synchronisation.
        unsafe { bench.stream.gather(&asked) }?;
        bench.stream.synchronize(Wait::Spin)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    // The first one warms up.
    let each = median(seconds.split_off(1));
    let (pieces, rate) = (count as f64 / each / 1e6, (count * piece) as f64 / each / 1e9);
    let refused = report(bench, found)?.refused;
    println!(
        "gather {count} × {piece} B, offsets in {kind:?}: {pieces:.2} M/s, {rate:.2} GB/s, {refused} refused"
    );
    Ok(())
}

/// 4096 pieces of 4 KiB straight from the registered memory, by a list.
fn scatter(bench: &Bench, kind: AllocationKind) -> Result<()> {
    const COUNT: usize = 4096;
    const PIECE: usize = 4096;
    let words: Vec<u64> = offsets(bench.len, COUNT, PIECE)
        .into_iter()
        .enumerate()
        .flat_map(|(index, offset)| {
            let piece = CopyPiece {
                src: bench.base as u64 + offset,
                dst: bench.target + (index * PIECE) as u64,
                len: PIECE as u64,
            };
            [piece.src, piece.dst, piece.len]
        })
        .collect();
    let (list, _list) = memory(bench, kind, 8 * words.len())?;
    put(bench, list, &words)?;
    let mut micros = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        // SAFETY: all that it names is valid until the synchronisation.
        unsafe { bench.stream.scatter(list, COUNT, PIECE) }?;
        bench.stream.synchronize(Wait::Spin)?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let each = median(micros);
    let rate = (COUNT * PIECE) as f64 / each / 1e3;
    println!("scatter {COUNT} × {PIECE} B, list in {kind:?}: {each:.1} µs, {rate:.2} GB/s");
    Ok(())
}

/// `cachestat(2)` over a range; the number of cached pages.
fn cachestat(bench: &Bench, len: usize) -> Result<u64> {
    const CALL: libc::c_long = 451;
    let (range, mut found) = ([0u64, len as u64], [0u64; 5]);
    // SAFETY: the range and the place are laid out as the call wants them.
    let code = unsafe { libc::syscall(CALL, bench.file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    if code == 0 { Ok(found[0]) } else { Err(errno("cannot ask for cached pages")) }
}

/// Microseconds of one call, as a median of many.
fn cost(calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut micros = Vec::new();
    for _ in 0..calls {
        let start = Instant::now();
        call()?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(micros))
}

/// 6: what it costs to look whether a file is still the same.
fn looks(bench: &Bench) -> Result<()> {
    let fstat = cost(2000, || bench.file.metadata().map(drop).map_err(|_| errno("cannot look at file")))?;
    println!("fstat: {fstat:.2} µs");
    for len in [WINDOW.min(bench.len), bench.len.min(4096 * MIB)] {
        let each = cost(50, || cachestat(bench, len).map(drop))?;
        println!("cachestat of {}: {each:.1} µs, {} pages cached", size(len), cachestat(bench, len)?);
    }
    Ok(())
}

fn latency(bench: &Bench) -> Result<()> {
    let _held = bench.registered(WINDOW)?;
    let event: Box<dyn Event> = bench.stream.event()?;
    let each = cost(2000, || {
        bench.copy((bench.base, 4096))?;
        bench.stream.record(event.as_ref())?;
        event.wait(Wait::Spin)
    })?;
    println!("one copy of 4 KiB from registered memory: {each:.2} µs");
    Ok(())
}

fn main() -> Result<()> {
    let path = std::env::args()
        .nth(1)
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "no file named").hint("pin_costs FILE"))?;
    let bench = Bench::open(&path)?;
    let steps: [(&str, Step); 8] = [
        ("1. attributes", attributes),
        ("2. registering, by window", registration),
        ("3. first read, registering while copying", first_read),
        ("4. repeated read of registered pages", repeated_read),
        ("5. gather and scatter", gathers),
        ("6. looking at the file", looks),
        ("   latency", latency),
        ("7. one copy across two registrations", across),
    ];
    for (name, step) in steps {
        println!("\n{name}");
        if let Err(error) = step(&bench) {
            println!("failed: {error}");
        }
        if let Err(error) = bench.stream.synchronize(Wait::Block) {
            println!("the stream is broken: {error}");
        }
    }
    Ok(())
}
