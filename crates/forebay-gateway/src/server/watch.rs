//! How long a connection may do nothing: the time of its head, between requests, and of a reader that takes no byte.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::limits::{Limits, READ_BYTES};

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const REQUEST: u8 = 2;

/// Where a connection is, as its socket and its service see it.
pub(super) struct Watch {
    start: Instant,
    state: AtomicU8,
    /// When the state began, in ms.
    since: AtomicU64,
    head_bytes: AtomicU64,
    /// When the socket took no more bytes, in ms and one more; 0: it takes them.
    blocked: AtomicU64,
    limits: Limits,
}

impl Watch {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let (since, head_bytes, blocked) = (zero(), zero(), zero());
        Arc::new(Self {
            start: Instant::now(),
            state: AtomicU8::new(IDLE),
            since,
            head_bytes,
            blocked,
            limits,
        })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn enter(&self, state: u8) {
        self.since.store(self.now(), Relaxed);
        self.head_bytes.store(0, Relaxed);
        self.state.store(state, Relaxed);
    }

    /// A head came whole.
    pub(super) fn begin_request(&self) {
        self.enter(REQUEST);
    }

    /// The answer is out.
    pub(super) fn end_request(&self) {
        self.enter(IDLE);
    }

    /// How long the connection may go on as it is; zero: it is to be closed.
    pub(super) fn left(&self) -> Duration {
        let now = self.now();
        let (since, limit) = match self.state.load(Relaxed) {
            IDLE => (self.since.load(Relaxed), self.limits.idle_time),
            HEAD => (self.since.load(Relaxed), self.limits.head_time),
            _ => match self.blocked.load(Relaxed) {
                0 => return self.limits.stall_time,
                blocked => (blocked - 1, self.limits.stall_time),
            },
        };
        limit.saturating_sub(Duration::from_millis(now - since.min(now)))
    }

    /// The time until the next look: a head may begin meanwhile.
    pub(super) fn pause(&self) -> Duration {
        self.left().min(self.limits.head_time).max(Duration::from_millis(10))
    }

    fn count_read(&self, len: usize) -> io::Result<()> {
        match self.state.load(Relaxed) {
            REQUEST => return Ok(()),
            IDLE => self.enter(HEAD),
            _ => {}
        }
        let bytes = self.head_bytes.fetch_add(len as u64, Relaxed) + len as u64;
        // Behind the head the socket may have given the body's first bytes already.
        if bytes > self.limits.head_bytes as u64 + READ_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the head is too long"));
        }
        Ok(())
    }
}

/// A socket that its watch sees.
pub(super) struct Watched<T> {
    inner: T,
    watch: Arc<Watch>,
}

impl<T> Watched<T> {
    pub(super) fn new(inner: T, watch: Arc<Watch>) -> Self {
        Self { inner, watch }
    }

    fn note_write<R>(&self, done: Poll<R>) -> Poll<R> {
        let blocked = if done.is_pending() { self.watch.now() + 1 } else { 0 };
        if blocked == 0 || self.watch.blocked.load(Relaxed) == 0 {
            self.watch.blocked.store(blocked, Relaxed);
        }
        done
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let got = buffer.filled().len() - before;
        Poll::Ready(if got > 0 { self.watch.count_read(got) } else { Ok(()) })
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.note_write(done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.note_write(done)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
