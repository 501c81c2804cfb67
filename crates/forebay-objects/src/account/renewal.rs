//! Keys of a provider: kept, and renewed before they are over, by one thread for all that wait.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop::{SLICE, is_stopped, stopped};
use forebay_sys::threads;

use super::keys::Keys;
use crate::lock;

/// How long before their end keys are renewed; a quarter of their life where that is less.
const AHEAD: Duration = Duration::from_mins(5);

/// Keys that end so soon count as over: requests take time.
const MARGIN: Duration = Duration::from_secs(10);

/// The pause between attempts to renew keys that are still good, and how long a failure stands for those who ask next.
const PAUSE: Duration = Duration::from_secs(20);
const FAILURE: Duration = Duration::from_secs(2);

/// How long new keys are not given up.
const FRESH: Duration = Duration::from_secs(1);

/// How long a provider is waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(90);

type Ask = dyn Fn() -> Result<Arc<Keys>> + Send + Sync;

/// The keys of an account.
pub(super) struct KeyRing {
    ask: Arc<Ask>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    keys: Option<Arc<Keys>>,
    taken: Option<Instant>,
    renew_at: Option<SystemTime>,
    is_asking: bool,
    /// Attempts that have ended.
    ended: u64,
    failed: Option<(Instant, Error)>,
}

impl KeyRing {
    /// Keys of a provider, which has perhaps given some.
    pub(super) fn new(
        known: Option<Arc<Keys>>,
        ask: impl Fn() -> Result<Arc<Keys>> + Send + Sync + 'static,
    ) -> Self {
        let ring = Self { ask: Arc::new(ask), shared: Arc::default() };
        lock(&ring.shared.state).keys = known;
        ring
    }

    /// Whether there are keys that are not over.
    pub(super) fn are_at_hand(&self) -> bool {
        lock(&self.shared.state).good().is_some()
    }

    /// Keys that are not over. Waits for the provider where there are none.
    pub(super) fn get(&self) -> Result<Arc<Keys>> {
        let mut state = lock(&self.shared.state);
        if let Some(keys) = state.good() {
            if state.renew_at.is_some_and(|time| SystemTime::now() >= time) {
                self.start(&mut state);
            }
            return Ok(keys);
        }
        let (before, until) = (state.ended, Instant::now() + LONGEST_WAIT);
        loop {
            if let Some(keys) = state.good() {
                return Ok(keys);
            }
            match &state.failed {
                Some((when, error)) if state.ended > before || when.elapsed() < FAILURE => {
                    return Err(error.clone());
                }
                _ if is_stopped() => return Err(stopped()),
                _ if Instant::now() >= until => {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        "the provider of keys has not answered for 90 s",
                    ));
                }
                _ => self.start(&mut state),
            }
            state = self.shared.changed.wait_timeout(state, SLICE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A server refused the keys as over. Whether there are others: the next request waits for them.
    pub(super) fn distrust(&self) -> bool {
        let mut state = lock(&self.shared.state);
        if state.keys.as_ref().is_some_and(|keys| keys.expires.is_none()) {
            return false;
        }
        // A refusal so soon is most likely of the keys before.
        if state.taken.is_none_or(|taken| taken.elapsed() > FRESH) {
            state.keys = None;
        }
        true
    }

    /// Has a thread ask the provider, if none does.
    fn start(&self, state: &mut State) {
        if std::mem::replace(&mut state.is_asking, true) {
            return;
        }
        state.renew_at = Some(SystemTime::now() + PAUSE);
        let (ask, shared) = (self.ask.clone(), self.shared.clone());
        let body = move || shared.end(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask())));
        if let Err(error) = threads::spawn("forebay-keys", body) {
            state.fail(Error::from_io(&error, "cannot start a thread"));
        }
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").finish_non_exhaustive()
    }
}

impl Shared {
    fn end(&self, answer: std::thread::Result<Result<Arc<Keys>>>) {
        let panicked = |_| Err(Error::new(ErrorKind::Internal, "a provider of keys panicked"));
        let mut state = lock(&self.state);
        match answer.unwrap_or_else(panicked) {
            Ok(keys) if is_over(&keys) => {
                state.fail(
                    Error::new(
                        ErrorKind::PermissionDenied,
                        "cannot get keys: those of the provider are over",
                    )
                    .hint("date: is the clock right?"),
                );
            }
            Ok(keys) => state.take(keys),
            Err(error) => state.fail(error),
        }
        self.changed.notify_all();
    }
}

impl State {
    fn good(&self) -> Option<Arc<Keys>> {
        self.keys.clone().filter(|keys| !is_over(keys))
    }

    fn take(&mut self, keys: Arc<Keys>) {
        let now = SystemTime::now();
        let left = keys.expires.map(|end| end.duration_since(now).unwrap_or_default());
        // A provider that gives the same keys again is asked again later.
        self.renew_at =
            left.map(|left| now + left.saturating_sub(AHEAD.min(left / 4)).max(PAUSE.min(left / 2)));
        (self.keys, self.taken) = (Some(keys), Some(Instant::now()));
        (self.failed, self.is_asking) = (None, false);
        self.ended += 1;
    }

    fn fail(&mut self, error: Error) {
        (self.failed, self.is_asking) = (Some((Instant::now(), error)), false);
        self.ended += 1;
    }
}

fn is_over(keys: &Keys) -> bool {
    keys.expires.is_some_and(|end| end < SystemTime::now() + MARGIN)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    fn lasting(seconds: u64, name: usize) -> Arc<Keys> {
        let end = SystemTime::now() + Duration::from_secs(seconds);
        Arc::new(Keys::new(name.to_string(), "s".into(), None, Some(end)))
    }

    /// A ring whose provider counts; and its count.
    fn ring(
        answer: impl Fn(usize) -> Result<Arc<Keys>> + Send + Sync + 'static,
    ) -> (Arc<KeyRing>, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        let ring = KeyRing::new(None, move || answer(counter.fetch_add(1, Relaxed)));
        (Arc::new(ring), count)
    }

    #[test]
    fn one_asks_for_all() {
        let (ring, count) = ring(|number| {
            std::thread::sleep(Duration::from_millis(50));
            Ok(lasting(3600, number))
        });
        let threads: Vec<_> = (0..64)
            .map(|_| {
                std::thread::spawn({
                    let ring = ring.clone();
                    move || ring.get().unwrap().id.clone()
                })
            })
            .collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == "0"));
        assert!(ring.are_at_hand());
        assert_eq!(count.load(Relaxed), 1);
    }

    #[test]
    fn one_failure_is_that_of_all() {
        let (ring, count) = ring(|_| {
            std::thread::sleep(Duration::from_millis(50));
            Err(Error::new(ErrorKind::Io, "no"))
        });
        let threads: Vec<_> = (0..64)
            .map(|_| {
                std::thread::spawn({
                    let ring = ring.clone();
                    move || ring.get().is_err()
                })
            })
            .collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        assert_eq!(count.load(Relaxed), 1);
        lock(&ring.shared.state).failed = None;
        assert!(ring.get().is_err());
        assert_eq!(count.load(Relaxed), 2, "later, the provider is asked again");
    }

    #[test]
    fn keys_are_renewed_before_they_are_over() {
        let (ring, count) = ring(|number| Ok(lasting(3600, number)));
        assert_eq!(ring.get().unwrap().id, "0");
        assert_eq!(ring.get().unwrap().id, "0");
        assert_eq!(count.load(Relaxed), 1);
        let renew_at = lock(&ring.shared.state).renew_at.unwrap();
        let left = renew_at.duration_since(SystemTime::now()).unwrap();
        assert!((3290..=3300).contains(&left.as_secs()), "{left:?}");
        lock(&ring.shared.state).renew_at = Some(SystemTime::now());
        assert_eq!(ring.get().unwrap().id, "0", "nobody waits");
        let until = Instant::now() + Duration::from_secs(10);
        while ring.get().unwrap().id != "1" && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((ring.get().unwrap().id.as_str(), count.load(Relaxed)), ("1", 2));
    }

    #[test]
    fn a_failed_renewal_leaves_good_keys() {
        let (ring, count) = ring(|number| match number {
            0 => Ok(lasting(3600, 0)),
            _ => Err(Error::new(ErrorKind::Io, "no")),
        });
        ring.get().unwrap();
        lock(&ring.shared.state).renew_at = Some(SystemTime::now());
        for _ in 0..100 {
            assert_eq!(ring.get().unwrap().id, "0");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(count.load(Relaxed), 2, "it is not asked at each request");
    }

    #[test]
    fn keys_that_are_over_are_waited_for() {
        let (ring, _) = ring(|number| Ok(lasting(3600, number)));
        ring.get().unwrap();
        lock(&ring.shared.state).keys = Some(lasting(1, 9));
        assert!(!ring.are_at_hand());
        assert_eq!(ring.get().unwrap().id, "1");
        assert!(ring.distrust());
        assert_eq!(ring.get().unwrap().id, "1", "these are new");
        lock(&ring.shared.state).taken = None;
        assert!(ring.distrust());
        assert_eq!(ring.get().unwrap().id, "2");
    }

    #[test]
    fn fixed_keys_are_never_asked_for() {
        let keys = Arc::new(Keys::new("A".into(), "s".into(), None, None));
        let ring = KeyRing::new(Some(keys), || Err(Error::new(ErrorKind::Io, "no")));
        assert!(!ring.distrust());
        assert_eq!(ring.get().unwrap().id, "A");
    }

    #[test]
    fn a_provider_that_panics_or_gives_old_keys_is_an_error() {
        let (ring, _) = ring(|number| match number {
            0 => panic!("of the test"),
            _ => Ok(lasting(0, 0)),
        });
        assert_eq!(ring.get().unwrap_err().kind(), ErrorKind::Internal);
        lock(&ring.shared.state).failed = None;
        assert!(ring.get().unwrap_err().to_string().contains("are over"));
    }
}
