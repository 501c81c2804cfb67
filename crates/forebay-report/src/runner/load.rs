//! Load beside a row: 80 % of every CPU, by stress-ng where it is installed, else by threads of our own that copy memory,
//! and of memory; and the state of the machine during it. It is made in processes that the kernel ends first where
//! memory runs out.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_doctor::RealSystem;
use forebay_doctor::machine::{meminfo, memory_limits};

use crate::model::{Load, NO_LOAD, Why};

/// Part of CPU and memory that the load uses.
const LOAD_FRACTION: f64 = 0.8;
/// A thread works for [`LOAD_FRACTION`] of this, then sleeps.
const LOAD_CYCLE: Duration = Duration::from_millis(10);
/// Bytes that a thread copies back and forth: more than CPU caches hold.
const COPY_BUFFER_BYTES: usize = 32 << 20;
/// Bytes that are copied between two looks at the clock.
const COPY_PIECE_BYTES: usize = 256 << 10;
/// Memory that is never filled: the row itself and the rest of the machine need it.
const SPARE_BYTES: u64 = 4 << 30;
/// How long CPU use is measured before a run.
const LOOK_TIME: Duration = Duration::from_millis(500);
/// Wait after starting stress-ng: it starts its workers meanwhile.
const STRESS_START: Duration = Duration::from_secs(2);
/// Longest wait until memory is filled.
const FILL_LIMIT: Duration = Duration::from_mins(2);
/// Printed by [`load_machine`] when its memory is filled.
const READY_LINE: &str = "ready\n";

/// Ticks of all CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ticks {
    pub(super) busy: u64,
    pub(super) all: u64,
}

impl Ticks {
    /// Of the text of /proc/stat.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // The first eight: the following ones (guests) are counted in them already.
        let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
        let all = ticks.iter().sum::<u64>();
        Some(Self { busy: all.saturating_sub(idle), all })
    }

    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Busy part since `before`, in percent.
    pub(super) fn percent_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.busy.saturating_sub(before.busy) as f64 * 100.0 / all as f64
    }
}

/// The load; it ends when this is dropped.
pub(super) struct Generator {
    by: String,
    processes: Vec<Process>,
}

/// A part of it.
struct Process(Child);

/// The sample before a run.
pub(super) struct Before {
    alone_percent: f64,
    memory_percent: f64,
    ticks: Option<Ticks>,
}

impl Generator {
    /// Starts it, and waits until its memory is filled, if it is to be. `own` is the command that ends in [`load_machine`].
    pub(super) fn start(
        own: &[OsString],
        fill_memory: bool,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Self, Why> {
        let cpus = forebay_config::allowed_cpus();
        let fill = if fill_memory { room() } else { 0 };
        let mut stress = Command::new("stress-ng");
        stress.args(["--quiet", "--cpu", &cpus.to_string(), "--cpu-load", "80"]);
        let mut one = if let Ok(stress) = Process::start(stress.stdout(Stdio::null())) {
            wait(STRESS_START, stopped);
            Self { by: "stress-ng".to_owned(), processes: vec![stress] }
        } else {
            let by =
                format!("{cpus} threads that copy memory for {:.0} % of the time", LOAD_FRACTION * 100.0);
            Self { by, processes: Vec::new() }
        };
        let threads = if one.processes.is_empty() { cpus } else { 0 };
        let fill = fill.saturating_sub((threads * 2 * COPY_BUFFER_BYTES) as u64);
        if threads > 0 || fill > 0 {
            one.processes.push(Process::ours(own, threads, fill, stopped)?);
        }
        one.check().map(|()| one)
    }

    /// The program that makes the load.
    pub(super) fn name(&self) -> &str {
        &self.by
    }

    /// Whether all of it is there.
    pub(super) fn check(&mut self) -> Result<(), Why> {
        self.processes
            .iter_mut()
            .find_map(|one| one.0.try_wait().ok().flatten())
            .map_or(Ok(()), |status| Err(why(format!("the load beside it ended: {status}"))))
    }
}

fn why(text: String) -> Why {
    Why { text, hint: Some("see dmesg: the kernel ends the load first where memory runs out".to_owned()) }
}

impl Process {
    fn start(command: &mut Command) -> std::io::Result<Self> {
        // SAFETY: between fork and exec only system calls are made; the texts are static. It does not outlive us, and is what
        // the kernel ends first.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                libc::write(file, c"1000".as_ptr().cast(), 4);
                Ok(())
            });
        }
        // Ctrl-C is for us.
        command.process_group(0).stdin(Stdio::null()).stderr(Stdio::null()).spawn().map(Self)
    }

    /// Ours; its memory is filled.
    fn ours(own: &[OsString], threads: usize, fill: u64, stopped: &dyn Fn() -> bool) -> Result<Self, Why> {
        let mut words = own.iter();
        let mut command = Command::new(words.next().cloned().unwrap_or_default());
        let numbers = [threads.to_string(), fill.to_string()];
        command.args(words).args(["report", "--load-threads", &numbers[0], "--load-memory", &numbers[1]]);
        let mut one = Self::start(command.stdout(Stdio::piped()))
            .map_err(|error| why(format!("the load beside it cannot be started: {error}")))?;
        let (said, ready) = channel();
        if let Some(mut out) = one.0.stdout.take() {
            std::thread::spawn(move || {
                let mut text = [0; READY_LINE.len()];
                let read = out.read_exact(&mut text).is_ok_and(|()| text == *READY_LINE.as_bytes());
                let _ = said.send(read);
            });
        }
        let began = Instant::now();
        while !stopped() {
            match ready.recv_timeout(Duration::from_millis(50)) {
                Ok(true) => break,
                Err(RecvTimeoutError::Timeout) if began.elapsed() < FILL_LIMIT => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(why(format!("memory was not filled in {} s", FILL_LIMIT.as_secs())));
                }
                Ok(false) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(why("the load beside it ended before its memory was filled".to_owned()));
                }
            }
        }
        Ok(one)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = -(self.0.id() as libc::pid_t);
        // SAFETY: no pointers are passed; the process is our child and has not been waited for, or its number is its group's.
        unsafe { libc::kill(group, libc::SIGTERM) };
        let began = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && began.elapsed() < STRESS_START {
            std::thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: as above.
        unsafe { libc::kill(group, libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

/// Loads the machine until the process is ended: threads that copy memory for a part of the time, and memory that is held.
pub fn load_machine(threads: usize, memory: u64) {
    load_until(threads, memory, &AtomicBool::new(false));
}

fn load_until(threads: usize, memory: u64, stop: &AtomicBool) {
    let held = fill_memory(memory);
    let mut out = std::io::stdout();
    let _ = out.write_all(READY_LINE.as_bytes()).and_then(|()| out.flush());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| copy(stop));
        }
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOAD_CYCLE);
        }
    });
    drop(std::hint::black_box(held));
}

/// Memory that is in use. Several threads fill it: the kernel, or what is below a virtual machine, gives it page by page.
fn fill_memory(memory: u64) -> Vec<Vec<u8>> {
    let parts = forebay_config::allowed_cpus().max(1);
    std::thread::scope(|scope| {
        let part = memory as usize / parts;
        let fillers: Vec<_> = (0..parts).map(|_| scope.spawn(move || vec![1_u8; part])).collect();
        fillers.into_iter().filter_map(|filler| filler.join().ok()).collect()
    })
}

/// Looks at the machine before a run.
pub(super) fn before() -> Before {
    let start = Ticks::now();
    std::thread::sleep(LOOK_TIME);
    let ticks = Ticks::now();
    let alone_percent = start.zip(ticks).map_or(0.0, |(start, now)| now.percent_since(start));
    Before { alone_percent, memory_percent: memory_percent(), ticks }
}

/// The load during a run.
pub(super) fn after(before: &Before, by: Option<&str>) -> Load {
    let during = before.ticks.zip(Ticks::now()).map_or(0.0, |(before, now)| now.percent_since(before));
    Load {
        by: by.unwrap_or(NO_LOAD).to_owned(),
        alone_percent: before.alone_percent,
        during_percent: during,
        memory_percent: before.memory_percent,
    }
}

/// Copies memory for a part of the time.
fn copy(stop: &AtomicBool) {
    let (from, mut to) = (vec![1_u8; COPY_BUFFER_BYTES], vec![0_u8; COPY_BUFFER_BYTES]);
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        while started.elapsed() < LOAD_CYCLE.mul_f64(LOAD_FRACTION) {
            to[at..at + COPY_PIECE_BYTES].copy_from_slice(&from[at..at + COPY_PIECE_BYTES]);
            std::hint::black_box(&mut to);
            at = (at + COPY_PIECE_BYTES) % COPY_BUFFER_BYTES;
        }
        std::thread::sleep(LOAD_CYCLE.saturating_sub(started.elapsed()));
    }
}

/// Bytes to fill, so that [`LOAD_FRACTION`] of memory is in use, as far as that leaves [`SPARE_BYTES`].
fn room() -> u64 {
    let total = memory("MemTotal:");
    let of_machine = fill(total, total.saturating_sub(memory("MemAvailable:")));
    memory_limits(&RealSystem).iter().map(|one| fill(one.limit, one.used)).fold(of_machine, u64::min)
}

fn fill(total: u64, used: u64) -> u64 {
    let wanted = ((total as f64 * LOAD_FRACTION) as u64).saturating_sub(used);
    wanted.min(total.saturating_sub(used).saturating_sub(SPARE_BYTES))
}

fn memory(line: &str) -> u64 {
    meminfo(&RealSystem, line).unwrap_or(0)
}

fn memory_percent() -> f64 {
    let total = memory("MemTotal:").max(1);
    100.0 - memory("MemAvailable:") as f64 * 100.0 / total as f64
}

fn wait(time: Duration, stopped: &dyn Fn() -> bool) {
    let started = Instant::now();
    while started.elapsed() < time && !stopped() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ticks() {
        let of = |text| Ticks::parse(text).unwrap_or_else(|| unreachable!());
        let before = of("cpu  100 0 50 800 50 0 0 0 40 0\ncpu0 1 2 3\n");
        assert_eq!(before, Ticks { busy: 150, all: 1000 });
        let after = of("cpu  130 0 70 830 70 0 0 0 70 0\n");
        assert!((after.percent_since(before) - 50.0).abs() < 1e-9);
        assert_eq!(Ticks::parse("intr 5"), None);
    }

    #[test]
    fn memory_is_filled_but_for_a_rest() {
        const GIB: u64 = 1 << 30;
        assert_eq!(fill(100 * GIB, 30 * GIB), 50 * GIB);
        assert_eq!(fill(100 * GIB, 90 * GIB), 0);
        assert_eq!(fill(10 * GIB, 0), 6 * GIB);
        assert_eq!(fill(2 * GIB, GIB), 0);
    }

    #[test]
    fn a_thread_works_for_a_part_of_the_time() {
        let stop = AtomicBool::new(false);
        let began = Instant::now();
        let spent = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                copy(&stop);
                // SAFETY: all-zero bytes are a valid time, which is filled in.
                unsafe {
                    let mut time: libc::timespec = std::mem::zeroed();
                    libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
                    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
                }
            });
            std::thread::sleep(Duration::from_secs(1));
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap_or_default()
        });
        let part = spent / began.elapsed().as_secs_f64();
        // Other programs may use the CPU, too.
        assert!((0.1..0.95).contains(&part), "{part}");
    }

    fn shell(script: &str) -> Result<Process, Why> {
        let own: Vec<OsString> = ["sh", "-c", script].map(OsString::from).into();
        Process::ours(&own, 0, 5, &|| false)
    }

    #[test]
    fn a_load_that_ends_is_seen() {
        let process = shell("echo ready; exec sleep 50");
        let mut one = Generator {
            by: String::new(),
            processes: vec![process.unwrap_or_else(|why| unreachable!("{}", why.text))],
        };
        let id = one.processes[0].0.id();
        let adjusted = std::fs::read_to_string(format!("/proc/{id}/oom_score_adj")).unwrap_or_default();
        assert_eq!(adjusted.trim(), "1000");
        assert_eq!(one.check(), Ok(()));
        // SAFETY: no pointers are passed; the process is our child and has not been waited for.
        unsafe { libc::kill(id as libc::pid_t, libc::SIGKILL) };
        let began = Instant::now();
        while one.check().is_ok() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(one.check().is_err_and(|why| why.text.contains("signal: 9")));
        assert!(shell("exit 1").is_err_and(|why| why.text.contains("before its memory")));
    }
}
