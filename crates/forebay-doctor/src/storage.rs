//! Mounted file systems and the block devices below them.

use forebay_sys::kernel_text::unescape;
use serde::Serialize;

use crate::gpu::is_pci_address;
use crate::system::System;

/// The kind of storage below a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskKind {
    /// A local NVMe drive.
    Nvme,
    /// An NVMe drive behind the kernel's multipath head.
    NvmeMultipath,
    /// NVMe over fabrics.
    NvmeOf,
    /// A virtio disk.
    Virtio,
    /// SCSI, SATA, SAS, USB.
    Scsi,
    /// Linux software RAID.
    Md,
    /// Device mapper (LVM, encryption).
    DeviceMapper,
    /// A loop device.
    Loop,
    /// Compressed memory.
    Zram,
    /// Memory as a block device (brd).
    RamDisk,
    /// tmpfs or ramfs.
    Memory,
    /// Another machine's storage.
    Network,
    /// A file system in user space.
    Fuse,
    /// A union of other file systems (the usual container root).
    Overlay,
    /// Something else.
    Other,
}

impl DiskKind {
    /// For people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Nvme => "NVMe",
            Self::NvmeMultipath => "NVMe multipath",
            Self::NvmeOf => "NVMe over fabrics",
            Self::Virtio => "virtio disk",
            Self::Scsi => "SCSI",
            Self::Md => "software RAID",
            Self::DeviceMapper => "device mapper",
            Self::Loop => "loop device",
            Self::Zram => "zram",
            Self::RamDisk => "RAM disk",
            Self::Memory => "memory",
            Self::Network => "network",
            Self::Fuse => "FUSE",
            Self::Overlay => "overlay",
            Self::Other => "other",
        }
    }
}

/// The entry of a block device in udev's database. NVIDIA's libcufile refuses files without an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Udev {
    /// There is no /run/udev.
    NoDatabase,
    /// The database has no entry for the device.
    NoEntry,
    /// The entry lacks ID_FS_USAGE.
    Incomplete,
    /// The entry is there.
    Present,
}

/// A place to read and write: a directory or file, and the storage below it.
#[derive(Clone, Debug, Serialize)]
pub struct StoragePlace {
    /// The directory or file that is exercised.
    pub path: String,
    /// True if `path` is a file of the user, which is only read.
    pub is_file: bool,
    /// True if the user named it.
    pub asked: bool,
    /// The file of the user to read where nothing may be written.
    pub sample: Option<String>,
    /// Where its file system is mounted.
    pub mount_point: String,
    /// Type of the file system, as `ext4`.
    pub file_system: String,
    /// The source of the mount, as `/dev/vda` or `server:/export`.
    pub source: String,
    /// Device number as `259:6`.
    pub device: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// This user may create files there.
    pub writable: bool,
    /// Bytes that may still be written.
    pub free: Option<u64>,
    /// Name of the block device, as `nvme0n1`.
    pub disk: Option<String>,
    /// The kind of storage.
    pub kind: DiskKind,
    /// PCI address of the storage's controller, where one device holds all.
    pub controller: Option<String>,
    /// Block devices that an md or dm device is made of, down to the last.
    pub members: Vec<String>,
    /// The file that a loop device reads.
    pub backing: Option<String>,
    /// NUMA node of the storage's controller.
    pub numa_node: Option<i64>,
    /// Its entry in udev's database.
    pub udev: Udev,
    /// For NFS: how the mount talks to its server.
    pub nfs: Option<NfsMount>,
}

/// The options that client and server of an NFS mount agreed upon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NfsMount {
    /// Version of the protocol, as `4.2`.
    pub version: String,
    /// `tcp`, `rdma`, ….
    pub transport: String,
    /// The most bytes that one READ asks for.
    pub rsize: u64,
    /// The most bytes that one WRITE carries.
    pub wsize: u64,
    /// Connections to the server (`nconnect`).
    pub connections: u64,
}

impl NfsMount {
    /// From the mount's options, as the kernel writes them: `rw,vers=4.2,rsize=1048576,…,proto=rdma,…`.
    pub(crate) fn parse(file_system: &str, options: &str) -> Option<Self> {
        if !matches!(file_system, "nfs" | "nfs4") {
            return None;
        }
        let value = |name: &str| {
            let mut pairs = options.split(',').filter_map(|option| option.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let number = |name: &str| value(name)?.parse().ok();
        Some(Self {
            version: value("vers")?.to_owned(),
            transport: value("proto")?.to_owned(),
            rsize: number("rsize")?,
            wsize: number("wsize")?,
            connections: number("nconnect").unwrap_or(1),
        })
    }
}

/// A line of mountinfo.
#[derive(Clone, Debug)]
pub struct MountLine {
    /// Device number as `259:6`.
    pub device: String,
    /// Where it is mounted.
    pub point: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// The options of the mount itself, as `rw,nosuid`.
    pub flags: String,
    /// Type of the file system.
    pub file_system: String,
    /// The source of the mount.
    pub source: String,
    /// The file system's own options.
    pub options: String,
}

/// File systems that hold no user's data.
const PSEUDO: &[&str] = &[
    "proc",
    "sysfs",
    "devtmpfs",
    "devpts",
    "cgroup",
    "cgroup2",
    "mqueue",
    "debugfs",
    "tracefs",
    "securityfs",
    "pstore",
    "bpf",
    "configfs",
    "fusectl",
    "hugetlbfs",
    "autofs",
    "binfmt_misc",
    "rpc_pipefs",
    "nsfs",
    "efivarfs",
    "selinuxfs",
    "rootfs",
    "squashfs",
    "erofs",
    "iso9660",
    "fuse.lxcfs",
    "fuse.gvfsd-fuse",
    "fuse.portal",
    "nfsd",
    "udf",
];

/// Without arguments, at most this many places are examined.
const MAX_FOUND_PLACES: usize = 8;

pub(crate) fn mounts(system: &dyn System) -> Vec<MountLine> {
    let text = system.text("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse_mount).collect()
}

/// One line: `id parent major:minor root point options [optional…] - type source super-options`.
fn parse_mount(line: &str) -> Option<MountLine> {
    let (left, right) = line.split_once(" - ")?;
    let left: Vec<&str> = left.split(' ').collect();
    let right: Vec<&str> = right.split(' ').collect();
    let is_ro = |options: &&str| options.split(',').any(|option| option == "ro");
    Some(MountLine {
        device: (*left.get(2)?).to_owned(),
        point: unescape(left.get(4)?),
        flags: (*left.get(5)?).to_owned(),
        read_only: is_ro(left.get(5)?) || right.get(2).is_some_and(is_ro),
        file_system: (*right.first()?).to_owned(),
        source: unescape(right.get(1)?),
        options: right.get(2).map(|options| (*options).to_owned()).unwrap_or_default(),
    })
}

/// The mount that a path without links is on.
pub fn mount(system: &dyn System, path: &str) -> Option<MountLine> {
    mount_of(&mounts(system), path).cloned()
}

/// The place at a path without links, and the storage below it.
pub fn place(system: &dyn System, path: &str) -> StoragePlace {
    describe(system, &mounts(system), path, false)
}

/// The model of the drive of this name, as `nvme0n1`, if the kernel tells it.
pub fn drive_model(system: &dyn System, disk: &str) -> Option<String> {
    system.text(&format!("/sys/class/block/{disk}/device/model"))
}

fn mount_of<'a>(mounts: &'a [MountLine], path: &str) -> Option<&'a MountLine> {
    let holds = |mount: &&MountLine| {
        mount.point == "/"
            || path
                .strip_prefix(mount.point.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // Of equal points the later mount hides the earlier one, and max_by_key returns the last of equals.
    mounts.iter().filter(holds).max_by_key(|mount| mount.point.len())
}

/// The network mount that a path lies on, by its name alone.
fn point_of(mounts: &[MountLine], path: &str) -> Option<String> {
    let mount = mount_of(mounts, path).filter(|mount| mount.point != "/")?;
    (kind_of(&mount.file_system, None) == DiskKind::Network).then(|| mount.point.clone())
}

/// The places to look at: those asked for, or those found. A path that does not exist is an error in its slot.
pub fn probe(
    system: &dyn System,
    asked: &[String],
    sample: Option<&str>,
) -> Vec<Result<StoragePlace, String>> {
    let mounts = mounts(system);
    let sample = sample.and_then(|path| system.resolve(path));
    let sample_mount =
        sample.as_deref().and_then(|path| mount_of(&mounts, path)).map(|mount| mount.point.clone());
    let place = |path: &str, asked: bool| {
        let mut place = describe(system, &mounts, path, asked);
        if sample_mount.as_deref() == Some(place.mount_point.as_str()) {
            place.sample.clone_from(&sample);
        }
        place
    };
    if !asked.is_empty() {
        // A mount whose server is gone does not answer, but it exists. A copy lacks most files.
        let by_name = |path: &String| (system.is_copy() && path.starts_with('/')).then(|| path.clone());
        let named = |path: &String| {
            system.resolve(path).or_else(|| point_of(&mounts, path)).or_else(|| by_name(path))
        };
        return asked
            .iter()
            .map(|path| named(path).map(|real| place(&real, true)).ok_or_else(|| path.clone()))
            .collect();
    }
    let candidates = [Some(system.cwd()), Some("/tmp".to_owned()), sample.clone()]
        .into_iter()
        .flatten()
        .filter_map(|path| system.resolve(&path))
        .chain(mounts.iter().filter(|mount| is_storage(mount)).map(|mount| mount.point.clone()));
    // A copy has mount points by their names alone, and nobody writes to them.
    let is_copy = system.is_copy();
    let mut found: Vec<StoragePlace> = Vec::new();
    for path in candidates {
        if found.len() == MAX_FOUND_PLACES || !(is_copy || system.is_dir(&path)) {
            continue;
        }
        let new = place(&path, false);
        if PSEUDO.contains(&new.file_system.as_str()) {
            continue;
        }
        let same = |old: &&mut StoragePlace| old.device == new.device && old.file_system == new.file_system;
        match found.iter_mut().find(same) {
            // The same file system at a better mount point.
            Some(old) if !old.writable && new.writable => *old = new,
            None if is_copy || new.writable || new.sample.is_some() || path == system.cwd() => {
                found.push(new);
            }
            _ => {}
        }
    }
    found.into_iter().map(Ok).collect()
}

/// Worth showing by itself: not a pseudo file system, nor the system's own small tmpfs.
fn is_storage(mount: &MountLine) -> bool {
    let own = ["/proc", "/sys", "/run", "/dev"];
    let below = |dir: &str| {
        mount.point.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    !PSEUDO.contains(&mount.file_system.as_str())
        && (mount.point == "/dev/shm"
            || mount.point.starts_with("/run/media/")
            || !own.iter().any(|dir| below(dir)))
}

fn describe(system: &dyn System, mounts: &[MountLine], path: &str, asked: bool) -> StoragePlace {
    let mount = mount_of(mounts, path);
    let is_file = !system.is_dir(path) && mount.is_none_or(|mount| mount.point != path);
    // btrfs gives its files other device numbers than its mount has: the block device is the mount's.
    let number = mount.map(|mount| mount.device.clone());
    let number =
        number.or_else(|| system.device_number(path).map(|(major, minor)| format!("{major}:{minor}")));
    let device = number.unwrap_or_default();
    let mut file_system = mount.map(|mount| mount.file_system.clone()).unwrap_or_default();
    let source = mount.map(|mount| mount.source.clone()).unwrap_or_default();
    let raw = is_file.then(|| raw_device(system, path)).flatten();
    let (device, sysfs) = if let Some((number, sysfs)) = raw {
        "raw".clone_into(&mut file_system);
        (number, Some(sysfs))
    } else {
        let sysfs = block_path(system, &device, &source);
        (device, sysfs)
    };
    let kind = kind_of(&file_system, sysfs.as_deref());
    let read_only = mount.is_some_and(|mount| mount.read_only);
    let writable = !is_file && !read_only && system.access(path, true);
    StoragePlace {
        writable,
        free: system.free_space(path),
        disk: sysfs.as_deref().map(|path| last(path).to_owned()),
        controller: sysfs.as_deref().and_then(controller).map(|path| last(path).to_owned()),
        members: sysfs.as_deref().map(|path| members(system, path)).unwrap_or_default(),
        backing: sysfs.as_deref().and_then(|path| system.text(&format!("{path}/loop/backing_file"))),
        numa_node: sysfs
            .as_deref()
            .and_then(controller)
            .and_then(|path| system.number(&format!("{path}/numa_node")).filter(|&node| node >= 0)),
        udev: udev(system, &device),
        path: path.to_owned(),
        is_file,
        asked,
        sample: match (is_file, asked && !writable) {
            (true, _) => Some(path.to_owned()),
            (false, true) => file_to_read(system, path),
            (false, false) => None,
        },
        nfs: mount.and_then(|mount| NfsMount::parse(&mount.file_system, &mount.options)),
        mount_point: mount.map_or_else(|| "/".to_owned(), |mount| mount.point.clone()),
        file_system,
        source,
        device,
        read_only,
        kind,
    }
}

/// A file of the directory that this user may read: the largest of the first 100 names.
fn file_to_read(system: &dyn System, dir: &str) -> Option<String> {
    let paths =
        system.list(dir).into_iter().take(100).map(|name| format!("{}/{name}", dir.trim_end_matches('/')));
    let files = paths.filter_map(|path| Some((system.file_len(&path).filter(|&len| len > 0)?, path)));
    let readable = files.filter(|(_, path)| system.access(path, false));
    readable.max_by_key(|(len, _)| *len).map(|(_, path)| path)
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The sysfs directory of the whole disk below a device number, partitions left behind.
fn block_path(system: &dyn System, device: &str, source: &str) -> Option<String> {
    let by_number = system.resolve(&format!("/sys/dev/block/{device}"));
    // btrfs and overlay mounts have anonymous numbers; btrfs names its device as the source.
    let by_source = || {
        let name = last(&system.resolve(source.starts_with("/dev/").then_some(source)?)?).to_owned();
        system.resolve(&format!("/sys/class/block/{name}"))
    };
    let path = by_number.or_else(by_source)?;
    if system.exists(&format!("{path}/partition")) {
        return path.rsplit_once('/').map(|(disk, _)| disk.to_owned());
    }
    Some(path)
}

fn kind_of(file_system: &str, sysfs: Option<&str>) -> DiskKind {
    match file_system {
        "tmpfs" | "ramfs" => return DiskKind::Memory,
        "overlay" | "aufs" => return DiskKind::Overlay,
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "lustre" | "beegfs" | "gpfs" | "wekafs" | "9p"
        | "afs" | "gfs2" | "ocfs2" | "virtiofs" => return DiskKind::Network,
        _ if file_system.starts_with("fuse") => return DiskKind::Fuse,
        _ => {}
    }
    let Some(path) = sysfs else { return DiskKind::Other };
    let name = last(path);
    if name.starts_with("nvme") {
        // With multipath the head lives under a virtual subsystem, local or remote.
        return if path.contains("/nvme-subsystem/") {
            DiskKind::NvmeMultipath
        } else if path.contains("/nvme-fabrics/") {
            DiskKind::NvmeOf
        } else {
            DiskKind::Nvme
        };
    }
    let prefixes = [
        ("vd", DiskKind::Virtio),
        ("sd", DiskKind::Scsi),
        ("md", DiskKind::Md),
        ("dm-", DiskKind::DeviceMapper),
        ("loop", DiskKind::Loop),
        ("zram", DiskKind::Zram),
        ("ram", DiskKind::RamDisk),
    ];
    prefixes
        .into_iter()
        .find(|(prefix, _)| name.starts_with(prefix))
        .map_or(DiskKind::Other, |(_, kind)| kind)
}

/// The sysfs directory of the nearest PCI device above a block device.
fn controller(sysfs: &str) -> Option<&str> {
    let mut path = sysfs;
    while let Some((parent, name)) = path.rsplit_once('/') {
        if is_pci_address(name) {
            return Some(path);
        }
        path = parent;
    }
    None
}

/// The block devices that a device is made of, those that these are made of, and so on.
fn members(system: &dyn System, sysfs: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut todo = system.list(&format!("{sysfs}/slaves"));
    while let Some(name) = todo.pop() {
        if !all.contains(&name) {
            todo.extend(system.list(&format!("/sys/class/block/{name}/slaves")));
            all.push(name);
        }
    }
    all.sort();
    all
}

/// Number and sysfs directory of a block device that was named itself, as `/dev/nvme0n1`.
fn raw_device(system: &dyn System, path: &str) -> Option<(String, String)> {
    let name = last(path.strip_prefix("/dev/")?);
    let sysfs = system.resolve(&format!("/sys/class/block/{name}"))?;
    let number = system.text(&format!("{sysfs}/dev"))?;
    let disk = block_path(system, &number, path).unwrap_or(sysfs);
    Some((number, disk))
}

fn udev(system: &dyn System, device: &str) -> Udev {
    if !system.is_dir("/run/udev/data") {
        return Udev::NoDatabase;
    }
    match system.text(&format!("/run/udev/data/b{device}")) {
        None => Udev::NoEntry,
        Some(entry) if entry.lines().any(|line| line.starts_with("E:ID_FS_USAGE=")) => Udev::Present,
        Some(_) => Udev::Incomplete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_mountinfo() {
        let line = r"36 25 259:6 / /mnt/my\040data rw,noatime shared:1 master:2 - ext4 /dev/nvme0n1p2 rw,data=ordered";
        let mount = parse_mount(line).unwrap();
        assert_eq!((mount.device.as_str(), mount.point.as_str()), ("259:6", "/mnt/my data"));
        assert_eq!((mount.file_system.as_str(), mount.source.as_str()), ("ext4", "/dev/nvme0n1p2"));
        assert!(!mount.read_only);
        assert!(parse_mount("1 2 0:3 / /x ro - tmpfs none rw").unwrap().read_only);
        assert!(parse_mount("").is_none() && parse_mount("1 2 3 - ").is_none());
    }

    #[test]
    fn the_options_of_nfs_are_read() {
        let options =
            "rw,vers=3,rsize=65536,wsize=32768,namlen=255,hard,nolock,proto=tcp,nconnect=4,timeo=600,sec=sys";
        let told = NfsMount::parse("nfs", options).unwrap();
        assert_eq!((told.version.as_str(), told.transport.as_str()), ("3", "tcp"));
        assert_eq!((told.rsize, told.wsize, told.connections), (65_536, 32_768, 4));
        let one = NfsMount::parse("nfs4", "rw,vers=4.2,rsize=1,wsize=2,proto=rdma").unwrap();
        assert_eq!((one.transport.as_str(), one.connections), ("rdma", 1));
        assert_eq!(NfsMount::parse("cifs", options), None);
        assert_eq!(NfsMount::parse("nfs4", "rw"), None);
    }

    #[test]
    fn the_deepest_and_latest_mount_holds_a_path() {
        let mounts: Vec<MountLine> = [
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            "2 1 8:2 / /data rw - xfs /dev/sdb rw",
            "3 1 0:9 / /data rw - tmpfs none rw",
        ]
        .into_iter()
        .filter_map(parse_mount)
        .collect();
        assert_eq!(mount_of(&mounts, "/data/x").unwrap().file_system, "tmpfs");
        assert_eq!(mount_of(&mounts, "/database").unwrap().file_system, "ext4");
    }

    #[test]
    fn a_mount_that_does_not_answer_is_known_by_its_name() {
        let lines = ["1 0 8:1 / / rw - ext4 /dev/sda1 rw", "2 1 0:9 / /nfs rw - nfs4 s:/e rw"];
        let mounts: Vec<MountLine> = lines.into_iter().filter_map(parse_mount).collect();
        assert_eq!(point_of(&mounts, "/nfs/data/file").as_deref(), Some("/nfs"));
        assert_eq!((point_of(&mounts, "/nowhere"), point_of(&mounts, "/nfsx")), (None, None));
    }

    #[test]
    fn kinds() {
        assert_eq!(kind_of("nfs4", None), DiskKind::Network);
        assert_eq!(
            kind_of("xfs", Some("/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1")),
            DiskKind::NvmeMultipath
        );
        assert_eq!(
            kind_of("ext4", Some("/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda")),
            DiskKind::Virtio
        );
        assert_eq!(kind_of("ext4", None), DiskKind::Other);
    }
}
