//! Further addresses of a server, as its user names them. Connections that carry bytes go to all of them in turn.
//!
//! A name proves nothing: bytes go to an address only while it is shown that the same server answers there ([`crate::network::same`]). Each
//! connection over TCP shows it itself; one over RDMA is made when another one, over TCP to the same address, has shown it. In versions that
//! do not say who a server is, each opened file is compared, at an address that comes back all that are open. An address that fails is left
//! out for a minute, with the reason: its connections end, and what was under way there is sent again by the others.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};
use forebay_remote::endpoint::resolve;
use forebay_remote::stop::is_stopped;
use forebay_verbs::Domain;

use crate::lock;
use crate::network::identity::ServerIdentity;
use crate::network::job::FileTarget;
use crate::network::opened::OpenedFiles;
use crate::network::options::NfsOptions;

/// Further addresses of a server, at most: with the first as many as connections.
pub const MOST_FURTHER: usize = 15;

/// How long an address may take to answer before it is left out.
pub(crate) const CHECK_TIME: Duration = Duration::from_secs(2);

/// An address that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOutAddress {
    /// The address, or its name.
    pub address: String,
    /// The reason.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
}

/// The further addresses of a server.
#[derive(Default)]
pub(crate) struct FurtherAddresses {
    pub(crate) all: Vec<FurtherAddress>,
    /// Versions with sessions. It changes under the lock of the session.
    identity: Mutex<Option<ServerIdentity>>,
    /// Other versions.
    pub(crate) files: Mutex<OpenedFiles>,
    /// What connections over RDMA are of, by the number of the address: one for a NIC.
    pub(crate) domains: Mutex<Vec<(usize, Arc<dyn Domain>)>>,
    /// Called when an address leaves or returns.
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// How often one has returned.
    pub(super) returns: AtomicU64,
    /// When the last check ran whether one is due.
    pub(crate) looked: Mutex<Option<Instant>>,
}

impl fmt::Debug for FurtherAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FurtherAddresses").field("all", &self.all).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct FurtherAddress {
    pub(crate) name: String,
    /// Not set where the name has none.
    pub(crate) socket: OnceLock<SocketAddr>,
    /// A name without an address, which is asked for again.
    resolves: bool,
    /// On the fabric, where that is another one.
    fabric: Option<IpAddr>,
    state: Mutex<AddressState>,
    /// How often it was left. It changes under the lock of the state.
    pub(crate) left: Arc<AtomicU64>,
}

#[derive(Debug)]
enum AddressState {
    /// Nothing is known yet.
    New,
    /// It was shown to be the server's.
    Shown,
    /// It was, and another NIC leads there than the one that is to be used.
    Aside,
    /// It is not used since then.
    LeftOut(LeftOutAddress, Instant),
}

/// Why a connection is of no use.
pub(crate) enum UnshownReason {
    /// The address is left out.
    Not(Error),
    /// Another NIC leads there than the one that is to be used.
    Aside,
    /// It cannot be said now.
    Unclear,
}

impl From<Error> for UnshownReason {
    fn from(error: Error) -> Self {
        if is_stopped() { Self::Unclear } else { Self::Not(error) }
    }
}

/// Where a connection leads.
#[derive(Clone, Debug, Default)]
pub(crate) struct WireDestination {
    /// The number of a further address, how often that had been left when it was shown for this connection, and how often it is by now.
    pub(super) further: Option<(usize, u64, Arc<AtomicU64>)>,
    /// How often an address had returned.
    pub(super) returns: u64,
}

impl WireDestination {
    /// Whether the address was left since: nothing is sent there any more, and no reply is taken.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        self.further.as_ref().is_some_and(|(_, before, now)| now.load(Ordering::SeqCst) != *before)
    }
}

/// Which addresses are to be looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookReason {
    /// Those of which nothing is known, and those in use, for a file of this number; it is waited for.
    Opened(u64),
    /// Those that are due again. Nobody waits for them.
    Due,
}

impl FurtherAddresses {
    /// Looks names up; asks no server.
    pub(crate) fn new(options: &NfsOptions, first: &[SocketAddr]) -> Self {
        let Some(main) = first.first() else { return Self::default() };
        let mut all: Vec<FurtherAddress> = Vec::new();
        for (index, name) in options.further.iter().enumerate() {
            let fabric = options.rdma.as_ref().and_then(|rdma| rdma.further.get(index).copied());
            let found = match resolve(name, main.port()) {
                Ok(found) => found,
                Err(error) => {
                    all.push(FurtherAddress::unusable(name, fabric, &error, true));
                    continue;
                }
            };
            for socket in found {
                if socket == *main || all.iter().any(|known| known.socket() == Some(socket)) {
                    continue;
                }
                let name = socket.ip().to_string();
                if all.iter().filter(|known| known.socket().is_some()).count() < MOST_FURTHER {
                    let address = FurtherAddress::new(name, fabric, false);
                    let _ = address.socket.set(socket);
                    all.push(address);
                } else {
                    let error = Error::new(ErrorKind::InvalidInput, "a server has at most 16 addresses");
                    all.push(FurtherAddress::unusable(&name, fabric, &error, false));
                }
            }
        }
        Self { all, ..Self::default() }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A session was made.
    pub(crate) fn has_session(&self, identity: ServerIdentity) {
        *lock(&self.identity) = Some(identity);
    }

    /// Its creator.
    pub(crate) fn identity(&self) -> Option<ServerIdentity> {
        lock(&self.identity).clone()
    }

    /// Called when an address leaves or returns.
    pub(crate) fn on_change(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(call));
    }

    fn changed(&self) {
        if let Some(call) = self.on_change.get() {
            call();
        }
    }

    /// A file that was just opened is compared for as long as it is in use.
    pub(crate) fn uses(&self, file: &Arc<FileTarget>) {
        if !self.is_empty() {
            lock(&self.files).uses(file);
        }
    }

    /// Those that are left out.
    pub(crate) fn left_out(&self) -> Vec<LeftOutAddress> {
        let why = |one: &FurtherAddress| match &*lock(&one.state) {
            AddressState::LeftOut(why, _) => Some(why.clone()),
            _ => None,
        };
        self.all.iter().filter_map(why).collect()
    }

    /// Those in use, by their numbers.
    pub(crate) fn shown(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|index| self.all[*index].is_shown()).collect()
    }

    /// The device of a domain is gone.
    pub(crate) fn forget_domain(&self, domain: &Arc<dyn Domain>) {
        lock(&self.domains).retain(|(_, kept)| !Arc::ptr_eq(kept, domain));
    }

    /// Leaves an address: when this returns, nothing more is sent there.
    pub(crate) fn leave_out(&self, index: usize, error: &Error) {
        self.all[index].leave_out(error);
        self.changed();
    }

    /// Notes that a check did not show an address to lead to the same server.
    pub(crate) fn unshown(&self, index: usize, why: &UnshownReason) {
        match why {
            UnshownReason::Not(error) => self.leave_out(index, error),
            UnshownReason::Aside => {
                self.all[index].leave(AddressState::Aside);
                self.changed();
            }
            UnshownReason::Unclear => {}
        }
    }

    /// An address was shown, if it was not left since. False: by too few files.
    pub(crate) fn show(&self, index: usize, left: u64, files: Option<u64>) -> bool {
        // A file that is opened at this time finds the address proved, or the thread that proves it compares the file.
        let known = lock(&self.files);
        if files.is_some_and(|files| files < known.count()) {
            return false;
        }
        let has_returned = self.all[index].show(left);
        drop(known);
        if has_returned {
            self.returns.fetch_add(1, Ordering::SeqCst);
            self.changed();
        }
        true
    }
}

impl FurtherAddress {
    fn unusable(name: &str, fabric: Option<IpAddr>, error: &Error, resolves: bool) -> Self {
        let this = Self::new(name.to_owned(), fabric, resolves);
        this.leave_out(error);
        this
    }

    fn new(name: String, fabric: Option<IpAddr>, resolves: bool) -> Self {
        let (socket, state, left) = (OnceLock::new(), Mutex::new(AddressState::New), Arc::default());
        Self { name, socket, resolves, fabric, state, left }
    }

    pub(crate) fn socket(&self) -> Option<SocketAddr> {
        self.socket.get().copied()
    }

    /// Where it takes RDMA.
    pub(crate) fn on_fabric(&self) -> Option<IpAddr> {
        self.fabric.or_else(|| self.socket().map(|socket| socket.ip()))
    }

    pub(crate) fn is_shown(&self) -> bool {
        matches!(*lock(&self.state), AddressState::Shown)
    }

    /// How often it was left; `None`: it is not in use.
    pub(super) fn shown_since(&self) -> Option<u64> {
        let state = lock(&self.state);
        matches!(*state, AddressState::Shown).then(|| self.left.load(Ordering::SeqCst))
    }

    fn leave_out(&self, error: &Error) {
        let hint = error.hints().first().cloned();
        let why = LeftOutAddress {
            address: self.name.clone(),
            reason: error.to_string(),
            hint: hint.unwrap_or_else(|| {
                "take it out of FOREBAY_NFS_SERVERS, if it is not the server's".to_owned()
            }),
        };
        self.leave(AddressState::LeftOut(why, Instant::now()));
    }

    fn leave(&self, to: AddressState) {
        let mut state = lock(&self.state);
        self.left.fetch_add(1, Ordering::SeqCst);
        *state = to;
    }

    /// It is in use from now on, if it was not left meanwhile; whether it was not before.
    fn show(&self, left: u64) -> bool {
        let mut state = lock(&self.state);
        if self.left.load(Ordering::SeqCst) != left {
            return false;
        }
        !matches!(std::mem::replace(&mut *state, AddressState::Shown), AddressState::Shown)
    }

    /// Whether it is to be looked at now. `again`: after how long one that was left out is.
    pub(crate) fn is_due(&self, looks: LookReason, again: Duration) -> bool {
        match (&mut *lock(&self.state), looks) {
            (AddressState::New, _) | (AddressState::Shown, LookReason::Opened(_)) => true,
            (AddressState::LeftOut(_, since), LookReason::Due)
                if self.resolves || self.socket().is_some() =>
            {
                let is_due = since.elapsed() >= again;
                if is_due {
                    // Nobody else looks meanwhile.
                    *since = Instant::now();
                }
                is_due
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(names: &[&str]) -> FurtherAddresses {
        let further = names.iter().map(|name| (*name).to_owned()).collect();
        FurtherAddresses::new(
            &NfsOptions { further, ..NfsOptions::default() },
            &[([10, 0, 0, 1], 2049).into()],
        )
    }

    #[test]
    fn an_address_that_was_left_out_is_looked_at_once_after_a_minute() {
        let addresses = addresses(&["10.0.0.2"]);
        let address = &addresses.all[0];
        let is_due = |looks| address.is_due(looks, Duration::from_mins(1));
        assert!(is_due(LookReason::Due));
        addresses.leave_out(0, &Error::new(ErrorKind::Io, "for a test"));
        assert!(!is_due(LookReason::Due) && !is_due(LookReason::Opened(0)));
        if let AddressState::LeftOut(_, since) = &mut *lock(&address.state) {
            *since = since.checked_sub(Duration::from_mins(1)).unwrap();
        }
        assert!(is_due(LookReason::Due) && !is_due(LookReason::Due));
        // The reason is reported until the address is shown to be the server's.
        assert_eq!(addresses.left_out()[0].reason, "for a test");
        assert!(addresses.show(0, 1, None));
        assert!(!is_due(LookReason::Due) && is_due(LookReason::Opened(0)) && addresses.left_out().is_empty());
    }

    #[test]
    fn what_was_seen_before_an_address_was_left_does_not_bring_it_back() {
        let addresses = addresses(&["10.0.0.2"]);
        assert!(addresses.show(0, 0, Some(0)));
        let shown = addresses.all[0].shown_since().unwrap();
        let further = Some((0, shown, addresses.all[0].left.clone()));
        let destination = WireDestination { further, returns: 0 };
        assert!(!destination.is_left());
        addresses.leave_out(0, &Error::new(ErrorKind::Io, "for a test"));
        assert!(destination.is_left());
        addresses.show(0, shown, Some(0));
        assert!(addresses.shown().is_empty());
    }

    /// Nobody but who shows it compares a file that is opened while an address is left out.
    #[test]
    fn an_address_is_not_shown_by_fewer_files_than_there_are() {
        let addresses = addresses(&["10.0.0.2"]);
        let handle = crate::protocol::handle::NfsHandle::new(&[1]).unwrap();
        let facts = crate::protocol::handle::FileAttributes {
            kind: crate::protocol::handle::FileKind::Regular,
            size: 0,
            file_system: (0, 0),
            file_id: 0,
            modified: (0, 0),
            change: 0,
        };
        let (files, count) = lock(&addresses.files).since(0);
        assert_eq!((files.len(), count), (0, 0));
        lock(&addresses.files).opened((handle, facts));
        assert!(!addresses.show(0, 0, Some(count)) && addresses.shown().is_empty());
        let count = lock(&addresses.files).since(count).1;
        assert!(addresses.show(0, 0, Some(count)));
    }

    #[test]
    fn addresses_are_taken_once_and_at_most_15() {
        let none = addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.2", "fd00::2", "fd00:0::2"]);
        let names: Vec<_> =
            none.all.iter().map(|one| (one.name.as_str(), one.socket().unwrap().port())).collect();
        assert_eq!(names, [("10.0.0.2", 2049), ("fd00::2", 2049)]);
        let names: Vec<_> = (2..20).map(|last| format!("10.0.0.{last}")).collect();
        let many = addresses(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(many.left_out().len(), 3);
        assert_eq!(many.left_out()[0].address, "10.0.0.17");
    }
}
