//! Many synchronous callers at once, for as long as you like: pieces of 512 bytes to 2 MiB at any alignment, read and written
//! from slots and read from registered pages, the same buffers with new bytes each time, and every byte compared.
//!
//! `cargo run --release -p forebay-engine --example resident -- --seconds 180 [--threads N] [--sessions N] [--least BYTES]
//! [--most BYTES] [DIRECTORY]`. Without a directory: `/dev/shm`. On the machine's GPU, or on the one of `FOREBAY_LIBCUDA`. `FOREBAY_OBJECTIVE`
//! and `FOREBAY_RESIDENT` count.
//!
//! Ten minutes of sizes, threads and engines mixed, the resident kernel, lanes and registered pages, beside other work:
//! `FOREBAY_PIN_PACE=0 FOREBAY_LIBCUDA=…/libfake_cuda.so nice -n 19 target/release/examples/resident --seconds 600 --threads 24
//! --sessions 2 --most 4194304` (without `FOREBAY_LIBCUDA` on a GPU). Each line tells the parts of the bytes by way.
//!
//! `--bare` measures instead what the protocol alone reaches on this GPU, without a Session: preads and mailboxes beside copies that spin
//! and that block, warm, from slots and from registered pages, `--seconds` each (try 2). `taskset -c 0 … --bare --direct DIRECTORY`: reads and writes
//! by O_DIRECT on one CPU.
//!
//! Exit code 1 if anything was wrong, 2 if nothing went by the resident kernel.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

mod bare;

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::{Direction, File, Memory, Session, Transfer, Way};
use forebay_gpu::{HostRange, Stream, Wait, fill_pattern};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Options {
    seconds: u64,
    threads: u64,
    sessions: u64,
    least: u64,
    most: u64,
    directory: PathBuf,
    bare: bool,
    direct: bool,
}

fn options() -> Result<Options> {
    let mut options = Options {
        seconds: 60,
        threads: 16,
        sessions: 1,
        least: 512,
        most: 2 << 20,
        directory: PathBuf::from("/dev/shm"),
        bare: false,
        direct: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if !word.starts_with("--") {
            options.directory = PathBuf::from(word);
            continue;
        }
        if let Some(flag) = match word.as_str() {
            "--bare" => Some(&mut options.bare),
            "--direct" => Some(&mut options.direct),
            _ => None,
        } {
            *flag = true;
            continue;
        }
        let value = words.next().and_then(|value| value.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("{word} needs a number"))?;
        match word.as_str() {
            "--seconds" => options.seconds = value,
            "--threads" => options.threads = value.max(1),
            "--sessions" => options.sessions = value.max(1),
            "--least" => options.least = value.max(1),
            "--most" => options.most = value.max(1),
            _ => return Err(format!("unknown option: {word}").into()),
        }
    }
    options.least = options.least.min(options.most);
    Ok(options)
}

#[derive(Default)]
struct Totals {
    pieces: AtomicU64,
    bytes: AtomicU64,
    /// Of these, by the resident kernel.
    resident: AtomicU64,
    mapped: AtomicU64,
    wrong: AtomicU64,
    errors: AtomicU64,
    /// The longest call, in microseconds.
    longest: AtomicU64,
}

impl Totals {
    fn tell(&self, elapsed: Duration) {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        println!(
            "{:4.0} s: {} pieces, {:.1} GB, {:.1} % of the bytes by the resident kernel, {:.1} % in place; longest call {} us; \
             {} wrong, {} errors",
            elapsed.as_secs_f64(),
            get(&self.pieces),
            get(&self.bytes) as f64 / 1e9,
            get(&self.resident) as f64 * 100.0 / get(&self.bytes).max(1) as f64,
            get(&self.mapped) as f64 * 100.0 / get(&self.bytes).max(1) as f64,
            get(&self.longest),
            get(&self.wrong),
            get(&self.errors)
        );
    }
}

/// A caller with a part of the file that changes, and memory of its own.
struct Caller<'a> {
    session: &'a Session,
    totals: &'a Totals,
    file: &'a File,
    plain: &'a std::fs::File,
    /// The file that nobody changes.
    still: &'a File,
    stream: Box<dyn Stream>,
    memory: Memory,
    start: u64,
    random: u64,
    host: Vec<u8>,
    wanted: Vec<u8>,
}

/// The pattern of the file that nobody changes.
const STILL: u64 = 77;

impl Caller<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn run(&self, file: &File, offset: u64, shift: u64, len: usize, direction: Direction) -> Result<()> {
        let memory = Memory { address: self.memory.address + shift, ..self.memory.clone() };
        let transfer = Transfer { file: file.clone(), offset, memory, len, direction, allow_short: false };
        let begun = Instant::now();
        // SAFETY: the memory is this thread's alone, and lives until this returns.
        let receipt = unsafe { self.session.run(&transfer) }?;
        let totals = self.totals;
        totals.longest.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        totals.pieces.fetch_add(1, Ordering::Relaxed);
        totals.bytes.fetch_add(receipt.bytes(), Ordering::Relaxed);
        totals.resident.fetch_add(receipt.moved.resident, Ordering::Relaxed);
        totals.mapped.fetch_add(receipt.moved[Way::Mapped], Ordering::Relaxed);
        Ok(())
    }

    /// Device memory to `host`, or back.
    fn copy(&mut self, shift: u64, len: usize, direction: Direction) -> Result<()> {
        let address = self.memory.address + shift;
        // SAFETY: both ends are this thread's, and stay until the synchronisation.
        unsafe {
            match direction {
                Direction::Read => self.stream.copy_out(HostRange::new(self.host.as_mut_ptr(), len), address),
                Direction::Write => self.stream.copy_in(address, HostRange::new(self.wanted.as_ptr(), len)),
            }
        }?;
        Ok(self.stream.synchronize(Wait::Block)?)
    }

    fn compare(&self, what: &str, offset: u64, len: usize) {
        let differs = self.host[..len].iter().zip(&self.wanted[..len]).filter(|(a, b)| a != b).count() as u64;
        if differs > 0 {
            self.totals.wrong.fetch_add(differs, Ordering::Relaxed);
            eprintln!("WRONG: {what}: {differs} of {len} bytes at {offset}");
        }
    }

    fn one(&mut self, options: &Options) -> Result<()> {
        // As many small pieces as large ones.
        let bits = 64 - options.most.leading_zeros() - (64 - options.least.leading_zeros());
        let most = (options.least << self.below(u64::from(bits) + 1)).min(options.most);
        let len = (options.least + self.below(most - options.least + 1)) as usize;
        let (skip, shift) = (self.below(4096), self.below(257));
        match self.below(3) {
            0 => {
                let offset = skip + self.below(options.most);
                fill_pattern(&mut self.wanted[..len], STILL, offset);
                self.run(&self.still.clone(), offset, shift, len, Direction::Read)?;
                self.copy(shift, len, Direction::Read)?;
                self.compare("a read of the still file", offset, len);
            }
            1 => {
                let (key, offset) = (self.random, self.start + skip);
                fill_pattern(&mut self.wanted[..len], key, offset);
                self.plain.write_all_at(&self.wanted[..len], offset)?;
                self.run(&self.file.clone(), offset, shift, len, Direction::Read)?;
                self.copy(shift, len, Direction::Read)?;
                self.compare("a read", offset, len);
            }
            _ => {
                let (key, offset) = (self.random, self.start + skip);
                fill_pattern(&mut self.wanted[..len], key, offset);
                self.copy(shift, len, Direction::Write)?;
                self.run(&self.file.clone(), offset, shift, len, Direction::Write)?;
                self.plain.read_exact_at(&mut self.host[..len], offset)?;
                self.compare("a write", offset, len);
            }
        }
        Ok(())
    }
}

fn stress(options: &Options) -> Result<Totals> {
    let config = forebay_config::Config::from_env()?;
    let sessions = (0..options.sessions)
        .map(|_| Session::with_config(config.clone()))
        .collect::<forebay_error::Result<Vec<_>>>()?;
    let device = sessions[0].devices().get(0)?;
    println!("device: {}, {} threads", device.info().name, options.threads);
    let path = |name: &str| options.directory.join(format!("forebay-resident-{name}-{}", std::process::id()));
    let (changing, still) = (path("changing"), path("still"));
    let share = 2 * options.most + 8192;
    std::fs::write(&changing, vec![0; (share * options.threads) as usize])?;
    let mut bytes = vec![0; 3 * options.most as usize + 8192];
    fill_pattern(&mut bytes, STILL, 0);
    std::fs::write(&still, bytes)?;
    let (file, still_file) = (File::options().write(true).open(&changing)?, File::open(&still)?);
    let plain = std::fs::File::options().read(true).write(true).open(&changing)?;
    let (totals, begun) = (Totals::default(), Instant::now());
    let limit = Duration::from_secs(options.seconds);
    std::thread::scope(|scope| {
        for number in 0..options.threads {
            let session = &sessions[(number % options.sessions) as usize];
            let (device, totals) = (&device, &totals);
            let (file, plain, still) = (&file, &plain, &still_file);
            scope.spawn(move || {
                let work = || -> Result<()> {
                    let room = options.most as usize + 512;
                    let buffer = session.buffer(0, room)?;
                    let mut caller = Caller {
                        session,
                        totals,
                        file,
                        plain,
                        still,
                        stream: device.stream(forebay_gpu::Context::PRIMARY)?,
                        memory: buffer.memory(),
                        start: number * share,
                        random: (number + 1) * 0x9E37_79B9,
                        host: vec![0; room],
                        wanted: vec![0; room],
                    };
                    while begun.elapsed() < limit {
                        caller.one(options)?;
                    }
                    Ok(())
                };
                if let Err(error) = work() {
                    totals.errors.fetch_add(1, Ordering::Relaxed);
                    eprintln!("ERROR: {error}");
                }
            });
        }
        while begun.elapsed() < limit {
            std::thread::sleep(Duration::from_secs(5).min(limit));
            totals.tell(begun.elapsed());
        }
    });
    std::fs::remove_file(changing)?;
    std::fs::remove_file(still)?;
    Ok(totals)
}

fn main() -> ExitCode {
    let run = |options: Options| match options {
        Options { bare: true, directory, seconds, direct, .. } => {
            bare::run(&directory, seconds, direct).map(|()| None)
        }
        _ => stress(&options).map(Some),
    };
    match options().and_then(run) {
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        Ok(Some(totals))
            if totals.wrong.load(Ordering::Relaxed) + totals.errors.load(Ordering::Relaxed) > 0 =>
        {
            ExitCode::FAILURE
        }
        Ok(Some(totals)) if totals.resident.load(Ordering::Relaxed) == 0 => {
            eprintln!("nothing went by the resident kernel");
            ExitCode::from(2)
        }
        Ok(_) => ExitCode::SUCCESS,
    }
}
