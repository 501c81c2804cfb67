//! A machine by its files alone: another root that is mounted here (`/host` in a pod), or a saved copy of /proc, /sys
//! and /etc (a sosreport).

use std::io;
use std::path::{Component, Path, PathBuf};

use super::collected::CollectedFiles;
use super::{PauseFrames, RealSystem, System, Uname, is_of_kernel, plain_bytes};

/// The machine whose files lie below a directory, or were collected there. Facts that files do not show count as in order.
#[derive(Clone, Debug)]
pub struct RootedSystem {
    files: Files,
}

/// Where the other machine's files are.
#[derive(Clone, Debug)]
enum Files {
    Below(PathBuf),
    Collected(CollectedFiles),
}

/// Links that are followed before a path counts as a circle.
const MAX_LINKS: usize = 40;

impl RootedSystem {
    /// The machine below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { files: Files::Below(root.into()) }
    }

    /// The machine whose files a script printed there.
    pub const fn collected(files: CollectedFiles) -> Self {
        Self { files: Files::Collected(files) }
    }

    /// Files of that machine that its user may not read.
    pub fn hidden(&self) -> Vec<String> {
        match &self.files {
            Files::Below(_) => Vec::new(),
            Files::Collected(files) => files.hidden(),
        }
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
            let Some(target) = self.files.link(&next) else {
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

/// All paths are without links, from the other machine's root.
impl Files {
    fn link(&self, real: &Path) -> Option<PathBuf> {
        match self {
            Self::Below(root) => std::fs::read_link(below(root, real)).ok(),
            Self::Collected(files) => files.link(real),
        }
    }

    fn read(&self, real: &Path, is_of_kernel: bool) -> io::Result<Vec<u8>> {
        match self {
            Self::Below(root) => {
                let here = below(root, real);
                // Below a root that is mounted here are the kernel's own files.
                if is_of_kernel && std::fs::metadata(&here)?.is_file() {
                    return std::fs::read(here);
                }
                plain_bytes(&here.to_string_lossy())
            }
            Self::Collected(files) => files.read(real),
        }
    }

    fn list(&self, real: &Path) -> Vec<String> {
        match self {
            Self::Below(root) => RealSystem.list(&below(root, real).to_string_lossy()),
            Self::Collected(files) => files.list(real),
        }
    }

    fn exists(&self, real: &Path) -> bool {
        match self {
            Self::Below(root) => below(root, real).exists(),
            Self::Collected(files) => files.exists(real),
        }
    }

    fn is_dir(&self, real: &Path) -> bool {
        match self {
            Self::Below(root) => below(root, real).is_dir(),
            Self::Collected(files) => files.is_dir(real),
        }
    }

    fn len(&self, real: &Path) -> Option<u64> {
        match self {
            Self::Below(root) => RealSystem.file_len(&below(root, real).to_string_lossy()),
            Self::Collected(files) => Some(files.read(real).ok()?.len() as u64),
        }
    }
}

/// Where a path of the machine below `root` lies here.
fn below(root: &Path, real: &Path) -> PathBuf {
    root.join(real.strip_prefix("/").unwrap_or(real))
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
        self.files.read(&self.real(path).ok_or(io::ErrorKind::NotFound)?, is_of_kernel(path))
    }

    fn read_plain(&self, path: &str) -> io::Result<Vec<u8>> {
        self.files.read(&self.real(path).ok_or(io::ErrorKind::NotFound)?, false)
    }

    fn list(&self, path: &str) -> Vec<String> {
        self.real(path).map(|real| self.files.list(&real)).unwrap_or_default()
    }

    fn exists(&self, path: &str) -> bool {
        self.real(path).is_some_and(|real| self.files.exists(&real))
    }

    fn is_dir(&self, path: &str) -> bool {
        self.real(path).is_some_and(|real| self.files.is_dir(&real))
    }

    fn resolve(&self, path: &str) -> Option<String> {
        let real = self.real(path).filter(|real| self.files.exists(real))?;
        Some(real.to_string_lossy().into_owned())
    }

    fn link(&self, path: &str) -> Option<String> {
        let (dir, name) = path.rsplit_once('/')?;
        let target = self.files.link(&self.real(dir)?.join(name))?;
        Some(target.to_string_lossy().into_owned())
    }

    fn is_copy(&self) -> bool {
        true
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
        self.files.len(&self.real(path)?)
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
