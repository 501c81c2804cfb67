//! Files on mounts of the kernel's NFS client whose server this process can reach by itself: same server, version and handle, as the
//! kernel tells them. Facts that the server tells of the handle are compared with the kernel's before it is trusted.
//!
//! With `FOREBAY_NFS=auto` the servers of mounts over RDMA alone are contacted, which shows that they take it, and none where the mount is
//! of another network namespace. `FOREBAY_NFS=tcp` and `rdma` take any mount.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_config::{Config, MOST_ADDRESSES, Nfs};
use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::ProcessId;
use forebay_source::{Beside, BesideFile, BesideReads, Fill, Place, Source};

use super::facts::{KernelFacts, MountFacts};
use super::lookups::{leave_alone, look_soon, unreached};
use super::mount::{KernelMount, MountTarget};
use super::open::of_mount;
use super::reads::ServerReads;
use crate::{MOST_FURTHER, NfsFile, NfsOptions, RdmaOptions, lock};

// What may be named may be used: neither crate knows the other.
const _: () = assert!(MOST_ADDRESSES == MOST_FURTHER);

/// A file that was not found on its server is not looked for again before this has passed.
const FILE_PAUSE: Duration = Duration::from_secs(1);
/// How long a server may be silent, over TCP and by RDMA: the kernel can read the file, too. Over TCP the recent duration of its
/// requests is added.
const SILENCE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// How long calls are sent again, over TCP and by RDMA. When the first of several calls that were sent together has waited for
/// this long, none of them is sent again.
const DEADLINE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];
const CONNECT: Duration = Duration::from_secs(2);
/// Of the kernel's NFS client, all versions.
const NFS_MAGIC: i64 = 0x6969;

/// Files on mounts of the kernel's NFS client.
#[derive(Debug)]
pub struct Mounts;

impl Beside for Mounts {
    fn of(&self, _fd: BorrowedFd<'_>, magic: i64) -> Option<Arc<dyn BesideFile>> {
        (magic == NFS_MAGIC).then(|| Arc::new(MountedFile::new(Arc::new(KernelFacts))) as Arc<dyn BesideFile>)
    }
}

/// The transport by which a server is to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountTransport {
    Tcp,
    Rdma,
}

/// An open file on a mount, and its state on its server.
#[derive(Clone)]
pub struct MountedFile(Arc<MountState>);

struct MountState {
    /// In a child of it nothing is locked: another thread of the parent may have held the lock.
    process: ProcessId,
    facts: Arc<dyn MountFacts>,
    /// By [`MountTransport`].
    found: [Mutex<LookupState>; 2],
}

#[derive(Default)]
enum LookupState {
    #[default]
    Unknown,
    /// A look-up is under way.
    UnderWay,
    /// The result of the last look-up holds until then, or for good.
    Looked(Result<Arc<NfsFile>>, Option<Instant>),
}

/// Why a file is left to the kernel, and for how long that holds; `None`: for good.
type KernelFallback = (Error, Option<Duration>);

impl fmt::Debug for MountedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MountedFile")
    }
}

impl BesideFile for MountedFile {
    fn place(&self, file: &Arc<dyn Source>, config: &Config, waits: bool) -> Result<Arc<dyn Place>> {
        if matches!(config.nfs, Nfs::Off | Nfs::Tcp) {
            return Err(left("FOREBAY_NFS forbids it").hint("unset FOREBAY_NFS, or FOREBAY_NFS=rdma"));
        }
        let waits = waits || config.nfs == Nfs::Rdma;
        let found = self.server_of(file, config, MountTransport::Rdma, waits)?;
        Ok(found)
    }

    fn takes_reads(&self, config: &Config) -> bool {
        config.nfs == Nfs::Tcp
    }

    fn reads(&self, file: &Arc<dyn Source>, config: &Config) -> Result<Arc<dyn BesideReads>> {
        let server = self.server_of(file, config, MountTransport::Tcp, true)?;
        let reads = ServerReads::new(server, self.clone())?;
        reads.check()?;
        Ok(Arc::new(reads))
    }
}

impl MountedFile {
    /// An open file of whose mount these facts are known.
    pub fn new(facts: Arc<dyn MountFacts>) -> Self {
        Self(Arc::new(MountState { process: ProcessId::current(), facts, found: Default::default() }))
    }

    pub(super) fn facts(&self) -> &dyn MountFacts {
        self.0.facts.as_ref()
    }

    /// The file on its server. Where the caller does not wait, a thread looks for it beside the first transfers.
    fn server_of(
        &self,
        file: &Arc<dyn Source>,
        config: &Config,
        transport: MountTransport,
        waits: bool,
    ) -> Result<Arc<NfsFile>> {
        self.0.process.check()?;
        {
            let mut found = lock(&self.0.found[transport as usize]);
            match &*found {
                LookupState::Looked(looked, until) if until.is_none_or(|until| Instant::now() < until) => {
                    return looked.clone();
                }
                LookupState::UnderWay if !waits => return Err(soon()),
                _ => *found = LookupState::UnderWay,
            }
        }
        if waits {
            return self.look(file, config, transport);
        }
        let (this, file, config) = (self.clone(), file.clone(), config.clone());
        if !look_soon(move || drop(this.look(&file, &config, transport))) {
            // The next transfer asks again: each file that waits keeps its descriptor.
            *lock(&self.0.found[transport as usize]) = LookupState::Unknown;
        }
        Err(soon())
    }

    /// The file is not what it was when it was found, or the server does not give it: the next transfer looks for it anew.
    pub(super) fn forget(&self, transport: MountTransport) {
        *lock(&self.0.found[transport as usize]) = LookupState::Unknown;
    }

    fn look(
        &self,
        file: &Arc<dyn Source>,
        config: &Config,
        transport: MountTransport,
    ) -> Result<Arc<NfsFile>> {
        let look = || self.find(file, config, transport);
        let (looked, pause) = catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|_| {
            let panicked = Error::new(ErrorKind::Internal, "a thread that asks the server panicked");
            (Err(panicked), Some(FILE_PAUSE))
        });
        let until = pause.and_then(|pause| Instant::now().checked_add(pause));
        *lock(&self.0.found[transport as usize]) = LookupState::Looked(looked.clone(), until);
        looked
    }

    /// Looks for a file, and says for how long that holds.
    fn find(
        &self,
        file: &Arc<dyn Source>,
        config: &Config,
        transport: MountTransport,
    ) -> (Result<Arc<NfsFile>>, Option<Duration>) {
        let is_asked = config.nfs != Nfs::Auto;
        let (mounted, rdma) = match self.mounted(file.as_ref(), transport, is_asked) {
            Ok(found) => found,
            Err((why, pause)) => return (Err(why), pause),
        };
        let mount = &mounted.mount;
        let options = NfsOptions {
            connections: config.nfs_connections,
            further: config.nfs_servers.of(&[&mount.server, &mount.address.to_string()]),
            connect: CONNECT,
            deadline: DEADLINE[transport as usize],
            silence: SILENCE[transport as usize],
            low_ports: false,
            rdma,
            ..NfsOptions::default()
        };
        match of_mount(&mounted, &options) {
            Ok(found) => (Ok(Arc::new(found)), None),
            Err(why) => {
                // An export that refuses this process refuses all its files.
                let is_refused = why.kind() == ErrorKind::PermissionDenied && !is_asked;
                if is_of_server(&why, transport) || is_refused {
                    leave_alone(address_of(mount), transport, &why);
                }
                (Err(why), Some(FILE_PAUSE))
            }
        }
    }

    /// Where the file is, and this machine's RDMA if that is to be used; or why not, and for how long that holds: what the mount is stays so.
    fn mounted(
        &self,
        file: &dyn Source,
        transport: MountTransport,
        is_asked: bool,
    ) -> Result<(MountTarget, Option<RdmaOptions>), KernelFallback> {
        let never = |why: Error| (why, None);
        let alone = |mount: &KernelMount| match unreached(address_of(mount), transport) {
            Some(why) => Err((why, Some(FILE_PAUSE))),
            None => Ok(()),
        };
        let Fill::Descriptor(fd) = file.fill() else {
            return Err(never(left("the source is not a file of the kernel's")));
        };
        if file.access().1 {
            // The first fsync by this opening reports a failed write: that must be the program's own fsync.
            let why = "it is open for writing: the program's own fsync must get errors of its writes";
            return Err(never(left(why)));
        }
        let facts = self.facts();
        let mount = facts.mount_of(fd).map_err(never)?;
        if !is_asked {
            may_be_contacted(&mount).map_err(never)?;
        }
        alone(&mount)?;
        // The kernel's attributes describe written data; times and sizes of unwritten data are its own.
        file.sync().map_err(never)?;
        let mounted = facts.of_file(fd, is_asked).map_err(never)?;
        alone(&mounted.mount)?;
        let rdma = if transport == MountTransport::Rdma { Some(facts.rdma().map_err(never)?) } else { None };
        Ok((mounted, rdma))
    }
}

/// Why a file is left to the kernel.
fn left(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}

fn soon() -> Error {
    Error::new(ErrorKind::Busy, "the mount's server is not found yet")
}

/// Whether an error is not of one file alone: the server is not reached, or does not answer.
pub(super) fn is_of_server(error: &Error, transport: MountTransport) -> bool {
    match transport {
        MountTransport::Rdma => error.kind() == ErrorKind::Timeout || forebay_verbs::Why::of(error).is_some(),
        MountTransport::Tcp => crate::client::open::is_unreached(error),
    }
}

fn address_of(mount: &KernelMount) -> SocketAddr {
    SocketAddr::new(mount.address, mount.tcp_port)
}

/// Whether a server may be contacted that nobody has named: where the mount itself shows that it takes RDMA.
fn may_be_contacted(mount: &KernelMount) -> Result<()> {
    let mounted = mount.transport.as_str();
    if !mounted.starts_with("rdma") {
        let hint = "FOREBAY_NFS=rdma, or mount with proto=rdma,port=20049 (as root)";
        return Err(left(format!("it is mounted over {mounted}")).hint(hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use forebay_source::StateToken;

    use super::*;

    #[derive(Debug)]
    struct LocalFile(File);

    impl Source for LocalFile {
        fn name(&self) -> String {
            "a local file".to_owned()
        }

        fn len(&self) -> Result<u64> {
            Ok(0)
        }

        fn fill(&self) -> Fill<'_> {
            Fill::Descriptor(self.0.as_fd())
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn state(&self) -> Result<Option<StateToken>> {
            Ok(None)
        }

        fn access(&self) -> (bool, bool) {
            (true, false)
        }
    }

    fn local_file() -> Arc<LocalFile> {
        Arc::new(LocalFile(File::open("/proc/self/exe").unwrap()))
    }

    #[test]
    fn nothing_lies_beside_a_local_file() {
        let file = local_file();
        for magic in [0xEF53, 0x0102_1994] {
            assert!(Mounts.of(file.0.as_fd(), magic).is_none());
        }
        // Even where the file system says that it is NFS, no server is asked: the kernel tells none.
        let beside = Mounts.of(file.0.as_fd(), NFS_MAGIC).unwrap();
        let file: Arc<dyn Source> = file;
        for (config, waits) in
            [(Config::default(), true), (Config { nfs: Nfs::Rdma, ..Config::default() }, false)]
        {
            let error = beside.place(&file, &config, waits).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        }
    }

    #[test]
    fn a_child_does_not_wait_for_what_its_parent_had_locked() {
        let mounted = MountedFile::new(Arc::new(KernelFacts));
        let file: Arc<dyn Source> = local_file();
        let (held, config) = (lock(&mounted.0.found[MountTransport::Rdma as usize]), Config::default());
        // SAFETY: the child asks one function, which takes no lock, and ends; the alarm ends it if it hangs.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: no pointers are passed.
                unsafe { libc::alarm(20) };
                let is_refused = mounted
                    .place(&file, &config, false)
                    .is_err_and(|error| error.message().contains("forked"));
                // SAFETY: it ends the child, and runs no handlers of the parent's.
                unsafe { libc::_exit(i32::from(!is_refused)) };
            }
            child => {
                let mut status = 0;
                // SAFETY: the child was made above; the status is writable.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        drop(held);
    }
}
