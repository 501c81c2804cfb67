//! Reads of files on mounts over TCP, by connections of forebay's own, into the memory of the lanes: beside the kernel, which reads what
//! the server does not give.
//!
//! A piece is told to the ticket when its copy has ended, and is not taken back. So each is looked at before its copy: the server's reply
//! to each READ tells the file's state behind it, which must be the one in which the file was found. Where it is not, the piece and all
//! that follow are read by the kernel, and the receipt says so. A piece has bytes of one state, as with the kernel's own calls, and the
//! server is asked nothing before.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_config::{CachePolicy, Config, Nfs};
use forebay_error::{Error, ErrorKind, Result};

use super::find::{self, MIN_TRANSFER, MountState, Reach, Transport, error_note};
use super::task_thread::{ServerThreads, TaskThread, answer};
use crate::engines::{AskedBatch, Known};
use crate::io::plan::CELL;
use crate::request::completion::Completion;
use crate::request::file::File;
use crate::request::receipt::Note;
use crate::runtime::lock;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::source::{Answer, Descriptors, Request, Requests};

/// Finds servers of mounted files for the lanes of a device.
#[derive(Clone)]
pub(crate) struct MountReads(Arc<Parts>);

struct Parts {
    /// `FOREBAY_NFS=tcp` asks for it.
    is_asked: bool,
    reach: Reach,
    /// What is looked at before a transfer.
    checks: ServerThreads,
    /// The last file of each server: its connections stay while a program closes one file and opens the next.
    last: Mutex<Vec<(SocketAddr, Arc<forebay_nfs::File>)>>,
}

/// A transfer of a mounted file.
pub(crate) struct MountRead {
    server: Arc<forebay_nfs::File>,
    address: SocketAddr,
    found: Arc<MountState>,
    /// The kernel reads all that was not asked for yet.
    is_over: AtomicBool,
    is_told: AtomicBool,
}

/// Who reads a transfer: `Ok(None)` where there is nothing to say.
pub(crate) type Beside = std::result::Result<Option<Arc<MountRead>>, Note>;

impl MountReads {
    pub(crate) fn new(config: &Config) -> Self {
        let reach = Reach::new(Transport::Tcp, true, config);
        let checks = ServerThreads::new("forebay-check");
        Self(Arc::new(Parts { is_asked: config.nfs == Nfs::Tcp, reach, checks, last: Mutex::default() }))
    }

    /// Whether a transfer is large enough, and its file of a kind, to ask further.
    fn may_read<'a>(&self, known: &Known<'a>, direction: Direction, bytes: u64) -> Option<&'a Descriptors> {
        let may = self.0.is_asked && bytes >= MIN_TRANSFER && direction == Direction::Read;
        let is_one = |file: &&Descriptors| file.calls.mounts().is_one(file.nature.magic);
        known.descriptors.filter(|_| may).filter(is_one).filter(|_| known.file.access().0)
    }

    /// Whether a transfer that the caller's thread could do is better left to the lanes.
    pub(crate) fn may_take(&self, known: &Known<'_>, direction: Direction, bytes: u64) -> bool {
        self.may_read(known, direction, bytes).is_some()
    }

    /// Who reads what was asked.
    pub(crate) fn of(&self, asked: &AskedBatch<'_>) -> Beside {
        let known = asked.known;
        let Some(descriptors) = self.may_read(known, asked.batch.direction, asked.bytes()) else {
            return Ok(None);
        };
        // Small pieces are packed, and the kernel reads packs.
        let is_small = asked.batch.pieces.iter().all(|piece| piece.len <= CELL);
        if is_small || known.policy == CachePolicy::Keep || asked.warmth() == Warmth::Warm {
            return Ok(None);
        }
        let server =
            find::server_of(known.file, descriptors, &self.0.reach, None).map_err(|why| by_kernel(&why))?;
        let Some(address) = server.client().addresses().first().copied() else { return Ok(None) };
        if let Some(why) = find::unreached(address, Transport::Tcp) {
            return Err(by_kernel(&why));
        }
        self.keep(address, &server);
        Ok(Some(Arc::new(MountRead {
            server,
            address,
            found: descriptors.attached.get(),
            is_over: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
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

    /// The thread that looks at the files of a transfer's server.
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
    /// Has what this host wrote go to the server. Where some of it is in the page cache (`is_mixed`), the kernel's own facts must be those
    /// in which the file was found, asked anew: it then drops what is older.
    pub(crate) fn begin(&self, file: &File, is_mixed: bool, completion: &Completion) {
        if completion.is_cancelled() {
            return self.is_over.store(true, Ordering::Relaxed);
        }
        let settled = answer(|| {
            file.sync()?;
            if is_mixed && !seen(file)?.agrees(self.server.opened()) {
                let text = format!("{}: it has just changed", forebay_nfs::OTHER_FACTS);
                return Err(Error::new(ErrorKind::Busy, text));
            }
            Ok(())
        });
        if let Err(error) = settled {
            self.give_up(&error, completion);
        }
    }

    /// Whether the server, not the kernel, is asked for the next piece.
    pub(crate) fn asks_server(&self, completion: &Completion) -> bool {
        if self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        // Other transfers may have waited for the server meanwhile, in vain.
        if let Some(why) = find::unreached(self.address, Transport::Tcp) {
            if !self.is_over.swap(true, Ordering::Relaxed) {
                completion.note(by_kernel(&why));
            }
            return false;
        }
        true
    }

    /// The kernel reads the rest. A server that cannot be reached is left alone for a while; other errors are of one file.
    pub(crate) fn give_up(&self, error: &Error, completion: &Completion) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        let why = error_note(error);
        if find::is_of_server(error, Transport::Tcp) {
            find::leave_alone(self.address, Transport::Tcp, &why);
            self.server.client().fail_waiting(error);
        } else {
            self.found.forget(Transport::Tcp);
        }
        completion.note(by_kernel(&why));
    }

    /// The server gave a piece: the first one adds a note to the receipt.
    pub(crate) fn note_piece(&self, completion: &Completion) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            completion.note(self.note());
            for (text, hint) in forebay_nfs::left_out(self.server.client()) {
                completion.note(Note { text, hint: Some(hint) });
            }
        }
    }

    fn note(&self) -> Note {
        let client = self.server.client();
        Note {
            text: format!(
                "NFS {} over {}, by forebay's own client beside the kernel's mount: server {}, {}; what this \
                 host had written was on the server before",
                client.version(),
                client.transport(),
                client.server(),
                forebay_nfs::up_to(client)
            ),
            hint: None,
        }
    }
}

/// What the kernel says of a file.
fn seen(file: &File) -> Result<forebay_nfs::mount::Seen> {
    let (Some(descriptors), Some(fd)) = (file.descriptors(), file.raw_fd()) else {
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
        let (client, begun) = (self.server.client().clone(), Instant::now());
        let done: Answer = Box::new(move |result| {
            if result.is_ok() {
                client.record_duration(begun.elapsed());
            }
            done(result);
        });
        let state = self.server.opened().state();
        // SAFETY: the lane keeps the buffer valid and untouched until the answer.
        unsafe { self.server.start_in(state, request.offset, (request.buffer, request.len), done) };
    }
}
