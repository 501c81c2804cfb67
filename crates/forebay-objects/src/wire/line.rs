//! A connection that is ready for a call.

use std::net::SocketAddr;
use std::time::Instant;

use super::input::Input;
use super::stream::Stream;

/// A connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) stream: Stream,
    pub(super) input: Input,
    pub(super) at: SocketAddr,
    /// Whether a call was answered on it before.
    pub(super) is_kept: bool,
    /// Until when it is kept without a call.
    pub(super) until: Instant,
}

impl Line {
    /// Whether the next call may be sent on it.
    pub(super) fn is_usable(&mut self, now: Instant) -> bool {
        now < self.until && self.stream.is_quiet()
    }
}
