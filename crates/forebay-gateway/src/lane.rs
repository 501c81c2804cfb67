//! Files whose bytes go from the page cache to a socket, without this process.
//!
//! hyper writes heads and passes frames on. A body in the lane puts its open file here and hands hyper frames that are memory of one
//! place, as long as the file. The socket knows a frame by its address and sends as many bytes of the file (`server/files.rs`).

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use crate::threads::Turns;

/// The longest frame. A request counts as answered when the socket takes its last one.
const FRAME: usize = 1 << 20;

/// Zeros that nobody writes to or reads.
static FRAMES: OnceLock<Bytes> = OnceLock::new();

/// A part of an open file.
pub(crate) struct FileRange {
    pub(crate) file: File,
    pub(crate) range: Range<u64>,
    /// Of the account that reads it.
    pub(crate) turns: Turns,
}

/// The files of a connection's answers, in their order.
#[derive(Default)]
pub(crate) struct FileLane(Mutex<VecDeque<FileRange>>);

impl FileLane {
    /// The bytes of the next frames.
    pub(crate) fn push(&self, next: FileRange) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(next);
    }

    pub(crate) fn pop(&self) -> Option<FileRange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// A frame for this number of a file's bytes, or for the first of them.
pub(crate) fn frame(len: u64) -> Bytes {
    let all = FRAMES.get_or_init(|| vec![0; FRAME].into());
    all.slice(..len.min(FRAME as u64) as usize)
}

/// Whether these bytes are a frame, or the rest of one.
pub(crate) fn is_frame(bytes: &[u8]) -> bool {
    FRAMES.get().is_some_and(|all| !bytes.is_empty() && all.as_ptr_range().contains(&bytes.as_ptr()))
}
