//! Shared by the examples.

/// User and system seconds of this process.
pub(crate) fn cpu() -> (f64, f64) {
    // SAFETY: a zeroed rusage is a valid value for the kernel to overwrite.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}
