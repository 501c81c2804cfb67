//! Further addresses of a server, as its user names them. Connections that carry bytes go to all of them in turn.
//!
//! A name proves nothing: bytes go to an address only when it was shown, on the very connection that is to carry them, that the same
//! server answers there. In version 4.1 and later the server says who it is, and must know this client and its session (RFC 8881 §2.10.5);
//! in other versions all that can be seen is that the handle of an opened file is known there, and that the file is the same. An address
//! that fails is left out for a minute, with the reason; the others go on.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::threads;
use forebay_verbs::{Device, Domain, Route, Why};

use crate::connect::{connect_from, end_unsent, resolve};
use crate::exchange::Exchange;
use crate::handle::{Attributes, Handle, Version};
use crate::lock;
use crate::options::Options;
use crate::outage::{Outage, is_stopped, stopped};
use crate::session::{Server, get_look, put_look};
use crate::status::Status;
use crate::v3;
use crate::v4::{self, ClientId};

/// Further addresses of a server, at most: with the first as many as connections.
const MOST: usize = 15;

/// How long an address may take to answer before it is left out.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// After how long it is tried again.
const LEFT_OUT: Duration = Duration::from_mins(1);

/// How often a file is looked at that may just be changing.
const LOOKS: u32 = 3;

/// What is done when an address is looked at.
const LOOKING: &str = "cannot look at the address";

/// An address that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The address, or its name.
    pub address: String,
    /// The reason.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
}

/// This client as its server knows it, and the server by its own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    verifier: [u8; 8],
    owner: Vec<u8>,
    pub(crate) client: u64,
    minor: u64,
    major: Vec<u8>,
    scope: Vec<u8>,
}

impl Identity {
    pub(crate) fn new(verifier: [u8; 8], owner: &[u8], told: ClientId<'_>) -> Self {
        let (owner, major, scope) = (owner.to_vec(), told.major.to_vec(), told.scope.to_vec());
        Self { verifier, owner, client: told.client, minor: told.minor, major, scope }
    }
}

/// The further addresses of a server.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    all: Vec<Address>,
    /// Versions with sessions.
    identity: Mutex<Option<Identity>>,
    /// Other versions: the file that was opened last.
    sample: Mutex<Option<Sample>>,
    /// What connections over RDMA are of, by the number of the address: one for a NIC.
    domains: Mutex<Vec<(usize, Arc<dyn Domain>)>>,
    tries_rdma: OnceLock<TriesRdma>,
}

type Sample = (Handle, Attributes);

/// Whether an address, by its number, takes RDMA: what connections do.
type TriesRdma = fn(&Server, usize) -> Result<()>;

#[derive(Debug)]
struct Address {
    name: String,
    /// None where the name has none.
    socket: Option<SocketAddr>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Nothing is known yet.
    New,
    /// It was shown to be the server's.
    Shown,
    /// It was, and another NIC leads there than the one that is to be used.
    Aside,
    /// It is not used since then.
    LeftOut(LeftOut, Instant),
}

/// Why a connection is of no use.
enum Unshown {
    /// The address is left out.
    Not(Error),
    /// Another NIC leads there than the one that is to be used.
    Aside,
    /// It cannot be said now.
    Unclear,
}

impl From<Error> for Unshown {
    fn from(error: Error) -> Self {
        if is_stopped() { Self::Unclear } else { Self::Not(error) }
    }
}

impl Addresses {
    /// Looks names up; asks no server.
    pub(crate) fn new(names: &[String], first: &[SocketAddr]) -> Self {
        let Some(main) = first.first() else { return Self::default() };
        let mut all: Vec<Address> = Vec::new();
        for name in names {
            let found = match resolve(name, main.port()) {
                Ok(found) => found,
                Err(error) => {
                    all.push(Address::unusable(name, &error));
                    continue;
                }
            };
            for socket in found {
                if socket == *main || all.iter().any(|known| known.socket == Some(socket)) {
                    continue;
                }
                let name = socket.ip().to_string();
                if all.iter().filter(|known| known.socket.is_some()).count() < MOST {
                    all.push(Address::new(name, Some(socket)));
                } else {
                    let error = Error::new(ErrorKind::InvalidInput, "a server has at most 16 addresses");
                    all.push(Address::unusable(&name, &error));
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
    pub(crate) fn has_session(&self, identity: Identity) {
        *lock(&self.identity) = Some(identity);
    }

    /// Those that are left out.
    pub(crate) fn left_out(&self) -> Vec<LeftOut> {
        let why = |one: &Address| match &*lock(&one.state) {
            State::LeftOut(why, _) => Some(why.clone()),
            _ => None,
        };
        self.all.iter().filter_map(why).collect()
    }

    /// Those in use, by their numbers.
    fn shown(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|index| self.all[*index].is_shown()).collect()
    }

    /// The device of a domain is gone.
    pub(crate) fn forget_domain(&self, domain: &Arc<dyn Domain>) {
        lock(&self.domains).retain(|(_, kept)| !Arc::ptr_eq(kept, domain));
    }
}

impl Address {
    fn unusable(name: &str, error: &Error) -> Self {
        let this = Self::new(name.to_owned(), None);
        this.leave_out(error);
        this
    }

    fn new(name: String, socket: Option<SocketAddr>) -> Self {
        Self { name, socket, state: Mutex::new(State::New) }
    }

    fn is_shown(&self) -> bool {
        matches!(*lock(&self.state), State::Shown)
    }

    fn leave_out(&self, error: &Error) {
        let hint = error.hints().first().cloned();
        let why = LeftOut {
            address: self.name.clone(),
            reason: error.to_string(),
            hint: hint.unwrap_or_else(|| {
                "take it out of FOREBAY_NFS_SERVERS, if it is not the server's".to_owned()
            }),
        };
        *lock(&self.state) = State::LeftOut(why, Instant::now());
    }

    /// Whether it is to be looked at now: always, or where nothing is known of it, or it was left out for long enough.
    fn is_due(&self, always: bool) -> bool {
        if self.socket.is_none() {
            return false;
        }
        match &mut *lock(&self.state) {
            State::New => true,
            State::Shown => always,
            State::Aside => false,
            State::LeftOut(_, since) => {
                let is_due = since.elapsed() >= LEFT_OUT;
                if is_due {
                    // Nobody else looks meanwhile.
                    *since = Instant::now();
                }
                is_due
            }
        }
    }

    /// A connection on which the server was shown to be the same.
    fn connection(&self, server: &Server, sample: Option<&Sample>, port: u16) -> Result<TcpStream, Unshown> {
        let Some(socket) = self.socket else { return Err(Unshown::Unclear) };
        let options = &server.options;
        let options = Options {
            connect: options.connect.min(CHECK_TIME),
            first_answer: options.silence.min(CHECK_TIME),
            silence: options.silence.min(CHECK_TIME),
            deadline: Duration::ZERO,
            ..options.clone()
        };
        let stream = connect_from(port, &[socket], &options, &server.outage)?;
        // One that has shown all it was to show leaves its port, of which there are few below 1024, at once.
        end_unsent(&stream);
        // What another server says, or does not, is nothing of this one's.
        let outage = Outage::new(server.name.clone());
        let mut exchange = Exchange::on(stream, socket, options, outage);
        match sample {
            _ if server.version.has_session() => same_server(server, &mut exchange)?,
            Some(sample) => same_file(server, &mut exchange, sample)?,
            None => return Err(Unshown::Unclear),
        }
        exchange.into_stream().ok_or(Unshown::Unclear)
    }

    /// Notes what came of a look.
    fn looked(&self, found: &Result<TcpStream, Unshown>) {
        match found {
            Ok(_) => *lock(&self.state) = State::Shown,
            Err(Unshown::Not(error)) => self.leave_out(error),
            Err(Unshown::Aside) => *lock(&self.state) = State::Aside,
            Err(Unshown::Unclear) => {}
        }
    }
}

impl Server {
    /// A connection for bytes. Wires go to all addresses in turn. `port`: of this side, if it is free; 0: any.
    pub(crate) fn connect(self: &Arc<Self>, wire: usize, port: u16) -> Result<TcpStream> {
        match self.shown_in_turn(wire, port)? {
            Some((_, stream)) => Ok(stream),
            None => connect_from(port, &self.addresses, &self.options, &self.outage),
        }
    }

    /// The same over RDMA, by a function that takes the address; `None`: the first. The server shows over TCP who it is.
    pub(crate) fn connect_by<T>(
        self: &Arc<Self>,
        wire: usize,
        connect: impl Fn(Option<usize>) -> Result<T>,
    ) -> Result<T> {
        while let Some((index, _)) = self.shown_in_turn(wire, 0)? {
            match connect(Some(index)) {
                // That is of this machine, and no other address helps.
                Err(error) if Why::of(&error) == Some(Why::Memlock) => return Err(error),
                Err(error) => self.further.all[index].leave_out(&error),
                connected => return connected,
            }
        }
        connect(None)
    }

    /// A further address with a connection on which it was just shown to be the server's, if a wire's turn is at one.
    fn shown_in_turn(self: &Arc<Self>, wire: usize, port: u16) -> Result<Option<(usize, TcpStream)>> {
        if self.further.is_empty() {
            return Ok(None);
        }
        self.look_again();
        while let Some(index) = self.in_turn(wire) {
            let (address, sample) = (&self.further.all[index], *lock(&self.further.sample));
            let found = address.connection(self, sample.as_ref(), port);
            if is_stopped() {
                return Err(stopped());
            }
            address.looked(&found);
            match found {
                Ok(stream) => return Ok(Some((index, stream))),
                Err(Unshown::Not(_) | Unshown::Aside) => {}
                Err(Unshown::Unclear) => break,
            }
        }
        Ok(None)
    }

    /// The address for a connection; `None`: the first.
    fn in_turn(&self, wire: usize) -> Option<usize> {
        let (shown, first) = (self.further.shown(), usize::from(self.uses_first()));
        let turn = wire % (first + shown.len()).max(1);
        shown.get(turn.checked_sub(first)?).copied()
    }

    /// How many addresses are in use.
    pub(crate) fn addresses_in_use(&self) -> usize {
        usize::from(self.uses_first()) + self.further.shown().len()
    }

    /// The NIC that is to be used, if not all are.
    fn nic(&self) -> Option<&str> {
        self.options.rdma.as_ref()?.nic.as_deref()
    }

    /// Whether bytes go to the first address: where a NIC is named, if that leads there.
    fn uses_first(&self) -> bool {
        self.nic().is_none_or(|nic| self.domain().is_ok_and(|domain| domain.device().name == nic))
    }

    /// The protection domain of connections to the first address that is in use.
    pub(crate) fn domain_in_use(&self) -> Result<Arc<dyn Domain>> {
        if self.uses_first() {
            return self.domain();
        }
        match self.further.shown().first() {
            Some(index) => self.further_domain(*index),
            None => Err(Why::NoRoute
                .error("the NIC leads to no address of the server")
                .with("nic", self.nic().unwrap_or_default())),
        }
    }

    /// The NICs that lead to the addresses in use.
    pub(crate) fn nics(&self) -> Vec<Device> {
        let mut all: Vec<Device> = Vec::new();
        let further = self.further.shown().into_iter().map(|index| self.further_domain(index));
        for domain in self.uses_first().then(|| self.domain()).into_iter().chain(further).flatten() {
            if all.iter().all(|known| known.name != domain.device().name) {
                all.push(domain.device().clone());
            }
        }
        all
    }

    /// Where a further address takes RDMA.
    pub(crate) fn further_rdma_address(&self, index: usize) -> Result<SocketAddr> {
        let (rdma, _) = self.rdma_address()?;
        let own = self.further.all[index].socket.map(|socket| socket.ip());
        let nothing = || Error::new(ErrorKind::Internal, "an address of nothing");
        let address = rdma.further.get(index).copied().or(own).ok_or_else(nothing)?;
        Ok(SocketAddr::new(address, rdma.port))
    }

    /// The protection domain of connections to a further address: that of others to which the same NIC leads.
    pub(crate) fn further_domain(&self, index: usize) -> Result<Arc<dyn Domain>> {
        let mut kept = lock(&self.further.domains);
        if let Some((_, domain)) = kept.iter().find(|(known, _)| *known == index) {
            return Ok(domain.clone());
        }
        let (rdma, _) = self.rdma_address()?;
        let to = self.further_rdma_address(index)?;
        let route = Route { timeout: self.options.connect.min(CHECK_TIME), ..Route::to(to) };
        let own = rdma.fabric.open(&route)?;
        let others = self.domain().into_iter().chain(kept.iter().map(|(_, domain)| domain.clone()));
        let known = others.into_iter().find(|other| other.device().name == own.device().name);
        let domain = known.unwrap_or(own);
        kept.push((index, domain.clone()));
        Ok(domain)
    }

    /// Whether an address takes RDMA, by the NIC that is to be used.
    fn try_by_rdma(&self, index: usize) -> Result<(), Unshown> {
        let domain = self.further_domain(index)?;
        if self.nic().is_some_and(|nic| nic != domain.device().name) {
            return Err(Unshown::Aside);
        }
        let Some(tries) = self.further.tries_rdma.get() else { return Err(Unshown::Unclear) };
        Ok(tries(self, index)?)
    }

    /// A file was opened: looks whether it is the same at all addresses, in versions that cannot say who the server is; and at what is
    /// not known yet. Ends when all have answered, or were left out.
    pub(crate) fn opened(self: &Arc<Self>, handle: &Handle, facts: &Attributes, tries_rdma: TriesRdma) {
        if self.further.is_empty() {
            return;
        }
        self.further.tries_rdma.get_or_init(|| tries_rdma);
        let sample = (*handle, *facts);
        *lock(&self.further.sample) = Some(sample);
        self.look(!self.version.has_session(), true);
    }

    /// Whether writes are durable at once, piece by piece: what one address has taken, a COMMIT at another need not make durable, and its
    /// verifier may be another. A session is of one server.
    pub(crate) fn writes_durably(&self) -> bool {
        !self.further.is_empty() && !self.version.has_session()
    }

    /// Addresses that were left out may be back. Nobody waits for them.
    fn look_again(self: &Arc<Self>) {
        self.look(false, false);
    }

    fn look(self: &Arc<Self>, always: bool, waits: bool) {
        let sample = *lock(&self.further.sample);
        let due = (0..self.further.all.len()).filter(|index| self.further.all[*index].is_due(always));
        let (tell, told) = channel::<()>();
        for index in due {
            let (server, tell) = (self.clone(), tell.clone());
            let look = move || {
                let address = &server.further.all[index];
                let mut found = address.connection(&server, sample.as_ref(), 0);
                if found.is_ok() && server.options.rdma.is_some() && !address.is_shown() {
                    found = found.and_then(|stream| server.try_by_rdma(index).map(|()| stream));
                }
                address.looked(&found);
                drop(tell);
            };
            // Without a thread it is looked at later, and not used until then.
            if let Err(error) = threads::spawn("forebay-address", look)
                && waits
            {
                let error = Error::from_io(&error, "cannot start a thread");
                self.further.all[index].leave_out(&error);
            }
        }
        drop(tell);
        if waits {
            // Ends with the last of them.
            let _ = told.recv();
        }
    }
}

fn other(text: &str) -> Unshown {
    Unshown::Not(Error::new(ErrorKind::Unsupported, text))
}

/// Its addresses share no session: they are nodes, or the server knows a client anew at each.
fn unshared(text: &str) -> Unshown {
    let hint = "version 3 needs no session: ?version=3 in the URL, or vers=3 for the mount";
    Unshown::Not(Error::new(ErrorKind::Unsupported, text).hint(hint))
}

/// Whether the server at the other end says that it is the same, and knows the session.
fn same_server(server: &Server, exchange: &mut Exchange) -> Result<(), Unshown> {
    let identity = lock(&server.further.identity).clone();
    let (Some(known), Some(granted)) = (identity, server.session().granted) else {
        return Err(Unshown::Unclear);
    };
    let told = server.compound_on(
        exchange,
        LOOKING,
        1,
        |to| v4::put_exchange_id(to, known.verifier, &known.owner),
        |from| Ok(v4::get_exchange_id(from)?.map(|told| Identity::new(known.verifier, &known.owner, told))),
    )?;
    let told = told.map_err(|status| refused(server, status))?;
    if (&told.major, &told.scope) != (&known.major, &known.scope) {
        return Err(other("another server answers there"));
    }
    if told.minor != known.minor {
        return Err(unshared(
            "another node of the server answers there, which shares no session with the first",
        ));
    }
    let bound = server.compound_on(
        exchange,
        LOOKING,
        1,
        |to| v4::put_bind(to, &granted.session),
        |from| v4::get_bind(from, &granted.session),
    )?;
    match bound {
        _ if told.client != known.client => Err(unshared("the server does not know this client there")),
        // Without it a connection is known by its first call in a slot.
        Ok(()) | Err(Status::NOT_SUPPORTED) => Ok(()),
        Err(status) if status.is_session_lost() => {
            Err(unshared("the server does not know the session there"))
        }
        Err(status) => Err(refused(server, status)),
    }
}

fn refused(server: &Server, status: Status) -> Unshown {
    Unshown::Not(status.error(LOOKING, server.who.uid()))
}

/// Whether a file is the same at the other end as by the first address. It may change meanwhile.
fn same_file(server: &Server, exchange: &mut Exchange, sample: &Sample) -> Result<(), Unshown> {
    let (handle, mut here) = (&sample.0, sample.1);
    for _ in 0..LOOKS {
        let there = facts(server, exchange, handle)?;
        if there == Ok(here) {
            return Ok(());
        }
        // The file may be gone by now, or the server: that says nothing of the address.
        let Ok((now, _)) = server.facts(handle) else { return Err(Unshown::Unclear) };
        here = now;
        match there {
            Ok(there) if there == here => return Ok(()),
            Ok(there) if (there.file_system, there.file_id) == (here.file_system, here.file_id) => {}
            Ok(_) => return Err(other("the file is another one there: another server answers")),
            Err(status) => return Err(refused(server, status)),
        }
    }
    Err(other("the file is in another state there: another server answers, or somebody writes the file"))
}

fn facts(server: &Server, exchange: &mut Exchange, handle: &Handle) -> Result<Result<Attributes, Status>> {
    if server.version == Version::V3 {
        let procedure = (v3::PROGRAM, v3::GETATTR);
        let put = |to: &mut crate::xdr::Writer<'_>| v3::put_handle(to, handle);
        return exchange.call(LOOKING, procedure, Some(&server.who), put, v3::get_attributes);
    }
    let said = server.compound_on(exchange, LOOKING, 2, |to| put_look(to, handle), get_look)?;
    Ok(said.map(|(attributes, _)| attributes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(names: &[&str]) -> Addresses {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Addresses::new(&names, &[([10, 0, 0, 1], 2049).into()])
    }

    #[test]
    fn an_address_that_was_left_out_is_looked_at_once_after_a_minute() {
        let addresses = addresses(&["10.0.0.2"]);
        let address = &addresses.all[0];
        assert!(address.is_due(false));
        address.leave_out(&Error::new(ErrorKind::Io, "for a test"));
        assert!(!address.is_due(true));
        if let State::LeftOut(_, since) = &mut *lock(&address.state) {
            *since = since.checked_sub(LEFT_OUT).unwrap();
        }
        assert!(address.is_due(false) && !address.is_due(false));
        // The reason is told until it was shown to be the server's.
        assert_eq!(addresses.left_out()[0].reason, "for a test");
        *lock(&address.state) = State::Shown;
        assert!(!address.is_due(false) && address.is_due(true) && addresses.left_out().is_empty());
    }

    #[test]
    fn addresses_are_taken_once_and_at_most_15() {
        let none = addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.2", "fd00::2", "fd00:0::2"]);
        let names: Vec<_> =
            none.all.iter().map(|one| (one.name.as_str(), one.socket.unwrap().port())).collect();
        assert_eq!(names, [("10.0.0.2", 2049), ("fd00::2", 2049)]);
        let names: Vec<_> = (2..20).map(|last| format!("10.0.0.{last}")).collect();
        let many = addresses(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(many.left_out().len(), 3);
        assert_eq!(many.left_out()[0].address, "10.0.0.17");
    }
}
