//! How long a server has been silent while something waits for it. One clock for all waits: calls queued behind other
//! calls, or asked for while the server is silent, is given up with the first of them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay_sys::lock;

/// Users and receipts see silences from this length on.
const TOLD_FROM: Duration = Duration::from_secs(10);

/// A thread that waits says so at least as often, also while it makes connections and between its attempts.
const SAID_WITHIN: Duration = Duration::from_secs(20);

/// How long the server has for new calls after all waiting calls were given up.
const LATER: Duration = Duration::from_secs(5);

/// How much longer than its options say a slow server is waited for, at most.
const MAX_EXTRA_WAIT: Duration = Duration::from_secs(8);

/// A server that calls of this process wait for, and that has been silent for ten seconds or longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentServer {
    /// Its name.
    pub server: String,
    /// Since then.
    pub since: Instant,
    /// It still was at this time.
    pub seen: Instant,
}

impl SilentServer {
    /// Whether the server has answered since it was seen to be silent. Otherwise nothing waits for it any more, if it is not among
    /// those that are silent.
    pub fn has_answered(&self) -> bool {
        let all = lock(&ALL);
        let mut servers = all.iter().filter_map(Weak::upgrade);
        servers.any(|one| one.server == self.server && one.heard_at() > Some(self.seen))
    }
}

/// Servers of this process.
static ALL: Mutex<Vec<Weak<SilenceClock>>> = Mutex::new(Vec::new());

/// The silent servers that something waits for now.
pub fn silent() -> Vec<SilentServer> {
    let now = Instant::now();
    let mut all = lock(&ALL);
    all.retain(|one| one.strong_count() > 0);
    let mut found: Vec<SilentServer> = Vec::new();
    for one in all.iter().filter_map(Weak::upgrade) {
        let Some(since) = one.silent_since(now) else { continue };
        match found.iter_mut().find(|known| known.server == one.server) {
            Some(known) => known.since = known.since.min(since),
            None => found.push(SilentServer { server: one.server.clone(), since, seen: now }),
        }
    }
    found
}

/// How long a server is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// How long it may be silent before a connection is given up.
    pub silence: Duration,
    /// How long before calls are.
    pub deadline: Duration,
}

impl WaitLimits {
    fn longest(self) -> Duration {
        self.silence.max(self.deadline)
    }

    /// How long later calls wait.
    fn later(self) -> Duration {
        LATER.min(self.longest())
    }
}

/// The silence of a server. Times are nanoseconds since `base`.
pub struct SilenceClock {
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
    /// What it may be silent for beyond what options say: see [`SilenceClock::record_duration`].
    more: AtomicU64,
    /// Silences that are over, and how long they were.
    times: AtomicU64,
    nanoseconds: AtomicU64,
}

impl fmt::Debug for SilenceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SilenceClock").field("server", &self.server).finish_non_exhaustive()
    }
}

const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl SilenceClock {
    /// That of a server with this name, which was never heard.
    pub fn new(server: String) -> Arc<Self> {
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
    pub fn asked(&self, now: Instant) {
        let now = self.at(now);
        if !self.is_waited_for(now) {
            self.since.store(now, Relaxed);
            self.given_up.store(0, Relaxed);
        }
    }

    /// The server has answered.
    pub fn heard(&self, now: Instant) {
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
    pub fn is_in_doubt(&self) -> bool {
        self.waited.load(Relaxed) > self.heard.load(Relaxed) || self.given_up.load(Relaxed) > 0
    }

    fn heard_at(&self) -> Option<Instant> {
        let heard = self.heard.load(Relaxed);
        (heard > 0).then(|| self.base + Duration::from_nanos(heard))
    }

    /// Whether the server has answered since a thread last waited for it: it will answer what it is asked now.
    pub fn is_answering(&self) -> bool {
        self.heard.load(Relaxed) >= self.waited.load(Relaxed).max(1)
    }

    /// A thread waits.
    pub fn waits(&self, now: Instant) {
        self.waited.store(self.at(now), Relaxed);
    }

    /// Records how long a request of several calls took. The server may be silent for that much longer than its options say.
    pub fn record_duration(&self, duration: Duration) {
        let took = nanoseconds(duration.min(MAX_EXTRA_WAIT));
        let before = self.more.load(Relaxed);
        self.more.store(before - before / 4 + took / 4, Relaxed);
    }

    /// How long it is waited for, where options say this.
    pub fn limits(&self, told: WaitLimits) -> WaitLimits {
        let more = Duration::from_nanos(self.more.load(Relaxed));
        WaitLimits { silence: told.silence + more, deadline: told.deadline + more }
    }

    /// Whether all that waits is given up.
    pub fn is_given_up(&self, now: Instant, limits: WaitLimits) -> bool {
        let now = self.at(now);
        let is_over = now.saturating_sub(self.since.load(Relaxed)) >= nanoseconds(limits.deadline);
        if is_over {
            // The first thread that sees it.
            let _ = self.given_up.compare_exchange(0, now, Relaxed, Relaxed);
        }
        is_over
    }

    /// Whether what began then is given up: with all that waited, or with the little time that it has later.
    pub fn gives_up(&self, began: Instant, now: Instant, limits: WaitLimits) -> bool {
        self.is_given_up(now, limits)
            && (self.at(began) <= self.given_up.load(Relaxed)
                || now.saturating_duration_since(began) >= limits.later())
    }

    /// How long something that began then waits at most, on one connection.
    pub fn left(&self, began: Instant, now: Instant, limits: WaitLimits) -> Duration {
        let given_up = self.given_up.load(Relaxed);
        let until = if given_up == 0 {
            self.since.load(Relaxed) + nanoseconds(limits.longest())
        } else if self.at(began) <= given_up {
            0
        } else {
            self.at(began) + nanoseconds(limits.later())
        };
        Duration::from_nanos(until.saturating_sub(self.at(now)))
    }

    fn silent_since(&self, now: Instant) -> Option<Instant> {
        let since = self.base + Duration::from_nanos(self.since.load(Relaxed));
        let is_silent = now.saturating_duration_since(since) >= TOLD_FROM && self.is_waited_for(self.at(now));
        is_silent.then_some(since)
    }

    /// How often the server was silent for ten seconds or longer while something waited, and answered again; and how long in all.
    pub fn silences(&self) -> (u64, Duration) {
        (self.times.load(Relaxed), Duration::from_nanos(self.nanoseconds.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WaitLimits =
        WaitLimits { silence: Duration::from_mins(1), deadline: Duration::from_mins(5) };

    #[test]
    fn what_is_asked_while_a_server_is_silent_has_the_clock_of_what_waits() {
        let clock = SilenceClock::new("server".to_owned());
        let at = |seconds| clock.base + Duration::from_secs(seconds);
        clock.asked(at(100));
        clock.waits(at(110));
        clock.asked(at(120));
        assert_eq!(clock.left(at(120), at(120), LIMITS), Duration::from_secs(280));
        assert!(!clock.gives_up(at(100), at(399), LIMITS));
        for began in [100, 120, 399] {
            assert!(clock.gives_up(at(began), at(400), LIMITS), "{began}");
        }
        // What comes later has a few seconds.
        clock.waits(at(400));
        clock.asked(at(401));
        assert!(!clock.gives_up(at(401), at(405), LIMITS));
        assert_eq!(clock.left(at(401), at(405), LIMITS), Duration::from_secs(1));
        assert!(clock.gives_up(at(401), at(406), LIMITS));
        // After a pause, and after an answer, there is a new clock.
        clock.asked(at(500));
        assert_eq!(clock.left(at(500), at(500), LIMITS), Duration::from_mins(5));
        clock.waits(at(510));
        clock.heard(at(550));
        assert_eq!(clock.left(at(510), at(560), LIMITS), Duration::from_secs(290));
    }

    #[test]
    fn silences_are_told_while_something_waits_and_counted_when_they_are_over() {
        let clock = SilenceClock::new("a silent server".to_owned());
        let at = |seconds| clock.base + Duration::from_secs(seconds);
        clock.asked(at(100));
        clock.waits(at(105));
        assert_eq!(clock.silent_since(at(109)), None);
        assert_eq!(clock.silent_since(at(111)), Some(at(100)));
        clock.waits(at(141));
        clock.heard(at(142));
        assert_eq!(clock.silent_since(at(160)), None);
        // Nothing waited.
        clock.asked(at(700));
        clock.heard(at(701));
        assert_eq!(clock.silences(), (1, Duration::from_secs(42)));
    }

    #[test]
    fn a_silence_that_is_given_up_is_no_answer() {
        let clock = SilenceClock::new("a server that is given up".to_owned());
        let at = |seconds| clock.base + Duration::from_secs(seconds);
        clock.asked(at(100));
        clock.waits(at(141));
        let silent = SilentServer { server: clock.server.clone(), since: at(100), seen: at(141) };
        // Nothing waits for it; then something is asked for.
        clock.asked(at(170));
        assert_eq!(clock.silent_since(at(171)), None);
        assert!(!silent.has_answered() && !clock.is_answering());
        clock.heard(at(172));
        assert!(silent.has_answered() && clock.is_answering());
        assert!(!clock.is_in_doubt());
        clock.waits(at(173));
        assert!(!clock.is_answering() && clock.is_in_doubt());
        clock.heard(at(173));
        assert!(!clock.is_in_doubt());
        assert!(clock.is_given_up(at(473), LIMITS) && clock.is_in_doubt());
    }
}
