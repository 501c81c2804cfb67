//! A batch on its way: ranges are asked of the server, a bounded number at a time. Memory is the caller's again when the last of
//! them is answered, which is when nothing can arrive in it any more.

use std::sync::{Arc, Mutex};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;
use forebay_source::{DeviceRange, Place, StateToken};
use forebay_verbs::RegisteredMemory;

use super::refusals::error_refusal;
use super::server_file::ServerFile;
use super::trial;
use crate::engines::Onward;
use crate::engines::task_thread::{TaskThread, answer};
use crate::io::plan::Part;
use crate::request::receipt::{Election, EngineKind, Moved, Note, Refusal, Way};
use crate::request::transfer::Batch;
use crate::runtime::lock;
use crate::source::piece::Piece;

/// Bytes of a range at most.
const MAX_RANGE: usize = 16 << 20;
/// Ranges of a transfer under way at most: more than all connections of a server have calls under way.
const MAX_RANGES: usize = 512;
/// Bytes of a transfer under way at most: a cancelled one still waits for them.
const MAX_BYTES: usize = 256 << 20;

/// A range of a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    entry: u32,
    offset: u64,
    memory: DeviceRange,
    /// Where in the piece.
    at: u64,
    /// Which registration.
    registration: usize,
}

/// Cuts a piece into ranges.
pub(super) fn cut(ranges: &mut Vec<Range>, entry: u32, piece: &Piece, registration: usize) {
    let mut at = 0;
    while at < piece.len {
        let len = (piece.len - at).min(MAX_RANGE);
        let memory = DeviceRange::new(piece.address + at as u64, len);
        ranges.push(Range { entry, offset: piece.offset + at as u64, memory, at: at as u64, registration });
        at += len;
    }
}

/// The parts of a flight.
pub(super) struct FlightParts {
    pub(super) batch: Arc<Batch>,
    pub(super) server: ServerFile,
    pub(super) ranges: Vec<Range>,
    pub(super) memory: Vec<Arc<RegisteredMemory>>,
    pub(super) key: Option<trial::Key>,
    pub(super) device: Arc<dyn Device>,
    /// Nothing else may be used.
    pub(super) is_all: bool,
}

/// A batch on its way.
pub(super) struct Flight {
    onward: Onward,
    /// For work that must not wait on a connection's thread or the submitter's.
    checks: TaskThread,
    state: Mutex<FlightState>,
}

/// The results of the ranges that have ended.
#[derive(Default)]
struct Ended {
    moved: u64,
    /// Ranges in which the file ended, and their bytes before that.
    short: Vec<(Range, u64)>,
    failed: Vec<(Range, Error)>,
    /// The mounted file changed meanwhile, which is why all failed.
    has_changed: bool,
}

struct FlightState {
    /// `None`: it is over.
    parts: Option<FlightParts>,
    /// The next range.
    next: usize,
    /// Ranges that are asked for, and their bytes.
    asked: (usize, usize),
    ended: Ended,
    /// The server's attributes of a mounted file before the transfer.
    before: Option<StateToken>,
    /// A thread asks for ranges; answers that come meanwhile leave the rest to it.
    is_pumping: bool,
}

impl Flight {
    pub(super) fn new(parts: FlightParts, onward: Onward, checks: TaskThread) -> Arc<Self> {
        let state = FlightState {
            parts: Some(parts),
            next: 0,
            asked: (0, 0),
            ended: Ended::default(),
            before: None,
            is_pumping: false,
        };
        Arc::new(Self { onward, checks, state: Mutex::new(state) })
    }

    /// Begins. For a mounted file, this host's writes go to the server first, and the server returns the file's state.
    pub(super) fn begin(self: &Arc<Self>) {
        let server = lock(&self.state).parts.as_ref().map(|parts| parts.server.clone());
        let Some(server) = server.filter(|server| server.is_mounted) else { return self.pump() };
        let this = self.clone();
        self.checks.add(Box::new(move || {
            let told = answer(|| server.settle().and_then(|()| server.place.state()));
            drop(server);
            let mut state = lock(&this.state);
            match told {
                Ok(told) => state.before = Some(told),
                Err(error) => {
                    let ranges = state.parts.as_ref().map_or(&[][..], |parts| &parts.ranges);
                    let (failed, next) = (all_failed(ranges, &error), ranges.len());
                    (state.ended.failed, state.next) = (failed, next);
                }
            }
            drop(state);
            this.pump();
        }));
    }

    /// Whether the work that it comes after is done, or it was given up.
    pub(super) fn may_start(&self) -> bool {
        self.onward.completion.may_copy() || self.onward.completion.is_cancelled()
    }

    /// Asks for as many ranges as may be under way, and ends the flight behind the last.
    pub(super) fn pump(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.is_pumping || state.parts.is_none() {
            return;
        }
        state.is_pumping = true;
        while let Some((range, place, memory)) = self.next(&mut state) {
            drop(state);
            let this = self.clone();
            let answer = Box::new(move |result| this.answered(range, result));
            // SAFETY: the submitter keeps the memory valid and to itself until the completion resolves, which is behind all
            // answers.
            unsafe { place.place(range.offset, range.memory, memory, answer) };
            drop(place);
            state = lock(&self.state);
        }
        state.is_pumping = false;
        if state.asked.0 == 0 {
            let before = state.before.take();
            let ended = std::mem::take(&mut state.ended);
            let parts = state.parts.take();
            drop(state);
            match (parts, before) {
                (Some(parts), Some(before)) => {
                    let this = self.clone();
                    self.checks.add(Box::new(move || this.check(parts, ended, &before)));
                }
                (Some(parts), None) => self.end(parts, ended),
                (None, _) => {}
            }
        }
    }

    /// Whether a mounted file is in the state that it was in before: otherwise its bytes may be of two, and all is read again.
    fn check(&self, parts: FlightParts, ended: Ended, before: &StateToken) {
        let (error, has_changed) = match answer(|| parts.server.place.state()) {
            Ok(after) if after == *before => return self.end(parts, ended),
            Ok(_) => {
                (Error::new(ErrorKind::Busy, "the file changed while the server placed its bytes"), true)
            }
            Err(error) => (error, false),
        };
        let failed = all_failed(&parts.ranges, &error);
        self.end(parts, Ended { failed, has_changed, ..Ended::default() });
    }

    /// The next range to ask for; leaves out the rest of a flight that was cancelled.
    fn next(&self, state: &mut FlightState) -> Option<(Range, Arc<dyn Place>, Arc<RegisteredMemory>)> {
        let parts = state.parts.as_ref()?;
        if self.onward.completion.is_cancelled() {
            for range in &parts.ranges[state.next..] {
                self.onward.completion.leave_out(self.onward.base + range.entry, range.at);
            }
            state.next = parts.ranges.len();
        }
        let range = *parts.ranges.get(state.next)?;
        let (count, bytes) = state.asked;
        if count >= MAX_RANGES || count > 0 && bytes + range.memory.len > MAX_BYTES {
            return None;
        }
        state.next += 1;
        state.asked = (count + 1, bytes + range.memory.len);
        Some((range, parts.server.place.clone(), parts.memory[range.registration].clone()))
    }

    fn answered(self: &Arc<Self>, range: Range, result: Result<usize>) {
        let mut state = lock(&self.state);
        state.asked = (state.asked.0 - 1, state.asked.1 - range.memory.len);
        match result {
            Ok(bytes) => {
                state.ended.moved += bytes as u64;
                if bytes < range.memory.len {
                    state.ended.short.push((range, bytes as u64));
                }
            }
            Err(error) => state.ended.failed.push((range, error)),
        }
        drop(state);
        self.pump();
    }

    /// All ranges are answered.
    fn end(&self, parts: FlightParts, ended: Ended) {
        let completion = self.onward.completion.clone();
        let Ended { moved, short, failed, has_changed } =
            match parts.device.flush_writes(parts.batch.memory.context) {
                Ok(()) => ended.in_one_state(&parts),
                Err(error) => Ended { failed: all_failed(&parts.ranges, &error), ..Ended::default() },
            };
        for (range, bytes) in short {
            completion.cut(self.onward.base + range.entry, range.at + bytes);
        }
        if moved > 0 {
            completion.note(note(&parts));
        }
        if let Some((_, error)) = failed.first() {
            let refusal = error_refusal(error);
            // A server that waits or refuses does so with every way; other errors may belong to this one.
            // The kernel has a way of its own to the server of a mount.
            let is_of_server = error.kind() == ErrorKind::Timeout && !parts.server.is_mounted;
            // A change that this flight saw is no fault of the server. After any other error the way is left alone for a while, for this
            // file where it is stale and for all files otherwise: else each transfer would ask again.
            if let Some(key) = parts.key.as_ref().filter(|_| !has_changed) {
                trial::pause(key, &parts.server.file, error, &refusal);
            }
            if parts.is_all || is_of_server {
                for (range, error) in &failed {
                    completion.fail(self.onward.base + range.entry, range.at, error.clone());
                }
            } else {
                self.stage(&parts, &refusal, moved, &failed);
            }
        }
        // A caller that finds the transfer resolved finds its file released.
        drop(parts);
        completion.work_done(Moved::of(Way::Server, moved));
    }

    /// Gives the failed parts to the engines further down.
    fn stage(&self, parts: &FlightParts, refusal: &Refusal, moved: u64, failed: &[(Range, Error)]) {
        let left = failed.iter().map(|(range, _)| range.memory.len as u64).sum::<u64>();
        let refusal =
            Refusal { reason: format!("{} ({left} bytes were staged)", refusal.reason), ..refusal.clone() };
        let completion = &self.onward.completion;
        let mut election: Election = completion.elected_so_far().refusing(&refusal);
        if moved < left {
            election.engine = EngineKind::Placed.for_the_rest();
        }
        completion.elected(Arc::new(election));
        let rest: Vec<Part> = failed
            .iter()
            .map(|(Range { entry, offset, memory, .. }, _)| Part::Range {
                entry: *entry,
                start: *offset,
                end: offset + memory.len as u64,
            })
            .collect();
        // SAFETY: the parts are of this flight's batch, and no call of it is under way.
        unsafe { self.onward.hand_on(&parts.batch, &rest) };
    }
}

impl Ended {
    /// Where a part of a mounted file failed, all is read again: the kernel's page cache may hold an older state of that part.
    fn in_one_state(self, parts: &FlightParts) -> Self {
        match self.failed.first() {
            Some((_, error)) if parts.server.is_mounted => Self {
                failed: all_failed(&parts.ranges, error),
                has_changed: self.has_changed,
                ..Self::default()
            },
            _ => self,
        }
    }
}

fn all_failed(ranges: &[Range], error: &Error) -> Vec<(Range, Error)> {
    ranges.iter().map(|range| (*range, error.clone())).collect()
}

fn note(parts: &FlightParts) -> Note {
    let device = parts.memory.first().map_or("", |memory| memory.device());
    let coherence = if parts.server.is_mounted {
        "; this host's writes were on the server before, and the file did not change meanwhile"
    } else {
        ""
    };
    let way = parts.server.place.way();
    let text = format!("by RDMA into device memory: {way}, NIC {device}; keys: per buffer{coherence}");
    Note { text, hint: None }
}
