//! A user's stream as the courier knows it: its words, and what is queued on it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_gpu::{CopyPiece, Event, Post, Stream, Word};

use super::staging_pool::{Berth, PIECES, Ring};

/// A stream that has, or had, operations. Its own operations run one after the other, so that one pair of words and one
/// list are enough for it.
pub(crate) struct Track {
    pub(super) berth: Berth,
    /// Of all tracks of a courier.
    pub(super) id: u64,
    /// Held while an operation is put on the stream, so that numbers are in the stream's order.
    pub(super) tail: Mutex<Tail>,
    /// Operations that are not over.
    pub(super) queued: AtomicUsize,
    /// The context is broken: what is queued never runs.
    dead: AtomicBool,
    turn: Mutex<Turn>,
    /// Whether `turn` names an operation that was refused.
    has_void: AtomicBool,
}

pub(super) struct Tail {
    pub(super) stream: Box<dyn Stream>,
    pub(super) health: Arc<dyn Event>,
    /// Kernels run in its context.
    pub(super) has_kernels: bool,
    /// The number that the next operation begins with.
    pub(super) next: u32,
    pub(super) rings: Vec<Arc<Ring>>,
    pub(super) posts: Vec<Post>,
    /// It is not to be used any more.
    pub(super) closed: bool,
}

/// What keeps an operation from being both refused and begun.
#[derive(Default)]
struct Turn {
    /// The first number of the last operation that was begun.
    begun: Option<u32>,
    /// The first number of the last operation whose success was told.
    told: Option<u32>,
    /// That of one that the stream did not take as a whole.
    void: Option<u32>,
}

/// How far an operation was when the stream refused a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It never begins.
    InTime,
    /// It was begun, and tells the error when it ends.
    Begun,
    /// Its success was told already, though its bytes will not arrive.
    Told,
}

fn cell(word: &Word) -> &AtomicU32 {
    // SAFETY: a berth's words are aligned and pinned as long as the berth is.
    unsafe { AtomicU32::from_ptr(word.host as *mut u32) }
}

impl Track {
    pub(super) fn new(
        id: u64,
        berth: Berth,
        stream: Box<dyn Stream>,
        health: Arc<dyn Event>,
        has_kernels: bool,
    ) -> Self {
        let next = berth.number.wrapping_add(1);
        let tail =
            Tail { stream, health, has_kernels, next, rings: Vec::new(), posts: Vec::new(), closed: false };
        Self {
            berth,
            id,
            tail: Mutex::new(tail),
            queued: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            turn: Mutex::default(),
            has_void: AtomicBool::new(false),
        }
    }

    pub(super) fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last number that the stream has reached.
    pub(super) fn reached(&self) -> u32 {
        cell(&self.berth.reached).load(Ordering::Acquire)
    }

    pub(super) fn is_past(&self, number: u32) -> bool {
        self.reached().wrapping_sub(number) as i32 >= 0
    }

    /// Lets the stream go on up to this number. What was written before is seen by it.
    pub(super) fn go(&self, number: u32) {
        cell(&self.berth.go).store(number, Ordering::Release);
    }

    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation, unless it was refused.
    pub(super) fn begin(&self, first: u32) -> bool {
        let mut turn = self.turn();
        if turn.void == Some(first) {
            return false;
        }
        turn.begun = Some(first);
        true
    }

    /// Whether the success of an operation may be told: not if the stream refused a part of it.
    pub(super) fn may_tell(&self, first: u32) -> bool {
        let mut turn = self.turn();
        if turn.void == Some(first) {
            return false;
        }
        turn.told = Some(first);
        true
    }

    /// Refuses an operation.
    pub(super) fn refuse(&self, first: u32) -> Refused {
        let mut turn = self.turn();
        turn.void = Some(first);
        self.has_void.store(true, Ordering::Release);
        match (turn.begun == Some(first), turn.told == Some(first)) {
            (false, _) => Refused::InTime,
            (true, false) => Refused::Begun,
            (true, true) => Refused::Told,
        }
    }

    pub(super) fn is_void(&self, first: u32) -> bool {
        self.has_void.load(Ordering::Acquire) && self.turn().void == Some(first)
    }

    fn list(&self) -> *mut CopyPiece {
        self.berth.list.host as *mut CopyPiece
    }

    /// Puts a piece into the list, which no kernel is reading.
    pub(super) fn put_piece(&self, index: usize, piece: CopyPiece) {
        debug_assert!(index < PIECES);
        // SAFETY: inside the berth's list; volatile, since the device reads it.
        unsafe { self.list().add(index.min(PIECES - 1)).write_volatile(piece) };
    }

    /// Makes the list one of nothing.
    pub(super) fn clear_list(&self) {
        for index in 0..PIECES {
            // SAFETY: inside the berth's list. Only the length: a kernel that is still reading finds a whole piece, or
            // none.
            unsafe { (&raw mut (*self.list().add(index)).len).write_volatile(0) };
        }
    }
}
