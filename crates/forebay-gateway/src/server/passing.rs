//! The socket of this machine: descriptors go out with bytes of answers.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::files::Socket;
use crate::front::LocalPeer;

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
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)?;
        *parcel = None;
        Ok(sent)
    }
}

impl Socket for Passing {
    fn plain(&self) -> Option<&TcpStream> {
        None
    }
}

impl AsyncRead for Passing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
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
