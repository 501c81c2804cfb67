//! Connections as streams of bytes: plain ones, and TLS.

use std::io::{IoSlice, Result};

use forebay_source::HostRange;

use super::socket::Socket;

/// A stream that does not block.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Socket),
}

impl Stream {
    pub(super) fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
        }
    }

    /// Whether it has bytes of its own to send.
    pub(super) fn wants_to_send(&self) -> bool {
        match self {
            Self::Plain(_) => false,
        }
    }

    /// Receives bytes that are there; 0: the server closed the connection.
    ///
    /// # Safety
    /// The memory is valid, and no other code reads or writes it meanwhile.
    pub(super) unsafe fn receive(&mut self, into: HostRange) -> Result<usize> {
        match self {
            // SAFETY: passed on.
            Self::Plain(socket) => unsafe { socket.receive(into) },
        }
    }

    /// Sends what there is room for.
    pub(super) fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        match self {
            Self::Plain(socket) => socket.send(parts),
        }
    }
}
