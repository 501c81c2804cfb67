//! The cost of registering: one call registers at a time, and every other call waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::environment::number;

/// Microseconds for each MiB; 0: no call waits for another.
static COST: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(number(NAME, 0)));
const NAME: &str = "FAKE_CUDA_REGISTER_US";
static LOCK: Mutex<()> = Mutex::new(());
/// Microseconds that registrations held it, and those of the longest.
static HELD: AtomicU64 = AtomicU64::new(0);
static LONGEST: AtomicU64 = AtomicU64::new(0);

/// Sets the cost; `None` sets it back to the environment's value, and resets the counts.
pub(crate) fn set_cost(micros: Option<u64>) {
    COST.store(micros.unwrap_or_else(|| number(NAME, 0)), Ordering::Relaxed);
    HELD.store(0, Ordering::Relaxed);
    LONGEST.store(0, Ordering::Relaxed);
}

/// Microseconds in which registrations kept others waiting since the cost was set, and in the longest of them.
pub(crate) fn held() -> (u64, u64) {
    (HELD.load(Ordering::Relaxed), LONGEST.load(Ordering::Relaxed))
}

/// Waits for a registration that is under way.
pub(crate) fn pass() {
    if COST.load(Ordering::Relaxed) > 0 {
        drop(LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Takes as long as registering `bytes` costs.
pub(crate) fn hold(bytes: usize) {
    let cost = COST.load(Ordering::Relaxed);
    if cost > 0 {
        let _held = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        std::thread::sleep(Duration::from_micros((cost * bytes as u64) >> 20));
        let took = begun.elapsed().as_micros() as u64;
        HELD.fetch_add(took, Ordering::Relaxed);
        LONGEST.fetch_max(took, Ordering::Relaxed);
    }
}
