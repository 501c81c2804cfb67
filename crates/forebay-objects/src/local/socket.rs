//! Requests through the gateway's socket, and replies with a file.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, socket_with,
};

use crate::account::Keys;
use crate::lock;
use crate::wire::call::{Method, ReplyHead};
use crate::wire::head_of;

/// A gateway that does not answer for so long is left alone for a while: the object comes by S3.
const PATIENCE: Duration = Duration::from_secs(30);
/// A gateway that has a file to sync, or to copy, is waited for longer: at least this number of bytes a second.
const SLOWEST: u64 = 16 << 20;
/// The longest body: that of an error.
const LONGEST_BODY: u64 = 64 << 10;
/// Connections of a kind that are kept.
const MOST_IDLE: usize = 16;
/// The status by which a connection leaves HTTP.
pub(crate) const SWITCHED: u16 = 101;

/// A socket at which the right user answers.
#[derive(Debug)]
pub(crate) struct LocalSocket {
    path: PathBuf,
    uid: u32,
    idle: Mutex<Vec<UnixStream>>,
    lending: Mutex<Vec<LendingConnection>>,
}

/// A connection by which the gateway lends files without signed requests: it stands for the keys that signed its first one.
#[derive(Debug)]
struct LendingConnection {
    stream: UnixStream,
    keys: Arc<Keys>,
}

/// A reply, its body and the file that came with it.
#[derive(Debug)]
pub(crate) struct LocalReply {
    pub(crate) head: ReplyHead,
    pub(crate) body: Vec<u8>,
    pub(crate) file: Option<OwnedFd>,
}

impl LocalSocket {
    /// The socket at a path; an error where it is not there, or where another user answers.
    pub(super) fn find(path: &str, uid: u32) -> Result<Self> {
        let found = Self { path: path.into(), uid, idle: Mutex::default(), lending: Mutex::default() };
        let connection = found.connect()?;
        lock(&found.idle).push(connection);
        Ok(found)
    }

    fn connect(&self) -> Result<UnixStream> {
        let failed = |error: rustix::io::Errno| match error {
            rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED => {
                Error::new(ErrorKind::NotFound, "the gateway's socket is not on this node")
            }
            other => Error::from_errno(other.raw_os_error(), "cannot connect to the gateway's socket"),
        };
        let failed = |error| failed(error).with("path", self.path.display());
        let address = SocketAddrUnix::new(&self.path).map_err(failed)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
        // Waits look from time to time whether they are to stop.
        for which in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, which, Some(stop::SLICE)).map_err(failed)?;
        }
        connect(&socket, &address).map_err(failed)?;
        let answers = socket_peercred(&socket).map_err(failed)?.uid.as_raw();
        if answers != self.uid {
            let text = "the gateway's socket is another user's";
            return Err(Error::new(ErrorKind::PermissionDenied, text)
                .with("path", self.path.display())
                .with("uid", answers)
                .with("expected", self.uid));
        }
        Ok(socket.into())
    }

    /// Asks for the file of a request's path on a connection that lends files. `None`: there is none for these keys, or the gateway wants
    /// a signed request.
    pub(crate) fn borrow(
        &self,
        keys: &Arc<Keys>,
        path: &str,
        etag: Option<&str>,
    ) -> Result<Option<LocalReply>> {
        let kept = {
            let mut lending = lock(&self.lending);
            // Keys that were renewed do not come back.
            lending.retain(|one| Arc::ptr_eq(&one.keys, keys));
            lending.pop()
        };
        let Some(connection) = kept else { return Ok(None) };
        let etag = etag.map_or(String::new(), |etag| format!(" {etag}"));
        match exchange(&connection.stream, format!("{path}{etag}\n").as_bytes(), PATIENCE) {
            Err(error) if error.kind() == ErrorKind::Timeout => Err(error),
            // The gateway closes one that was idle for long, and that of a key that is gone.
            Err(_) => Ok(None),
            Ok((reply, keeps)) => {
                if keeps {
                    keep(&self.lending, connection);
                }
                Ok((reply.head.status == 200).then_some(reply))
            }
        }
    }

    /// Sends a request without a body, on a connection that is kept for the next. Where it asks for a connection that lends files, it is
    /// signed by these keys.
    pub(crate) fn ask(&self, request: &[u8], keys: Option<Arc<Keys>>) -> Result<LocalReply> {
        // The gateway may have closed a connection that was idle.
        let kept = lock(&self.idle).pop();
        if let Some(Ok(reply)) = kept.map(|connection| self.ask_on(connection, request, keys.clone())) {
            return Ok(reply);
        }
        self.ask_on(self.connect()?, request, keys)
    }

    fn ask_on(&self, stream: UnixStream, request: &[u8], keys: Option<Arc<Keys>>) -> Result<LocalReply> {
        let (reply, keeps) = exchange(&stream, request, PATIENCE)?;
        match keys {
            _ if !keeps => {}
            Some(keys) if reply.head.status == SWITCHED => {
                keep(&self.lending, LendingConnection { stream, keys });
            }
            _ => keep(&self.idle, stream),
        }
        Ok(reply)
    }

    /// Sends a request on a connection of its own, for those that belong to it.
    pub(crate) fn begin(&self, request: &[u8]) -> Result<(LocalReply, LocalConnection)> {
        let connection = LocalConnection(self.connect()?);
        let reply = connection.ask(request)?;
        Ok((reply, connection))
    }

    /// As the gateway announced it.
    pub(super) fn announced(&self) -> String {
        format!("{} {}", self.uid, self.path.display())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn keep<T>(kept: &Mutex<Vec<T>>, one: T) {
    let mut kept = lock(kept);
    if kept.len() < MOST_IDLE {
        kept.push(one);
    }
}

/// A connection to the gateway.
#[derive(Debug)]
pub(crate) struct LocalConnection(UnixStream);

impl LocalConnection {
    /// Sends a request without a body.
    pub(crate) fn ask(&self, request: &[u8]) -> Result<LocalReply> {
        self.ask_of(request, 0)
    }

    /// Sends one that has the gateway go through this number of bytes.
    pub(crate) fn ask_of(&self, request: &[u8], bytes: u64) -> Result<LocalReply> {
        exchange(&self.0, request, patience(bytes)).map(|(reply, _)| reply)
    }
}

fn patience(bytes: u64) -> Duration {
    PATIENCE + Duration::from_secs(bytes / SLOWEST)
}

/// One request and its reply on a connection; whether it may be used again.
fn exchange(connection: &UnixStream, request: &[u8], patience: Duration) -> Result<(LocalReply, bool)> {
    let until = Instant::now() + patience;
    send(connection, request, until)?;
    let mut came = Came::default();
    let (head, bytes, keeps) = loop {
        came.receive(connection, until)?;
        if let Some(found) = head_of(&came.bytes, Method::Get)? {
            break found;
        }
    };
    let length = if head.status == SWITCHED { Some(0) } else { head.length };
    let length = length.filter(|length| *length <= LONGEST_BODY).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "the gateway's reply through its socket has no length, or a long body")
    })?;
    let end = bytes + length as usize;
    while came.bytes.len() < end {
        came.receive(connection, until)?;
    }
    let body = came.bytes[bytes..end].to_vec();
    Ok((LocalReply { head, body, file: came.file }, keeps && came.bytes.len() == end))
}

fn send(mut connection: &UnixStream, mut bytes: &[u8], until: Instant) -> Result<()> {
    while !bytes.is_empty() {
        match connection.write(bytes) {
            Ok(0) => return Err(Error::new(ErrorKind::Io, "the gateway closed its socket")),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) => go_on(&error, until)?,
        }
    }
    Ok(())
}

/// After a slice of waiting: whether to wait on.
fn go_on(error: &io::Error, until: Instant) -> Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if stop::is_stopped() => Err(stop::stopped()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if Instant::now() < until => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Err(Error::new(ErrorKind::Timeout, "the gateway does not answer through its socket"))
        }
        _ => Err(Error::from_io(error, "cannot reach the gateway through its socket")),
    }
}

/// The bytes of a reply until now, and its file.
#[derive(Default)]
struct Came {
    bytes: Vec<u8>,
    file: Option<OwnedFd>,
}

impl Came {
    /// Receives what comes next.
    fn receive(&mut self, connection: &UnixStream, until: Instant) -> Result<()> {
        let mut piece = [0; 8 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                connection,
                &mut [IoSliceMut::new(&mut piece)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    self.file = files.last().or(self.file.take());
                }
            }
            match received.map_err(io::Error::from) {
                Ok(received) if received.bytes == 0 => {
                    return Err(Error::new(ErrorKind::Io, "the gateway closed its socket"));
                }
                Ok(received) => {
                    self.bytes.extend_from_slice(&piece[..received.bytes]);
                    return Ok(());
                }
                Err(error) => go_on(&error, until)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_waited_for() {
        assert_eq!(patience(0), PATIENCE);
        // A drive of a terabyte takes an hour at 280 MB/s.
        assert!(patience(1 << 40) > Duration::from_secs(3600));
    }
}
