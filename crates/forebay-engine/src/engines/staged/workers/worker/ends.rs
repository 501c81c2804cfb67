//! How a lane's works end: bytes in the caller's memory, errors, bytes moved.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_config::cpus::cpus_now;
use forebay_error::Error;

use super::{ActiveWork, Lane, LaneUnit, UnitKind};
use crate::engines::staged::job::{JobWidth, of_file};
use crate::request::receipt::{Election, EngineKind, Moved, Refusal, Way};
use crate::runtime::owned;
use crate::tuning::plan::CHUNK;

impl Lane {
    /// The kernel refused a segment. If it has several entries, each is tried alone, on this thread: one bad entry does not
    /// fail the others.
    pub(super) fn call_failed(&mut self, unit: usize, index: usize, error: Error) {
        let job = self.job(unit);
        let LaneUnit { segments, active, .. } = &mut self.units[unit];
        let segment = &mut segments[index];
        let Some(file) = job.batch.file.descriptors() else {
            return self.fail(unit, index, error);
        };
        if let (Some(errno), Some(mover)) = (segment.refused, &job.mover)
            && let Some(refusal) = mover.refused(errno, job.batch.direction)
            && let Some(active) = active
        {
            active.detour = Some(refusal);
            return;
        }
        if segment.entries == 1 || file.check().is_err() {
            return self.fail(unit, index, error);
        }
        let mut lost = 0;
        for mut alone in segment.alone(&job.batch.pieces) {
            let result = alone.run_blocking(job.batch.direction, file, job.align);
            let before = alone.start - job.batch.pieces[alone.entry as usize].offset;
            let good = alone.good();
            lost += alone.len - good;
            alone.clear_rest();
            match result {
                Ok(()) if good == alone.len => {}
                Ok(()) => job.completion.cut(job.base + alone.entry, before + good as u64),
                Err(error) => {
                    let error = of_file(error, &job.batch.file);
                    job.completion.fail(job.base + alone.entry, before + good as u64, error);
                }
            }
        }
        segment.complete_by_cache();
        if let Some(active) = &mut self.units[unit].active {
            active.lost += lost as u64;
        }
    }

    /// The ring takes no more operations: the program has closed its descriptor, on a kernel that finds rings only by
    /// that descriptor. Operations that have not begun fail, the others are waited for, and the lane goes on without a
    /// ring.
    pub(super) fn lose_ring(&mut self) {
        let Some(mut ring) = self.ring.take() else { return };
        ring.settle();
        self.backlog.clear();
        let is_waiting = |unit: &LaneUnit| unit.active.as_ref().is_some_and(|active| active.pending > 0);
        // What a mounted file's server was asked for ends by its answer, which comes into the unit's memory.
        let is_asked = |unit: &LaneUnit| unit.segments.iter().any(|segment| segment.way == Way::Requested);
        let is_by_ring = |unit: &LaneUnit| {
            let active = unit.active.as_ref();
            !is_asked(unit) && active.is_some_and(|active| active.job.batch.file.descriptors().is_some())
        };
        let lost: Vec<_> = (0..self.units.len())
            .filter(|unit| is_waiting(&self.units[*unit]) && is_by_ring(&self.units[*unit]))
            .collect();
        self.fail_units(&lost, &owned::lost());
    }

    pub(super) fn fail(&mut self, unit: usize, index: usize, error: Error) {
        let LaneUnit { active, segments, .. } = &mut self.units[unit];
        let (Some(ActiveWork { job, .. }), segment) = (active, &mut segments[index]) else { return };
        if segment.failed {
            return;
        }
        segment.fail(job.batch.direction);
        let (good, error) = (segment.good(), of_file(error, &job.batch.file));
        if segment.len == 0 {
            return job.completion.fail(job.base + segment.entry, 0, error);
        }
        for share in
            segment.shares(&job.batch.pieces, segment.len).filter(|share| good < share.at + share.len)
        {
            let at = share.before + good.saturating_sub(share.at) as u64;
            job.completion.fail(job.base + share.entry, at, error.clone());
        }
    }

    /// A read's bytes are in host memory.
    pub(super) fn loaded(&mut self, unit: usize) {
        if !self.is_host {
            return self.ready.push(unit);
        }
        let job = self.job(unit);
        for segment in self.units[unit].segments.iter().filter(|segment| segment.registered) {
            for share in segment.shares(&job.batch.pieces, segment.good()) {
                let (from, to) = (segment.wanted().after(share.at).start, share.address as *mut u8);
                // SAFETY: the unit's memory is its own, the caller vouched for its memory; they cannot overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, to, share.len) };
            }
        }
        self.finish(unit);
    }

    /// The drive refused a work: a job of its own stages it.
    fn stage(&mut self, mut active: ActiveWork, refusal: &Arc<Refusal>) {
        active.finished = true;
        self.shared.works.fetch_sub(1, Ordering::Relaxed);
        let completion = &active.job.completion;
        let staged = Election { engine: EngineKind::Staged, ..completion.election().refusing(refusal) };
        completion.elected(Arc::new(staged));
        self.shared.push(active.job.staged(active.work));
    }

    /// Works that were cancelled before their copies could begin.
    pub(super) fn leave_out(&mut self, units: Vec<usize>) {
        for unit in units {
            let LaneUnit { active, kind, .. } = &mut self.units[unit];
            let (Some(active), kind) = (active.take(), *kind) else { continue };
            self.free(unit, kind);
            self.shared.works.fetch_sub(1, Ordering::Relaxed);
            active.leave_out();
        }
    }

    pub(super) fn free(&mut self, unit: usize, kind: UnitKind) {
        match kind {
            UnitKind::Slot => self.free_slots.push(unit),
            UnitKind::Cell => self.free_cells.push(unit),
            UnitKind::Bare => self.free_bare.push(unit),
        }
    }

    pub(super) fn finish(&mut self, unit: usize) {
        let LaneUnit { active, segments, kind, .. } = &mut self.units[unit];
        let (Some(mut active), kind) = (active.take(), *kind) else { return };
        if let Some(refusal) = active.detour.take() {
            self.free_bare.push(unit);
            return self.stage(active, &refusal);
        }
        let mut moved = Moved::default();
        for segment in segments.iter() {
            let (job, good) = (&active.job, segment.good());
            moved = moved.plus(segment.moved_for(&job.batch.pieces));
            if good < segment.len && !segment.failed {
                for share in segment.shares(&job.batch.pieces, segment.len) {
                    let there = good.saturating_sub(share.at).min(share.len) as u64;
                    job.completion.cut(job.base + share.entry, share.before + there);
                }
            }
        }
        self.free(unit, kind);
        active.finished = true;
        moved[Way::Buffered] = moved[Way::Buffered].saturating_sub(active.lost);
        self.shared.works.fetch_sub(1, Ordering::Relaxed);
        let cpus = (self.index == 0).then_some(|| self.shared.config.cpus_of(cpus_now()));
        if let JobWidth::Learnt(meter) = &active.job.width
            && moved.total() >= CHUNK / 2
            && let Some(heard) = meter.moved(moved.total(), || self.shared.threads.reported(), cpus)
        {
            self.shared.follow(heard);
        }
        self.done.push((active.job.completion.clone(), moved));
    }

    /// Reports works that are done. Called while this thread holds no job on its stack.
    pub(super) fn tell_done(&mut self) {
        if self.done.is_empty() {
            return;
        }
        for (completion, moved) in self.done.drain(..) {
            completion.work_done(moved);
        }
    }
}
