//! How a thread learns that its copies are done.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use forebay_error::Result;
use forebay_gpu::{Event, Stream};

use crate::runtime::pinned::PinnedPages;
use crate::runtime::wait::{self, CopyPace, PollResult, WaitPolicy};
use crate::tuning::callers::WORD_TRIAL;

/// How a caller waits for its copies.
#[derive(Clone, Copy, Debug)]
pub(super) enum CopyWait<'a> {
    /// Poll, then wait in the driver.
    Poll(WaitPolicy),
    /// Sleep for most of the time that copies of this length took lately, then look from time to time: by the word if the
    /// device does all of the transfer. A caller that also reads the file waits by the event, since streams that share a
    /// connection wait for each other's copies before they write their words.
    Nap { pace: &'a CopyPace, len: usize, by_word: bool },
}

/// A stream with a mark for the end of its copies: a word in pinned memory that the device counts up, which is read without
/// a driver call, or an event where the device cannot write words. Every use waits for its copies.
pub(super) struct MarkedStream {
    stream: Box<dyn Stream>,
    /// The default stream of the thread that uses this.
    default: Box<dyn Stream>,
    /// Whether the default stream is in use.
    pub(super) on_default: Cell<bool>,
    word: Option<StreamWord>,
    event: Box<dyn Event>,
}

/// The word, in pages of the stream's owner.
struct StreamWord {
    cell: *const AtomicU32,
    address: u64,
    /// The number that the device was asked to write last.
    number: Cell<u32>,
}

// SAFETY: the pointer is to memory that lives as long as this value, of which only atomic use is made.
unsafe impl Send for StreamWord {}

impl MarkedStream {
    pub(super) fn new(stream: Box<dyn Stream>, default: Box<dyn Stream>) -> Result<Self> {
        let event = stream.event()?;
        Ok(Self { stream, default, on_default: Cell::new(false), word: None, event })
    }

    /// The stream in use.
    pub(super) fn stream(&self) -> &dyn Stream {
        if self.on_default.get() { self.default.as_ref() } else { self.stream.as_ref() }
    }

    /// Lets the device write a word in these pages, if it can.
    ///
    /// # Safety
    /// The pages live as long as this value, and nothing else uses the four aligned bytes at `at`.
    pub(super) unsafe fn with_word(self, pages: &PinnedPages, at: usize) -> Self {
        let address = pages.reach() + at as u64;
        #[allow(clippy::cast_ptr_alignment, reason = "the caller promises the alignment")]
        let cell = pages.as_ptr().wrapping_add(at).cast::<AtomicU32>().cast_const();
        let word = StreamWord { cell, address, number: Cell::new(0) };
        // SAFETY: the caller vouches for the word.
        let queued = unsafe { self.stream.write_value(address, word.next()) }.is_ok();
        // If it fails for another reason, the next use of the stream tells.
        // Not for ever: the stream may share a connection with one of the user's that waits for what the caller does next.
        let begun = Instant::now();
        while queued && !word.is_written() && begun.elapsed() < WORD_TRIAL {
            std::thread::yield_now();
        }
        let works = queued && word.is_written();
        Self { word: works.then_some(word), ..self }
    }

    /// Waits for all copies on the stream.
    pub(super) fn wait(&self, wait: CopyWait<'_>) -> Result<()> {
        let (pace, len, by_word) = match wait {
            CopyWait::Poll(policy) => return self.poll(policy),
            CopyWait::Nap { pace, len, by_word } => (pace, len, by_word),
        };
        let found = if by_word {
            self.mark()?;
            wait::nap_for(pace.first_nap(len), || self.is_done())?
        } else {
            self.stream().record(self.event.as_ref())?;
            wait::nap_for(pace.first_nap(len), || self.event.is_done())?
        };
        pace.learn(len, found);
        if found == PollResult::Never { self.poll(WaitPolicy::BLOCK) } else { Ok(()) }
    }

    /// Polls, then waits in the driver.
    pub(super) fn poll(&self, policy: WaitPolicy) -> Result<()> {
        if !policy.poll.is_zero() {
            self.mark()?;
            if wait::poll(policy.poll, || self.is_done())? {
                return Ok(());
            }
        }
        // A device that broke never writes its word; the driver knows why.
        self.stream().synchronize(policy.last)
    }

    fn mark(&self) -> Result<()> {
        match &self.word {
            // SAFETY: the word lives as long as this value, every use of which waits.
            Some(word) => unsafe { self.stream().write_value(word.address, word.next()) },
            None => self.stream().record(self.event.as_ref()),
        }
    }

    fn is_done(&self) -> Result<bool> {
        match &self.word {
            Some(word) => Ok(word.is_written()),
            None => self.event.is_done(),
        }
    }
}

impl StreamWord {
    fn next(&self) -> u32 {
        self.number.set(self.number.get().wrapping_add(1));
        self.number.get()
    }

    fn is_written(&self) -> bool {
        // SAFETY: the word lives as long as this value. Acquire: who sees the number sees the bytes.
        unsafe { &*self.cell }.load(Ordering::Acquire) == self.number.get()
    }
}
