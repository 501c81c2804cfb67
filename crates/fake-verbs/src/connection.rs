//! A connection as its user has it.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{
    Access, Completion, Connection, Down, Local, Message, Options, Post, Remote, Why, Window, check_length,
};

use crate::end::{End, Ended};
use crate::memory::FakeMemory;
use crate::op::{Action, Op, Own};
use crate::table::Span;

/// Completions that are polled into a vector without room.
const BUNCH: usize = 64;

pub(crate) struct FakeConnection {
    end: Arc<End>,
    peer: SocketAddr,
    private_data: Vec<u8>,
    send_size: u32,
    /// Messages that are not given back, by receive.
    messages: Vec<Option<Box<[u8]>>>,
    /// What the user has been told.
    down: Option<Down>,
    /// Of its messages.
    _memory: Option<FakeMemory>,
}

impl FakeConnection {
    pub(crate) fn new(
        end: Arc<End>,
        peer: SocketAddr,
        private_data: Vec<u8>,
        options: &Options,
        memory: Option<FakeMemory>,
    ) -> Self {
        let messages = (0..options.receives).map(|_| None).collect();
        Self { end, peer, private_data, send_size: options.send_size, messages, down: None, _memory: memory }
    }

    fn post(&self, id: u64, post: Post, action: Action<'_>) -> Result<()> {
        if self.down.is_some() {
            return Err(Why::Down.error("cannot post: the connection is down"));
        }
        if !self.end.reserve() {
            return Err(Why::QueueFull.error("cannot post: the queue is full"));
        }
        self.end.post(Op { id, quiet: post.quiet, action });
        Ok(())
    }

    fn check(&self, message: &Message) -> Result<usize> {
        if message.connection() == self.end.number {
            return Ok(message.slot() as usize);
        }
        Err(Error::new(ErrorKind::InvalidInput, "the message is another connection's"))
    }
}

fn own(local: Local<'_>) -> Own {
    Own { key: local.region.local_key(), span: Span { address: local.address, len: local.len.into() } }
}

impl Connection for FakeConnection {
    fn number(&self) -> u64 {
        self.end.number
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn send(&mut self, id: u64, bytes: &[u8], post: Post) -> Result<()> {
        check_length(bytes, self.send_size)?;
        self.post(id, post, Action::Send { bytes: Cow::Borrowed(bytes), invalidate: post.invalidate })
    }

    fn write(&mut self, id: u64, from: Local<'_>, to: Remote, post: Post) -> Result<()> {
        self.post(id, post, Action::Write { from: own(from), to, immediate: None })
    }

    fn write_with_immediate(
        &mut self,
        id: u64,
        from: Local<'_>,
        to: Remote,
        immediate: u32,
        post: Post,
    ) -> Result<()> {
        if !self.end.has_immediates() {
            return Err(Why::Unsupported.error("cannot write with a number: iWARP has no such operation"));
        }
        self.post(id, post, Action::Write { from: own(from), to, immediate: Some(immediate) })
    }

    fn read(&mut self, id: u64, into: Local<'_>, from: Remote, post: Post) -> Result<()> {
        self.post(id, post, Action::Read { into: own(into), from })
    }

    fn probe(&mut self, id: u64) -> Result<()> {
        self.post(id, Post::QUIET, Action::Probe)
    }

    fn bind(
        &mut self,
        id: u64,
        window: &mut Window,
        to: Local<'_>,
        access: Access,
        post: Post,
    ) -> Result<()> {
        let keys = (window.key(), window.next_key());
        self.post(id, post, Action::Bind { keys, to: own(to), access })?;
        window.set_bound(keys.1);
        Ok(())
    }

    fn invalidate(&mut self, id: u64, window: &mut Window, post: Post) -> Result<()> {
        self.post(id, post, Action::Invalidate { key: window.key() })?;
        window.set_invalid();
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize> {
        let room = if out.capacity() > out.len() { out.capacity() - out.len() } else { BUNCH };
        if self.end.is_down() {
            self.end.resume();
        }
        let mut state = self.end.state();
        let count = room.min(state.ended.len());
        for _ in 0..count {
            let Some(ended) = state.ended.pop_front() else { break };
            out.push(match ended {
                Ended::Message { slot, bytes, len, invalidated, immediate } => {
                    self.messages[slot as usize] = Some(bytes);
                    let message = Message::new(self.end.number, slot, len, invalidated);
                    Completion::Received(message.with_immediate(immediate))
                }
                Ended::Done { id, kind } => {
                    state.in_flight -= 1;
                    Completion::Done { id, kind }
                }
                Ended::Failed { id, kind, why } => {
                    state.in_flight -= u32::from(kind != forebay_verbs::Kind::Receive);
                    self.down = self.down.or(state.down);
                    Completion::Failed { id, kind, why }
                }
            });
        }
        Ok(count)
    }

    fn bytes(&self, message: &Message) -> Result<&[u8]> {
        let slot = self.check(message)?;
        let bytes =
            self.messages.get(slot).and_then(Option::as_deref).and_then(|bytes| bytes.get(..message.len()));
        bytes.ok_or_else(|| Error::new(ErrorKind::Internal, "the message is not there"))
    }

    fn post_receive(&mut self, message: Message) -> Result<()> {
        let slot = self.check(&message)?;
        let bytes = self.messages.get_mut(slot).and_then(Option::take);
        let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::Internal, "the message is not there"))?;
        let mut state = self.end.state();
        if state.down.is_some() {
            return Err(Why::Down.error("cannot post a receive: the connection is down"));
        }
        state.receives.push_back((message.slot(), bytes));
        drop(state);
        self.end.resume_peer();
        Ok(())
    }

    fn arm(&mut self) -> Result<()> {
        self.end.arm();
        self.down = self.down.or(self.end.state().down);
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.end.signal.as_fd()
    }

    fn down(&self) -> Option<Down> {
        self.down
    }

    fn disconnect(&mut self) {
        self.end.disconnect();
        self.down = self.down.or(self.end.state().down);
    }
}

impl Drop for FakeConnection {
    fn drop(&mut self) {
        self.end.disconnect();
    }
}

impl fmt::Debug for FakeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeConnection")
            .field("number", &self.end.number)
            .field("down", &self.down)
            .finish_non_exhaustive()
    }
}
