//! Clients of the process: files of one server share one, and it is kept for some seconds behind the last of them, with its
//! connections. A program that opens one file after the other makes them once.
//!
//! The process's own threads end clients that were kept for long enough, one for each network namespace, which goes
//! with the last of its clients; at the end of the process the rest is ended. A forked child has none of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_sys::{lock, threads};

use crate::namespace::NetworkNamespace;
use crate::process::OfProcess;

/// Clients that are kept at most. One more ends the one that was kept first.
const MOST_KEPT: usize = 8;
/// Clients that wait for their end at most. Behind them a caller ends its own.
const MOST_ENDING: usize = 64;
/// How long the end of a client waits for its connections, and for each answer of its server, where no caller waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of the process waits for those of all clients.
const AT_EXIT: Duration = Duration::from_millis(500);

/// A client that has no file any more.
pub trait KeptClient: Sized + Send + 'static {
    /// What files that share a client have in common.
    type Key: PartialEq + Send;
    /// A client that has files.
    type Client: Send + Sync;

    /// The clients of this kind.
    fn all() -> &'static KeptClients<Self>;

    /// Of which files it was.
    fn key(&self) -> Self::Key;

    /// The namespace of its connections; its end is of a thread that has the same.
    fn namespace(&self) -> Option<NetworkNamespace>;

    /// Ends it: its connections, and its session at the server. No longer than `patience` for each answer.
    fn end(self, patience: Duration);
}

/// The clients of a kind.
pub struct KeptClients<K: KeptClient> {
    all: OfProcess<ProcessClients<K>>,
    at_exit: Once,
}

/// The clients of one process.
struct ProcessClients<K: KeptClient> {
    state: Mutex<ClientList<K>>,
    /// A client is to end, or has ended.
    changed: Condvar,
}

struct ClientList<K: KeptClient> {
    used: Vec<(K::Key, Weak<K::Client>)>,
    /// Those without a file, and until when they are kept; the oldest first.
    kept: Vec<(K, Instant)>,
    /// Network namespaces that have a thread.
    watched: Vec<Option<NetworkNamespace>>,
    /// Clients that threads are ending.
    ending: usize,
    is_over: bool,
}

impl<K: KeptClient> KeptClients<K> {
    /// None yet.
    #[expect(clippy::new_without_default, reason = "there is one for a kind, a static")]
    pub const fn new() -> Self {
        Self { all: OfProcess::new(), at_exit: Once::new() }
    }

    /// The client of these files: one that has some, or what `again` makes of one that is kept.
    pub fn find<T>(
        &'static self,
        key: K::Key,
        used: impl FnOnce(Arc<K::Client>) -> T,
        again: impl FnOnce(K) -> (T, Option<Arc<K::Client>>),
    ) -> Option<T> {
        let mut list = lock(&self.all.get().state);
        list.used.retain(|(_, client)| client.strong_count() > 0);
        let mut of_it = list.used.iter().filter(|(other, _)| *other == key);
        // One that ends just now is not waited for.
        if let Some(client) = of_it.find_map(|(_, client)| client.upgrade()) {
            drop(list);
            return Some(used(client));
        }
        let now = Instant::now();
        let index = list.kept.iter().position(|(kept, until)| *until > now && kept.key() == key)?;
        let (found, client) = again(list.kept.remove(index).0);
        if let Some(client) = client {
            list.used.push((key, Arc::downgrade(&client)));
        }
        Some(found)
    }

    /// A client that has files from now on.
    pub fn add(&'static self, key: K::Key, client: &Arc<K::Client>) {
        lock(&self.all.get().state).used.push((key, Arc::downgrade(client)));
    }

    /// Keeps a client for so long; zero: it ends at once, by a thread, or here where there is none.
    pub fn keep(&'static self, kept: K, time: Duration) {
        self.end_at_exit();
        self.all.get().keep(kept, time);
    }

    /// Has the end of the process end kept clients.
    fn end_at_exit(&self) {
        extern "C" fn at_exit<K: KeptClient>() {
            let _ = catch_unwind(|| K::all().all.known().map(ProcessClients::end_all));
        }
        // SAFETY: the function takes nothing and does not unwind. Where it cannot be registered, servers find out later.
        self.at_exit.call_once(|| unsafe {
            libc::atexit(at_exit::<K>);
        });
    }
}

impl<K: KeptClient> Default for ProcessClients<K> {
    fn default() -> Self {
        let (used, kept, watched) = (Vec::new(), Vec::new(), Vec::new());
        let list = ClientList { used, kept, watched, ending: 0, is_over: false };
        Self { state: Mutex::new(list), changed: Condvar::new() }
    }
}

impl<K: KeptClient> ProcessClients<K> {
    fn keep(&'static self, kept: K, time: Duration) {
        let namespace = kept.namespace();
        let mut list = lock(&self.state);
        if list.is_over || list.kept.len() >= MOST_ENDING {
            drop(list);
            return kept.end(Duration::ZERO);
        }
        let now = Instant::now();
        list.kept.push((kept, now + time));
        let more = list.kept.iter().filter(|(_, until)| *until > now).count().saturating_sub(MOST_KEPT);
        for (_, until) in list.kept.iter_mut().filter(|(_, until)| *until > now).take(more) {
            *until = now;
        }
        let has_thread = list.watched.contains(&namespace);
        if !has_thread {
            list.watched.push(namespace);
        }
        drop(list);
        self.changed.notify_all();
        if !has_thread && threads::spawn("forebay-kept", move || self.watch(namespace)).is_err() {
            self.end_here(namespace);
        }
    }

    /// There is no thread for a namespace: its kept clients end now.
    fn end_here(&self, namespace: Option<NetworkNamespace>) {
        let mut list = lock(&self.state);
        list.watched.retain(|one| *one != namespace);
        let all = std::mem::take(&mut list.kept);
        let (ended, kept): (Vec<_>, _) = all.into_iter().partition(|(kept, _)| kept.namespace() == namespace);
        list.kept = kept;
        drop(list);
        for (kept, _) in ended {
            kept.end(Duration::ZERO);
        }
    }

    /// Ends clients that were kept for long enough, until there are none. Connections that this takes are of the
    /// thread's own namespace.
    fn watch(&self, namespace: Option<NetworkNamespace>) {
        let mut list = lock(&self.state);
        loop {
            let now = Instant::now();
            let is_own = |(kept, _): &&(K, Instant)| kept.namespace() == namespace;
            if let Some(index) = list.kept.iter().position(|kept| is_own(&kept) && kept.1 <= now) {
                list = self.end(list, index, PATIENCE);
                continue;
            }
            let next = list.kept.iter().filter(is_own).map(|(_, until)| *until).min();
            let Some(next) = next.filter(|_| !list.is_over) else {
                list.watched.retain(|one| *one != namespace);
                return;
            };
            list = self.wait(list, next - now);
        }
    }

    /// Ends one, without the lock.
    fn end<'a>(
        &'a self,
        mut list: MutexGuard<'a, ClientList<K>>,
        index: usize,
        patience: Duration,
    ) -> MutexGuard<'a, ClientList<K>> {
        let (kept, _) = list.kept.remove(index);
        list.ending += 1;
        drop(list);
        // A panic ends here: others are to end, too.
        let _ = catch_unwind(AssertUnwindSafe(|| kept.end(patience)));
        let mut list = lock(&self.state);
        list.ending -= 1;
        self.changed.notify_all();
        list
    }

    /// The process ends: so does all that is kept, as far as there is time.
    fn end_all(&self) {
        let until = Instant::now() + AT_EXIT;
        let mut list = lock(&self.state);
        list.is_over = true;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || list.kept.is_empty() && list.ending == 0 {
                return;
            }
            list = if list.kept.is_empty() { self.wait(list, left) } else { self.end(list, 0, left / 2) };
        }
    }

    fn wait<'a>(
        &'a self,
        list: MutexGuard<'a, ClientList<K>>,
        limit: Duration,
    ) -> MutexGuard<'a, ClientList<K>> {
        self.changed.wait_timeout(list, limit).unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    static KEPT: KeptClients<KeptName> = KeptClients::new();

    /// A client with only a name; it reports its end.
    struct KeptName(&'static str, Sender<Duration>);

    impl KeptClient for KeptName {
        type Key = &'static str;
        type Client = String;

        fn all() -> &'static KeptClients<Self> {
            &KEPT
        }

        fn key(&self) -> &'static str {
            self.0
        }

        fn namespace(&self) -> Option<NetworkNamespace> {
            None
        }

        fn end(self, patience: Duration) {
            self.1.send(patience).unwrap();
        }
    }

    fn find(name: &'static str) -> Option<(Arc<String>, bool)> {
        let again = |kept: KeptName| {
            let client = Arc::new(kept.0.to_owned());
            ((client.clone(), true), Some(client))
        };
        KEPT.find(name, |client| (client, false), again)
    }

    #[test]
    fn a_client_is_found_while_it_is_kept_and_ends_when_its_time_is_over() {
        let (tell, told) = channel();
        assert!(find("one").is_none());
        KEPT.keep(KeptName("one", tell.clone()), Duration::from_mins(1));
        let (client, was_kept) = find("one").unwrap();
        assert!(was_kept && find("other").is_none());
        assert!(find("one").is_some_and(|(same, was_kept)| Arc::ptr_eq(&same, &client) && !was_kept));
        drop(client);
        assert!(find("one").is_none());
        KEPT.keep(KeptName("one", tell), Duration::from_millis(50));
        let limit = Duration::from_secs(10);
        assert_eq!(told.recv_timeout(limit).unwrap(), PATIENCE);
        assert!(find("one").is_none());
    }
}
