//! Order behind the default streams for many callers: one asks the driver, and the answer counts for all whose calls had begun.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_error::Result;
use forebay_gpu::{Context, DefaultWork, Device, Wait};

use crate::request::copy_order::{self, PriorWork};
use crate::runtime::lock::lock;
use crate::runtime::wait;
use crate::tuning::resident::CALLER_POLL;

/// Questions to the default streams of one context, numbered.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The number of the last question that was begun.
    begun: AtomicU64,
    /// The last one that was answered: nothing is left of what stood there when it began.
    answered: AtomicU64,
    asking: Mutex<()>,
    /// Whether somebody asks now: looked at more cheaply than the lock.
    is_asked: AtomicBool,
    /// The last question met a capture: nothing was asked of the streams.
    met_capture: AtomicBool,
}

/// When a call began, in questions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundMark(u64);

impl Rounds {
    /// To be taken when the call begins.
    pub(super) fn mark(&self) -> RoundMark {
        RoundMark(self.begun.load(Ordering::SeqCst))
    }

    /// Waits until a question that began after the mark is answered; asks it if nobody does. Polls that long before it sleeps.
    /// Returns whether a capture forbade to ask.
    pub(super) fn pass(
        &self,
        mark: RoundMark,
        poll: Duration,
        device: &dyn Device,
        context: Context,
    ) -> Result<bool> {
        let is_answered = || self.answered.load(Ordering::SeqCst) > mark.0;
        let mut asking = None;
        let passed = wait::poll_flag(poll, || {
            if !self.is_asked.load(Ordering::Relaxed) {
                asking = self.asking.try_lock().ok();
            }
            asking.is_some() || is_answered()
        });
        let _asking = match asking {
            Some(asking) => asking,
            None if passed => return Ok(self.met_capture.load(Ordering::Relaxed)),
            None => lock(&self.asking),
        };
        if is_answered() {
            return Ok(self.met_capture.load(Ordering::Relaxed));
        }
        self.is_asked.store(true, Ordering::Relaxed);
        let result = self.ask(device, context);
        self.is_asked.store(false, Ordering::Relaxed);
        result
    }

    /// Whether a capture forbade to ask, by a question that began after this call did: another caller's, if one asks. `None` if
    /// something stands on the streams, which is not waited for.
    pub(super) fn find_clear(&self, device: &dyn Device, context: Context) -> Result<Option<bool>> {
        let mark = self.mark();
        let is_answered = || self.answered.load(Ordering::SeqCst) > mark.0;
        let mut asking = None;
        wait::poll_flag(CALLER_POLL, || {
            if !self.is_asked.load(Ordering::Relaxed) {
                asking = self.asking.try_lock().ok();
            }
            asking.is_some() || is_answered()
        });
        if asking.is_none() || is_answered() {
            return Ok(is_answered().then(|| self.met_capture.load(Ordering::Relaxed)));
        }
        self.is_asked.store(true, Ordering::Relaxed);
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let work = device.default_work(context);
        self.is_asked.store(false, Ordering::Relaxed);
        match work? {
            DefaultWork::Pending => Ok(None),
            work => Ok(Some(self.answer(number, work))),
        }
    }

    fn ask(&self, device: &dyn Device, context: Context) -> Result<bool> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let mut work = device.default_work(context)?;
        if work == DefaultWork::Pending {
            match PriorWork::recorded(device, context)? {
                Some(prior_work) => prior_work.wait(Wait::Nap(copy_order::LOOK))?,
                // A capture has begun since.
                None => work = DefaultWork::Captured,
            }
        }
        Ok(self.answer(number, work))
    }

    /// Answers a question: nothing is left of what stood there. Returns whether a capture forbade to ask.
    fn answer(&self, number: u64, work: DefaultWork) -> bool {
        let met_capture = work == DefaultWork::Captured;
        self.met_capture.store(met_capture, Ordering::Relaxed);
        self.answered.store(number, Ordering::SeqCst);
        met_capture
    }
}
