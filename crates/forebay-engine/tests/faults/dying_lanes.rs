//! Lanes that panic: what they leave behind, and who takes their place.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Scratch, Target, chill, disk, pattern, turn};
use forebay_config::{Config, IoBackend};
use forebay_engine::source::{Calls, HostRange, Kernel};
use forebay_engine::{Buffer, File, Receipt, Session};
use forebay_error::Result;

const KEY: u64 = 4;
const LEN: usize = 5_000_003;

/// Reads of the kernel that are slow, or panic when a test says so.
#[derive(Clone, Debug)]
struct Breaking {
    slow: Duration,
    breaks: Arc<AtomicBool>,
}

impl Calls for Breaking {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        assert!(!self.breaks.load(Ordering::Relaxed), "asked for");
        std::thread::sleep(if nowait { Duration::ZERO } else { self.slow });
        // SAFETY: passed on.
        unsafe { Kernel.read(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        // SAFETY: passed on.
        unsafe { Kernel.write(fd, memory, offset) }
    }
}

/// A file of pattern bytes whose reads take so long.
fn opened(slow: Duration) -> (File, Breaking, Scratch) {
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let kernel = Breaking { slow, breaks: Arc::default() };
    let file = File::options().calls(Box::new(kernel.clone())).open(scratch.path()).unwrap();
    (file, kernel, scratch)
}

fn session(lanes: usize, slots: usize) -> Session {
    let io = IoBackend::Threads;
    Session::with_config(Config { lanes, slots, slot_size: 1 << 20, io, ..Config::default() }).unwrap()
}

/// A cold read into the GPU's memory.
fn read(session: &Session, file: &File, len: usize) -> Result<(Receipt, Buffer)> {
    chill(file);
    let ticket = session.submit_read(file, 0, Target::Device.buffer(session, len)).unwrap();
    assert!(ticket.wait_timeout(Duration::from_secs(10)), "it waits for ever");
    ticket.wait().into_result()
}

/// More than the lane takes at a time, behind the one that ends it.
#[test]
fn what_waits_for_a_lane_that_panics_is_told() {
    let _turn = turn();
    let session = session(1, 3);
    let (file, kernel, _scratch) = opened(Duration::from_millis(50));
    chill(&file);
    let submit = |_| session.submit_read(&file, 0, Target::Device.buffer(&session, LEN)).unwrap();
    let tickets: Vec<_> = (0..12).map(submit).collect();
    kernel.breaks.store(true, Ordering::Relaxed);
    for ticket in &tickets {
        assert!(ticket.wait_timeout(Duration::from_secs(10)), "it waits for ever");
    }
    let errors: Vec<_> = tickets.into_iter().filter_map(|ticket| ticket.wait().into_result().err()).collect();
    assert!(errors.len() > 8, "{errors:?}");
    for error in errors {
        assert_eq!(error.message(), "the lane that moved this died");
    }
    // What comes when the reason is gone is moved by another lane.
    kernel.breaks.store(false, Ordering::Relaxed);
    for target in [Target::Device, Target::Host] {
        let later = session.submit_read(&file, 0, target.buffer(&session, LEN)).unwrap();
        assert!(later.wait_timeout(Duration::from_secs(10)), "it waits for ever");
        let (receipt, buffer) = later.wait().into_result().unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "{receipt}");
        if target == Target::Device {
            assert!(receipt.to_string().contains("a lane died, and another took its place"), "{receipt}");
        }
    }
}

/// It has none for a while: what comes meanwhile ends with the reason, what comes later is moved.
#[test]
fn a_lane_that_died_is_replaced_as_soon_as_there_is_memory() {
    let turn = turn();
    let session = session(1, 2);
    let (file, kernel, _scratch) = opened(Duration::from_millis(1));
    let read = || read(&session, &file, LEN);
    read().unwrap();
    turn.fake.fail_next("cuMemHostRegister_v2", 2, 0, 3);
    kernel.breaks.store(true, Ordering::Relaxed);
    // The works that the lane had taken failed with it, the rest because memory ran out.
    read().unwrap_err();
    kernel.breaks.store(false, Ordering::Relaxed);
    let (mut refused, until) = (0, Instant::now() + Duration::from_secs(10));
    let (receipt, buffer) = loop {
        match read() {
            Ok(done) => break done,
            Err(error) => assert!(error.message().contains("cuMemHostRegister"), "{error}"),
        }
        refused += 1;
        assert!(Instant::now() < until, "no lane began");
    };
    assert!(refused > 0, "there was memory all the time");
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "{receipt}");
}

/// The others take what it would have taken.
#[test]
fn lanes_go_on_beside_one_that_is_not_replaced() {
    let turn = turn();
    let session = session(4, 2);
    let (file, kernel, _scratch) = opened(Duration::from_millis(1));
    let read = |len| read(&session, &file, len);
    // All lanes have both of their slots.
    for _ in 0..4 {
        read(LEN).unwrap();
    }
    turn.fake.fail_next("cuMemHostRegister_v2", 2, 0, 0);
    kernel.breaks.store(true, Ordering::Relaxed);
    assert_eq!(read(1 << 20).unwrap_err().message(), "the lane that moved this died");
    kernel.breaks.store(false, Ordering::Relaxed);
    for _ in 0..20 {
        read(LEN).unwrap();
    }
}
