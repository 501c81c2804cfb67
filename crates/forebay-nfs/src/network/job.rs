//! A request of the caller: a range of a file and memory, cut into calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
pub use forebay_source::{Answer, Direction};
use forebay_verbs::{HostRange, RegisteredMemory};

use crate::lock;
use crate::protocol::handle::{CallLimits, FileState, NfsHandle};
use crate::protocol::io_call::{IoCall, IoOperation, IoReply};

/// How often bytes are written anew because the server restarted before it made them durable.
const MAX_REWRITES: u32 = 5;

/// A file, as its server and as errors name it.
pub(crate) struct FileTarget {
    pub(crate) handle: NfsHandle,
    pub(crate) name: String,
}

/// What a caller asks for.
pub(crate) struct IoRequest {
    pub(crate) file: Arc<FileTarget>,
    pub(crate) direction: Direction,
    pub(crate) offset: u64,
    pub(crate) memory: HostRange,
    /// The registration, where the memory was registered before: it is no host memory then.
    pub(crate) registered: Option<Arc<RegisteredMemory>>,
    /// The file's state, where bytes of another one are of no use.
    pub(crate) state: Option<FileState>,
    /// Each piece of a write is made durable at once.
    pub(crate) durable: bool,
}

impl IoRequest {
    /// An error that names the file, and the place in it.
    pub(crate) fn name(&self, error: Error) -> Error {
        let error = error.with("url", &self.file.name).with("offset", self.offset);
        let is_refused = error.errno() == libc::ECONNREFUSED && error.hints().is_empty();
        if is_refused { error.hint("nothing listens there any more: start the server") } else { error }
    }
}

/// A request under way.
pub(crate) struct IoJob {
    request: IoRequest,
    /// When it was asked for.
    asked: Instant,
    state: Mutex<JobState>,
}

struct JobState {
    /// Bytes from the start for which calls were made.
    issued: usize,
    /// Calls without an answer.
    pending: u32,
    /// Bytes before the end of the file.
    end: usize,
    error: Option<Error>,
    answer: Option<Answer>,
    verifier: Option<[u8; 8]>,
    /// Some bytes were taken, but are not durable.
    is_volatile: bool,
    /// The server restarted: accepted writes may be lost.
    is_lost: bool,
    is_committing: bool,
    rounds: u32,
}

/// A part of a job, for one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobPart {
    pub(crate) io: IoCall,
    /// Memory of the bytes. Behind those of the call a later one moves: the server takes fewer in a call than when the part was cut.
    pub(crate) memory: HostRange,
    /// Where in the job.
    pub(crate) at: usize,
    /// The memory is not this process's to touch.
    pub(crate) is_placed: bool,
}

impl JobPart {
    /// The rest after the first `count` bytes.
    pub(crate) const fn after(self, count: u32) -> Self {
        let io = IoCall { offset: self.io.offset + count as u64, count: self.len() - count, ..self.io };
        let (memory, at) = (self.memory.after(count as usize), self.at + count as usize);
        Self { io, memory, at, ..self }
    }

    /// All of its bytes.
    const fn len(&self) -> u32 {
        self.memory.len as u32
    }

    /// Has its call move what the server takes now.
    pub(crate) fn limit(&mut self, limits: CallLimits) {
        let most = match self.io.operation {
            IoOperation::Read => limits.read,
            IoOperation::Write { .. } => limits.write,
            IoOperation::Commit => return,
        };
        self.io.count = self.len().min(most);
    }
}

/// What follows the last call of a job.
pub(crate) enum NextStep {
    /// Nothing: others are still under way.
    Wait,
    /// More calls.
    Again,
    /// The caller gets the result.
    Complete(Answer, Result<usize>),
}

impl NextStep {
    /// Tells the caller. The thread has the calls of other requests, too: a panic ends here.
    pub(crate) fn complete(self) {
        if let Self::Complete(answer, result) = self {
            let _ = catch_unwind(AssertUnwindSafe(|| answer(result)));
        }
    }
}

impl IoJob {
    /// # Safety
    /// The request's memory is valid, and nobody else uses it (for a write: nobody changes it), until the answer.
    pub(crate) unsafe fn new(request: IoRequest, answer: Answer, asked: Instant) -> Arc<Self> {
        let state = JobState {
            issued: 0,
            pending: 0,
            end: request.memory.len,
            error: None,
            answer: Some(answer),
            verifier: None,
            is_volatile: false,
            is_lost: false,
            is_committing: false,
            rounds: 0,
        };
        Arc::new(Self { request, asked, state: Mutex::new(state) })
    }

    /// Its file.
    pub(crate) const fn file(&self) -> &Arc<FileTarget> {
        &self.request.file
    }

    /// When it was asked for.
    pub(crate) const fn asked(&self) -> Instant {
        self.asked
    }

    /// The memory of its bytes, where that was registered before.
    pub(crate) fn registered(&self) -> Option<&RegisteredMemory> {
        self.request.registered.as_deref()
    }

    /// The next part to ask for, and whether more follow.
    #[inline]
    pub(crate) fn next(&self, limits: CallLimits) -> Option<(JobPart, bool)> {
        let mut state = lock(&self.state);
        // The caller has its result, and its memory back.
        state.answer.as_ref()?;
        if state.is_committing && state.pending == 0 {
            state.pending = 1;
            let len = u32::try_from(self.request.memory.len).unwrap_or(0);
            return Some((self.part(IoOperation::Commit, 0, len), false));
        }
        let part = self.cut(&mut state, limits)?;
        state.pending += 1;
        Some((part, state.issued < state.end))
    }

    /// The next range to read or write.
    #[inline]
    fn cut(&self, state: &mut JobState, limits: CallLimits) -> Option<JobPart> {
        if state.is_committing || state.issued >= state.end || state.error.is_some() {
            return None;
        }
        let most = match self.request.direction {
            Direction::Read => limits.read,
            Direction::Write => limits.write,
        };
        let (at, count) = (state.issued, (state.end - state.issued).min(most as usize));
        state.issued += count;
        let operation = match self.request.direction {
            Direction::Read => IoOperation::Read,
            // A single piece is made durable at once; many share a COMMIT.
            Direction::Write => IoOperation::Write {
                durable: self.request.durable || self.request.memory.len <= most as usize,
            },
        };
        Some(self.part(operation, at, count as u32))
    }

    /// How many calls it takes at most.
    pub(crate) fn calls(&self, limits: CallLimits) -> usize {
        self.request.memory.len.div_ceil(limits.read.min(limits.write) as usize)
    }

    const fn part(&self, operation: IoOperation, at: usize, count: u32) -> JobPart {
        let request = &self.request;
        let tells_state = request.state.is_some();
        let io = IoCall { operation, offset: request.offset + at as u64, count, tells_state };
        let is_placed = request.registered.is_some();
        JobPart { io, memory: request.memory.after(at).first(count as usize), at, is_placed }
    }

    /// Takes note of the reply to a part. `None`: `part` is what its call asks for next, which is the rest of it, or the next part of
    /// the job if `limits` are given; else the part has ended.
    #[inline]
    pub(crate) fn note_reply(
        &self,
        part: &mut JobPart,
        reply: IoReply,
        limits: Option<CallLimits>,
    ) -> Option<NextStep> {
        let mut state = lock(&self.state);
        let left = match reply {
            IoReply::Read { state: told, .. }
                if self.request.state.is_some() && told != self.request.state =>
            {
                return Some(self.ended_in(&mut state, Some(changed(told))));
            }
            IoReply::Read { count, is_end, .. } => {
                if is_end && count < part.len() {
                    state.end = state.end.min(part.at + count as usize);
                }
                (count < part.len() && !is_end).then_some(count)
            }
            IoReply::Written { count, durable, verifier } => {
                if !durable {
                    state.is_lost |= state.verifier.is_some_and(|before| before != verifier);
                    state.verifier = Some(verifier);
                    state.is_volatile = true;
                }
                (count < part.len()).then_some(count)
            }
            IoReply::Committed { verifier } => {
                state.is_lost |= state.verifier != Some(verifier);
                state.is_volatile = false;
                None
            }
            IoReply::Failed(_) | IoReply::SequenceRefused(_) | IoReply::Rejected(_) => None,
        };
        // One part ends and another begins: as many are under way as before.
        let next = match (left, limits) {
            (Some(count), _) => Some(part.after(count)),
            (None, Some(limits)) => self.cut(&mut state, limits),
            (None, None) => None,
        };
        let Some(next) = next else { return Some(self.ended_in(&mut state, None)) };
        *part = next;
        None
    }

    /// Asks for nothing more: it ends with its last call, or now.
    pub(crate) fn refuse(&self, error: &Error) -> NextStep {
        let mut state = lock(&self.state);
        state.error.get_or_insert_with(|| error.clone());
        if state.pending > 0 { NextStep::Wait } else { self.over(&mut state) }
    }

    /// Ends a part, with its error if it failed.
    pub(crate) fn ended(&self, error: Option<Error>) -> NextStep {
        self.ended_in(&mut lock(&self.state), error)
    }

    fn ended_in(&self, state: &mut JobState, error: Option<Error>) -> NextStep {
        state.pending -= 1;
        if let Some(error) = error {
            state.error.get_or_insert(error);
        }
        if state.pending > 0 || (state.issued < state.end && state.error.is_none()) {
            return NextStep::Wait;
        }
        if state.error.is_none() && self.request.direction == Direction::Write {
            if state.is_volatile && !state.is_lost {
                state.is_committing = true;
                return NextStep::Again;
            }
            if state.is_lost {
                return self.write_anew(state);
            }
        }
        self.over(state)
    }

    /// The server has restarted and may have lost what it had taken. The memory is still ours: all is written again.
    fn write_anew(&self, state: &mut JobState) -> NextStep {
        state.rounds += 1;
        if state.rounds > MAX_REWRITES {
            state.error = Some(
                Error::new(ErrorKind::Io, "cannot write: the server loses bytes that it has accepted")
                    .hint("the write verifier changes with every call: look at the server's log"),
            );
            return self.over(state);
        }
        (state.issued, state.verifier) = (0, None);
        (state.is_volatile, state.is_lost, state.is_committing) = (false, false, false);
        NextStep::Again
    }

    fn over(&self, state: &mut JobState) -> NextStep {
        let result = state.error.take().map_or(Ok(state.end), |error| Err(self.request.name(error)));
        state.answer.take().map_or(NextStep::Wait, |answer| NextStep::Complete(answer, result))
    }
}

/// What the error of a read says whose file is in another state by now.
pub const CHANGED: &str = "the file changed while it was read";

/// Why bytes of a file are of no use.
fn changed(told: Option<FileState>) -> Error {
    match told {
        Some(_) => Error::new(ErrorKind::Busy, CHANGED),
        None => Error::new(
            ErrorKind::Unsupported,
            "the server does not send the file's attributes with its bytes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::{Error, ErrorKind};

    use super::*;

    /// A read of `memory`, whose caller's answer is thrown away.
    fn read(memory: &mut [u8]) -> Arc<IoJob> {
        let request = IoRequest {
            file: Arc::new(FileTarget { handle: NfsHandle::new(&[1]).unwrap(), name: "file".to_owned() }),
            direction: Direction::Read,
            offset: 0,
            memory: HostRange::of_mut(memory),
            registered: None,
            state: None,
            durable: false,
        };
        // SAFETY: nothing is read into the memory.
        unsafe { IoJob::new(request, Box::new(drop), Instant::now()) }
    }

    const LIMITS: CallLimits = CallLimits { read: 512, write: 512 };

    /// The caller has its memory back, whatever was not asked for yet.
    #[test]
    fn a_request_that_was_answered_asks_for_nothing_more() {
        let mut memory = [0u8; 1024];
        let job = read(&mut memory);
        assert!(matches!(job.next(LIMITS), Some((_, true))));
        let ended = job.ended(Some(Error::new(ErrorKind::Io, "refused")));
        assert!(matches!(ended, NextStep::Complete(_, Err(_))));
        assert!(job.next(LIMITS).is_none());
    }

    #[test]
    fn a_call_goes_on_with_what_is_left_of_its_part_and_then_with_the_next_one() {
        let mut memory = [0u8; 1200];
        let job = read(&mut memory);
        let reply = |count, is_end| IoReply::Read { count, is_end, state: None };
        let range = |part: &JobPart| (part.at, part.io.offset, part.io.count);
        let (mut part, _) = job.next(LIMITS).unwrap();
        assert!(job.note_reply(&mut part, reply(100, false), None).is_none());
        assert_eq!(range(&part), (100, 100, 412));
        assert!(job.note_reply(&mut part, reply(412, false), Some(LIMITS)).is_none());
        assert_eq!(range(&part), (512, 512, 512));
        // Another wire has the last part.
        let (mut last, more) = job.next(LIMITS).unwrap();
        assert!(!more);
        assert!(matches!(job.note_reply(&mut part, reply(512, false), Some(LIMITS)), Some(NextStep::Wait)));
        let ended = job.note_reply(&mut last, reply(100, true), Some(LIMITS));
        assert!(matches!(ended, Some(NextStep::Complete(_, Ok(1124)))));
    }

    /// A part that fails ends the job: none of it is asked for again, by no call.
    #[test]
    fn a_call_does_not_go_on_with_a_job_that_failed() {
        let mut memory = [0u8; 2048];
        let job = read(&mut memory);
        let (mut part, _) = job.next(LIMITS).unwrap();
        job.next(LIMITS).unwrap();
        assert!(matches!(job.ended(Some(Error::new(ErrorKind::Io, "refused"))), NextStep::Wait));
        let reply = IoReply::Read { count: 512, is_end: false, state: None };
        assert!(matches!(
            job.note_reply(&mut part, reply, Some(LIMITS)),
            Some(NextStep::Complete(_, Err(_)))
        ));
    }
}
