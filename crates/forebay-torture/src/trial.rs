//! One attack in a process of its own: its seed, its time, its folders, and what it has to say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::random::Random;
use crate::runner::lock;

/// Failures after which an attack ends: more of them tell nothing new.
const ENOUGH: usize = 3;
/// What a trial ends with that could not run.
pub const SKIPPED: u8 = 77;

/// Why an attack cannot run here.
pub struct Skip(pub String);

pub type Outcome = Result<(), Skip>;

pub struct Attack {
    pub name: &'static str,
    pub what: &'static str,
    pub run: fn(&'static Trial) -> Outcome,
    /// It goes on until its time is over; otherwise it is one scene, for a process of its own.
    pub goes_on: bool,
}

pub struct Trial {
    pub seed: u64,
    until: Instant,
    /// A call that takes longer hangs.
    patience: Duration,
    disk: PathBuf,
    memory: Option<PathBuf>,
    figures: Mutex<BTreeMap<&'static str, u64>>,
    failures: Mutex<usize>,
    calls: Mutex<BTreeMap<u64, (Instant, String)>>,
}

impl Trial {
    pub fn random(&self, salt: &str) -> Random {
        Random::new(self.seed, salt)
    }

    /// The time is over, or enough has gone wrong.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.until || *lock(&self.failures) >= ENOUGH
    }

    /// Counts something for the figures at the end.
    pub fn add(&self, name: &'static str, count: u64) {
        *lock(&self.figures).entry(name).or_default() += count;
    }

    /// Something that must not be.
    pub fn fail(&self, text: impl AsRef<str>) {
        let mut failures = lock(&self.failures);
        *failures += 1;
        if *failures <= ENOUGH {
            println!("fail: {}", text.as_ref().replace('\n', " | "));
        }
    }

    /// Fails unless it is so; answers whether it is.
    pub fn check(&self, is_so: bool, text: impl FnOnce() -> String) -> bool {
        if !is_so {
            self.fail(text());
        }
        is_so
    }

    /// A folder for this trial's files: on the disk.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// On tmpfs, if the machine has it.
    pub fn memory(&self) -> Option<&Path> {
        self.memory.as_deref()
    }

    /// One of the two.
    pub fn place(&self, random: &mut Random) -> &Path {
        self.memory.as_deref().filter(|_| random.once_in(2)).unwrap_or(&self.disk)
    }

    /// A call that must come back: a watcher looks after it.
    pub fn call<T>(&self, what: impl FnOnce() -> String, body: impl FnOnce() -> T) -> T {
        let number = {
            let mut calls = lock(&self.calls);
            let number = calls.last_key_value().map_or(0, |(last, _)| last + 1);
            calls.insert(number, (Instant::now(), what()));
            number
        };
        let answer = body();
        lock(&self.calls).remove(&number);
        answer
    }

    /// Ends the process if a call does not come back.
    fn watch(&self) -> ! {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let calls = lock(&self.calls);
            if let Some((_, what)) = calls.values().find(|(begun, _)| begun.elapsed() > self.patience) {
                println!(
                    "fail: hangs: {what}, no end after {} s{}",
                    self.patience.as_secs(),
                    threads("self")
                );
                // SAFETY: nothing is left to be done; destructors would wait for the call.
                unsafe { libc::_exit(1) };
            }
        }
    }
}

/// What the threads of a process are doing, in a line.
pub fn threads(process: &str) -> String {
    let mut text = String::new();
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    for entry in std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let (name, call) = (read(entry.path().join("comm")), read(entry.path().join("syscall")));
        let stack = read(entry.path().join("stack"));
        let at = stack.lines().next().unwrap_or_default();
        let call = call.split(' ').take(2).collect::<Vec<_>>().join(" ");
        text.extend(["; ", &name, ": ", &call, " ", at]);
    }
    text
}

/// Runs an attack and prints the result for the runner.
pub fn run(attack: &Attack, seed: u64, options: &Options) -> ExitCode {
    let folder = options.disk.clone().unwrap_or_else(std::env::temp_dir);
    let memory = Path::new("/dev/shm").join(folder.file_name().unwrap_or_default());
    std::fs::create_dir_all(&folder).expect("a folder on the disk");
    let memory = std::fs::create_dir_all(&memory).is_ok().then_some(memory);
    let trial: &'static Trial = Box::leak(Box::new(Trial {
        seed,
        until: Instant::now() + Duration::from_secs(options.seconds),
        patience: Duration::from_secs(options.patience),
        disk: folder,
        memory,
        figures: Mutex::default(),
        failures: Mutex::default(),
        calls: Mutex::default(),
    }));
    std::thread::spawn(|| trial.watch());
    let outcome = (attack.run)(trial);
    for (name, count) in lock(&trial.figures).iter() {
        println!("figure: {count} {name}");
    }
    let failures = *lock(&trial.failures);
    match outcome {
        Err(Skip(reason)) if failures == 0 => {
            println!("skip: {reason}");
            ExitCode::from(SKIPPED)
        }
        _ => ExitCode::from(u8::from(failures > 0)),
    }
}
