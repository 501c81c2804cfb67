//! Whether reads from a disk come often enough for a launch of the kernel to pay.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::tuning::resident::{COLD_LAUNCH_PIECES, COLD_SPAN};

/// Cold pieces that found no launch under way. Threads may disagree by some: that costs a launch, or a copy.
#[derive(Debug, Default)]
pub(super) struct ColdLaunchDemand {
    /// Microseconds.
    since: AtomicU64,
    count: AtomicU32,
}

impl ColdLaunchDemand {
    /// Counts a piece; whether there were enough of them lately.
    pub(super) fn count(&self, now: u64) -> bool {
        if now.saturating_sub(self.since.load(Ordering::Relaxed)) > COLD_SPAN.as_micros() as u64 {
            self.since.store(now, Ordering::Relaxed);
            self.count.store(0, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed) + 1 >= COLD_LAUNCH_PIECES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pieces_that_come_close_together_want_a_launch() {
        let span = COLD_SPAN.as_micros() as u64;
        let demand = ColdLaunchDemand::default();
        assert!((1..100).all(|piece| !demand.count(piece * (span + 1))));
        let begun = 200 * span;
        let close = (0..span).take_while(|piece| !demand.count(begun + piece)).count();
        assert_eq!(close as u32, COLD_LAUNCH_PIECES - 1);
        assert!(!demand.count(begun + 2 * span), "those were long ago");
    }
}
