//! Sessions: connections to clients, each bound to the account that made it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_s3_rdma::Refusal;
use forebay_s3_rdma::rc1::SessionId;
use forebay_verbs::QueueEnd;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::runtime::Handle;

use super::rail::Rail;
use super::wire::Wire;

/// Sessions of all accounts.
const SESSIONS: usize = 1024;

/// What sessions an account may have.
#[derive(Clone, Copy)]
pub(crate) struct SessionLimits {
    pub(crate) idle_time: Duration,
    pub(crate) each: usize,
}

/// Random bytes for a name.
pub(super) fn random() -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok().map(|()| bytes)
}

/// A session.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) access_key: String,
    /// Held during a transfer: a session has one at a time. It goes before its NIC does.
    pub(crate) wire: Arc<tokio::sync::Mutex<Wire>>,
    pub(crate) rail: Arc<Rail>,
    /// The client's.
    end: QueueEnd,
    used: Mutex<Instant>,
    /// The highest number of a request.
    number: AtomicU64,
    /// Transfers by it stop with the next piece.
    has_ended: AtomicBool,
}

impl Session {
    pub(super) fn new(
        id: SessionId,
        access_key: &str,
        (rail, wire): (Arc<Rail>, Wire),
        end: QueueEnd,
    ) -> Self {
        let wire = Arc::new(tokio::sync::Mutex::new(wire));
        let (access_key, used) = (access_key.to_owned(), Mutex::new(Instant::now()));
        let (number, has_ended) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { id, access_key, wire, rail, end, used, number, has_ended }
    }

    /// It was ended, or its account has gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Relaxed)
    }

    /// Whether a request with this number is new: one that comes again, or late, would change memory that the client has back.
    pub(crate) fn is_new(&self, number: u64) -> bool {
        self.number.fetch_max(number, Relaxed) < number
    }

    /// It begins to be idle now.
    pub(crate) fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self, limit: Duration) -> bool {
        self.used().elapsed() >= limit && self.wire.try_lock().is_ok()
    }
}

impl Drop for Session {
    /// Its queue pair may take a while to end, and threads of the runtime do not wait.
    fn drop(&mut self) {
        if let Ok(runtime) = Handle::try_current() {
            let last = (Arc::clone(&self.wire), Arc::clone(&self.rail));
            runtime.spawn_blocking(move || drop(last));
        }
    }
}

/// All sessions.
pub(super) struct Sessions {
    limits: SessionLimits,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    sessions: HashMap<SessionId, Arc<Session>>,
    /// Those that are being made, by their accounts.
    coming: HashMap<String, usize>,
}

impl Known {
    /// The account's session that was idle for longest.
    fn take_idle(&mut self, access_key: &str) -> Option<Arc<Session>> {
        let own = self.sessions.values().filter(|one| one.access_key == access_key);
        let id = own.filter(|one| one.is_idle(Duration::ZERO)).min_by_key(|one| one.used())?.id;
        self.take(id)
    }

    fn take(&mut self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.sessions.remove(&id)?;
        session.has_ended.store(true, Relaxed);
        Some(session)
    }

    /// Whether the account has a session with this queue end.
    fn has(&self, access_key: &str, end: &QueueEnd) -> bool {
        let of_end = |one: &Arc<Session>| {
            (one.end.gid, one.end.number, one.end.first) == (end.gid, end.number, end.first)
        };
        self.sessions.values().any(|one| one.access_key == access_key && of_end(one))
    }
}

/// Room for a session that is being made.
pub(super) struct Seat<'a> {
    all: &'a Sessions,
    access_key: String,
}

impl Sessions {
    pub(super) fn new(limits: SessionLimits) -> Self {
        Self { limits, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for one more of the account's. A copy of a request that made one before makes no other.
    pub(super) fn reserve(&self, access_key: &str, end: &QueueEnd) -> Result<Seat<'_>, Refusal> {
        self.sweep(|_| true);
        let mut known = self.known();
        if known.has(access_key, end) {
            return Err(Refusal::Malformed("the queue end has a session"));
        }
        let own = known.sessions.values().filter(|one| one.access_key == access_key).count();
        let own = own + known.coming.get(access_key).copied().unwrap_or_default();
        let all = known.sessions.len() + known.coming.values().sum::<usize>();
        // A program that ends does not end its sessions: the longest idle one gives way.
        let gone = if own >= self.limits.each || all >= SESSIONS {
            Some(known.take_idle(access_key).ok_or(Refusal::Limits)?)
        } else {
            None
        };
        *known.coming.entry(access_key.to_owned()).or_default() += 1;
        drop(known);
        drop(gone);
        Ok(Seat { all: self, access_key: access_key.to_owned() })
    }

    pub(super) fn find(&self, access_key: &str, id: SessionId) -> Result<Option<Arc<Session>>, Refusal> {
        let Some(session) = self.known().sessions.get(&id).cloned() else { return Ok(None) };
        if session.access_key != access_key {
            return Err(Refusal::Forbidden("the session is another account's"));
        }
        if session.is_idle(self.limits.idle_time) {
            self.end(id);
            return Ok(None);
        }
        session.touch();
        Ok(Some(session))
    }

    pub(super) fn end(&self, id: SessionId) {
        let ended = self.known().take(id);
        drop(ended);
    }

    pub(super) fn sweep(&self, is_known: impl Fn(&str) -> bool) {
        let limit = self.limits.idle_time;
        let ended: Vec<_> = {
            let mut known = self.known();
            let is_over = |session: &Session| session.is_idle(limit) || !is_known(&session.access_key);
            known.sessions.extract_if(|_, session| is_over(session)).collect()
        };
        for (_, session) in &ended {
            session.has_ended.store(true, Relaxed);
        }
        drop(ended);
    }

    pub(super) fn count(&self) -> usize {
        self.known().sessions.len()
    }
}

impl Seat<'_> {
    /// The session is made.
    pub(super) fn fill(self, session: Session) {
        self.all.known().sessions.insert(session.id, Arc::new(session));
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut known = self.all.known();
        if let Some(count) = known.coming.get_mut(&self.access_key) {
            *count -= 1;
            if *count == 0 {
                known.coming.remove(&self.access_key);
            }
        }
    }
}
