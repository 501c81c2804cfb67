//! A call and its whole reply.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_source::HostRange;

use super::content_range::content_range;
use super::refusal::{Refusal, about, refusal};
use crate::endpoint::Endpoint;
use crate::lock;
use crate::pace::DEADLINE;
use crate::wire::LONG_WORK;
use crate::wire::call::{Ask, Body, Method, ReplyHead, Room, Sink};

/// Bytes of the longest reply: listings of 1 000 keys of 1 024 bytes, percent-encoded, are shorter.
pub(super) const MAX_REPLY: usize = 8 << 20;
/// Memory that a body is received into at a time.
const PIECE: usize = 64 << 10;

/// A reply with its body.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) head: ReplyHead,
    pub(crate) body: Vec<u8>,
    /// An earlier attempt had no reply, or a failure: the server may have carried out the call twice.
    pub(crate) is_second: bool,
}

/// How a call ended: a reply with an error status is a reply.
pub(super) type End = Result<Reply>;

/// Gets the end of a call, on a thread of the network.
pub(super) type Done = Box<dyn FnOnce(End) + Send>;

/// Starts a call; `done` must not wait.
pub(super) fn start(endpoint: &Endpoint, ask: Ask, body: Body, done: Done) {
    start_call(endpoint, ask, body, Wants::All, done);
}

/// What of a reply is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    All,
    /// Its head, and the first bytes of its body.
    First(usize),
}

/// Bytes of a body whose head alone is wanted: that of an error fits.
const HEAD: Wants = Wants::First(PIECE);

fn start_call(endpoint: &Endpoint, ask: Ask, body: Body, wants: Wants, done: Done) {
    let sink = Collect { head: None, body: Vec::new(), filled: 0, wants, done };
    endpoint.network.start(ask, body, Box::new(sink));
}

struct Collect {
    head: Option<ReplyHead>,
    body: Vec<u8>,
    filled: usize,
    wants: Wants,
    done: Done,
}

impl Collect {
    fn limit(&self) -> usize {
        match self.wants {
            // One byte more would be too long a reply.
            Wants::All => MAX_REPLY + 1,
            Wants::First(bytes) => self.ranged().map_or(bytes, |ranged| bytes.min(ranged)),
        }
    }

    /// Bytes of the body where it is a range: their end may be that of the connection, which is not waited for.
    fn ranged(&self) -> Option<usize> {
        let (start, end, _) = content_range(self.head.as_ref()?.header("content-range")?)?;
        usize::try_from(end.saturating_sub(start)).ok()
    }

    /// Memory for the next bytes: for all of the body at once, where its head says how long it is.
    fn grow(&mut self) {
        let length = self.head.as_ref().and_then(|head| head.length).unwrap_or(0);
        let rest = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(self.filled);
        let more = if rest > 0 { rest } else { PIECE };
        self.body.resize(self.filled + more.min(self.limit() - self.filled), 0);
    }
}

impl Sink for Collect {
    fn head(&mut self, head: ReplyHead) -> Result<()> {
        self.head = Some(head);
        Ok(())
    }

    fn room(&mut self) -> Room {
        if self.filled >= self.limit() {
            return Room::Enough;
        }
        if self.filled == self.body.len() {
            self.grow();
        }
        Room::Memory(HostRange::of_mut(&mut self.body[self.filled..]))
    }

    fn filled(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    fn end(self: Box<Self>, result: Result<()>) {
        let is_cut = self.wants == Wants::All && self.filled > MAX_REPLY;
        let Self { head, mut body, filled, done, .. } = *self;
        body.truncate(filled);
        done(result.and_then(|()| {
            match head {
                // A refusal says what it is by its status.
                Some(head) if is_cut && matches!(head.status, 200..=299) => {
                    Err(Error::new(ErrorKind::Corrupt, "the reply is too long")
                        .with("status", head.status)
                        .with("most", MAX_REPLY))
                }
                Some(head) => Ok(Reply { head, body, is_second: false }),
                None => Err(Error::new(ErrorKind::Internal, "a call ended without a head")),
            }
        }));
    }
}

/// A call that is waited for, once.
pub(super) fn once(endpoint: &Endpoint, ask: Ask, body: Body) -> Result<Reply> {
    once_for(endpoint, ask, body, Wants::All)
}

/// The body's memory is free when this returns.
fn once_for(endpoint: &Endpoint, ask: Ask, body: Body, wants: Wants) -> Result<Reply> {
    let is_borrowed = matches!(body, Body::Memory(_));
    let shared = Arc::new((Mutex::new(None), Condvar::new()));
    let theirs = shared.clone();
    start_call(
        endpoint,
        ask,
        body,
        wants,
        Box::new(move |reply| {
            *lock(&theirs.0) = Some(reply);
            theirs.1.notify_all();
        }),
    );
    let mut reply = lock(&shared.0);
    loop {
        if let Some(reply) = reply.take() {
            return reply;
        }
        // The network gives up by itself what it sends from memory.
        if !is_borrowed && stop::is_stopped() {
            return Err(stop::stopped());
        }
        reply = shared.1.wait_timeout(reply, stop::SLICE).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Whether a call may succeed if it is sent again: the pause that the server asked for.
pub(super) enum Verdict {
    Good(Reply),
    /// It says this, and sending it again does not change that.
    Refused(Refusal),
    /// Not for now.
    Later(Error, Option<Duration>),
}

/// Judges the end of a call.
pub(super) fn judge(endpoint: &Endpoint, ask: &Ask, end: End) -> Verdict {
    let reply = match end {
        Ok(reply) => reply,
        Err(error) => {
            let error = about(error, endpoint, ask);
            if is_passing(&error) {
                return Verdict::Later(error, None);
            }
            return Verdict::Refused(Refusal::without_reply(error));
        }
    };
    // Copies and the ends of uploads begin their replies before they are done: an error comes in the body.
    let is_document = ask.method != Method::Get || ask.key.is_empty();
    let is_late_error = reply.head.status == 200 && is_document && is_error_document(&reply.body);
    if matches!(reply.head.status, 200..=299) && !is_late_error {
        return Verdict::Good(reply);
    }
    let pause = reply.head.header("retry-after").and_then(|text| text.trim().parse().ok());
    let refusal = refusal(endpoint, ask, &reply.head, &reply.body);
    if refusal.is_passing {
        Verdict::Later(refusal.error, pause.map(Duration::from_secs))
    } else {
        Verdict::Refused(refusal)
    }
}

/// Whether a connection failed, so that another one may do.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Timeout | ErrorKind::ShortRead)
}

/// Whether the root is an error: lists of removed objects have some further in.
fn is_error_document(body: &[u8]) -> bool {
    let mut rest = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body).trim_ascii_start();
    if rest.starts_with(b"<?") {
        let end = rest.windows(2).position(|two| two == b"?>").map_or(rest.len(), |at| at + 2);
        rest = rest[end..].trim_ascii_start();
    }
    rest.starts_with(b"<Error>") || rest.starts_with(b"<Error ")
}

/// When a call that failed is sent again: behind the pause of all calls to the endpoint. `None`: it has failed for as long as its
/// patience, since the time that is kept for it.
pub(super) fn next_attempt(
    endpoint: &Endpoint,
    failed: &mut Option<Instant>,
    asked: Option<Duration>,
    patience: Duration,
) -> Option<Instant> {
    let now = Instant::now();
    endpoint.budget.refused(asked, now);
    let since = *failed.get_or_insert(now);
    let is_known = !endpoint.network.facts().transport.is_empty();
    endpoint.budget.goes_on(patience, since, now, is_known).then(|| endpoint.budget.until(now).unwrap_or(now))
}

/// A call that is waited for, sent again where that helps.
pub(super) fn exchange(endpoint: &Endpoint, ask: &Ask, body: &Body) -> Result<Reply, Refusal> {
    exchange_within(DEADLINE, endpoint, ask, body)
}

/// The same, where it may fail for this long.
pub(super) fn exchange_within(
    patience: Duration,
    endpoint: &Endpoint,
    ask: &Ask,
    body: &Body,
) -> Result<Reply, Refusal> {
    attempt(patience, endpoint, ask, body, Wants::All)
}

/// The same, without the body of a long reply.
pub(super) fn head_of(endpoint: &Endpoint, ask: &Ask) -> Result<ReplyHead, Refusal> {
    attempt(DEADLINE, endpoint, ask, &Body::None, HEAD).map(|reply| reply.head)
}

/// The same, with this number of bytes of the body at most.
pub(super) fn first_of(
    patience: Duration,
    endpoint: &Endpoint,
    ask: &Ask,
    bytes: usize,
) -> Result<Reply, Refusal> {
    attempt(patience, endpoint, ask, &Body::None, Wants::First(bytes))
}

fn attempt(
    patience: Duration,
    endpoint: &Endpoint,
    ask: &Ask,
    body: &Body,
    wants: Wants,
) -> Result<Reply, Refusal> {
    let (mut failed, mut is_second) = (None, false);
    loop {
        let began = Instant::now();
        if let Some(until) = endpoint.budget.until(began) {
            stop::sleep(until - began)?;
        }
        let began = Instant::now();
        let end = once_for(endpoint, ask.clone(), body.clone(), wants);
        let is_lost = end.as_ref().map_or(true, |reply| reply.head.status >= 500);
        if let Ok(reply) = &end {
            endpoint.local.note(&reply.head);
        }
        match judge(endpoint, ask, end) {
            Verdict::Good(reply) => {
                endpoint.budget.good(began);
                return Ok(Reply { is_second, ..reply });
            }
            Verdict::Refused(refusal) => return Err(refusal),
            // It may be at it still.
            Verdict::Later(error, _) if ask.takes_long() && began.elapsed() >= LONG_WORK => {
                return Err(Refusal::without_reply(error));
            }
            // The pause is waited for above.
            Verdict::Later(error, asked) => {
                // A server that was silent has had its time.
                let is_silent = patience < DEADLINE && error.kind() == ErrorKind::Timeout;
                let next = next_attempt(endpoint, &mut failed, asked, patience).filter(|_| !is_silent);
                next.ok_or_else(|| Refusal::gone(error))?;
                is_second |= is_lost;
            }
        }
    }
}
