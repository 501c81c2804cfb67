//! How long a connection may do nothing: the time of its head, between requests, and of a reader that takes no byte.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::files::{FileSender, Socket};
use super::limits::Limits;
use crate::lane::{self, FileLane};

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const REQUEST: u8 = 2;

/// Where a connection is, as its socket and its service see it.
pub(super) struct Watch {
    start: Instant,
    state: AtomicU8,
    /// When the state began, in ms.
    since: AtomicU64,
    /// When the socket took no more bytes, in ms and one more; 0: it takes them.
    blocked: AtomicU64,
    limits: Limits,
}

impl Watch {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let (since, blocked) = (zero(), zero());
        Arc::new(Self { start: Instant::now(), state: AtomicU8::new(IDLE), since, blocked, limits })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn enter(&self, state: u8) {
        self.since.store(self.now(), Relaxed);
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

    /// No request is under way, no head has begun, and no answer waits to go out.
    pub(super) fn is_quiet(&self) -> bool {
        self.state.load(Relaxed) == IDLE && self.blocked.load(Relaxed) == 0
    }

    /// The connection is quiet for a reason.
    pub(super) fn restart(&self) {
        self.enter(self.state.load(Relaxed));
    }

    /// How long the connection may go on as it is; zero: it is to be closed.
    pub(super) fn left(&self) -> Duration {
        let now = self.now();
        let (since, limit) = match self.state.load(Relaxed) {
            // The last bytes of an answer are on their way to a client that takes its time.
            IDLE if self.blocked.load(Relaxed) > 0 => {
                (self.blocked.load(Relaxed) - 1, self.limits.stall_time)
            }
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

    /// The socket took bytes, or does not take them now.
    fn note_write(&self, is_blocked: bool) {
        if !is_blocked {
            self.blocked.store(0, Relaxed);
            if self.state.load(Relaxed) == IDLE {
                self.enter(IDLE);
            }
        } else if self.blocked.load(Relaxed) == 0 {
            self.blocked.store(self.now() + 1, Relaxed);
        }
    }

    /// Bytes came: of a head, where no request is under way.
    fn note_read(&self) {
        if self.state.load(Relaxed) == IDLE {
            self.enter(HEAD);
        }
    }
}

/// A socket that its watch sees.
pub(super) struct Watched<T> {
    inner: T,
    watch: Arc<Watch>,
    lane: Option<Arc<FileLane>>,
    files: Option<FileSender>,
}

impl<T: Socket> Watched<T> {
    pub(super) fn new(inner: T, watch: Arc<Watch>) -> Self {
        let lane = inner.plain().is_some().then(Arc::<FileLane>::default);
        let files = lane.clone().map(FileSender::new);
        Self { inner, watch, lane, files }
    }

    /// The socket, which nobody watches from now on.
    pub(super) fn into_inner(self) -> T {
        self.inner
    }

    /// Where the kernel can move files to this socket.
    pub(super) fn lane(&self) -> Option<Arc<FileLane>> {
        self.lane.clone()
    }

    /// Writes memory, up to the first frame of a file; or bytes of a file in place of its frame.
    fn poll_slices(&mut self, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let memory = slices.iter().take_while(|slice| !lane::is_frame(slice)).count();
        if memory > 0 {
            return Pin::new(&mut self.inner).poll_write_vectored(cx, &slices[..memory]);
        }
        match (&mut self.files, self.inner.plain(), slices.first()) {
            (Some(files), Some(socket), Some(frame)) => files.poll_send(socket, cx, frame.len()),
            _ => Pin::new(&mut self.inner).poll_write_vectored(cx, slices),
        }
    }

    fn note_write<R>(&self, done: Poll<R>) -> Poll<R> {
        self.watch.note_write(done.is_pending());
        done
    }
}

impl<T: Socket> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.watch.note_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: Socket> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = self.poll_slices(cx, &[io::IoSlice::new(bytes)]);
        self.note_write(done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = self.poll_slices(cx, slices);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_of_an_answer_are_no_idle_time() {
        let limits = Limits {
            idle_time: Duration::from_millis(50),
            stall_time: Duration::from_secs(10),
            ..Limits::default()
        };
        let watch = Watch::new(limits);
        let wait = || std::thread::sleep(Duration::from_millis(100));
        watch.begin_request();
        watch.note_write(true);
        // Its body was passed on whole; the socket has not taken it yet.
        watch.end_request();
        wait();
        assert!(watch.left() > Duration::from_secs(5), "{:?}", watch.left());
        watch.note_write(false);
        assert!(!watch.left().is_zero());
        wait();
        assert!(watch.left().is_zero());
    }
}
