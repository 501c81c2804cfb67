//! The server of an endpoint: whether it takes RDMA, by which dialect, and for how long it is left alone.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::OfProcess;
use forebay_source::Direction;
use forebay_sys::threads;
use forebay_verbs::{Domain, Why};

use super::dialect::{Dialect, End, Ended};
use super::hipobj::Hipobj;
use super::lanes::{Lanes, MOST_LANES, Next};
use super::memory::HostRegion;
use super::operation::{NotMoved, Operation};
use super::rc1::Rc1;
use super::reached::{DECLINED, NoSession, REST, Reached};
use super::wanted::Wanted;
use crate::account::Account;
use crate::endpoint::Endpoint;
use crate::lock;
use crate::wire::call::ReplyHead;
use crate::wire::site::Site;

/// The server of an endpoint.
pub(crate) struct RdmaPeer {
    myself: Weak<Self>,
    account: Arc<Account>,
    site: Site,
    state: Mutex<State>,
    lanes: Lanes,
    /// One thread asks.
    turn: Mutex<()>,
    /// Bytes have moved by RDMA.
    has_moved: AtomicBool,
}

#[derive(Default)]
struct State {
    reached: Option<Reached>,
    /// How it moves bytes.
    speaks: Option<Arc<dyn Dialect>>,
    /// The dialect that it spoke last, for receipts.
    name: Option<&'static str>,
    held: Vec<Held>,
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
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum HostTrial {
    #[default]
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

/// A dialect that is not spoken any more. Its sessions end where this is dropped, which is not under the lock.
type Left = Option<Arc<dyn Dialect>>;

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
            lanes: Lanes::default(),
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
        let nic = self.nic().map_or(String::new(), |nic| format!(", NIC {nic}"));
        self.way_to_server() + &nic
    }

    /// The same for those that name the NIC themselves.
    pub(crate) fn way_to_server(&self) -> String {
        format!("S3 by RDMA, {}, server {}", self.dialect(), self.site.name())
    }

    /// The dialect that the server speaks, or spoke.
    pub(crate) fn dialect(&self) -> &'static str {
        lock(&self.state).name.unwrap_or("no dialect")
    }

    /// Whether bytes go by RDMA: the domain in which memory is to be registered. Where that is not known the server is asked: for a session,
    /// and by the dialects without sessions for the bytes wanted.
    pub(crate) fn ask(&self, wanted: &Wanted) -> Result<Arc<dyn Domain>> {
        if let Some(known) = self.known() {
            return known;
        }
        let _turn = lock(&self.turn);
        if let Some(known) = self.known() {
            return known;
        }
        let mut made = self.find(wanted);
        let mut state = lock(&self.state);
        // Memory waits for the end of that way to the server: it is not used again.
        while let Ok(dialect) = &made
            && state.held.iter().any(|held| held.living.ptr_eq(&dialect.reached().living()))
        {
            state.reached = None;
            drop(state);
            drop(made);
            self.end_held();
            made = self.find(wanted);
            state = lock(&self.state);
        }
        match made {
            Ok(dialect) => {
                let domain = dialect.reached().domain.clone();
                state.reached = Some(dialect.reached().clone());
                (state.name, state.speaks, state.refused) = (Some(dialect.name()), Some(dialect), None);
                Ok(domain)
            }
            Err(why) => {
                state.reached = None;
                let (error, left) = self.refuse(&mut state, why);
                drop(state);
                drop(left);
                self.end_held();
                Err(error)
            }
        }
    }

    /// All dialects that this client knows, and why the server does not speak one, by asking anew. An error: this machine has no way to it.
    pub(crate) fn dialects(&self, wanted: &Wanted) -> Result<Vec<(&'static str, Result<()>)>> {
        let _turn = lock(&self.turn);
        let known = lock(&self.state).reached.clone();
        let reached = match known {
            Some(reached) => reached,
            None => Reached::new(&self.account, &self.site, 2).map_err(|why| why.error)?,
        };
        let said = |spoken: Result<(), NoSession>| spoken.map_err(|why| why.error);
        Ok(vec![
            ("rc1", said(Rc1::new(&reached).map(drop))),
            (forebay_s3_rdma::hipobj::NAME, said(Hipobj::new(&reached, wanted).map(drop))),
        ])
    }

    /// The dialect that the server speaks: rc1 is asked for first, which moves bytes with one request.
    fn find(&self, wanted: &Wanted) -> Result<Arc<dyn Dialect>, NoSession> {
        let known = lock(&self.state).reached.clone();
        let reached = match known {
            Some(reached) => reached,
            None => Reached::new(&self.account, &self.site, 2 * MOST_LANES)?,
        };
        let why = match Rc1::new(&reached) {
            Ok(rc1) => return Ok(Arc::new(rc1)),
            Err(why) if why.is_not_spoken => why,
            Err(why) => return Err(why),
        };
        match Hipobj::new(&reached, wanted) {
            Ok(hipobj) => Ok(Arc::new(hipobj)),
            Err(other) if other.is_not_spoken => Err(why),
            Err(other) => Err(other),
        }
    }

    /// Whether bytes go by RDMA, if that was found out.
    pub(crate) fn known(&self) -> Option<Result<Arc<dyn Domain>>> {
        let state = lock(&self.state);
        if let Some(refused) = state.refused.as_ref().filter(|refused| Instant::now() < refused.until) {
            return Some(Err(refused.error.clone()));
        }
        state.speaks.as_ref().map(|dialect| Ok(dialect.reached().domain.clone()))
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
            let why = NoSession::of_server(Error::new(ErrorKind::Corrupt, text), DECLINED);
            let (_, left) = self.refuse(&mut state, why);
            drop(state);
            drop(left);
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

    /// Whether parts of uploads can go by RDMA, as far as it is known.
    pub(crate) fn takes_parts(&self) -> bool {
        lock(&self.state).speaks.as_ref().is_none_or(|dialect| dialect.takes_parts())
    }

    /// Bytes of an operation at most.
    pub(crate) fn operation_bytes(&self) -> u64 {
        lock(&self.state).speaks.as_ref().map_or(u64::MAX, |dialect| dialect.most_bytes())
    }

    /// The NIC, where one is in use.
    fn nic(&self) -> Option<String> {
        lock(&self.state).reached.as_ref().map(|reached| reached.domain.device().name.clone())
    }

    /// Why the server has given fewer sessions than could be used.
    pub(crate) fn shortage(&self) -> Option<Error> {
        lock(&self.state).speaks.as_ref().and_then(|dialect| dialect.shortage())
    }

    /// Starts an operation. It ends in any case, perhaps before this returns.
    pub(crate) fn start(&self, operation: Operation) {
        if !self.lanes.push(operation) {
            return;
        }
        let Some(peer) = self.myself.upgrade() else { return };
        let begun = threads::spawn("forebay-s3-rdma", move || Lane { peer, is_over: false }.run());
        if let Err(error) = begun {
            let error = Error::from_io(&error, "cannot start a thread");
            for operation in self.lanes.ended() {
                operation.end(Err(NotMoved::Failed(error.clone())));
            }
        }
    }

    fn run(&self, operation: Operation) {
        let state = lock(&self.state);
        let dialect = state.speaks.clone();
        let why = state.refused.as_ref().map(|refused| refused.error.clone());
        drop(state);
        let Some(dialect) = dialect else {
            let none = || Error::new(ErrorKind::Unsupported, "the server was not asked for RDMA");
            return operation.end(Err(NotMoved::Declined(why.unwrap_or_else(none))));
        };
        if let Err(error) = operation.check(&dialect.reached().domain) {
            return operation.end(Err(NotMoved::Failed(error)));
        }
        let ended = dialect.transfer(&operation);
        self.ended(dialect, operation, ended);
        self.end_held();
    }

    fn ended(&self, dialect: Arc<dyn Dialect>, operation: Operation, ended: Ended) {
        let end = self.noted(&operation, &dialect, ended.end);
        let Some(region) = ended.kept else {
            drop(dialect);
            return operation.end(end);
        };
        // Its key is good for all connections of its domain: they end, and the operation behind them.
        let none = || NotMoved::Failed(Error::new(ErrorKind::Internal, "memory is kept without a reason"));
        let (living, why) = (dialect.reached().living(), end.err().unwrap_or_else(none));
        let mut state = lock(&self.state);
        let left = Self::leave(&mut state, dialect.reached());
        state.held.push(Held { living, region, operation, why });
        drop(state);
        drop((left, dialect));
    }

    /// What there is to say to the caller. What it says of other operations is remembered.
    fn noted(
        &self,
        operation: &Operation,
        dialect: &Arc<dyn Dialect>,
        end: End,
    ) -> Result<ReplyHead, NotMoved> {
        match end {
            End::Moved(head) => {
                self.has_moved.store(true, Relaxed);
                Ok(head)
            }
            End::Not(NotMoved::Failed(error)) => {
                if matches!(Why::of(&error), Some(Why::DeviceRemoved)) {
                    self.forget(dialect);
                }
                Err(NotMoved::Failed(error.with("server", self.site.name())))
            }
            End::Not(why) => Err(why),
            End::Declined(reason) => Err(NotMoved::Declined(self.declined(operation, dialect, reason))),
            End::Wrong(why) => {
                let text = format!("the server's reply by RDMA is wrong: {why}");
                let why = NoSession::of_server(Error::new(ErrorKind::Corrupt, text), DECLINED);
                Err(NotMoved::Declined(self.refused_by(dialect, why)))
            }
            End::Unknown => {
                let text = "the server's reply to a PUT has no word of RDMA";
                self.no_writes(Error::new(ErrorKind::Unsupported, text), DECLINED);
                Err(NotMoved::Unknown)
            }
            End::NoSession(why) => {
                let error = self.refused_by(dialect, why);
                self.forget(dialect);
                Err(NotMoved::Declined(error))
            }
        }
    }

    /// The server does not move the bytes by RDMA.
    fn declined(&self, operation: &Operation, dialect: &Arc<dyn Dialect>, reason: &'static str) -> Error {
        let error = Error::new(ErrorKind::Unsupported, "the server does not move the bytes by RDMA");
        let error = error.with("reason", reason);
        // A way that bytes have gone may be there again soon.
        let pause = match reason {
            // It says no more than that of the object and its request.
            "size" | "headers" => return error.with("server", self.site.name()),
            "transfer" if self.has_moved.load(Relaxed) => REST,
            _ => DECLINED,
        };
        if operation.direction == Direction::Write {
            return self.no_writes(error, pause);
        }
        self.refused_by(dialect, NoSession::of_server(error, pause))
    }

    fn no_writes(&self, error: Error, pause: Duration) -> Error {
        let error = error.with("server", self.site.name());
        lock(&self.state).no_writes = Some((Instant::now() + pause, error.clone()));
        error
    }

    /// Nothing goes by RDMA for a while, unless the server was asked anew meanwhile.
    fn refused_by(&self, dialect: &Arc<dyn Dialect>, why: NoSession) -> Error {
        let mut state = lock(&self.state);
        if state.speaks.as_ref().is_some_and(|speaks| !Arc::ptr_eq(speaks, dialect)) {
            return why.error.with("server", self.site.name());
        }
        let (error, left) = self.refuse(&mut state, why);
        drop(state);
        drop(left);
        error
    }

    fn refuse(&self, state: &mut State, why: NoSession) -> (Error, Left) {
        let NoSession { error, pause, is_no_nic, .. } = why;
        if matches!(Why::of(&error), Some(Why::DeviceRemoved)) {
            state.reached = None;
        }
        state.trial = HostTrial::None;
        let error = error.with("server", self.site.name());
        state.refused = Some(Refused { error: error.clone(), until: Instant::now() + pause, is_no_nic });
        (error, state.speaks.take())
    }

    /// The way to the server is not used any more. The next one to ask opens the device anew.
    fn leave(state: &mut State, reached: &Reached) -> Left {
        if !state.reached.as_ref().is_some_and(|known| known.is(reached)) {
            return None;
        }
        (state.reached, state.trial) = (None, HostTrial::None);
        state.speaks.take()
    }

    fn forget(&self, dialect: &Arc<dyn Dialect>) {
        let left = Self::leave(&mut lock(&self.state), dialect.reached());
        drop(left);
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

    /// Whether there are sessions that somebody has to look after.
    fn look_after(&self) -> bool {
        let dialect = lock(&self.state).speaks.clone();
        let Some(dialect) = dialect else { return false };
        dialect.look_after().unwrap_or_else(|_| {
            self.forget(&dialect);
            false
        })
    }
}

/// A thread that does operations.
struct Lane {
    peer: Arc<RdmaPeer>,
    is_over: bool,
}

impl Lane {
    fn run(mut self) {
        let (mut looks, mut last) = (true, Instant::now());
        loop {
            match self.peer.lanes.next(looks, last) {
                Next::Run(operation) => {
                    self.peer.run(*operation);
                    (looks, last) = (true, Instant::now());
                }
                Next::LookAround => looks = self.peer.look_after(),
                Next::End => {
                    self.is_over = true;
                    return;
                }
            }
        }
    }
}

impl Drop for Lane {
    /// An answer of a caller's may panic: others have their end.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let error = Error::new(ErrorKind::Internal, "a thread of RDMA has ended");
        for operation in self.peer.lanes.ended() {
            operation.end(Err(NotMoved::Failed(error.clone())));
        }
    }
}

impl fmt::Debug for RdmaPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaPeer").field("site", &self.site).finish_non_exhaustive()
    }
}
