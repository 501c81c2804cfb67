//! Operations: transfers that run when their stream reaches them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Post;

use super::completion::OperationEnd;
use super::file_work::{ChunkEnd, StreamEngines};
use super::staging_pool::StagingRing;
use super::stream_state::StreamState;
use crate::request::completion::is_short_write;
use crate::request::file::File;
use crate::request::receipt::Moved;
use crate::request::transfer::Memory;
use crate::runtime::traffic::QueuedOperation;
use crate::source::piece::Direction;
use crate::tuning::plan::CELL;

/// A transfer in the order of a stream, whose range is known only when the stream gets there.
pub struct Late {
    /// The source.
    pub file: File,
    /// The memory's device and context. Its address is not used: see [`Bound::address`].
    pub memory: Memory,
    /// Which way.
    pub direction: Direction,
    /// The most bytes that it will be.
    pub most: usize,
    /// Tells the range. Called once, on a thread of forebay's, when all that was queued before is done. It must not use
    /// CUDA and should be quick: other streams may wait for it.
    pub bind: Box<dyn FnOnce() -> Result<Bound> + Send>,
    /// Called with the bytes (fewer than asked for at the end of the file) or the error, before the stream goes on: a
    /// program that has waited for the stream sees what this did. The same rules as for `bind`.
    pub done: Box<dyn FnOnce(Result<u64>) + Send>,
}

impl std::fmt::Debug for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, direction, most, .. } = self;
        f.debug_struct("Late")
            .field("file", file)
            .field("direction", direction)
            .field("most", most)
            .finish_non_exhaustive()
    }
}

/// The range of a [`Late`] transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Offset in the source.
    pub offset: u64,
    /// Address in memory.
    pub address: u64,
    /// Bytes: at most [`Late::most`].
    pub len: usize,
}

/// How bytes travel.
#[derive(Clone)]
pub(crate) enum OperationRoute {
    /// Through staging that the stream's own kernels copy from and to.
    StagingRing(Arc<StagingRing>),
    /// Straight to or from the memory, by the CPU or another engine: the stream only waits.
    Straight,
    /// Nothing moves.
    Nothing,
}

/// Receives the result.
pub(crate) enum ResultTarget {
    User(Box<dyn FnOnce(Result<u64>) + Send>),
    Ticket(Arc<OperationEnd>),
}

impl ResultTarget {
    pub(super) fn report(self, engines: &StreamEngines, (good, error): ChunkEnd, moved: Moved) {
        match self {
            Self::User(done) => {
                let error = error.filter(|error| !is_short_write(good, error));
                let result = error.map_or(Ok(good), Err);
                engines.totals.add(moved, result.is_err());
                // The panic hook has reported a panic; the stream must go on.
                let _ = catch_unwind(AssertUnwindSafe(|| done(result)));
            }
            Self::Ticket(end) => end.result_known((good, error), moved),
        }
    }
}

/// A transfer that has no place in a stream yet.
pub(crate) struct StreamRequest {
    pub(crate) file: File,
    pub(crate) memory: Memory,
    pub(crate) direction: Direction,
    pub(crate) most: usize,
    pub(crate) bind: Box<dyn FnOnce() -> Result<Bound> + Send>,
    pub(crate) target: ResultTarget,
    pub(crate) engines: Arc<StreamEngines>,
}

impl StreamRequest {
    pub(crate) fn of(late: Late, engines: Arc<StreamEngines>) -> Self {
        let Late { file, memory, direction, most, bind, done } = late;
        Self { file, memory, direction, most, bind, target: ResultTarget::User(done), engines }
    }
}

/// An operation with its place in a stream.
///
/// Places are numbers that the stream reaches one after the other. The stream waits at some of them: for a read before
/// each copy, for a write also after the last. The last number only says that the stream has passed the operation.
pub(crate) struct Operation {
    pub(super) request: StreamRequest,
    pub(super) route: OperationRoute,
    pub(super) first: u32,
    pub(super) queued: QueuedOperation,
}

/// The numbers that an operation takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperationNumbers {
    pub(super) first: u32,
    /// Copies, each by one kernel.
    pub(super) steps: u32,
    /// Places where the stream waits.
    pub(super) holds: u32,
}

impl OperationNumbers {
    pub(super) fn new(first: u32, direction: Direction, most: usize, route: &OperationRoute) -> Self {
        let steps = match route {
            OperationRoute::StagingRing(ring) => most.div_ceil(ring.chunk).max(1) as u32,
            OperationRoute::Straight | OperationRoute::Nothing => 0,
        };
        let holds = if steps == 0 || direction == Direction::Write { steps + 1 } else { steps };
        Self { first, steps, holds }
    }

    /// Reached when the stream has passed the operation.
    pub(super) fn last(self) -> u32 {
        self.first.wrapping_add(self.holds)
    }
}

impl Operation {
    pub(super) fn numbers(&self) -> OperationNumbers {
        OperationNumbers::new(self.first, self.request.direction, self.request.most, &self.route)
    }
}

/// Commands for the stream that make up an operation.
pub(super) fn posts(
    stream: &StreamState,
    numbers: OperationNumbers,
    most: usize,
    route: &OperationRoute,
    posts: &mut Vec<Post>,
) {
    let memory = &stream.memory;
    posts.clear();
    for hold in 0..numbers.holds {
        let number = numbers.first.wrapping_add(hold);
        posts.push(Post::Write(memory.reached, number));
        posts.push(Post::Wait(memory.go, number));
        if let (true, OperationRoute::StagingRing(ring)) = (hold < numbers.steps, route) {
            let here = step_len(most, ring.chunk, hold);
            let (count, longest) = (pieces_of(here), here.min(CELL));
            posts.push(Post::Scatter { list: memory.list.device, count, longest });
        }
    }
    posts.push(Post::Write(memory.reached, numbers.last()));
}

/// The most bytes of a step.
pub(super) fn step_len(most: usize, chunk: usize, step: u32) -> usize {
    most.saturating_sub(step as usize * chunk).min(chunk)
}

/// Pieces of a step's list.
pub(super) fn pieces_of(bytes: usize) -> usize {
    bytes.div_ceil(CELL).max(1)
}

/// Calls `bind` and checks the range.
pub(crate) fn bind(call: Box<dyn FnOnce() -> Result<Bound> + Send>, most: usize) -> Result<Bound> {
    let bound = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Internal, "telling the range of a transfer panicked"))
    })?;
    if bound.len > most {
        return Err(Error::new(ErrorKind::InvalidInput, "more bytes than the transfer was queued for")
            .with("bytes", bound.len)
            .with("most", most));
    }
    if bound.offset.checked_add(bound.len as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Error::new(ErrorKind::InvalidInput, "the offset is beyond what a file can have")
            .with("offset", bound.offset));
    }
    Ok(bound)
}
