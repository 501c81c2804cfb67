//! Order behind the default streams for many callers: one asks the driver, and the answer counts for all whose calls had begun.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_error::Result;
use forebay_gpu::{Context, Device, Wait};

use crate::request::copy_order::{self, PriorWork};
use crate::runtime::lock::lock;
use crate::runtime::wait;

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
    pub(super) fn pass(
        &self,
        mark: RoundMark,
        poll: Duration,
        device: &dyn Device,
        context: Context,
    ) -> Result<()> {
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
            None if passed => return Ok(()),
            None => lock(&self.asking),
        };
        if is_answered() {
            return Ok(());
        }
        self.is_asked.store(true, Ordering::Relaxed);
        let result = self.ask(device, context);
        self.is_asked.store(false, Ordering::Relaxed);
        result
    }

    fn ask(&self, device: &dyn Device, context: Context) -> Result<()> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(prior_work) = PriorWork::of(device, context)? {
            prior_work.wait(Wait::Nap(copy_order::LOOK))?;
        }
        self.answered.store(number, Ordering::SeqCst);
        Ok(())
    }
}
