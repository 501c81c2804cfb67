//! Small synchronous transfers of many callers at once, copied by the resident kernel or by the driver: each has its own bytes, length and error,
//! whatever the others do and whatever the device can.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Random, Scratch, Turn, config, disk, in_process, pattern, session, soon, turn};
use forebay_config::{CachePolicy, Config, IoBackend, Objective};
use forebay_engine::source::{Calls, HostRange, Kernel};
use forebay_engine::{Direction, EngineKind, File, Memory, Session, Transfer};
use forebay_error::{ErrorKind, Result};
use forebay_gpu::Context;

const LEN: usize = 3_000_001;
/// Callers' transfers are of this length at most.
const TINY: u64 = 16 << 10;
/// Bytes around a target that nobody may touch.
const MARGIN: usize = 64;
const BLANK: u8 = 0xA5;

fn transfer(file: &File, offset: u64, memory: Memory, len: usize, direction: Direction) -> Transfer {
    Transfer { file: file.clone(), offset, memory, len, direction, allow_short: false }
}

/// Files, each with the pattern of its index.
fn files(count: u64) -> Vec<(Scratch, File)> {
    (0..count)
        .map(|key| {
            let scratch = Scratch::with_pattern(&disk(), key, LEN);
            let file = File::options().write(true).open(scratch.path()).unwrap();
            (scratch, file)
        })
        .collect()
}

/// A place in a device's memory with a margin on both sides.
struct Target<'a> {
    turn: &'a Turn,
    memory: Memory,
}

impl Target<'_> {
    const ROOM: usize = 2 * MARGIN + TINY as usize + 16;

    /// Reads `len` bytes to an odd place in it.
    fn read(&self, session: &Session, file: &File, offset: u64, len: usize) -> Result<()> {
        let shift = (offset % 16) as usize;
        let mut memory = self.memory.clone();
        memory.address += (MARGIN + shift) as u64;
        // SAFETY: the memory lives until this returns, and is this thread's alone.
        unsafe { session.run(&transfer(file, offset, memory, len, Direction::Read)) }.map(drop)
    }

    fn clear(&self) {
        assert!(self.turn.fake.write(self.memory.address, &vec![BLANK; Self::ROOM]));
    }

    fn check(&self, key: u64, offset: u64, len: usize) {
        let found = self.turn.fake.read(self.memory.address, Self::ROOM).unwrap();
        let start = MARGIN + (offset % 16) as usize;
        assert!(found[start..start + len] == pattern(key, offset, len), "{len} bytes from {offset}");
        let beside = found[..start].iter().chain(&found[start + len..]);
        assert!(beside.into_iter().all(|byte| *byte == BLANK), "{len} bytes from {offset}: too much");
    }
}

/// Callers that read at random, each into memory of its own.
fn read_at_random(turn: &Turn, session: &Session, callers: u64, rounds: u64) {
    let files = files(3);
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let files = &files;
            scope.spawn(move || {
                let buffer = session.buffer(0, Target::ROOM).unwrap();
                let target = Target { turn, memory: buffer.memory() };
                let mut random = Random(caller + 1);
                for round in 0..rounds {
                    let key = (caller + round) % files.len() as u64;
                    let len = 1 + random.below(TINY) as usize;
                    let offset = random.below((LEN - len) as u64);
                    target.clear();
                    target.read(session, &files[key as usize].1, offset, len).unwrap();
                    target.check(key, offset, len);
                }
            });
        }
    });
}

fn launches(turn: &Turn) -> u64 {
    turn.fake.calls("cuLaunchKernel")
}

#[test]
fn each_caller_gets_its_own_bytes() {
    let turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    for callers in [1, 2, 3, 16, 64, 80] {
        let before = launches(&turn);
        read_at_random(&turn, &session, callers, 400 / callers + 4);
        let launched = launches(&turn) - before;
        if callers <= 2 {
            assert_eq!(launched, 0, "{callers} callers copy");
        } else if callers <= 64 {
            // A kernel that was slow makes way for copies, on a busy machine.
            println!("{callers} callers: {launched} kernels");
        }
    }
    assert!(launches(&turn) > 0, "no kernel was launched");
    assert_eq!(turn.fake.unpinned_copies(), 0);
}

#[test]
fn every_objective_gives_the_same() {
    let turn = turn();
    for objective in [Objective::Latency, Objective::Throughput, Objective::Cpu] {
        let config = Config { objective, ..config(IoBackend::Auto, CachePolicy::Auto) };
        let session = Session::with_config(config).unwrap();
        read_at_random(&turn, &session, 12, 30);
    }
}

#[test]
fn the_page_cache_may_be_bypassed() {
    let turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Bypass);
    read_at_random(&turn, &session, 12, 30);
}

#[test]
fn small_writes_leave_the_rest_alone() {
    const CALLERS: u64 = 12;
    const SHARE: u64 = 50_000;
    const KEY: u64 = 7;
    let turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let (scratch, file) = files(1).remove(0);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (session, file) = (&session, &file);
            let turn = &turn;
            scope.spawn(move || {
                let buffer = session.buffer(0, TINY as usize).unwrap();
                let mut random = Random(caller + 1);
                let mut at = caller * SHARE;
                // The even caller's bytes change, piece after piece.
                while caller.is_multiple_of(2) && at < (caller + 1) * SHARE {
                    let len = (1 + random.below(TINY)).min((caller + 1) * SHARE - at) as usize;
                    assert!(turn.fake.write(buffer.address(), &pattern(KEY, at, len)));
                    let write = transfer(file, at, buffer.memory(), len, Direction::Write);
                    // SAFETY: the buffer lives until this returns, and is this thread's alone.
                    unsafe { session.run(&write) }.unwrap();
                    at += len as u64;
                }
            });
        }
    });
    let found = std::fs::read(scratch.path()).unwrap();
    assert_eq!(found.len(), LEN);
    for (index, share) in found.chunks(SHARE as usize).enumerate() {
        let is_new = (index as u64) < CALLERS && index.is_multiple_of(2);
        let key = if is_new { KEY } else { 0 };
        assert!(share == pattern(key, index as u64 * SHARE, share.len()), "share {index}");
    }
}

/// The kernel's calls, where each write waits until `all` are under way.
#[derive(Debug)]
struct Meeting {
    all: u64,
    there: AtomicU64,
    by_ring: AtomicU64,
}

impl Calls for &'static Meeting {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        // SAFETY: passed on.
        unsafe { Kernel.read(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        self.there.fetch_add(1, Ordering::SeqCst);
        soon(|| self.there.load(Ordering::SeqCst) + self.by_ring.load(Ordering::SeqCst) >= self.all);
        // SAFETY: passed on.
        unsafe { Kernel.write(fd, memory, offset) }
    }

    fn completed(&self, _: Direction, _: HostRange, _: u64, result: i32) -> i32 {
        self.by_ring.fetch_add(1, Ordering::SeqCst);
        result
    }
}

/// A caller without a slot wakes no lane for a small write: it copies and writes by itself.
#[test]
fn small_writes_of_a_hundred_callers_stay_on_their_threads() {
    const CALLERS: u64 = 100;
    let turn = turn();
    for len in [4096, 65_536] {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let scratch = Scratch::with_pattern(&disk(), 0, CALLERS as usize * len);
        let meeting: &'static Meeting = Box::leak(Box::new(Meeting {
            all: CALLERS,
            there: AtomicU64::new(0),
            by_ring: AtomicU64::new(0),
        }));
        let file = File::options().write(true).calls(Box::new(meeting)).open(scratch.path()).unwrap();
        let buffer = session.buffer(0, CALLERS as usize * len).unwrap();
        assert!(turn.fake.write(buffer.address(), &pattern(9, 0, CALLERS as usize * len)));
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (session, file, mut memory) = (&session, &file, buffer.memory());
                let at = caller * len as u64;
                memory.address += at;
                let write = transfer(file, at, memory, len, Direction::Write);
                // SAFETY: the buffer lives until all threads have ended, and each has its own part.
                scope.spawn(move || unsafe { session.run(&write) }.unwrap());
            }
        });
        let found = (meeting.there.load(Ordering::SeqCst), meeting.by_ring.load(Ordering::SeqCst));
        assert_eq!(found, (CALLERS, 0), "{len}: by callers, by lanes");
        assert!(std::fs::read(scratch.path()).unwrap() == pattern(9, 0, CALLERS as usize * len));
    }
}

#[test]
fn the_end_of_the_file_is_each_callers_own() {
    let turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let (_scratch, file) = files(1).remove(0);
    std::thread::scope(|scope| {
        for caller in 0..16usize {
            let (session, file, turn) = (&session, &file, &turn);
            scope.spawn(move || {
                let buffer = session.buffer(0, Target::ROOM).unwrap();
                for round in 0..20 {
                    let len = 100 + caller * 500 + round;
                    // Before the end, across it, at it and behind it.
                    let left = [2 * len, len / 2, 0, 0][(caller + round) % 4];
                    let behind = if (caller + round) % 4 == 3 { 5000 } else { 0 };
                    let offset = (LEN - left + behind) as u64;
                    let mut read = transfer(file, offset, buffer.memory(), len, Direction::Read);
                    read.allow_short = true;
                    let good = left.min(len);
                    // SAFETY: the buffer lives until this returns, and is this thread's alone.
                    let receipt = unsafe { session.run(&read) }.unwrap();
                    assert_eq!(receipt.bytes(), good as u64);
                    assert!(turn.fake.read(buffer.address(), good).unwrap() == pattern(0, offset, good));
                    read.allow_short = false;
                    // SAFETY: as above.
                    let strictly = unsafe { session.run(&read) };
                    let is_short = strictly.as_ref().is_err_and(|error| error.kind() == ErrorKind::ShortRead);
                    assert_eq!((strictly.is_ok(), is_short), (good == len, good < len), "{strictly:?}");
                }
            });
        }
    });
}

#[test]
fn pinned_pages_are_pulled_together() {
    let turn = turn();
    let engine = Some("mapped".to_owned());
    let config = Config { engine, pin_settle: Duration::from_millis(20), pin_pace: 0, ..Config::default() };
    let session = Session::with_config(config).unwrap();
    let files = files(3);
    std::thread::sleep(Duration::from_millis(40));
    for (key, (_, file)) in files.iter().enumerate() {
        let mut buffer = session.buffer(0, LEN).unwrap();
        session.read(file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(key as u64, 0, LEN));
    }
    let before = launches(&turn);
    std::thread::scope(|scope| {
        for caller in 0..16u64 {
            let (session, files, turn) = (&session, &files, &turn);
            scope.spawn(move || {
                let buffer = session.buffer(0, 200_000).unwrap();
                let mut random = Random(caller + 1);
                for round in 0..20 {
                    let key = (caller + round) % 3;
                    // Some too large for a kernel.
                    let most = if round % 4 == 3 { 200_000 } else { TINY };
                    let len = 1 + random.below(most) as usize;
                    let offset = random.below((LEN - len) as u64);
                    let read =
                        transfer(&files[key as usize].1, offset, buffer.memory(), len, Direction::Read);
                    // SAFETY: the buffer lives until this returns, and is this thread's alone.
                    let receipt = unsafe { session.run(&read) }.unwrap();
                    assert_eq!(receipt.engine(), EngineKind::Mapped);
                    let found = turn.fake.read(buffer.address(), len).unwrap();
                    assert!(found == pattern(key, offset, len), "{len} bytes from {offset}");
                }
            });
        }
    });
    assert!(launches(&turn) > before, "no kernel was launched");
}

#[test]
fn memory_of_another_context_has_its_own_kernel() {
    let turn = turn();
    let second = turn.fake.create_context(0).unwrap();
    let theirs = turn.fake.allocate(16 * Target::ROOM).unwrap();
    turn.fake.set_current_context(0).unwrap();
    {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let memory = session.locate(theirs).unwrap();
        assert_ne!(memory.context, Context::PRIMARY);
        let files = files(2);
        std::thread::scope(|scope| {
            for caller in 0..16u64 {
                let (session, files, turn, theirs) = (&session, &files, &turn, &memory);
                scope.spawn(move || {
                    let ours = session.buffer(0, Target::ROOM).unwrap();
                    let mut memory = theirs.clone();
                    memory.address += caller * Target::ROOM as u64;
                    let memory = if caller % 2 == 0 { ours.memory() } else { memory };
                    let target = Target { turn, memory };
                    for round in 0..20 {
                        let (key, offset) = (round % 2, caller * 70_000 + round * 333);
                        target.clear();
                        target.read(session, &files[key as usize].1, offset, 4000).unwrap();
                        target.check(key, offset, 4000);
                    }
                    assert_eq!(turn.fake.current_context(), 0, "the thread is left as it was");
                });
            }
        });
    }
    turn.fake.destroy_context(second).unwrap();
}

// ---- what the device cannot do, or does no more --------------------------------------------------------------------

/// Callers that read while something goes wrong: how many reads were good, and what the others said. Good ones have their
/// bytes.
fn read_through(turn: &Turn, session: &Session, callers: u64, rounds: u64) -> (u64, Vec<ErrorKind>) {
    let files = files(1);
    let good = AtomicU64::new(0);
    let errors = std::sync::Mutex::new(Vec::new());
    // Their memory comes before what goes wrong.
    let buffers: Vec<_> = (0..callers).map(|_| session.buffer(0, Target::ROOM).unwrap()).collect();
    std::thread::scope(|scope| {
        for (caller, buffer) in buffers.iter().enumerate() {
            let (file, good, errors) = (&files[0].1, &good, &errors);
            scope.spawn(move || {
                let target = Target { turn, memory: buffer.memory() };
                for round in 0..rounds {
                    let (offset, len) = (caller as u64 * 9000 + round * 100, 100 + caller * 200);
                    target.clear();
                    match target.read(session, file, offset, len) {
                        Ok(()) => {
                            target.check(0, offset, len);
                            good.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => errors.lock().unwrap().push(error.kind()),
                    }
                }
            });
        }
    });
    (good.into_inner(), errors.into_inner().unwrap())
}

#[test]
fn a_device_that_breaks_fails_everybody_and_hangs_nobody() {
    let turn = turn();
    for work in ["async:resident", "async:write", "async:copy"] {
        for callers in [1, 2, 16] {
            let session = session(IoBackend::Auto, CachePolicy::Auto);
            read_at_random(&turn, &session, callers, 3);
            let before = turn.fake.calls(work);
            turn.fake.fail_next(work, 700, 10, 1);
            let (good, errors) = read_through(&turn, &session, callers, 40);
            let (all, used) = (callers * 40, turn.fake.calls(work) - before > 10);
            assert_eq!(good + errors.len() as u64, all);
            assert!(errors.iter().all(|kind| *kind == ErrorKind::DeviceLost), "{work}: {errors:?}");
            assert!(!errors.is_empty() || !used, "{work}, {callers} callers: {good} of {all} were good");
            turn.fake.reset();
            // Its slots are used again.
            read_at_random(&turn, &session, callers, 3);
        }
    }
}

#[test]
fn a_call_that_fails_once_fails_those_it_was_for() {
    let turn = turn();
    let calls = [
        ("cuLaunchKernel", 701),
        ("cuStreamWriteValue32_v2", 999),
        ("cuMemcpyHtoDAsync_v2", 1),
        ("cuEventRecord", 400),
    ];
    for (call, code) in calls {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        turn.fake.fail_next(call, code, 3, 1);
        let (good, errors) = read_through(&turn, &session, 16, 20);
        assert_eq!(good + errors.len() as u64, 16 * 20);
        assert!(errors.len() <= 16, "{call}: {errors:?}");
        turn.fake.reset();
        let (good, _) = read_through(&turn, &session, 16, 5);
        assert_eq!(good, 16 * 5, "{call} has long passed");
    }
}

#[test]
fn copies_do_it_where_kernels_cannot() {
    // Of its own: a library loaded once stays with the process.
    in_process(&[], &[], || {
        let turn = turn();
        turn.fake.fail_next("cuModuleLoadData", 218, 0, 0);
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        read_at_random(&turn, &session, 16, 20);
        assert_eq!(launches(&turn), 0);
        assert_eq!(turn.fake.calls("cuModuleLoadData"), 2, "asked once, with machine code and with PTX");
    });
}

#[test]
fn events_do_it_where_the_device_writes_no_words() {
    let hidden = [("FOREBAY_HIDE_SYMBOLS", "cuStreamWriteValue32,cuStreamWriteValue32_v2")];
    in_process(&[], &hidden, || {
        let turn = turn();
        assert_eq!(forebay_gpu::cuda::symbols_missing().unwrap().len(), 2);
        for objective in [Objective::Latency, Objective::Throughput, Objective::Cpu] {
            let config = Config { objective, ..config(IoBackend::Auto, CachePolicy::Auto) };
            let session = Session::with_config(config).unwrap();
            for callers in [1, 16] {
                read_at_random(&turn, &session, callers, 20);
            }
        }
        assert!(launches(&turn) > 0);
        assert!(turn.fake.calls("cuEventQuery") > 0);
    });
}

#[test]
fn one_cpu_is_enough() {
    in_process(&[], &[], || {
        // SAFETY: a zeroed set is an empty one; the calls are given its size.
        unsafe {
            let mut cpus: libc::cpu_set_t = std::mem::zeroed();
            let size = size_of::<libc::cpu_set_t>();
            assert_eq!(libc::sched_getaffinity(0, size, &raw mut cpus), 0);
            let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &cpus)).unwrap();
            libc::CPU_ZERO(&mut cpus);
            libc::CPU_SET(first, &mut cpus);
            assert_eq!(libc::sched_setaffinity(0, size, &raw const cpus), 0);
        }
        let turn = turn();
        let one = session(IoBackend::Auto, CachePolicy::Auto);
        for callers in [1, 3, 64] {
            read_at_random(&turn, &one, callers, 10);
        }
        // One that would rather poll has to share as well.
        let config = Config { objective: Objective::Latency, ..config(IoBackend::Auto, CachePolicy::Auto) };
        read_at_random(&turn, &Session::with_config(config).unwrap(), 16, 10);
    });
}

/// A caller's thread finds its timer slack as it was.
#[test]
fn naps_leave_the_thread_as_it_was() {
    let turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let (_scratch, file) = files(1).remove(0);
    std::thread::scope(|scope| {
        for caller in 0..6 {
            let (session, file) = (&session, &file);
            scope.spawn(move || {
                let wanted = 60_000 + caller;
                // SAFETY: no pointers are passed.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, wanted, 0, 0, 0) };
                let mut buffer = session.buffer(0, 300_000).unwrap();
                for round in 0..20 {
                    session.read(file, round * 1000, &mut buffer).unwrap();
                    // SAFETY: no pointers are passed.
                    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
                    assert_eq!(i64::from(slack), i64::from(wanted));
                }
            });
        }
    });
    drop(turn);
}
