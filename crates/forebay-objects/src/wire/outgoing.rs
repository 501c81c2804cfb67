//! A request that is sent: its head, and its body from where it lies.

use std::io::{ErrorKind, IoSlice, Result};

use super::call::Body;
use super::stream::Stream;

/// Bytes that are sent at a time before other connections have their turn.
const TURN: usize = 1 << 20;

/// The bytes of a request, and how many were sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    head: Vec<u8>,
    body: Body,
    sent: usize,
    is_over: bool,
}

impl Outgoing {
    pub(super) fn new(head: Vec<u8>, body: Body) -> Self {
        Self { head, body, sent: 0, is_over: false }
    }

    /// Whether there is no more to send.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes that were sent.
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    /// Sends no more of it: its server wants no more.
    pub(super) fn give_up(&mut self) {
        self.is_over = true;
    }

    /// Whether all of it was sent.
    pub(super) fn is_whole(&self) -> bool {
        self.sent == self.head.len() + self.body.len()
    }

    /// Sends what there is room for.
    pub(super) fn send(&mut self, stream: &mut Stream) -> Result<()> {
        stream.flush()?;
        let most = self.sent + TURN;
        while !self.is_over && self.sent < most {
            // SAFETY: its maker keeps the memory valid and untouched until the call ends.
            let body = unsafe { self.body.bytes() };
            let head = self.head.get(self.sent..).unwrap_or_default();
            let body = &body[self.sent.saturating_sub(self.head.len())..];
            match stream.send(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.is_over = self.is_whole();
        }
        Ok(())
    }
}
