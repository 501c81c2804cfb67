//! Makes sessions: the server is asked by a signed request, and the two ends are paired.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_s3_rdma::rc1::{CONNECT, ConnectAnswer, ConnectAsk, DISCONNECT, SESSION, SessionId};
use forebay_source::HostRange;
use forebay_verbs::{Domain, Why};

use super::fabric::{is_no_nic, reach};
use super::session::{MARGIN, Session};
use crate::account::Account;
use crate::lock;
use crate::wire::Network;
use crate::wire::call::{Ask, Body, Method, ReplyHead, Room, Sink};
use crate::wire::site::Site;

/// How long a server is not asked again that does not take RDMA.
pub(super) const DECLINED: Duration = Duration::from_mins(10);
/// The same where something failed, or it had too many sessions.
pub(super) const REST: Duration = Duration::from_secs(10);
/// RDMA READs of the server that this side answers at a time.
const READS: u8 = 16;
/// A server whose operations are shorter is not used: a read of 8 MiB is 8 requests at most. Chosen, not measured.
const LEAST_BYTES: u64 = 1 << 20;
/// Bytes of an answer that are read.
const ANSWER: usize = 64 << 10;

/// The way to a server.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    pub(super) domain: Arc<dyn Domain>,
    /// To one address: other machines behind the same name do not have its sessions.
    pub(super) network: Arc<Network>,
    /// Held by all sessions of the domain, and by who makes one.
    pub(super) living: Arc<()>,
}

/// Why there is no session.
pub(super) struct NoSession {
    pub(super) error: Error,
    /// How long nobody asks again.
    pub(super) pause: Duration,
    /// This machine has no RDMA on the way to the server.
    pub(super) is_no_nic: bool,
}

impl NoSession {
    fn of_machine(error: Error) -> Self {
        let is_no_nic = is_no_nic(&error);
        let pause = if Why::of(&error) == Some(Why::DeviceRemoved) { REST } else { DECLINED };
        Self { error, pause, is_no_nic }
    }

    fn of_server(error: Error, pause: Duration) -> Self {
        Self { error, pause, is_no_nic: false }
    }
}

impl Reached {
    pub(super) fn new(account: &Arc<Account>, site: &Site) -> Result<Self, NoSession> {
        let (address, domain) = reach(site).map_err(NoSession::of_machine)?;
        // A certificate is the name's.
        let host = if site.tls { site.host.clone() } else { address.ip().to_string() };
        let network = Network::new(account.clone(), Site { host, ..site.clone() });
        network.allow(super::peer::MOST_SESSIONS + 1);
        Ok(Self { domain, network, living: Arc::default() })
    }

    /// Pairs an end with one of the server's.
    pub(super) fn connect(&self) -> Result<Session, NoSession> {
        let end = self.domain.end(&Session::options(READS)).map_err(NoSession::of_machine)?;
        let asked = ConnectAsk { end: end.own(), reads: READS };
        let body = Body::Bytes(asked.to_json().into_bytes().into());
        let later = |error| NoSession::of_server(error, REST);
        let (head, answer) = wait_for(&self.network, post(CONNECT), body).map_err(later)?;
        let answer = ConnectAnswer::parse(head.status, &answer).map_err(|refused| {
            let pause = if matches!(head.status, 429 | 500 | 502..=504) { REST } else { DECLINED };
            let error = Error::new(ErrorKind::Unsupported, "the server does not take RDMA").source(refused);
            NoSession::of_server(error.with("status", head.status), pause)
        })?;
        let connection = check(&answer).and_then(|()| end.pair(&answer.end)).map_err(|error| {
            disconnect(&self.network, answer.session);
            NoSession::of_server(error, DECLINED)
        })?;
        let Self { domain, network, living } = self.clone();
        Ok(Session::new(connection, (domain, network, living), &answer))
    }
}

/// An error where a session is of no use.
fn check(answer: &ConnectAnswer) -> Result<()> {
    let (bytes, seconds) = (answer.operation_bytes, answer.idle_seconds);
    let text = if bytes < LEAST_BYTES {
        "the server's operations by RDMA are too short"
    } else if Duration::from_secs(seconds.into()) <= 2 * MARGIN {
        "the server keeps sessions of RDMA too short a time"
    } else {
        return Ok(());
    };
    let error = Error::new(ErrorKind::Unsupported, text);
    Err(error.with("operation_bytes", bytes).with("idle_seconds", seconds))
}

/// Ends a session here, then has the server forget it: its seat there is free for another one.
pub(super) fn end_session(session: Session) {
    let (network, name) = session.close();
    disconnect(&network, name);
}

/// Has the server forget a session. Nobody waits for it.
fn disconnect(network: &Arc<Network>, session: SessionId) {
    let mut ask = post(DISCONNECT);
    ask.headers.push((SESSION.to_owned(), session.text()));
    let answer =
        Answer { head: None, body: Vec::new(), came: 0, told: None, _network: Some(network.clone()) };
    network.start(ask, Body::None, Box::new(answer));
}

fn post(path: &str) -> Ask {
    Ask {
        method: Method::Post,
        bucket: String::new(),
        key: path.trim_start_matches('/').to_owned(),
        query: Vec::new(),
        headers: Vec::new(),
    }
}

type End = Result<(ReplyHead, Vec<u8>)>;
type Told = Arc<(Mutex<Option<End>>, Condvar)>;

/// A short reply.
struct Answer {
    head: Option<ReplyHead>,
    body: Vec<u8>,
    came: usize,
    told: Option<Told>,
    /// Kept until the answer, where nobody waits for it.
    _network: Option<Arc<Network>>,
}

impl Sink for Answer {
    fn head(&mut self, head: ReplyHead) -> Result<()> {
        self.head = Some(head);
        Ok(())
    }

    fn room(&mut self) -> Room {
        if self.came == ANSWER {
            return Room::Enough;
        }
        self.body.resize(ANSWER, 0);
        Room::Memory(HostRange::of_mut(&mut self.body[self.came..]))
    }

    fn filled(&mut self, bytes: usize) {
        self.came += bytes;
    }

    fn end(self: Box<Self>, result: Result<()>) {
        let Self { head, mut body, came, told, .. } = *self;
        body.truncate(came);
        let Some(told) = told else { return };
        let none = || Error::new(ErrorKind::Internal, "a call ended without a head");
        *lock(&told.0) = Some(result.and_then(|()| head.map(|head| (head, body)).ok_or_else(none)));
        told.1.notify_all();
    }
}

/// A call that is waited for, once.
fn wait_for(network: &Network, ask: Ask, body: Body) -> End {
    let told = Told::default();
    let answer = Answer { head: None, body: Vec::new(), came: 0, told: Some(told.clone()), _network: None };
    network.start(ask, body, Box::new(answer));
    let mut end = lock(&told.0);
    loop {
        if let Some(end) = end.take() {
            return end;
        }
        if stop::is_stopped() {
            return Err(stop::stopped());
        }
        end = told.1.wait_timeout(end, stop::SLICE).unwrap_or_else(PoisonError::into_inner).0;
    }
}
