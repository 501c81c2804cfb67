//! The machine as another process has it: its variables, limits, cgroup, mounts and root directory.

use std::collections::BTreeMap;
use std::io;

use super::{PauseFrames, System, Uname};

/// A process's view of a machine.
pub struct ProcessView<'a> {
    machine: &'a dyn System,
    /// `/proc/PID`.
    own: String,
    /// `/proc/PID/root`, where this user may look into it.
    root: String,
    environ: BTreeMap<String, String>,
}

impl<'a> ProcessView<'a> {
    /// The view of process `pid`.
    pub fn new(machine: &'a dyn System, pid: u32) -> Self {
        let own = format!("/proc/{pid}");
        let root = format!("{own}/root");
        let root = if machine.is_dir(&format!("{root}/")) { root } else { String::new() };
        let block = machine.read(&format!("{own}/environ")).unwrap_or_default();
        let pairs = block.split(|&byte| byte == 0).filter_map(|pair| {
            let (name, value) = std::str::from_utf8(pair).ok()?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        Self { environ: pairs.collect(), machine, own, root }
    }

    /// The path on this machine of the process's `path`.
    fn here(&self, path: &str) -> String {
        let below =
            |dir: &str| path.strip_prefix(dir).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some(rest) = below("/proc/self") {
            return format!("{}{rest}", self.own);
        }
        if below("/proc").is_some() || below("/sys").is_some() {
            return path.to_owned();
        }
        format!("{}{path}", self.root)
    }
}

impl System for ProcessView<'_> {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.machine.read(&self.here(path))
    }
    fn read_plain(&self, path: &str) -> io::Result<Vec<u8>> {
        self.machine.read_plain(&self.here(path))
    }
    fn list(&self, path: &str) -> Vec<String> {
        self.machine.list(&self.here(path))
    }
    fn exists(&self, path: &str) -> bool {
        self.machine.exists(&self.here(path))
    }
    fn is_dir(&self, path: &str) -> bool {
        self.machine.is_dir(&self.here(path))
    }
    fn resolve(&self, path: &str) -> Option<String> {
        let here = self.here(path);
        if here == path {
            return self.machine.resolve(path);
        }
        // The kernel would resolve absolute links below another root from this process's root.
        self.machine.exists(&here).then(|| path.to_owned())
    }
    fn link(&self, path: &str) -> Option<String> {
        self.machine.link(&self.here(path))
    }
    fn env(&self, name: &str) -> Option<String> {
        self.environ.get(name).filter(|value| !value.is_empty()).cloned()
    }
    fn uname(&self) -> Uname {
        self.machine.uname()
    }
    /// The process's permissions cannot be tried from outside; /proc/PID/status has them.
    fn io_uring(&self) -> Result<(), i32> {
        match self.machine.number("/proc/sys/kernel/io_uring_disabled") {
            Some(2) => Err(libc::EPERM),
            _ => Ok(()),
        }
    }
    fn memlock(&self) -> Option<u64> {
        let limits = self.text("/proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        line.split_whitespace().next()?.parse().ok()
    }
    fn cpus(&self) -> usize {
        let status = self.text("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.map_or_else(|| self.machine.cpus(), |list| count(list.trim()))
    }
    fn access(&self, path: &str, write: bool) -> bool {
        self.machine.access(&self.here(path), write)
    }
    fn free_space(&self, path: &str) -> Option<u64> {
        self.machine.free_space(&self.here(path))
    }
    fn device_number(&self, path: &str) -> Option<(u32, u32)> {
        self.machine.device_number(&self.here(path))
    }
    fn cwd(&self) -> String {
        self.machine.link(&format!("{}/cwd", self.own)).unwrap_or_else(|| "/".to_owned())
    }
    fn file_len(&self, path: &str) -> Option<u64> {
        self.machine.file_len(&self.here(path))
    }
    fn kernel_log(&self) -> io::Result<(String, String)> {
        self.machine.kernel_log()
    }
    fn pause_frames(&self, interface: &str) -> Option<PauseFrames> {
        self.machine.pause_frames(interface)
    }
}

/// CPUs of a list as `0-3,8`.
fn count(list: &str) -> usize {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.saturating_sub(first.parse().ok()?) + 1)
    });
    ranges.sum::<usize>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::RootedSystem;

    #[test]
    fn a_process_has_its_own_files_and_variables() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        file("proc/7/environ", "A=1\0EMPTY=\0CUFILE_ENV_PATH_JSON=/x.json\0");
        file("proc/7/root/etc/cufile.json", "{}");
        file("proc/7/limits", "Max locked memory         65536                65536                bytes\n");
        file("proc/7/status", "Cpus_allowed_list:\t0-3,8\n");
        file("proc/cmdline", "quiet");
        let machine = RootedSystem::new(dir.path());
        let view = ProcessView::new(&machine, 7);
        assert_eq!(view.env("CUFILE_ENV_PATH_JSON").as_deref(), Some("/x.json"));
        assert_eq!((view.env("EMPTY"), view.memlock(), view.cpus()), (None, Some(65536), 5));
        assert!(view.exists("/etc/cufile.json") && view.text("/proc/cmdline").as_deref() == Some("quiet"));
        assert!(!view.exists("/etc/passwd"), "its root is not this machine's");
    }
}
