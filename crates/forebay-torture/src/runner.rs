//! Starts the attacks, watches them, and sums up.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::attacks::{ALL, named};
use crate::options::Options;
use crate::random::Random;
use crate::trial::{Attack, SKIPPED, threads};

/// The longest that one process attacks: then it is another one's turn, with another seed.
const TURN: f64 = 30.0;
/// How much longer than asked an attack may take before it is killed.
const GRACE: Duration = Duration::from_secs(90);

/// The result of one attack, over all its processes.
#[derive(Default)]
struct Sum {
    started: u64,
    failed: u64,
    skipped: Option<String>,
    figures: BTreeMap<String, u64>,
}

struct Run<'a> {
    options: &'a Options,
    seed: u64,
    disk: PathBuf,
    until: Instant,
    turn: Duration,
    chosen: Vec<&'static Attack>,
    /// Whose turn it is, by their places in `chosen`.
    waiting: Mutex<VecDeque<usize>>,
    sums: Mutex<Vec<Sum>>,
}

/// Locks, even if a thread panicked with the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs attacks until the time is over.
pub fn run(seed: u64, options: &Options) -> ExitCode {
    let mut chosen: Vec<&'static Attack> = Vec::new();
    for name in &options.only {
        let Some(attack) = named(name) else {
            eprintln!("no attack is called {name}; --list has them");
            return ExitCode::from(2);
        };
        chosen.push(attack);
    }
    if chosen.is_empty() {
        chosen.extend(ALL);
    }
    let jobs = options.jobs.clamp(1, 64);
    let share = options.seconds as f64 * jobs.min(chosen.len()) as f64 / chosen.len() as f64;
    let rounds = (share / TURN).ceil().max(1.0);
    let run = Run {
        options,
        seed,
        disk: disk(options),
        until: Instant::now() + Duration::from_secs(options.seconds),
        turn: Duration::from_secs_f64(share / rounds),
        waiting: Mutex::new((0..rounds as usize).flat_map(|_| 0..chosen.len()).collect()),
        sums: Mutex::new(chosen.iter().map(|_| Sum::default()).collect()),
        chosen,
    };
    println!(
        "seed {seed}: {} attacks, {jobs} at a time, {} s; TORTURE_SEED={seed} repeats them",
        run.chosen.len(),
        options.seconds
    );
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| run.work());
        }
    });
    run.table()
}

/// Where files on a disk go.
fn disk(options: &Options) -> PathBuf {
    let built = || std::env::current_exe().ok().and_then(|path| Some(path.parent()?.parent()?.join("tmp")));
    let place = options.disk.clone().or_else(|| std::env::var_os("TMPDIR").map(PathBuf::from));
    place.or_else(built).unwrap_or_else(std::env::temp_dir)
}

/// Variables that change what forebay and the software GPU do, by the seed.
fn weather(seed: u64) -> Vec<(&'static str, &'static str)> {
    let mut random = Random::new(seed, "weather");
    let mut all = vec![("FAKE_CUDA_DELAY_US", random.one_of(&["0", "20", "20", "500"]))];
    for (name, value, times) in [
        ("FOREBAY_IO", "threads", 4),
        ("FOREBAY_PIN_PACE", "0", 2),
        ("FOREBAY_LANES", "2", 2),
        ("FOREBAY_SLOT_SIZE", "1M", 3),
        ("FOREBAY_CACHE", "bypass", 8),
    ] {
        if random.once_in(times) {
            all.push((name, value));
        }
    }
    all
}

impl Run<'_> {
    fn work(&self) {
        loop {
            let Some(at) = lock(&self.waiting).pop_front() else { return };
            let begun = Instant::now();
            let mut sums = lock(&self.sums);
            let sum = &mut sums[at];
            if begun >= self.until && sum.started == 0 {
                sum.skipped.get_or_insert_with(|| "there was no time for it: more --seconds".to_owned());
            }
            if begun >= self.until || sum.skipped.is_some() {
                continue;
            }
            let before = sum.started;
            drop(sums);
            let end = (begun + self.turn).min(self.until);
            while Instant::now() < end && self.once(at, end) && !self.chosen[at].goes_on {}
            let sums = lock(&self.sums);
            let skipped = sums[at].skipped.as_ref().map(|reason| format!("skipped: {reason}"));
            let done = || format!("{} started, {} failed so far", sums[at].started - before, sums[at].failed);
            println!(
                "{:12} {:4} s  {}",
                self.chosen[at].name,
                begun.elapsed().as_secs(),
                skipped.unwrap_or_else(done)
            );
        }
    }

    /// Runs an attack's process; false if it is not to be started again in this turn.
    fn once(&self, at: usize, end: Instant) -> bool {
        let attack = self.chosen[at];
        let seed = {
            let mut sums = lock(&self.sums);
            sums[at].started += 1;
            self.seed.wrapping_add(sums[at].started - 1)
        };
        let seconds = end.saturating_duration_since(Instant::now()).as_secs_f64().ceil().max(1.0) as u64;
        let folder = self.disk.join(format!("torture-{}-{}-{seed}", std::process::id(), attack.name));
        std::fs::create_dir_all(&folder).expect("a folder for the attack's files");
        let told = self.child(attack, seed, seconds, &folder);
        let _ = std::fs::remove_dir_all(&folder);
        if let Some(name) = folder.file_name() {
            let _ = std::fs::remove_dir_all(Path::new("/dev/shm").join(name));
        }
        let mut sums = lock(&self.sums);
        let sum = &mut sums[at];
        for (name, count) in told.figures {
            *sum.figures.entry(name).or_default() += count;
        }
        sum.skipped = told.skipped;
        if told.failures.is_empty() {
            return sum.skipped.is_none();
        }
        sum.failed += 1;
        for failure in &told.failures {
            println!("FAILED {}: {failure}", attack.name);
        }
        let program = std::env::current_exe().unwrap_or_default();
        let variables: Vec<_> = weather(seed).iter().map(|(name, value)| format!("{name}={value}")).collect();
        println!(
            "       again: {} --only {} --seed {seed} --seconds {seconds}",
            program.display(),
            attack.name
        );
        println!("       with:  {}", variables.join(" "));
        false
    }

    fn child(&self, attack: &Attack, seed: u64, seconds: u64, folder: &Path) -> Told {
        let log = folder.join("stderr");
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["CUFILE_", "FOREBAY_", "FAKE_CUDA_"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command.envs(weather(seed)).env("RUST_BACKTRACE", "1");
        command.args([
            "--child",
            attack.name,
            "--seed",
            &seed.to_string(),
            "--seconds",
            &seconds.to_string(),
        ]);
        command.args(["--patience", &self.options.patience.to_string()]);
        command.arg("--disk").arg(folder).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&log).expect("a file for messages")).process_group(0);
        // SAFETY: a system call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().expect("this program can be started");
        let output = child.stdout.take().expect("a pipe");
        let reader =
            std::thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).collect());
        let (status, hangs) = wait(&mut child, Duration::from_secs(seconds) + GRACE);
        // What it has started ends with it.
        // SAFETY: no pointers are passed; the group is the child's own.
        unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
        let lines: Vec<String> = reader.join().unwrap_or_default();
        Told::new(&lines, status, hangs, &std::fs::read_to_string(&log).unwrap_or_default())
    }

    fn table(&self) -> ExitCode {
        let sums = lock(&self.sums);
        let mut failed = 0;
        println!("\n{:12} {:>7} {:>6}  figures", "attack", "started", "failed");
        let mut skips = String::new();
        for (attack, sum) in self.chosen.iter().zip(sums.iter()) {
            failed += sum.failed;
            let figures: Vec<_> = sum.figures.iter().map(|(name, count)| format!("{count} {name}")).collect();
            let mut text = figures.join(", ");
            if let Some(reason) = &sum.skipped {
                text = format!("skipped: {reason}");
                skips.extend(["torture ", attack.name, ": ", reason, "\n"]);
            }
            println!("{:12} {:>7} {:>6}  {text}", attack.name, sum.started, sum.failed);
        }
        if let Some(path) = &self.options.skips {
            let told = File::options().append(true).create(true).open(path);
            let told = told.and_then(|mut file| file.write_all(skips.as_bytes()));
            told.unwrap_or_else(|error| eprintln!("cannot write {}: {error}", path.display()));
        }
        println!("\nseed {}, {} s: {failed} failures", self.seed, self.options.seconds);
        ExitCode::from(u8::from(failed > 0))
    }
}

/// What a process had to say.
#[derive(Default)]
struct Told {
    figures: Vec<(String, u64)>,
    failures: Vec<String>,
    skipped: Option<String>,
}

impl Told {
    fn new(lines: &[String], status: ExitStatus, hangs: Option<String>, errors: &str) -> Self {
        let mut told = Self::default();
        for line in lines {
            match line.split_once(": ") {
                Some(("figure", text)) => {
                    let (count, name) = text.split_once(' ').unwrap_or(("0", text));
                    told.figures.push((name.to_owned(), count.parse().unwrap_or(0)));
                }
                Some(("fail", text)) => told.failures.push(text.to_owned()),
                Some(("skip", text)) => told.skipped = Some(text.to_owned()),
                _ => println!("{line}"),
            }
        }
        let is_expected = match status.code() {
            Some(0) => told.failures.is_empty(),
            Some(1) => !told.failures.is_empty(),
            code => code == Some(i32::from(SKIPPED)),
        };
        if let Some(threads) = hangs {
            told.failures.push(format!("hangs as a whole{threads}"));
        } else if !is_expected {
            let signal = status.signal().map(|signal| format!(", signal {signal}")).unwrap_or_default();
            let last: Vec<_> = errors.lines().take(12).collect();
            told.failures.push(format!("{status}{signal}: {}", last.join(" | ")));
        }
        told
    }
}

/// Waits, but not for ever; if it hangs, what its threads were doing.
fn wait(child: &mut Child, limit: Duration) -> (ExitStatus, Option<String>) {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return (status, None);
        }
        if begun.elapsed() > limit {
            let doing = threads(&child.id().to_string());
            let _ = child.kill();
            return (child.wait().expect("a child can be waited for"), Some(doing));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
