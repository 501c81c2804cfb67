//! The server of an endpoint: whether it takes RDMA, its sessions, and operations that wait for one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::OfProcess;
use forebay_source::Direction;
use forebay_sys::threads;
use forebay_verbs::{Domain, Why};

use super::connect::{DECLINED, NoSession, REST, Reached, end_session};
use super::memory::HostRegion;
use super::operation::{NotMoved, Operation, Sent};
use super::session::Session;
use crate::account::Account;
use crate::endpoint::Endpoint;
use crate::lock;
use crate::wire::call::{Body, ReplyHead};
use crate::wire::site::Site;

/// Sessions with a server at most: each has one operation at a time.
pub(super) const MOST_SESSIONS: usize = 8;

/// Sessions that are asked for at most because one operation waits.
const CONNECTS: u8 = 4;

/// The server of an endpoint.
pub(crate) struct RdmaPeer {
    myself: Weak<Self>,
    account: Arc<Account>,
    site: Site,
    state: Mutex<State>,
    /// One thread asks.
    turn: Mutex<()>,
    /// Bytes have moved by RDMA.
    has_moved: AtomicBool,
}

struct State {
    reached: Option<Reached>,
    /// The last session that was asked for was given: bytes of an operation at most.
    speaks: Option<u64>,
    idle: Vec<Session>,
    /// Those that there are, or that are being made.
    sessions: usize,
    /// The server gave no further one: none is asked for until then.
    grows_from: Option<Instant>,
    is_connecting: bool,
    waiting: VecDeque<Operation>,
    held: Vec<Held>,
    is_pumping: bool,
    trial: HostTrial,
    refused: Option<Refused>,
    /// Until when nothing is written by RDMA, and why.
    no_writes: Option<(Instant, Error)>,
}

/// An operation whose key could not be ended. It ends when no session of the domain lives that could use it.
struct Held {
    living: Weak<()>,
    region: HostRegion,
    operation: Operation,
    why: NotMoved,
}

/// Whether bytes come into host memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostTrial {
    None,
    Begun,
    Good,
    /// It is not tried again until then.
    Failed(Instant),
}

/// Why nothing goes by RDMA.
struct Refused {
    error: Error,
    until: Instant,
    is_no_nic: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            reached: None,
            speaks: None,
            idle: Vec::new(),
            sessions: 0,
            grows_from: None,
            is_connecting: false,
            waiting: VecDeque::new(),
            held: Vec::new(),
            is_pumping: false,
            trial: HostTrial::None,
            refused: None,
            no_writes: None,
        }
    }
}

impl State {
    /// Whether sessions of its domain are used.
    fn takes(&self, session: &Session) -> bool {
        self.reached.as_ref().is_some_and(|reached| Arc::ptr_eq(&reached.living, &session.living))
    }
}

/// An operation's session, and its region.
type Used = (Session, Option<HostRegion>);

/// The next step.
enum Step {
    Send(Session, Operation),
    Connect,
    End(Operation, NotMoved),
    Nothing,
}

type Peers = Mutex<Vec<(Weak<Endpoint>, Arc<RdmaPeer>)>>;

/// A forked child has connections of its own.
static PEERS: OfProcess<Peers> = OfProcess::new();

impl RdmaPeer {
    /// That of an endpoint.
    pub(crate) fn of(endpoint: &Arc<Endpoint>) -> Arc<Self> {
        let mut all = lock(PEERS.get());
        let is_it = |(known, _): &&(Weak<Endpoint>, _)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(endpoint));
        if let Some((_, peer)) = all.iter().find(is_it) {
            return peer.clone();
        }
        let over: Vec<_> = all.extract_if(.., |(endpoint, _)| endpoint.strong_count() == 0).collect();
        let (account, site) = (endpoint.account.clone(), endpoint.site.clone());
        let peer = Arc::new_cyclic(|myself| Self {
            myself: myself.clone(),
            account,
            site,
            state: Mutex::default(),
            turn: Mutex::default(),
            has_moved: AtomicBool::new(false),
        });
        all.push((Arc::downgrade(endpoint), peer.clone()));
        drop(all);
        drop(over);
        peer
    }

    /// How bytes go, for receipts.
    pub(crate) fn way(&self) -> String {
        format!("S3 by RDMA, rc1, server {}", self.site.name())
    }

    /// Whether bytes go by RDMA: the domain in which memory is to be registered. The server is asked where that is not known.
    pub(crate) fn ask(&self) -> Result<Arc<dyn Domain>> {
        if let Some(known) = self.known() {
            return known;
        }
        let _turn = lock(&self.turn);
        if let Some(known) = self.known() {
            return known;
        }
        let made = self.connect();
        let mut state = lock(&self.state);
        match Self::taken(&state, made) {
            Ok(session) => {
                let domain = session.domain.clone();
                (state.speaks, state.refused) = (Some(session.most), None);
                state.sessions += 1;
                state.idle.push(session);
                Ok(domain)
            }
            Err(why) => {
                let error = self.refuse(&mut state, why);
                drop(state);
                self.end_held();
                Err(error)
            }
        }
    }

    /// The same, as far as it is known.
    pub(crate) fn known(&self) -> Option<Result<Arc<dyn Domain>>> {
        let state = lock(&self.state);
        if let Some(refused) = state.refused.as_ref().filter(|refused| Instant::now() < refused.until) {
            return Some(Err(refused.error.clone()));
        }
        state.speaks?;
        state.reached.as_ref().map(|reached| Ok(reached.domain.clone()))
    }

    /// Whether bytes were seen to come into host memory. `None`: not known, and the caller is the one to find out: then it says so by
    /// [`RdmaPeer::tried`]. Where the last trial failed a moment ago, a caller that does not wait leaves it at that.
    pub(crate) fn begin_trial(&self, waits: bool) -> Option<bool> {
        let mut state = lock(&self.state);
        let begins = match state.trial {
            HostTrial::None => true,
            HostTrial::Failed(until) => waits || Instant::now() >= until,
            HostTrial::Begun | HostTrial::Good => false,
        };
        if begins {
            state.trial = HostTrial::Begun;
        }
        (!begins).then_some(state.trial == HostTrial::Good)
    }

    /// The end of a trial: whether bytes came, or it is not known.
    pub(crate) fn tried(&self, came: Option<bool>) {
        let mut state = lock(&self.state);
        state.trial = match came {
            Some(true) => HostTrial::Good,
            _ => HostTrial::Failed(Instant::now() + REST),
        };
        if came == Some(false) {
            let text = "the server says that bytes moved, and they did not arrive in host memory";
            let error = Error::new(ErrorKind::Corrupt, text);
            self.refuse(&mut state, NoSession { error, pause: DECLINED, is_no_nic: false });
        }
    }

    /// An error where the server gives sessions, and reads no memory by them.
    pub(crate) fn takes_writes(&self) -> Result<()> {
        match &lock(&self.state).no_writes {
            Some((until, error)) if Instant::now() < *until => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Why nothing goes by RDMA, where there is more to say than that this machine has none.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let state = lock(&self.state);
        let refused = state.refused.as_ref().filter(|refused| !refused.is_no_nic);
        refused.filter(|refused| Instant::now() < refused.until).map(|refused| refused.error.clone())
    }

    /// Whether it is known that this machine has no RDMA on the way to the server.
    pub(crate) fn has_no_nic(&self) -> bool {
        lock(&self.state).refused.as_ref().is_some_and(|refused| refused.is_no_nic)
    }

    /// Bytes of an operation at most.
    pub(crate) fn operation_bytes(&self) -> u64 {
        lock(&self.state).speaks.unwrap_or(u64::MAX)
    }

    /// The NIC, where one is in use.
    pub(crate) fn nic(&self) -> Option<String> {
        lock(&self.state).reached.as_ref().map(|reached| reached.domain.device().name.clone())
    }

    /// Starts an operation. It ends in any case, perhaps before this returns.
    pub(crate) fn start(&self, operation: Operation) {
        lock(&self.state).waiting.push_back(operation);
        self.pump();
    }

    fn connect(&self) -> Result<Session, NoSession> {
        let known = lock(&self.state).reached.clone();
        let reached = if let Some(reached) = known {
            reached
        } else {
            let new = Reached::new(&self.account, &self.site)?;
            lock(&self.state).reached.get_or_insert(new).clone()
        };
        reached.connect()
    }

    /// Nothing goes by RDMA for a while.
    fn refuse(&self, state: &mut State, why: NoSession) -> Error {
        let NoSession { error, pause, is_no_nic } = why;
        // The next one to ask opens the device anew.
        if state.sessions == 0 || matches!(Why::of(&error), Some(Why::DeviceRemoved)) {
            state.reached = None;
        }
        (state.speaks, state.trial) = (None, HostTrial::None);
        let error = error.with("server", self.site.name());
        state.refused = Some(Refused { error: error.clone(), until: Instant::now() + pause, is_no_nic });
        error
    }

    /// Ends operations whose keys nobody can use any more.
    fn end_held(&self) {
        let mut state = lock(&self.state);
        let over: Vec<_> = state.held.extract_if(.., |held| held.living.strong_count() == 0).collect();
        drop(state);
        for Held { region, operation, why, .. } in over {
            drop(region);
            operation.end(Err(why));
        }
    }

    fn pump(&self) {
        self.end_held();
        let mut state = lock(&self.state);
        // The thread that does it goes on.
        if std::mem::replace(&mut state.is_pumping, true) {
            return;
        }
        loop {
            let (step, dead) = self.next(&mut state);
            let is_over = matches!(step, Step::Nothing);
            state.is_pumping = !is_over;
            drop(state);
            dead.into_iter().for_each(end_session);
            match step {
                Step::Send(session, operation) => self.send(session, operation),
                Step::Connect => self.connect_beside(),
                Step::End(operation, why) => operation.end(Err(why)),
                Step::Nothing => return,
            }
            state = lock(&self.state);
        }
    }

    /// With sessions that cannot be used any more.
    fn next(&self, state: &mut State) -> (Step, Vec<Session>) {
        let mut dead = Vec::new();
        let step = self.next_beside(state, &mut dead);
        (step, dead)
    }

    fn next_beside(&self, state: &mut State, dead: &mut Vec<Session>) -> Step {
        let Some(mut operation) = state.waiting.pop_front() else { return Step::Nothing };
        if let Some(refused) = state.refused.as_ref().filter(|refused| Instant::now() < refused.until) {
            return Step::End(operation, NotMoved::Declined(refused.error.clone()));
        }
        while let Some(mut session) = state.idle.pop() {
            if session.is_alive() {
                return Step::Send(session, operation);
            }
            state.sessions -= 1;
            dead.push(session);
        }
        let is_last = operation.connects == CONNECTS;
        if is_last && state.sessions == 0 {
            let error = Error::new(ErrorKind::Io, "the server's sessions end before they are used");
            let error = self.refuse(state, NoSession { error, pause: REST, is_no_nic: false });
            return Step::End(operation, NotMoved::Declined(error));
        }
        let may_grow = state.sessions < MOST_SESSIONS
            && !is_last
            && state.grows_from.is_none_or(|from| Instant::now() >= from);
        if state.is_connecting || (state.sessions > 0 && !may_grow) {
            state.waiting.push_front(operation);
            return Step::Nothing;
        }
        operation.connects += 1;
        state.waiting.push_front(operation);
        state.is_connecting = true;
        state.sessions += 1;
        Step::Connect
    }

    /// A thread makes one more session.
    fn connect_beside(&self) {
        let Some(peer) = self.myself.upgrade() else { return };
        let begun = threads::spawn("forebay-s3-rdma", move || peer.connected(peer.connect()));
        if let Err(error) = begun {
            let error = Error::from_io(&error, "cannot start a thread");
            self.connected(Err(NoSession { error, pause: REST, is_no_nic: false }));
        }
    }

    /// A session that was made, unless its domain is not used any more.
    fn taken(state: &State, made: Result<Session, NoSession>) -> Result<Session, NoSession> {
        let session = made?;
        if state.takes(&session) {
            return Ok(session);
        }
        end_session(session);
        let error = Why::DeviceRemoved.error("the RDMA device was given up");
        Err(NoSession { error, pause: REST, is_no_nic: false })
    }

    fn connected(&self, made: Result<Session, NoSession>) {
        let mut state = lock(&self.state);
        state.is_connecting = false;
        match Self::taken(&state, made) {
            Ok(session) => {
                state.speaks = Some(session.most);
                state.idle.push(session);
            }
            Err(why) => {
                state.sessions -= 1;
                state.grows_from = Some(Instant::now() + REST);
                if state.sessions == 0 {
                    self.refuse(&mut state, why);
                }
            }
        }
        drop(state);
        self.pump();
    }

    fn send(&self, mut session: Session, operation: Operation) {
        session.touch();
        let Some(peer) = self.myself.upgrade() else { return };
        match operation.register(&session) {
            Ok((memory, region)) => {
                let (ask, network) = (operation.signed_ask(&mut session, memory), session.network.clone());
                let (head, document, came) = (None, Vec::new(), 0);
                let sent = Sent { peer, session, region, operation, head, document, came };
                network.start(ask, Body::None, Box::new(sent));
            }
            Err(error) => {
                self.give_back(session);
                operation.end(Err(NotMoved::Failed(error)));
            }
        }
    }

    /// The bytes are where they belong.
    pub(super) fn moved(
        &self,
        (session, mut region): Used,
        operation: Operation,
        (head, sum): (ReplyHead, Option<u64>),
    ) {
        // Where the key lives on, the connection ends in its place.
        if let Some(Err(error)) = region.as_mut().map(HostRegion::end) {
            return self.failed((session, region), operation, error);
        }
        if let Some(filled) = region.as_ref().filter(|_| operation.direction == Direction::Read) {
            filled.deliver();
            if sum.is_some_and(|sum| sum != filled.sum()) {
                return self.wrong((session, region), operation, "the bytes have another checksum");
            }
        }
        self.has_moved.store(true, Relaxed);
        self.give_back(session);
        operation.end(Ok(head));
        self.pump();
    }

    /// The server refused the request before a byte moved. Where its key has ended nothing of it can arrive, and the session goes on.
    pub(super) fn refused(&self, (session, mut region): Used, operation: Operation, why: NotMoved) {
        if region.as_mut().is_none_or(|region| region.end().is_err()) {
            return self.not_moved((session, region), operation, why);
        }
        self.give_back(session);
        operation.end(Err(why));
        self.pump();
    }

    /// A session has no operation any more.
    fn give_back(&self, mut session: Session) {
        session.touch();
        let mut state = lock(&self.state);
        if state.takes(&session) {
            return state.idle.push(session);
        }
        state.sessions -= 1;
        drop(state);
        end_session(session);
    }

    /// The reply says that nothing moved, or cannot be believed. The connection ends first, then the key, then the operation.
    pub(super) fn not_moved(&self, (session, region): Used, operation: Operation, why: NotMoved) {
        if let Some(operation) = self.close((session, region), operation) {
            operation.end(Err(why));
        }
        self.pump();
    }

    /// Ends the connection, then the key, and returns the operation. Where the key lives on it is good for all connections of its domain:
    /// they end, and the operation behind them.
    fn close(&self, (session, region): Used, operation: Operation) -> Option<Operation> {
        let living = session.living.clone();
        end_session(session);
        let kept = region.and_then(|mut region| region.end().err().map(|error| (region, error)));
        let mut state = lock(&self.state);
        state.sessions -= 1;
        let Some((region, error)) = kept else { return Some(operation) };
        let mut idle = Vec::new();
        if state.reached.as_ref().is_some_and(|reached| Arc::ptr_eq(&reached.living, &living)) {
            (state.reached, state.speaks, state.trial) = (None, None, HostTrial::None);
            idle = std::mem::take(&mut state.idle);
            state.sessions -= idle.len();
        }
        let why = NotMoved::Failed(error.with("server", self.site.name()));
        state.held.push(Held { living: Arc::downgrade(&living), region, operation, why });
        drop(state);
        idle.into_iter().for_each(end_session);
        None
    }

    /// No reply came, or an incomplete one.
    pub(super) fn failed(&self, used: Used, operation: Operation, error: Error) {
        self.not_moved(used, operation, NotMoved::Failed(error.with("server", self.site.name())));
    }

    /// The server has the session no more: another one is made, once.
    pub(super) fn lost(&self, used: Used, operation: Operation) {
        if operation.was_sent {
            return self.declined(used, operation, "session");
        }
        let mut state = lock(&self.state);
        // It has begun anew: it has none of the others either.
        let others = std::mem::take(&mut state.idle);
        state.sessions -= others.len();
        drop(state);
        others.into_iter().for_each(end_session);
        self.again(used, operation);
    }

    /// The session has ended, and another one is to move the bytes.
    pub(super) fn again(&self, used: Used, operation: Operation) {
        if let Some(mut operation) = self.close(used, operation) {
            operation.was_sent = true;
            lock(&self.state).waiting.push_front(operation);
        }
        self.pump();
    }

    /// The server does not move the bytes by RDMA.
    pub(super) fn declined(&self, used: Used, operation: Operation, reason: &str) {
        let error = Error::new(ErrorKind::Unsupported, "the server does not move the bytes by RDMA");
        let error = error.with("reason", reason);
        // Others may have the size that is asked for. A way that bytes have gone may be there again soon.
        let pause = match reason {
            "size" => None,
            "transfer" if self.has_moved.load(Relaxed) => Some(REST),
            _ => Some(DECLINED),
        };
        self.leave_alone(used, operation, error, pause);
    }

    /// The server's reply is not believed.
    pub(super) fn wrong(&self, used: Used, operation: Operation, why: &'static str) {
        let error = Error::new(ErrorKind::Corrupt, format!("the server's reply by RDMA is wrong: {why}"));
        self.leave_alone(used, operation, error, Some(DECLINED));
    }

    /// The server stored an object, and has no word of RDMA for it.
    pub(super) fn unknown(&self, used: Used, operation: Operation) {
        let error = Error::new(ErrorKind::Unsupported, "the server's reply to a PUT has no word of RDMA");
        lock(&self.state).no_writes =
            Some((Instant::now() + DECLINED, error.with("server", self.site.name())));
        self.not_moved(used, operation, NotMoved::Unknown);
    }

    fn leave_alone(&self, used: Used, operation: Operation, error: Error, pause: Option<Duration>) {
        let is_read = operation.direction == Direction::Read;
        let error = match pause {
            Some(pause) if is_read || error.kind() == ErrorKind::Corrupt => {
                let why = NoSession { error, pause, is_no_nic: false };
                self.refuse(&mut lock(&self.state), why)
            }
            pause => {
                let error = error.with("server", self.site.name());
                let until = pause.filter(|_| !is_read).map(|pause| (Instant::now() + pause, error.clone()));
                let mut state = lock(&self.state);
                state.no_writes = until.or_else(|| state.no_writes.take());
                error
            }
        };
        let why = NotMoved::Declined(error);
        if pause.is_none() {
            self.refused(used, operation, why);
        } else {
            self.not_moved(used, operation, why);
        }
    }
}

impl Drop for RdmaPeer {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.idle.drain(..).for_each(end_session);
    }
}

impl fmt::Debug for RdmaPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaPeer").field("site", &self.site).finish_non_exhaustive()
    }
}
