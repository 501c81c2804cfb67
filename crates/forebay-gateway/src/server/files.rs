//! The socket's side of a [`FileLane`]: `sendfile` on a thread that may wait for the file system.

use std::fs::File;
use std::future::Future as _;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::server::TlsStream;

use crate::lane::{FileLane, FileRange};

/// A thread waits this long for a client that takes bytes; then it is free for others.
const PATIENCE: Duration = Duration::from_millis(20);
/// A thread serves a client for this long at a time.
const TURN: Duration = Duration::from_millis(500);
/// What one call of the kernel is asked to move.
const MOST: u64 = 8 << 20;

/// A socket of a client.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The connection that the kernel can move a file's bytes to; `None` where they are encrypted first.
    fn plain(&self) -> Option<&TcpStream>;
}

impl Socket for TcpStream {
    fn plain(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Socket for TlsStream<TcpStream> {
    fn plain(&self) -> Option<&TcpStream> {
        None
    }
}

/// Sends the files of a lane.
pub(super) struct FileSender {
    lane: Arc<FileLane>,
    current: Option<FileRange>,
    turn: Option<JoinHandle<(FileRange, io::Result<u64>)>>,
    /// The connection has ended: so does the turn.
    is_over: Arc<AtomicBool>,
    /// Bytes that are sent, whose frames have yet to come.
    ahead: u64,
}

impl FileSender {
    pub(super) fn new(lane: Arc<FileLane>) -> Self {
        Self { lane, current: None, turn: None, is_over: Arc::default(), ahead: 0 }
    }

    /// Sends at most `len` bytes of the file whose frames are written now.
    pub(super) fn poll_send(
        &mut self,
        socket: &TcpStream,
        cx: &mut Context<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(turn) = &mut self.turn {
                let (rest, sent) = ready!(Pin::new(turn).poll(cx)).map_err(io::Error::other)?;
                self.turn = None;
                self.ahead += sent?;
                self.current = Some(rest);
            }
            if self.ahead > 0 {
                let now = self.ahead.min(len as u64);
                self.ahead -= now;
                return Poll::Ready(Ok(now as usize));
            }
            ready!(socket.poll_write_ready(cx))?;
            // A client that takes no bytes wakes this task, and keeps no thread.
            match socket.try_io(Interest::WRITABLE, || takes_bytes(socket, Duration::ZERO)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                result => result?,
            }
            let rest = self.current.take().filter(|rest| !rest.range.is_empty()).or_else(|| self.lane.pop());
            let rest = rest.ok_or_else(|| io::Error::other("a frame without a file"))?;
            let to = socket.as_fd().try_clone_to_owned()?;
            let is_over = Arc::clone(&self.is_over);
            self.turn = Some(rest.turns.clone().start_sending(move || take_turn(&to, rest, &is_over)));
        }
    }
}

impl Drop for FileSender {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // One that waits for a thread holds the socket.
        if let Some(turn) = &self.turn {
            turn.abort();
        }
    }
}

/// Sends for a while. Blocks.
fn take_turn(socket: &OwnedFd, mut rest: FileRange, is_over: &AtomicBool) -> (FileRange, io::Result<u64>) {
    let (begin, first) = (Instant::now(), rest.range.start);
    while !rest.range.is_empty() && begin.elapsed() < TURN && !is_over.load(Relaxed) {
        match send_some(socket, &rest.file, &mut rest.range.start, rest.range.end) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return (rest, Err(error)),
        }
    }
    let sent = rest.range.start - first;
    (rest, Ok(sent))
}

fn send_some(socket: &OwnedFd, file: &File, at: &mut u64, end: u64) -> io::Result<()> {
    let len = (end - *at).min(MOST) as usize;
    match rustix::fs::sendfile(socket, file, Some(at), len) {
        // The head said how many bytes come.
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter")),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(Errno::AGAIN) => takes_bytes(socket, PATIENCE),
        Err(errno) => Err(errno.into()),
    }
}

/// `WouldBlock`: the socket takes no bytes within this time.
fn takes_bytes(socket: impl AsFd, within: Duration) -> io::Result<()> {
    let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(within.subsec_nanos()) as _ };
    match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&wait)) {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream as Plain};

    use super::*;
    use crate::threads::Turns;

    #[test]
    fn a_turn_ends_with_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Plain::connect(listener.local_addr().unwrap()).unwrap();
        let server: OwnedFd = listener.accept().unwrap().0.into();
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 10).unwrap();
        let range =
            || FileRange { file: file.try_clone().unwrap(), range: 0..64 << 10, turns: Turns::default() };
        let (rest, sent) = take_turn(&server, range(), &AtomicBool::new(true));
        assert_eq!((rest.range.start, sent.unwrap()), (0, 0));
        let (rest, sent) = take_turn(&server, range(), &AtomicBool::new(false));
        assert_eq!((rest.range.start, sent.unwrap()), (64 << 10, 64 << 10));
        drop(server);
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 64 << 10);
    }
}
