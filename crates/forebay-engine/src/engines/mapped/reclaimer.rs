//! The thread that unregisters what is not used any more, gives memory back when it runs short, and notices a puller that
//! the driver does not let go.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_config::files::read_kernel_text;

use super::budget::cgroups;
use super::pin_cache::Shelf;

/// How often memory is looked at, while anything is pinned.
const LOOK: Duration = Duration::from_millis(250);
/// Time in which threads waited for memory, as a part of all time, that counts as pressure.
const STALLED: f64 = 0.40;

/// Works until told to stop.
pub(super) fn run(shelf: &Shelf, stop: &AtomicBool, rescue: &dyn Fn()) {
    shelf.device.adopt_thread();
    let mut gauges = Gauges::new(Path::new("/"));
    let mut last = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        shelf.reaper.work(LOOK);
        if last.elapsed() < LOOK {
            continue;
        }
        last = Instant::now();
        rescue();
        if !shelf.is_empty() {
            shelf.tidy();
            shelf.audit();
            if gauges.is_pressed() && shelf.holdings().0 > 0 {
                shelf.relieve();
            }
        }
    }
    shelf.reaper.close();
}

/// What the kernel tells of memory shortage: of the machine, and of this process's cgroups.
struct Gauges {
    pressures: Vec<PathBuf>,
    events: Vec<PathBuf>,
    stalls: HashMap<PathBuf, u64>,
    counts: HashMap<PathBuf, u64>,
    read: Instant,
}

impl Gauges {
    fn new(root: &Path) -> Self {
        let groups = cgroups(root);
        let mut gauges = Self {
            pressures: groups
                .iter()
                .map(|group| group.join("memory.pressure"))
                .chain([root.join("proc/pressure/memory")])
                .filter(|path| path.exists())
                .collect(),
            events: groups
                .iter()
                .map(|group| group.join("memory.events"))
                .filter(|path| path.exists())
                .collect(),
            stalls: HashMap::new(),
            counts: HashMap::new(),
            read: Instant::now(),
        };
        gauges.is_pressed();
        gauges
    }

    /// Whether memory ran short since the last look.
    fn is_pressed(&mut self) -> bool {
        let passed = std::mem::replace(&mut self.read, Instant::now()).elapsed().as_micros() as f64;
        let mut pressed = false;
        for path in &self.pressures {
            let Some(total) = read_kernel_text(path).ok().as_deref().and_then(stalled) else { continue };
            let before = self.stalls.insert(path.clone(), total).unwrap_or(total);
            pressed |= total.saturating_sub(before) as f64 > passed * STALLED;
        }
        for path in &self.events {
            let Some(count) = read_kernel_text(path).ok().as_deref().map(refusals) else { continue };
            let before = self.counts.insert(path.clone(), count).unwrap_or(count);
            pressed |= count > before;
        }
        pressed
    }
}

/// Microseconds in which some thread waited for memory.
fn stalled(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some"))?;
    line.split("total=").nth(1)?.trim().parse().ok()
}

/// How often memory was refused: `oom` and `oom_kill` of memory.events. (`high` and `max` also count page cache that
/// comes and goes at the limit, which is no shortage.)
fn refusals(text: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| ["oom", "oom_kill"].contains(name))
        .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn stalls_and_refusals_are_pressure() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("proc/self/cgroup", "0::/a\n");
        write("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull total=3\n");
        write("sys/fs/cgroup/a/memory.events", "low 0\nhigh 5\nmax 7\noom 0\noom_kill 0\n");
        let mut gauges = Gauges::new(root.path());
        assert!(!gauges.is_pressed());
        write("sys/fs/cgroup/a/memory.events", "low 0\nhigh 50\nmax 70\noom 0\noom_kill 0\n");
        assert!(!gauges.is_pressed(), "reclaiming page cache at the limit is no shortage");
        write("sys/fs/cgroup/a/memory.events", "low 0\nhigh 5\nmax 8\noom 1\noom_kill 0\n");
        assert!(gauges.is_pressed());
        assert!(!gauges.is_pressed());
        write("proc/pressure/memory", "some avg10=9.00 total=99000000\nfull total=3\n");
        assert!(gauges.is_pressed());
    }
}
