//! Clocks and thread numbers.

use std::cell::Cell;

/// Nanoseconds of a clock.
pub(crate) fn clock(which: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the answer; both clocks that are asked for exist on every Linux.
    unsafe { libc::clock_gettime(which, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The number of this thread, as gettid says; asked once for each thread.
pub fn thread_id() -> u32 {
    THREAD.with(|known| {
        if known.get() == 0 {
            known.set(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        }
        known.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_their_own_numbers() {
        let here = thread_id();
        assert_eq!(here, thread_id());
        assert_ne!(std::thread::spawn(thread_id).join().unwrap(), here);
    }
}
