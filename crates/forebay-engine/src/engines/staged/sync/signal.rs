//! How a thread learns that its copies are done.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_error::Result;
use forebay_gpu::{Event, Stream, Wait};

use crate::runtime::pinned::PinnedPages;
use crate::runtime::wait::{self, Found, Pace};

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Manner<'a> {
    /// In the driver.
    Block,
    /// Poll for this long, then as the driver does.
    Poll(Duration, Wait),
    /// Sleep for most of the time that a copy of so many bytes takes lately, then look from time to time.
    /// By the word if the device has all of the transfer to do; who also reads the file meanwhile waits by the event, since
    /// streams that share a connection wait for each other's copies to write their words.
    Nap { pace: &'a Pace, len: usize, by_word: bool },
}

/// A stream with its mark: a word in pinned memory that the device counts up, which takes no driver call to look at, or
/// an event where the device cannot write words. Every use waits for its copies.
pub(super) struct Marked {
    stream: Box<dyn Stream>,
    /// The default stream of whichever thread uses this.
    default: Box<dyn Stream>,
    /// Which of the two is in use.
    pub(super) on_default: Cell<bool>,
    word: Option<Word>,
    event: Box<dyn Event>,
}

/// The word. It belongs to whoever holds the pages.
struct Word {
    cell: *const AtomicU32,
    address: u64,
    /// What was asked to be written last.
    number: Cell<u32>,
}

// SAFETY: the pointer is to memory that lives as long as this value, of which only atomic use is made.
unsafe impl Send for Word {}

impl Marked {
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
    /// The pages live as long as this value, and nobody else uses the four aligned bytes at `at`.
    pub(super) unsafe fn with_word(self, pages: &PinnedPages, at: usize) -> Self {
        let address = pages.reach() + at as u64;
        #[allow(clippy::cast_ptr_alignment, reason = "the caller promises the alignment")]
        let cell = pages.as_ptr().wrapping_add(at).cast::<AtomicU32>().cast_const();
        let word = Word { cell, address, number: Cell::new(0) };
        // SAFETY: the caller vouches for the word.
        let queued = unsafe { self.stream.write_value(address, word.next()) }.is_ok();
        // Where it fails for another reason, whoever uses the stream next is told.
        let works = queued && self.stream.synchronize(Wait::Block).is_ok() && word.is_written();
        Self { word: works.then_some(word), ..self }
    }

    /// Waits for all that the stream was given.
    pub(super) fn wait(&self, manner: Manner<'_>) -> Result<()> {
        let last = match manner {
            Manner::Block => Wait::Block,
            Manner::Poll(limit, last) => {
                self.mark()?;
                if wait::poll(limit, || self.is_done())? {
                    return Ok(());
                }
                last
            }
            Manner::Nap { pace, len, by_word } => {
                let found = if by_word {
                    self.mark()?;
                    wait::nap_for(pace.first_nap(len), || self.is_done())?
                } else {
                    self.stream().record(self.event.as_ref())?;
                    wait::nap_for(pace.first_nap(len), || self.event.is_done())?
                };
                pace.learn(len, found);
                if found != Found::Never {
                    return Ok(());
                }
                Wait::Block
            }
        };
        // A device that broke never writes its word; the driver knows why.
        self.stream().synchronize(last)
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

impl Word {
    fn next(&self) -> u32 {
        self.number.set(self.number.get().wrapping_add(1));
        self.number.get()
    }

    fn is_written(&self) -> bool {
        // SAFETY: the word lives as long as this value. Acquire: who sees the number sees the bytes.
        unsafe { &*self.cell }.load(Ordering::Acquire) == self.number.get()
    }
}
