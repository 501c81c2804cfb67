//! Forks in the middle of work. Children exit, run another program, use forebay themselves or try their parent's handles;
//! the parent's results stay right, and no child hangs.

use std::time::{Duration, Instant};

use forebay::{File, Session};

use super::mixed::test_files;
use super::worker::{Rule, TestFile, Worker};
use crate::bytes::{difference, make};
use crate::cufile::cufile;
use crate::random::Random;
use crate::trial::{Outcome, Trial, threads};

const THREADS: u64 = 3;
const LEN: usize = 1 << 20;
const KEY: u64 = 77;
/// A child that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(30);

pub fn run(trial: &'static Trial) -> Outcome {
    let test_files = test_files(trial, "forks", THREADS);
    let own = trial.disk().join("own");
    make(&own, KEY, LEN as u64);
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
        let mut random = trial.random("forks");
        while !trial.is_over() {
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            fork(trial, &test_files[0], &own, &mut random);
        }
    });
    test_files.iter().for_each(TestFile::close);
    Ok(())
}

fn fork(trial: &Trial, test_file: &TestFile, own: &std::path::Path, random: &mut Random) {
    let kind = random.below(6);
    // SAFETY: the child runs what programs run in children, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match kind {
            0 => 0,
            1 => exec(),
            2 => by_cufile(test_file),
            3 => {
                std::thread::sleep(Duration::from_millis(100));
                0
            }
            _ => by_session(own),
        };
        // SAFETY: as above.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    trial.add("forks", 1);
    let what = ["exit", "exec", "cuFileRead by the parent's handle", "wait", "a session", "a session"]
        [kind as usize];
    let begun = Instant::now();
    let mut status = 0;
    // SAFETY: the place is valid.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > LIMIT {
            trial.fail(format!("a forked child hangs: {what}{}", threads(&child.to_string())));
            // SAFETY: the child is ours and not waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    trial.check(status == 0, || format!("a forked child ({what}) ended with status {status:#x}"));
}

fn exec() -> i32 {
    let arguments = [c"true".as_ptr(), std::ptr::null()];
    // SAFETY: the list ends with a null.
    unsafe { libc::execv(c"/bin/true".as_ptr(), arguments.as_ptr()) };
    1
}

/// A session of the child's own, for host memory.
fn by_session(path: &std::path::Path) -> i32 {
    let read = || -> forebay::Result<bool> {
        let session = Session::open()?;
        let mut buffer = session.host_buffer(LEN)?;
        session.read(&File::open(path)?, 0, &mut buffer)?;
        Ok(buffer.as_slice().is_some_and(|bytes| difference(bytes, KEY, 0).is_none()))
    };
    match read() {
        Ok(true) => 0,
        Ok(false) => 2,
        Err(error) => {
            eprintln!("in a child: {error:?}");
            3
        }
    }
}

/// The right bytes or an error, both without a hang.
fn by_cufile(test_file: &TestFile) -> i32 {
    let mut bytes = vec![0; 100_000];
    let found = cufile().read(test_file.handle, bytes.as_mut_ptr() as u64, bytes.len(), 12_345);
    if found < 0 {
        return 0;
    }
    if found == bytes.len() as isize && test_file.difference(&bytes, 12_345).is_none() { 0 } else { 4 }
}
