//! A machine by its files alone: another root that is mounted here (`/host` in a pod), or a saved copy of /proc, /sys
//! and /etc (a sosreport).

use std::io;
use std::path::{Component, Path, PathBuf};

use super::{PauseFrames, RealSystem, System, Uname, is_of_kernel, plain_bytes};

/// The machine whose files lie below a directory. Facts that files do not show count as in order.
#[derive(Clone, Debug)]
pub struct RootedSystem {
    root: PathBuf,
}

/// Links that are followed before a path counts as a circle.
const MAX_LINKS: usize = 40;

impl RootedSystem {
    /// The machine below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where a path of that machine lies here, links followed as that machine would follow them.
    fn here(&self, path: &str) -> Option<PathBuf> {
        Some(self.root.join(self.real(path)?.strip_prefix("/").ok()?))
    }

    /// The path on that machine without links; parts that do not exist stay as they are.
    fn real(&self, path: &str) -> Option<PathBuf> {
        let mut left: Vec<String> = parts(Path::new(path)).rev().collect();
        let mut real = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == ".." {
                real.pop();
                continue;
            }
            let next = real.join(&part);
            let Ok(target) = std::fs::read_link(self.root.join(next.strip_prefix("/").ok()?)) else {
                real = next;
                continue;
            };
            links += 1;
            if links > MAX_LINKS {
                return None;
            }
            if target.is_absolute() {
                real = PathBuf::from("/");
            }
            left.extend(parts(&target).rev());
        }
        Some(real)
    }

    fn line(&self, path: &str, start: &str) -> Option<String> {
        self.text(path)?.lines().find_map(|line| Some(line.strip_prefix(start)?.trim().to_owned()))
    }
}

fn parts(path: &Path) -> std::vec::IntoIter<String> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        Component::ParentDir => Some("..".to_owned()),
        _ => None,
    });
    names.collect::<Vec<_>>().into_iter()
}

impl System for RootedSystem {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let here = self.here(path).ok_or(io::ErrorKind::NotFound)?;
        // Below a root that is mounted here are the kernel's own files.
        let is_of_kernel = is_of_kernel(path) && std::fs::metadata(&here)?.is_file();
        if is_of_kernel { std::fs::read(here) } else { plain_bytes(&here.to_string_lossy()) }
    }

    fn read_plain(&self, path: &str) -> io::Result<Vec<u8>> {
        plain_bytes(&self.here(path).ok_or(io::ErrorKind::NotFound)?.to_string_lossy())
    }

    fn list(&self, path: &str) -> Vec<String> {
        self.here(path).map(|here| RealSystem.list(&here.to_string_lossy())).unwrap_or_default()
    }

    fn exists(&self, path: &str) -> bool {
        self.here(path).is_some_and(|here| here.exists())
    }

    fn is_dir(&self, path: &str) -> bool {
        self.here(path).is_some_and(|here| here.is_dir())
    }

    fn resolve(&self, path: &str) -> Option<String> {
        let real = self.real(path)?;
        self.here(path)?.exists().then(|| real.to_string_lossy().into_owned())
    }

    fn link(&self, path: &str) -> Option<String> {
        let (dir, name) = path.rsplit_once('/')?;
        let target = std::fs::read_link(self.here(dir)?.join(name)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// Processes have environment variables, a machine has none.
    fn env(&self, _: &str) -> Option<String> {
        None
    }

    fn uname(&self) -> Uname {
        let text = |name: &str| self.text(&format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        Uname { release: text("osrelease"), machine: text("arch"), host: text("hostname") }
    }

    fn io_uring(&self) -> Result<(), i32> {
        match self.number("/proc/sys/kernel/io_uring_disabled") {
            Some(1 | 2) => Err(libc::EPERM),
            _ => Ok(()),
        }
    }

    fn memlock(&self) -> Option<u64> {
        let limit = self.line("/proc/self/limits", "Max locked memory")?;
        limit.split_whitespace().next()?.parse().ok()
    }

    fn cpus(&self) -> usize {
        let text = self.text("/proc/cpuinfo").unwrap_or_default();
        text.lines().filter(|line| line.starts_with("processor")).count().max(1)
    }

    fn access(&self, path: &str, _write: bool) -> bool {
        self.exists(path)
    }

    fn free_space(&self, _: &str) -> Option<u64> {
        None
    }

    fn device_number(&self, _: &str) -> Option<(u32, u32)> {
        None
    }

    fn cwd(&self) -> String {
        "/".to_owned()
    }

    fn file_len(&self, path: &str) -> Option<u64> {
        RealSystem.file_len(&self.here(path)?.to_string_lossy())
    }

    fn kernel_log(&self) -> io::Result<(String, String)> {
        const PLACES: [&str; 4] =
            ["/sos_commands/kernel/dmesg", "/var/log/dmesg", "/var/log/kern.log", "/var/log/messages"];
        let found = PLACES.into_iter().find_map(|place| Some((self.text(place)?, place.to_owned())));
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn pause_frames(&self, interface: &str) -> Option<PauseFrames> {
        let place = format!("/sos_commands/networking/ethtool_-a_{interface}");
        let on = |start: &str| self.line(&place, start).map(|word| word.starts_with("on"));
        Some(PauseFrames { rx: on("RX:")?, tx: on("TX:")? })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("etc/real")).unwrap();
        std::fs::write(root.join("etc/real/file"), "ours\n").unwrap();
        symlink("/etc/real", root.join("etc/absolute")).unwrap();
        symlink("../../../../etc/real/file", root.join("etc/up")).unwrap();
        symlink("circle", root.join("etc/circle")).unwrap();
        let system = RootedSystem::new(root);
        assert_eq!(system.text("/etc/absolute/file").as_deref(), Some("ours"));
        assert_eq!(system.text("/etc/up").as_deref(), Some("ours"));
        assert_eq!(system.resolve("/etc/absolute/file").as_deref(), Some("/etc/real/file"));
        assert_eq!(system.link("/etc/absolute").as_deref(), Some("/etc/real"));
        assert!(!system.exists("/etc/circle") && !system.exists("/etc/passwd"));
    }
}
