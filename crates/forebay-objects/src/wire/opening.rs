//! A connection that is being made: to the address, through the proxy, and by TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use forebay_remote::endpoint::refused;
use rustix::io::Errno;
use rustls::client::UnbufferedClientConnection;

use super::certificates::TlsClient;
use super::failed::TlsFailed;
use super::site::Site;
use super::socket::Socket;
use super::stream::Stream;
use super::tls::TlsStream;
use super::tunnel::Tunnel;

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Opening {
    /// `None` only within a turn.
    stream: Option<Stream>,
    step: Step,
    tls: Option<Arc<TlsClient>>,
    at: SocketAddr,
    /// The time limit of a step, and when this one is over.
    limit: Duration,
    until: Instant,
}

#[derive(Debug)]
enum Step {
    /// To the address.
    Connect,
    /// Through the proxy.
    Tunnel(Tunnel),
    Handshake,
    Ready,
}

impl Opening {
    pub(super) fn begin(at: SocketAddr, limit: Duration, tls: Option<Arc<TlsClient>>) -> Result<Self> {
        let stream = Some(Stream::Plain(Socket::begin(at)?));
        Ok(Self { stream, step: Step::Connect, tls, at, limit, until: Instant::now() + limit })
    }

    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    pub(super) fn socket(&self) -> Option<&Socket> {
        self.stream.as_ref().map(Stream::socket)
    }

    /// Whether it waits for room to send.
    pub(super) fn wants_to_send(&self) -> bool {
        match &self.step {
            Step::Connect => true,
            Step::Tunnel(tunnel) => tunnel.wants_to_send(),
            Step::Handshake | Step::Ready => self.stream.as_ref().is_some_and(Stream::wants_to_send),
        }
    }

    /// An error where it took too long.
    pub(super) fn check(&self, now: Instant) -> Result<()> {
        if now < self.until {
            return Ok(());
        }
        Err(refused(self.at, Errno::TIMEDOUT))
    }

    /// Goes on: its socket can send or receive. Whether the connection is ready.
    pub(super) fn turn(&mut self, site: &Site) -> Result<bool> {
        loop {
            let next = match (&mut self.step, &mut self.stream) {
                (Step::Connect, Some(stream)) => {
                    stream.socket().connected().map_err(|errno| refused(self.at, errno))?;
                    match Tunnel::of(site) {
                        Some(tunnel) => Step::Tunnel(tunnel),
                        None => self.begin_handshake(site)?,
                    }
                }
                (Step::Tunnel(tunnel), Some(stream)) => {
                    if !tunnel.turn(stream, site)? {
                        return Ok(false);
                    }
                    self.begin_handshake(site)?
                }
                (Step::Handshake, Some(Stream::Tls(stream))) => match stream.shake_hands() {
                    Ok(true) => Step::Ready,
                    Ok(false) => return Ok(false),
                    Err(error) => return Err(self.failed(&error, site)),
                },
                _ => return Ok(true),
            };
            (self.step, self.until) = (next, Instant::now() + self.limit);
        }
    }

    /// The first step of TLS, where the site has it.
    fn begin_handshake(&mut self, site: &Site) -> Result<Step> {
        let Some(tls) = &self.tls else { return Ok(Step::Ready) };
        let session = UnbufferedClientConnection::new(tls.config.clone(), TlsClient::name(&site.host)?)
            .map_err(|error| tls.failed(&error, site))?;
        self.stream = match self.stream.take() {
            Some(Stream::Plain(socket)) => Some(Stream::Tls(Box::new(TlsStream::new(socket, session)))),
            other => other,
        };
        Ok(Step::Handshake)
    }

    /// Why the handshake failed.
    fn failed(&self, error: &io::Error, site: &Site) -> Error {
        let reason = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match (reason, &self.tls) {
            (Some(reason), Some(tls)) => tls.failed(reason, site),
            _ => Error::from_io(error, "the connection broke while TLS began")
                .with("server", site.name())
                .source(TlsFailed),
        }
    }

    /// The connection, where it is ready.
    pub(super) fn into_stream(self) -> Option<Stream> {
        self.stream
    }
}
