//! Load beside a row: 80 % of every CPU and of memory, by stress-ng where it is installed, else by threads of our own
//! that copy memory; and what the machine was like meanwhile.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::machine::memory;
use crate::model::Load;

/// Of CPU and memory.
const PART: f64 = 0.8;
/// A thread works for [`PART`] of this, then sleeps.
const CYCLE: Duration = Duration::from_millis(10);
/// What a thread copies back and forth: more than caches hold.
const BUFFER: usize = 32 << 20;
/// Copied between two looks at the clock.
const PIECE: usize = 256 << 10;
/// Never filled: what the row itself and everything else need.
const SPARE: u64 = 4 << 30;
/// How long the load is looked at before a run.
const LOOK: Duration = Duration::from_millis(500);
/// stress-ng needs this to start its workers.
const START: Duration = Duration::from_secs(2);

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
        // The first eight: what follows (guests) is counted in them already.
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
    ours: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    stress: Option<Child>,
}

/// What was seen before a run.
pub(super) struct Before {
    alone_percent: f64,
    memory_percent: f64,
    ticks: Option<Ticks>,
}

impl Generator {
    /// Starts it, and waits until its memory is filled, if it is to be.
    pub(super) fn start(fill_memory: bool, stopped: &dyn Fn() -> bool) -> Self {
        let cpus = forebay_config::allowed_cpus();
        let fill = if fill_memory { room() } else { 0 };
        if let Some(stress) = stress_ng(fill) {
            wait(START, stopped);
            return Self {
                by: "stress-ng".to_owned(),
                ours: Vec::new(),
                stop: Arc::default(),
                stress: Some(stress),
            };
        }
        let stop = Arc::new(AtomicBool::new(false));
        let filled = Arc::new(std::sync::Barrier::new(cpus + 1));
        let ours = (0..cpus)
            .map(|_| {
                let (stop, filled) = (stop.clone(), filled.clone());
                std::thread::spawn(move || {
                    let held = vec![1_u8; fill as usize / cpus];
                    filled.wait();
                    copy(&stop);
                    drop(held);
                })
            })
            .collect();
        filled.wait();
        let by = format!("{cpus} threads that copy memory for {:.0} % of the time", PART * 100.0);
        Self { by, ours, stop, stress: None }
    }

    /// What makes the load.
    pub(super) fn name(&self) -> &str {
        &self.by
    }
}

/// Looks at the machine before a run.
pub(super) fn before() -> Before {
    let start = Ticks::now();
    std::thread::sleep(LOOK);
    let ticks = Ticks::now();
    let alone_percent = start.zip(ticks).map_or(0.0, |(start, now)| now.percent_since(start));
    Before { alone_percent, memory_percent: memory_percent(), ticks }
}

/// What the load was in a run.
pub(super) fn after(before: &Before, by: Option<&str>) -> Load {
    let during = before.ticks.zip(Ticks::now()).map_or(0.0, |(before, now)| now.percent_since(before));
    Load {
        by: by.unwrap_or("nothing of ours").to_owned(),
        alone_percent: before.alone_percent,
        during_percent: during,
        memory_percent: before.memory_percent,
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.ours.drain(..) {
            let _ = thread.join();
        }
        if let Some(mut stress) = self.stress.take() {
            // SAFETY: no pointers are passed; the process is our child and has not been waited for. It ends its workers.
            unsafe { libc::kill(stress.id() as libc::pid_t, libc::SIGTERM) };
            let _ = stress.wait();
        }
    }
}

fn stress_ng(fill: u64) -> Option<Child> {
    let mut command = Command::new("stress-ng");
    command.args(["--quiet", "--cpu", "0", "--cpu-load", "80"]);
    if fill > 0 {
        command.args(["--vm", "1", "--vm-keep", "--vm-bytes", &fill.to_string()]);
    }
    // SAFETY: between fork and exec only this system call is made. It does not outlive us.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

/// Copies memory for a part of the time.
fn copy(stop: &AtomicBool) {
    let (from, mut to) = (vec![1_u8; BUFFER], vec![0_u8; BUFFER]);
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        while started.elapsed() < CYCLE.mul_f64(PART) {
            to[at..at + PIECE].copy_from_slice(&from[at..at + PIECE]);
            std::hint::black_box(&mut to);
            at = (at + PIECE) % BUFFER;
        }
        std::thread::sleep(CYCLE.saturating_sub(started.elapsed()));
    }
}

/// Bytes to fill, so that [`PART`] of memory is in use, as far as that leaves [`SPARE`].
fn room() -> u64 {
    let total = memory("MemTotal").unwrap_or(0);
    let of_machine = fill(total, total.saturating_sub(memory("MemAvailable").unwrap_or(0)));
    cgroup().map_or(of_machine, |(limit, used)| of_machine.min(fill(limit, used)))
}

fn fill(total: u64, used: u64) -> u64 {
    let wanted = ((total as f64 * PART) as u64).saturating_sub(used);
    wanted.min(total.saturating_sub(used).saturating_sub(SPARE))
}

/// What a container may have, and what it has that the kernel cannot take back.
fn cgroup() -> Option<(u64, u64)> {
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()?;
    let stat = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").ok()?;
    let of =
        |name: &str| -> Option<u64> { stat.lines().find_map(|line| line.strip_prefix(name))?.parse().ok() };
    Some((limit, of("anon ").unwrap_or(0) + of("shmem ").unwrap_or(0)))
}

fn memory_percent() -> f64 {
    let total = memory("MemTotal").unwrap_or(0).max(1);
    100.0 - memory("MemAvailable").unwrap_or(0) as f64 * 100.0 / total as f64
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
    fn it_loads_and_it_ends() {
        let generator = Generator::start(false, &|| false);
        let seen = before();
        // Others of this machine may add to it; a machine that is all theirs gives less.
        assert!(seen.alone_percent > 10.0, "{}", seen.alone_percent);
        let load = after(&seen, Some(generator.name()));
        assert!(load.memory_percent > 0.0 && load.memory_percent < 100.0);
        drop(generator);
    }
}
