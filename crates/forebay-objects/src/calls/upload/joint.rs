//! Requests that were cut into pieces: answered when all of these are done.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_error::{Error, Result};
use forebay_source::{Answer, HostRange};

use crate::lock;

/// A request, whose pieces share it.
pub(super) struct Joint {
    len: usize,
    left: AtomicUsize,
    /// The first error, and who waits.
    end: Mutex<(Option<Error>, Option<Answer>)>,
}

impl fmt::Debug for Joint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joint").field("len", &self.len).field("left", &self.left).finish_non_exhaustive()
    }
}

impl Joint {
    pub(super) fn new(len: usize, pieces: usize, answer: Answer) -> Self {
        Self { len, left: AtomicUsize::new(pieces), end: Mutex::new((None, Some(answer))) }
    }

    /// A piece is done. The last one calls the answer, which may start further requests: no lock may be held.
    pub(super) fn done(&self, result: Result<()>) {
        if let Err(error) = result {
            lock(&self.end).0.get_or_insert(error);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (error, answer) = std::mem::take(&mut *lock(&self.end));
        if let Some(answer) = answer {
            answer(error.map_or(Ok(self.len), Err));
        }
    }
}

/// Bytes of a request that are of one part.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) number: u32,
    /// Where they are in the part.
    pub(super) at: usize,
    pub(super) memory: HostRange,
    pub(super) joint: std::sync::Arc<Joint>,
}
