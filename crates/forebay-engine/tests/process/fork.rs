//! Real forks: a child has a session of its own, files of the parent's go on, and nothing hangs, whatever the parent's
//! threads were doing.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Scratch, Stop, disk, has_hint, in_process, install_gpu, pattern, turn};
use crate::pages::{self, MIB, gpu, memory, settle};
use forebay_engine::source::MemorySource;
use forebay_engine::{EngineKind, File, Offsets, Session};
use forebay_error::ErrorKind;

const KEY: u64 = 9;
const LEN: usize = 3 * MIB + 777;

/// Forks; whether this is the child. A child ends by [`leave`], a panic, or (if it hangs) the alarm.
fn fork() -> Option<Child> {
    // SAFETY: the child runs what is under test.
    let child = unsafe { libc::fork() };
    if child > 0 {
        return Some(Child(child));
    }
    assert_eq!(child, 0, "{}", std::io::Error::last_os_error());
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("in the child: {panic}");
        leave(99);
    }));
    // SAFETY: no pointers are passed.
    unsafe { libc::alarm(20) };
    None
}

/// Ends the child at once, without what the parent's exit would do.
fn leave(code: i32) -> ! {
    // SAFETY: no pointers are passed.
    unsafe { libc::_exit(code) }
}

struct Child(libc::pid_t);

impl Child {
    #[track_caller]
    fn check(self) {
        let mut status = 0;
        // SAFETY: a valid place for the status of our own child.
        unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "this step of the child did not come out as it should");
    }
}

/// Runs a block in a forked child, and checks that its value is 0.
macro_rules! in_child {
    ($body:block) => {
        match fork() {
            None => leave($body),
            Some(child) => child.check(),
        }
    };
}

/// Numbers the steps of a child: the first that fails is its exit code.
fn steps<const COUNT: usize>(steps: [bool; COUNT]) -> i32 {
    steps.iter().position(|good| !good).map_or(0, |at| at as i32 + 1)
}

fn reads(session: &Session, file: &File, len: usize) -> bool {
    let mut buffer = session.host_buffer(len).unwrap();
    let read = session.read(file, 0, &mut buffer);
    if let Err(error) = &read {
        eprintln!("{error:?}");
    }
    read.is_ok() && buffer.as_slice() == Some(&pattern(KEY, 0, len))
}

fn subject(directory: &Path) -> (Scratch, File) {
    let scratch = Scratch::with_pattern(directory, KEY, LEN);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    (scratch, file)
}

#[test]
fn a_child_has_a_session_of_its_own_without_the_gpu() {
    in_process(&[], &[], || {
        install_gpu();
        let session = Session::open().unwrap();
        assert_eq!(session.devices().gpus.len(), 1);
        let (_scratch, file) = subject(&disk());
        let (_other, in_memory) = subject(&memory());
        assert!(reads(&session, &file, LEN) && reads(&session, &in_memory, LEN));
        let mut on_gpu = session.buffer(0, LEN).unwrap();
        session.read(&file, 0, &mut on_gpu).unwrap();
        let apart = Session::with_config(pages::config()).unwrap();
        let in_child_of = |generation: i32| {
            let own = Session::open().unwrap();
            let missing = own.devices().missing.clone();
            let mut host = own.host_buffer(LEN).unwrap();
            host.copy_from_slice(&pattern(KEY, 0, LEN)).unwrap();
            let refused = own.buffer(0, 10).map(|buffer| buffer.device().info().is_host);
            10 * generation
                + steps([
                    own.devices().gpus.is_empty(),
                    missing
                        .is_some_and(|error| has_hint(&error, "spawn") && error.message().contains("fork")),
                    reads(&own, &file, LEN) && reads(&own, &file, 4096),
                    reads(&own, &in_memory, LEN),
                    own.write(&in_memory, 0, &host).is_ok() && own.write(&file, 0, &host).is_ok(),
                    // What the child has from its parent stands for its own.
                    session.devices().gpus.is_empty() && reads(&session, &file, LEN),
                    // Its GPU's memory is not the host's.
                    own.locate(on_gpu.address()).is_err_and(|error| has_hint(&error, "spawn")),
                    own.locate(host.address()).is_ok_and(|memory| memory.device.info().is_host),
                    // Device 0 is host memory now.
                    refused.is_ok_and(|is_host| is_host),
                    Session::open().unwrap().stats().iter().map(|stats| stats.requests).sum::<u64>() > 4,
                ])
        };
        in_child!({
            let code = in_child_of(0);
            if code == 0 {
                // Its child is as good.
                in_child!({ in_child_of(1) - 10 });
            }
            code
        });
        in_child!({
            let mut small = apart.host_buffer(100).unwrap();
            let refused = apart.read(&file, 0, &mut small).unwrap_err();
            let on_gpu_refused = session.write(&file, 0, &on_gpu).unwrap_err();
            let code = steps([
                refused.kind() == ErrorKind::Unsupported && refused.message().contains("forked"),
                has_hint(&on_gpu_refused, "no GPU because"),
            ]);
            drop((apart, on_gpu, session, file));
            code
        });
        assert!(reads(&session, &file, LEN));
        assert!(on_gpu.to_vec().unwrap() == pattern(KEY, 0, LEN));
        session.read(&file, 0, &mut on_gpu).unwrap();
    });
}

#[test]
fn a_child_of_a_process_without_a_session_has_the_gpu() {
    in_process(&[], &[], || {
        let (_scratch, file) = subject(&disk());
        let fake = fake_cuda::library_path().unwrap();
        // SAFETY: this process has one thread that reads or writes variables.
        unsafe { std::env::set_var("FOREBAY_LIBCUDA", fake) };
        in_child!({
            let session = Session::open().unwrap();
            let mut buffer = session.buffer(0, LEN).unwrap();
            let read = session.read(&file, 0, &mut buffer).is_ok();
            steps([
                session.devices().gpus.len() == 1,
                read && buffer.to_vec().unwrap() == pattern(KEY, 0, LEN),
            ])
        });
    });
}

#[test]
fn what_is_in_flight_is_the_parents() {
    in_process(&[], &[], || {
        let turn = turn();
        let session = Session::open().unwrap();
        let source = MemorySource::new(pattern(KEY, 0, LEN), Duration::from_millis(30));
        let slow = File::from_source(std::sync::Arc::new(source)).unwrap();
        let (_scratch, file) = subject(&memory());
        settle();
        let map = session.map(&file, &gpu(&session)).unwrap();
        let mut pieces = session.buffer(0, 1000).unwrap();
        map.gather(Offsets::Host(&[5]), 1000, &mut pieces).unwrap();
        turn.fake.set_delay_us(300_000);
        let ticket = || session.submit_read(&slow, 0, session.host_buffer(LEN).unwrap()).unwrap();
        let (waited, dropped, polled) = (ticket(), ticket(), ticket());
        let on_gpu = session.submit_read(&file, 0, session.buffer(0, LEN).unwrap()).unwrap();
        in_child!({
            let outcome = waited.wait();
            let error = outcome.result().unwrap_err();
            let is_done = polled.is_done();
            polled.cancel();
            let gathered = map.gather(Offsets::Host(&[5]), 1000, &mut pieces);
            let code = steps([
                error.kind() == ErrorKind::Unsupported && error.message().contains("forked"),
                is_done && polled.wait_timeout(Duration::from_secs(9)),
                gathered.is_err_and(|error| error.kind() == ErrorKind::Unsupported),
                map.check().is_err(),
                reads(&session, &file, LEN),
            ]);
            drop((outcome, dropped, on_gpu, map, pieces, polled));
            code
        });
        turn.fake.set_delay_us(20);
        for ticket in [waited, dropped, polled] {
            let buffer = ticket.wait().into_result().unwrap().1;
            assert!(buffer.as_slice().unwrap() == pattern(KEY, 0, LEN));
        }
        let buffer = on_gpu.wait().into_result().unwrap().1;
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
        map.gather(Offsets::Host(&[5]), 1000, &mut pieces).unwrap();
    });
}

// Every lock of the engine's is held now and then while the process forks.
#[test]
fn forks_in_the_thick_of_it() {
    in_process(&[], &[], || {
        let _turn = turn();
        let session = Session::open().unwrap();
        let (scratch, file) = subject(&disk());
        let (other, in_memory) = subject(&memory());
        settle();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for thread in 0..6 {
                let (session, file, in_memory, stop) = (&session, &file, &in_memory, &stop);
                let (scratch, other) = (&scratch, &other);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match thread {
                            0 => drop(session.submit_read(file, 0, session.host_buffer(LEN).unwrap())),
                            1 => drop(session.submit_read(in_memory, 0, session.buffer(0, LEN).unwrap())),
                            2 => {
                                let mut buffer = session.host_buffer(LEN).unwrap();
                                buffer.copy_from_slice(&pattern(KEY, 0, LEN)).unwrap();
                                session.write(in_memory, 0, &buffer).unwrap();
                            }
                            3 => {
                                let raw = pages::raw(scratch.path());
                                // SAFETY: the descriptor is open until the file is dropped.
                                let adopted = unsafe { File::adopt(std::os::fd::AsRawFd::as_raw_fd(&raw)) };
                                let mut small = session.buffer(0, 5000).unwrap();
                                session.read(&adopted.unwrap(), 3, &mut small).unwrap();
                            }
                            4 => {
                                session.trim();
                                let opened = File::open(other.path()).unwrap();
                                let mut small = session.buffer(0, 70_000).unwrap();
                                session.read(&opened, 0, &mut small).unwrap();
                            }
                            _ => {
                                let own = Session::with_config(pages::config()).unwrap();
                                let mut buffer = own.buffer(0, LEN).unwrap();
                                assert_ne!(
                                    own.read(file, 0, &mut buffer).unwrap().engine(),
                                    EngineKind::Noop
                                );
                            }
                        }
                    }
                });
            }
            for round in 0..60 {
                in_child!({
                    let own = Session::open().unwrap();
                    let mut buffer = own.host_buffer(LEN).unwrap();
                    buffer.copy_from_slice(&pattern(KEY, 0, LEN)).unwrap();
                    let raw = pages::raw(scratch.path());
                    // SAFETY: the descriptor is open until the end of the child.
                    let adopted = unsafe { File::adopt(std::os::fd::AsRawFd::as_raw_fd(&raw)) }.unwrap();
                    let code = steps([
                        reads(&own, &file, LEN),
                        reads(&own, &adopted, LEN),
                        own.write(&in_memory, 0, &buffer).is_ok(),
                        own.submit_read(&file, 0, buffer).unwrap().wait().into_result().is_ok(),
                    ]);
                    drop(adopted);
                    code
                });
                std::thread::sleep(Duration::from_micros(300 * (round % 7)));
            }
        });
        assert!(reads(&session, &file, LEN) && reads(&session, &in_memory, LEN));
    });
}
