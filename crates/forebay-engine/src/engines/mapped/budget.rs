//! How much page cache may be pinned: a part of the memory that is available, and of what the cgroup still allows.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_config::files::read_kernel_text;

use super::eligibility::Reason;
use crate::runtime::lock;
use crate::runtime::process::PerProcess;

/// What bounds a [`Budget`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limiter {
    /// A quarter of the machine's available memory.
    Memory,
    /// Half of what this cgroup still allows, the page cache that it could give back included.
    Cgroup(PathBuf),
    /// `FOREBAY_PIN_BUDGET`, or [`Config::pin_budget`](forebay_config::Config::pin_budget).
    Option,
}

impl fmt::Display for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("a quarter of the available memory"),
            Self::Cgroup(path) => write!(f, "half of what the cgroup {} still allows", path.display()),
            Self::Option => f.write_str("FOREBAY_PIN_BUDGET"),
        }
    }
}

/// The most bytes of page cache that this process may pin now, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes, over all devices.
    pub bytes: u64,
    /// What bounds them.
    pub limiter: Limiter,
}

impl Budget {
    /// The present budget. `option` may only lower it.
    pub(crate) fn now(option: Option<u64>) -> Self {
        Self::read(Path::new("/"), option)
    }

    /// Why nothing more is pinned.
    pub(super) fn used_up(&self) -> Reason {
        Reason::new(format!(
            "the budget of pinned page cache is used up: {} MiB of {} MiB ({})",
            pinned() >> 20,
            self.bytes >> 20,
            self.limiter
        ))
        .hint("close files that are not needed, call trim(), or free memory")
    }

    /// As [`Budget::now`], from the files below `root`.
    fn read(root: &Path, option: Option<u64>) -> Self {
        let available = field(&root.join("proc/meminfo"), "MemAvailable:").unwrap_or(0) << 10;
        let mut budget = Self { bytes: available / 4, limiter: Limiter::Memory };
        for group in cgroups(root) {
            if let Some(headroom) = headroom(&group)
                && headroom / 2 < budget.bytes
            {
                budget = Self { bytes: headroom / 2, limiter: Limiter::Cgroup(group) };
            }
        }
        match option {
            Some(bytes) if bytes < budget.bytes => Self { bytes, limiter: Limiter::Option },
            _ => budget,
        }
    }
}

/// The number behind `name` in a file of lines.
fn field(path: &Path, name: &str) -> Option<u64> {
    let text = read_kernel_text(path).ok()?;
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// A file with one number; "max" is none.
fn number(path: &Path) -> Option<u64> {
    read_kernel_text(path).ok()?.trim().parse().ok()
}

/// What a cgroup still allows, if it has a limit. Page cache that it could give back counts as free; our own pins are
/// among that, as they are counted against the budget themselves.
fn headroom(group: &Path) -> Option<u64> {
    let stat = group.join("memory.stat");
    let (limit, used, names) = if let Some(used) = number(&group.join("memory.current")) {
        let limits = [number(&group.join("memory.max")), number(&group.join("memory.high"))];
        (limits.into_iter().flatten().min()?, used, ["active_file", "inactive_file"])
    } else {
        let limit = number(&group.join("memory.limit_in_bytes"))?;
        let used = number(&group.join("memory.usage_in_bytes"))?;
        (limit, used, ["total_active_file", "total_inactive_file"])
    };
    let cache: u64 = names.iter().filter_map(|name| field(&stat, name)).sum();
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

/// This process's memory cgroups, from its own up to the root of what is visible.
pub(super) fn cgroups(root: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for mount in mounts.lines().filter_map(CgroupMount::parse) {
        let Some(path) = own.lines().find_map(|line| mount.path_of(line)) else { continue };
        // In a container the mount may show only a part of the tree.
        let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new("")).to_owned();
        let below = below.strip_prefix("/").unwrap_or(&below).to_owned();
        let top = root.join(mount.point.strip_prefix('/').unwrap_or(&mount.point));
        groups.extend(below.ancestors().map(|part| top.join(part)));
    }
    groups
}

/// A cgroup file system.
struct CgroupMount {
    is_unified: bool,
    root: String,
    point: String,
}

impl CgroupMount {
    /// Reads a line of mountinfo; `None` unless it is a cgroup file system that counts memory.
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let is_unified = kind == "cgroup2";
        let counts = is_unified || (kind == "cgroup" && options.split(',').any(|word| word == "memory"));
        let mut left = left.split(' ');
        let (root, point) = (left.nth(3)?.to_owned(), left.next()?.to_owned());
        counts.then_some(Self { is_unified, root, point })
    }

    /// The process's place in this hierarchy, from a line of /proc/self/cgroup.
    fn path_of<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let here = if self.is_unified {
            number == "0"
        } else {
            controllers.split(',').any(|controller| controller == "memory")
        };
        here.then_some(path)
    }
}

/// Bytes that are pinned, over all devices and sessions.
#[derive(Default)]
struct PinnedBytes(AtomicU64);

// SAFETY: no other kind has the name.
unsafe impl PerProcess for PinnedBytes {
    const NAME: &'static str = "pinned bytes";
}

/// What all devices of the process have pinned.
pub(crate) fn pinned() -> u64 {
    PinnedBytes::of_process().0.load(Ordering::SeqCst)
}

/// A place in the budget; given back on drop.
#[derive(Debug)]
pub(crate) struct Reservation(u64);

impl Reservation {
    /// Takes `bytes` of the budget; the budget if that would exceed it.
    pub(crate) fn take(bytes: u64, budget: &Budget) -> Result<Self, Budget> {
        PinnedBytes::of_process()
            .0
            .try_update(Ordering::SeqCst, Ordering::SeqCst, |pinned| {
                pinned.checked_add(bytes).filter(|sum| *sum <= budget.bytes)
            })
            .map(|_| Self(bytes))
            .map_err(|_| budget.clone())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        PinnedBytes::of_process().0.fetch_sub(self.0, Ordering::SeqCst);
    }
}

/// The budget, read again when it is older than the time in which a few windows are registered.
#[derive(Debug, Default)]
pub(crate) struct BudgetGauge(Mutex<Option<(Instant, Budget)>>);

impl BudgetGauge {
    const FRESH: Duration = Duration::from_millis(20);

    pub(crate) fn read(&self, option: Option<u64>) -> Budget {
        let mut last = lock(&self.0);
        match &*last {
            Some((when, budget)) if when.elapsed() < Self::FRESH => budget.clone(),
            _ => {
                let budget = Budget::now(option);
                *last = Some((Instant::now(), budget.clone()));
                budget
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of small files below a temporary root.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:    4194304 kB\n");

    #[test]
    fn a_machine_without_limits_goes_by_its_memory() {
        let root = tree(&[MEMINFO]);
        assert_eq!(Budget::read(root.path(), None), Budget { bytes: 1 << 30, limiter: Limiter::Memory });
        let low = Budget::read(root.path(), Some(5));
        assert_eq!(low, Budget { bytes: 5, limiter: Limiter::Option });
        assert_eq!(Budget::read(root.path(), Some(1 << 40)).limiter, Limiter::Memory);
    }

    #[test]
    fn the_tightest_ancestor_counts() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"),
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/memory.max", "1000000\n"),
            ("sys/fs/cgroup/outer/memory.high", "max\n"),
            ("sys/fs/cgroup/outer/memory.current", "900000\n"),
            ("sys/fs/cgroup/outer/memory.stat", "anon 1\nactive_file 100000\ninactive_file 200000\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "0\n"),
        ]);
        let budget = Budget::read(root.path(), None);
        // 1 000 000 less the 600 000 that cannot be given back.
        assert_eq!(budget.bytes, 200_000);
        assert_eq!(budget.limiter, Limiter::Cgroup(root.path().join("sys/fs/cgroup/outer")));
    }

    #[test]
    fn the_old_hierarchy_counts_too_and_a_container_sees_its_part() {
        let root = tree(&[
            MEMINFO,
            (
                "proc/self/mountinfo",
                "40 1 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("proc/self/cgroup", "5:cpu:/docker/abc\n4:memory:/docker/abc\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "total_active_file 500\ntotal_inactive_file 500\n"),
        ]);
        assert_eq!(Budget::read(root.path(), None).bytes, 1500);
    }

    #[test]
    fn reservations_never_exceed_the_budget() {
        let budget = Budget { bytes: pinned() + 100, limiter: Limiter::Option };
        let first = Reservation::take(60, &budget).unwrap();
        assert!(Reservation::take(50, &budget).is_err());
        drop(first);
        assert!(Reservation::take(50, &budget).is_ok());
    }
}
