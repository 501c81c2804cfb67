//! What a stream is to do when it gets there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Post;

use super::completion::Landing;
use super::file_work::Office;
use super::staging_pool::{PIECE, Ring};
use super::stream_state::Track;
use crate::request::file::File;
use crate::request::receipt::Moved;
use crate::request::transfer::Memory;
use crate::runtime::traffic::Queued;
use crate::source::piece::Direction;

/// A transfer in the order of a stream, whose range is told only when the stream gets there.
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
    /// Is told the bytes (fewer than asked for at the end of the file) or the error, before the stream goes on: a
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
pub(crate) enum Route {
    /// Through staging that the stream's own kernels copy from and to.
    Ring(Arc<Ring>),
    /// Straight to or from the memory, by whoever can: the stream only waits.
    Straight,
    /// Nothing moves.
    Nothing,
}

/// Who is told the result.
pub(crate) enum Told {
    User(Box<dyn FnOnce(Result<u64>) + Send>),
    Ticket(Arc<Landing>),
}

impl Told {
    pub(super) fn tell(self, office: &Office, result: Result<u64>, moved: Moved) {
        match self {
            Self::User(done) => {
                office.totals.add(moved, result.is_err());
                // The panic hook has told of a panic; the stream must go on.
                let _ = catch_unwind(AssertUnwindSafe(|| done(result)));
            }
            Self::Ticket(landing) => landing.told(result, moved),
        }
    }
}

/// What is asked for, before it has its place in a stream.
pub(crate) struct Asked {
    pub(crate) file: File,
    pub(crate) memory: Memory,
    pub(crate) direction: Direction,
    pub(crate) most: usize,
    pub(crate) bind: Box<dyn FnOnce() -> Result<Bound> + Send>,
    pub(crate) told: Told,
    pub(crate) office: Arc<Office>,
}

impl Asked {
    pub(crate) fn of(late: Late, office: Arc<Office>) -> Self {
        let Late { file, memory, direction, most, bind, done } = late;
        Self { file, memory, direction, most, bind, told: Told::User(done), office }
    }
}

/// An operation with its place in a stream.
///
/// Places are numbers that the stream reaches one after the other. It waits at some until it may go on:
/// a read waits before each of its copies, a write also after the last; the last number only says that the stream is
/// through.
pub(crate) struct Operation {
    pub(super) asked: Asked,
    pub(super) route: Route,
    pub(super) first: u32,
    pub(super) queued: Queued,
}

/// The numbers that an operation takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) first: u32,
    /// Copies, each by one kernel.
    pub(super) steps: u32,
    /// Places where the stream waits.
    pub(super) holds: u32,
}

impl Numbers {
    pub(super) fn new(first: u32, direction: Direction, most: usize, route: &Route) -> Self {
        let steps = match route {
            Route::Ring(ring) => most.div_ceil(ring.chunk).max(1) as u32,
            Route::Straight | Route::Nothing => 0,
        };
        let holds = if steps == 0 || direction == Direction::Write { steps + 1 } else { steps };
        Self { first, steps, holds }
    }

    /// Reached when the stream is through.
    pub(super) fn last(self) -> u32 {
        self.first.wrapping_add(self.holds)
    }
}

impl Operation {
    pub(super) fn numbers(&self) -> Numbers {
        Numbers::new(self.first, self.asked.direction, self.asked.most, &self.route)
    }
}

/// What the stream is given for an operation.
pub(super) fn posts(track: &Track, numbers: Numbers, most: usize, route: &Route, posts: &mut Vec<Post>) {
    let berth = &track.berth;
    posts.clear();
    for hold in 0..numbers.holds {
        let number = numbers.first.wrapping_add(hold);
        posts.push(Post::Write(berth.reached, number));
        posts.push(Post::Wait(berth.go, number));
        if let (true, Route::Ring(ring)) = (hold < numbers.steps, route) {
            let here = step_len(most, ring.chunk, hold);
            let (count, longest) = (pieces_of(here), here.min(PIECE));
            posts.push(Post::Scatter { list: berth.list.device, count, longest });
        }
    }
    posts.push(Post::Write(berth.reached, numbers.last()));
}

/// The most bytes of a step.
pub(super) fn step_len(most: usize, chunk: usize, step: u32) -> usize {
    most.saturating_sub(step as usize * chunk).min(chunk)
}

/// Pieces of a step's list.
pub(super) fn pieces_of(bytes: usize) -> usize {
    bytes.div_ceil(PIECE).max(1)
}

/// Calls `bind` and checks what it says.
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
