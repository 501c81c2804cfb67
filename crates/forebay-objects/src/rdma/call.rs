//! Calls that a thread waits for.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_source::HostRange;

use crate::lock;
use crate::wire::Network;
use crate::wire::call::{Ask, Body, Method, ReplyHead, Room, Sink};

/// Bytes of a document that are read.
const DOCUMENT: usize = 64 << 10;

/// A reply with its document, or no reply.
pub(super) type End = Result<(ReplyHead, Vec<u8>), NoReply>;

/// Why there is no whole reply.
pub(super) struct NoReply {
    pub(super) error: Error,
    /// The head came.
    pub(super) has_head: bool,
}

impl NoReply {
    fn of(error: Error) -> Self {
        Self { error, has_head: false }
    }

    /// Whether the server may not have got the request: it closes kept connections.
    pub(super) fn may_go_again(&self) -> bool {
        !self.has_head && self.error.kind() == ErrorKind::Io
    }
}

/// Which documents are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Documents {
    All,
    /// Those of refusals. An object's bytes in a body are for nobody here.
    Refusals,
}

/// A call under way.
pub(super) struct Call {
    told: Told,
}

#[derive(Clone, Default)]
struct Told(Arc<(Mutex<Option<End>>, Condvar)>);

/// Where its reply goes.
struct Answer {
    head: Option<ReplyHead>,
    body: Vec<u8>,
    came: usize,
    documents: Documents,
    told: Told,
    /// Kept until the answer: perhaps nobody waits for it.
    _network: Arc<Network>,
}

impl Sink for Answer {
    fn head(&mut self, head: ReplyHead) -> Result<()> {
        self.head = Some(head);
        Ok(())
    }

    fn room(&mut self) -> Room {
        let is_refusal = self.head.as_ref().is_some_and(|head| head.status >= 300);
        let is_read = is_refusal || self.documents == Documents::All;
        if !is_read || self.came == DOCUMENT {
            return Room::Enough;
        }
        self.body.resize(DOCUMENT, 0);
        Room::Memory(HostRange::of_mut(&mut self.body[self.came..]))
    }

    fn filled(&mut self, bytes: usize) {
        self.came += bytes;
    }

    fn end(self: Box<Self>, result: Result<()>) {
        let Self { head, mut body, came, told, .. } = *self;
        body.truncate(came);
        let end = match (result, head) {
            (Ok(()), Some(head)) => Ok((head, body)),
            (Ok(()), None) => {
                Err(NoReply::of(Error::new(ErrorKind::Internal, "a call ended without a head")))
            }
            (Err(error), head) => Err(NoReply { error, has_head: head.is_some() }),
        };
        let Told(told) = told;
        *lock(&told.0) = Some(end);
        told.1.notify_all();
    }
}

impl Call {
    pub(super) fn start(network: &Arc<Network>, ask: Ask, body: Body, documents: Documents) -> Self {
        let told = Told::default();
        let answer = Answer {
            head: None,
            body: Vec::new(),
            came: 0,
            documents,
            told: told.clone(),
            _network: network.clone(),
        };
        network.start(ask, body, Box::new(answer));
        Self { told }
    }

    pub(super) fn wait(self) -> End {
        self.wait_beside(|| Ok(()))
    }

    /// Waits, and ends with an error of `look`, which is asked ten times a second.
    pub(super) fn wait_beside(self, mut look: impl FnMut() -> Result<()>) -> End {
        let (end, changed) = &*self.told.0;
        let mut end = lock(end);
        loop {
            if let Some(end) = end.take() {
                return end;
            }
            if stop::is_stopped() {
                return Err(NoReply::of(stop::stopped()));
            }
            end = changed.wait_timeout(end, stop::SLICE).unwrap_or_else(PoisonError::into_inner).0;
            if end.is_none() {
                look().map_err(NoReply::of)?;
            }
        }
    }
}

/// A request to a path of the server's own, without a bucket.
pub(super) fn post(path: &str) -> Ask {
    Ask {
        method: Method::Post,
        bucket: String::new(),
        key: path.trim_start_matches('/').to_owned(),
        query: Vec::new(),
        headers: Vec::new(),
    }
}
