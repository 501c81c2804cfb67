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
            // SAFETY: gettid has no arguments and always succeeds.
            known.set(unsafe { libc::gettid() } as u32);
        }
        known.get()
    })
}

/// `2026-11-21 10:00:00 UTC`, from seconds since 1970.
pub(crate) fn date(seconds: u64) -> String {
    // Days to year, month and day by eras of 400 years that begin in March.
    let (days, rest) = ((seconds / 86_400).min(4_000_000_000) as i64 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_795_219_200), "2026-11-21 00:00:00 UTC");
    }

    #[test]
    fn threads_have_their_own_numbers() {
        let here = thread_id();
        assert_eq!(here, thread_id());
        assert_ne!(std::thread::spawn(thread_id).join().unwrap(), here);
    }
}
