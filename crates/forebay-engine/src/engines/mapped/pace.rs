//! How fast windows are registered, and what share of the time that may take beside copies.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::eligibility::{MountKey, Reason};
use super::region::WINDOW;
use crate::runtime::lock;
use crate::runtime::process::PerProcess;
use crate::tuning::callers::LONG_PART;
use crate::tuning::mapped::{PACE_PIECES, PIECE_TIME, SHARE_BESIDE, SHARE_LOOP};

/// How fast pages were registered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RegisterPace {
    pieces: u32,
    /// Bytes a nanosecond: the best, since whatever else the machine did can only have made it slower.
    best: f64,
}

impl RegisterPace {
    pub(super) fn learn(&mut self, bytes: u64, took: Duration) {
        if bytes >= LONG_PART as u64 {
            self.pieces = self.pieces.saturating_add(1);
            self.best = self.best.max(bytes as f64 / took.as_nanos().max(1) as f64);
        }
    }

    /// Whether enough was measured to decide by.
    pub(super) fn is_known(self) -> bool {
        self.pieces >= PACE_PIECES
    }

    /// Less than `least` GB/s: too slow for a window to be registered when it is read for the first time. Lanes bring its
    /// bytes faster, and while a thread registers no copies start. As long as nothing else is known, that is so where
    /// pages are small.
    pub(super) fn is_slow(self, least: f64, has_small_pages: bool) -> bool {
        if self.is_known() { self.best < least } else { has_small_pages && least > 0.0 }
    }

    /// Whether it was measured to be at least this, in GB/s.
    pub(super) fn is_known_to_reach(self, least: f64) -> bool {
        self.is_known() && self.best >= least
    }

    /// The measured pace, if there are enough measurements.
    pub(super) fn gb_per_second(self) -> Option<f64> {
        self.is_known().then_some(self.best)
    }

    pub(super) fn reason(self) -> Reason {
        let measured = match self.pieces {
            0 => String::new(),
            _ => format!(" ({:.1} GB/s)", self.best),
        };
        Reason::new(format!(
            "registering takes longer than staging on this file system{measured}, and is for pages that are read for the \
             third time"
        ))
        .hint("to have them registered at once: FOREBAY_PIN_PACE=0")
    }

    /// Bytes that are registered at once beside copies, which wait that long: a power of two.
    pub(super) fn piece(self) -> u64 {
        let bytes = (self.best * PIECE_TIME.as_nanos() as f64) as u64;
        let piece = bytes.checked_ilog2().map_or(0, |log| 1 << log);
        if self.is_known() { piece.clamp(LONG_PART as u64, WINDOW) } else { LONG_PART as u64 }
    }
}

impl fmt::Display for RegisterPace {
    /// The text in receipts and `forebay check`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pieces {
            0 => f.write_str("not measured yet")?,
            _ => write!(f, "{:.1} GB/s", self.best)?,
        }
        write!(
            f,
            ", in pieces of {} MiB, 1/{SHARE_BESIDE} to 1/{SHARE_LOOP} of the time beside copies and 1/{} otherwise",
            self.piece() >> 20,
            SHARE_LOOP / 2
        )
    }
}

/// What the process has measured.
#[derive(Debug, Default)]
struct MountPaces(Mutex<HashMap<MountKey, RegisterPace>>);

// SAFETY: no other kind has the name.
unsafe impl PerProcess for MountPaces {
    const NAME: &'static str = "paces of registering";
}

/// How fast pages of this file system are registered.
pub(super) fn of_mount(key: MountKey) -> RegisterPace {
    lock(&MountPaces::of_process().0).get(&key).copied().unwrap_or_default()
}

/// The best of all file systems of a device.
pub(super) fn of_device(uuid: [u8; 16]) -> RegisterPace {
    let paces = lock(&MountPaces::of_process().0);
    let of_it = paces.iter().filter(|(key, _)| key.0 == uuid).map(|(_, pace)| *pace);
    of_it.max_by(|one, other| one.best.total_cmp(&other.best)).unwrap_or_default()
}

/// Pages were registered in this time.
pub(super) fn learn_of_mount(key: MountKey, bytes: u64, took: Duration) {
    lock(&MountPaces::of_process().0).entry(key).or_default().learn(bytes, took);
}

/// The lanes' rate in bytes a second, by their last measurement.
#[derive(Debug, Default)]
pub(super) struct LanesPace(AtomicU64);

impl LanesPace {
    /// Takes what the lanes have measured. While they search for their best number they report nothing.
    pub(super) fn take(&self, measured: Option<f64>) {
        if let Some(pace) = measured {
            self.0.store(pace as u64, Ordering::Relaxed);
        }
    }

    /// GB/s; 0 if that is not known.
    pub(super) fn gb_per_second(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// How long to leave the driver to others after a piece of a window was registered in this time. The longer a loop has gone on,
/// the longer it will: with each visit more time is spent on it.
pub(super) fn pause_after(took: Duration, visits: u64, is_beside_copies: bool) -> Duration {
    let of_loop = u64::from(4 * SHARE_BESIDE) / visits.max(1);
    let share = of_loop.clamp(u64::from(SHARE_LOOP), u64::from(SHARE_BESIDE)) as u32;
    took * (if is_beside_copies { share } else { SHARE_LOOP / 2 } - 1)
}

/// How long a piece takes: no more than four times what the best pace says, once that is known. On a machine that is short of CPU the
/// thread also waits for its turn, and would register ever less.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceClock {
    pub(super) begun: Instant,
    longest: Duration,
}

impl PieceClock {
    pub(super) fn start(pace: RegisterPace) -> Self {
        let nanos = (4 * pace.piece()) as f64 / pace.best.max(f64::MIN_POSITIVE);
        let longest = if pace.is_known() { Duration::from_nanos(nanos as u64) } else { Duration::MAX };
        Self { begun: Instant::now(), longest }
    }

    pub(super) fn took(self) -> Duration {
        self.begun.elapsed().min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: u64, micros: &[u64]) -> RegisterPace {
        let mut pace = RegisterPace::default();
        for took in micros {
            pace.learn(bytes, Duration::from_micros(*took));
        }
        pace
    }

    #[test]
    fn a_pace_is_slow_by_evidence() {
        let of = |micros: &[u64]| of(WINDOW, micros);
        assert!(!of(&[]).is_slow(25.0, false) && of(&[]).is_slow(25.0, true) && !of(&[]).is_slow(0.0, true));
        assert!(!of(&[4600]).is_slow(25.0, false), "one may be bad luck");
        assert!(!of(&[1200, 1300]).is_slow(25.0, true), "huge pages");
        assert!(of(&[4600, 4700]).is_slow(25.0, false));
        assert!(!of(&[4600, 4700, 1200]).is_slow(25.0, false), "the best counts");
        assert!(!of(&[1200, 90_000, 90_000]).is_slow(25.0, false));
        assert!(of(&[4600, 4700]).reason().text.contains("14.6 GB/s"));
        assert!(!of(&[0, 0]).is_slow(25.0, false));
    }

    #[test]
    fn a_piece_keeps_others_waiting_for_as_long_whatever_it_costs() {
        const MIB: u64 = 1 << 20;
        assert_eq!(of(WINDOW, &[]).piece(), LONG_PART as u64, "nothing is known");
        // 10, 20, 30 and 60 GB/s.
        for (micros, piece) in [(6711, 4), (3355, 4), (2237, 8), (1118, 16)] {
            assert_eq!(of(WINDOW, &[micros; 2]).piece(), piece * MIB, "{micros}");
        }
        assert_eq!(of(WINDOW, &[0; 2]).piece(), WINDOW);
        assert_eq!(of(LONG_PART as u64 - 1, &[1; 9]), RegisterPace::default(), "too little to tell");
        let shown = of(WINDOW, &[6711; 2]).to_string();
        assert_eq!(
            shown,
            "10.0 GB/s, in pieces of 4 MiB, 1/32 to 1/8 of the time beside copies and 1/4 otherwise"
        );
    }

    #[test]
    fn pauses_bound_the_share() {
        let took = Duration::from_micros(300);
        assert_eq!(
            [0, 1, 2, 4, 8, 900].map(|visits| pause_after(took, visits, true) / 300),
            [31, 31, 31, 31, 15, 7].map(Duration::from_micros)
        );
        assert_eq!(pause_after(took, 3, false), took * 3);
    }

    #[test]
    fn waits_for_a_cpu_are_no_slow_pace() {
        // 10 GB/s, pieces of 4 MiB: 0.42 ms each.
        let long_ago = |pace: RegisterPace| {
            let clock = PieceClock::start(pace);
            PieceClock { begun: clock.begun.checked_sub(Duration::from_secs(1)).unwrap(), ..clock }.took()
        };
        let known = long_ago(of(WINDOW, &[6711; 2]));
        assert!((1600..1700).contains(&known.as_micros()), "{known:?}");
        assert!(long_ago(of(WINDOW, &[6711])) >= Duration::from_secs(1), "nothing is known");
        assert!(PieceClock::start(of(WINDOW, &[6711; 2])).took() < Duration::from_millis(1));
    }
}
