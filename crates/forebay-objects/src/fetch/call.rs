//! The call of a range under way.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::wire::call::Resume;

/// The call of a range, and for how long it was not paused.
pub(super) struct RangeCall {
    /// `None`: it is being started.
    call: Option<Arc<dyn Resume>>,
    /// It was to go on while it was being started.
    goes_on: bool,
    /// Cleared: the range is asked for by another call.
    pub(super) is_wanted: Arc<AtomicBool>,
    began: Instant,
    paused: Duration,
    paused_since: Option<Instant>,
}

impl RangeCall {
    pub(super) fn new(now: Instant) -> Self {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let (call, goes_on) = (None, false);
        Self { call, goes_on, is_wanted, began: now, paused: Duration::ZERO, paused_since: None }
    }

    /// The call was started. Returns it where it is to go on.
    pub(super) fn started(&mut self, call: Arc<dyn Resume>) -> Option<Arc<dyn Resume>> {
        self.call = Some(call);
        self.call.clone().filter(|_| self.goes_on)
    }

    /// What has it go on.
    pub(super) fn resume(&mut self) -> Option<Arc<dyn Resume>> {
        self.goes_on = true;
        self.call.clone()
    }

    /// It is not wanted any more. Returns what has it end.
    pub(super) fn give_up(&mut self) -> Option<Arc<dyn Resume>> {
        self.is_wanted.store(false, Relaxed);
        self.resume()
    }

    /// It asked for room, and there was some or none.
    pub(super) fn asked(&mut self, has_room: bool, now: Instant) {
        if let Some(since) = self.paused_since.take() {
            self.paused += now.saturating_duration_since(since);
        }
        if !has_room {
            self.paused_since = Some(now);
        }
    }

    /// How long its bytes have taken.
    pub(super) fn took(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began).saturating_sub(self.paused)
    }

    /// Whether it takes longer than that, and does not wait for memory. It is not wanted any more then, if that may be.
    pub(super) fn gives_way(&self, slow: Duration, now: Instant, may: impl FnOnce() -> bool) -> bool {
        let is_slow = self.paused_since.is_none() && self.took(now) > slow;
        let gives_way = is_slow && self.is_wanted.load(Relaxed) && may();
        if gives_way {
            self.is_wanted.store(false, Relaxed);
        }
        gives_way
    }
}
