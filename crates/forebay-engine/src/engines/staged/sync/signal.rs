//! How a thread learns that its copies are done.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use forebay_error::Result;
use forebay_gpu::{Event, Stream, Wait};

use crate::runtime::wait::{self, CopyPace, PollResult, WaitPolicy};
use crate::tuning::machine::LOOK;

/// How a caller waits for its copies.
#[derive(Clone, Copy, Debug)]
pub(super) enum CopyWait<'a> {
    /// Poll, then wait in the driver.
    Poll(WaitPolicy),
    /// Sleep for most of the time that copies of this length took lately, then look from time to time: by the word if the
    /// device does all of the transfer. A caller that also reads the file waits by the event, since streams that share a
    /// connection wait for each other's copies before they write their words.
    Nap { pace: &'a CopyPace, len: usize, by_word: bool },
    /// Poll where at most this many do so, then wait in the driver: of callers that wait for a disk few copy at once. 64 callers of cold
    /// 4 KiB read 81 K IOPS so, with polls on a quarter of the CPUs 73, at the same CPU (one H100, two processes each).
    Cold { polling: &'a AtomicUsize, most: usize },
}

/// A stream with a mark for the end of its copies: a word in pinned memory that the device counts up, which is read without
/// a driver call, or an event where the device cannot write words. Every use waits for its copies.
pub(super) struct MarkedStream {
    stream: Box<dyn Stream>,
    /// The default stream of the thread that uses this.
    default: Box<dyn Stream>,
    /// Whether the default stream is in use.
    pub(super) on_default: Cell<bool>,
    word: StreamWord,
    event: Box<dyn Event>,
}

/// The word, in pages of the stream's owner.
struct StreamWord {
    cell: *const AtomicU32,
    address: u64,
    /// The number that the device was asked to write last.
    number: Cell<u32>,
    trial: Cell<WordTrial>,
}

/// The state of the device's writes to the word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WordTrial {
    Untried,
    /// It was asked to, before an event that has been waited for since.
    Asked,
    Works,
    Fails,
}

// SAFETY: the pointer is to memory that lives as long as this value, of which only atomic use is made.
unsafe impl Send for StreamWord {}

impl MarkedStream {
    /// # Safety
    /// The word (the host's address and the device's) lives as long as this value, and nothing else uses its four aligned bytes.
    pub(super) unsafe fn new(
        stream: Box<dyn Stream>,
        default: Box<dyn Stream>,
        (cell, address): (*mut u8, u64),
    ) -> Result<Self> {
        let event = stream.event()?;
        #[allow(clippy::cast_ptr_alignment, reason = "the caller promises the alignment")]
        let cell = cell.cast::<AtomicU32>().cast_const();
        let word = StreamWord { cell, address, number: Cell::new(0), trial: Cell::new(WordTrial::Untried) };
        Ok(Self { stream, default, on_default: Cell::new(false), word, event })
    }

    /// The stream in use.
    pub(super) fn stream(&self) -> &dyn Stream {
        if self.on_default.get() { self.default.as_ref() } else { self.stream.as_ref() }
    }

    /// Waits for all copies on the stream.
    pub(super) fn wait(&self, wait: CopyWait<'_>) -> Result<()> {
        let (pace, len, by_word) = match wait {
            CopyWait::Poll(policy) => return self.poll(policy),
            CopyWait::Cold { polling, most } => {
                let may_poll = polling.fetch_add(1, Ordering::Relaxed) < most;
                let policy = WaitPolicy { poll: LOOK, last: Wait::Block };
                let waited = self.poll(if may_poll { policy } else { WaitPolicy::BLOCK });
                polling.fetch_sub(1, Ordering::Relaxed);
                return waited;
            }
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

    /// The first marks are events, until a word that was asked for has come: who waits for the event waits for the word before it.
    fn mark(&self) -> Result<()> {
        let word = &self.word;
        // SAFETY: the word lives as long as this value, every use of which waits.
        let write = || unsafe { self.stream().write_value(word.address, word.next()) };
        word.trial.set(match word.trial.get() {
            WordTrial::Works => return write(),
            WordTrial::Untried if write().is_ok() => WordTrial::Asked,
            WordTrial::Asked if word.is_written() => {
                word.trial.set(WordTrial::Works);
                return write();
            }
            // Where writes fail for another reason, so does what follows.
            _ => WordTrial::Fails,
        });
        self.stream().record(self.event.as_ref())
    }

    fn is_done(&self) -> Result<bool> {
        match self.word.trial.get() {
            WordTrial::Works => Ok(self.word.is_written()),
            _ => self.event.is_done(),
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
