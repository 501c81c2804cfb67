//! The gateway on this node: where its socket is, and what goes through it.
//!
//! Replies of a gateway say where its socket is, and which user answers there (`x-forebay-local: UID PATH`). The path has a random
//! number: it leads to that gateway, or to nothing. A socket at which another user answers is not used.

mod socket;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop::is_stopped;

use crate::lock;
use crate::wire::call::ReplyHead;
use crate::wire::site::Site;
pub(crate) use socket::{LocalConnection, LocalReply, LocalSocket, SWITCHED};

/// The header of replies.
const ANNOUNCES: &str = "x-forebay-local";
/// Behind a load balancer each gateway announces itself: as many are looked for.
const MOST_TRIED: usize = 64;
/// A socket that failed is tried again after this time.
const REST: Duration = Duration::from_secs(10);

/// An endpoint's socket, as far as it was found.
#[derive(Debug, Default)]
pub(crate) struct LocalGateway {
    /// Behind a proxy it is another machine's.
    is_elsewhere: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    found: Option<Arc<LocalSocket>>,
    /// Announced, and not looked for yet.
    next: Option<String>,
    tried: Vec<String>,
    lost: Option<Lost>,
}

/// A socket that failed.
#[derive(Debug)]
struct Lost {
    announced: String,
    since: Instant,
    why: Error,
}

impl Lost {
    fn error(&self) -> Error {
        let left = REST.saturating_sub(self.since.elapsed()).as_secs_f64().ceil();
        self.why.clone().with("again_in", format!("{left:.0} s"))
    }
}

impl LocalGateway {
    pub(crate) fn new(site: &Site) -> Self {
        Self { is_elsewhere: site.proxy.is_some(), state: Mutex::default() }
    }

    /// Looks at a reply that came over the network.
    pub(crate) fn note(&self, head: &ReplyHead) {
        let Some(text) = head.header(ANNOUNCES).filter(|_| !self.is_elsewhere) else { return };
        let mut state = lock(&self.state);
        let is_known = state.found.is_some() || state.tried.iter().any(|tried| tried == text);
        if !is_known && state.tried.len() < MOST_TRIED {
            state.tried.push(text.to_owned());
            state.next = Some(text.to_owned());
        }
    }

    /// Whether a socket was announced that nobody has looked for.
    pub(crate) fn has_news(&self) -> bool {
        lock(&self.state).next.is_some()
    }

    /// Whether the endpoint may have a socket here, and nobody has asked it anything yet.
    pub(crate) fn is_unknown(&self) -> bool {
        !self.is_elsewhere && lock(&self.state).tried.is_empty()
    }

    /// Whether that is likely.
    pub(crate) fn is_likely(&self) -> bool {
        self.is_unknown() && usual_directories().iter().any(|directory| has_socket(directory))
    }

    /// The socket, or why it is not used. `None`: no gateway has announced one.
    pub(crate) fn socket(&self) -> Option<Result<Arc<LocalSocket>>> {
        let mut state = lock(&self.state);
        let rested = state.lost.take_if(|lost| lost.since.elapsed() >= REST).map(|lost| lost.announced);
        if state.found.is_none()
            && let Some(announced) = state.next.take().or(rested)
        {
            match find(&announced) {
                Ok(found) => state.found = Some(Arc::new(found)),
                Err(why) => state.lost = Some(Lost { announced, since: Instant::now(), why }),
            }
        }
        let State { found, lost, .. } = &*state;
        found.clone().map(Ok).or_else(|| lost.as_ref().map(|lost| Err(lost.error())))
    }

    /// The socket did not answer: it is left alone for a while. The gateway may have begun anew, with another.
    pub(crate) fn lose(&self, socket: &Arc<LocalSocket>, why: &Error) {
        let mut state = lock(&self.state);
        if is_stopped() || state.found.as_ref().is_none_or(|found| !Arc::ptr_eq(found, socket)) {
            return;
        }
        state.found = None;
        state.lost = Some(Lost { announced: socket.announced(), since: Instant::now(), why: why.clone() });
    }
}

fn find(announced: &str) -> Result<LocalSocket> {
    let parsed = announced.split_once(' ').and_then(|(uid, path)| Some((uid.parse().ok()?, path)));
    // A server that lies does not send requests to other programs' sockets.
    let is_gateway = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        path.starts_with('/')
            && name.strip_prefix("s3-").is_some_and(|rest| rest.strip_suffix(".sock").is_some())
    };
    let Some((uid, path)) = parsed.filter(|(_, path)| is_gateway(path)) else {
        return Err(Error::new(ErrorKind::Corrupt, "the gateway's announcement of its socket is none"));
    };
    LocalSocket::find(path, uid)
}

/// Where gateways make their sockets, unless their command names another directory.
fn usual_directories() -> Vec<PathBuf> {
    let of_user =
        forebay_config::env::filled("XDG_RUNTIME_DIR").map(|path| PathBuf::from(path).join("forebay"));
    [Some(PathBuf::from("/run/forebay")), of_user].into_iter().flatten().collect()
}

fn has_socket(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_that_failed_is_tried_again_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s3-1-0.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let announced = format!("{} {}", rustix::process::geteuid().as_raw(), path.display());
        let local = LocalGateway { is_elsewhere: false, state: Mutex::default() };
        lock(&local.state).next = Some(announced);
        let socket = local.socket().unwrap().unwrap();
        local.lose(&socket, &Error::new(ErrorKind::Timeout, "it is silent"));
        let error = local.socket().unwrap().unwrap_err().to_string();
        assert!(error.contains("it is silent") && error.contains("again_in=10 s"), "{error}");
        let rested = || lock(&local.state).lost.as_mut().unwrap().since -= REST;
        rested();
        assert!(local.socket().unwrap().is_ok());
        // Also one that was not there.
        local.lose(&local.socket().unwrap().unwrap(), &Error::new(ErrorKind::Timeout, "it is silent"));
        drop(listener);
        rested();
        assert!(local.socket().unwrap().unwrap_err().to_string().contains("not on this node"));
        std::fs::remove_file(&path).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        rested();
        assert!(local.socket().unwrap().is_ok());
    }
}
