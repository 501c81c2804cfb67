//! A queue pair that is paired in band, with the peer's as its program gave it.

use std::sync::OnceLock;

use forebay_verbs::QueueEnd;

#[derive(Debug)]
pub(crate) struct Queue {
    own: QueueEnd,
    peer: OnceLock<QueueEnd>,
}

impl Queue {
    pub(crate) const fn new(own: QueueEnd) -> Self {
        Self { own, peer: OnceLock::new() }
    }

    /// Notes the peer, once.
    pub(crate) fn pair(&self, peer: QueueEnd) -> bool {
        self.peer.set(peer).is_ok()
    }

    /// Whether this side takes that queue pair for its peer: where one of these differs, a device drops packets.
    pub(crate) fn names(&self, other: &Self) -> bool {
        let which = |end: QueueEnd| (end.number, end.first, end.gid, end.lid);
        self.peer.get().is_some_and(|peer| which(*peer) == which(other.own))
    }
}
