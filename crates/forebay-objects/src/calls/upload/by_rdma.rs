//! Bytes of new objects that the server reads from memory by RDMA.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use forebay_config::S3Rdma;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Direction, HostRange};

use crate::calls::bucket::Bucket;
use crate::calls::checksum;
use crate::calls::exchange::{self, Done, Reply};
use crate::calls::refusal;
use crate::endpoint::Endpoint;
use crate::lock;
use crate::rdma::{Expected, MemoryOf, NotMoved, Operation, RdmaPeer, SMALLEST, Wanted};
use crate::wire::call::{Ask, Body, Method, ReplyHead};

/// How parts of an upload were sent, for receipts.
#[derive(Debug, Default)]
pub(super) struct SentBytes {
    by_rdma: AtomicU64,
    /// Those that RDMA was there for, and could not be used or failed, and the last reason.
    by_body: Mutex<(u64, Option<Error>)>,
}

impl SentBytes {
    pub(super) fn note_rdma(&self, len: usize) {
        self.by_rdma.fetch_add(len as u64, Relaxed);
    }

    pub(super) fn note_body(&self, len: usize, why: Error) {
        let mut by_body = lock(&self.by_body);
        *by_body = (by_body.0 + len as u64, Some(why));
    }

    /// Bytes that are sent from now on, for receipts.
    pub(super) fn late_note(
        self: &Arc<Self>,
        endpoint: Arc<Endpoint>,
    ) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let (this, before) = (self.clone(), (self.by_rdma.load(Relaxed), lock(&self.by_body).0));
        move || {
            let sent = this.by_rdma.load(Relaxed) - before.0;
            let peer = RdmaPeer::of(&endpoint);
            let way = peer.way();
            let sent = (sent > 0)
                .then(|| format!("{sent} bytes by RDMA from host memory: {way}; keys: per operation"));
            let (by_body, why) = lock(&this.by_body).clone();
            let left = why.filter(|_| by_body > before.1);
            let left = left.map(|why| format!("{} bytes by HTTP body: {why}", by_body - before.1));
            let notes: Vec<_> = sent.into_iter().chain(left).collect();
            (!notes.is_empty()).then(|| notes.join("; "))
        }
    }
}

/// The server, where this many bytes go to it by RDMA. It is asked for a session where `asks`, or where they must; it is not sent a PUT
/// by RDMA before it has given one: a server that does not know the header stores an empty object.
fn peer(
    endpoint: &Arc<Endpoint>,
    at: (&str, &str),
    bytes: usize,
    asks: bool,
) -> Result<Option<Arc<RdmaPeer>>> {
    let wish = S3Rdma::from_env()?;
    let is_required = wish == S3Rdma::Require;
    if wish == S3Rdma::Off || bytes == 0 || (!is_required && (bytes as u64) < SMALLEST) {
        return Ok(None);
    }
    let peer = RdmaPeer::of(endpoint);
    let known = if asks || is_required {
        Some(peer.ask(&Wanted::write(at.0, at.1, bytes as u64)))
    } else {
        peer.known()
    };
    match known.map(|known| known.and_then(|_| peer.takes_writes())) {
        Some(Ok(())) => Ok(Some(peer)),
        Some(Err(error)) if is_required => Err(error.hint("FOREBAY_S3_RDMA=prefer")),
        _ => Ok(None),
    }
}

/// Asks the server for a session, where an upload of several parts begins.
pub(super) fn prepare(endpoint: &Arc<Endpoint>, at: (&str, &str), bytes: usize) -> Result<()> {
    let peer = peer(endpoint, at, bytes, true)?;
    if is_required() && peer.is_some_and(|peer| !peer.takes_parts()) { Err(no_parts()) } else { Ok(()) }
}

fn no_parts() -> Error {
    Error::new(ErrorKind::Unsupported, "the server's dialect of RDMA (hipobj-rc-v2) has no parts of uploads")
        .hint("FOREBAY_S3_RDMA=prefer")
}

pub(super) fn is_required() -> bool {
    matches!(S3Rdma::from_env(), Ok(S3Rdma::Require))
}

fn error_of(endpoint: &Endpoint, ask: &Ask, why: NotMoved) -> Error {
    match why {
        NotMoved::Declined(error) | NotMoved::Failed(error) => error,
        NotMoved::Unknown => Error::new(ErrorKind::Io, "the server does not say that it has read the bytes"),
        NotMoved::Refused(head, document) => refusal(endpoint, ask, &head, &document).error,
        NotMoved::Replaced(head) => {
            Error::new(ErrorKind::Io, "the server refuses the bytes").with("status", head.status)
        }
    }
}

fn write_ask(ask: &Ask) -> Ask {
    let mut ask = ask.clone();
    ask.headers.push(("x-amz-content-sha256".to_owned(), "UNSIGNED-PAYLOAD".to_owned()));
    ask
}

fn without_body(head: ReplyHead, body: Vec<u8>) -> Reply {
    Reply { head, body, is_second: false }
}

/// Sends a part: by RDMA, or in a body. A part that is sent twice is one.
///
/// # Safety
/// The memory is valid, and nobody writes it, until `done`.
pub(super) unsafe fn send(
    endpoint: &Arc<Endpoint>,
    ask: Ask,
    memory: HostRange,
    sent: &Arc<SentBytes>,
    done: Done,
) {
    let peer = match peer(endpoint, (&ask.bucket, &ask.key), memory.len, false) {
        Ok(Some(peer)) if peer.takes_parts() => peer,
        Ok(none) => {
            if none.is_some() {
                sent.note_body(memory.len, no_parts());
            }
            return exchange::start(endpoint, ask, Body::Memory(memory), done);
        }
        Err(error) => return done(Err(error)),
    };
    let (asked, endpoint, sent) = (write_ask(&ask), endpoint.clone(), sent.clone());
    let end = Box::new(move |end: Result<_, NotMoved>| match end {
        Ok(head) => {
            sent.note_rdma(memory.len);
            done(Ok(without_body(head, Vec::new())));
        }
        // As it would refuse a body. What it has too few of for RDMA, a body does not need.
        Err(NotMoved::Refused(head, document)) if head.status != 503 || is_required() => {
            done(Ok(without_body(head, document)));
        }
        Err(why) if is_required() => done(Err(error_of(&endpoint, &ask, why))),
        Err(why) => {
            sent.note_body(memory.len, error_of(&endpoint, &ask, why));
            exchange::start(&endpoint, ask, Body::Memory(memory), done);
        }
    });
    // SAFETY: passed on.
    peer.start(unsafe {
        Operation::new((Direction::Write, asked), MemoryOf::Host(memory), Expected::default(), end)
    });
}

impl Bucket {
    /// Writes a whole object from memory by RDMA. `None`: it is to be sent in a body, and nobody reads the memory any more.
    pub(super) fn put_by_rdma(
        &self,
        key: &str,
        bytes: &[u8],
        kept: &[(String, String)],
        sent: &SentBytes,
    ) -> Result<Option<Reply>> {
        let endpoint = self.endpoint_here()?;
        // Where a reply is lost, an object that was there before could be taken for this one.
        if kept.iter().any(|(name, _)| name.starts_with("if-")) {
            return Ok(None);
        }
        let Some(peer) = peer(&endpoint, (&self.name, key), bytes.len(), false)? else { return Ok(None) };
        let crc64 = checksum::text(checksum::crc64(bytes));
        let mut ask = self.ask(Method::Put, key);
        ask.headers.extend_from_slice(kept);
        ask.headers.push(("x-amz-checksum-crc64nvme".to_owned(), crc64.clone()));
        let (tell, told) = channel();
        let memory = MemoryOf::Host(HostRange::of(bytes));
        let done = Box::new(move |end| drop(tell.send(end)));
        // SAFETY: the bytes are borrowed, and the end is waited for.
        peer.start(unsafe {
            Operation::new((Direction::Write, write_ask(&ask)), memory, Expected::default(), done)
        });
        let none = || NotMoved::Failed(Error::new(ErrorKind::Internal, "a write has no end"));
        match told.recv().unwrap_or_else(|_| Err(none())) {
            Ok(head) => Ok(Some(without_body(head, Vec::new()))),
            // It may be stored: a reply was lost, or has no word of RDMA.
            Err(NotMoved::Unknown | NotMoved::Failed(_))
                if let Some(head) = self.stored(key, bytes.len(), &crc64) =>
            {
                Ok(Some(without_body(head, Vec::new())))
            }
            Err(why) if is_required() => Err(error_of(&endpoint, &ask, why)),
            Err(why) => {
                sent.note_body(bytes.len(), error_of(&endpoint, &ask, why));
                Ok(None)
            }
        }
    }

    /// The head of an object with this length and checksum, if it is there.
    fn stored(&self, key: &str, len: usize, crc64: &str) -> Option<ReplyHead> {
        let reply = self.head_reply(key, None).ok()?;
        let is_it =
            reply.length == Some(len as u64) && reply.header("x-amz-checksum-crc64nvme") == Some(crc64);
        is_it.then_some(reply)
    }
}
