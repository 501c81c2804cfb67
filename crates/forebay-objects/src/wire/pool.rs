//! What the threads of a network share: calls that wait, and connections without a call.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use forebay_remote::endpoint::resolve;
use forebay_remote::silence::SilenceClock;
use forebay_sys::threads;

use super::NetworkFacts;
use super::addresses::AddressBook;
use super::call::Heads;
use super::certificates::TlsClient;
use super::job::Job;
use super::line::Line;
use super::site::Site;
use super::thread_list::{ThreadList, ThreadPlace};
use crate::lock;

/// Connections at first.
const CONNECTIONS: usize = 16;
/// The most connections.
const MOST_CONNECTIONS: usize = 256;

/// How long the reply to a call is waited for that takes long. What a machine that is gone does not answer ends before, by TCP.
pub(crate) const LONG_WORK: Duration = Duration::from_mins(10);

/// How long servers of this process may be silent, in ms.
static SILENCE: AtomicU64 = AtomicU64::new(30_000);

/// Has connections that are made from now on wait for silent servers as long: for tests.
#[doc(hidden)]
pub fn silent_after(limit: Duration) {
    SILENCE.store(limit.as_millis() as u64, Relaxed);
}

/// How long a server is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For a connection to one address.
    pub(super) connect: Duration,
    /// For the next byte of a reply, and for room for the next byte of a request.
    pub(super) silence: Duration,
    /// The same where the server works meanwhile ([`Ask::takes_long`](super::call::Ask::takes_long)).
    pub(super) work: Duration,
    /// How long connections without a call are kept.
    pub(super) keep: Duration,
    /// How long a thread without a call stays.
    pub(super) thread: Duration,
    /// Where all connections lead, in place of the addresses of the site's name.
    pub(super) to: Option<SocketAddr>,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: seconds(5),
            silence: Duration::from_millis(SILENCE.load(Relaxed)),
            work: LONG_WORK,
            keep: seconds(20),
            thread: seconds(5),
            to: None,
        }
    }
}

/// What the threads share.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) heads: Arc<dyn Heads>,
    pub(super) site: Site,
    pub(super) clock: Arc<SilenceClock>,
    pub(super) limits: Limits,
    /// Bytes of bodies that were copied.
    pub(super) copied: AtomicU64,
    tls: OnceLock<Result<Arc<TlsClient>>>,
    state: Mutex<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    queue: VecDeque<Job>,
    /// Calls whose heads wait for keys.
    unsigned: VecDeque<Job>,
    has_signer: bool,
    /// Connections without a call, the one that was used last behind the others.
    kept: Vec<Line>,
    /// All connections, also those that are being made.
    open: usize,
    most: usize,
    addresses: AddressBook,
    /// That of the last connection.
    transport: &'static str,
    threads: ThreadList,
    is_over: bool,
}

/// What a thread does next.
pub(super) enum NextCall {
    /// A call on a connection.
    On(Job, Line),
    /// A call on a new connection to an address.
    New(Job, SocketAddr),
}

impl Pool {
    pub(super) fn new(heads: Arc<dyn Heads>, site: Site, limits: Limits) -> Arc<Self> {
        let state = PoolState {
            queue: VecDeque::new(),
            unsigned: VecDeque::new(),
            has_signer: false,
            kept: Vec::new(),
            open: 0,
            most: CONNECTIONS,
            addresses: AddressBook::default(),
            transport: "",
            threads: ThreadList::default(),
            is_over: false,
        };
        let (clock, copied) = (SilenceClock::new(site.host.clone()), AtomicU64::new(0));
        Arc::new(Self { heads, site, clock, limits, copied, tls: OnceLock::new(), state: Mutex::new(state) })
    }

    /// What makes connections by TLS, where the site has it. The first call reads certificates.
    pub(super) fn tls(&self) -> Result<Option<Arc<TlsClient>>> {
        if !self.site.tls {
            return Ok(None);
        }
        self.tls.get_or_init(|| TlsClient::new(&self.site).map(Arc::new)).clone().map(Some)
    }

    /// Allows this number of connections at a time.
    pub(super) fn allow(&self, connections: usize) {
        let mut state = lock(&self.state);
        state.most = connections.clamp(1, MOST_CONNECTIONS);
        state.threads.wake_all();
    }

    /// A call waits from now on. True: the caller starts a thread.
    pub(super) fn push(&self, job: Job) -> bool {
        let mut state = lock(&self.state);
        state.queue.push_back(job);
        !state.threads.wake_one() && state.threads.begins()
    }

    /// The same for a call that waited already.
    pub(super) fn push_again(&self, job: Job) {
        let mut state = lock(&self.state);
        state.queue.push_front(job);
        state.threads.wake_one();
    }

    /// A thread was started; `None`: it cannot be.
    pub(super) fn started(&self, place: Option<Arc<ThreadPlace>>) {
        lock(&self.state).threads.started(place);
    }

    /// How many more threads the caller is to start, where this many CPUs are idle.
    pub(super) fn wants_threads(&self, idle: usize) -> usize {
        let mut state = lock(&self.state);
        let more = if state.is_over { 0 } else { state.threads.growth().min(idle) };
        if more > 0 && state.threads.begins() { more } else { 0 }
    }

    /// A thread has ended by a panic. Whether the caller starts another one.
    pub(super) fn lost_thread(&self, place: &Arc<ThreadPlace>) -> bool {
        let mut state = lock(&self.state);
        state.threads.remove(place);
        state.threads.wake_all();
        let is_needed = !state.queue.is_empty() || state.has_signer;
        state.threads.is_empty() && is_needed && state.threads.begins()
    }

    /// Removes a thread that has no connection, unless there is something for it to do.
    pub(super) fn remove_thread(&self, place: &Arc<ThreadPlace>) -> bool {
        let mut state = lock(&self.state);
        let is_last = state.threads.len() == 1;
        // Calls that are signed beside the threads go to one of them.
        let is_idle = state.unsigned.is_empty() && state.kept.is_empty() && !state.has_signer;
        let is_needed = !state.queue.is_empty() || is_last && !is_idle;
        if !is_needed || state.is_over {
            state.threads.remove(place);
        }
        !is_needed || state.is_over
    }

    /// The network is not used any more.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        state.threads.wake_all();
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).is_over
    }

    /// All calls that have no connection.
    pub(super) fn waiting(&self, takes: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut state = lock(&self.state);
        let (taken, stays) = state.queue.drain(..).partition::<Vec<_>, _>(|job| takes(job));
        state.queue = stays.into();
        taken
    }

    /// Ends all calls that have no connection.
    pub(super) fn end_waiting(&self, error: &Error) {
        for job in self.waiting(|_| true) {
            job.end(Err(error.clone()));
        }
    }

    /// What this thread does next, where it can do something.
    pub(super) fn next(self: &Arc<Self>, place: &ThreadPlace) -> Option<NextCall> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        self.move_unsigned(&mut state);
        state.queue.front()?;
        if state.threads.gives_away(place) {
            return None;
        }
        while let Some(mut line) = state.kept.pop() {
            let is_wanted = state.queue.front().is_some_and(|job| job.resent == 0);
            if is_wanted && line.is_usable(now) {
                return state.queue.pop_front().map(|job| NextCall::On(job, line));
            }
            state.closed(line.at);
        }
        if state.addresses.asks(now) {
            self.look_up(&mut state);
        }
        if state.open >= state.most {
            return None;
        }
        let at = state.addresses.next(now)?;
        state.open += 1;
        state.queue.pop_front().map(|job| NextCall::New(job, at))
    }

    /// The next call for a connection that was used just now, where it needs no other.
    pub(super) fn next_at_hand(self: &Arc<Self>, place: &ThreadPlace) -> Option<Job> {
        let mut state = lock(&self.state);
        self.move_unsigned(&mut state);
        if state.open > state.most || state.queue.front()?.resent > 0 || state.threads.gives_away(place) {
            return None;
        }
        state.queue.pop_front()
    }

    /// A connection has no call any more.
    pub(super) fn keep(&self, mut line: Line, time: Duration) {
        line.until = Instant::now() + time;
        line.is_kept = true;
        let mut state = lock(&self.state);
        if state.open > state.most || state.is_over {
            state.closed(line.at);
            return;
        }
        state.kept.push(line);
        state.wake_for_others();
    }

    /// A connection to this address has ended.
    pub(super) fn closed(&self, at: SocketAddr) {
        lock(&self.state).closed(at);
    }

    /// Closes connections that were kept for long enough.
    pub(super) fn close_old(&self, now: Instant) {
        let mut state = lock(&self.state);
        let is_over = state.is_over;
        let old = state.kept.extract_if(.., |line| line.until <= now || is_over).collect::<Vec<_>>();
        for line in old {
            state.closed(line.at);
        }
    }

    /// An address took no connection. How many addresses there are.
    pub(super) fn refused(&self, at: SocketAddr, why: &Error) -> usize {
        let mut state = lock(&self.state);
        state.addresses.refused(at, why, Instant::now());
        state.addresses.len()
    }

    /// An address took a connection, by this transport.
    pub(super) fn connected(&self, at: SocketAddr, transport: &'static str) {
        let mut state = lock(&self.state);
        state.addresses.connected(at);
        state.transport = transport;
    }

    pub(super) fn facts(&self) -> NetworkFacts {
        let (state, now) = (lock(&self.state), Instant::now());
        let connections = state.addresses.in_use().iter().map(|(_, open)| open).sum();
        let left_out = state.addresses.left_out(now);
        NetworkFacts { transport: state.transport, connections, left_out, silences: self.clock.silences() }
    }

    /// Looks the name up beside the threads; what is an address needs none.
    fn look_up(self: &Arc<Self>, state: &mut PoolState) {
        if let Some(to) = self.limits.to {
            return state.addresses.found(&[to], Instant::now());
        }
        let (host, port) = match &self.site.proxy {
            Some(proxy) => (proxy.host.clone(), proxy.port),
            None => (self.site.host.clone(), self.site.port),
        };
        if let Ok(address) = host.parse() {
            return state.addresses.found(&[SocketAddr::new(address, port)], Instant::now());
        }
        let pool = self.clone();
        let looks = move || pool.looked_up(resolve(&host, port));
        if threads::spawn("forebay-lookup", looks).is_err() {
            // The next call tries again.
            state.addresses.found(&[], Instant::now());
        }
    }

    pub(super) fn looked_up(&self, found: Result<Vec<SocketAddr>>) {
        let mut state = lock(&self.state);
        state.addresses.found(found.as_deref().unwrap_or_default(), Instant::now());
        state.threads.wake_all();
        let Err(error) = found else { return };
        // Addresses that were found before still serve.
        if state.addresses.len() == 0 {
            drop(state);
            self.end_waiting(&error);
        }
    }

    /// Calls whose heads would wait for keys are signed beside the threads.
    fn move_unsigned(self: &Arc<Self>, state: &mut PoolState) {
        if state.queue.iter().all(|job| job.head.is_some()) || self.heads.are_keys_at_hand() {
            return;
        }
        let (unsigned, signed) = state.queue.drain(..).partition::<Vec<_>, _>(|job| job.head.is_none());
        state.queue = signed.into();
        state.unsigned.extend(unsigned);
        let pool = self.clone();
        if !state.has_signer {
            state.has_signer = threads::spawn("forebay-sign", move || pool.sign()).is_ok();
        }
        if !state.has_signer {
            // Without a thread the heads are made, and keys waited for, on this one.
            let unsigned = std::mem::take(&mut state.unsigned);
            state.queue.extend(unsigned);
        }
    }

    /// Signs what waits.
    fn sign(&self) {
        loop {
            let mut state = lock(&self.state);
            let Some(mut job) = state.unsigned.pop_front() else {
                state.has_signer = false;
                return;
            };
            drop(state);
            match self.heads.head(&job.ask, &job.body) {
                Ok(head) => {
                    job.head = Some(head);
                    self.push_again(job);
                }
                Err(error) => job.end(Err(error)),
            }
        }
    }
}

impl PoolState {
    fn closed(&mut self, at: SocketAddr) {
        self.open -= 1;
        self.addresses.closed(at);
        self.wake_for_others();
    }

    /// A connection is free: calls that wait for one go on.
    fn wake_for_others(&self) {
        if !self.queue.is_empty() && self.threads.len() > 1 {
            self.threads.wake_one();
        }
    }
}

#[cfg(test)]
impl Pool {
    /// The name has these addresses.
    pub(super) fn know(&self, addresses: &[SocketAddr]) {
        lock(&self.state).addresses.found(addresses, Instant::now());
    }

    /// All threads are busy, or none is.
    pub(super) fn set_busy(&self, is_busy: bool) {
        lock(&self.state).threads.set_busy(is_busy);
    }

    pub(super) fn in_use(&self) -> Vec<(SocketAddr, usize)> {
        lock(&self.state).addresses.in_use()
    }

    pub(super) fn has_threads(&self) -> bool {
        !lock(&self.state).threads.is_empty()
    }
}
