//! The guard before a block device is overwritten.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

/// Refuses to write to a block device that is in use, or that the user has not named in `allowed`.
pub(crate) fn guard(path: &Path, allowed: &[PathBuf]) -> Result<()> {
    let number = device_number(path)?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| {
        Error::from_io(&error, "cannot tell whether the device is mounted")
            .with("path", path.display())
            .hint("/proc must be readable before forebay writes to a block device")
    })?;
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    check(path, number, allowed, &mounts, &swaps, Path::new("/sys"))
}

fn check(
    path: &Path,
    number: (u32, u32),
    allowed: &[PathBuf],
    mounts: &str,
    swaps: &str,
    sys: &Path,
) -> Result<()> {
    let related = related(number, sys);
    for (major, minor) in &related {
        let wanted = format!("{major}:{minor}");
        let mount = mounts.lines().find(|line| line.split_ascii_whitespace().nth(2) == Some(&wanted));
        if let Some(place) = mount.and_then(|line| line.split_ascii_whitespace().nth(4)) {
            return Err(Error::new(ErrorKind::Busy, "the device holds a mounted file system")
                .with("path", path.display())
                .with("mounted_at", place)
                .hint("name a file on it with -f instead; forebay does not overwrite mounted devices"));
        }
        if uses_swap(swaps, &wanted) {
            return Err(Error::new(ErrorKind::Busy, "the device holds swap space")
                .with("path", path.display())
                .hint("name another device; forebay does not overwrite swap space"));
        }
    }
    if related.len() > 1 && has_holders(number, sys) {
        return Err(Error::new(ErrorKind::Busy, "the device is part of another one (RAID, LVM, encryption)")
            .with("path", path.display())
            .hint("name the device on top, or another one"));
    }
    if !allowed.iter().any(|one| one == path) {
        return Err(Error::new(ErrorKind::InvalidInput, "writing would destroy what the block device holds")
            .with("path", path.display())
            .hint(format!("if that is what you want, add --yes-destroy {}", path.display())));
    }
    Ok(())
}

fn uses_swap(swaps: &str, wanted: &str) -> bool {
    swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next()).any(|name| {
        name.starts_with("/dev/")
            && device_number(Path::new(name)).is_ok_and(|(a, b)| format!("{a}:{b}") == wanted)
    })
}

/// Major and minor number of a block device.
fn device_number(path: &Path) -> Result<(u32, u32)> {
    let found = fs::metadata(path)
        .map_err(|error| Error::from_io(&error, "cannot open file").with("path", path.display()))?;
    let number = found.rdev();
    Ok((libc::major(number), libc::minor(number)))
}

fn read_number(path: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn entries(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).map(|all| all.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

fn has_holders(number: (u32, u32), sys: &Path) -> bool {
    let home = sys.join(format!("dev/block/{}:{}", number.0, number.1));
    !entries(&home.join("holders")).is_empty()
        || entries(&home)
            .iter()
            .any(|part| part.join("partition").exists() && !entries(&part.join("holders")).is_empty())
}

/// The device, its partitions, the disk that it is a partition of, and devices that are built on any of them.
fn related(number: (u32, u32), sys: &Path) -> BTreeSet<(u32, u32)> {
    let mut seen = BTreeSet::new();
    let mut open = vec![number];
    let home = sys.join(format!("dev/block/{}:{}", number.0, number.1));
    if home.join("partition").exists()
        && let Ok(real) = home.canonicalize()
        && let Some(disk) = real.parent().and_then(|parent| read_number(&parent.join("dev")))
    {
        // The whole disk itself may be mounted; its other partitions are no matter.
        seen.insert(disk);
    }
    while let Some(one) = open.pop() {
        if !seen.insert(one) {
            continue;
        }
        let home = sys.join(format!("dev/block/{}:{}", one.0, one.1));
        for entry in entries(&home).into_iter().chain(entries(&home.join("holders"))) {
            if let Some(next) = read_number(&entry.join("dev")) {
                open.push(next);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk 8:0 with the partitions 8:1 (mounted by way of the mapper 253:0) and 8:2.
    fn sys() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("devices/sda/dev", "8:0\n");
        put("devices/sda/sda1/dev", "8:1\n");
        put("devices/sda/sda1/partition", "1\n");
        put("devices/sda/sda2/dev", "8:2\n");
        put("devices/sda/sda2/partition", "2\n");
        put("devices/dm-0/dev", "253:0\n");
        put("devices/sda/sda1/holders/dm-0/dev", "253:0\n");
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        for (number, place) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:2", "sda/sda2"), ("253:0", "dm-0")] {
            let link = root.path().join("dev/block").join(number);
            std::os::unix::fs::symlink(root.path().join("devices").join(place), link).unwrap();
        }
        root
    }

    const MOUNTS: &str = "36 35 253:0 / /data rw - ext4 /dev/mapper/x rw\n";

    #[test]
    fn mounted_by_way_of_a_partition_and_a_mapper() {
        let root = sys();
        let path = Path::new("/dev/sda");
        for number in [(8, 0), (8, 1), (253, 0)] {
            let error = check(path, number, &[path.into()], MOUNTS, "", root.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{number:?}");
            assert!(error.to_string().contains("/data"), "{error}");
        }
    }

    #[test]
    fn a_holder_that_is_not_mounted_counts_too() {
        let root = sys();
        let path = Path::new("/dev/sda");
        let error = check(path, (8, 1), &[path.into()], "", "", root.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
    }

    #[test]
    fn a_free_device_wants_its_name_said() {
        let root = sys();
        let path = Path::new("/dev/sda2");
        let error = check(path, (8, 2), &[], MOUNTS, "", root.path()).unwrap_err();
        assert!(error.hints()[0].contains("--yes-destroy /dev/sda2"));
        check(path, (8, 2), &[path.into()], MOUNTS, "", root.path()).unwrap();
    }

    #[test]
    fn a_partition_of_a_mounted_whole_disk() {
        let root = sys();
        let path = Path::new("/dev/sda2");
        let mounts = "36 35 8:0 / /all rw - ext4 /dev/sda rw\n";
        assert!(check(path, (8, 2), &[path.into()], mounts, "", root.path()).is_err());
    }
}
