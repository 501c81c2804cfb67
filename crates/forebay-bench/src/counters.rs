//! What the kernel counts of drives and NFS mounts during a pass: the columns of iostat and nfsiostat.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use forebay_sys::kernel_text::unescape;

use crate::report::{StorageFlow, StorageReport};

/// Bytes of a sector, whatever the drive's own are.
const SECTOR: f64 = 512.0;

/// The counters at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// /proc/diskstats.
    disks: String,
    /// /proc/self/mountstats.
    mounts: String,
}

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Major and minor number of a block device.
    Drive(u32, u32),
    /// Where NFS is mounted, as the kernel writes it.
    Mount(String),
}

impl Counters {
    /// Now.
    pub(crate) fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self { disks: read("/proc/diskstats"), mounts: read("/proc/self/mountstats") }
    }

    /// The counts since `before`, of the drives and mounts below `paths`.
    pub(crate) fn since<'a>(
        &self,
        before: &Self,
        paths: impl Iterator<Item = &'a Path>,
        seconds: f64,
    ) -> Vec<StorageReport> {
        let mut places: Vec<Place> = Vec::new();
        for place in paths.filter_map(|path| self.place(path)) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let of = |place: &Place| match place {
            Place::Drive(major, minor) => drive(&self.disks, &before.disks, (*major, *minor), seconds),
            Place::Mount(point) => mount(&self.mounts, &before.mounts, point, seconds),
        };
        places.iter().filter_map(of).collect()
    }

    fn place(&self, path: &Path) -> Option<Place> {
        let facts = fs::metadata(path).ok()?;
        let device = if facts.file_type().is_block_device() { facts.rdev() } else { facts.dev() };
        let (major, minor) = (libc::major(device), libc::minor(device));
        if major != 0 {
            return Some(Place::Drive(major, minor));
        }
        mount_of(&self.mounts, &fs::canonicalize(path).ok()?).map(|point| Place::Mount(point.to_owned()))
    }
}

/// The NFS mount that a path lies on.
fn mount_of<'a>(text: &'a str, path: &Path) -> Option<&'a str> {
    let points = nfs_mounts(text).filter(|point| path.starts_with(unescape(point)));
    points.max_by_key(|point| point.len())
}

/// Where NFS is mounted: `device SERVER:/EXPORT mounted on /mnt with fstype nfs4 statvers=1.1`.
fn nfs_mounts(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (_, rest) = line.strip_prefix("device ")?.split_once(" mounted on ")?;
        let (point, kind) = rest.split_once(" with fstype ")?;
        kind.starts_with("nfs").then_some(point)
    })
}

/// The name and the counters of a block device: reads, merged, sectors, ms; writes, the same; in flight, ms busy, ms weighted.
fn disk_line(text: &str, (major, minor): (u32, u32)) -> Option<(&str, Vec<f64>)> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let number = |word: Option<&str>| word?.parse::<u32>().ok();
        let found = (number(words.next())?, number(words.next())?);
        let name = words.next()?;
        (found == (major, minor)).then(|| (name, words.map_while(|word| word.parse().ok()).collect()))
    })
}

/// A difference on something that may be 0.
fn per(sum: f64, count: f64) -> f64 {
    if count > 0.0 { sum / count } else { 0.0 }
}

fn drive(now: &str, before: &str, number: (u32, u32), seconds: f64) -> Option<StorageReport> {
    let ((name, now), (_, before)) = (disk_line(now, number)?, disk_line(before, number)?);
    let since = |at: usize| Some((now.get(at)? - before.get(at)?).max(0.0));
    let flow = |first: usize| {
        let (ops, merged, bytes) = (since(first)?, since(first + 1)?, since(first + 2)? * SECTOR);
        Some(StorageFlow {
            ops_per_s: per(ops, seconds),
            mb_per_s: per(bytes / 1e6, seconds),
            kib_per_op: per(bytes / 1024.0, ops),
            await_ms: per(since(first + 3)?, ops),
            merged_per_s: Some(per(merged, seconds)),
            rtt_ms: None,
            queue_ms: None,
            retransmitted: None,
        })
    };
    Some(StorageReport {
        name: name.to_owned(),
        read: flow(0)?,
        write: flow(4)?,
        in_flight: Some(per(since(10)? / 1e3, seconds)),
        busy_percent: Some(per(since(9)? / 10.0, seconds).min(100.0)),
    })
}

/// The counters of an operation of a mount: calls, transmissions, timeouts, bytes out, bytes in, ms queued, ms of the round
/// trip, ms in all.
fn operation(text: &str, point: &str, name: &str) -> Option<Vec<f64>> {
    let head = format!(" mounted on {point} with fstype nfs");
    let mut lines = text.lines().skip_while(|line| !line.contains(&head)).skip(1);
    let line = lines
        .by_ref()
        .take_while(|line| !line.starts_with("device "))
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().map_while(|word| word.parse().ok()).collect())
}

fn mount(now: &str, before: &str, point: &str, seconds: f64) -> Option<StorageReport> {
    let flow = |name: &str| {
        let (now, before) = (operation(now, point, name)?, operation(before, point, name)?);
        let since = |at: usize| Some((now.get(at)? - before.get(at)?).max(0.0));
        let (ops, bytes) = (since(0)?, since(3)? + since(4)?);
        Some(StorageFlow {
            ops_per_s: per(ops, seconds),
            mb_per_s: per(bytes / 1e6, seconds),
            kib_per_op: per(bytes / 1024.0, ops),
            await_ms: per(since(7)?, ops),
            merged_per_s: None,
            rtt_ms: Some(per(since(6)?, ops)),
            queue_ms: Some(per(since(5)?, ops)),
            retransmitted: Some((since(1)? - ops).max(0.0) as u64),
        })
    };
    Some(StorageReport {
        name: unescape(point),
        read: flow("READ")?,
        write: flow("WRITE")?,
        in_flight: None,
        busy_percent: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn a_drive_as_iostat_shows_it() {
        let before =
            " 259 0 nvme0n1 100 5 800 50 10 0 80 5 0 40 55 0 0 0 0\n 259 1 nvme0n1p1 1 1 1 1 1 1 1 1 0 1 1\n";
        let now = " 259 0 nvme0n1 2100 5 512800 4050 10 0 80 5 3 1040 4055 0 0 0 0\n";
        let Some(found) = drive(now, before, (259, 0), 2.0) else { unreachable!() };
        assert_eq!(found.name, "nvme0n1");
        assert!(near(found.read.ops_per_s, 1000.0) && near(found.read.kib_per_op, 128.0), "{found:?}");
        assert!(near(found.read.mb_per_s, 131.072) && near(found.read.await_ms, 2.0), "{found:?}");
        assert!(near(found.write.ops_per_s, 0.0) && near(found.write.await_ms, 0.0), "{found:?}");
        assert_eq!(found.busy_percent, Some(50.0));
        assert_eq!(found.in_flight, Some(2.0));
        assert!(drive(now, before, (259, 1), 2.0).is_none(), "it is gone");
    }

    const HEAD: &str = "device /dev/vda mounted on / with fstype ext4\n\
        device s:/other mounted on /mnt/other with fstype nfs4 statvers=1.1\n\tper-op statistics\n\tREAD: 9 9 9 9 9 9 9 9\n\
        device s:/e mounted on /mnt with fstype nfs statvers=1.1\n\tper-op statistics\n\t        NULL: 1 1 0 44 24 0 0 0 0\n";

    #[test]
    fn a_mount_as_nfsiostat_shows_it() {
        let text = |read: &str| format!("{HEAD}\t        READ: {read}\n\t       WRITE: 0 0 0 0 0 0 0 0 0\n");
        let (before, now) = (text("10 10 0 0 0 0 0 0 0"), text("110 113 0 20000 1048576 100 400 600 0"));
        let Some(found) = mount(&now, &before, "/mnt", 0.5) else { unreachable!() };
        assert!(
            near(found.read.ops_per_s, 200.0) && near(found.read.rtt_ms.unwrap_or_default(), 4.0),
            "{found:?}"
        );
        assert!(near(found.read.await_ms, 6.0) && found.read.queue_ms == Some(1.0), "{found:?}");
        assert_eq!(found.read.retransmitted, Some(3));
        assert!(near(found.read.mb_per_s, 2.137_152), "{found:?}");
        assert_eq!(nfs_mounts(&now).collect::<Vec<_>>(), ["/mnt/other", "/mnt"]);
        assert!(mount(&now, &before, "/nowhere", 0.5).is_none());
        // The kernel writes a blank as \040.
        let text = |read: &str| text(read).replace(" on /mnt with", " on /mnt/a\\040b with");
        let (before, now) = (text("0 0 0 0 0 0 0 0 0"), text("10 10 0 0 0 0 0 0 0"));
        let point = mount_of(&now, Path::new("/mnt/a b/file"));
        let found = point.and_then(|point| mount(&now, &before, point, 1.0));
        assert_eq!(found.map(|one| one.name).as_deref(), Some("/mnt/a b"));
        assert_eq!(mount_of(&now, Path::new("/mnt/ab")), None);
    }

    #[test]
    fn a_file_of_this_machine() {
        let file = tempfile::NamedTempFile::new();
        let Ok(file) = file else { unreachable!() };
        let now = Counters::now();
        // tmpfs, overlay and others have no drive of their own.
        let found = now.since(&now, [file.path(), file.path()].into_iter(), 1.0);
        assert!(found.len() <= 1, "{found:?}");
        assert!(now.since(&now, [Path::new("/nowhere")].into_iter(), 1.0).is_empty());
    }
}
