//! The socket of this machine: descriptors go out with bytes of answers, and none comes in.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, ready};

use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown, recvmsg, sendmsg, shutdown,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::files::Socket;
use crate::front::LocalPeer;

/// Since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Asks the kernel to let nobody send descriptors to a socket's connections. An older one lets them, and [`Passing`] does not take them.
pub(super) fn refuse_descriptors(socket: impl AsFd) {
    let no: libc::c_int = 0;
    // SAFETY: the descriptor is open; the number lives through the call and has the length that is said.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// A connection whose answers may have a descriptor.
pub(super) struct Passing<S: AsFd = UnixStream> {
    /// `None` in its end alone.
    socket: Option<S>,
    peer: Arc<LocalPeer>,
}

/// One whose task the kernel wakes when bytes come, and not also when the client has read an answer.
pub(super) type Listening = Passing<AsyncFd<OwnedFd>>;

impl Passing {
    /// The same connection for short answers, which the client reads before it asks again.
    pub(super) fn listening(mut self) -> io::Result<Listening> {
        let socket = self.socket.take().ok_or(io::ErrorKind::NotConnected)?.into_std()?;
        // SAFETY: the descriptor is open as long as the value that has it, and is never another one.
        let socket = unsafe { AsyncFd::register_with_interest(OwnedFd::from(socket), Interest::READABLE) }?;
        Ok(Passing::new(socket, Arc::clone(&self.peer)))
    }
}

impl Listening {
    /// Waits for bytes; none is the end.
    pub(super) async fn next(&self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.socket()?.readable().await?;
            match ready.try_io(|_| self.receive(bytes)) {
                Ok(Ok(received)) if received < bytes.len() => {
                    // The kernel says so when more come.
                    ready.clear_ready();
                    return Ok(received);
                }
                Ok(received) => return received,
                Err(_) => {}
            }
        }
    }
}

impl<S: AsFd> Passing<S> {
    pub(super) fn new(socket: S, peer: Arc<LocalPeer>) -> Self {
        Self { socket: Some(socket), peer }
    }

    fn socket(&self) -> io::Result<&S> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Sends bytes, and the descriptor that waits, if there is one.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut parcel = self.peer.parcel();
        let files: Vec<_> = parcel.iter().map(|parcel| parcel.file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            // A file that nobody receives is open as long as the socket is: one, and not as many as it has room for.
            if asked(self.socket()?, libc::TIOCOUTQ)? > 0 {
                return Err(io::Error::other("the client reads no answers"));
            }
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(self.socket()?, &[IoSlice::new(bytes)], &mut control, flags)?;
        *parcel = None;
        Ok(sent)
    }

    /// Receives bytes. A client that sends descriptors is left, and they stay in the socket: so they are the client's to the kernel, and
    /// none of this process's.
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (len, has_files) = self.take(bytes, RecvFlags::PEEK)?;
        if has_files {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client sent descriptors"));
        }
        // What came since may have some.
        Ok(self.take(&mut bytes[..len], RecvFlags::empty())?.0)
    }

    /// Bytes, and whether descriptors are with them, for which there is no room.
    fn take(&self, bytes: &mut [u8], flags: RecvFlags) -> io::Result<(usize, bool)> {
        let mut control = RecvAncillaryBuffer::default();
        let flags = flags | RecvFlags::DONTWAIT;
        let received = recvmsg(self.socket()?, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
        Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC)))
    }
}

impl<S: AsFd> Drop for Passing<S> {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        let _ = shutdown(&socket, Shutdown::Read);
        // No descriptor is without a byte.
        if asked(&socket, libc::FIONREAD).is_ok_and(|bytes| bytes == 0) {
            return;
        }
        end_by_a_thread(socket);
    }
}

/// Closes a socket that may have descriptors in its queue. The end of these takes as long as the client likes, as that of a TCP socket
/// with `SO_LINGER`: but not where a thread's end closes them. So a thread gets a table of descriptors of its own, this one closes the
/// socket first, and the thread's end last.
fn end_by_a_thread(socket: impl AsFd) {
    let ((is_apart, apart), (closed, is_closed)) = (channel::<()>(), channel::<()>());
    let thread = std::thread::Builder::new().name("forebay-closer".to_owned()).spawn(move || {
        leave_table();
        drop(is_apart);
        let _ = is_closed.recv();
    });
    if thread.is_ok() {
        let _ = apart.recv();
    }
    drop(socket);
    drop(closed);
}

/// Gives the calling thread a copy of the process's descriptors. Containers forbid the second call more often.
fn leave_table() {
    let none = libc::c_uint::MAX;
    // SAFETY: no descriptor is closed by the first call, and neither call touches memory. The thread uses no descriptor afterwards.
    unsafe {
        if libc::syscall(libc::SYS_close_range, none, none, libc::CLOSE_RANGE_UNSHARE) != 0 {
            libc::unshare(libc::CLONE_FILES);
        }
    }
}

/// A number of bytes: `FIONREAD`: that came; `TIOCOUTQ`: that the other end has not read, with what the kernel keeps them in.
fn asked(socket: impl AsFd, what: libc::Ioctl) -> io::Result<libc::c_int> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open; the number lives through the call.
    let asked = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), what, &raw mut bytes) };
    if asked == 0 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

impl Socket for Passing {
    fn plain(&self) -> Option<&TcpStream> {
        None
    }
}

impl AsyncRead for Passing {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let socket = self.socket()?;
            ready!(socket.poll_read_ready(cx))?;
            let bytes = buffer.initialize_unfilled();
            match socket.try_io(Interest::READABLE, || self.receive(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => {
                    let received = received?;
                    buffer.advance(received);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Passing {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let socket = self.socket()?;
            ready!(socket.poll_write_ready(cx))?;
            match socket.try_io(Interest::WRITABLE, || self.send(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(shutdown(self.socket()?, Shutdown::Write)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::time::{Duration, Instant};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::front::Parcel;

    const LINGERS: Duration = Duration::from_secs(20);

    /// A TCP socket with bytes that nobody reads: its end takes as long as it lingers.
    fn lingering() -> (std::net::TcpStream, std::net::TcpListener) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_linger(&socket, Some(LINGERS)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let bytes = vec![0; 1 << 20];
        while (&socket).write(&bytes).is_ok() {}
        (socket, listener)
    }

    fn send_file(to: &std::os::unix::net::UnixStream, file: &std::net::TcpStream) -> io::Result<usize> {
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        Ok(sendmsg(to, &[IoSlice::new(b"GET")], &mut control, SendFlags::NOSIGNAL)?)
    }

    fn pair() -> (std::os::unix::net::UnixStream, Passing) {
        let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (theirs, Passing::new(UnixStream::from_std(ours).unwrap(), Arc::default()))
    }

    /// Sockets of this process that are still connected to a listener.
    fn connected(listener: &std::net::TcpListener) -> usize {
        let port = format!(":{:04X} ", listener.local_addr().unwrap().port());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        // Of the other end's address; the last word but some is the descriptor's number, 0 where nothing has it.
        let open = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            format!("{} ", words[2]).ends_with(&port) && words[9] != "0"
        };
        table.lines().skip(1).filter(open).count()
    }

    #[tokio::test]
    async fn sockets_that_linger_hold_up_nobody() {
        let begin = Instant::now();
        for is_read in [true, false] {
            for _ in 0..20 {
                let (socket, listener) = lingering();
                let (theirs, mut passing) = pair();
                send_file(&theirs, &socket).unwrap();
                drop(socket);
                assert_eq!(connected(&listener), 1);
                if is_read {
                    let refused = passing.read(&mut [0; 100]).await.unwrap_err();
                    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
                }
                drop(passing);
                // Each is closed at once, and none waits for another.
                while connected(&listener) > 0 {
                    assert!(begin.elapsed() < LINGERS / 2, "{:?}", begin.elapsed());
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    #[tokio::test]
    async fn bytes_are_received_and_those_with_descriptors_are_not() {
        let (mut theirs, mut passing) = pair();
        theirs.write_all(b"GET").unwrap();
        let mut bytes = [0; 100];
        assert_eq!(passing.read(&mut bytes).await.unwrap(), 3);
        let (socket, _listener) = lingering();
        theirs.write_all(b"GET").unwrap();
        send_file(&theirs, &socket).unwrap();
        // The kernel also says so of the message behind the last byte that is asked for.
        assert!(passing.read(&mut bytes[..3]).await.is_err());
        assert!(passing.read(&mut bytes).await.is_err());
        drop(theirs);
        let (theirs, mut passing) = pair();
        drop(theirs);
        assert_eq!(passing.read(&mut bytes).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn descriptors_do_not_gather_in_a_queue_that_nobody_reads() {
        let (mut theirs, mut passing) = pair();
        let answer = |passing: &Passing| {
            *passing.peer.parcel() =
                Some(Parcel { file: tempfile::tempfile().unwrap().into(), len: 0, modified: 0 });
        };
        answer(&passing);
        passing.write_all(b"one").await.unwrap();
        answer(&passing);
        assert!(passing.write_all(b"two").await.is_err());
        io::Read::read_exact(&mut theirs, &mut [0; 3]).unwrap();
        passing.write_all(b"two").await.unwrap();
    }
}
