//! Calls on their way.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop::patient_until;

use super::call::{Ask, Body, Resume, Sink};
use super::mail::Mailbox;
use crate::lock;

/// A call that has not ended.
pub(super) struct Job {
    pub(super) ask: Ask,
    pub(super) body: Body,
    /// Its head, where it was signed before there was a connection.
    pub(super) head: Option<Vec<u8>>,
    /// How often it was sent on a connection that was closed then.
    pub(super) resent: u32,
    /// Addresses that did not take a connection for it.
    pub(super) refused: usize,
    pub(super) place: Arc<JobPlace>,
    /// Until when it goes on where waiting is to stop.
    patient_until: Option<Instant>,
    sink: Option<Box<dyn Sink>>,
}

impl Job {
    pub(super) fn new(ask: Ask, body: Body, sink: Box<dyn Sink>) -> Self {
        let place = Arc::new(JobPlace::default());
        let patient_until = patient_until();
        Self { ask, body, head: None, resent: 0, refused: 0, place, patient_until, sink: Some(sink) }
    }

    /// Whether it ends where waiting is to stop.
    pub(super) fn is_impatient(&self, now: Instant) -> bool {
        self.patient_until.is_none_or(|until| now >= until)
    }

    /// The sink; it is there until the call ends.
    pub(super) fn sink(&mut self) -> Option<&mut (dyn Sink + 'static)> {
        self.sink.as_deref_mut()
    }

    pub(super) fn end(mut self, result: Result<()>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<()>) {
        self.place.set(None);
        if let Some(sink) = self.sink.take() {
            sink.end(result);
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers may have keys.
        f.debug_struct("Job").field("method", &self.ask.method).finish_non_exhaustive()
    }
}

impl Drop for Job {
    /// A thread that panics leaves no call without its end.
    fn drop(&mut self) {
        if self.sink.is_some() {
            self.finish(Err(Error::new(ErrorKind::Internal, "a thread of the network ended within a call")));
        }
    }
}

/// Where a call is on its way: the thread that serves its connection, and the connection's token there.
#[derive(Default)]
pub(super) struct JobPlace(Mutex<Option<(Arc<Mailbox>, u64)>>);

impl JobPlace {
    pub(super) fn set(&self, place: Option<(Arc<Mailbox>, u64)>) {
        *lock(&self.0) = place;
    }
}

impl Resume for JobPlace {
    fn resume(&self) {
        if let Some((mailbox, token)) = &*lock(&self.0) {
            mailbox.resume(*token);
        }
    }
}
