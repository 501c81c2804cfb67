//! What fuzz targets call. Not part of the library's interface.

use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use forebay_error::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::files::Socket;
use super::watch::{Watch, Watched};
use super::{Origin, Server, ServerOptions, hold};
use crate::accounts::Accounts;
use crate::threads::be_own;

/// Polls without a byte after which nothing more comes.
const QUIET: usize = 3;

/// A server whose connections are bytes, without a network and on the thread that asks.
pub struct Gateway {
    server: Server,
    runtime: Runtime,
}

impl Gateway {
    /// Serves these accounts.
    pub fn new(accounts: &Arc<Accounts>) -> Result<Self> {
        be_own();
        let cannot = |error: io::Error| Error::from_io(&error, "cannot start");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let server = Server::bind(ServerOptions::new(([127, 0, 0, 1], 0).into()), accounts)?;
        Ok(Self { server, runtime })
    }

    /// All that a connection answers on these bytes, which the client does not end.
    pub fn serve(&self, bytes: &[u8]) -> Vec<u8> {
        let _runtime = self.runtime.enter();
        let answer = Arc::<Mutex<Vec<u8>>>::default();
        let socket = Bytes { asked: bytes.to_vec(), at: 0, answer: Arc::clone(&answer) };
        let site = Arc::clone(&self.server.site);
        let watch = Watch::new(site.limits);
        let from = Origin { peer: None, from: "fuzz".to_owned(), way: None };
        let mut held = pin!(hold(site, Arc::clone(&watch), Watched::new(socket, watch), from));
        let len = || answer.lock().unwrap_or_else(PoisonError::into_inner).len();
        let (mut quiet, mut before) = (0, 0);
        while quiet < QUIET && held.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            quiet = if len() == before { quiet + 1 } else { 0 };
            before = len();
        }
        std::mem::take(&mut *answer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection's bytes, and the answers to them.
struct Bytes {
    asked: Vec<u8>,
    at: usize,
    answer: Arc<Mutex<Vec<u8>>>,
}

impl Socket for Bytes {
    fn plain(&self) -> Option<&TcpStream> {
        None
    }
}

impl AsyncRead for Bytes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = (self.asked.len() - self.at).min(into.remaining());
        if len == 0 {
            return Poll::Pending;
        }
        into.put_slice(&self.asked[self.at..self.at + len]);
        self.at += len;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bytes {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
