//! A program closes everything above 2 in the middle of work, as daemons do, and opens other files, which get the
//! numbers. Every call ends with the right bytes or an error; no byte comes into the new files.
//!
//! All is closed in the middle of calls or between them. The numbers are used again when the calls have ended that were
//! on their way: nobody can see a number change hands between a look at it and the system call after it.

use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::mixed::test_files;
use super::worker::{Rule, Worker};
use crate::bytes::{file_difference, make, open};
use crate::trial::{Outcome, Skip, Trial};

const THREADS: u64 = 4;
const STRANGERS: u64 = 64;
const LEN: u64 = 64 << 10;

pub fn run(trial: &'static Trial) -> Outcome {
    if cfg!(debug_assertions) {
        let why = "with debug assertions the standard library ends a program whose descriptors others close";
        return Err(Skip(format!("{why}; `make torture` has none")));
    }
    let test_files = test_files(trial, "closed", THREADS);
    let mut random = trial.random("close all");
    let path = |number: u64| trial.disk().join(format!("stranger-{number}"));
    let paths: Vec<PathBuf> = (0..STRANGERS).map(path).collect();
    for (key, path) in paths.iter().enumerate() {
        make(path, key as u64, LEN);
    }
    let (stop, calls) = (AtomicBool::new(false), RwLock::new(()));
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (test_file, stop, calls) = (&test_files[number as usize % test_files.len()], &stop, &calls);
            scope.spawn(move || {
                let mut worker = Worker::new(trial, test_file, Rule::GoodOrError, number);
                while !stop.load(Ordering::Relaxed) {
                    let call = calls.read();
                    worker.one();
                    drop(call);
                }
            });
        }
        std::thread::sleep(Duration::from_micros(random.below(120_000)));
        let between = if random.once_in(2) {
            let between = calls.write();
            close_from_three();
            between
        } else {
            close_from_three();
            calls.write()
        };
        trial.add("times all was closed", 1);
        // As many files as there were numbers.
        let open = |path| open(path, 0).expect("a file can be opened").into_raw_fd();
        let strangers: Vec<_> = paths.iter().map(|path: &PathBuf| open(path)).collect();
        drop(between);
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        // By number, as they were opened: nobody else may have closed them, or put another file there.
        for (fd, path) in strangers.iter().zip(&paths) {
            let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
            let is_there = link.as_ref().is_ok_and(|link| link == path);
            trial
                .check(is_there, || format!("the descriptor of an unrelated file, {fd}, is {link:?} by now"));
        }
    });
    for (key, path) in paths.iter().enumerate() {
        if let Some(text) = file_difference(path, key as u64, LEN) {
            trial.fail(format!("an unrelated file was written: {text}"));
        }
        trial.add("bytes compared", LEN);
    }
    // Other files have these descriptor numbers by now: forget them, do not close them.
    test_files.into_iter().for_each(std::mem::forget);
    Ok(())
}

fn close_from_three() {
    // SAFETY: that descriptors of others go is the attack.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    if rc != 0 {
        (3..4096).for_each(crate::bytes::close);
    }
}
