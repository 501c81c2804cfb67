//! Completions of a connection.

use std::fmt;

/// The operations that are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A receive.
    Receive,
    /// A message to the peer.
    Send,
    /// RDMA WRITE: this side's bytes into the peer's memory.
    Write,
    /// RDMA READ: the peer's bytes into this side's memory.
    Read,
    /// A window bound.
    Bind,
    /// A window's key invalidated.
    Invalidate,
}

/// Why an operation failed. Each ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The connection was down already: not begun, or not known whether it was.
    Flushed,
    /// A message was longer than the receive that it met.
    LocalLength,
    /// This side's key, range or rights do not fit.
    LocalProtection,
    /// The window could not be bound.
    WindowBind,
    /// The peer's key, range or rights do not fit.
    RemoteAccess,
    /// The peer found the request malformed: too long for its receive, or a key that cannot be invalidated.
    RemoteInvalid,
    /// The peer failed to do it.
    RemoteOperation,
    /// The peer does not answer.
    Unreachable,
    /// The peer had no receive posted.
    ReceiverNotReady,
    /// Another status, as verbs number it.
    Other(u32),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flushed => f.write_str("the connection was down"),
            Self::LocalLength => f.write_str("a message was longer than its receive"),
            Self::LocalProtection => f.write_str("this side's key, range or rights do not fit"),
            Self::WindowBind => f.write_str("the window could not be bound"),
            Self::RemoteAccess => f.write_str("the peer's key, range or rights do not fit"),
            Self::RemoteInvalid => f.write_str("the peer found the request malformed"),
            Self::RemoteOperation => f.write_str("the peer failed to do it"),
            Self::Unreachable => f.write_str("the peer does not answer"),
            Self::ReceiverNotReady => f.write_str("the peer had no receive posted"),
            Self::Other(status) => write!(f, "the device reports status {status}"),
        }
    }
}

/// A message that came. Its bytes stand in one of the connection's receives until it is given back by
/// [`crate::Connection::post_receive`].
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    connection: u64,
    slot: u32,
    len: u32,
    invalidated: Option<u32>,
    immediate: Option<u32>,
}

impl Message {
    /// The message in `slot` of a connection, for those who make a fabric. One message for each receive that was posted.
    pub const fn new(connection: u64, slot: u32, len: u32, invalidated: Option<u32>) -> Self {
        Self { connection, slot, len, invalidated, immediate: None }
    }

    /// With a number that came beside its bytes, for those who make a fabric.
    #[must_use]
    pub const fn with_immediate(mut self, immediate: Option<u32>) -> Self {
        self.immediate = immediate;
        self
    }

    /// The number of the connection that it came by; no two of a process have the same.
    pub const fn connection(&self) -> u64 {
        self.connection
    }

    /// Which receive it is in.
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key of this side's that the peer invalidated with it. Some devices do not say which (rxe).
    pub const fn invalidated(&self) -> Option<u32> {
        self.invalidated
    }

    /// The number that came with it: behind the last bytes of [`crate::Connection::write_with_immediate`], which are no bytes of the
    /// message's.
    pub const fn immediate(&self) -> Option<u32> {
        self.immediate
    }
}

/// The end of an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Completion {
    /// A message came.
    Received(Message),
    /// An operation that was posted is done.
    Done {
        /// The number that it was posted with.
        id: u64,
        /// What it was.
        kind: Kind,
    },
    /// An operation failed, and the connection is down.
    Failed {
        /// The number that it was posted with; of a receive its slot.
        id: u64,
        /// What it was.
        kind: Kind,
        /// The reason.
        why: Failure,
    },
}
