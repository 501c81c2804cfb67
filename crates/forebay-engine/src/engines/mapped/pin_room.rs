//! Room for pins: within the budget, by letting go of others, and back to a system that runs short.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::budget::Reservation;
use super::eligibility::Reason;
use super::pin_cache::PinCache;
use super::region::WINDOW;
use super::registrar::PinPolicy;
use super::window::WindowState;
use crate::runtime::lock;
use crate::source::version::FileId;
use crate::tuning::machine::{BRIEF_WAIT, PATIENCE};

impl PinCache {
    pub(super) fn reserve(
        &self,
        len: u64,
        asked_before: u64,
        policy: PinPolicy,
    ) -> std::result::Result<Reservation, Reason> {
        let budget = match Reservation::take(len, &self.budget()) {
            Ok(reservation) => return Ok(reservation),
            Err(budget) => budget,
        };
        let evicted =
            self.make_room(len, if policy == PinPolicy::Always { self.now() } else { asked_before });
        if evicted && policy == PinPolicy::Always {
            self.reclaimer.wait_for_all(5 * BRIEF_WAIT);
            if let Ok(reservation) = Reservation::take(len, &self.budget()) {
                return Ok(reservation);
            }
        }
        Err(budget.used_up())
    }

    /// Releases at least `len` bytes that were not used since `before` or belong to closed files. False, and nothing is
    /// released, if there are fewer: a program that reads more than the budget in a loop would evict each window right
    /// before its next use.
    fn make_room(&self, len: u64, before: u64) -> bool {
        let idle = self.now().saturating_sub((3 * PATIENCE).as_millis() as u64);
        let files = self.all_files();
        let mut victims = Vec::new();
        for file in &files {
            let closed = !file.is_open();
            for window in &file.windows {
                let last = window.last_use.load(Ordering::Relaxed);
                let is_free =
                    matches!(&*lock(&window.state), WindowState::Pinned(pin) if Arc::strong_count(pin) == 1);
                if is_free && (closed || last < before.max(idle)) {
                    victims.push((!closed, last, window));
                }
            }
        }
        victims.sort_unstable_by_key(|(is_open, last, _)| (*is_open, *last));
        let mut found = 0;
        let count = victims
            .iter()
            .take_while(|_| {
                found < len && {
                    found += WINDOW;
                    true
                }
            })
            .count();
        if found < len {
            return false;
        }
        victims[..count].iter().for_each(|(_, _, window)| {
            window.release(false);
        });
        true
    }

    /// Lets go of everything, or of one file; the bytes.
    pub(crate) fn trim(&self, id: Option<FileId>) -> u64 {
        let bytes = self.release(id);
        self.reclaimer.wait_for_all(5 * BRIEF_WAIT);
        bytes
    }

    /// As [`PinCache::trim`], without waiting.
    pub(crate) fn release(&self, id: Option<FileId>) -> u64 {
        let files = self.all_files();
        let chosen = files.iter().filter(|file| id.is_none_or(|id| file.version().id() == id));
        chosen.map(|file| file.release()).sum()
    }

    /// Memory runs short: releases the least recently used half, and pins nothing for a while.
    pub(super) fn release_half(&self) {
        self.held_off_until.store(self.now() + (3 * PATIENCE).as_millis() as u64, Ordering::Relaxed);
        self.release_oldest(self.holdings().0.div_ceil(2));
    }

    pub(super) fn release_oldest(&self, bytes: u64) {
        let files = self.all_files();
        let mut windows: Vec<_> = files
            .iter()
            .flat_map(|file| file.windows.iter())
            .filter(|window| matches!(&*lock(&window.state), WindowState::Pinned(_)))
            .collect();
        windows.sort_unstable_by_key(|window| window.last_use.load(Ordering::Relaxed));
        let mut gone = 0;
        for window in windows {
            if gone >= bytes {
                break;
            }
            gone += window.release(false);
        }
    }
}
