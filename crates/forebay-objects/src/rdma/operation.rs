//! A request on its way, and the memory that its bytes belong in or come from.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_s3_rdma::headers::{SUM, TOKEN};
use forebay_s3_rdma::rc1::Token;
use forebay_s3_rdma::{Asked, Operation as Kind, sum_of_text};
use forebay_source::{Direction, HostRange};
use forebay_verbs::{DeviceRange, RegisteredMemory, Remote, Why};

use super::memory::HostRegion;
use super::peer::RdmaPeer;
use super::session::Session;
pub(crate) use super::verdict::Expected;
use super::verdict::Verdict;
use crate::wire::call::{Ask, ReplyHead, Room, Sink};

/// Bytes of a refusal's document that are read.
const DOCUMENT: usize = 64 << 10;

/// Memory of an operation.
pub(crate) enum MemoryOf {
    /// Memory that is registered for longer.
    Kept(Arc<RegisteredMemory>, DeviceRange),
    /// Host memory, which is registered for this operation alone. Valid and the operation's until that has ended.
    Host(HostRange),
}

impl MemoryOf {
    fn len(&self) -> usize {
        match self {
            Self::Kept(_, range) => range.len,
            Self::Host(range) => range.len,
        }
    }
}

/// Why the bytes did not move by RDMA. None of the server's arrives any more.
#[derive(Debug)]
pub(crate) enum NotMoved {
    /// The server, or this machine, does not move them by RDMA: they are to go by HTTP's body.
    Declined(Error),
    /// The server refuses the request: with this head and document.
    Refused(ReplyHead, Vec<u8>),
    /// The object is another one by now.
    Replaced(ReplyHead),
    /// The server says that it has stored an object, and nothing of the bytes that it was to read.
    Unknown,
    /// Something failed on the way.
    Failed(Error),
}

/// Gets the end of an operation: the head of the reply. Must not wait.
pub(crate) type Done = Box<dyn FnOnce(Result<ReplyHead, NotMoved>) + Send>;

/// A request whose bytes go by RDMA.
pub(crate) struct Operation {
    pub(super) ask: Ask,
    pub(super) direction: Direction,
    pub(super) memory: MemoryOf,
    expected: Expected,
    /// It was sent by a session that has ended since.
    pub(super) was_sent: bool,
    /// Sessions that were asked for because it waits.
    pub(super) connects: u8,
    done: Done,
}

impl Operation {
    /// Reads into memory, or writes from there, as many bytes as that has.
    ///
    /// # Safety
    /// Host memory is valid, and this operation's alone, until `done` is called.
    pub(crate) unsafe fn new(
        (direction, ask): (Direction, Ask),
        memory: MemoryOf,
        expected: Expected,
        done: Done,
    ) -> Self {
        let sent = ask.headers.iter().find(|(name, _)| name == SUM && direction == Direction::Write);
        let expected = Expected { sum: sent.and_then(|(_, text)| sum_of_text(text)), ..expected };
        Self { ask, direction, memory, expected, was_sent: false, connects: 0, done }
    }

    pub(super) fn end(self, end: Result<ReplyHead, NotMoved>) {
        (self.done)(end);
    }

    /// How the server is to name the memory; with the region where it is registered for this.
    pub(super) fn register(&self, session: &Session) -> Result<(Remote, Option<HostRegion>)> {
        match &self.memory {
            MemoryOf::Kept(memory, range) if memory.is_of(&session.domain) => {
                Ok((memory.remote(*range)?, None))
            }
            MemoryOf::Kept(..) => Err(Why::DeviceRemoved.error("cannot read: the RDMA device was replaced")),
            MemoryOf::Host(range) => {
                // SAFETY: as `new` says.
                let region = unsafe { HostRegion::new(session.domain.as_ref(), *range, self.direction) }?;
                Ok((region.remote(), Some(region)))
            }
        }
    }

    /// The request as it is sent.
    pub(super) fn signed_ask(&self, session: &mut Session, memory: Remote) -> Ask {
        let mut ask = self.ask.clone();
        let (number, bytes) = (session.next_number(), self.memory.len() as u64);
        let token = Token { session: session.name, number, memory, bytes };
        ask.headers.push((TOKEN.to_owned(), token.text()));
        ask
    }

    /// Whether it is sent once more where no reply came.
    fn may_go_again(&self, error: &Error) -> bool {
        !self.was_sent && self.direction == Direction::Read && error.kind() == ErrorKind::Io
    }

    fn asked(&self) -> Asked {
        let operation = match self.direction {
            Direction::Read => Kind::Get,
            Direction::Write => Kind::Put,
        };
        Asked { operation, bytes: self.memory.len() as u64 }
    }
}

/// An operation that was sent. It has its session to itself.
pub(super) struct Sent {
    pub(super) peer: Arc<RdmaPeer>,
    // Before the region: what ends a connection ends it while the memory is registered.
    pub(super) session: Session,
    pub(super) region: Option<HostRegion>,
    pub(super) operation: Operation,
    pub(super) head: Option<ReplyHead>,
    /// Of a refusal.
    pub(super) document: Vec<u8>,
    pub(super) came: usize,
}

impl Sink for Sent {
    fn head(&mut self, head: ReplyHead) -> Result<()> {
        self.head = Some(head);
        Ok(())
    }

    /// The object's bytes in a body are for nobody here.
    fn room(&mut self) -> Room {
        let is_refusal = self.head.as_ref().is_some_and(|head| head.status >= 300);
        if !is_refusal || self.came == DOCUMENT {
            return Room::Enough;
        }
        self.document.resize(DOCUMENT, 0);
        Room::Memory(HostRange::of_mut(&mut self.document[self.came..]))
    }

    fn filled(&mut self, bytes: usize) {
        self.came += bytes;
    }

    fn end(self: Box<Self>, result: Result<()>) {
        let Self { peer, session, region, operation, head, mut document, came } = *self;
        document.truncate(came);
        let head = match (result, head) {
            (Ok(()), Some(head)) => head,
            // The server may have closed a kept connection. What it may be writing ends with the session.
            (Err(error), None) if operation.may_go_again(&error) => {
                return peer.again((session, region), operation);
            }
            (Err(error), _) => return peer.failed((session, region), operation, error),
            (Ok(()), None) => {
                let error = Error::new(ErrorKind::Internal, "a call ended without a head");
                return peer.failed((session, region), operation, error);
            }
        };
        match Verdict::of(&head, operation.asked(), &operation.expected) {
            Verdict::Moved(sum) => peer.moved((session, region), operation, (head, sum)),
            Verdict::Replaced => peer.not_moved((session, region), operation, NotMoved::Replaced(head)),
            Verdict::Refused => {
                let is_whole = matches!(head.status, 300..500 | 503);
                let why = NotMoved::Refused(head, document);
                if is_whole {
                    peer.refused((session, region), operation, why);
                } else {
                    peer.not_moved((session, region), operation, why);
                }
            }
            Verdict::Unknown => peer.unknown((session, region), operation),
            Verdict::SessionLost => peer.lost((session, region), operation),
            Verdict::Declined(reason) => peer.declined((session, region), operation, reason.text()),
            Verdict::Wrong(why) => peer.wrong((session, region), operation, why),
        }
    }
}
