//! How long a copy takes is known before: how to wait for it.

use std::time::Duration;

use forebay_gpu::Wait;

/// Copies of more than this take longer than the driver's own sleep is late.
const LONG: usize = 128 << 20;
/// Bytes that a device copies in a microsecond, at most.
const BYTES_PER_MICROSECOND: usize = 50_000;
/// The shortest nap that is worth its system calls.
const NAP: Duration = Duration::from_micros(20);

/// The least time that a copy of so many bytes takes.
pub(crate) fn expected(len: usize) -> Duration {
    Duration::from_micros((len / BYTES_PER_MICROSECOND) as u64)
}

/// Waits for a copy without keeping a CPU busy, and without oversleeping by more than an eighth.
pub(crate) fn nap(len: usize) -> Wait {
    if len > LONG { Wait::Block } else { Wait::Nap((expected(len) / 8).max(NAP)) }
}
