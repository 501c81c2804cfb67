//! Files on mounts of the kernel's NFS client whose server this process can reach by itself: same server, version and handle, as the
//! kernel tells them. Facts that the server tells of the handle are compared with the kernel's before it is trusted.
//!
//! With `FOREBAY_NFS=auto` the servers of mounts over RDMA alone are contacted, which shows that they take it, and none where the mount is
//! of another network namespace. `FOREBAY_NFS=tcp` and `rdma` take any mount.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_config::{Config, MOST_ADDRESSES, Servers as ServerAddresses};
use forebay_error::{Error, ErrorKind};
use forebay_nfs::mount::{Mount, Mounted};
use forebay_nfs::{MOST_FURTHER, Options, Rdma, open};

use super::task_thread::{TaskThread, answer};
use crate::request::file::File;
use crate::request::receipt::Note;
use crate::runtime::lock;
use crate::runtime::process::PerProcess;
use crate::source::Descriptors;

// What may be named may be used: neither crate knows the other.
const _: () = assert!(MOST_ADDRESSES == MOST_FURTHER);

/// Bytes of the shortest transfer for which the server is looked for.
pub(crate) const MIN_TRANSFER: u64 = 1 << 20;
/// Files that wait to be looked for, at most: each keeps its descriptor. Chosen.
const LOOKS: usize = 16;
/// A server that could not be reached is not called again before this has passed, nor asked for a file that it does not give.
const SERVER_PAUSE: Duration = Duration::from_mins(1);
/// A file that was not found on its server is not looked for again before this has passed.
const FILE_PAUSE: Duration = Duration::from_secs(1);
/// How long a server may be silent, over TCP and by RDMA, and how long calls are sent again: the kernel can read the file, too. Over TCP
/// the time that its requests take of late comes on top; of calls that were sent about together none is sent again when the first has
/// waited for too long.
const SILENCE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
const DEADLINE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];
const CONNECT: Duration = Duration::from_secs(2);

/// The file on its server, or why it is left to the kernel.
pub(crate) type LookupResult = std::result::Result<Arc<forebay_nfs::File>, Arc<Note>>;

/// The transport by which a server is to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Rdma,
}

/// How servers may be reached.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub(crate) transport: Transport,
    /// The user asks for it: any mount will do.
    pub(crate) is_asked: bool,
    pub(crate) connections: usize,
    /// Further addresses.
    servers: Arc<ServerAddresses>,
}

impl Reach {
    pub(crate) fn new(transport: Transport, is_asked: bool, config: &Config) -> Self {
        let servers = Arc::new(config.nfs_servers.clone());
        Self { transport, is_asked, connections: config.nfs_connections, servers }
    }
}

/// What is known of an open file on a mount.
#[derive(Default)]
pub(crate) struct MountState {
    /// By [`Transport`].
    found: [Mutex<LookupState>; 2],
}

#[derive(Default)]
enum LookupState {
    #[default]
    Unknown,
    /// A look-up is under way.
    UnderWay,
    /// The result of the last look-up holds until then, or for good.
    Looked(LookupResult, Option<Instant>),
}

/// Servers of mounts, for all sessions of the process.
#[derive(Default)]
struct Servers {
    /// Those that could not be reached, until when they are left alone, and why.
    unreached: Mutex<Vec<(Server, Instant, Arc<Note>)>>,
}

/// A server, and how it is reached.
type Server = (SocketAddr, Transport);

/// Why a file is left to the kernel, and for how long that holds; `None`: for good.
type KernelFallback = (Arc<Note>, Option<Duration>);

// SAFETY: no other kind has the name.
unsafe impl PerProcess for Servers {
    const NAME: &'static str = "servers of mounts";
}

/// The file on its server. The thread `looks` looks for it beside the first transfers, which go the kernel's way; without it they wait.
pub(crate) fn server_of(
    file: &File,
    descriptors: &Descriptors,
    reach: &Reach,
    looks: Option<&TaskThread>,
) -> LookupResult {
    let state: Arc<MountState> = descriptors.attached.get();
    {
        let mut found = lock(&state.found[reach.transport as usize]);
        match &*found {
            LookupState::Looked(looked, until) if until.is_none_or(|until| Instant::now() < until) => {
                return looked.clone();
            }
            LookupState::UnderWay if looks.is_some() => return Err(soon()),
            _ => *found = LookupState::UnderWay,
        }
    }
    let Some(looks) = looks else { return state.look(file, reach) };
    let transport = reach.transport;
    let (file, looking, reach) = (file.clone(), state.clone(), reach.clone());
    if looks.offer(Box::new(move || drop(looking.look(&file, &reach))), LOOKS).is_err() {
        // The next transfer asks again: each file that waits keeps its descriptor.
        *lock(&state.found[transport as usize]) = LookupState::Unknown;
    }
    Err(soon())
}

fn soon() -> Arc<Note> {
    note("the mount's server is being looked for", None)
}

/// Why a file is left to the kernel.
pub(crate) fn note(text: impl Into<String>, hint: Option<&str>) -> Arc<Note> {
    Arc::new(Note { text: text.into(), hint: hint.map(str::to_owned) })
}

/// An error as the reason.
pub(crate) fn error_note(error: &Error) -> Arc<Note> {
    note(error.to_string(), error.hints().first().map(String::as_str))
}

impl MountState {
    /// The file is not what it was when it was found, or the server does not give it: the next transfer looks for it anew.
    pub(crate) fn forget(&self, transport: Transport) {
        *lock(&self.found[transport as usize]) = LookupState::Unknown;
    }

    fn look(&self, file: &File, reach: &Reach) -> LookupResult {
        let panicked = |error| (Err(error_note(&error)), Some(FILE_PAUSE));
        let (looked, pause) = answer(|| Ok(look(file, reach))).unwrap_or_else(panicked);
        let until = pause.and_then(|pause| Instant::now().checked_add(pause));
        *lock(&self.found[reach.transport as usize]) = LookupState::Looked(looked.clone(), until);
        looked
    }
}

/// Looks for a file, and says for how long that holds.
fn look(file: &File, reach: &Reach) -> (LookupResult, Option<Duration>) {
    let (mounted, rdma) = match facts(file, reach) {
        Ok(facts) => facts,
        Err((why, pause)) => return (Err(why), pause),
    };
    let mount = &mounted.mount;
    let further = reach.servers.of(&[&mount.server, &mount.address.to_string()]);
    let options = Options {
        connections: reach.connections,
        further,
        connect: CONNECT,
        deadline: DEADLINE[reach.transport as usize],
        silence: SILENCE[reach.transport as usize],
        low_ports: false,
        rdma,
        ..Options::default()
    };
    match forebay_nfs::of_mount(&mounted, &options) {
        Ok(found) => (Ok(Arc::new(found)), None),
        Err(error) => {
            let why = error_note(&error);
            // An export that refuses this process refuses all its files.
            let is_refused = error.kind() == ErrorKind::PermissionDenied && !reach.is_asked;
            if is_of_server(&error, reach.transport) || is_refused {
                leave_alone(address_of(&mounted.mount), reach.transport, &why);
            }
            (Err(why), Some(FILE_PAUSE))
        }
    }
}

/// Whether an error is not of one file alone: the server is not reached, or does not answer.
pub(crate) fn is_of_server(error: &Error, transport: Transport) -> bool {
    match transport {
        Transport::Rdma => error.kind() == ErrorKind::Timeout || forebay_verbs::Why::of(error).is_some(),
        Transport::Tcp => open::is_unreached(error),
    }
}

fn address_of(mount: &Mount) -> SocketAddr {
    SocketAddr::new(mount.address, mount.tcp_port)
}

/// Leaves a server alone for a while.
pub(crate) fn leave_alone(address: SocketAddr, transport: Transport, why: &Arc<Note>) {
    let mut all = lock(&Servers::of_process().unreached);
    all.retain(|(other, until, _)| *other != (address, transport) && Instant::now() < *until);
    all.push(((address, transport), Instant::now() + SERVER_PAUSE, why.clone()));
}

/// Why a server is left alone, if it is.
pub(crate) fn unreached(address: SocketAddr, transport: Transport) -> Option<Arc<Note>> {
    let all = lock(&Servers::of_process().unreached);
    let found =
        all.iter().find(|(other, until, _)| *other == (address, transport) && Instant::now() < *until);
    found.map(|(_, _, why)| why.clone())
}

/// Where the file is, and this machine's RDMA if that is to be used; or why not, and for how long that holds: what the mount is stays so.
fn facts(file: &File, reach: &Reach) -> std::result::Result<(Mounted, Option<Rdma>), KernelFallback> {
    let why = |error: Error| (error_note(&error), None);
    let never = |reason: &str| (note(reason, None), None);
    let Some(descriptors) = file.descriptors() else {
        return Err(never("the source is not a file of the kernel's"));
    };
    descriptors.check().map_err(why)?;
    if file.access().1 {
        // Where a write has failed, the first fsync by this opening is told: that is to be the program's own.
        return Err(never("it is open for writing: errors of what was written are the program's to hear"));
    }
    let fd = file.raw_fd().ok_or_else(|| never("the file has no descriptor"))?;
    // SAFETY: the file keeps the descriptor open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mounts = descriptors.calls.mounts();
    let mount = mounts.mount_of(fd).map_err(why)?;
    if !reach.is_asked {
        may_be_contacted(&mount).map_err(|note| (note, None))?;
    }
    if let Some(why) = unreached(address_of(&mount), reach.transport) {
        return Err((why, Some(FILE_PAUSE)));
    }
    // The kernel's facts are of what is written: times and sizes of what is not are its own.
    file.sync().map_err(why)?;
    let mounted = mounts.of_file(fd, reach.is_asked).map_err(why)?;
    if let Some(why) = unreached(address_of(&mounted.mount), reach.transport) {
        return Err((why, Some(FILE_PAUSE)));
    }
    let rdma = if reach.transport == Transport::Rdma { Some(mounts.rdma().map_err(why)?) } else { None };
    Ok((mounted, rdma))
}

/// Whether a server may be contacted that nobody has named: where the mount itself shows that it takes RDMA.
fn may_be_contacted(mount: &Mount) -> std::result::Result<(), Arc<Note>> {
    let mounted = mount.transport.as_str();
    if !mounted.starts_with("rdma") {
        let hint = "FOREBAY_NFS=rdma, or mount with proto=rdma,port=20049 (as root)";
        return Err(note(format!("it is mounted over {mounted}"), Some(hint)));
    }
    Ok(())
}
