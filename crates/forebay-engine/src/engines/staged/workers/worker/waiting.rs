//! What a lane does when it can start nothing: it waits for the kernel, the device or new work.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_config::Objective;
use forebay_gpu::Wait;

use super::Lane;
use crate::io::wake::Rest;
use crate::request::copy_order;

/// A lane wakes up for every so-manieth part of the operations in flight, or after a short while.
const BUNCHES: usize = 8;
const BUNCH_WAIT: Duration = Duration::from_micros(50);
/// How long a lane waits for the kernel before it looks after its device copies again.
const GLANCE: Duration = Duration::from_micros(20);

impl Lane {
    /// Waits for whatever may come next, when nothing can be started.
    pub(super) fn wait(&mut self) {
        let busy = self.outstanding() > 0 || self.asked > 0;
        match (busy, self.flights.front()) {
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
            (_, None) if !self.ready.is_empty() => {
                self.wait_for_kernel(Some(copy_order::nap(self.shared.config.objective)));
            }
            (_, None) => self.sleep(),
        }
    }

    /// Sleeps until there is work, an answer or a completion.
    fn sleep(&mut self) {
        if self.is_idle()
            && let Some(ring) = &mut self.ring
        {
            ring.forget_files();
        }
        self.door.set(if self.outstanding() > 0 { Rest::AtRing } else { Rest::Asleep });
        let can_start = self.stash.is_none() && !self.free_slots.is_empty();
        let must_look = self.door.has_answers()
            || (can_start && self.shared.queue.has_work(self.index, self.may_hold()))
            || (self.shared.stop.load(Ordering::SeqCst) && self.is_idle());
        if !must_look {
            self.wait_for_kernel(None);
        }
        self.door.set(Rest::Awake);
    }

    /// Waits for the kernel. With many operations in flight it waits for several, since waking up for each costs more
    /// than it gains.
    fn wait_for_kernel(&mut self, limit: Option<Duration>) {
        let want = (self.outstanding() / BUNCHES).max(1);
        let limit = if want > 1 { limit.or(Some(BUNCH_WAIT)) } else { limit };
        match (&mut self.ring, limit) {
            (Some(ring), _) if ring.outstanding() > 0 => ring.wait(want, limit),
            (_, Some(limit)) => std::thread::sleep(limit),
            (_, None) => std::thread::park(),
        }
    }
}
