//! The socket of this machine: descriptors go out with bytes of answers, and none comes in.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::files::Socket;
use crate::front::LocalPeer;

/// The most descriptors of a message (`SCM_MAX_FD`).
const MOST_SENT: usize = 253;
/// Since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Asks the kernel to let nobody send descriptors to a socket's connections. An older one lets them, and [`Passing`] closes them.
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
pub(super) struct Passing {
    socket: UnixStream,
    peer: Arc<LocalPeer>,
}

impl Passing {
    pub(super) fn new(socket: UnixStream, peer: Arc<LocalPeer>) -> Self {
        Self { socket, peer }
    }

    /// Sends bytes, and the descriptor that waits, if there is one.
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut parcel = self.peer.parcel();
        let files: Vec<_> = parcel.iter().map(|parcel| parcel.file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            // A file that nobody receives is open as long as the socket is: one, and not as many as it has room for.
            if unread(&self.socket)? > 0 {
                return Err(io::Error::other("the client reads no answers"));
            }
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)?;
        *parcel = None;
        Ok(sent)
    }

    /// Receives bytes. A client that sends descriptors is left.
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
        let sent: Vec<OwnedFd> = control.drain().flat_map(files_of).collect();
        if sent.is_empty() {
            return Ok(received.bytes);
        }
        close_aside(sent);
        Err(io::Error::new(io::ErrorKind::InvalidData, "the client sent descriptors"))
    }
}

impl Drop for Passing {
    /// Also descriptors that were sent and never received are closed aside.
    fn drop(&mut self) {
        let _ = shutdown(&self.socket, Shutdown::Read);
        let mut bytes = [0; 4096];
        loop {
            match self.receive(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// Bytes, and what the kernel keeps them in, that the other end of a socket has not read.
fn unread(socket: impl AsFd) -> io::Result<libc::c_int> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open; the number lives through the call.
    let asked = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

fn files_of(message: RecvAncillaryMessage<'_>) -> Vec<OwnedFd> {
    match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect(),
        _ => Vec::new(),
    }
}

/// Closes what a client sent, on a thread that nobody waits for: the end of a TCP socket with SO_LINGER, or of a file on FUSE, takes as
/// long as the client likes.
fn close_aside(files: Vec<OwnedFd>) {
    static CLOSER: OnceLock<Option<Sender<Vec<OwnedFd>>>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (sender, files) = channel::<Vec<OwnedFd>>();
        let closer = std::thread::Builder::new().name("forebay-closer".to_owned());
        closer.spawn(move || files.into_iter().for_each(drop)).ok().map(|_| sender)
    });
    // Without the thread they are closed here.
    if let Some(closer) = closer {
        let _ = closer.send(files);
    }
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
            ready!(self.socket.poll_read_ready(cx))?;
            let bytes = buffer.initialize_unfilled();
            match self.socket.try_io(Interest::READABLE, || self.receive(bytes)) {
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
            ready!(self.socket.poll_write_ready(cx))?;
            match self.socket.try_io(Interest::WRITABLE, || self.send(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
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

    #[tokio::test]
    async fn a_socket_that_lingers_holds_up_nobody() {
        let begin = Instant::now();
        // Read, and never read.
        let ((read, _listener), (unread, _other)) = (lingering(), lingering());
        let (theirs, mut passing) = pair();
        send_file(&theirs, &read).unwrap();
        drop(read);
        let refused = passing.read(&mut [0; 100]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        drop(passing);
        let (theirs, passing) = pair();
        send_file(&theirs, &unread).unwrap();
        drop(unread);
        drop(passing);
        assert!(begin.elapsed() < LINGERS / 2, "{:?}", begin.elapsed());
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
