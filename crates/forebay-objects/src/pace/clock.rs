//! A thread of the process by which something goes on later: behind a burst, a pause, or a promise that was not kept.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_remote::process::OfProcess;
use forebay_sys::threads;

use super::Paced;
use crate::lock;

/// How long the thread stays where nothing waits.
const IDLE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Clock {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By time, and a number.
    waiting: BTreeMap<(Instant, u64), Weak<dyn Paced>>,
    next: u64,
    has_thread: bool,
}

static CLOCK: OfProcess<Clock> = OfProcess::new();

/// Has something go on at this time, on a thread of the clock's. Where there is no thread for it, now.
pub(crate) fn go_on_at(time: Instant, waiting: Weak<dyn Paced>) {
    let clock = CLOCK.get();
    let mut state = lock(&clock.state);
    state.next += 1;
    let key = (time, state.next);
    let is_first = state.waiting.first_key_value().is_none_or(|((first, _), _)| time < *first);
    state.waiting.insert(key, waiting);
    let has_thread = std::mem::replace(&mut state.has_thread, true);
    drop(state);
    if !has_thread && threads::spawn("forebay-pace", || clock.run()).is_err() {
        let mut state = lock(&clock.state);
        state.has_thread = false;
        let waiting = state.waiting.remove(&key);
        drop(state);
        go_on_here(time, waiting);
    } else if is_first {
        clock.changed.notify_one();
    }
}

/// Without a thread. An entry that comes meanwhile waits for the next try: else each would begin within the one before.
fn go_on_here(time: Instant, waiting: Option<Weak<dyn Paced>>) {
    thread_local! {
        static GOES_ON: Cell<bool> = const { Cell::new(false) };
    }
    let Some(waiting) = waiting.and_then(|waiting| waiting.upgrade()) else { return };
    if !GOES_ON.replace(true) {
        waiting.go_on(Some(time));
        GOES_ON.set(false);
    }
}

impl Clock {
    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            let first = state.waiting.first_key_value().map(|((time, _), _)| *time);
            match first {
                Some(time) if time <= now => {
                    let due = state.waiting.pop_first().and_then(|(_, waiting)| waiting.upgrade());
                    drop(state);
                    // The panic of one, an answer's for example, does not hold the others up.
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        if let Some(due) = due {
                            due.go_on(Some(time));
                        }
                    }));
                    state = lock(&self.state);
                }
                _ => {
                    let most = first.map_or(IDLE, |time| time - now);
                    let (back, waited) =
                        self.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner);
                    state = back;
                    if waited.timed_out() && first.is_none() && state.waiting.is_empty() {
                        state.has_thread = false;
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Says when the clock had it go on, and for which time.
    struct Alarm(Mutex<Sender<(Instant, Option<Instant>)>>);

    impl Paced for Alarm {
        fn go_on(self: Arc<Self>, time: Option<Instant>) {
            lock(&self.0).send((Instant::now(), time)).unwrap();
        }
    }

    struct Bomb;

    impl Paced for Bomb {
        fn go_on(self: Arc<Self>, _: Option<Instant>) {
            panic!("an answer panics");
        }
    }

    fn weak<T: Paced + 'static>(one: &Arc<T>) -> Weak<dyn Paced> {
        Arc::downgrade(&(one.clone() as Arc<dyn Paced>))
    }

    #[test]
    fn entries_go_on_at_their_times_and_in_their_order() {
        let (sender, ends) = channel();
        let alarm = Arc::new(Alarm(Mutex::new(sender)));
        let (bomb, now) = (Arc::new(Bomb), Instant::now());
        let at = |milliseconds| now + Duration::from_millis(milliseconds);
        go_on_at(at(20), weak(&bomb));
        // One that nobody has any more.
        go_on_at(at(10), weak(&Arc::new(Bomb)));
        // Two for one time, a later one first, and one whose time is over.
        for time in [at(90), at(30), at(30), at(60), now] {
            go_on_at(time, weak(&alarm));
        }
        for expected in [now, at(30), at(30), at(60), at(90)] {
            let (when, time) = ends.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(time, Some(expected));
            assert!(when >= expected, "too soon by {:?}", expected - when);
        }
        assert!(ends.try_recv().is_err(), "more often than asked for");
    }
}
