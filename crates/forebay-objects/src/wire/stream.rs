//! Connections as streams of bytes: plain ones, and TLS.

use std::io::{IoSlice, Result};

use forebay_source::HostRange;

use super::socket::Socket;
use super::tls::TlsStream;

/// A stream that does not block.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream>),
}

impl Stream {
    pub(super) fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }

    /// "TCP", "TLS 1.3".
    pub(super) fn transport(&self) -> &'static str {
        match self {
            Self::Plain(_) => "TCP",
            Self::Tls(stream) => stream.version().unwrap_or("TLS"),
        }
    }

    /// Whether it has bytes of its own to send.
    pub(super) fn wants_to_send(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.wants_to_send(),
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
            // SAFETY: passed on.
            Self::Tls(stream) => unsafe { stream.receive(into) },
        }
    }

    /// This number of bytes follows: where they are plain, many of them are waited for at a time.
    pub(super) fn expect(&mut self, bytes: u64) {
        if let Self::Plain(socket) = self {
            socket.expect(bytes);
        }
    }

    /// Sends what there is room for.
    pub(super) fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        match self {
            Self::Plain(socket) => socket.send(parts),
            Self::Tls(stream) => stream.send(parts),
        }
    }

    /// Sends bytes of its own.
    pub(super) fn flush(&mut self) -> Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }

    /// Whether nothing came on a connection that waits for no reply, not even its end.
    pub(super) fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_quiet(),
            Self::Tls(stream) => stream.is_quiet(),
        }
    }
}
