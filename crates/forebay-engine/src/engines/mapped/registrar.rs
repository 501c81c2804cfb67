//! Registers windows, as a whole or piece by piece, and records the result.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};

use super::budget::Reservation;
use super::credit;
use super::eligibility::{self, Reason};
use super::pace;
use super::pin_cache::{PinCache, short_of_memory};
use super::reclaimer::{DRIVER, Pin, PinRange};
use super::region::WINDOW;
use super::window::PinnedFile;
use crate::runtime::lock;
use crate::source::version::FileVersion;
use crate::source::{Descriptors, FileSource, residency};
use crate::tuning::mapped::PROBE;

/// How a window is registered, and whether its caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinPolicy {
    /// If it is worth registering, by the demand so far: see [`PinCache::count_demand`]. The caller does not wait: the
    /// window is registered beside copies, piece by piece.
    Background,
    /// The program will read it again: it is registered as in the background, whatever that costs.
    Announced,
    /// If it is worth registering. The caller waits.
    AtOnce,
    /// The same where registering is slow, or others copy: its readers have saved what it costs.
    Paid,
    /// In any case, even if its pages are cold. The caller waits.
    Always,
}

impl PinPolicy {
    /// Whether nobody waits for the registration.
    pub(super) const fn is_background(self) -> bool {
        matches!(self, Self::Background | Self::Announced)
    }
}

/// The terms of a request for a window.
pub(crate) struct PinTerms {
    pub(super) policy: PinPolicy,
    /// Registering at fewer GB/s is slow, or costs the file's readers something.
    pub(super) least: f64,
    /// The part of its readers' savings reserved for it.
    promise: Option<Promise>,
}

impl PinTerms {
    pub(super) const fn of(policy: PinPolicy, least: f64) -> Self {
        Self { policy, least, promise: None }
    }

    /// Its readers pay for it.
    pub(super) const fn paid(promise: Promise, least: f64) -> Self {
        Self { policy: PinPolicy::Paid, least, promise: Some(promise) }
    }
}

/// A request to the registrar.
pub(crate) struct PinRequest {
    /// None if nobody waits: then the window is registered for as long as anybody has the file open.
    pub(crate) source: Option<Arc<FileSource>>,
    pub(crate) pinned: Arc<PinnedFile>,
    pub(crate) window: usize,
    pub(crate) terms: PinTerms,
    pub(crate) reservation: Arc<Reservation>,
    pub(crate) since: Instant,
    /// The part of it that is registered, and whether a write that takes pages from the file may have run meanwhile.
    pub(crate) pin: Pin,
    pub(crate) was_watched: bool,
}

/// The savings that a file's readers reserve for a window, until it is registered or dropped.
pub(crate) struct Promise {
    pinned: Arc<PinnedFile>,
    cost: f64,
    when: PaidUse,
}

/// When a window that its readers pay for is read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PaidUse {
    /// At once, by the request that asks for it.
    Now,
    /// By callers who come to it later, and have their copies wait until it is registered.
    Later,
}

impl Promise {
    /// `None` if they have not saved as much. See [`Credit::promise`](super::credit::Credit::promise).
    pub(super) fn make(pinned: &Arc<PinnedFile>, cost: f64, when: PaidUse) -> Option<Self> {
        let is_made = lock(&pinned.credit).promise(cost);
        is_made.then(|| Self { pinned: pinned.clone(), cost, when })
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        lock(&self.pinned.credit).release(self.cost);
    }
}

impl PinRequest {
    /// Whether nobody waits for the registration.
    pub(super) fn is_background(&self) -> bool {
        self.terms.policy.is_background()
    }

    /// Whether the window waits for this request. A caller that waits may have taken over a window to be registered
    /// beside copies, or its pages were released.
    pub(super) fn has_window(&self) -> bool {
        !self.is_background() || self.pinned.is_queued(self.window, self.since)
    }

    /// Leaves the window unregistered this time.
    pub(super) fn put_off(&self, reason: Reason) {
        if self.has_window() {
            self.pinned.put_off(self.window, reason);
        }
    }

    /// Leaves the window unregistered. With a reason: for as long as the file stays as it is; without: until it is asked for again.
    pub(super) fn fail(&self, reason: Option<Reason>) {
        if self.has_window() {
            self.pinned.set_failed(self.window, reason);
        }
    }
}

/// Why a piece is not registered.
enum PieceFailure {
    /// Not this time.
    Later(Reason),
    Failed(Error),
}

impl From<Error> for PieceFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl PinCache {
    /// Registers the next piece of a window, if it is still wanted. The request, if there is more to do. The caller has the
    /// [`DriverTurn`](super::reclaimer::DriverTurn).
    pub(super) fn register(&self, mut request: PinRequest) -> Option<PinRequest> {
        // A request that nobody waits for keeps no file open.
        let source = request.source.clone().or_else(|| lock(&request.pinned.owner).upgrade());
        let is_wanted = request.has_window() && !request.pinned.is_stale();
        let Some(file) = source.as_ref().filter(|_| is_wanted).map(|source| &source.descriptors) else {
            request.fail(None);
            return None;
        };
        if let Err(reason) = self.verdict(file, request.pinned.access) {
            if self.is_final(file, request.pinned.access) {
                request.fail(Some(reason));
            } else {
                // Without a verdict it is tried again.
                request.put_off(reason);
            }
            return None;
        }
        if let Some(reason) = self.reconsider(&request).filter(|_| request.is_background()) {
            request.put_off(reason);
            return None;
        }
        match self.register_next(&mut request, file) {
            Ok(false) => return Some(request),
            Ok(true) => self.keep(request),
            Err(PieceFailure::Later(reason)) if request.has_window() => {
                request.pinned.decline(request.window, reason, self.retry());
            }
            Err(PieceFailure::Later(_)) => {}
            Err(PieceFailure::Failed(error)) => self.note_failure(file, &request, &error),
        }
        None
    }

    /// Whether that was the last piece.
    fn register_next(
        &self,
        request: &mut PinRequest,
        file: &Descriptors,
    ) -> std::result::Result<bool, PieceFailure> {
        let PinRequest { pinned, window, terms, reservation, pin, was_watched, .. } = request;
        let (policy, least) = (terms.policy, terms.least);
        let (first, all) = pinned.extent(*window);
        let (start, left) = (first + pin.len(), all - pin.len());
        let piece = pin.piece_or(|| self.piece(pinned, policy));
        let is_probe = !self.pace_of(pinned).is_known();
        let len = if policy.is_background() || is_probe { left.min(piece) } else { left };
        if policy != PinPolicy::Always {
            self.may_go_on(file, pinned, (start, len)).map_err(PieceFailure::Later)?;
        }
        // Nobody has been writing since before: then the version tells all.
        let (is_watched, access) = (pinned.is_watched(), pinned.access);
        *was_watched |= is_watched;
        let check = || check_version(file, &pinned.version());
        check()?;
        let (region, pulled) = (pinned.region(file)?, pinned.pulled());
        let range = PinRange { file, start, len, access, is_watched };
        let took = pin.register(&self.reclaimer, &region, reservation, &range, check)?;
        pace::learn_of_mount(self.mount_key(pinned), len, took);
        lock(&pinned.pace).learn(len, took);
        if let Some(Promise { when, .. }) = &terms.promise {
            let spared = if *when == PaidUse::Now { len } else { pinned.pulled() - pulled };
            lock(&pinned.credit).charge(credit::cost(took, least, spared));
        }
        Ok(len == left)
    }

    /// Where registrations of a window may end.
    fn piece(&self, pinned: &PinnedFile, policy: PinPolicy) -> u64 {
        let pace = self.pace_of(pinned);
        match policy {
            PinPolicy::Background | PinPolicy::Announced => pace.piece(),
            PinPolicy::AtOnce if self.paces_itself() && !pace.is_known() => PROBE,
            PinPolicy::AtOnce | PinPolicy::Paid | PinPolicy::Always => WINDOW,
        }
    }

    /// Whether a window that was asked for some time ago may still be registered, and why not.
    fn may_go_on(
        &self,
        file: &Descriptors,
        pinned: &PinnedFile,
        (start, len): (u64, u64),
    ) -> std::result::Result<(), Reason> {
        if self.is_held_off() {
            return Err(short_of_memory());
        }
        if !residency::is_whole(file, start, len.min(pinned.len() - start)) {
            return Err(Reason::new("not all of its pages are in the page cache")
                .hint("read it once through the page cache: cat FILE > /dev/null, or FOREBAY_CACHE=keep"));
        }
        Ok(())
    }

    fn keep(&self, request: PinRequest) {
        if !request.has_window() {
            return;
        }
        let PinRequest { pinned, window, pin, was_watched, .. } = request;
        pinned.set_pinned(window, pin);
        // A thread that found meanwhile that nobody writes any more has checked the windows pinned before.
        if was_watched && !pinned.is_watched() && !pinned.has_kept_all() {
            self.discard(&pinned);
        }
    }

    fn note_failure(&self, file: &Descriptors, request: &PinRequest, error: &Error) {
        let pinned = &request.pinned;
        match error.kind() {
            ErrorKind::Busy => {
                request.fail(None);
                self.discard(pinned);
            }
            ErrorKind::Unsupported if error.context().iter().any(|(key, _)| *key == DRIVER) => {
                let reason = Reason::from(error);
                eligibility::refuse(self.device.as_ref(), file.nature.mount, pinned.access, reason.clone());
                request.fail(Some(reason));
            }
            ErrorKind::OutOfMemory => {
                request.fail(None);
                self.release_half();
            }
            _ => request.fail(Some(Reason::from(error))),
        }
    }
}

/// Fails if the file is in another state than `wanted`.
fn check_version(file: &Descriptors, wanted: &FileVersion) -> Result<()> {
    if FileVersion::of(file.buffered.as_raw_fd())? == *wanted {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Busy, "the file changed while its pages were registered"))
}
