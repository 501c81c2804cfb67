//! Reads of files on mounts over TCP, by several connections of forebay's own, into the memory of the lanes: beside the kernel, which
//! reads what the server does not give.
//!
//! A piece is told to the ticket when its copy has ended, and is not taken back. So each is looked at before its copy: the server's reply
//! to each READ tells the file's state behind it, which must be the one of the transfer's start. Where it is not, the piece and all that
//! follow are read by the kernel, and the receipt says so. A piece has bytes of one state, as with the kernel's own calls.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_config::{CachePolicy, Config, Nfs};
use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::handle::FileState;

use super::find::{self, By, LEAST, Reach, because};
use super::task_thread::{ServerThreads, TaskThread, answer};
use crate::engines::{Asked, Known};
use crate::io::plan::CELL;
use crate::request::file::File;
use crate::request::receipt::Note;
use crate::request::ticket::Completion;
use crate::runtime::lock::lock;
use crate::source::choice::{Choice, Way};
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::source::{Answer, Descriptors, Fill, Request, Requests};

/// Finds servers of mounted files for the lanes of a device, and learns where TCP is faster than the kernel.
#[derive(Clone)]
pub(crate) struct MountReads(Arc<Parts>);

struct Parts {
    nfs: Nfs,
    reach: Reach,
    looks: TaskThread,
    /// What is asked of each server before a transfer.
    checks: ServerThreads,
    choices: Mutex<Vec<(SocketAddr, Arc<Choice>)>>,
    /// The last file of each server: its connections stay while a program closes one file and opens the next.
    last: Mutex<Vec<(SocketAddr, Arc<forebay_nfs::File>)>>,
}

/// A transfer of a mounted file.
pub(crate) struct MountRead {
    server: Arc<forebay_nfs::File>,
    address: SocketAddr,
    /// What the file was when the transfer began.
    state: OnceLock<FileState>,
    /// The kernel reads all that was not asked for yet.
    is_over: AtomicBool,
    is_told: AtomicBool,
    /// How long it took to ask, until a piece has that among its time.
    asked: Mutex<Duration>,
    /// Where both ways are measured.
    choice: Option<Arc<Choice>>,
}

/// Who reads a transfer: `Ok(None)` where there is nothing to say.
pub(crate) type Reader = std::result::Result<Option<Arc<MountRead>>, Note>;

impl MountReads {
    pub(crate) fn new(config: &Config) -> Self {
        let is_asked = config.nfs == Nfs::Tcp;
        let reach = Reach { by: By::Tcp, is_asked, connections: config.nfs_connections };
        let (looks, checks) = (TaskThread::new("forebay-look"), ServerThreads::new("forebay-check"));
        Self(Arc::new(Parts {
            nfs: config.nfs,
            reach,
            looks,
            checks,
            choices: Mutex::default(),
            last: Mutex::default(),
        }))
    }

    /// Whether a transfer is large enough, and its file of a kind, to ask further.
    pub(crate) fn may_read<'a>(
        &self,
        known: &Known<'a>,
        direction: Direction,
        bytes: u64,
    ) -> Option<&'a Descriptors> {
        let may =
            bytes >= LEAST && direction == Direction::Read && matches!(self.0.nfs, Nfs::Faster | Nfs::Tcp);
        let is_one = |file: &&Descriptors| file.calls.mounts().is_one(file.nature.magic);
        known.descriptors().filter(|_| may).filter(is_one).filter(|_| known.file.access().0)
    }

    /// Who reads what was asked.
    pub(crate) fn of(&self, asked: &Asked<'_>) -> Reader {
        let known = asked.known;
        let Some(descriptors) = self.may_read(known, asked.batch.direction, asked.bytes()) else {
            return Ok(None);
        };
        // Small pieces are packed, and the kernel reads packs.
        let is_small = asked.batch.pieces.iter().all(|piece| piece.len <= CELL);
        if is_small || known.policy == CachePolicy::Keep || asked.warmth() == Warmth::Warm {
            return Ok(None);
        }
        let reach = (self.0.reach, self.0.reach.is_asked);
        let server =
            find::server_of(known.file, descriptors, &self.0.looks, reach).map_err(|why| by_kernel(&why))?;
        let Some(address) = server.client().addresses().first().copied() else { return Ok(None) };
        if let Some(why) = find::unreached(address, By::Tcp) {
            return Err(by_kernel(&why));
        }
        self.keep(address, &server);
        let choice = (self.0.nfs == Nfs::Faster).then(|| self.choice(address));
        if let Some((rates, true)) =
            choice.as_ref().filter(|choice| choice.rests()).and_then(|choice| choice.measured())
        {
            return Err(no_faster(rates));
        }
        Ok(Some(Arc::new(MountRead {
            server,
            address,
            state: OnceLock::new(),
            is_over: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            asked: Mutex::default(),
            choice,
        })))
    }

    fn keep(&self, address: SocketAddr, server: &Arc<forebay_nfs::File>) {
        let mut all = lock(&self.0.last);
        let mut kept = server.clone();
        if let Some((_, file)) = all.iter_mut().find(|(known, _)| *known == address) {
            std::mem::swap(file, &mut kept);
        } else {
            all.push((address, kept.clone()));
        }
        // Without the lock: the last file of a client ends its session.
        drop(all);
        drop(kept);
    }

    fn choice(&self, address: SocketAddr) -> Arc<Choice> {
        let mut all = lock(&self.0.choices);
        if let Some((_, choice)) = all.iter().find(|(known, _)| *known == address) {
            return choice.clone();
        }
        let choice = Arc::new(Choice::in_turns());
        all.push((address, choice.clone()));
        choice
    }

    /// The thread that asks a transfer's server how its file is.
    pub(crate) fn checks(&self, read: &MountRead) -> TaskThread {
        self.0.checks.of(read.server.client())
    }
}

/// Says that the kernel reads a file of a mount, and why.
fn by_kernel(why: &Note) -> Note {
    Note {
        text: format!("by the kernel's mount, not by TCP beside it: {}", why.text),
        hint: why.hint.clone(),
    }
}

impl MountRead {
    /// Has what this host wrote go to the server, and asks which state the file has there. Where some of it is in the page cache
    /// (`is_mixed`), the kernel's own facts must be those, asked anew: it then drops what is older.
    pub(crate) fn begin(&self, file: &File, is_mixed: bool, completion: &Completion) {
        let begun = Instant::now();
        // Others of its transfers may have waited for the server meanwhile, in vain.
        let why = find::unreached(self.address, By::Tcp);
        if why.is_some() || completion.is_cancelled() {
            self.is_over.store(true, Ordering::Relaxed);
            return why.into_iter().for_each(|why| completion.note(by_kernel(&why)));
        }
        let told = answer(|| {
            file.sync()?;
            let told = self.server.attributes()?;
            if is_mixed && !seen(file)?.agrees(&told) {
                let text = format!("{}: it has just changed", forebay_nfs::open::OTHER_FACTS);
                return Err(Error::new(ErrorKind::Busy, text));
            }
            Ok(told.state())
        });
        match told {
            Ok(state) => {
                let _ = self.state.set(state);
                *lock(&self.asked) = begun.elapsed();
                if let Some((rates, true)) = self.choice.as_ref().and_then(|choice| choice.measured()) {
                    self.is_told.store(true, Ordering::Relaxed);
                    completion.note(no_faster(rates));
                }
            }
            Err(error) => self.give_up(&error, completion),
        }
    }

    /// Whether the next piece is to be asked of the server.
    pub(crate) fn takes(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
            && self.choice.as_ref().is_none_or(|choice| choice.next() == Way::Other)
    }

    /// Whether it is to be known how long the kernel takes.
    pub(crate) fn measures(&self) -> bool {
        self.choice.is_some() && !self.is_over.load(Ordering::Relaxed)
    }

    /// The kernel has read bytes that were not in the page cache.
    pub(crate) fn learn_kernel(&self, bytes: usize, took: Duration) {
        if let Some(choice) = &self.choice {
            choice.learn(Way::Usual, bytes, took);
        }
    }

    /// The kernel reads the rest. A server that cannot be reached is left alone for a while; other errors are of one file.
    pub(crate) fn give_up(&self, error: &Error, completion: &Completion) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        let why = because(error);
        if find::is_of_server(error, By::Tcp) {
            find::leave_alone(self.address, By::Tcp, &why);
        }
        completion.note(by_kernel(&why));
    }

    /// The server gave a piece.
    pub(crate) fn came(&self, completion: &Completion) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            completion.note(self.note());
        }
    }

    fn note(&self) -> Note {
        let client = self.server.client();
        let rates = self.choice.as_ref().and_then(|choice| choice.measured());
        let measured = rates.map_or_else(String::new, |(rates, _)| measured(rates));
        Note {
            text: format!(
                "NFS {} over {}, by forebay's own client beside the kernel's mount: server {}, up to {} connections; what this \
                 host had written was on the server before{measured}",
                client.version(),
                client.transport(),
                client.server(),
                client.connections()
            ),
            hint: None,
        }
    }
}

/// Says that most pieces are the kernel's because it is as fast.
fn no_faster(rates: [f64; 2]) -> Note {
    let text = format!("that is no faster{}", measured(rates));
    by_kernel(&Note { text, hint: Some("FOREBAY_NFS=tcp".to_owned()) })
}

/// How fast pieces came of late.
fn measured([kernel, own]: [f64; 2]) -> String {
    format!(" (a piece at {:.2} GB/s, by the kernel at {:.2})", own / 1e9, kernel / 1e9)
}

/// What the kernel says of a file.
fn seen(file: &File) -> Result<forebay_nfs::mount::Seen> {
    let (Fill::Descriptor(descriptors), Some(fd)) = (file.source().fill(), file.raw_fd()) else {
        return Err(Error::new(ErrorKind::Internal, "a mounted file has a descriptor"));
    };
    // SAFETY: the file keeps the descriptor open.
    descriptors.calls.mounts().seen(unsafe { BorrowedFd::borrow_raw(fd) })
}

impl std::fmt::Debug for MountRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MountRead({:?})", self.server)
    }
}

impl Requests for MountRead {
    fn start(&self, request: Request, done: Answer) {
        let Some(state) = self.state.get() else {
            return done(Err(Error::new(ErrorKind::Internal, "the file's state is not known")));
        };
        let (choice, asked, begun) =
            (self.choice.clone(), std::mem::take(&mut *lock(&self.asked)), Instant::now());
        let done: Answer = Box::new(move |result| {
            if let (Some(choice), Ok(bytes)) = (choice, &result) {
                choice.learn(Way::Other, *bytes, asked + begun.elapsed());
            }
            done(result);
        });
        // SAFETY: the lane keeps the buffer valid and untouched until the answer.
        unsafe { self.server.start_in(*state, request.offset, (request.buffer, request.len), done) };
    }
}
