//! Clients of the process: files of one server share one, and it is kept for some seconds behind the last of them, with its
//! connections and its session. A program that opens one file after the other makes them once: each connection takes a port,
//! of which few are below 1024, and servers write down on stable storage which clients they have.
//!
//! Threads of the process's own end what was kept for long enough, one for each network namespace, which goes with the last of its
//! clients; at the end of the process the rest is ended. A forked child has none of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_sys::{forks, threads};

use crate::client::nfs_client::Client;
use crate::lock;
use crate::network::options::{Network, Options};
use crate::network::session::Server;
use crate::network::wire::Shared;
use crate::protocol::handle::{Limits, Version};
use crate::protocol::rpc::Credential;

/// Clients that are kept at most. One more ends the one that was kept first.
const MOST_KEPT: usize = 8;
/// Clients that wait for their end at most. Behind them a caller ends its own.
const MOST_ENDING: usize = 64;
/// How long the end of a client waits for its connections, and for each answer of its server, where no caller waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of the process waits for those of all sessions.
const AT_EXIT: Duration = Duration::from_millis(500);

/// The clients of one process. A child begins with a list of its own: the lock of its parent's may be held for ever.
struct Clients {
    /// The number of forks before it was made.
    birth: u64,
    state: Mutex<State>,
    /// A client is to end, or has ended.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    used: Vec<Used>,
    /// Those without a file, the oldest first.
    kept: Vec<Kept>,
    /// Network namespaces that have a thread.
    watched: Vec<Option<Network>>,
    /// Clients that threads are ending.
    ending: usize,
    is_over: bool,
}

/// A client that has files.
struct Used {
    key: Key,
    client: Weak<Client>,
}

/// One that has none.
struct Kept {
    server: Arc<Server>,
    /// `None`: nothing was found on the server.
    shared: Option<Arc<Shared>>,
    until: Instant,
}

/// What files that share a client have in common.
#[derive(PartialEq)]
struct Key {
    server: String,
    port: u16,
    version: Version,
    who: Credential,
    options: Options,
}

impl Key {
    fn of(server: &Server) -> Self {
        Self {
            server: server.name.clone(),
            port: server.port(),
            version: server.version,
            who: server.who.clone(),
            options: server.options.clone(),
        }
    }
}

/// A server that the process knows.
pub(crate) struct Known {
    pub(crate) server: Arc<Server>,
    /// None where nothing was found on it.
    pub(crate) client: Option<Arc<Client>>,
    /// It had no file any more.
    pub(crate) was_kept: bool,
}

impl Known {
    /// One that was not known.
    pub(crate) fn new(server: Server) -> Self {
        Self { server: Arc::new(server), client: None, was_kept: false }
    }

    /// Looks for something on the server, which is kept where it has answered, whatever it said.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Server) -> Result<T>) -> Result<T> {
        look(&self.server).inspect_err(|_| {
            if self.client.is_none() && !self.server.time_to_keep().is_zero() {
                keep_server(self.server.clone());
            }
        })
    }

    /// `None`: the server takes other calls than when it was kept. It is to be made anew, and this one ends.
    pub(crate) fn unless_outdated(self, limits: Limits) -> Option<Self> {
        match &self.client {
            Some(client) if self.was_kept && client.limits() != self.server.limits(limits) => {
                client.outdate();
                None
            }
            _ => Some(self),
        }
    }
}

static CLIENTS: AtomicPtr<Clients> = AtomicPtr::new(std::ptr::null_mut());

/// Those of this process, if it had any.
fn current() -> Option<&'static Clients> {
    // SAFETY: null, or what `clients` has leaked.
    let found = unsafe { CLIENTS.load(Ordering::Acquire).as_ref() };
    found.filter(|found| found.birth == forks::count())
}

/// Those of this process.
fn clients() -> &'static Clients {
    forks::watch();
    loop {
        if let Some(found) = current() {
            return found;
        }
        let before = CLIENTS.load(Ordering::Acquire);
        let (state, changed) = (Mutex::default(), Condvar::new());
        let new = Box::into_raw(Box::new(Clients { birth: forks::count(), state, changed }));
        if CLIENTS.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: it was made above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// The server of this name and port, as this user reaches it by these options.
pub(crate) fn known((name, port): (&str, u16), version: Version, options: &Options) -> Option<Known> {
    let key = Key {
        server: name.to_owned(),
        port,
        version,
        who: Credential::of_process(),
        options: options.clone(),
    };
    let mut state = lock(&clients().state);
    state.used.retain(|used| used.client.strong_count() > 0);
    let mut of_it = state.used.iter().filter(|used| used.key == key);
    // One that ends just now is not waited for.
    let client = of_it.find_map(|used| used.client.upgrade());
    if let Some(client) = client {
        drop(state);
        return Some(Known { server: client.server_of().clone(), client: Some(client), was_kept: false });
    }
    let index =
        state.kept.iter().position(|kept| kept.until > Instant::now() && Key::of(&kept.server) == key)?;
    let Kept { server, shared, .. } = state.kept.remove(index);
    let client = shared.map(|shared| Client::again(shared, forks::count()));
    if let Some(client) = &client {
        state.used.push(Used { key, client: Arc::downgrade(client) });
    }
    Some(Known { server, client, was_kept: true })
}

/// Whether there is one that has files, or had.
pub(crate) fn is_known((name, port): (&str, u16), version: Version, options: &Options) -> bool {
    // What was kept is kept on.
    known((name, port), version, options).is_some_and(|known| {
        if known.client.is_none() {
            keep_server(known.server);
            return false;
        }
        true
    })
}

/// A client that has files from now on.
pub(crate) fn add(client: &Arc<Client>) {
    let used = Used { key: Key::of(client.server_of()), client: Arc::downgrade(client) };
    lock(&clients().state).used.push(used);
}

/// A client has no file any more. One that is outdated is not used again.
pub(crate) fn keep(shared: Arc<Shared>, is_outdated: bool) {
    let server = shared.server.clone();
    let is_fit = !is_outdated && shared.has_slots();
    let until = Instant::now() + if is_fit { server.time_to_keep() } else { Duration::ZERO };
    clients().keep(Kept { server, shared: Some(shared), until });
}

/// A server on which nothing was found: what is looked for next may be there.
pub(crate) fn keep_server(server: Arc<Server>) {
    let until = Instant::now() + server.time_to_keep();
    clients().keep(Kept { server, shared: None, until });
}

impl Clients {
    /// Keeps a client until its time is over, or ends it now: where it has nothing that waits for its server, or no thread can do it.
    fn keep(&'static self, kept: Kept) {
        let is_due = kept.until <= Instant::now();
        // Over RDMA each connection has memory locked, of which there is little.
        if (is_due || kept.server.options.rdma.is_some())
            && let Some(shared) = &kept.shared
        {
            shared.close();
        }
        if is_due && !kept.server.has_session_to_end() {
            return;
        }
        end_at_exit();
        let network = kept.network();
        let mut state = lock(&self.state);
        if state.is_over || state.kept.len() >= MOST_ENDING {
            drop(state);
            return kept.end(Duration::ZERO);
        }
        state.kept.push(kept);
        let now = Instant::now();
        let more = state.kept.iter().filter(|kept| kept.until > now).count().saturating_sub(MOST_KEPT);
        for old in state.kept.iter_mut().filter(|kept| kept.until > now).take(more) {
            old.until = now;
        }
        let has_thread = state.watched.contains(&network);
        if !has_thread {
            state.watched.push(network);
        }
        drop(state);
        self.changed.notify_all();
        if !has_thread && threads::spawn("forebay-kept", move || self.watch(network)).is_err() {
            let mut state = lock(&self.state);
            state.watched.retain(|one| *one != network);
            let (ended, kept) =
                std::mem::take(&mut state.kept).into_iter().partition(|one| one.network() == network);
            state.kept = kept;
            drop(state);
            Vec::into_iter(ended).for_each(|kept: Kept| kept.end(Duration::ZERO));
        }
    }

    /// Ends what was kept for long enough, until there is nothing more. Connections that this takes are of the thread's own namespace.
    fn watch(&self, network: Option<Network>) {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            let is_due = |kept: &Kept| kept.network() == network && kept.until <= now;
            if let Some(index) = state.kept.iter().position(is_due) {
                state = self.end(state, index, PATIENCE);
                continue;
            }
            let next =
                state.kept.iter().filter(|kept| kept.network() == network).map(|kept| kept.until).min();
            let Some(next) = next.filter(|_| !state.is_over) else {
                state.watched.retain(|one| *one != network);
                return;
            };
            state = wait(&self.changed, state, next - now);
        }
    }

    /// Ends one, without the lock.
    fn end<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        index: usize,
        patience: Duration,
    ) -> MutexGuard<'a, State> {
        let kept = state.kept.remove(index);
        state.ending += 1;
        drop(state);
        kept.server.set_patience(patience);
        // A panic ends here: others are to end, too.
        let _ = catch_unwind(AssertUnwindSafe(|| kept.end(patience)));
        let mut state = lock(&self.state);
        state.ending -= 1;
        self.changed.notify_all();
        state
    }

    /// The process ends: so does all that is kept, as far as there is time.
    fn end_all(&self) {
        let until = Instant::now() + AT_EXIT;
        let mut state = lock(&self.state);
        state.is_over = true;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.kept.is_empty() && state.ending == 0 {
                return;
            }
            state = if state.kept.is_empty() {
                wait(&self.changed, state, left)
            } else {
                self.end(state, 0, left / 2)
            };
        }
    }
}

fn wait<'a>(changed: &Condvar, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
    changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
}

impl Kept {
    fn network(&self) -> Option<Network> {
        self.server.options.network
    }

    /// Ends it: its connections first, then, with its last thread or here, its session.
    fn end(self, limit: Duration) {
        if let Some(shared) = self.shared {
            shared.close();
        }
        let until = Instant::now() + limit;
        while Arc::strong_count(&self.server) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Has the end of the process end what is kept.
fn end_at_exit() {
    extern "C" fn at_exit() {
        let _ = catch_unwind(|| current().map(Clients::end_all));
    }
    static ONCE: Once = Once::new();
    // SAFETY: the function takes nothing and does not unwind. Where it cannot be registered, servers end sessions with their leases.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
}
