#![allow(dead_code, unreachable_pub, reason = "a module of test binaries, each of which uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
//! Mounts of the kernel's NFS client without one: a file on the disk stands for the kernel's view, and what the kernel would tell of it
//! leads to a server in the process.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use fake_nfs::{Placing, Server};
use fake_verbs::Fake;
use forebay_engine::File;
use forebay_engine::source::{Calls, HostRange, Kernel, OpenOptions};
use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::handle::{FileAttributes, NfsVersion};
use forebay_nfs::mount::{KernelMount, KernelView, MountTarget, TargetName};
use forebay_nfs::{MountFacts, MountedFile, NfsOptions, NfsUrl, RdmaOptions};
use forebay_source::{Beside, BesideFile, register_beside};

use crate::common::{Scratch, disk, pattern};

pub const KEY: u64 = 4;
pub const LEN: usize = 5_000_003;
pub const PATH: &str = "/export/file";

/// A server, and what the kernel tells of a mount of it.
#[derive(Debug)]
pub struct Facts {
    pub mount: KernelMount,
    /// The file on the server, by its URL.
    pub url: NfsUrl,
    pub fabric: Arc<Fake>,
    /// What the kernel says instead.
    pub refuses: Option<&'static str>,
    /// The kernel's size differs by that.
    pub wrong: u64,
    /// It tells no handle: this is the file's path on the server.
    pub path: Option<&'static str>,
    pub asked: AtomicU64,
    /// The mount is of another network namespace.
    pub elsewhere: bool,
    /// The first time it panics.
    pub panics: bool,
    /// Its size differs by that once it is asked anew.
    pub wrong_later: AtomicU64,
    /// The kernel reads nothing.
    pub is_stuck: AtomicBool,
    /// Its reads panic.
    pub breaks: AtomicBool,
}

impl Facts {
    fn say(&self, told: &FileAttributes) -> KernelView {
        let modified = (told.modified.0 as i64, told.modified.1.into());
        KernelView { inode: told.file_id, size: told.size + self.wrong, modified }
    }
}

impl MountFacts for Facts {
    fn mount_of(&self, _fd: BorrowedFd<'_>) -> Result<KernelMount> {
        Ok(self.mount.clone())
    }

    fn of_file(&self, _fd: BorrowedFd<'_>, elsewhere: bool) -> Result<MountTarget> {
        let is_first = self.asked.fetch_add(1, Ordering::Relaxed) == 0;
        assert!(!self.panics || !is_first, "asked for");
        if let Some(why) = self.refuses.or((self.elsewhere && !elsewhere).then_some("another network")) {
            return Err(Error::new(ErrorKind::Unsupported, format!("the kernel's mount is used: {why}")));
        }
        let file = forebay_nfs::open(&self.url, &NfsOptions { connections: 1, ..NfsOptions::default() })?;
        let told = file.attributes()?;
        let seen = self.say(&told);
        let named = match self.path {
            None => TargetName::Handle(*file.handle()),
            Some(path) => TargetName::Path(path.to_owned()),
        };
        let file_system = (!self.elsewhere).then_some(told.file_system);
        Ok(MountTarget { mount: self.mount.clone(), named, file_system, seen })
    }

    fn seen(&self, _fd: BorrowedFd<'_>) -> Result<KernelView> {
        let file = forebay_nfs::open(&self.url, &NfsOptions { connections: 1, ..NfsOptions::default() })?;
        let seen = self.say(&file.attributes()?);
        Ok(KernelView { size: seen.size + self.wrong_later.load(Ordering::Relaxed), ..seen })
    }

    fn rdma(&self) -> Result<RdmaOptions> {
        Ok(RdmaOptions::by(self.fabric.clone(), Placing::address()))
    }
}

#[derive(Debug)]
pub struct OnMount(pub Arc<Facts>);

impl Calls for OnMount {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        if self.0.is_stuck.load(Ordering::Relaxed) {
            return -(libc::EIO as isize);
        }
        assert!(!self.0.breaks.load(Ordering::Relaxed), "asked for");
        // SAFETY: passed on.
        unsafe { Kernel.read(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        // SAFETY: passed on.
        unsafe { Kernel.write(fd, memory, offset) }
    }
}

/// The state of open files, by their descriptors and numbers.
type Known = HashMap<(RawFd, u64), Arc<Facts>>;
static MOUNTED: Mutex<Option<Known>> = Mutex::new(None);

struct MadeUp;

fn inode(fd: RawFd) -> u64 {
    std::fs::metadata(format!("/proc/self/fd/{fd}"))
        .map_or(0, |file| std::os::unix::fs::MetadataExt::ino(&file))
}

impl Beside for MadeUp {
    fn of(&self, fd: BorrowedFd<'_>, _magic: i64) -> Option<Arc<dyn BesideFile>> {
        let all = MOUNTED.lock().unwrap();
        let facts = all.as_ref()?.get(&(fd.as_raw_fd(), inode(fd.as_raw_fd())))?.clone();
        Some(Arc::new(MountedFile::new(facts)))
    }
}

/// Has an open file lie on a mount of which these facts are known.
pub fn mounted(file: &File, facts: &Arc<Facts>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| register_beside(Arc::new(MadeUp)));
    let fd = file.raw_fd().unwrap();
    MOUNTED.lock().unwrap().get_or_insert_default().insert((fd, inode(fd)), facts.clone());
}

pub struct Place {
    pub server: Arc<Server>,
    pub fabric: Arc<Fake>,
    pub scratch: Scratch,
    pub _placing: Placing,
}

pub fn place() -> Place {
    let (fabric, server) = (Arc::new(Fake::new()), Arc::new(Server::start()));
    server.put(PATH, pattern(KEY, 0, LEN));
    let placing = Placing::start(&*fabric, server.clone());
    Place { server, fabric, scratch: Scratch::with_pattern(&disk(), KEY, LEN), _placing: placing }
}

impl Place {
    pub fn facts(&self, transport: &str) -> Facts {
        let at = self.server.address();
        let mount = KernelMount {
            server: "server".to_owned(),
            path: "/export".to_owned(),
            place: "/mnt".to_owned(),
            version: NfsVersion::V3,
            address: at.ip(),
            port: at.port(),
            tcp_port: at.port(),
            is_guess: false,
            mount_port: Some(at.port()),
            transport: transport.to_owned(),
            sizes: (1 << 20, 1 << 20),
            is_read_only: false,
        };
        let url = NfsUrl::parse(&self.server.url(PATH, "3")).unwrap();
        let fabric = self.fabric.clone();
        Facts {
            mount,
            url,
            fabric,
            refuses: None,
            wrong: 0,
            path: None,
            asked: AtomicU64::new(0),
            panics: false,
            elsewhere: false,
            wrong_later: AtomicU64::new(0),
            is_stuck: AtomicBool::new(false),
            breaks: AtomicBool::new(false),
        }
    }

    pub fn open(&self, facts: Facts) -> (File, Arc<Facts>) {
        self.open_with(File::options(), facts)
    }

    pub fn open_with(&self, options: OpenOptions, facts: Facts) -> (File, Arc<Facts>) {
        let facts = Arc::new(facts);
        let calls = Box::new(OnMount(facts.clone()));
        let file = options.calls(calls).open(self.scratch.path()).unwrap();
        mounted(&file, &facts);
        (file, facts)
    }
}
