//! What a lane does when it can start nothing: it waits for the kernel, the device or new work.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_config::Objective;
use forebay_gpu::Wait;

use super::Lane;
use crate::lock::lock;
use crate::poll;

/// A lane wakes up for every so-manieth part of the operations in flight, or after a short while.
const BUNCHES: usize = 8;
const BUNCH_WAIT: Duration = Duration::from_micros(50);
/// How long a lane waits for the kernel before it looks after its device copies again.
const GLANCE: Duration = Duration::from_micros(20);
/// How long an idle lane polls for the next job, if it is likely to come soon: going to sleep and waking up costs as much
/// time as a lane's part of a 16 MiB read takes.
const LINGER: Duration = Duration::from_micros(200);
/// A job that comes so soon after the last one may come within [`LINGER`] where nobody sleeps.
const SOON: Duration = Duration::from_micros(500);
/// So many jobs in a row must have come soon before a lane polls, ...
const QUICK_JOBS: u32 = 2;
/// ... and twice as many each time that it polled in vain, up to this.
const QUICK_JOBS_MOST: u32 = 256;
/// How long a lane that has nothing else to do polls for its copies. Those of all other lanes may come first.
const LAST_COPIES: Duration = Duration::from_micros(250);
/// Time between two questions after a copy: they take the driver's lock, which others need to start copies.
const QUESTIONS: Duration = Duration::from_micros(4);

/// Whether jobs follow each other closely, as a lane sees it.
pub(super) struct Pace {
    /// Jobs in a row that came soon after the last one was done.
    quick_jobs: u32,
    /// So many are wanted before the lane polls.
    wanted: u32,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { quick_jobs: 0, wanted: QUICK_JOBS }
    }

    /// The lane waited so long for its next job.
    fn waited(&mut self, time: Duration) {
        self.quick_jobs = if time <= SOON { self.quick_jobs.saturating_add(1) } else { 0 };
    }

    /// The lane has polled, and a job came or not.
    fn polled(&mut self, came: bool) {
        if came {
            self.wanted = QUICK_JOBS;
        } else {
            self.quick_jobs = 0;
            self.wanted = (self.wanted * 2).min(QUICK_JOBS_MOST);
        }
    }
}

impl Lane {
    /// Waits for whatever may come next, when nothing can be started.
    pub(super) fn wait(&mut self) {
        let busy = self.outstanding() > 0 || self.asked > 0;
        match (busy, self.flights.front()) {
            (false, Some(_)) if self.polls_for_copies() => {}
            (false, Some(flight)) => {
                let wait = match self.shared.config.objective {
                    Objective::Latency => Wait::Spin,
                    Objective::Throughput => Wait::Nap(GLANCE),
                    Objective::Cpu => Wait::Block,
                };
                // An error shows again when the flight lands.
                let _ = flight.event.wait(wait);
            }
            (true, Some(_)) => self.wait_for_kernel(Some(GLANCE)),
            (false, None) if self.is_idle() => self.idle(),
            (_, None) => self.sleep(),
        }
    }

    /// Polls for the copies of a job's last works. False if a sleep is as good: because this lane could not start
    /// anything anyway, or because they take too long.
    fn polls_for_copies(&self) -> bool {
        let is_last = self.stash.is_none() && !self.free_slots.is_empty();
        let (Some(flight), Objective::Throughput) = (self.flights.front(), self.shared.config.objective)
        else {
            return false;
        };
        let mut next = Instant::now();
        self.shared.may_poll
            && is_last
            && poll::until(LAST_COPIES, || {
                let now = Instant::now();
                if now < next {
                    return false;
                }
                next = now + QUESTIONS;
                // An error shows again when the flight lands.
                self.shared.queue.has_work(self.index) || !matches!(flight.event.is_done(), Ok(false))
            })
    }

    /// Polls for the next job, if that is likely to come soon; whether there may be one.
    fn polls_for_work(&mut self) -> bool {
        if !self.shared.may_poll || self.pace.quick_jobs < self.pace.wanted {
            return false;
        }
        let (shared, door) = (&self.shared, &self.door);
        door.polling.store(true, Ordering::SeqCst);
        poll::until(LINGER, || {
            let is_claimed = !door.polling.load(Ordering::Relaxed);
            is_claimed || shared.queue.has_some() || shared.stop.load(Ordering::Relaxed)
        });
        // Whoever claimed it meanwhile has woken nobody else.
        let is_claimed = !door.polling.swap(false, Ordering::SeqCst);
        let is_over = is_claimed || shared.queue.has_work(self.index);
        self.pace.polled(is_over);
        is_over
    }

    /// Waits for the next job, and notes how soon it came.
    fn idle(&mut self) {
        let since = Instant::now();
        if !self.polls_for_work() {
            self.sleep();
        }
        self.pace.waited(since.elapsed());
    }

    /// Sleeps until there is work, an answer or a completion.
    fn sleep(&mut self) {
        if self.is_idle()
            && let Some(ring) = &mut self.ring
        {
            ring.forget_files();
        }
        self.door.sleeping.store(true, Ordering::SeqCst);
        let can_start = self.stash.is_none() && !self.free_slots.is_empty();
        let has_answers = !lock(&self.door.inbox).is_empty();
        let must_look = has_answers
            || (can_start && self.shared.queue.has_work(self.index))
            || (self.shared.stop.load(Ordering::SeqCst) && self.is_idle());
        if !must_look {
            self.wait_for_kernel(None);
        }
        self.door.sleeping.store(false, Ordering::SeqCst);
    }

    /// Waits for the kernel. With many operations in flight it waits for several, since waking up for each costs more
    /// than it gains.
    fn wait_for_kernel(&mut self, limit: Option<Duration>) {
        let want = (self.outstanding() / BUNCHES).max(1);
        let limit = if want > 1 { limit.or(Some(BUNCH_WAIT)) } else { limit };
        let use_ring = self.ring.as_ref().is_some_and(|ring| ring.outstanding() > 0 || ring.is_armed());
        match (&mut self.ring, limit) {
            (Some(ring), _) if use_ring => {
                // A ring that cannot be waited for still delivers what has completed.
                let _ = ring.wait(want, limit);
            }
            (_, Some(limit)) => std::thread::sleep(limit),
            (_, None) => self.door.wake.sleep(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits of such lengths, of which those that the lane polls for end in time if they are short enough; how often it
    /// polled, and how often in vain.
    fn run(waits: impl Iterator<Item = Duration>) -> (u32, u32) {
        let mut pace = Pace::new();
        let (mut polls, mut vain) = (0, 0);
        for wait in waits {
            if pace.quick_jobs >= pace.wanted {
                polls += 1;
                vain += u32::from(wait > LINGER);
                pace.polled(wait <= LINGER);
            }
            pace.waited(wait);
        }
        (polls, vain)
    }

    #[test]
    fn a_lane_polls_where_jobs_follow_each_other_closely() {
        let waits = |wait: Duration| (0..10_000).map(move |_| wait);
        assert_eq!(run(waits(LINGER / 2)), (10_000 - QUICK_JOBS, 0));
        assert_eq!(run(waits(SOON * 2)), (0, 0));
        let (polls, vain) = run(waits(LINGER + LINGER / 2));
        assert!(polls == vain && vain < 60, "polls in vain {vain} times of 10000");
        // One pause ends it, and two jobs begin it anew.
        let with_pauses = (0..1000).map(|at| if at % 100 == 0 { SOON * 10 } else { LINGER / 4 });
        let (polls, vain) = run(with_pauses);
        assert!(polls > 800 && vain <= 10, "{polls} polls, {vain} in vain");
    }
}
