//! A request, and the memory that its bytes belong in or come from.

use std::sync::Arc;

use forebay_error::{Error, Result};
use forebay_s3_rdma::headers::SUM;
use forebay_s3_rdma::{Asked, Operation as Kind, sum_of_text};
use forebay_source::{Direction, HostRange};
use forebay_verbs::{DeviceRange, Domain, RegisteredMemory, Remote, Why};

use super::memory::HostRegion;
pub(crate) use super::verdict::Expected;
use crate::wire::call::{Ask, ReplyHead};

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

/// Gets the end of an operation: the head of the reply.
pub(crate) type Done = Box<dyn FnOnce(Result<ReplyHead, NotMoved>) + Send>;

/// A request whose bytes go by RDMA.
pub(crate) struct Operation {
    pub(super) ask: Ask,
    pub(super) direction: Direction,
    pub(super) memory: MemoryOf,
    pub(super) expected: Expected,
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
        Self { ask, direction, memory, expected, done }
    }

    pub(super) fn end(self, end: Result<ReplyHead, NotMoved>) {
        (self.done)(end);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// An error where its memory is registered with another domain.
    pub(super) fn check(&self, domain: &Arc<dyn Domain>) -> Result<()> {
        match &self.memory {
            MemoryOf::Kept(memory, _) if !memory.is_of(domain) => {
                Err(Why::DeviceRemoved.error("cannot read: the RDMA device was replaced"))
            }
            _ => Ok(()),
        }
    }

    /// How the server is to name the memory; with the region where it is registered for this.
    pub(super) fn register(&self, domain: &dyn Domain) -> Result<(Remote, Option<HostRegion>)> {
        match &self.memory {
            MemoryOf::Kept(memory, range) => Ok((memory.remote(*range)?, None)),
            MemoryOf::Host(range) => {
                // SAFETY: as `new` says.
                let region = unsafe { HostRegion::new(domain, *range, self.direction) }?;
                Ok((region.remote(), Some(region)))
            }
        }
    }

    /// What the reply has to say.
    pub(super) fn asked(&self) -> Asked {
        let operation = match self.direction {
            Direction::Read => Kind::Get,
            Direction::Write => Kind::Put,
        };
        Asked { operation, bytes: self.bytes() }
    }
}
