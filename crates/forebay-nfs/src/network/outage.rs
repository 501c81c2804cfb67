//! How long a server has been silent while something waits for it. One clock for all that waits: what is queued behind other calls, or
//! asked for while the server is silent, is given up with the first of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};

use crate::lock;

/// Who looks at it (a user, a receipt) is told of silences from this length on.
const TOLD_FROM: Duration = Duration::from_secs(10);

/// A thread that waits says so at least as often, also while it makes connections and between its attempts.
const SAID_WITHIN: Duration = Duration::from_secs(20);

/// How long the server has for what is asked of it after all that waited was given up.
const LATER: Duration = Duration::from_secs(5);

/// How much longer than its options say a slow server is waited for, at most.
const MAX_EXTRA_WAIT: Duration = Duration::from_secs(8);

/// Sleeps end after so long when waiting is to stop.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Whether nobody is to wait for servers any more.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Has all that waits for a server, in this process, end with an error soon, and what is asked later at once; `false` takes it back. A
/// handler of a signal may call it.
pub fn stop_waiting(stop: bool) {
    STOPPED.store(stop, Relaxed);
}

pub(crate) fn is_stopped() -> bool {
    STOPPED.load(Relaxed)
}

/// What waiting ends with when it is to stop.
pub(crate) fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "interrupted while waiting for the server")
}

/// Sleeps; an error if waiting is to stop.
pub(crate) fn sleep(time: Duration) -> Result<(), Error> {
    let until = Instant::now() + time;
    loop {
        if is_stopped() {
            return Err(stopped());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(SLICE));
    }
}

/// A server that calls of this process wait for, and that has been silent for ten seconds or longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Its name.
    pub server: String,
    /// Since then.
    pub since: Instant,
    /// It still was at this time.
    pub seen: Instant,
}

impl Silent {
    /// Whether the server has answered since it was seen to be silent. Otherwise nothing waits for it any more, if it is not among
    /// those that are silent.
    pub fn has_answered(&self) -> bool {
        let all = lock(&ALL);
        let mut servers = all.iter().filter_map(Weak::upgrade);
        servers.any(|one| one.server == self.server && one.heard_at() > Some(self.seen))
    }
}

/// Servers of this process.
static ALL: Mutex<Vec<Weak<Outage>>> = Mutex::new(Vec::new());

/// The servers that something waits for in vain at present.
pub fn silent() -> Vec<Silent> {
    let now = Instant::now();
    let mut all = lock(&ALL);
    all.retain(|one| one.strong_count() > 0);
    let mut found: Vec<Silent> = Vec::new();
    for one in all.iter().filter_map(Weak::upgrade) {
        let Some(since) = one.silent_since(now) else { continue };
        match found.iter_mut().find(|known| known.server == one.server) {
            Some(known) => known.since = known.since.min(since),
            None => found.push(Silent { server: one.server.clone(), since, seen: now }),
        }
    }
    found
}

/// How long a server may be silent before a connection is given up, and how long before calls are.
pub(crate) type Limits = (Duration, Duration);

/// The silence of a server. Times are nanoseconds since `base`.
pub(crate) struct Outage {
    server: String,
    base: Instant,
    /// When it was heard last, or what waits first was asked for.
    since: AtomicU64,
    /// When it was heard last; 0: never.
    heard: AtomicU64,
    /// When a thread last said that it waits.
    waited: AtomicU64,
    /// When all that waited was given up; 0: it was not.
    given_up: AtomicU64,
    /// What it may be silent for beyond what options say: see [`Outage::record_duration`].
    more: AtomicU64,
    /// Silences that are over, and how long they were.
    times: AtomicU64,
    nanoseconds: AtomicU64,
}

impl fmt::Debug for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outage").field("server", &self.server).finish_non_exhaustive()
    }
}

const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl Outage {
    pub(crate) fn new(server: String) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let new = Arc::new(Self {
            server,
            base: Instant::now(),
            since: zero(),
            heard: zero(),
            waited: zero(),
            given_up: zero(),
            more: zero(),
            times: zero(),
            nanoseconds: zero(),
        });
        lock(&ALL).push(Arc::downgrade(&new));
        new
    }

    fn at(&self, time: Instant) -> u64 {
        nanoseconds(time.saturating_duration_since(self.base)).max(1)
    }

    /// Whether threads have waited since the server was heard last.
    fn is_waited_for(&self, now: u64) -> bool {
        let waited = self.waited.load(Relaxed);
        waited > self.since.load(Relaxed) && now.saturating_sub(waited) < nanoseconds(SAID_WITHIN)
    }

    /// Something is asked for: it waits from now on, or with what waits already.
    pub(crate) fn asked(&self, now: Instant) {
        let now = self.at(now);
        if !self.is_waited_for(now) {
            self.since.store(now, Relaxed);
            self.given_up.store(0, Relaxed);
        }
    }

    /// The server has answered.
    pub(crate) fn heard(&self, now: Instant) {
        let now = self.at(now);
        let silence = now.saturating_sub(self.since.load(Relaxed));
        if silence >= nanoseconds(TOLD_FROM) && self.is_waited_for(now) {
            self.times.fetch_add(1, Relaxed);
            self.nanoseconds.fetch_add(silence, Relaxed);
        }
        self.since.store(now, Relaxed);
        self.heard.store(now, Relaxed);
        self.given_up.store(0, Relaxed);
    }

    /// Whether something has waited, or was given up, since it was heard last: that it answers is news.
    #[inline]
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.waited.load(Relaxed) > self.heard.load(Relaxed) || self.given_up.load(Relaxed) > 0
    }

    fn heard_at(&self) -> Option<Instant> {
        let heard = self.heard.load(Relaxed);
        (heard > 0).then(|| self.base + Duration::from_nanos(heard))
    }

    /// Whether the server has answered since a thread last waited for it: it will answer what it is asked now.
    pub(crate) fn is_answering(&self) -> bool {
        self.heard.load(Relaxed) >= self.waited.load(Relaxed).max(1)
    }

    /// A thread waits.
    pub(crate) fn waits(&self, now: Instant) {
        self.waited.store(self.at(now), Relaxed);
    }

    /// A request of several calls has taken so long: of late that is how much longer than its options say the server is waited for.
    pub(crate) fn record_duration(&self, duration: Duration) {
        let took = nanoseconds(duration.min(MAX_EXTRA_WAIT));
        let before = self.more.load(Relaxed);
        self.more.store(before - before / 4 + took / 4, Relaxed);
    }

    /// How long it is waited for, where options say this.
    pub(crate) fn limits(&self, (silence, deadline): Limits) -> Limits {
        let more = Duration::from_nanos(self.more.load(Relaxed));
        (silence + more, deadline + more)
    }

    /// Whether all that waits is given up.
    pub(crate) fn is_given_up(&self, now: Instant, (_, deadline): Limits) -> bool {
        let now = self.at(now);
        let is_over = now.saturating_sub(self.since.load(Relaxed)) >= nanoseconds(deadline);
        if is_over {
            // The first thread that sees it.
            let _ = self.given_up.compare_exchange(0, now, Relaxed, Relaxed);
        }
        is_over
    }

    /// Whether what began then is given up: with all that waited, or with the little time that it has later.
    pub(crate) fn gives_up(&self, began: Instant, now: Instant, limits: Limits) -> bool {
        self.is_given_up(now, limits)
            && (self.at(began) <= self.given_up.load(Relaxed)
                || now.saturating_duration_since(began) >= later(limits))
    }

    /// How long something that began then waits at most, on one connection.
    pub(crate) fn left(&self, began: Instant, now: Instant, limits: Limits) -> Duration {
        let given_up = self.given_up.load(Relaxed);
        let until = if given_up == 0 {
            self.since.load(Relaxed) + nanoseconds(limits.0.max(limits.1))
        } else if self.at(began) <= given_up {
            0
        } else {
            self.at(began) + nanoseconds(later(limits))
        };
        Duration::from_nanos(until.saturating_sub(self.at(now)))
    }

    fn silent_since(&self, now: Instant) -> Option<Instant> {
        let since = self.base + Duration::from_nanos(self.since.load(Relaxed));
        let is_silent = now.saturating_duration_since(since) >= TOLD_FROM && self.is_waited_for(self.at(now));
        is_silent.then_some(since)
    }

    /// How often the server was silent for ten seconds or longer while something waited, and answered again; and how long in all.
    pub(crate) fn silences(&self) -> (u64, Duration) {
        (self.times.load(Relaxed), Duration::from_nanos(self.nanoseconds.load(Relaxed)))
    }
}

fn later((silence, deadline): Limits) -> Duration {
    LATER.min(silence.max(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = (Duration::from_mins(1), Duration::from_mins(5));

    #[test]
    fn what_is_asked_while_a_server_is_silent_has_the_clock_of_what_waits() {
        let outage = Outage::new("server".to_owned());
        let at = |seconds| outage.base + Duration::from_secs(seconds);
        outage.asked(at(100));
        outage.waits(at(110));
        outage.asked(at(120));
        assert_eq!(outage.left(at(120), at(120), LIMITS), Duration::from_secs(280));
        assert!(!outage.gives_up(at(100), at(399), LIMITS));
        for began in [100, 120, 399] {
            assert!(outage.gives_up(at(began), at(400), LIMITS), "{began}");
        }
        // What comes later has a few seconds.
        outage.waits(at(400));
        outage.asked(at(401));
        assert!(!outage.gives_up(at(401), at(405), LIMITS));
        assert_eq!(outage.left(at(401), at(405), LIMITS), Duration::from_secs(1));
        assert!(outage.gives_up(at(401), at(406), LIMITS));
        // After a pause, and after an answer, there is a new clock.
        outage.asked(at(500));
        assert_eq!(outage.left(at(500), at(500), LIMITS), Duration::from_mins(5));
        outage.waits(at(510));
        outage.heard(at(550));
        assert_eq!(outage.left(at(510), at(560), LIMITS), Duration::from_secs(290));
    }

    #[test]
    fn silences_are_told_while_something_waits_and_counted_when_they_are_over() {
        let outage = Outage::new("a silent server".to_owned());
        let at = |seconds| outage.base + Duration::from_secs(seconds);
        outage.asked(at(100));
        outage.waits(at(105));
        assert_eq!(outage.silent_since(at(109)), None);
        assert_eq!(outage.silent_since(at(111)), Some(at(100)));
        outage.waits(at(141));
        outage.heard(at(142));
        assert_eq!(outage.silent_since(at(160)), None);
        // Nothing waited.
        outage.asked(at(700));
        outage.heard(at(701));
        assert_eq!(outage.silences(), (1, Duration::from_secs(42)));
    }

    #[test]
    fn a_silence_that_is_given_up_is_no_answer() {
        let outage = Outage::new("a server that is given up".to_owned());
        let at = |seconds| outage.base + Duration::from_secs(seconds);
        outage.asked(at(100));
        outage.waits(at(141));
        let silent = Silent { server: outage.server.clone(), since: at(100), seen: at(141) };
        // Nothing waits for it; then something is asked for.
        outage.asked(at(170));
        assert_eq!(outage.silent_since(at(171)), None);
        assert!(!silent.has_answered() && !outage.is_answering());
        outage.heard(at(172));
        assert!(silent.has_answered() && outage.is_answering());
        assert!(!outage.is_in_doubt());
        outage.waits(at(173));
        assert!(!outage.is_answering() && outage.is_in_doubt());
        outage.heard(at(173));
        assert!(!outage.is_in_doubt());
        assert!(outage.is_given_up(at(473), LIMITS) && outage.is_in_doubt());
    }
}
