//! The gateway on this node: where its socket is, and what goes through it.
//!
//! Replies of a gateway say where its socket is, and which user answers there (`x-forebay-local: UID PATH`). The path has a random
//! number: it leads to that gateway, or to nothing. A socket at which another user answers is not used.

mod socket;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forebay_error::{Error, ErrorKind, Result};

use crate::lock;
use crate::wire::call::ReplyHead;
use crate::wire::site::Site;
pub(crate) use socket::{LocalConnection, LocalReply, LocalSocket};

/// The header of replies.
const ANNOUNCES: &str = "x-forebay-local";
/// Behind a load balancer each gateway announces itself: as many are looked for.
const MOST_TRIED: usize = 64;

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
    why_not: Option<Error>,
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

    /// Whether a gateway of this node may be behind the endpoint, which nobody has asked anything yet.
    pub(crate) fn is_likely(&self) -> bool {
        let is_unknown = lock(&self.state).tried.is_empty();
        is_unknown && !self.is_elsewhere && usual_directories().iter().any(|directory| has_socket(directory))
    }

    /// The socket, or why it is not used. `None`: no gateway has announced one.
    pub(crate) fn socket(&self) -> Option<Result<Arc<LocalSocket>>> {
        let mut state = lock(&self.state);
        if let Some(next) = state.next.take() {
            match find(&next) {
                Ok(found) => state.found = Some(Arc::new(found)),
                Err(error) => state.why_not = Some(error),
            }
        }
        let State { found, why_not, .. } = &*state;
        found.clone().map(Ok).or_else(|| why_not.clone().map(Err))
    }

    /// The socket does not answer any more. The gateway may have begun anew, with another.
    pub(crate) fn lose(&self, socket: &Arc<LocalSocket>, why: &Error) {
        let mut state = lock(&self.state);
        if state.found.as_ref().is_some_and(|found| Arc::ptr_eq(found, socket)) {
            state.found = None;
            state.why_not = Some(why.clone());
        }
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
