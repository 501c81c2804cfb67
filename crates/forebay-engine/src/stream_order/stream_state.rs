//! The server's state of a user's stream: its words, and the operations queued on it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_gpu::{CopyPiece, Event, Post, Stream, Word};

use super::staging_pool::{PIECES, StagingRing, StreamMemory};
use crate::runtime::lock;

/// A stream that has, or had, operations. Its own operations run one after the other, so that one pair of words and one
/// list are enough for it.
pub(crate) struct StreamState {
    pub(super) memory: StreamMemory,
    /// Its number among the streams of a server.
    pub(super) id: u64,
    /// Held while an operation is put on the stream, so that numbers are in the stream's order.
    pub(super) tail: Mutex<StreamTail>,
    /// Operations that are not over.
    pub(super) queued: AtomicUsize,
    /// The context is broken: queued work never runs.
    dead: AtomicBool,
    marks: Mutex<OperationMarks>,
    /// Whether `marks` names an operation that was refused.
    has_void: AtomicBool,
}

pub(super) struct StreamTail {
    pub(super) driver_stream: Box<dyn Stream>,
    pub(super) health: Arc<dyn Event>,
    /// Kernels run in its context.
    pub(super) has_kernels: bool,
    /// The number that the next operation begins with.
    pub(super) next: u32,
    pub(super) rings: Vec<Arc<StagingRing>>,
    pub(super) posts: Vec<Post>,
    /// No more operations may be queued.
    pub(super) closed: bool,
}

/// What keeps an operation from being both refused and begun.
#[derive(Default)]
struct OperationMarks {
    /// The first number of the last operation that was begun.
    begun: Option<u32>,
    /// The first number of the last operation whose success was reported.
    reported: Option<u32>,
    /// The first number of an operation that the stream did not take as a whole.
    void: Option<u32>,
}

/// How far an operation was when the stream refused a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalTime {
    /// It never begins.
    NotStarted,
    /// It was begun, and tells the error when it ends.
    Started,
    /// Its success was reported already, though its bytes will not arrive.
    Reported,
}

fn word(word: &Word) -> &AtomicU32 {
    // SAFETY: the words are aligned, and pinned as long as the stream's memory is.
    unsafe { AtomicU32::from_ptr(word.host as *mut u32) }
}

impl StreamState {
    pub(super) fn new(
        id: u64,
        memory: StreamMemory,
        driver_stream: Box<dyn Stream>,
        health: Arc<dyn Event>,
        has_kernels: bool,
    ) -> Self {
        let next = memory.number.wrapping_add(1);
        let tail = StreamTail {
            driver_stream,
            health,
            has_kernels,
            next,
            rings: Vec::new(),
            posts: Vec::new(),
            closed: false,
        };
        Self {
            memory,
            id,
            tail: Mutex::new(tail),
            queued: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            marks: Mutex::default(),
            has_void: AtomicBool::new(false),
        }
    }

    pub(super) fn tail(&self) -> MutexGuard<'_, StreamTail> {
        lock(&self.tail)
    }

    /// The last number that the stream has reached.
    pub(super) fn reached(&self) -> u32 {
        word(&self.memory.reached).load(Ordering::Acquire)
    }

    pub(super) fn is_past(&self, number: u32) -> bool {
        self.reached().wrapping_sub(number) as i32 >= 0
    }

    /// Lets the stream go on up to this number. It sees all that was written before.
    pub(super) fn go(&self, number: u32) {
        word(&self.memory.go).store(number, Ordering::Release);
    }

    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    fn marks(&self) -> MutexGuard<'_, OperationMarks> {
        lock(&self.marks)
    }

    /// Begins an operation, unless it was refused.
    pub(super) fn begin(&self, first: u32) -> bool {
        let mut marks = self.marks();
        if marks.void == Some(first) {
            return false;
        }
        marks.begun = Some(first);
        true
    }

    /// Whether the success of an operation may be reported: not if the stream refused a part of it.
    pub(super) fn may_report(&self, first: u32) -> bool {
        let mut marks = self.marks();
        if marks.void == Some(first) {
            return false;
        }
        marks.reported = Some(first);
        true
    }

    /// Refuses an operation.
    pub(super) fn refuse(&self, first: u32) -> RefusalTime {
        let mut marks = self.marks();
        marks.void = Some(first);
        self.has_void.store(true, Ordering::Release);
        match (marks.begun == Some(first), marks.reported == Some(first)) {
            (false, _) => RefusalTime::NotStarted,
            (true, false) => RefusalTime::Started,
            (true, true) => RefusalTime::Reported,
        }
    }

    pub(super) fn is_void(&self, first: u32) -> bool {
        self.has_void.load(Ordering::Acquire) && self.marks().void == Some(first)
    }

    fn list(&self) -> *mut CopyPiece {
        self.memory.list.host as *mut CopyPiece
    }

    /// Puts a piece into the list, which no kernel is reading.
    pub(super) fn put_piece(&self, index: usize, piece: CopyPiece) {
        debug_assert!(index < PIECES);
        // SAFETY: inside the stream's list; volatile, since the device reads it.
        unsafe { self.list().add(index.min(PIECES - 1)).write_volatile(piece) };
    }

    /// Makes all pieces of the list empty.
    pub(super) fn clear_list(&self) {
        for index in 0..PIECES {
            // SAFETY: inside the stream's list. Only the length: a kernel that is still reading finds a whole piece, or
            // none.
            unsafe { (&raw mut (*self.list().add(index)).len).write_volatile(0) };
        }
    }
}
