//! Signals, as many as a program can bear: handlers of the program's run on its own threads only, and transfers are whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Random, Scratch, Stop, Target, chill, disk, in_process, pattern, session, turn};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::source::{Fault, Faulty};
use forebay_engine::{Direction, File, ReadPiece, Session};

const KEY: u64 = 59;
const LEN: usize = (8 << 20) + 12_345;
/// Between two signals, for each thread.
const EVERY: Duration = Duration::from_micros(30);

static CAUGHT: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_signal: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

fn catch(signal: libc::c_int, flags: libc::c_int) {
    // SAFETY: a zeroed action is valid; the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

fn tasks() -> Vec<(i32, String)> {
    let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let task = |entry: std::fs::DirEntry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, name.trim().to_owned()))
    };
    all.filter_map(task).collect()
}

/// Whether a thread blocks a signal.
fn blocks(task: i32, signal: libc::c_int) -> bool {
    let status = std::fs::read_to_string(format!("/proc/self/task/{task}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or("0");
    u64::from_str_radix(blocked.trim(), 16).unwrap() & 1 << (signal - 1) != 0
}

/// Reads and writes by all ways; all bytes right.
fn exercise(session: &Session, io: IoBackend) {
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    let mut random = Random(7);
    for target in Target::ALL {
        for is_cold in [true, false] {
            if is_cold {
                chill(&file);
            }
            for len in [4096, 60_000, 1 << 20, LEN] {
                let offset = random.below((LEN - len + 1) as u64);
                let mut buffer = target.buffer(session, len);
                session.read(&file, offset, &mut buffer).unwrap();
                assert!(buffer.to_vec().unwrap() == pattern(KEY, offset, len), "{io} {target:?} {len}");
                session.write(&file, offset, &buffer).unwrap();
            }
            let pieces: Vec<_> = (0..200)
                .map(|index| ReadPiece {
                    offset: 39_000 * index as u64,
                    range: index * 4096..(index + 1) * 4096,
                })
                .collect();
            let outcome =
                session.read_batch(&file, &pieces, target.buffer(session, 200 * 4096)).unwrap().wait();
            let bytes = outcome.buffer.to_vec().unwrap();
            for (piece, entry) in pieces.into_iter().zip(outcome.entries) {
                assert_eq!(entry.unwrap(), 4096);
                assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, 4096));
            }
        }
    }
    file.preallocate(LEN as u64 + 4096).unwrap();
    file.sync().unwrap();
    assert!(std::fs::read(scratch.path()).unwrap()[..LEN] == pattern(KEY, 0, LEN));
}

fn storm(flags: libc::c_int) {
    catch(libc::SIGUSR1, flags);
    let sessions = [IoBackend::Auto, IoBackend::Threads].map(|io| (io, session(io, CachePolicy::Auto)));
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, sent) = (&stop, &sent);
        let ends = Stop(stop);
        let sender = scope.spawn(move || {
            // SAFETY: plain numbers; a signal that is handled, to threads of this process.
            unsafe {
                let (mine, me) = (libc::getpid(), libc::syscall(libc::SYS_gettid) as i32);
                let mut round = 0u32;
                let mut all = tasks();
                while !stop.load(Ordering::Relaxed) {
                    if round.is_multiple_of(64) {
                        all = tasks();
                    }
                    round = round.wrapping_add(1);
                    for (task, _) in all.iter().filter(|(task, _)| *task != me) {
                        libc::syscall(libc::SYS_tgkill, mine, *task, libc::SIGUSR1);
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    let until = Instant::now() + EVERY;
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
            }
        });
        for (io, session) in &sessions {
            exercise(session, *io);
        }
        drop(ends);
        sender.join().unwrap();
    });
    let (sent, caught) = (sent.load(Ordering::Relaxed), CAUGHT.load(Ordering::Relaxed));
    println!("{sent} signals sent, {caught} handled");
    assert!(caught > 100, "no storm");
}

#[test]
fn transfers_are_whole_in_a_storm() {
    in_process(&[], &[], || storm(0));
}

#[test]
fn and_where_calls_are_taken_up_again() {
    in_process(&[], &[], || storm(libc::SA_RESTART));
}

#[test]
fn our_threads_block_what_is_not_theirs() {
    in_process(&[], &[], || {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        exercise(&session, IoBackend::Auto);
        let ours: Vec<_> = tasks().into_iter().filter(|(_, name)| name.starts_with("forebay-")).collect();
        assert!(ours.len() > 2, "{ours:?}");
        for (task, name) in ours {
            for signal in [libc::SIGUSR1, libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGALRM] {
                assert!(blocks(task, signal), "{name}: {signal}");
            }
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGPROF] {
                assert!(!blocks(task, signal), "{name}: {signal}");
            }
        }
        // SAFETY: plain numbers.
        let here = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        assert!(!blocks(here, libc::SIGTERM), "the caller's mask is as it was");
    });
}

/// What the kernel gives up because of a signal is asked for again.
#[test]
fn a_call_that_a_signal_ended_is_repeated() {
    let _turn = turn();
    for io in [IoBackend::Auto, IoBackend::Threads] {
        let session = session(io, CachePolicy::Auto);
        for (direction, errno) in [Direction::Read, Direction::Write]
            .into_iter()
            .flat_map(|each| [(each, libc::ECANCELED), (each, libc::EINTR)])
        {
            for target in Target::ALL {
                let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
                let faults = Faulty::new(direction, 2 << 20, Fault::Errno(errno), 7);
                let file = File::options().write(true).calls(Box::new(faults)).open(scratch.path()).unwrap();
                chill(&file);
                let mut buffer = target.buffer(&session, LEN);
                session.read(&file, 0, &mut buffer).unwrap();
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
                session.write(&file, 0, &buffer).unwrap();
                assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, LEN));
            }
        }
    }
}
