//! The socket by which processes of this machine get files in place of bytes.
//!
//! It is the same server: requests are signed and checked as those over TCP. Answers over TCP say where the socket is. Its name has a
//! random number, so that a path leads to this process or to none: not to another gateway, on this machine or on another.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use hyper::header::HeaderValue;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::sleep;

use super::file_connection::FileConnection;
use super::passing::{Passing, refuse_descriptors};
use super::site::{Phase, Site};
use super::watch::{Watch, Watched};
use super::{Open, Origin, hold};
use crate::front::LocalPeer;
use crate::threads::{self, OwnThread};
use crate::warn::warn;

/// Who may write to the directory of sockets beside its owner: nobody.
const OTHERS_WRITE: u32 = 0o022;

/// A socket with a name, until it is dropped.
pub(super) struct LocalSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl LocalSocket {
    /// Makes one in a directory that is ours alone to write to.
    pub(super) fn open(directory: &Path, port: u16) -> Result<Self> {
        let cannot = |error: &io::Error| {
            Error::from_io(error, "cannot make the socket for this machine").with("path", directory.display())
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(|error| cannot(&error).hint("--local-directory DIR"))?;
        check_directory(directory)?;
        remove_old(directory);
        let number = random().ok_or_else(|| Error::new(ErrorKind::Io, "cannot get random numbers"))?;
        let path = directory.join(format!("s3-{port}-{number}.sock"));
        let listener = listen(&path).map_err(|error| cannot(&error))?;
        Ok(Self { path, listener })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The user that has to answer there, and the path.
    pub(super) fn announced(&self) -> Option<HeaderValue> {
        let uid = rustix::process::geteuid().as_raw();
        HeaderValue::from_str(&format!("{uid} {}", self.path.to_str()?)).ok()
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Nobody else can put a socket of theirs in the place of ours.
fn check_directory(directory: &Path) -> Result<()> {
    let found = std::fs::metadata(directory).map_err(|error| {
        Error::from_io(&error, "cannot examine directory").with("path", directory.display())
    })?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw() || found.uid() == 0;
    if is_ours && found.mode() & OTHERS_WRITE == 0 {
        return Ok(());
    }
    let text = "cannot make the socket for this machine: others may write to the directory";
    let error = Error::new(ErrorKind::PermissionDenied, text).with("path", directory.display());
    Err(error.hint(format!("chmod go-w {}", directory.display())).hint("--local-directory DIR"))
}

/// The socket listens before it has its name: [`remove_old`] of another gateway takes names that nobody listens at.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let new = path.with_extension("new");
    let listener = UnixListener::bind(&new)?;
    refuse_descriptors(&listener);
    let named = std::fs::set_permissions(&new, PermissionsExt::from_mode(0o666))
        .and_then(|()| listener.set_nonblocking(true))
        .and_then(|()| std::fs::rename(&new, path));
    if named.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    named.map(|()| listener)
}

/// Removes sockets of gateways that were killed.
fn remove_old(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_one =
            name.to_str().is_some_and(|name| name.starts_with("s3-") && name.strip_suffix(".sock").is_some())
                && entry.file_type().is_ok_and(|kind| kind.is_socket());
        let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if is_one && UnixStream::connect(&path).is_err_and(is_refused) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// 128 bits, in hexadecimal digits.
fn random() -> Option<String> {
    let mut bytes = [0u8; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// Takes connections for ever.
pub(super) async fn accept(socket: Option<&LocalSocket>, site: &Arc<Site>) {
    let listener =
        socket.map(|socket| socket.listener.try_clone().and_then(tokio::net::UnixListener::from_std));
    let Some(Ok(listener)) = listener else { return std::future::pending().await };
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                warn(&format!("cannot take a connection: {error}"));
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let uid = socket.peer_cred().map(|peer| peer.uid());
        let (Ok(uid), Some(open)) = (uid, Open::within_limit(site)) else {
            // Also one that is turned away may have descriptors in it.
            drop(Passing::new(socket, Arc::default()));
            continue;
        };
        let client = Client { socket, uid, open, site: Arc::clone(site) };
        match threads::own() {
            Some(thread) => client.hold_by(thread),
            None => drop(tokio::spawn(client.hold())),
        }
    }
}

/// A connection of a process of this machine.
struct Client {
    socket: tokio::net::UnixStream,
    uid: u32,
    open: Open,
    site: Arc<Site>,
}

impl Client {
    async fn hold(self) {
        let _open = self.open;
        let (watch, peer) = (Watch::new(self.site.limits), Arc::<LocalPeer>::default());
        let passing = Watched::new(Passing::new(self.socket, Arc::clone(&peer)), Arc::clone(&watch));
        let from = format!("local:uid={}", self.uid);
        let origin = Origin { peer: Some(Arc::clone(&peer)), from: from.clone(), way: None };
        hold(Arc::clone(&self.site), watch, passing, origin).await;
        let grant = peer.grant().take();
        if let Some(grant) = grant
            && let Some(connection) = FileConnection::begin(grant, peer, self.site, from).await
        {
            // The client sees it by the end of its connection.
            let _ = connection.serve().await;
        }
    }

    /// On a thread of its own, which also does what waits for the file system: a request for a file changes threads once on its way here,
    /// and once back.
    fn hold_by(self, thread: OwnThread) {
        let Self { socket, uid, open, site } = self;
        let held = socket.into_std().and_then(|socket| {
            let mut phase = site.phase.clone();
            let held = async move {
                match tokio::net::UnixStream::from_std(socket) {
                    Ok(socket) => Self { socket, uid, open, site }.hold().await,
                    Err(error) => warn(&format!("cannot hold a connection: {error}")),
                }
            };
            // The server's end does not end this thread.
            thread.run(async move {
                tokio::select! {
                    () = held => {}
                    _ = phase.wait_for(|phase| *phase == Phase::Ended) => {}
                }
            })
        });
        if let Err(error) = held {
            warn(&format!("cannot hold a connection: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sockets_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let dir = tempfile::tempdir().unwrap();
        let living = LocalSocket::open(dir.path(), 1).unwrap();
        let dead = dir.path().join("s3-1-0.sock");
        drop(UnixListener::bind(&dead).unwrap());
        std::fs::write(dir.path().join("s3-1-1.sock"), b"no socket").unwrap();
        let second = LocalSocket::open(dir.path(), 1).unwrap();
        assert!(living.path().exists() && second.path().exists() && !dead.exists());
        assert!(dir.path().join("s3-1-1.sock").exists());
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_others_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (mode, is_good) in [(0o755, true), (0o700, true), (0o775, false), (0o757, false), (0o1777, false)]
        {
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(LocalSocket::open(dir.path(), 1).is_ok(), is_good, "{mode:o}");
        }
    }
}
