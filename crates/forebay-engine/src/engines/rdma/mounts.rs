//! Files on mounts of the kernel's NFS client whose server this process can reach by itself: same server, version and handle, as the
//! kernel tells them. Facts that the server tells of the handle are compared with the kernel's before it is trusted.
//!
//! A mount over RDMA shows that the server takes RDMA and that a device leads there: `FOREBAY_NFS=auto` looks no further than that.
//! Servers of other mounts, and of those of another network namespace, are contacted only where `FOREBAY_NFS=rdma` asks for it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_config::Nfs;
use forebay_error::{Error, ErrorKind};
use forebay_nfs::mount::Mounted;
use forebay_nfs::{Options, open};

use super::refusals::{because, refusal};
use super::task_thread::{TaskThread, answer};
use crate::request::file::File;
use crate::request::receipt::Refusal;
use crate::runtime::lock::lock;
use crate::runtime::process::PerProcess;
use crate::source::Descriptors;

/// How long a server is left alone that could not be reached, and a file that was not found there.
const SERVER_PAUSE: Duration = Duration::from_mins(1);
const FILE_PAUSE: Duration = Duration::from_secs(1);
/// How long it is waited for: the kernel has a way, too.
const CONNECT: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(10);

type Looked = std::result::Result<Arc<forebay_nfs::File>, Arc<Refusal>>;

/// What is known of an open file.
#[derive(Default)]
struct MountState(Mutex<Found>);

#[derive(Default)]
enum Found {
    #[default]
    Nothing,
    /// It is being looked for.
    Soon,
    /// It was, and that holds until then, or for good.
    Looked(Looked, Option<Instant>),
}

/// Servers that could not be reached.
#[derive(Default)]
struct Unreached(Mutex<Vec<(SocketAddr, Instant, Arc<Refusal>)>>);

// SAFETY: no other kind has the name.
unsafe impl PerProcess for Unreached {
    const NAME: &'static str = "servers that rdma did not reach";
}

/// The file on its server. Looked for beside the first transfers, which go the kernel's way; where it is urgent they wait.
pub(super) fn server_of(
    file: &File,
    descriptors: &Descriptors,
    looks: &TaskThread,
    (nfs, is_urgent): ((Nfs, usize), bool),
) -> Looked {
    let state: Arc<MountState> = descriptors.attached.get();
    {
        let mut found = lock(&state.0);
        match &*found {
            Found::Looked(looked, until) if until.is_none_or(|until| Instant::now() < until) => {
                return looked.clone();
            }
            Found::Soon if !is_urgent => return Err(soon()),
            _ => *found = Found::Soon,
        }
    }
    if is_urgent {
        return state.look(file, nfs);
    }
    let file = file.clone();
    looks.add(Box::new(move || drop(state.look(&file, nfs))));
    Err(soon())
}

fn soon() -> Arc<Refusal> {
    refusal("the mount's server is being looked for", None)
}

impl MountState {
    fn look(&self, file: &File, nfs: (Nfs, usize)) -> Looked {
        let panicked = |error| (Err(because(&error)), Some(FILE_PAUSE));
        let (looked, pause) = answer(|| Ok(look(file, nfs))).unwrap_or_else(panicked);
        let until = pause.and_then(|pause| Instant::now().checked_add(pause));
        *lock(&self.0) = Found::Looked(looked.clone(), until);
        looked
    }
}

/// Looks for a file, and says for how long that holds.
fn look(file: &File, (nfs, connections): (Nfs, usize)) -> (Looked, Option<Duration>) {
    let (mounted, rdma) = match facts(file, nfs) {
        Ok(facts) => facts,
        Err((refusal, pause)) => return (Err(refusal), pause),
    };
    let address = SocketAddr::new(mounted.mount.address, mounted.mount.tcp_port);
    let options = Options {
        connections,
        connect: CONNECT,
        deadline: DEADLINE,
        silence: DEADLINE / 2,
        rdma: Some(rdma),
        ..Options::default()
    };
    match open::of_mount(&mounted, &options) {
        Ok(found) => (Ok(Arc::new(found)), None),
        Err(error) => {
            let refusal = because(&error);
            if error.kind() == ErrorKind::Timeout || is_of_rdma(&error) {
                let mut all = lock(&Unreached::of_process().0);
                all.retain(|(other, until, _)| *other != address && Instant::now() < *until);
                all.push((address, Instant::now() + SERVER_PAUSE, refusal.clone()));
            }
            (Err(refusal), Some(FILE_PAUSE))
        }
    }
}

fn is_of_rdma(error: &Error) -> bool {
    forebay_verbs::Why::of(error).is_some()
}

fn unreached(address: SocketAddr) -> Option<Arc<Refusal>> {
    let all = lock(&Unreached::of_process().0);
    let found = all.iter().find(|(other, until, _)| *other == address && Instant::now() < *until);
    found.map(|(_, _, refusal)| refusal.clone())
}

/// Where the file is, and this machine's RDMA; or why not, and for how long that holds: what the mount is stays so.
fn facts(
    file: &File,
    nfs: Nfs,
) -> std::result::Result<(Mounted, forebay_nfs::Rdma), (Arc<Refusal>, Option<Duration>)> {
    let why = |error: Error| (because(&error), None);
    let never = |reason: &str| (refusal(reason, None), None);
    let descriptors = match file.source().fill() {
        crate::source::Fill::Descriptor(descriptors) => descriptors,
        crate::source::Fill::Requests(_) => {
            return Err(never("the source is not a file of the kernel's"));
        }
    };
    descriptors.check().map_err(why)?;
    let fd = file.raw_fd().ok_or_else(|| never("the file has no descriptor"))?;
    // SAFETY: the file keeps the descriptor open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mounts = descriptors.calls.mounts();
    let is_asked = nfs == Nfs::Rdma;
    let mounted = mounts.of_file(fd, is_asked).map_err(why)?;
    if !is_asked && !mounted.mount.transport.starts_with("rdma") {
        let reason = format!("it is mounted over {}", mounted.mount.transport);
        let hint = "FOREBAY_NFS=rdma, or mount with proto=rdma,port=20049 (as root)";
        return Err((refusal(reason, Some(hint)), None));
    }
    let address = SocketAddr::new(mounted.mount.address, mounted.mount.tcp_port);
    if let Some(refusal) = unreached(address) {
        return Err((refusal, Some(FILE_PAUSE)));
    }
    // The kernel's facts are of what is written: times and sizes of what is not are its own.
    file.sync().map_err(why)?;
    Ok((mounts.of_file(fd, is_asked).map_err(why)?, mounts.rdma().map_err(why)?))
}
