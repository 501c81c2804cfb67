//! Which file system and which drive a path is on.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A line of /proc/self/mountinfo.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) file_system: String,
    pub(crate) source: String,
    pub(crate) options: String,
}

impl Mount {
    /// Whether it is NFS.
    pub(crate) fn is_nfs(&self) -> bool {
        self.file_system.starts_with("nfs")
    }

    /// Whether its files are memory by nature, never cold.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self.file_system.as_str(), "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs")
    }
}

/// All mounts of this process.
pub(crate) fn all() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Mount> {
    let (head, tail) = line.split_once(" - ")?;
    let mut tail = tail.split(' ');
    Some(Mount {
        point: PathBuf::from(unescape(head.split(' ').nth(4)?)),
        file_system: tail.next()?.to_owned(),
        source: unescape(tail.next()?),
        options: tail.next().unwrap_or_default().to_owned(),
    })
}

/// Spaces are written as `\040`.
fn unescape(text: &str) -> String {
    ["\\040", "\\011", "\\134"]
        .iter()
        .zip([" ", "\t", "\\"])
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// The mount that a path is on: the last of the longest.
pub(crate) fn of<'a>(path: &Path, mounts: &'a [Mount]) -> Option<&'a Mount> {
    let path = path.ancestors().find_map(|one| fs::canonicalize(one).ok())?;
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len())
}

/// The folder in /sys of the block device that is, or is below, a path.
pub(crate) fn block_device(path: &Path) -> Option<PathBuf> {
    let found = path.ancestors().find_map(|one| fs::metadata(one).ok())?;
    let number = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let (major, minor) = (libc::major(number), libc::minor(number));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line =
            "97 30 0:52 / /mnt/a\\040b rw,relatime shared:1 - nfs4 server:/export rw,vers=4.0,proto=rdma";
        let mount = parse(line).unwrap_or_else(|| unreachable!());
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!((mount.file_system.as_str(), mount.source.as_str()), ("nfs4", "server:/export"));
        assert!(mount.is_nfs() && !mount.is_memory() && mount.options.contains("proto=rdma"));
        assert_eq!(parse("nonsense"), None);
    }
}
