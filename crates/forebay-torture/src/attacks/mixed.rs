//! Many threads at once: calls, batches and operations of streams of random sizes.

use super::worker::{Rule, TestFile, Worker};
use crate::random::Random;
use crate::trial::{Outcome, Trial};

const THREADS: u64 = 6;

pub fn run(trial: &'static Trial) -> Outcome {
    let test_files = test_files(trial, "mixed", THREADS);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let test_file = &test_files[number as usize % test_files.len()];
            scope.spawn(move || {
                let mut worker = Worker::new(trial, test_file, Rule::AllGood, number);
                while !trial.is_over() {
                    worker.one();
                }
            });
        }
    });
    test_files.iter().for_each(TestFile::close);
    Ok(())
}

/// A file on the disk and one in memory, with O_DIRECT or without.
pub fn test_files(trial: &'static Trial, salt: &str, workers: u64) -> Vec<TestFile> {
    let mut random: Random = trial.random(salt);
    let places = [Some(trial.disk()), trial.memory()];
    let make = |(at, place): (usize, &std::path::Path)| {
        let flags = random.one_of(&[0, libc::O_DIRECT]);
        let fixed = random.one_of(&[3 << 20, 16 << 20, 40 << 20]) + random.below(5000);
        TestFile::new(&place.join(format!("{salt}-{at}")), random.next(), fixed, workers, flags)
    };
    places.into_iter().flatten().enumerate().map(make).collect()
}
