//! A gateway with a socket, clients on its node, and requests through the socket by hand.
#![allow(dead_code, unreachable_pub, reason = "helpers of tests")]

use std::fs::File as StdFile;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use forebay_engine::File;
use forebay_error::Result;
use forebay_gateway::{AccountEntry, ServerOptions};
use forebay_objects::Bucket;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::served::raw::Raw;
use crate::served::{Gateway, KEY, SECRET};

pub struct Node {
    pub gateway: Gateway,
    pub bucket: Bucket,
    pub socket: PathBuf,
    pub sockets: tempfile::TempDir,
    pub directory: Arc<tempfile::TempDir>,
}

pub struct FileReply {
    pub status: u16,
    pub text: String,
    pub file: Option<StdFile>,
}

impl FileReply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let line =
            self.text.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(line.split_once(':')?.1.trim())
    }
}

impl Node {
    pub fn start() -> Self {
        Self::with(vec![AccountEntry::new(KEY, SECRET)])
    }

    pub fn with(entries: Vec<AccountEntry>) -> Self {
        Self::changed(entries, |_| {})
    }

    pub fn changed(entries: Vec<AccountEntry>, change: impl FnOnce(&mut ServerOptions)) -> Self {
        // Closed to other users, as a directory of files may be; that of sockets is open.
        let directory = Arc::new(tempfile::Builder::new().permissions(mode(0o700)).tempdir().unwrap());
        let sockets = tempfile::Builder::new().permissions(mode(0o755)).tempdir().unwrap();
        let gateway = start(&directory, &sockets, entries, change);
        let bucket = gateway.bucket("bucket");
        Self { socket: the_socket(&sockets), gateway, bucket, sockets, directory }
    }

    /// Ends the gateway, and starts one at the same address.
    pub fn restart(&mut self) {
        let address = self.gateway.address;
        self.gateway.end();
        let entries = vec![AccountEntry::new(KEY, SECRET)];
        self.gateway = start(&self.directory, &self.sockets, entries, |options| options.listen = address);
        self.socket = the_socket(&self.sockets);
    }

    pub fn path(&self, key: &str) -> PathBuf {
        self.directory.path().join("bucket").join(key)
    }

    pub fn open(&self, url: &str) -> Result<File> {
        self.open_with("auto", url)
    }

    pub fn open_with(&self, mode: &str, url: &str) -> Result<File> {
        open_at(&self.gateway, mode, url)
    }

    pub fn read(&self, file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.len().unwrap() as usize];
        self.gateway.client(|| file.read_host(&mut bytes, 0)).unwrap();
        bytes
    }

    /// A request by hand, on a connection of its own.
    pub fn ask(&self, method: &str, target: &str, key: &str, headers: &[(&str, &str)]) -> FileReply {
        self.send(&self.head(method, target, key, headers))
    }

    pub fn head(&self, method: &str, target: &str, key: &str, headers: &[(&str, &str)]) -> String {
        let raw = Raw::new(self.gateway.address, key, SECRET);
        raw.head(method, target, headers, 0, "UNSIGNED-PAYLOAD")
    }

    pub fn send(&self, head: &str) -> FileReply {
        exchange(&self.connect(), head)
    }

    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }
}

fn start(
    directory: &Arc<tempfile::TempDir>,
    sockets: &tempfile::TempDir,
    entries: Vec<AccountEntry>,
    change: impl FnOnce(&mut ServerOptions),
) -> Gateway {
    Gateway::over(Arc::clone(directory), entries, |options| {
        options.local = Some(sockets.path().into());
        change(options);
    })
}

fn mode(mode: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

fn the_socket(sockets: &tempfile::TempDir) -> PathBuf {
    std::fs::read_dir(sockets.path()).unwrap().next().unwrap().unwrap().path()
}

pub fn open_at(gateway: &Gateway, mode: &str, url: &str) -> Result<File> {
    forebay_objects::register();
    gateway.client(|| {
        // SAFETY: all that sets variables in these tests holds the lock of `client`.
        unsafe { std::env::set_var("FOREBAY_S3_LOCAL", mode) };
        File::open(url)
    })
}

/// A request without a body, and its reply whole.
pub fn exchange(mut socket: &UnixStream, head: &str) -> FileReply {
    socket.write_all(head.as_bytes()).unwrap();
    let (mut bytes, mut file) = (Vec::new(), None);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let status = head.split(' ').nth(1).unwrap().parse().unwrap();
            let mut reply = FileReply { status, text: text.clone(), file: None };
            let len = reply.header("content-length").map_or(0, |len| len.parse().unwrap());
            if body.len() >= len {
                reply.file = file;
                return reply;
            }
        }
        let mut piece = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(socket, &mut [IoSliceMut::new(&mut piece)], &mut control, RecvFlags::empty()).unwrap();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                for one in files {
                    assert!(file.replace(StdFile::from(one)).is_none(), "two descriptors");
                }
            }
        }
        assert!(received.bytes > 0, "the gateway closed the socket: {text}");
        bytes.extend_from_slice(&piece[..received.bytes]);
    }
}

pub fn can_be_another_user() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a gateway of this process can open files through a read-only view of their tree.
pub fn has_views() -> bool {
    let flags = libc::OPEN_TREE_CLONE | libc::O_CLOEXEC as u32;
    // SAFETY: the path is a text that lives as long as the program.
    let tree = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, c"/tmp".as_ptr(), flags) };
    if tree < 0 {
        eprintln!("skipped: views need CAP_SYS_ADMIN");
        return false;
    }
    // SAFETY: the kernel has just made it.
    drop(unsafe { OwnedFd::from_raw_fd(tree as i32) });
    true
}

/// Whether a gateway of this process hands out files for reading: it needs a read-only mount, of its own or of a user namespace.
pub fn lends_files() -> bool {
    static LENDS: OnceLock<bool> = OnceLock::new();
    let lends = *LENDS.get_or_init(|| {
        let node = Node::start();
        node.bucket.put("k", b"bytes").unwrap();
        let reply = node.ask("GET", "/bucket/k", KEY, &[("x-forebay-file", "read")]);
        assert!(reply.status == 200 || reply.text.contains("lacks CAP_SYS_ADMIN"), "{}", reply.text);
        reply.status == 200
    });
    if !lends {
        eprintln!("skipped: files need CAP_SYS_ADMIN or user namespaces");
    }
    lends
}

/// Does something as another user, whose rights a thread can have alone.
pub fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: numbers and an empty list; the calls change this thread alone.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, uid, uid, uid), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
            }
            act()
        });
        thread.join().unwrap()
    })
}

/// Starts something without the right to mount: what it starts lacks it, too.
pub fn without_mounts<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_ADMIN);
            sets.permitted.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, sets).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// Starts something that may make no namespace of these kinds, by a filter as systemd's RestrictNamespaces sets: EPERM of `clone` and
/// `unshare`, ENOSYS of `clone3`, whose flags no filter sees.
pub fn without_namespaces<T: Send>(kinds: libc::c_int, act: impl FnOnce() -> T + Send) -> T {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, (yes, no), k| libc::sock_filter { code, jt: yes, jf: no, k };
    let mut lines = [
        line(LOAD, (0, 0), 0),
        line(EQUAL, (0, 1), libc::SYS_clone3 as u32),
        line(ANSWER, (0, 0), libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        line(EQUAL, (1, 0), libc::SYS_clone as u32),
        line(EQUAL, (0, 3), libc::SYS_unshare as u32),
        // The low half of the first argument.
        line(LOAD, (0, 0), 16),
        line(ANY_BIT, (0, 1), kinds as u32),
        line(ANSWER, (0, 0), libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        line(ANSWER, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let filter = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
            // SAFETY: the filter and its lines live through the calls, which change this thread and what it starts.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                let mode = libc::SECCOMP_MODE_FILTER;
                assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
            }
            act()
        });
        thread.join().unwrap()
    })
}

/// The same file by a descriptor that neither reads nor writes, and opens it again later.
pub fn path_only(file: &StdFile) -> StdFile {
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::openat(rustix::fs::CWD, path, flags, rustix::fs::Mode::empty()).unwrap().into()
}

/// The same open file again, by its name in /proc.
pub fn reopened_for_writing(file: &StdFile) -> io::Result<StdFile> {
    StdFile::options().write(true).open(format!("/proc/thread-self/fd/{}", file.as_raw_fd()))
}

pub fn duplicate(file: &File) -> StdFile {
    file.duplicate_buffered().unwrap().into()
}
