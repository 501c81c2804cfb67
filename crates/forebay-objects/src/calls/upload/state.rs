//! Parts of an upload: put together, ready or sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::ProcessId;
use forebay_source::HostRange;

use super::by_rdma::SentBytes;
use super::joint::{Joint, Piece};
use super::parts::{self, Covered, PartSizes};
use super::sender;
use crate::calls::bucket::Bucket;
use crate::calls::checksum;
use crate::calls::exchange::End;
use crate::calls::multipart::SentPart;
use crate::lock;

/// Parts that are put together in memory at a time: 64 MiB of an object up to 31 GiB. Writes to further parts wait.
const MAX_GATHERED: usize = 4;

/// Memory that a part is put together in.
pub(super) type Buffer = Arc<Mutex<Vec<u8>>>;

/// What a new object has of another one.
#[derive(Debug, Default)]
pub(crate) struct Like {
    /// Its metadata.
    pub(crate) headers: Vec<(String, String)>,
    /// The CRC-64/NVME that its bytes must have.
    pub(crate) crc64: Option<String>,
    pub(crate) sizes: PartSizes,
}

impl Like {
    /// Fails where the bytes that are to be the object are others. `None`: they have no checksum.
    pub(super) fn compare(&self, found: Option<u64>) -> Result<()> {
        let (Some(expected), Some(found)) = (&self.crc64, found.map(checksum::text)) else { return Ok(()) };
        if *expected == found {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::Corrupt,
            "the bytes that came are others than those of the source's checksum",
        );
        Err(error.with("expected", forebay_error::plain(expected)).with("found", found))
    }
}

/// An upload, shared with the thread that sends its parts.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bucket: Bucket,
    pub(super) key: String,
    pub(super) like: Like,
    pub(super) process: ProcessId,
    pub(super) sent_bytes: Arc<SentBytes>,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) parts: BTreeMap<u32, Part>,
    /// To be sent.
    pub(super) ready: VecDeque<Ready>,
    /// Pieces of parts that there was no memory for.
    pub(super) waiting: VecDeque<Piece>,
    /// Calls that have ended.
    pub(super) ends: Vec<(Ready, End)>,
    /// Parts under way, or to be sent again.
    pub(super) in_flight: usize,
    pub(super) sent: Vec<SentPart>,
    /// Buffers in use.
    gathered: usize,
    /// Buffers of the first parts' size that are not.
    spare: Vec<Buffer>,
    /// Bytes of the object.
    pub(super) len: u64,
    pub(super) error: Option<Error>,
    /// All parts are ready, or sent.
    pub(super) is_ending: bool,
    /// The server takes checksums.
    pub(super) has_checksums: bool,
    /// When the upload was begun.
    pub(super) began: Option<Instant>,
    /// What else its user has to know.
    pub(super) note: Option<String>,
    pub(super) not_by_file: Option<(String, String)>,
    /// The server's name of the upload; taken by what aborts it.
    pub(super) id: Option<String>,
    pub(super) sender: Option<JoinHandle<()>>,
    pub(super) is_sender_gone: bool,
}

#[derive(Debug)]
pub(super) enum Part {
    Gathering(Gathering),
    /// It is to be sent, or was.
    Sent,
}

#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) buffer: Buffer,
    pub(super) covered: Covered,
    /// Copies to it that go on.
    pub(super) copies: usize,
}

/// A part that can be sent.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) number: u32,
    pub(super) memory: PartMemory,
    pub(super) len: usize,
    pub(super) crc64: Option<u64>,
    /// Since when it has failed.
    pub(super) failed: Option<Instant>,
    /// When it was sent last.
    pub(super) began: Instant,
}

#[derive(Debug)]
pub(super) enum PartMemory {
    /// A buffer of the upload.
    Gathered(Buffer),
    /// The memory of a request, which is answered when the part is sent.
    Written(HostRange, Arc<Joint>),
    /// Nothing was written to it.
    Zeros(Arc<[u8]>),
}

impl Ready {
    pub(super) fn new(number: u32, memory: PartMemory, len: usize) -> Self {
        Self { number, memory, len, crc64: None, failed: None, began: Instant::now() }
    }

    /// Its bytes, which nothing writes to any more and which are there for as long as this is.
    pub(super) fn bytes(&self) -> HostRange {
        let range = match &self.memory {
            PartMemory::Gathered(buffer) => HostRange::of(&lock(buffer)),
            PartMemory::Written(range, _) => *range,
            PartMemory::Zeros(zeros) => HostRange::of(zeros),
        };
        HostRange { len: self.len, ..range }
    }
}

impl State {
    /// Whether a further part may be put together. Where nothing under way gives memory back, one may: a program that writes the
    /// beginning last waits for no part.
    pub(super) fn may_gather(&self) -> bool {
        let is_idle = self.in_flight == 0 && self.ready.is_empty() && self.ends.is_empty();
        self.gathered < MAX_GATHERED || is_idle
    }

    /// Memory for a part; its bytes are of any value.
    fn gather(&mut self, len: usize) -> Gathering {
        self.gathered += 1;
        let spare = self.spare.pop().filter(|spare| lock(spare).len() == len);
        let buffer = spare.unwrap_or_else(|| Arc::new(Mutex::new(vec![0; len])));
        Gathering { buffer, covered: Covered::default(), copies: 0 }
    }

    /// A buffer is not in use any more.
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.gathered -= 1;
        if lock(&buffer).len() as u64 == parts::FIRST && self.spare.len() < MAX_GATHERED {
            self.spare.push(buffer);
        }
    }
}

impl Shared {
    pub(super) fn new(bucket: Bucket, key: String, like: Like) -> Self {
        let state = Mutex::new(State::default());
        let (process, sent_bytes) = (ProcessId::current(), Arc::default());
        Self { bucket, key, like, process, sent_bytes, state, changed: Condvar::new() }
    }

    pub(super) fn url(&self) -> String {
        self.bucket.url(&self.key)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Takes a piece: it is copied, sent with its part, or waits.
    pub(super) fn put(self: &Arc<Self>, piece: Piece) {
        let part = self.like.sizes.range(piece.number);
        let size = (part.end - part.start) as usize;
        let mut state = self.lock();
        if let Some(error) = state.error.clone() {
            drop(state);
            return piece.joint.done(Err(error));
        }
        state.len = state.len.max(part.start + (piece.at + piece.memory.len) as u64);
        match state.parts.get(&piece.number) {
            Some(Part::Sent) => {
                drop(state);
                let error = Error::new(ErrorKind::Unsupported, "these bytes of the object were sent already");
                return piece.joint.done(Err(error.hint("write each byte of an object once")));
            }
            Some(Part::Gathering(_)) => {}
            None if piece.memory.len == size => {
                let memory = PartMemory::Written(piece.memory, piece.joint);
                state.parts.insert(piece.number, Part::Sent);
                state.ready.push_back(Ready::new(piece.number, memory, size));
                return self.wake_sender(state);
            }
            None if state.may_gather() => {
                let new = state.gather(size);
                state.parts.insert(piece.number, Part::Gathering(new));
            }
            None => {
                state.waiting.push_back(piece);
                return;
            }
        }
        self.copy(state, &piece, size);
    }

    /// Copies a piece to its part's memory. A part that is whole then is sent.
    fn copy(self: &Arc<Self>, mut state: MutexGuard<'_, State>, piece: &Piece, size: usize) {
        let Some(Part::Gathering(part)) = state.parts.get_mut(&piece.number) else { return };
        part.copies += 1;
        let buffer = part.buffer.clone();
        drop(state);
        let range = piece.at..piece.at + piece.memory.len;
        // SAFETY: the request's maker keeps the memory valid and untouched until the answer, which follows.
        let bytes = unsafe { std::slice::from_raw_parts(piece.memory.start, piece.memory.len) };
        lock(&buffer)[range.clone()].copy_from_slice(bytes);
        let mut state = self.lock();
        if let Some(Part::Gathering(part)) = state.parts.get_mut(&piece.number) {
            part.copies -= 1;
            part.covered.add(range);
            if part.copies == 0 && part.covered.is_whole(size) {
                state.parts.insert(piece.number, Part::Sent);
                state.ready.push_back(Ready::new(piece.number, PartMemory::Gathered(buffer), size));
            }
        }
        self.wake_sender(state);
        piece.joint.done(Ok(()));
    }

    /// Has the thread look at what changed; the first part that is ready starts it.
    pub(super) fn wake_sender(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.sender.is_none() && !state.ready.is_empty() {
            match sender::start(self) {
                Ok(handle) => state.sender = Some(handle),
                Err(error) => {
                    drop(state);
                    return self.fail(&Error::from_io(&error, "cannot start a thread"));
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the upload with its first error: all that waits gets it.
    pub(super) fn fail(&self, error: &Error) {
        let mut state = self.lock();
        state.error.get_or_insert_with(|| error.clone());
        let waiting = std::mem::take(&mut state.waiting);
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        self.changed.notify_all();
        for piece in waiting {
            piece.joint.done(Err(error.clone()));
        }
        for part in ready {
            self.release(part, Err(error.clone()));
        }
    }

    /// Gives the memory of a part back.
    pub(super) fn release(&self, part: Ready, result: forebay_error::Result<()>) {
        match part.memory {
            PartMemory::Gathered(buffer) => self.lock().give_back(buffer),
            PartMemory::Written(_, joint) => joint.done(result),
            PartMemory::Zeros(_) => {}
        }
    }
}
