//! Signals all the time: a timer for each calling thread and one for the process, whose handlers do not restart calls.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::mixed::test_files;
use super::worker::{Rule, TestFile, Worker};
use crate::trial::{Outcome, Skip, Trial};

static CAUGHT: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_signal: c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

const THREADS: u64 = 3;

pub fn run(trial: &'static Trial) -> Outcome {
    for signal in [libc::SIGUSR1, libc::SIGALRM] {
        // SAFETY: the handler adds to a number.
        let rc = unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = count as *const () as usize;
            libc::sigaction(signal, &raw const action, null_mut())
        };
        assert_eq!(rc, 0, "sigaction");
    }
    let test_files = test_files(trial, "signals", THREADS);
    // The library starts its threads by these.
    for (number, test_file) in test_files.iter().enumerate() {
        let mut worker = Worker::new(trial, test_file, Rule::AllGood, number as u64);
        (0..40).for_each(|_| worker.one());
    }
    // Callers that block the process's signal leave it to the library's threads, if those take it.
    mask(trial.random("mask").once_in(2));
    let of_process = Timer::start(libc::SIGEV_SIGNAL, libc::SIGALRM, 50)?;
    std::thread::scope(|scope| {
        // The kernel starts threads of its own for pages that are not there.
        scope.spawn(|| {
            while !trial.is_over() {
                test_files.iter().for_each(TestFile::forget_pages);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        for number in 0..THREADS {
            let test_file = &test_files[number as usize % test_files.len()];
            scope.spawn(move || {
                let mut random = trial.random(&format!("timer {number}"));
                let mut worker = Worker::new(trial, test_file, Rule::AllGood, number);
                while !trial.is_over() {
                    let timer = Timer::start(libc::SIGEV_THREAD_ID, libc::SIGUSR1, random.between(20, 50));
                    for _ in 0..20 {
                        worker.one();
                    }
                    drop(timer);
                }
            });
        }
    });
    drop(of_process);
    std::thread::sleep(Duration::from_millis(1));
    trial.add("signals", CAUGHT.load(Ordering::Relaxed));
    test_files.iter().for_each(TestFile::close);
    Ok(())
}

/// Blocks the process's signal on this thread and those that it starts.
fn mask(is_blocked: bool) {
    // SAFETY: the set is valid.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigaddset(&raw mut set, libc::SIGALRM);
        let how = if is_blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        libc::pthread_sigmask(how, &raw const set, null_mut());
    }
}

/// A timer that signals again and again; for the calling thread, or for the process.
struct Timer(libc::timer_t);

impl Timer {
    fn start(notify: c_int, signal: c_int, micros: u64) -> Result<Self, Skip> {
        let time = libc::timespec { tv_sec: 0, tv_nsec: micros as i64 * 1000 };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: all places are valid; the structure may be zeros.
        unsafe {
            let mut event: libc::sigevent = zeroed();
            (event.sigev_notify, event.sigev_signo) = (notify, signal);
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) != 0 {
                return Err(Skip(format!("no timers here: {}", std::io::Error::last_os_error())));
            }
            assert_eq!(libc::timer_settime(timer, 0, &raw const times, null_mut()), 0, "timer_settime");
            Ok(Self(timer))
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}
