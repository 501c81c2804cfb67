//! A connection that is being made.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_remote::endpoint::refused;
use rustix::io::Errno;

use super::socket::Socket;
use super::stream::Stream;

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Opening {
    stream: Stream,
    at: SocketAddr,
    until: Instant,
}

impl Opening {
    pub(super) fn begin(at: SocketAddr, limit: Duration) -> Result<Self> {
        let stream = Stream::Plain(Socket::begin(at)?);
        Ok(Self { stream, at, until: Instant::now() + limit })
    }

    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    pub(super) fn socket(&self) -> &Socket {
        self.stream.socket()
    }

    /// Whether it waits for room to send.
    pub(super) fn wants_to_send(&self) -> bool {
        true
    }

    /// An error where it took too long.
    pub(super) fn check(&self, now: Instant) -> Result<()> {
        if now < self.until {
            return Ok(());
        }
        Err(refused(self.at, Errno::TIMEDOUT))
    }

    /// Goes on: its socket can send or receive. Whether the connection is ready.
    pub(super) fn turn(&mut self) -> Result<bool> {
        self.socket().connected().map_err(|errno| refused(self.at, errno))?;
        Ok(true)
    }

    /// The connection, where it is ready.
    pub(super) fn into_stream(self) -> Stream {
        self.stream
    }
}
