//! Nothing is left behind, and memory is bounded: by lanes and slots, not by the size of transfers.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Scratch, Target, Turn, chill, config, disk, in_process, pattern, session, soon, turn};
use fake_cuda::Leaks;
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::source::{Fault, Faulty, MemorySource};
use forebay_engine::{Direction, File, ReadPiece, Session, Source, Transfer};
use forebay_gpu::Wait;

const KEY: u64 = 59;
const LEN: usize = 3_000_001;
const BACKENDS: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Threads];

/// What a process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    lanes: usize,
    descriptors: Vec<String>,
    device: Leaks,
}

fn held(turn: &Turn) -> Held {
    let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let name = std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
        name.starts_with("forebay-").then_some(())
    });
    let lanes = names.count();
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut descriptors: Vec<_> = links
        .filter_map(|link| Some(std::fs::read_link(link.ok()?.path()).ok()?.display().to_string()))
        // The engine has no pipes. Tests that run meanwhile have, to children.
        .filter(|name| !name.starts_with("/proc/") && !name.starts_with("pipe:"))
        .collect();
    descriptors.sort();
    Held { lanes, descriptors, device: turn.fake.leaks() }
}

/// What the software GPU holds is as it was, apart from contexts: the primary one stays for good.
#[track_caller]
fn check_tidy(turn: &Turn, before: &Held) {
    let now = || {
        let mut now = held(turn);
        now.device.contexts = before.device.contexts;
        now
    };
    assert!(soon(|| now() == *before), "left behind: {:?}\nbefore: {before:?}", now());
}

fn reads_and_writes(session: &Session, target: Target) {
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    for len in [60_000, LEN] {
        let mut buffer = target.buffer(session, len);
        session.read(&file, 0, &mut buffer).unwrap();
        session.write(&file, 0, &buffer).unwrap();
        chill(&file);
        drop(session.submit_read(&file, 0, buffer).unwrap());
    }
    let pieces: Vec<_> =
        (0..300).map(|at| ReadPiece { offset: at as u64 * 9000, range: at * 700..(at + 1) * 700 }).collect();
    session
        .read_batch(&file, &pieces, target.buffer(session, 210_000))
        .unwrap()
        .wait()
        .into_result()
        .unwrap();
    let memory = MemorySource::new(pattern(KEY, 0, LEN), Duration::from_micros(50));
    let remote = File::from_source(Arc::new(memory) as Arc<dyn Source>).unwrap();
    session.read(&remote, 0, &mut target.buffer(session, LEN)).unwrap();
}

fn read_on_a_stream(turn: &Turn, session: &Session, flags: u32) {
    let primary = turn.fake.retain_primary(0).unwrap();
    turn.fake.set_current_context(primary).unwrap();
    let stream = turn.fake.create_stream(flags).unwrap();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    let buffer = session.buffer(0, LEN).unwrap();
    let (memory, direction) = (buffer.memory(), Direction::Read);
    let read = Transfer { file, offset: 0, memory, len: LEN, direction, allow_short: false };
    // SAFETY: stream and memory live until both have been waited for.
    unsafe {
        let ticket = session.submit_on(stream, vec![read]).unwrap();
        let stream = session.device(0).unwrap().foreign_stream(stream).unwrap();
        stream.synchronize(Wait::Block).unwrap();
        ticket.wait().into_result().unwrap();
    }
    turn.fake.destroy_stream(stream).unwrap();
}

#[test]
fn many_sessions_leave_nothing_behind() {
    let turn = turn();
    // The first one makes what stays for the process: the primary context, …
    let first = session(IoBackend::Auto, CachePolicy::Auto);
    reads_and_writes(&first, Target::Device);
    read_on_a_stream(&turn, &first, 0);
    drop(first);
    assert!(soon(|| held(&turn).lanes == 0));
    let before = held(&turn);
    let registrations = before.device.registrations;
    assert_eq!(before.device, Leaks { contexts: 1, registrations, ..Leaks::default() });
    assert!(registrations <= 1, "the words that streams wait for may stay pinned");
    for round in 0..6 {
        for io in BACKENDS {
            let session = session(io, CachePolicy::Auto);
            for target in Target::ALL {
                reads_and_writes(&session, target);
            }
            read_on_a_stream(&turn, &session, round % 2);
        }
    }
    check_tidy(&turn, &before);
}

#[test]
fn errors_leave_nothing_behind() {
    let turn = turn();
    reads_and_writes(&session(IoBackend::Auto, CachePolicy::Auto), Target::Device);
    assert!(soon(|| held(&turn).lanes == 0));
    let before = held(&turn);
    let calls = [
        "cuMemHostRegister_v2",
        "cuMemHostGetDevicePointer_v2",
        "cuStreamCreate",
        "cuEventCreate",
        "cuEventRecord",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuLaunchKernel",
        "cuMemAlloc_v2",
    ];
    for io in BACKENDS {
        for len in [60_000, LEN] {
            for call in calls {
                for after in [0, 1, 3] {
                    let session = session(io, CachePolicy::Auto);
                    let scratch = Scratch::with_pattern(&disk(), KEY, len);
                    let file = File::options().write(true).open(scratch.path()).unwrap();
                    turn.fake.fail_next(call, 1, after, 1);
                    if let Ok(mut buffer) = session.buffer(0, len) {
                        let _ = session.read(&file, 0, &mut buffer);
                        let _ = session.write(&file, 0, &buffer);
                        let _ = session.submit_read(&file, 0, buffer).map(forebay_engine::Ticket::wait);
                    }
                    turn.fake.reset();
                }
            }
            for target in Target::ALL {
                let scratch = Scratch::with_pattern(&disk(), KEY, len);
                for direction in [Direction::Read, Direction::Write] {
                    let faulty = Faulty::new(direction, len as u64 / 2, Fault::Errno(libc::EIO), u64::MAX);
                    let file =
                        File::options().write(true).calls(Box::new(faulty)).open(scratch.path()).unwrap();
                    let session = session(io, CachePolicy::Auto);
                    let mut buffer = target.buffer(&session, len);
                    let _ = session.read(&file, 0, &mut buffer);
                    let _ = session.submit_write(&file, 0, buffer).map(forebay_engine::Ticket::wait);
                }
            }
        }
    }
    check_tidy(&turn, &before);
}

#[test]
fn a_session_that_never_moved_a_byte_starts_nothing() {
    let turn = turn();
    let before = held(&turn);
    for _ in 0..3 {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        assert!(session.elect(&session.device(0).unwrap()).is_ok());
        assert_eq!(held(&turn), before, "lanes start with the first transfer");
    }
    check_tidy(&turn, &before);
}

/// Bytes of `name` in /proc/self/status.
fn status(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn memory_does_not_grow_with_the_file() {
    const LARGE: usize = 64 << 20;
    // Of its own: other tests' threads would blur the numbers.
    in_process(&[], &[], || {
        let turn = turn();
        let scratch = Scratch::with_pattern(&disk(), KEY, LARGE);
        let file = File::options().write(true).open(scratch.path()).unwrap();
        for io in BACKENDS {
            for target in Target::ALL {
                let session = session(io, CachePolicy::Auto);
                let mut small = target.buffer(&session, 2 << 20);
                let mut large = target.buffer(&session, LARGE);
                large.copy_from_slice(&vec![0; LARGE]).unwrap();
                let both_ways = |buffer: &mut forebay_engine::Buffer| {
                    for is_cold in [false, true] {
                        if is_cold {
                            chill(&file);
                        }
                        session.read(&file, 0, buffer).unwrap();
                        session.write(&file, 0, buffer).unwrap();
                    }
                };
                both_ways(&mut small);
                let (mapped, resident) = (status("VmSize"), status("VmRSS"));
                both_ways(&mut large);
                let pins = |leaks: Leaks| leaks.registrations;
                assert!(
                    pins(turn.fake.leaks()) <= 1 + 2 * 2,
                    "the first slots, then a second one and the rest of each lane"
                );
                let (mapped, resident) =
                    (status("VmSize").saturating_sub(mapped), status("VmRSS").saturating_sub(resident));
                // Slots that were not touched before, stacks, the allocator: not the file.
                let budget = config(io, CachePolicy::Auto);
                let slots = budget.lanes * (budget.slots * budget.slot_size + (6 << 20));
                assert!(mapped < 8 << 20, "{io} {target:?}: {mapped} more bytes mapped");
                assert!(resident < slots + (8 << 20), "{io} {target:?}: {resident} more bytes resident");
                assert!(large.to_vec().unwrap() == pattern(KEY, 0, LARGE));
            }
        }
    });
}

#[test]
fn callers_at_once_take_a_bounded_number_of_slots() {
    const CALLERS: usize = 160;
    let turn = turn();
    turn.fake.set_delay_us(2000);
    let before = turn.fake.leaks().registrations;
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    let session =
        Session::with_config(Config { lanes: 2, ..config(IoBackend::Auto, CachePolicy::Auto) }).unwrap();
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (session, file) = (&session, &file);
            scope.spawn(move || {
                let mut buffer = session.buffer(0, 5000).unwrap();
                for round in 0..10 {
                    let offset = ((caller * 10 + round) * 1800) as u64;
                    session.read(file, offset, &mut buffer).unwrap();
                    assert!(buffer.to_vec().unwrap() == pattern(KEY, offset, 5000));
                }
            });
        }
    });
    let pinned = turn.fake.leaks().registrations - before;
    // Two for each lane, one for the mailboxes, one for the first few slots, and one for all others: these reads are short.
    assert!(pinned <= 2 * 2 + 1 + 2, "{pinned} pins for {CALLERS} callers and two lanes");
    drop(session);
    assert!(soon(|| turn.fake.leaks().registrations == before));
}

/// Whether nobody has the file open for writing: only then does the kernel lease it to a reader.
fn is_let_go(path: &std::path::Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: no pointers are passed.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    assert!(rc == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN));
    rc == 0
}

/// Files registered with an io_uring stay open though no descriptor shows them.
#[test]
fn an_idle_session_keeps_no_file_open() {
    let _turn = turn();
    let probe = Scratch::with_pattern(&disk(), KEY, 10);
    let writer = std::fs::OpenOptions::new().write(true).open(probe.path()).unwrap();
    if is_let_go(probe.path()) {
        println!("skipped: no leases on this file system");
        return;
    }
    drop(writer);
    assert!(is_let_go(probe.path()));
    for io in BACKENDS {
        let session = session(io, CachePolicy::Auto);
        for target in Target::ALL {
            // Bulk, and packs of small pieces, cold and warm: all of what registers files.
            let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
            let file = File::options().write(true).open(scratch.path()).unwrap();
            for is_cold in [true, false] {
                if is_cold {
                    chill(&file);
                }
                let mut buffer = target.buffer(&session, LEN);
                session.read(&file, 0, &mut buffer).unwrap();
                session.write(&file, 0, &buffer).unwrap();
                let pieces: Vec<_> = (0..300)
                    .map(|at| ReadPiece { offset: at as u64 * 9000, range: at * 700..(at + 1) * 700 })
                    .collect();
                let ticket = session.read_batch(&file, &pieces, buffer).unwrap();
                ticket.wait().into_result().unwrap();
            }
            drop(file);
            assert!(soon(|| is_let_go(scratch.path())), "{io} {target:?}: the file is still open");
        }
    }
}

#[test]
fn a_file_that_is_dropped_in_flight_is_closed_with_its_last_transfer() {
    let _turn = turn();
    for io in BACKENDS {
        let session = session(io, CachePolicy::Auto);
        for target in Target::ALL {
            let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
            let file = File::options().write(true).open(scratch.path()).unwrap();
            let ticket = session.submit_read(&file, 0, target.buffer(&session, LEN)).unwrap();
            drop(file);
            let (_, buffer) = ticket.wait().into_result().unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
            assert!(soon(|| is_let_go(scratch.path())), "{io} {target:?}: the file is still open");
        }
    }
}

#[test]
fn tickets_outlive_their_session() {
    let turn = turn();
    let before = held(&turn);
    for io in BACKENDS {
        for target in Target::ALL {
            let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
            let file = File::open(scratch.path()).unwrap();
            let session = session(io, CachePolicy::Auto);
            let tickets: Vec<_> = (0..8)
                .map(|_| session.submit_read(&file, 0, target.buffer(&session, LEN)).unwrap())
                .collect();
            drop(session);
            for ticket in tickets {
                let (_, buffer) = ticket.wait().into_result().unwrap();
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
            }
        }
    }
    check_tidy(&turn, &before);
}
