//! The server, version and handle of a file that is open on a mount of the kernel's; its path on the server, where the kernel tells no
//! handle. Nothing is asked of the server here: who uses this compares what the server says of the file with what the kernel says
//! of it (see [`MountTarget::agrees`]).

use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::kernel_text::unescape;

use crate::protocol::handle::{FileAttributes, FileKind, NfsHandle, NfsVersion};
use crate::protocol::xdr::Malformed;

/// A mount, as /proc/thread-self/mountinfo has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMount {
    /// The server's name, as it was mounted by.
    pub server: String,
    /// The exported path, with what lies below it if that was mounted.
    pub path: String,
    /// Where it is mounted.
    pub place: String,
    /// The version.
    pub version: NfsVersion,
    /// The server's address.
    pub address: IpAddr,
    /// The port of the mount.
    pub port: u16,
    /// Where it takes calls over TCP.
    pub tcp_port: u16,
    /// That is a guess: in version 3 without the option `port` the kernel asked the portmapper.
    pub is_guess: bool,
    /// Where its mountd listens, for version 3.
    pub mount_port: Option<u16>,
    /// How the kernel reaches it: `tcp`, `rdma`, …
    pub transport: String,
    /// Bytes of a READ, and of a WRITE.
    pub sizes: (u32, u32),
    /// Mounted for reading only.
    pub is_read_only: bool,
}

/// A file on a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountTarget {
    /// Its mount.
    pub mount: KernelMount,
    /// What its server knows it by.
    pub named: TargetName,
    /// Its file system on the server; not known of a mount of another network namespace.
    pub file_system: Option<(u64, u64)>,
    /// What the kernel says of it.
    pub seen: KernelView,
}

/// What the kernel says of a file: inode number, bytes, and when it was last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelView {
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Seconds and nanoseconds.
    pub modified: (i64, i64),
}

impl KernelView {
    /// Whether what the server says of a file is that.
    pub fn agrees(&self, told: &FileAttributes) -> bool {
        let (seconds, nanoseconds) = self.modified;
        (told.file_id, told.size) == (self.inode, self.size)
            && told.modified == (seconds as u64, nanoseconds as u32)
    }
}

/// What a server knows a file by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetName {
    /// Its handle, as the kernel tells it.
    Handle(NfsHandle),
    /// Its path from the server's root. It may be another file's by now.
    Path(String),
}

/// Why the own client does not take a file of a mount.
fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the kernel's mount is used: {}", why.into()))
}

/// Finds the mount and the handle of an open file. Refuses, with the reason, what the own client must not or cannot reach: where that was
/// not asked for (`elsewhere`) a mount of another network namespace, too, where the same address may be another server.
pub fn of_file(fd: BorrowedFd<'_>, elsewhere: bool) -> Result<MountTarget> {
    let stat = stat(fd)?;
    let (text, device) = (mountinfo()?, device_of(&stat));
    let mut mount = find(&text, device)?;
    let volumes = fs::read_to_string("/proc/thread-self/net/nfsfs/volumes").unwrap_or_default();
    let file_system = file_system(&volumes, device)?;
    if file_system.is_none() && !elsewhere {
        let why = "it was mounted in another network namespace, where the same address may be another server";
        return Err(refused(why).hint("FOREBAY_NFS=tcp, or rdma, if it is the same server"));
    }
    let named = match handle_of(fd, stat.st_ino, stat.st_mode) {
        Ok(handle) => TargetName::Handle(handle),
        Err(untold) if file_system.is_none() => {
            return Err(refused(format!("it was mounted in another network namespace, and {untold}")));
        }
        Err(untold) => {
            let path = fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()));
            let path = path.ok().and_then(|path| path.into_os_string().into_string().ok());
            let named = path.ok_or("its path is no text").and_then(|path| {
                mount = find_for(&text, device, &path)
                    .ok_or("its path lies below no mount of its file system")?;
                mount.path_of(&path)
            });
            named.map(TargetName::Path).map_err(|why| refused(format!("{untold}, and {why}")))?
        }
    };
    if let Some(port) = port_of(&volumes, device).filter(|_| mount.is_guess) {
        (mount.port, mount.tcp_port, mount.is_guess) = (port, port, false);
    }
    if mount.is_guess && !elsewhere {
        let why = "the kernel does not tell the server's port, which in version 3 may be any";
        return Err(refused(why).hint("mount with port=2049 (as root), or FOREBAY_NFS=tcp"));
    }
    Ok(MountTarget { mount, named, file_system, seen: of_stat(&stat) })
}

/// Why the kernel tells no handle of an open file; `None` where it tells one.
pub fn untold_handle(fd: BorrowedFd<'_>) -> Result<Option<String>> {
    let stat = told(fd)?;
    Ok(handle_of(fd, stat.st_ino, stat.st_mode).err())
}

/// The mount of an open file, of which the server is asked nothing.
pub fn mount_of(fd: BorrowedFd<'_>) -> Result<KernelMount> {
    find(&mountinfo()?, device_of(&told(fd)?))
}

fn mountinfo() -> Result<String> {
    fs::read_to_string("/proc/thread-self/mountinfo")
        .map_err(|error| Error::from_io(&error, "cannot read /proc/thread-self/mountinfo"))
}

fn device_of(stat: &libc::stat) -> (u32, u32) {
    (libc::major(stat.st_dev), libc::minor(stat.st_dev))
}

/// What the kernel says of an open file, when it has asked the server anew.
pub fn seen(fd: BorrowedFd<'_>) -> Result<KernelView> {
    stat(fd).map(|stat| of_stat(&stat))
}

const fn of_stat(stat: &libc::stat) -> KernelView {
    KernelView {
        inode: stat.st_ino,
        size: stat.st_size as u64,
        modified: (stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn stat(fd: BorrowedFd<'_>) -> Result<libc::stat> {
    // SAFETY: all-zero bytes are valid, and the call writes only those.
    unsafe {
        // Has the kernel ask the server: what it remembers may be seconds old.
        let (fresh, mut told) = (libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC, std::mem::zeroed());
        libc::statx(fd.as_raw_fd(), c"".as_ptr(), fresh, libc::STATX_BASIC_STATS, &raw mut told);
    }
    told(fd)
}

/// What the kernel remembers.
fn told(fd: BorrowedFd<'_>) -> Result<libc::stat> {
    // SAFETY: all-zero bytes are valid, and the call writes only those.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd.as_raw_fd(), &mut stat) != 0 {
            return Err(Error::last_os("cannot look at the file"));
        }
        Ok(stat)
    }
}

impl MountTarget {
    /// Whether what the server says of a file is what the kernel says of this one: otherwise it is another one.
    pub fn agrees(&self, told: &FileAttributes) -> bool {
        told.kind == FileKind::Regular
            && self.file_system.is_none_or(|own| told.file_system == own)
            && self.seen.agrees(told)
    }
}

impl KernelMount {
    /// The path on the server of a file below the place where it is mounted.
    fn path_of(&self, file: &str) -> Result<String, &'static str> {
        if file.ends_with(" (deleted)") {
            return Err("it has no name any more");
        }
        let below = below(&self.place, file).ok_or("its path is not below its mount")?;
        Ok(format!("{}/{below}", self.path.trim_end_matches('/')))
    }
}

/// What of a path lies below a folder.
fn below<'a>(folder: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(folder.trim_end_matches('/'))?.strip_prefix('/')
}

/// The file system on the server that a device number stands for. `volumes` is /proc/thread-self/net/nfsfs/volumes, where the kernel lists
/// the mounts of a network namespace: of this thread's, in which it connects (see
/// [`crate::NfsOptions::network`]). `None`: it is one of another.
fn file_system(volumes: &str, device: (u32, u32)) -> Result<Option<(u64, u64)>> {
    let Some(found) = volume(volumes, device) else { return Ok(None) };
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let parts = found.get(4).and_then(|text| text.split_once(':'));
    parts
        .and_then(|(major, minor)| number(major).zip(number(minor)))
        .map(Some)
        .ok_or_else(|| refused("the kernel does not tell its file system on the server"))
}

/// The port that the kernel's connection goes to.
fn port_of(volumes: &str, device: (u32, u32)) -> Option<u16> {
    let digits = *volume(volumes, device)?.get(2)?;
    u16::from_str_radix(digits, 16).ok().filter(|port| *port > 0)
}

/// The words of a device number's line: version, address, port, device, file system.
fn volume(volumes: &str, device: (u32, u32)) -> Option<Vec<&str>> {
    let wanted = format!("{}:{}", device.0, device.1);
    let mut lines = volumes.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.find(|words| words.get(3) == Some(&wanted.as_str()))
}

/// The mount of a device number.
pub fn find(mountinfo: &str, device: (u32, u32)) -> Result<KernelMount> {
    let wanted = format!("{}:{}", device.0, device.1);
    // The last one that has the number lies on top of the others.
    let line = mountinfo.lines().rev().find(|line| line.split(' ').nth(2) == Some(&wanted));
    parse(line.ok_or_else(|| refused("it is not in /proc/thread-self/mountinfo"))?)
}

/// The same, of several places where it is mounted that below which a file lies.
fn find_for(mountinfo: &str, device: (u32, u32), file: &str) -> Option<KernelMount> {
    let wanted = format!("{}:{}", device.0, device.1);
    let lines = mountinfo.lines().filter(|line| line.split(' ').nth(2) == Some(&wanted));
    let mounts = lines.filter_map(|line| parse(line).ok());
    mounts.filter(|mount| below(&mount.place, file).is_some()).max_by_key(|mount| mount.place.len())
}

/// Reads a line of mountinfo.
pub fn parse(line: &str) -> Result<KernelMount> {
    let (front, back) = line.split_once(" - ").ok_or_else(|| refused("its line in mountinfo is not one"))?;
    let front: Vec<_> = front.split(' ').collect();
    let back: Vec<_> = back.split(' ').collect();
    let (&[_, _, _, _, place, own, ..], &[kind, source, options]) = (&front[..], &back[..]) else {
        return Err(refused("its line in mountinfo is not one"));
    };
    if !["nfs", "nfs4"].contains(&kind) {
        return Err(refused(format!("its file system is {kind}, not NFS")));
    }
    let option =
        |name: &str| options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
    match option("sec") {
        None | Some("sys" | "null") => {}
        Some(sec) => {
            return Err(refused(format!(
                "it is mounted with sec={sec}, and the own client speaks AUTH_SYS only"
            )));
        }
    }
    if let Some(tls) = option("xprtsec").filter(|tls| *tls != "none") {
        return Err(refused(format!(
            "it is mounted with xprtsec={tls}, and the own client does not encrypt"
        )));
    }
    let source = unescape(source);
    // An address of version 6 has colons of its own.
    let (server, path) = source.split_once(":/").ok_or_else(|| refused("its source is not SERVER:/PATH"))?;
    let version = match (option("vers"), kind) {
        (Some("4"), _) => {
            Some(NfsVersion::V4(option("minorversion").and_then(|minor| minor.parse().ok()).unwrap_or(0)))
        }
        (Some(version), _) => NfsVersion::parse(version),
        (None, _) => None,
    };
    let version = version.ok_or_else(|| refused("its version is not 3, 4.0, 4.1 or 4.2"))?;
    let address = option("addr").and_then(|address| address.split('%').next()?.parse().ok());
    let number = |name: &str| option(name).and_then(|number| number.parse::<u32>().ok());
    let transport = option("proto").unwrap_or("tcp").to_owned();
    let usual = if transport.starts_with("rdma") { 20049 } else { 2049 };
    let port =
        option("port").map_or(Some(usual), |port| port.parse().ok()).ok_or_else(|| refused("its port"))?;
    Ok(KernelMount {
        server: server.trim_start_matches('[').trim_end_matches(']').to_owned(),
        path: format!("/{path}"),
        place: unescape(place),
        version,
        address: address.ok_or_else(|| refused("its address is unknown"))?,
        port,
        // The port of a mount over RDMA is that of RDMA.
        tcp_port: if usual == 2049 { port } else { 2049 },
        is_guess: version == NfsVersion::V3 && usual == 2049 && option("port").is_none(),
        mount_port: number("mountport").and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
        transport,
        sizes: (number("rsize").unwrap_or(0), number("wsize").unwrap_or(0)),
        is_read_only: own.split(',').chain(options.split(',')).any(|option| option == "ro"),
    })
}

/// The most bytes that `name_to_handle_at` tells.
const MAX_KERNEL_HANDLE_BYTES: usize = 128;

#[repr(C)]
struct KernelHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_KERNEL_HANDLE_BYTES],
}

/// The handle that the kernel tells of an open file, or why it tells none.
fn handle_of(fd: BorrowedFd<'_>, inode: u64, mode: u32) -> Result<NfsHandle, String> {
    let mut found =
        KernelHandle { bytes: MAX_KERNEL_HANDLE_BYTES as u32, kind: 0, handle: [0; MAX_KERNEL_HANDLE_BYTES] };
    let mut id = 0i32;
    // SAFETY: the path is empty and ends with zero; both places are as long as they say.
    let got = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            c"".as_ptr(),
            &raw mut found,
            &raw mut id,
            libc::AT_EMPTY_PATH,
        )
    };
    if got != 0 {
        return Err(untold(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)));
    }
    let bytes = (found.bytes as usize).min(MAX_KERNEL_HANDLE_BYTES);
    let read = read_handle(&found.handle[..bytes], found.kind, inode, mode);
    read.map_err(|Malformed(why)| format!("its handle is not laid out as in Linux 4.13 to 6.18: {why}"))
}

/// Why the kernel tells no handle.
fn untold(errno: i32) -> String {
    match errno {
        libc::EOPNOTSUPP => "the kernel gives no handle of it (version 4.0)".to_owned(),
        libc::EOVERFLOW => "its handle is longer than the kernel tells (114 bytes)".to_owned(),
        libc::ENOSYS => {
            "this kernel gives no handles (CONFIG_FHANDLE), or a filter forbids the call".to_owned()
        }
        libc::EPERM => "a filter forbids name_to_handle_at".to_owned(),
        errno => Error::from_errno(errno, "the kernel gives no handle of it").to_string(),
    }
}

/// The server's handle within the kernel's, after its checks: file id, type of file, size, and the handle at byte 14.
pub fn read_handle(bytes: &[u8], kind: i32, inode: u64, mode: u32) -> Result<NfsHandle, Malformed> {
    let number = |at: usize| -> Result<u32, Malformed> {
        let word = bytes
            .get(at..at + 4)
            .and_then(|word| word.try_into().ok())
            .ok_or(Malformed("it is too short"))?;
        Ok(u32::from_ne_bytes(word))
    };
    if !bytes.len().is_multiple_of(4) || kind != (bytes.len() / 4) as i32 {
        return Err(Malformed("its type is not its length"));
    }
    let file_id = u64::from(number(0)?) << 32 | u64::from(number(4)?);
    if file_id != inode {
        return Err(Malformed("it is of another file"));
    }
    if number(8)? != mode & libc::S_IFMT || mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Malformed("it is of another type of file"));
    }
    let size = bytes.get(12..14).and_then(|size| size.try_into().ok()).map(u16::from_ne_bytes);
    let size = usize::from(size.ok_or(Malformed("it is too short"))?);
    let handle = bytes.get(14..14 + size).ok_or(Malformed("its size is beyond its end"))?;
    if (14 + size).next_multiple_of(4) != bytes.len() {
        return Err(Malformed("bytes behind its end"));
    }
    NfsHandle::new(handle)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    const LINE: &str = "61 29 0:52 / /mnt/a\\040b rw,relatime shared:9 - nfs4 10.9.0.1:/tmp/x rw,vers=4.2,rsize=262144,\
                        wsize=262144,namlen=255,hard,proto=rdma,port=20049,timeo=600,retrans=2,sec=sys,clientaddr=10.9.0.1,\
                        local_lock=none,addr=10.9.0.1";

    #[test]
    fn a_mount_is_read_from_its_line() {
        let text =
            format!("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{LINE}\n23 22 0:5 / /dev rw - devtmpfs udev rw\n");
        let found = find(&text, (0, 52)).unwrap();
        let expected = KernelMount {
            server: "10.9.0.1".into(),
            path: "/tmp/x".into(),
            place: "/mnt/a b".into(),
            version: NfsVersion::V4(2),
            address: [10, 9, 0, 1].into(),
            port: 20049,
            tcp_port: 2049,
            is_guess: false,
            mount_port: None,
            transport: "rdma".into(),
            sizes: (262_144, 262_144),
            is_read_only: false,
        };
        assert_eq!(found, expected);
        let six = LINE.replace("10.9.0.1:/tmp/x", "[fd00::1]:/x").replace(",addr=10.9.0.1", ",addr=fd00::1");
        let six = parse(
            &six.replace(" rw,relatime", " ro,relatime").replace("port=20049,", "").replace("=rdma", "=tcp6"),
        )
        .unwrap();
        assert_eq!(
            (six.server.as_str(), six.address, six.port, six.tcp_port),
            ("fd00::1", "fd00::1".parse().unwrap(), 2049, 2049)
        );
        assert!(six.is_read_only);
    }

    #[test]
    fn what_must_not_be_reached_is_refused_with_its_reason() {
        for (from, to, word) in [
            ("sec=sys", "sec=krb5p", "sec=krb5p"),
            ("sec=sys", "sec=sys,xprtsec=mtls", "xprtsec=mtls"),
            ("nfs4 ", "ext4 ", "not NFS"),
            ("vers=4.2", "vers=2", "version"),
            (",addr=10.9.0.1", "", "address"),
            ("10.9.0.1:/tmp/x", "nothing", "SERVER:/PATH"),
            (" - ", " ", "not one"),
        ] {
            let error = parse(&LINE.replace(from, to)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
        assert!(find(LINE, (0, 53)).unwrap_err().to_string().contains("not in /proc/thread-self/mountinfo"));
        let file = tempfile::tempfile().unwrap();
        let error = of_file(file.as_fd(), false).unwrap_err().to_string();
        assert!(error.starts_with("the kernel's mount is used: "), "{error}");
    }

    #[test]
    fn a_mount_of_another_network_is_known_as_one() {
        let volumes = "NV SERVER   PORT DEV          FSID                              FSC\n\
                       v4 0a090001 4e45 0:52         1f:a0                             no\n\
                       v3 0a090001 801 0:53         none                              no\n";
        assert_eq!(file_system(volumes, (0, 52)).unwrap(), Some((0x1f, 0xa0)));
        for (text, device) in [(volumes, (0, 5)), ("", (0, 52)), (volumes, (52, 0))] {
            assert_eq!(file_system(text, device).unwrap(), None);
        }
        assert!(file_system(volumes, (0, 53)).unwrap_err().to_string().contains("does not tell"));
    }

    /// In version 3 the portmapper tells the kernel the port, and mountinfo has none.
    #[test]
    fn the_port_of_version_3_is_that_of_the_kernels_connection() {
        let line = LINE.replace("vers=4.2", "vers=3").replace("=rdma", "=tcp");
        let (told, untold) = (parse(&line).unwrap(), parse(&line.replace("port=20049,", "")).unwrap());
        assert_eq!((told.tcp_port, told.is_guess), (20049, false));
        assert_eq!((untold.tcp_port, untold.is_guess), (2049, true));
        let volumes = "v3 0a090001 1267 0:52 1f:a0 no\nv3 0a090001 0 0:53 1f:a0 no\n";
        let ports = [52, 53, 54].map(|minor| port_of(volumes, (0, minor)));
        assert_eq!(ports, [Some(4711), None, None]);
    }

    /// Without a handle a file has its path on the server: the mounted path, and the path below the mount point.
    #[test]
    fn a_path_on_the_server_is_made_of_the_mounts() {
        let at = |place: &str, path: &str| LINE.replace("/mnt/a\\040b", place).replace("/tmp/x", path);
        let lines = [at("/mnt", "/tmp"), at("/mnt/deep", "/tmp/x"), at("/other", "/tmp/y")].join("\n");
        for (file, path) in [
            ("/mnt/a/b", "/tmp/a/b"),
            ("/mnt/deep/b", "/tmp/x/b"),
            ("/mnt/deeper", "/tmp/deeper"),
            ("/other/c d", "/tmp/y/c d"),
        ] {
            let mount = find_for(&lines, (0, 52), file).unwrap();
            assert_eq!(mount.path_of(file).as_deref(), Ok(path));
        }
        assert!(find_for(&lines, (0, 52), "/elsewhere").is_none());
        assert!(find_for(&lines, (0, 5), "/mnt/a").is_none());
        let root = parse(&at("/mnt", "/")).unwrap();
        assert_eq!(root.path_of("/mnt/a").as_deref(), Ok("/a"));
        assert!(root.path_of("/mnt/a (deleted)").is_err());
        let three = parse(&LINE.replace("vers=4.2", "vers=3,mountport=20048")).unwrap();
        assert_eq!(three.mount_port, Some(20048));
    }

    #[test]
    fn why_the_kernel_tells_no_handle_is_said() {
        for (errno, word) in [
            (libc::EOPNOTSUPP, "version 4.0"),
            (libc::EOVERFLOW, "114 bytes"),
            (libc::ENOSYS, "CONFIG_FHANDLE"),
            (libc::EPERM, "a filter"),
            (libc::EIO, "input/output error"),
        ] {
            assert!(untold(errno).to_lowercase().contains(&word.to_lowercase()), "{}", untold(errno));
        }
    }

    fn laid_out(inode: u64, handle: &[u8]) -> Vec<u8> {
        let mut bytes = [((inode >> 32) as u32).to_ne_bytes(), (inode as u32).to_ne_bytes()].concat();
        bytes.extend(libc::S_IFREG.to_ne_bytes());
        bytes.extend((handle.len() as u16).to_ne_bytes());
        bytes.extend(handle);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_handle_is_taken_only_where_all_checks_hold() {
        const INODE: u64 = 0x1_0000_0007;
        let mode = libc::S_IFREG | 0o644;
        let bytes = laid_out(INODE, &[9; 20]);
        assert_eq!((bytes.len(), bytes.len() / 4), (36, 9));
        assert_eq!(read_handle(&bytes, 9, INODE, mode).unwrap().bytes(), [9; 20]);
        for wrong in [
            read_handle(&bytes, 0x81, INODE, mode),
            read_handle(&bytes, 9, INODE + 1, mode),
            read_handle(&bytes, 9, INODE, libc::S_IFDIR | 0o755),
            read_handle(&bytes[..32], 8, INODE, mode),
            read_handle(&laid_out(INODE, &[]), 4, INODE, mode),
            read_handle(&[bytes.clone(), vec![0; 4]].concat(), 10, INODE, mode),
        ] {
            assert!(wrong.is_err());
        }
    }

    proptest! {
        #[test]
        fn no_line_and_no_handle_breaks_the_readers(line in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..140), kind: i32) {
            let _ = parse(&line);
            let _ = parse(&LINE.replace("vers=4.2", &line));
            let _ = file_system(&format!("v4 0 0 0:52 {line}"), (0, 52));
            let file = format!("/mnt/a b/{line}");
            if let Some(Ok(path)) = find_for(LINE, (0, 52), &file).map(|mount| mount.path_of(&file)) {
                prop_assert_eq!(path, ["/tmp/x/", &line].concat());
            }
            if let Ok(handle) = read_handle(&bytes, kind, 7, libc::S_IFREG) {
                prop_assert!(handle.bytes().len() + 14 <= bytes.len());
            }
        }
    }
}
