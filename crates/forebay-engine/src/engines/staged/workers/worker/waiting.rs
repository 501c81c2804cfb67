//! How a lane waits when it can start nothing: for the kernel, the device or new work.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_config::Objective;
use forebay_gpu::Wait;

use super::{Lane, LaneMemory, Readiness};
use crate::io::wake::WorkerRest;
use crate::request::copy_order;
use crate::runtime::wait;
use crate::tuning::machine::{EIGHTH, LOOK};

impl Lane {
    /// Waits for the next event, when nothing can be started.
    pub(super) fn wait(&mut self) {
        let (busy, objective) = (self.outstanding() > 0 || self.asked > 0, self.shared.config.objective);
        match (busy, self.flights.front()) {
            (false, Some(flight)) if flight.is_write && objective == Objective::Throughput => {
                std::thread::sleep(flight.glance());
            }
            (false, Some(flight)) => {
                let wait = wait::by_objective(objective, Wait::Nap(flight.glance()));
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
        let mut waits_for_turn = false;
        if !self.shared.queue.has_any() {
            self.shared.meters.iter().for_each(|meter| meter.starve());
            match self.get_ready() {
                Readiness::Grown => return,
                Readiness::WaitsForTurn => waits_for_turn = true,
                Readiness::AsBefore => {}
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
        let is_its_turn = waits_for_turn && !self.shared.is_waiting_for_turn(self.index);
        if !is_its_turn && !self.must_look() {
            self.wait_for_kernel(None);
        }
        self.wake.set(WorkerRest::Awake);
    }

    /// Whether anything is there that the lane can do. Asked once more after it has said that it rests: what came before that
    /// wakes nobody.
    fn must_look(&self) -> bool {
        let can_start = self.stash.is_none() && !self.free_slots.is_empty();
        // For a work whose copy has to wait it gets more memory first.
        let may_hold = self.may_hold() || self.has < LaneMemory::All;
        self.wake.has_answers()
            || (can_start && self.shared.queue.has_work(self.index, may_hold))
            || (self.shared.stop.load(Ordering::SeqCst) && self.is_idle())
    }

    /// Waits for the kernel. With many operations in flight it waits for several, since a wake-up for each costs more
    /// than it gains.
    fn wait_for_kernel(&mut self, limit: Option<Duration>) {
        let want = (self.outstanding() / EIGHTH as usize).max(1);
        let limit = if want > 1 { limit.or(Some(LOOK)) } else { limit };
        match (&mut self.ring, limit) {
            (Some(ring), _) if ring.outstanding() > 0 => ring.wait(want, limit),
            (_, Some(limit)) => std::thread::sleep(limit),
            (_, None) => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use forebay_config::{CachePolicy, Config, IoBackend};
    use forebay_error::{ErrorKind, Result};
    use forebay_gpu::Event;

    use super::*;
    use crate::engines::staged::job::{Job, JobParts, JobWidth};
    use crate::engines::staged::workers::LaneShared;
    use crate::engines::staged::workers::slots::LanePart;
    use crate::io::plan::{Plan, Work};
    use crate::io::wake::WorkerWake;
    use crate::request::completion::Completion;
    use crate::request::copy_order::PriorWork;
    use crate::request::file::File;
    use crate::request::receipt::{CountedPlaces, Election, EngineKind};
    use crate::request::transfer::{Batch, Memory, Transfer};
    use crate::source::piece::Direction;
    use crate::source::residency::Warmth;

    /// Work of the user's that does not end.
    #[derive(Debug)]
    struct Endless;

    impl Event for Endless {
        fn is_done(&self) -> Result<bool> {
            Ok(false)
        }

        fn wait(&self, _wait: Wait) -> Result<()> {
            Ok(())
        }

        fn handle(&self) -> u64 {
            0
        }
    }

    /// A lane as it begins, with one slot, on this thread: over host memory, which it serves like any device's.
    fn lane() -> Lane {
        let config = Config { lanes: 1, slots: 3, io: IoBackend::Threads, ..Config::default() };
        let device = forebay_gpu::host::device();
        let memory = LanePart::first(&device, 1, config.slot_size).unwrap().pop().unwrap();
        let shared = Arc::new(LaneShared::new(device, config));
        let wake = Arc::new(WorkerWake::new().unwrap());
        Lane::new(0, shared, memory, &wake, &mut Vec::new()).unwrap()
    }

    /// A read of one slot whose copy comes after work that does not end.
    fn held() -> Arc<Job> {
        let file = File::open(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
        let memory = Memory::new(forebay_gpu::host::device(), 0);
        let (direction, len) = (Direction::Read, 1 << 20);
        let batch = Batch::of(&Transfer { file, offset: 0, memory, len, direction, allow_short: false });
        let (engine, mode) = (EngineKind::Staged, None);
        let election = Arc::new(Election {
            engine,
            refused: Vec::new(),
            notes: Vec::new(),
            mode,
            places: CountedPlaces::default(),
        });
        let completion = Completion::new([len as u64].into(), 1, vec![false], election, Arc::default(), None);
        completion.order_after(Some(PriorWork::after(Box::new(Endless))));
        Job::new(JobParts {
            batch: Arc::new(batch),
            plan: Plan::of_work(Work::Chunk { entry: 0, start: 0, end: len as u64 }),
            base: 0,
            cache: CachePolicy::Auto,
            align: 1,
            width: JobWidth::Fixed(1),
            warmth: Warmth::Warm,
            mover: None,
            mount: None,
            completion,
        })
    }

    // It came after the lane had looked and before it rested, and was not seen again: the lane slept for good.
    #[test]
    fn a_lane_with_one_slot_does_not_rest_beside_a_work_whose_copy_waits() {
        let mut lane = lane();
        assert!(!lane.must_look(), "nothing is there");
        lane.shared.queue.push(held());
        assert!(lane.take_work().is_none(), "its only slot is for others");
        assert!(lane.must_look());
        // It has work to do, so this returns.
        lane.sleep();
        lane.take_work().expect("there is room for it now").leave_out();
        assert!(!lane.must_look(), "nothing is left");
    }

    /// It is the lane's alone: no other one would find it in the queue.
    #[test]
    fn a_work_that_waits_for_memory_fails_with_its_lane() {
        let mut lane = lane();
        lane.grow(LaneMemory::All);
        let job = held();
        let completion = job.completion.clone();
        lane.shared.queue.push(job);
        lane.stash = lane.take_work();
        drop(lane);
        assert!(completion.is_done());
        assert_eq!(completion.results()[0].as_ref().unwrap_err().kind(), ErrorKind::Internal);
    }

    #[test]
    fn a_lane_that_found_the_turn_taken_is_listed_until_it_ends() {
        let mut lane = lane();
        (lane.is_host, lane.has) = (false, LaneMemory::OneSlot);
        lane.shared.expects.store(true, Ordering::Relaxed);
        let shared = lane.shared.clone();
        let turn = shared.take_turn().unwrap();
        assert_eq!(lane.get_ready(), Readiness::WaitsForTurn);
        assert_eq!(lane.get_ready(), Readiness::WaitsForTurn);
        assert_eq!(*shared.waiting_to_grow.lock().unwrap(), [0], "once");
        let dies = AssertUnwindSafe(|| {
            let _turn = turn;
            panic!("on purpose");
        });
        assert!(catch_unwind(dies).is_err());
        assert!(!shared.is_waiting_for_turn(0), "woken, although the lane before died");
        lane.sleep();
        assert_eq!(lane.has, LaneMemory::Plain, "its turn");
    }

    #[test]
    fn the_last_slot_is_left_free_of_works_whose_copies_wait() {
        let mut lane = lane();
        lane.grow(LaneMemory::All);
        lane.free_slots.truncate(1);
        lane.shared.queue.push(held());
        assert!(lane.take_work().is_none() && !lane.must_look());
    }
}
