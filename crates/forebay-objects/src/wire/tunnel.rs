//! Tunnels through proxies. Without TLS a proxy takes requests, whose heads are made for it.

use std::fmt;
use std::io::{ErrorKind as IoKind, IoSlice};

use forebay_error::{Error, ErrorKind, Result};

use super::call::{Method, ReplyHead};
use super::failed::ProxyFailed;
use super::head::{HeadReader, LONGEST};
use super::input::Input;
use super::site::Site;
use super::stream::Stream;

/// A proxy that was asked for a connection to the server. The request may have a password.
pub(super) struct Tunnel {
    request: Vec<u8>,
    sent: usize,
    input: Input,
    reader: HeadReader,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").finish_non_exhaustive()
    }
}

impl Tunnel {
    /// `None`: the site has no proxy, or one that takes requests.
    pub(super) fn of(site: &Site) -> Option<Self> {
        let proxy = site.proxy.as_ref().filter(|_| site.tls)?;
        let server = authority(site);
        let permit = proxy
            .authorization
            .as_deref()
            .map_or_else(String::new, |value| format!("proxy-authorization: {value}\r\n"));
        let request = format!("CONNECT {server} HTTP/1.1\r\nhost: {server}\r\n{permit}\r\n").into_bytes();
        Some(Self { request, sent: 0, input: Input::default(), reader: HeadReader::default() })
    }

    pub(super) fn wants_to_send(&self) -> bool {
        self.sent < self.request.len()
    }

    /// Goes on. Whether there is a connection to the server.
    pub(super) fn turn(&mut self, stream: &mut Stream, site: &Site) -> Result<bool> {
        while self.wants_to_send() {
            match stream.send(&[IoSlice::new(&self.request[self.sent..])]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == IoKind::WouldBlock => return Ok(false),
                Err(error) => return Err(broken(&error, site)),
            }
        }
        loop {
            match self.input.receive(stream, LONGEST) {
                Ok(0) => return Err(broken(&IoKind::UnexpectedEof.into(), site)),
                Ok(_) => {}
                Err(error) if error.kind() == IoKind::WouldBlock => return Ok(false),
                Err(error) => return Err(broken(&error, site)),
            }
            let Some(raw) =
                self.reader.read(self.input.came(), Method::Head).map_err(|error| strange(&error, site))?
            else {
                continue;
            };
            return accepted(&raw.head, site).map(|()| true);
        }
    }
}

fn of_proxy(error: Error, site: &Site) -> Error {
    let proxy = site.proxy_name().unwrap_or_default();
    error.with("proxy", proxy).with("server", site.name()).source(ProxyFailed)
}

fn broken(error: &std::io::Error, site: &Site) -> Error {
    of_proxy(Error::from_io(error, "the connection to the proxy broke"), site)
}

/// What answers is no proxy of HTTP.
fn strange(error: &Error, site: &Site) -> Error {
    let new = Error::new(ErrorKind::Corrupt, "the proxy does not answer as one of HTTP");
    of_proxy(new.with("reason", error.message()).hint(past(site)), site)
}

/// How the server is reached without the proxy.
pub(super) fn past(site: &Site) -> String {
    format!("to reach it without the proxy: export NO_PROXY={}", site.host)
}

fn accepted(head: &ReplyHead, site: &Site) -> Result<()> {
    let (kind, what, hint) = match head.status {
        200..300 => return Ok(()),
        407 => (
            ErrorKind::PermissionDenied,
            "the proxy asks for a user",
            "export HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT".to_owned(),
        ),
        400..500 => (ErrorKind::PermissionDenied, "the proxy does not allow the server", past(site)),
        _ => (ErrorKind::Io, "the proxy does not reach the server", past(site)),
    };
    Err(of_proxy(Error::new(kind, what).with("status", head.status).hint(hint), site))
}

/// Name and port of the server; addresses of IPv6 have brackets.
fn authority(site: &Site) -> String {
    let host = &site.host;
    if host.contains(':') { format!("[{host}]:{}", site.port) } else { format!("{host}:{}", site.port) }
}
