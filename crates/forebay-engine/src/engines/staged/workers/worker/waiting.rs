//! How a lane waits when it can start nothing: for the kernel, the device or new work.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_config::Objective;
use forebay_gpu::Wait;

use super::{Lane, LaneMemory};
use crate::io::wake::WorkerRest;
use crate::request::copy_order;
use crate::runtime::wait;
use crate::tuning::lanes::{BUNCH_WAIT, BUNCHES, GLANCE};

impl Lane {
    /// Waits for the next event, when nothing can be started.
    pub(super) fn wait(&mut self) {
        let (busy, objective) = (self.outstanding() > 0 || self.asked > 0, self.shared.config.objective);
        match (busy, self.flights.front()) {
            (false, Some(flight)) if flight.is_write && objective == Objective::Throughput => {
                std::thread::sleep(flight.glance());
            }
            (false, Some(flight)) => {
                let wait = wait::by_objective(objective, Wait::Nap(GLANCE));
                // An error shows again when the flight lands.
                let _ = flight.event.wait(wait);
            }
            (true, Some(flight)) => {
                let glance = flight.glance();
                self.wait_for_kernel(Some(glance));
            }
            (_, None) if !self.ready.is_empty() => {
                self.wait_for_kernel(Some(copy_order::nap(objective)));
            }
            (_, None) => self.sleep(),
        }
    }

    /// Sleeps until there is work, an answer or a completion.
    fn sleep(&mut self) {
        if !self.shared.queue.has_any() {
            self.shared.meters.iter().for_each(|meter| meter.starve());
            if self.get_ready() {
                return;
            }
        } else if self.has < LaneMemory::All && self.shared.queue.has_work(self.index, true) {
            // It is not for the last slot.
            return self.grow(LaneMemory::All);
        }
        if self.is_idle()
            && let Some(ring) = &mut self.ring
        {
            ring.forget_files();
        }
        self.wake.set(if self.outstanding() > 0 { WorkerRest::AtRing } else { WorkerRest::Asleep });
        let can_start = self.stash.is_none() && !self.free_slots.is_empty();
        // For a work whose copy has to wait it gets more memory first: one that has come since the look above wakes nobody again.
        let may_hold = self.may_hold() || self.has < LaneMemory::All;
        let must_look = self.wake.has_answers()
            || (can_start && self.shared.queue.has_work(self.index, may_hold))
            || (self.shared.stop.load(Ordering::SeqCst) && self.is_idle());
        if !must_look {
            self.wait_for_kernel(None);
        }
        self.wake.set(WorkerRest::Awake);
    }

    /// Waits for the kernel. With many operations in flight it waits for several, since a wake-up for each costs more
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
