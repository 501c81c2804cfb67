//! The monotonic clock, as a number that other processes of the machine read too.

/// Nanoseconds.
pub(crate) fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds, some milliseconds old but cheap.
pub(crate) fn coarse() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in the struct; both clocks are always there.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
