//! Tickets of transfers in flight, and their outcome.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use forebay_error::Result;

use crate::request::cancel::Cancel;
use crate::request::completion::Completion;
use crate::request::receipt::Receipt;

/// A submission that no other thread works on: it ends when it is polled.
pub trait CallerPolled: Send + Sync {
    /// Whether the bytes have come. The completion may still be about to resolve.
    fn has_landed(&self) -> bool;

    /// Checks whether they have, without waiting, and finishes the request if so. Returns the answer.
    fn look(&self) -> bool;

    /// Waits for them, at most until `deadline`; whether they have come.
    fn wait(&self, deadline: Option<Instant>) -> bool;

    /// Nobody is sure to look any more: a thread of the engine's does from now on.
    fn watch(self: Arc<Self>);
}

/// What a submission came to.
#[derive(Debug)]
pub struct Outcome<B = ()> {
    /// Good bytes from its start or the error, for each entry in order.
    pub entries: Vec<Result<u64>>,
    /// What really happened.
    pub receipt: Receipt,
    /// The buffer, given back.
    pub buffer: B,
}

impl<B> Outcome<B> {
    /// The receipt and the buffer, or the first entry's error.
    pub fn into_result(self) -> Result<(Receipt, B)> {
        match self.entries.into_iter().find_map(Result::err) {
            Some(error) => Err(error),
            None => Ok((self.receipt, self.buffer)),
        }
    }

    /// The receipt, or the first entry's error.
    pub fn result(&self) -> Result<&Receipt> {
        match self.entries.iter().find_map(|entry| entry.as_ref().err()) {
            Some(error) => Err(error.clone()),
            None => Ok(&self.receipt),
        }
    }
}

/// A submission in flight. It may be waited for from any thread, polled, or awaited.
///
/// In a forked child a transfer of the parent's never ends: there it is resolved with [`ErrorKind::Unsupported`](forebay_error::ErrorKind).
///
/// It owns the buffer until it is resolved, so that safe code can neither free nor touch memory that a device or
/// the kernel writes to. Dropping the ticket of an owned buffer waits.
#[must_use = "dropping a ticket waits for its transfer"]
pub struct Ticket<B = ()> {
    completion: Arc<Completion>,
    buffer: Option<B>,
    waits_on_drop: bool,
    /// Resolves a submission that can never start, if it finds it so.
    watch: Option<Box<dyn Fn() + Send + Sync>>,
    /// The flight, where it lands by being looked at.
    driven: Option<Arc<dyn CallerPolled>>,
}

/// How often a waiter looks whether the submission can still start.
const LOOK: Duration = Duration::from_millis(20);

impl<B> std::fmt::Debug for Ticket<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<B> Ticket<B> {
    pub(crate) fn new(completion: Arc<Completion>, buffer: B, waits_on_drop: bool) -> Self {
        Self { completion, buffer: Some(buffer), waits_on_drop, watch: None, driven: None }
    }

    /// Turns a raw ticket into one that owns `buffer`.
    pub(crate) fn with_buffer<C>(mut self, buffer: C) -> Ticket<C> {
        self.waits_on_drop = false;
        let (watch, driven) = (self.watch.take(), self.driven.take());
        Ticket {
            completion: self.completion.clone(),
            buffer: Some(buffer),
            waits_on_drop: true,
            watch,
            driven,
        }
    }

    pub(crate) fn driving(mut self, driven: Option<Arc<dyn CallerPolled>>) -> Self {
        self.driven = driven;
        self
    }

    pub(crate) fn watched(mut self, watch: Box<dyn Fn() + Send + Sync>) -> Self {
        self.watch = Some(watch);
        self
    }

    fn look(&self) {
        if self.completion.is_lost() {
            return;
        }
        if let Some(driven) = &self.driven {
            driven.look();
        }
        if let Some(watch) = &self.watch {
            watch();
        }
    }

    fn block(&self, limit: Option<Duration>) -> bool {
        if self.completion.is_lost() {
            return true;
        }
        if let Some(driven) = &self.driven {
            let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
            if !driven.wait(deadline) {
                return self.completion.is_done();
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            return self.completion.wait(left);
        }
        if self.watch.is_none() {
            return self.completion.wait(limit);
        }
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(Instant::now()));
            if self.completion.wait(Some(left.min(LOOK))) {
                return true;
            }
            self.look();
            if left.is_zero() {
                return self.completion.is_done();
            }
        }
    }

    /// Whether it is resolved.
    pub fn is_done(&self) -> bool {
        self.completion.is_done() || self.completion.is_lost() || {
            self.look();
            self.completion.is_done()
        }
    }

    /// Whether looking at it is what makes progress: no other thread works on it, so that a caller who wants it soon
    /// calls [`Ticket::is_done`] again and again, or waits. It resolves at the first poll after its bytes have come
    /// (until then its pages stay pinned); where it was polled as a future, or is dropped, another thread looks.
    pub fn is_driven(&self) -> bool {
        self.driven.as_ref().is_some_and(|driven| !driven.has_landed())
    }

    /// Cancels works that have not begun; does not wait. Entries with a cancelled part end with
    /// [`ErrorKind::Cancelled`](forebay_error::ErrorKind); the parts that were moved are not reported. Parts in flight
    /// continue (a few MiB for each thread of forebay's), so the memory is in use until the ticket is resolved, which
    /// it soon is. Transfers in the order of a stream are not given up.
    pub fn cancel(&self) {
        if self.completion.is_elsewhere() {
            return;
        }
        self.completion.cancel();
    }

    /// Waits until it is resolved, at most `limit`; whether it is.
    pub fn wait_timeout(&self, limit: Duration) -> bool {
        self.block(Some(limit))
    }

    /// As [`Ticket::wait`], for one that should take about so long: the waiter polls in the end.
    pub(crate) fn wait_closely(self, expected: Duration) -> Outcome<B> {
        if self.driven.is_none() && self.watch.is_none() {
            self.completion.wait_closely(expected);
        }
        self.wait()
    }

    /// Waits and gives the outcome.
    pub fn wait(mut self) -> Outcome<B> {
        self.block(None);
        self.take_outcome().unwrap_or_else(|| unreachable!("a ticket is waited for once: it is consumed"))
    }

    fn take_outcome(&mut self) -> Option<Outcome<B>> {
        let buffer = self.buffer.take()?;
        if self.completion.is_lost() {
            let (entries, receipt) = self.completion.lost();
            return Some(Outcome { entries, receipt, buffer });
        }
        Some(Outcome { entries: self.completion.results(), receipt: self.completion.receipt(), buffer })
    }
}

impl<B: Unpin> Future for Ticket<B> {
    type Output = Outcome<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.look();
        if !self.completion.is_lost() && self.completion.wake_later(context.waker()) {
            if let Some(driven) = &self.driven {
                driven.clone().watch();
            }
            return Poll::Pending;
        }
        match self.take_outcome() {
            Some(outcome) => Poll::Ready(outcome),
            None => panic!("a ticket was polled after it had given its outcome"),
        }
    }
}

impl<B> Drop for Ticket<B> {
    fn drop(&mut self) {
        if self.completion.is_elsewhere() {
            // What they end with is the parent's.
            std::mem::forget((self.driven.take(), self.watch.take(), self.completion.clone()));
            return;
        }
        if self.waits_on_drop && self.buffer.is_some() {
            self.block(None);
        }
        if let Some(driven) = self.driven.take() {
            driven.watch();
        }
    }
}
