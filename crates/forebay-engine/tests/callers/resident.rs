//! The resident kernel: pieces of several callers without a driver call for each, and what goes wrong with it. Every byte is
//! compared.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Random, Stop, Turn, config, in_process, pattern, soon};
use crate::crowd::{self, BLOCKING, GLOBAL, LEN, NON_BLOCKING, plain, set_up, until_resident};
use forebay_config::{CachePolicy, Config, IoBackend, Resident};
use forebay_engine::{Buffer, Direction, File, Memory, Receipt, Session, Transfer};
use forebay_error::{ErrorKind, Result};
use forebay_gpu::{Context, DeviceRange};

const KEY: u64 = 31;
/// The kernel's longest piece by a slot.
const MOST: u64 = 1 << 20;
/// Reads of fewer bytes are one piece.
const PART: u64 = 64 << 10;
const CALLERS: u64 = 8;

fn run(
    session: &Session,
    file: &File,
    offset: u64,
    (memory, len): (&Memory, usize),
    direction: Direction,
) -> Result<Receipt> {
    let (file, memory) = (file.clone(), memory.clone());
    let transfer = Transfer { file, offset, memory, len, direction, allow_short: false };
    // SAFETY: the callers below keep the memory until this returns, each its own.
    unsafe { session.run(&transfer) }
}

/// Reads at random; returns whether the kernel copied it.
fn read(
    turn: &Turn,
    session: &Session,
    file: &File,
    memory: &Memory,
    random: &mut Random,
    most: u64,
) -> Result<bool> {
    let len = 1 + random.below(most) as usize;
    let offset = random.below((LEN - len) as u64);
    let shift = random.below(16);
    let memory = Memory { address: memory.address + shift, ..memory.clone() };
    assert!(turn.fake.write(memory.address, &vec![0xA5; len]));
    let receipt = run(session, file, offset, (&memory, len), Direction::Read)?;
    let found = turn.fake.read(memory.address, len).unwrap();
    assert!(found == pattern(KEY, offset, len), "{len} bytes from {offset}");
    assert_eq!(receipt.bytes(), len as u64);
    // Longer reads go in parts, each of which may find no room.
    let is_whole = [0, len as u64].contains(&receipt.moved.resident);
    assert!(is_whole || (len as u64 > PART && receipt.moved.resident < len as u64));
    Ok(receipt.moved.resident > 0)
}

/// Callers that read until `is_enough`, or for this number of rounds each. Returns pieces by the kernel, and what went wrong.
fn crowd(
    turn: &Turn,
    session: &Session,
    file: &File,
    (callers, rounds, most): (u64, u64, u64),
    is_enough: impl Fn() -> bool + Sync,
) -> (u64, Vec<ErrorKind>) {
    crowd::crowd(session, (callers, rounds, most as usize + 16), is_enough, |memory, random| {
        read(turn, session, file, memory, random, most)
    })
}

/// The same without errors.
fn good(turn: &Turn, session: &Session, file: &File, work: (u64, u64, u64)) -> u64 {
    let (resident, errors) = crowd(turn, session, file, work, || false);
    assert!(errors.is_empty(), "{errors:?}");
    resident
}

/// A session whose kernel is at work, as some callers find.
fn ready(turn: &Turn, file: &File, config: Config) -> Session {
    let session = Session::with_config(config).unwrap();
    assert!(
        soon(|| good(turn, &session, file, (CALLERS, 20, 4096)) > 0),
        "nobody's bytes went by the kernel"
    );
    session
}

fn launches(turn: &Turn) -> u64 {
    turn.fake.calls("cuLaunchKernel")
}

#[test]
fn pieces_need_no_driver_call_each() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    const ROUNDS: u64 = 400;
    let copies = || turn.fake.calls("cuMemcpyHtoDAsync_v2");
    until_resident(|| {
        let (copied, launched) = (copies(), launches(&turn));
        let resident = good(&turn, &session, &file, (CALLERS, ROUNDS, 4096));
        println!("{resident} of {} pieces by {} launches", CALLERS * ROUNDS, launches(&turn) - launched);
        // A copy, or two parts, for each of the others.
        let others = CALLERS * ROUNDS - resident;
        assert!((others..=2 * others).contains(&(copies() - copied)));
        resident > 0
    });
    assert_eq!(turn.fake.unpinned_copies(), 0);
}

#[test]
fn the_kernel_ends_when_nobody_calls() {
    let (turn, _scratch, file) = set_up(KEY);
    let _session = ready(&turn, &file, plain());
    std::thread::sleep(Duration::from_millis(100));
    let before = launches(&turn);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(launches(&turn), before, "launches without work");
}

#[test]
fn middle_pieces_go_the_same_way() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    until_resident(|| good(&turn, &session, &file, (CALLERS, 40, MOST)) > 0);
}

/// The same slots and buffers with other bytes each time, many times within one launch, in both directions.
#[test]
fn new_bytes_in_the_same_place_are_the_new_ones() {
    const SHARE: u64 = 70_000;
    let (turn, scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    until_resident(|| {
        let resident = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (turn, session, scratch, file, resident) = (&turn, &session, &scratch, &file, &resident);
                scope.spawn(move || {
                    let buffer = session.buffer(0, SHARE as usize).unwrap();
                    let plain = std::fs::File::options().read(true).write(true).open(scratch.path()).unwrap();
                    let (memory, at) = (buffer.memory(), caller * SHARE);
                    let mut random = Random(caller + 1);
                    for round in 0..150 {
                        let key = caller << 32 | round;
                        let len = 512 + random.below(SHARE - 512) as usize;
                        let mut moved = 0;
                        if round % 2 == 0 {
                            plain.write_all_at(&pattern(key, at, len), at).unwrap();
                            moved += run(session, file, at, (&memory, len), Direction::Read)
                                .unwrap()
                                .moved
                                .resident;
                            assert!(turn.fake.read(memory.address, len).unwrap() == pattern(key, at, len));
                        } else {
                            assert!(turn.fake.write(memory.address, &pattern(key, at, len)));
                            moved += run(session, file, at, (&memory, len), Direction::Write)
                                .unwrap()
                                .moved
                                .resident;
                            let mut found = vec![0; len];
                            plain.read_exact_at(&mut found, at).unwrap();
                            assert!(found == pattern(key, at, len));
                        }
                        resident.fetch_add(moved, Ordering::Relaxed);
                    }
                });
            }
        });
        resident.into_inner() > 0
    });
}

#[test]
fn a_thousand_callers_get_their_bytes() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    let resident = good(&turn, &session, &file, (1000, 3, 4096));
    println!("{resident} pieces by the kernel");
}

#[test]
fn the_kernel_can_be_switched_off() {
    let (turn, _scratch, file) = set_up(KEY);
    let config = Config { resident: Resident::Off, ..plain() };
    let session = Session::with_config(config).unwrap();
    let before = launches(&turn);
    let resident = good(&turn, &session, &file, (CALLERS, 50, 4096));
    assert_eq!((resident, launches(&turn)), (0, before));
}

#[test]
fn tools_and_blocking_launches_switch_it_off() {
    in_process(&[], &[("CUDA_LAUNCH_BLOCKING", "1")], || {
        let (turn, _scratch, file) = set_up(KEY);
        let session = Session::with_config(plain()).unwrap();
        let (resident, _) = crowd(&turn, &session, &file, (CALLERS, 50, 4096), || false);
        assert_eq!((resident, launches(&turn)), (0, 0));
    });
}

// ---- faults --------------------------------------------------------------------------------------------------------

/// The GPU is full of the user's blocks: callers copy by themselves, and their mailboxes are used again.
#[test]
fn a_kernel_that_never_starts_holds_nobody_up() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(20));
        turn.fake.hang_next("async:resident", 1500);
        let (started, left) = (Instant::now(), AtomicU64::new(0));
        let mark = || {
            left.fetch_max(started.elapsed().as_millis() as u64, Ordering::Relaxed);
            false
        };
        // Freeing memory waits for the kernel: what counts is the time up to the last read.
        let (_, errors) = crowd(&turn, &session, &file, (CALLERS, 30, 4096), mark);
        assert!(errors.is_empty(), "{errors:?}");
        let took = left.into_inner();
        assert!(took < 1200, "{took} ms");
        let again = || crowd(&turn, &session, &file, (CALLERS, 20, 4096), || false).0 > 0;
        assert!(
            (0..200).any(|_| again() || {
                std::thread::sleep(Duration::from_millis(20));
                false
            }),
            "never again"
        );
    }
}

/// The longer it is late, the less often the driver is asked: the lock is the program's, too.
#[test]
fn a_late_kernel_is_looked_at_less_and_less() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    std::thread::sleep(Duration::from_millis(20));
    turn.fake.hang_next("async:resident", 1500);
    let before = launches(&turn);
    let is_launched = || launches(&turn) > before;
    let looks = || turn.fake.calls("cuEventQuery");
    std::thread::scope(|scope| {
        // Freeing memory waits for the kernel.
        scope.spawn(|| crowd(&turn, &session, &file, (CALLERS, u64::MAX, 4096), is_launched));
        assert!(soon(is_launched));
        let launched = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        let (first, since) = (looks(), Instant::now());
        std::thread::sleep(Duration::from_millis(300));
        let (looked, took) = (looks() - first, since.elapsed().as_millis() as u64);
        assert!(launched.elapsed() < Duration::from_millis(1400), "too late to tell");
        assert!((1..=took / 4).contains(&looked), "{looked} looks in {took} ms");
    });
}

#[test]
fn a_launch_that_is_refused_is_no_error() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    turn.fake.fail_next("cuLaunchKernel", 2, 5, 1);
    good(&turn, &session, &file, (CALLERS, 300, 4096));
}

/// The GPU breaks with requests posted: all end, with the reason.
#[test]
fn a_kernel_that_breaks_fails_callers_and_hangs_none() {
    let (turn, _scratch, file) = set_up(KEY);
    for after in 0..4 {
        let session = ready(&turn, &file, plain());
        turn.fake.fail_next("async:resident", 700, after, 1);
        // On a busy machine callers copy by themselves for a while, and the kernel does not run.
        let told = (0..40).map(|_| {
            let began = Instant::now();
            let is_late = || began.elapsed() > Duration::from_millis(300);
            crowd(&turn, &session, &file, (CALLERS, u64::MAX, 4096), is_late).1
        });
        let errors = { told }.find(|errors| !errors.is_empty()).expect("no caller got an error");
        assert!(errors.iter().all(|kind| *kind == ErrorKind::DeviceLost), "{errors:?}");
        turn.fake.reset();
    }
}

/// A context is destroyed with requests posted: all end with the reason, and another context's go on.
#[test]
fn a_context_that_is_destroyed_hangs_nobody() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    let theirs = turn.fake.create_context(0).unwrap();
    let place = turn.fake.allocate(CALLERS as usize * 8192).unwrap();
    turn.fake.set_current_context(0).unwrap();
    let memory = session.locate(place).unwrap();
    assert_ne!(memory.context, Context::PRIMARY);
    let (resident, is_gone) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let mut memory = memory.clone();
            memory.address += caller * 8192;
            let (turn, session, file, resident, is_gone) = (&turn, &session, &file, &resident, &is_gone);
            scope.spawn(move || {
                let mut random = Random(caller + 1);
                loop {
                    match read(turn, session, file, &memory, &mut random, 4096) {
                        Ok(is_resident) => drop(resident.fetch_add(is_resident.into(), Ordering::SeqCst)),
                        Err(error) => {
                            assert!(is_gone.load(Ordering::SeqCst), "{error}");
                            return;
                        }
                    }
                }
            });
        }
        assert!(soon(|| resident.load(Ordering::SeqCst) > 0), "nobody's bytes went by the kernel");
        is_gone.store(true, Ordering::SeqCst);
        turn.fake.destroy_context(theirs).unwrap();
    });
    good(&turn, &session, &file, (CALLERS, 20, 4096));
}

/// `cudaDeviceReset` with requests posted: all callers get an error.
#[test]
fn a_reset_hangs_nobody() {
    in_process(&[], &[], || {
        let (turn, _scratch, file) = set_up(KEY);
        let session = ready(&turn, &file, plain());
        let buffers: Vec<_> = (0..CALLERS).map(|_| session.buffer(0, 8192).unwrap()).collect();
        let (resident, is_gone) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let call = |(caller, buffer): (usize, &Buffer)| {
                let memory = buffer.memory();
                let (turn, session, file, resident, is_gone) = (&turn, &session, &file, &resident, &is_gone);
                scope.spawn(move || {
                    let mut random = Random(caller as u64 + 1);
                    loop {
                        match read(turn, session, file, &memory, &mut random, 4096) {
                            Ok(is_resident) => drop(resident.fetch_add(is_resident.into(), Ordering::SeqCst)),
                            Err(error) => {
                                assert!(is_gone.load(Ordering::SeqCst), "{error}");
                                return error;
                            }
                        }
                    }
                })
            };
            let callers: Vec<_> = buffers.iter().enumerate().map(call).collect();
            assert!(soon(|| resident.load(Ordering::SeqCst) > 0), "nobody's bytes went by the kernel");
            is_gone.store(true, Ordering::SeqCst);
            turn.fake.reset_primary(0).unwrap();
            for caller in callers {
                let error = caller.join().unwrap();
                assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error:?}");
            }
        });
    });
}

extern "C" fn ignore(_signal: libc::c_int) {}

#[test]
fn callers_that_are_interrupted_get_their_bytes() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    // SAFETY: a zeroed action is valid; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let (is_over, threads) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let _over = Stop(&is_over);
        for caller in 0..CALLERS {
            let (turn, session, file, is_over, threads) = (&turn, &session, &file, &is_over, &threads);
            scope.spawn(move || {
                // SAFETY: it is asked which thread this is.
                threads.lock().unwrap().push(unsafe { libc::pthread_self() });
                let buffer = session.buffer(0, 5000).unwrap();
                let mut random = Random(caller + 1);
                while !is_over.load(Ordering::Relaxed) {
                    read(turn, session, file, &buffer.memory(), &mut random, 4096).unwrap();
                }
            });
        }
        for _ in 0..2000 {
            for thread in threads.lock().unwrap().iter() {
                // SAFETY: the thread runs until the flag is set.
                unsafe { libc::pthread_kill(*thread, libc::SIGUSR1) };
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    });
}

/// Each session launches the kernel for itself.
#[test]
fn two_sessions_do_not_meet() {
    let (turn, _scratch, file) = set_up(KEY);
    let sessions = [ready(&turn, &file, plain()), ready(&turn, &file, plain())];
    std::thread::scope(|scope| {
        for session in &sessions {
            let (turn, file) = (&turn, &file);
            scope.spawn(move || {
                until_resident(|| good(turn, session, file, (CALLERS, 200, 4096)) > 0);
            });
        }
    });
}

/// Operations of streams beside callers: both get their bytes.
#[test]
fn stream_ordered_work_goes_beside_it() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
    let streams: Vec<_> = (0..4).map(|_| turn.fake.create_stream(NON_BLOCKING).unwrap()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Stop(&is_over);
        for (number, stream) in streams.iter().enumerate() {
            let (session, turn, file, is_over) = (&session, &turn, &file, &is_over);
            scope.spawn(move || {
                let buffer = session.buffer(0, 50_000).unwrap();
                let mut random = Random(number as u64 + 100);
                while !is_over.load(Ordering::Relaxed) {
                    let len = 1 + random.below(50_000) as usize;
                    let offset = random.below((LEN - len) as u64);
                    let (file, memory) = (file.clone(), buffer.memory());
                    let read = Transfer {
                        file,
                        offset,
                        memory,
                        len,
                        direction: Direction::Read,
                        allow_short: false,
                    };
                    // SAFETY: the stream lives, and so does the memory, until the ticket is resolved below.
                    let ticket = unsafe { session.submit_on(*stream, vec![read]) }.unwrap();
                    ticket.wait().into_result().unwrap();
                    assert!(turn.fake.read(buffer.address(), len).unwrap() == pattern(KEY, offset, len));
                }
            });
        }
        until_resident(|| good(&turn, &session, &file, (CALLERS, 200, 4096)) > 0);
    });
    for stream in streams {
        turn.fake.destroy_stream(stream).unwrap();
    }
}

#[test]
fn a_capture_elsewhere_goes_on() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain()).behind_default_streams();
    turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
    let stream = turn.fake.create_stream(NON_BLOCKING).unwrap();
    let launched = launches(&turn);
    turn.fake.begin_capture(stream, GLOBAL).unwrap();
    until_resident(|| {
        good(&turn, &session, &file, (CALLERS, 100, 4096));
        launches(&turn) > launched
    });
    turn.fake.end_capture(stream).expect("the capture survives");
    turn.fake.destroy_stream(stream).unwrap();
}

/// While the legacy stream may not be asked, receipts of pieces by the kernel say that nothing was ordered; the driver is asked by
/// one caller for all.
#[test]
fn a_capture_in_the_way_is_told_by_those_who_did_not_ask() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain()).behind_default_streams();
    turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
    let stream = turn.fake.create_stream(BLOCKING).unwrap();
    let buffers: Vec<_> = (0..CALLERS).map(|_| session.buffer(0, 4096).unwrap()).collect();
    for is_captured in [true, false] {
        if is_captured {
            turn.fake.begin_capture(stream, GLOBAL).unwrap();
        }
        until_resident(|| {
            let resident = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for buffer in &buffers {
                    scope.spawn(|| {
                        for _ in 0..100 {
                            let receipt =
                                run(&session, &file, 0, (&buffer.memory(), 4096), Direction::Read).unwrap();
                            resident.fetch_add(receipt.moved.resident, Ordering::Relaxed);
                            let says =
                                receipt.election.notes.iter().any(|note| note.text.contains("not ordered"));
                            assert_eq!(says, is_captured, "{:?}", receipt.moved);
                        }
                    });
                }
            });
            resident.into_inner() > 0
        });
        if is_captured {
            turn.fake.end_capture(stream).expect("the capture survives");
        }
    }
    turn.fake.destroy_stream(stream).unwrap();
}

/// What stands on the default stream when a call begins is done before its bytes come.
#[test]
fn copies_come_after_the_default_stream() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain()).behind_default_streams();
    turn.fake.set_default_stream_delay_us(300);
    until_resident(|| {
        let resident = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (turn, session, file, resident) = (&turn, &session, &file, &resident);
                scope.spawn(move || {
                    let device = forebay_gpu::cuda::devices().unwrap()[0].clone();
                    let buffer = session.buffer(0, 4096).unwrap();
                    let legacy =
                        device.default_stream(Context::PRIMARY, forebay_gpu::DefaultStream::Legacy).unwrap();
                    for round in 0..40 {
                        let offset = caller * 5000 + round * 77;
                        // Late: it would erase the bytes read before it.
                        // SAFETY: the buffer lives until the read is done, which comes later.
                        unsafe { legacy.zero(DeviceRange::new(buffer.address(), 4096)) }.unwrap();
                        let receipt =
                            run(session, file, offset, (&buffer.memory(), 4096), Direction::Read).unwrap();
                        resident.fetch_add(receipt.moved.resident, Ordering::Relaxed);
                        assert!(
                            turn.fake.read(buffer.address(), 4096).unwrap() == pattern(KEY, offset, 4096)
                        );
                    }
                });
            }
        });
        resident.into_inner() > 0
    });
}

#[test]
fn a_process_may_exit_with_requests_posted() {
    in_process(&[], &[], || {
        let (turn, scratch, file) = set_up(KEY);
        let session = ready(&turn, &file, plain());
        for caller in 0..CALLERS {
            let (session, file) = (session.clone(), file.clone());
            std::thread::spawn(move || {
                let buffer = session.buffer(0, 4096).unwrap();
                loop {
                    let _ = run(&session, &file, caller * 4096, (&buffer.memory(), 4096), Direction::Read);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        drop(scratch);
        std::process::exit(0);
    });
}

/// The same for cold reads that are too long for the kernel while it is at work: the driver copies them.
#[test]
fn long_cold_reads_come_after_the_default_stream() {
    const LONG: usize = 1 << 20;
    let (turn, scratch, warm) = set_up(KEY);
    let session = ready(&turn, &warm, config(IoBackend::Auto, CachePolicy::Keep)).behind_default_streams();
    let file = File::options().cache(CachePolicy::Bypass).open(scratch.path()).unwrap();
    turn.fake.set_default_stream_delay_us(20_000);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (turn, session, file) = (&turn, &session, &file);
            scope.spawn(move || {
                let device = forebay_gpu::cuda::devices().unwrap()[0].clone();
                let buffer = session.buffer(0, LONG).unwrap();
                let legacy =
                    device.default_stream(Context::PRIMARY, forebay_gpu::DefaultStream::Legacy).unwrap();
                for round in 0..5 {
                    let offset = (caller % 8) * 4096 + round * 4096;
                    // SAFETY: as above.
                    unsafe { legacy.zero(DeviceRange::new(buffer.address(), LONG)) }.unwrap();
                    let receipt =
                        run(session, file, offset, (&buffer.memory(), LONG), Direction::Read).unwrap();
                    assert_eq!(receipt.moved.resident, 0, "it is cold, and goes as one piece");
                    assert!(turn.fake.read(buffer.address(), LONG).unwrap() == pattern(KEY, offset, LONG));
                }
            });
        }
    });
}
