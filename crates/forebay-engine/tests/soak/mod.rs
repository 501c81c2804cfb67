//! Everything at once for a while: readers of all kinds over files that others write, cut short, replace and unlink,
//! with little memory. Each byte that a reader gets is checked against what the file can have held meanwhile.
//!
//! A file's history is a sequence of *steps*. Each step is one system call that changes it, and each 4 KiB block says by
//! its bytes which step wrote it. So a reader can tell whether what it got is the file after one certain step: the
//! blocks' spans, from the step that wrote a block to the one that wrote over it, must have a step in common that was
//! there while it read.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a load for tests")]
#![allow(unreachable_pub, reason = "a module of a test binary and of an example")]

mod history;
mod readers;
mod writers;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_config::Config;
use forebay_engine::Session;

use self::history::Subject;

/// What to do, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    pub seconds: u64,
    pub directories: Vec<PathBuf>,
    /// The sizes of the files in each directory, in MiB.
    pub sizes: Vec<u64>,
    pub readers: usize,
    pub writers: usize,
    /// How long a file must have been left alone. In-place changes here are short calls, but a machine with more threads
    /// than CPUs may stop one in the middle of a call for a while.
    pub settle: Duration,
    pub budget: u64,
    /// Anonymous memory that is taken and given back all the time.
    pub pressure: usize,
    /// A line as often as this.
    pub report: Option<Duration>,
}

impl Options {
    pub fn new(seconds: u64, directories: Vec<PathBuf>) -> Self {
        Self {
            seconds,
            directories,
            sizes: vec![9, 16, 40],
            readers: 3,
            writers: 2,
            settle: Duration::from_millis(100),
            budget: 64 << 20,
            pressure: 128 << 20,
            report: None,
        }
    }
}

/// The counters.
#[derive(Debug, Default)]
pub struct Counts {
    pub mapped: AtomicU64,
    pub staged: AtomicU64,
    pub both: AtomicU64,
    pub gathers: AtomicU64,
    pub busy: AtomicU64,
    pub short: AtomicU64,
    pub refused: AtomicU64,
    pub again: AtomicU64,
    pub steps: AtomicU64,
    pub bytes: AtomicU64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        write!(
            f,
            "reads: {} in place, {} staged, {} by both, {} gathers, {} read again; {} busy, {} short, {} maps refused; \
             {} changes; {:.1} GB",
            of(&self.mapped),
            of(&self.staged),
            of(&self.both),
            of(&self.gathers),
            of(&self.again),
            of(&self.busy),
            of(&self.short),
            of(&self.refused),
            of(&self.steps),
            of(&self.bytes) as f64 / 1e9
        )
    }
}

/// What the process holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub resident: u64,
    pub descriptors: u64,
    pub threads: u64,
    pub pinned: u64,
}

/// What all threads of the load share.
pub struct Load {
    pub options: Options,
    pub session: Session,
    subjects: Vec<Subject>,
    pub counts: Counts,
    violations: Mutex<Vec<String>>,
    stop: AtomicBool,
}

pub struct Summary {
    pub counts: Counts,
    pub violations: Vec<String>,
    /// The resources held after the first second and at the end.
    pub held: Option<(Sample, Sample)>,
}

impl Load {
    /// An error. The first few are printed at once.
    pub fn violation(&self, text: String) {
        let mut all = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < 10 {
            eprintln!("VIOLATION: {text}");
        }
        all.push(text);
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn sample(&self) -> Sample {
        let device = self.session.device(0).expect("a device");
        let pins = self.session.pins(&device).expect("a report of pins");
        if pins.process_bytes > self.options.budget {
            self.violation(format!(
                "{} bytes pinned, of {} allowed",
                pins.process_bytes, self.options.budget
            ));
        }
        let count = |path: &str| std::fs::read_dir(path).map_or(0, |entries| entries.count() as u64);
        Sample {
            resident: status("VmRSS").saturating_sub(status("RssFile")).saturating_sub(status("RssShmem")),
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            pinned: pins.process_bytes,
        }
    }

    /// Takes memory and gives it back.
    fn press(&self) {
        while !self.is_over() {
            let room = vec![1u8; self.options.pressure];
            std::hint::black_box(&room);
            drop(room);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Samples the resources held, ten times a second, and keeps one sample a second.
    fn watch(&self, started: Instant) -> Vec<Sample> {
        let mut samples = Vec::new();
        let mut told = started;
        while started.elapsed() < Duration::from_secs(self.options.seconds) {
            std::thread::sleep(Duration::from_millis(100));
            let sample = self.sample();
            if started.elapsed().as_secs() as usize > samples.len() {
                samples.push(sample);
            }
            if self.options.report.is_some_and(|every| told.elapsed() >= every) {
                told = Instant::now();
                println!(
                    "{:5} s  {}  (pinned {} MiB, resident {} MiB)",
                    started.elapsed().as_secs(),
                    self.counts,
                    sample.pinned >> 20,
                    sample.resident >> 20
                );
            }
        }
        samples
    }
}

/// Bytes of `name` in /proc/self/status.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Runs the load.
pub fn run(options: Options) -> Summary {
    let lanes = 2;
    let config = Config {
        lanes,
        slots: 3,
        slot_size: 1 << 20,
        pin_settle: options.settle,
        pin_pace: 0,
        pin_budget: Some(options.budget),
        ..Config::default()
    };
    let folder = |directory: &Path| directory.join(format!("forebay-soak-{}", std::process::id()));
    let folders: Vec<_> = options.directories.iter().map(|directory| folder(directory)).collect();
    let load = Load {
        session: Session::with_config(config).expect("a session"),
        subjects: subjects(&folders, &options.sizes),
        counts: Counts::default(),
        violations: Mutex::default(),
        stop: AtomicBool::new(false),
        options,
    };
    let started = Instant::now();
    let samples = std::thread::scope(|scope| {
        for index in 0..load.options.readers {
            let load = &load;
            scope.spawn(move || guarded(load, "reader", || readers::read(load, index as u64)));
        }
        for index in 0..load.options.writers {
            let load = &load;
            scope.spawn(move || guarded(load, "writer", || writers::write(load, index as u64)));
        }
        scope.spawn(|| load.press());
        let samples = load.watch(started);
        load.stop.store(true, Ordering::Relaxed);
        samples
    });
    finish(load, &samples, &folders)
}

/// A thread that panics is a violation; the others go on.
fn guarded(load: &Load, who: &str, body: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
        load.violation(format!("a {who} panicked"));
    }
}

fn subjects(folders: &[PathBuf], sizes: &[u64]) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for folder in folders {
        std::fs::create_dir_all(folder).expect("a folder for the files");
        for (index, size) in sizes.iter().enumerate() {
            subjects.push(Subject::create(folder.join(format!("file-{index}")), size << 20));
        }
    }
    subjects
}

fn finish(load: Load, samples: &[Sample], folders: &[PathBuf]) -> Summary {
    growth(&load, samples);
    let Load { session, subjects, counts, violations, .. } = load;
    drop(subjects);
    session.trim();
    let device = session.device(0).expect("a device");
    let left = session.pins(&device).expect("a report of pins").process_bytes;
    let mut violations = violations.into_inner().unwrap_or_else(PoisonError::into_inner);
    if left > 0 {
        violations.push(format!("{left} bytes are pinned after everything was released"));
    }
    drop(session);
    for folder in folders {
        let _ = std::fs::remove_dir_all(folder);
    }
    let held = samples.first().copied().zip(samples.last().copied());
    Summary { counts, violations, held }
}

/// Compares the last third with the one before: a steady leak shows as growth.
fn growth(load: &Load, samples: &[Sample]) {
    let third = samples.len() / 3;
    if third < 3 {
        return;
    }
    let most = |part: &[Sample], of: fn(&Sample) -> u64| part.iter().map(of).max().unwrap_or(0);
    let (middle, last) = (&samples[third..2 * third], &samples[2 * third..]);
    let check = |what: &str, of: fn(&Sample) -> u64, slack: u64| {
        let (before, after) = (most(middle, of), most(last, of));
        if after > before + slack {
            load.violation(format!("{what} grow: at most {before}, later {after}"));
        }
    };
    // As much as reads of the largest files by all readers at once may differ.
    check("bytes resident", |sample| sample.resident, 256 << 20);
    check("descriptors", |sample| sample.descriptors, 12);
    check("threads", |sample| sample.threads, 6);
}
