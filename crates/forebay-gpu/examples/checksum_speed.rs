//! How fast checksums of GPU memory are, and whether they are right: for one range of 4 GiB, for 5000 ranges of 64 KiB,
//! and for ranges of all alignments; a sample of each is compared with the CPU's.
//!
//! `cargo run --release -p forebay-gpu --example checksum_speed`

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_gpu::{
    Checksum, ChecksumPiece, Context, Device, DeviceRange, Devices, Error, ErrorKind, HostRange, Result,
    Shift, Stream, Wait, fill_pattern,
};

const MEMORY: usize = 4 << 30;
const PIECES: usize = 64 << 10;
const ROUNDS: usize = 7;
const KEY: u64 = 42;

/// A GPU with filled memory, and pinned places for a list and its results.
struct Bench {
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    memory: u64,
    list: Vec<ChecksumPiece>,
    results: Vec<u32>,
    reach: (u64, u64),
}

impl Bench {
    fn new(device: Arc<dyn Device>) -> Result<Self> {
        let stream = device.stream(Context::PRIMARY)?;
        let start = Instant::now();
        device.kernels(Context::PRIMARY)?;
        println!("loading the kernels: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
        let memory = device.allocate(MEMORY)?;
        let mut list = vec![ChecksumPiece::default(); PIECES];
        let mut results = vec![0; PIECES];
        // SAFETY: neither vector grows, and both live until the end of the program's work.
        let reach = unsafe {
            stream.fill_pattern(DeviceRange::new(memory, MEMORY), KEY, 0)?;
            (
                device.pin(HostRange::new(list.as_mut_ptr().cast(), size_of_val(&*list)))?,
                device.pin(HostRange::new(results.as_mut_ptr().cast(), size_of_val(&*results)))?,
            )
        };
        stream.synchronize(Wait::Block)?;
        Ok(Self { device, stream, memory, list, results, reach })
    }

    /// Checksums of ranges (offset, length); the time of the whole, and of the kernel with its launch.
    fn run(&mut self, ranges: &[(usize, usize)], length: usize) -> Result<(Vec<Checksum>, [Duration; 2])> {
        let start = Instant::now();
        let mut count = 0;
        for (offset, len) in ranges {
            for at in (0..*len).step_by(length) {
                let piece = ChecksumPiece {
                    address: self.memory + (offset + at) as u64,
                    len: length.min(len - at) as u64,
                };
                *self.list.get_mut(count).ok_or_else(|| {
                    Error::new(ErrorKind::InvalidInput, "too many pieces").with("length", length)
                })? = piece;
                count += 1;
            }
        }
        let launched = Instant::now();
        // SAFETY: list, results and memory live as long as the bench.
        unsafe { self.stream.checksums(self.reach.0, count, self.reach.1) }?;
        self.stream.synchronize(Wait::Spin)?;
        let kernel = launched.elapsed();
        let shift = Shift::new(length as u64);
        let mut parts = self.list.iter().zip(&self.results);
        let join = |(_, len): &(usize, usize)| {
            parts.by_ref().take(len.div_ceil(length)).fold(Checksum::EMPTY, |sum, (piece, crc)| {
                // Written by the GPU: not to be taken from a register.
                // SAFETY: a reference is a valid place.
                sum.then_by(
                    Checksum::new(unsafe { std::ptr::from_ref(crc).read_volatile() }, piece.len),
                    &shift,
                )
            })
        };
        let sums = ranges.iter().map(join).collect();
        Ok((sums, [start.elapsed(), kernel]))
    }

    fn measure(&mut self, name: &str, ranges: &[(usize, usize)], length: usize) -> Result<Vec<Checksum>> {
        let mut times = Vec::new();
        let mut sums = Vec::new();
        for _ in 0..ROUNDS {
            let (found, time) = self.run(ranges, length)?;
            times.push(time);
            sums = found;
        }
        let median = |which: usize| {
            let mut all: Vec<_> = times.iter().map(|time| time[which].as_secs_f64()).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let bytes = ranges.iter().map(|range| range.1).sum::<usize>() as f64;
        println!(
            "{name:<32} pieces of {:>4} KiB: {:>8.1} GB/s ({:.3} ms), kernel alone {:>8.1} GB/s",
            length >> 10,
            bytes / median(0) / 1e9,
            median(0) * 1e3,
            bytes / median(1) / 1e9
        );
        Ok(sums)
    }
}

/// The CPU's checksum of a range of the pattern.
fn wanted(offset: usize, len: usize) -> Checksum {
    let mut sum = Checksum::EMPTY;
    let mut chunk = vec![0; 1 << 20];
    for at in (0..len).step_by(chunk.len()) {
        let part = chunk.len().min(len - at);
        fill_pattern(&mut chunk[..part], KEY, (offset + at) as u64);
        sum.update(&chunk[..part]);
    }
    sum
}

fn compare(what: &str, found: &[Checksum], ranges: &[(usize, usize)], step: usize) -> Result<()> {
    let mut checked = 0;
    for (sum, (offset, len)) in found.iter().zip(ranges).step_by(step) {
        let right = wanted(*offset, *len);
        if *sum != right {
            return Err(Error::new(ErrorKind::Corrupt, format!("{what}: a checksum is wrong"))
                .with("offset", offset)
                .with("len", len)
                .with("found", format!("{:08x}", sum.crc()))
                .with("right", format!("{:08x}", right.crc())));
        }
        checked += 1;
    }
    println!("{what}: {checked} checksums are the CPU's");
    Ok(())
}

fn main() -> Result<()> {
    let device = Devices::discover().get(0)?;
    println!("{} {:?}", device.info().name, device.info().capability);
    let mut bench = Bench::new(device)?;

    // First whether it is right: all small lengths and alignments, then larger ones of all sorts.
    let mut odd: Vec<_> = (0..200).flat_map(|len| (0..17).map(move |skip| (4096 + skip, len))).collect();
    odd.extend((0..2000).map(|index| (index * 65_537, index * 97 % 60_000)));
    let found = bench.run(&odd, 16 << 10)?.0;
    compare("odd ranges", &found, &odd, 1)?;

    let whole = [(0, MEMORY)];
    for length in [64 << 10, 128 << 10, 256 << 10, 512 << 10] {
        let found = bench.measure("one range of 4 GiB", &whole, length)?;
        if length == 128 << 10 {
            compare("one range of 4 GiB", &found, &whole, 1)?;
        }
    }
    let askew = [(5, MEMORY - 9)];
    let found = bench.measure("the same without its edges", &askew, 128 << 10)?;
    compare("the same without its edges", &found, &askew, 1)?;
    let many: Vec<_> = (0..5000).map(|index| (index * (64 << 10), 64 << 10)).collect();
    for length in [16 << 10, 32 << 10, 64 << 10] {
        let found = bench.measure("5000 ranges of 64 KiB", &many, length)?;
        compare("5000 ranges of 64 KiB", &found, &many, 50)?;
    }

    let mut bytes = vec![0; 1 << 28];
    fill_pattern(&mut bytes, KEY, 0);
    let start = Instant::now();
    let sum = Checksum::of(&bytes);
    let rate = bytes.len() as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("the CPU, one thread: {rate:.1} GB/s ({:08x})", sum.crc());
    // SAFETY: all work is done; all came from this device.
    unsafe {
        bench.device.unpin(bench.list.as_mut_ptr().cast());
        bench.device.unpin(bench.results.as_mut_ptr().cast());
        bench.device.free(bench.memory);
    }
    Ok(())
}
