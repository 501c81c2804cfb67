//! Stream order: a submission starts when a user's stream gets there, and holds the stream until it is done.
//!
//! The stream calls back (which pushes the job to the lanes) and then waits for a word in pinned memory to reach a
//! number. Words are used again with higher numbers: a waiter for a lower one has been satisfied for good. Where the
//! device cannot wait for a word, a second callback blocks until the submission is done.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Device, Event, Stream};

use crate::pinned::PinnedPages;
use crate::process::process;
use crate::traffic::{self, Waiting};

/// Words in one block of pinned memory.
const WORDS: usize = 1024;

/// Pinned words of a device that nobody waits for. They are the process's: a stream may look at its word long after
/// the session that queued the wait.
pub(crate) struct Gates {
    free: Free,
}

/// Words of a device that nobody waits for.
pub(crate) type Free = Arc<Mutex<Vec<Word>>>;

/// The words of all devices: whether it is the host, its UUID, its words.
pub(crate) type Words = Mutex<Vec<(bool, [u8; 16], Free)>>;

/// One word, with the number that its last waiter waits for.
pub(crate) struct Word {
    /// Held as long as a stream may look at it.
    block: Arc<PinnedPages>,
    index: usize,
    number: u32,
}

impl Word {
    fn cell(&self) -> &AtomicU32 {
        #[allow(clippy::cast_ptr_alignment, reason = "the pages are aligned to far more than a word")]
        // SAFETY: the index is below WORDS, and the block's pages hold that many aligned words for its lifetime.
        unsafe {
            &*self.block.as_ptr().cast::<AtomicU32>().add(self.index)
        }
    }

    fn address(&self) -> u64 {
        self.block.reach() + (self.index * 4) as u64
    }
}

/// A submission's place in a stream.
pub(crate) struct Gate {
    stream: Box<dyn Stream>,
    word: Arc<Mutex<Option<(Word, Waiting)>>>,
    free: Free,
    number: u32,
    address: u64,
    done: Arc<(Mutex<bool>, Condvar)>,
}

impl Gates {
    pub(crate) fn of(device: &Arc<dyn Device>) -> Self {
        let info = device.info();
        let mut all = process().gates.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().find(|(is_host, uuid, _)| (*is_host, *uuid) == (info.is_host, info.uuid));
        if let Some((_, _, free)) = known {
            return Self { free: free.clone() };
        }
        let free = Arc::default();
        all.push((info.is_host, info.uuid, Arc::clone(&free)));
        Self { free }
    }

    /// Takes a place in the stream `handle`.
    ///
    /// # Safety
    /// `handle` is a live stream of `device`.
    pub(crate) unsafe fn open(&self, device: &Arc<dyn Device>, handle: u64) -> Result<Gate> {
        // SAFETY: passed on.
        let stream = unsafe { device.foreign_stream(handle) }?;
        let waiting = traffic::wait();
        let mut word = self.take(device)?;
        word.number = word.number.wrapping_add(1);
        let (number, address) = (word.number, word.address());
        let (word, free) = (Arc::new(Mutex::new(Some((word, waiting)))), self.free.clone());
        Ok(Gate { stream, word, free, number, address, done: Arc::default() })
    }

    fn take(&self, device: &Arc<dyn Device>) -> Result<Word> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.is_empty() {
            let block = Arc::new(PinnedPages::new(device, WORDS * 4)?);
            free.extend((0..WORDS).map(|index| Word { block: block.clone(), index, number: 0 }));
        }
        free.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "no gate word"))
    }
}

impl Gate {
    /// What to call when the submission is done: lets the stream go on.
    pub(crate) fn opener(&self) -> Box<dyn FnOnce() + Send> {
        let (word, free, number, done) =
            (self.word.clone(), self.free.clone(), self.number, self.done.clone());
        Box::new(move || {
            if let Some((word, waiting)) = word.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // Release: the device and other threads see the bytes before they see the number.
                word.cell().store(number, Ordering::Release);
                free.lock().unwrap_or_else(PoisonError::into_inner).push(word);
                drop(waiting);
            }
            *done.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            done.1.notify_all();
        })
    }

    /// Queues `start` and the wait for the opener on the stream.
    pub(crate) fn pass(self, start: Box<dyn FnOnce() + Send>) -> Result<Watch> {
        let open = self.opener();
        let before = match self.mark() {
            Ok(before) => before,
            Err(error) => {
                open();
                return Err(error);
            }
        };
        // Whoever takes it runs it, or sees to it that it never runs.
        let start = Arc::new(Mutex::new(Some(start)));
        let queued = start.clone();
        if let Err(error) = self.stream.callback(Box::new(move || {
            if let Some(start) = take(&queued) {
                start();
            }
        })) {
            open();
            return Err(error);
        }
        // SAFETY: words stay pinned as long as the process lives.
        if unsafe { self.stream.wait_value(self.address, self.number) }.is_ok() {
            return Ok(Watch { before, start });
        }
        let done = self.done.clone();
        let hold = move || {
            let mut is_done = done.0.lock().unwrap_or_else(PoisonError::into_inner);
            while !*is_done {
                is_done = done.1.wait(is_done).unwrap_or_else(PoisonError::into_inner);
            }
        };
        if let Err(error) = self.stream.callback(Box::new(hold.clone())) {
            if take(&start).is_some() {
                open();
                return Err(error);
            }
            // It has started: what is queued on the stream later must not come before its end.
            hold();
        }
        Ok(Watch { before, start })
    }

    /// An event behind the work that the stream has now.
    fn mark(&self) -> Result<Box<dyn Event>> {
        let event = self.stream.event()?;
        self.stream.record(event.as_ref())?;
        Ok(event)
    }
}

/// Looks after a submission that has not started: where earlier work of its stream fails, the device never calls back.
pub(crate) struct Watch {
    before: Box<dyn Event>,
    start: Arc<Mutex<Option<Start>>>,
}

impl Watch {
    /// The error that keeps the submission from ever starting. It is told once.
    pub(crate) fn failure(&self) -> Option<Error> {
        let error = self.before.is_done().err()?;
        take(&self.start).map(|_| error.hint("earlier work on the stream failed: look there first"))
    }
}

type Start = Box<dyn FnOnce() + Send>;

fn take(start: &Mutex<Option<Start>>) -> Option<Start> {
    start.lock().unwrap_or_else(PoisonError::into_inner).take()
}
