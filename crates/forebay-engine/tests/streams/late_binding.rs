//! Transfers whose range is known when their stream gets there: order, binding, thousands in flight, streams that share
//! hardware connections.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::late::{KEY, UserStream, auto, enqueue, fixed, late, make_current, subject, told};
use crate::common::{Random, Scratch, chill, disk, in_process, pattern, turn};
use forebay_engine::source::{MemorySource, Source};
use forebay_engine::{Bound, Direction, File};
use forebay_gpu::{DeviceRange, Wait};

// ---- order and binding --------------------------------------------------------------------------------------------

#[test]
fn the_range_is_told_when_the_stream_gets_there() {
    let turn = turn();
    for cold in [false, true] {
        for (most, len) in
            [(4096, 1000), (70_000, 70_000), (9 << 20, 3 << 20), (9 << 20, 0), (5 << 20, (5 << 20) - 1)]
        {
            let session = auto();
            let user = UserStream::new(&turn, &session);
            let (scratch, file) = subject(10 << 20);
            if cold {
                chill(&file);
            }
            let buffer = session.buffer(0, most + 100).unwrap();
            assert!(turn.fake.write(buffer.address(), &vec![0xA5; most + 100]));
            let release = user.hold();
            // What an earlier callback of the stream writes is what `bind` finds.
            let place = Arc::new(AtomicU64::new(u64::MAX));
            let (write, read) = (place.clone(), place.clone());
            user.stream.callback(Box::new(move || write.store(12_345, Ordering::SeqCst))).unwrap();
            let address = buffer.address() + 7;
            let bind = move || Ok(Bound { offset: read.load(Ordering::SeqCst), address, len });
            let (read, answer) = late(&file, &buffer.memory(), Direction::Read, most, bind);
            enqueue(&session, user.handle, read).unwrap();
            let seen = Arc::new(Mutex::new((None, Vec::new())));
            let (look, fake, known) = (seen.clone(), turn.fake, answer.clone());
            let base = buffer.address();
            user.stream
                .callback(Box::new(move || {
                    *look.lock().unwrap() =
                        (known.lock().unwrap().clone(), fake.read(base, most + 100).unwrap());
                }))
                .unwrap();
            std::thread::sleep(Duration::from_millis(5));
            assert!(answer.lock().unwrap().is_none(), "told before the stream got there");
            drop(release);
            user.finish();
            assert_eq!(told(&answer).unwrap(), len as u64);
            let (result, bytes) = seen.lock().unwrap().clone();
            assert_eq!(result.unwrap().unwrap(), len as u64, "later work ran before `done`");
            assert!(bytes[..7].iter().chain(&bytes[7 + len..]).all(|byte| *byte == 0xA5), "written outside");
            let want = std::fs::read(scratch.path()).unwrap()[12_345..12_345 + len].to_vec();
            assert!(bytes[7..7 + len] == want, "{most} {len} {cold}: wrong bytes");
        }
    }
}

#[test]
fn a_write_takes_what_is_there_when_the_stream_gets_there() {
    let turn = turn();
    for len in [1, 5000, 70_000, (9 << 20) + 77] {
        let session = auto();
        let user = UserStream::new(&turn, &session);
        let (scratch, file) = subject(len + 100);
        let buffer = session.buffer(0, len).unwrap();
        let release = user.hold();
        let (write, answer) = fixed(&file, &buffer.memory(), Direction::Write, (50, 0, len));
        // SAFETY: the buffer lives until the stream was waited for.
        unsafe { user.stream.fill_pattern(DeviceRange::new(buffer.address(), len), 9, 0) }.unwrap();
        enqueue(&session, user.handle, write).unwrap();
        // SAFETY: as above.
        unsafe { user.stream.fill_pattern(DeviceRange::new(buffer.address(), len), 10, 0) }.unwrap();
        // The bytes written are read back in the same order.
        let other = session.buffer(0, len).unwrap();
        let (read, again) = fixed(&file, &other.memory(), Direction::Read, (50, 0, len));
        enqueue(&session, user.handle, read).unwrap();
        drop(release);
        user.finish();
        assert_eq!((told(&answer).unwrap(), told(&again).unwrap()), (len as u64, len as u64));
        let bytes = std::fs::read(scratch.path()).unwrap();
        assert!(bytes[50..50 + len] == pattern(9, 0, len));
        assert!(bytes[..50] == pattern(KEY, 0, 50) && bytes.len() == len + 100);
        assert!(other.to_vec().unwrap() == pattern(9, 0, len));
        assert!(buffer.to_vec().unwrap() == pattern(10, 0, len));
    }
}

#[test]
fn default_streams_and_host_memory_have_their_order() {
    const LEN: usize = 200_000;
    let turn = turn();
    let session = auto();
    make_current(&turn);
    let (_scratch, file) = subject(LEN);
    for handle in [0, 1, 2] {
        let user = UserStream::of(&turn, &session, handle);
        for memory in [session.buffer(0, LEN).unwrap(), session.host_buffer(LEN).unwrap()] {
            let release = user.hold();
            let (read, answer) = fixed(&file, &memory.memory(), Direction::Read, (0, 0, LEN));
            enqueue(&session, handle, read).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            assert!(answer.lock().unwrap().is_none());
            drop(release);
            user.finish();
            assert_eq!(told(&answer).unwrap(), LEN as u64);
            assert!(memory.to_vec().unwrap() == pattern(KEY, 0, LEN));
            let (write, answer) = fixed(&file, &memory.memory(), Direction::Write, (0, 0, LEN));
            enqueue(&session, handle, write).unwrap();
            user.finish();
            assert_eq!(told(&answer).unwrap(), LEN as u64);
        }
    }
    // Threads of their own, each with its own default stream.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (session, file, fake) = (session.clone(), file.clone(), turn.fake);
            std::thread::spawn(move || {
                let primary = fake.retain_primary(0).unwrap();
                fake.set_current_context(primary).unwrap();
                let buffer = session.buffer(0, LEN).unwrap();
                let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, LEN));
                enqueue(&session, 2, read).unwrap();
                // SAFETY: the per-thread default stream lives as long as the thread.
                let stream = unsafe { session.device(0).unwrap().foreign_stream(2) }.unwrap();
                stream.synchronize(Wait::Block).unwrap();
                assert_eq!(told(&answer).unwrap(), LEN as u64);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

// ---- many ---------------------------------------------------------------------------------------------------------

fn many_in_flight(streams: usize) {
    const LEN: usize = 4096;
    const COUNT: usize = 2048;
    let turn = turn();
    turn.fake.set_delay_us(0);
    let session = auto();
    let users: Vec<_> = (0..streams).map(|_| UserStream::new(&turn, &session)).collect();
    let (_scratch, file) = subject(COUNT * LEN);
    let buffer = session.buffer(0, COUNT * LEN).unwrap();
    // Tracks and memory are made by the first operation of each stream.
    for user in &users {
        let (read, _) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, LEN));
        enqueue(&session, user.handle, read).unwrap();
    }
    let holds: Vec<_> = users.iter().map(UserStream::hold).collect();
    let begun = Instant::now();
    let answers: Vec<_> = (0..COUNT)
        .map(|index| {
            let at = (index * LEN) as u64;
            let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (at, at, LEN));
            enqueue(&session, users[index % streams].handle, read).unwrap();
            answer
        })
        .collect();
    let queued = begun.elapsed();
    drop(holds);
    users.iter().for_each(UserStream::finish);
    let done = begun.elapsed();
    println!("{streams} streams: {COUNT} queued in {queued:?}, done after {done:?} (software GPU)");
    assert!(answers.iter().all(|answer| told(answer).is_ok_and(|bytes| bytes == LEN as u64)));
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, COUNT * LEN));
    assert_eq!(session.stats()[0].requests, (COUNT + streams) as u64);
}

#[test]
fn thousands_in_flight_on_one_stream() {
    many_in_flight(1);
}

#[test]
fn thousands_in_flight_on_many_streams() {
    many_in_flight(16);
}

/// 256 streams at once, each with reads and writes of all sizes, all of them held until everything is queued.
fn waiting_streams() {
    const STREAMS: usize = 256;
    const SIZES: [usize; 8] = [1, 777, 4096, 65_536, 65_537, 300_001, 1 << 20, (9 << 20) + 13];
    let turn = turn();
    turn.fake.set_delay_us(0);
    let session = auto();
    let users: Vec<_> = (0..STREAMS).map(|_| UserStream::new(&turn, &session)).collect();
    let (_scratch, file) = subject(12 << 20);
    let target = Scratch::new(&disk());
    let out = File::options().write(true).create(true).open(target.path()).unwrap();
    let whole = pattern(KEY, 0, 12 << 20);
    let mut random = Random(5);
    let hold = users[0].hold();
    let mut rounds = Vec::new();
    for (index, user) in users.iter().enumerate() {
        // Few large ones: the software GPU's memory is the machine's.
        let len = if index % 32 == 0 { SIZES[7] } else { SIZES[index % 7] };
        let buffer = session.buffer(0, len + 16).unwrap();
        let (skip, offset) = (random.below(16), random.below(1 << 20));
        let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (offset, skip, len));
        enqueue(&session, user.handle, read).unwrap();
        let place = index as u64 * (10 << 20) + skip;
        let (write, written) = fixed(&out, &buffer.memory(), Direction::Write, (place, skip, len));
        enqueue(&session, user.handle, write).unwrap();
        rounds.push((buffer, skip, offset, len, place, [answer, written]));
    }
    drop(hold);
    users.iter().for_each(UserStream::finish);
    for (buffer, skip, offset, len, place, answers) in rounds {
        let want = &whole[offset as usize..][..len];
        for answer in answers {
            assert_eq!(told(&answer).unwrap(), len as u64);
        }
        assert!(turn.fake.read(buffer.address() + skip, len).unwrap() == want, "{len} bytes: read wrong");
        let mut bytes = vec![0; len];
        std::fs::File::open(target.path()).unwrap().read_exact_at(&mut bytes, place).unwrap();
        assert!(bytes == want, "{len} bytes: written wrong");
    }
}

fn with_connections(count: &str) {
    in_process(&[], &[("FAKE_CUDA_CONNECTIONS", count)], waiting_streams);
}

#[test]
fn waiting_streams_on_one_connection() {
    with_connections("1");
}

#[test]
fn waiting_streams_on_eight_connections() {
    with_connections("8");
}

#[test]
fn waiting_streams_on_thirty_two_connections() {
    with_connections("32");
}

/// The software GPU's connections are strict enough: a stream that waits for work that is queued behind it waits
/// forever.
#[test]
fn a_shared_connection_keeps_the_order_of_submission() {
    let one = [("FAKE_CUDA_CONNECTIONS", "1")];
    in_process(&[], &one, || {
        let turn = turn();
        let session = auto();
        let (first, second) = (UserStream::new(&turn, &session), UserStream::new(&turn, &session));
        let is_done = Arc::new(AtomicBool::new(false));
        let release = first.hold();
        let done = is_done.clone();
        second.stream.callback(Box::new(move || done.store(true, Ordering::SeqCst))).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!is_done.load(Ordering::SeqCst), "it overtook work that was queued before");
        drop(release);
        first.finish();
        second.finish();
        assert!(is_done.load(Ordering::SeqCst));
    });
}

#[test]
fn other_transfers_go_on_while_streams_wait() {
    let turn = turn();
    let session = auto();
    let users: Vec<_> = (0..32).map(|_| UserStream::new(&turn, &session)).collect();
    let (scratch, file) = subject(2 << 20);
    let buffers: Vec<_> = users.iter().map(|_| session.buffer(0, 1 << 20).unwrap()).collect();
    let holds: Vec<_> = users.iter().map(UserStream::hold).collect();
    let mut answers = Vec::new();
    for (user, buffer) in users.iter().zip(&buffers) {
        let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (3, 0, 1 << 20));
        enqueue(&session, user.handle, read).unwrap();
        answers.push(answer);
    }
    for len in [4096, 1_500_000] {
        let mut mine = session.buffer(0, len).unwrap();
        session.read(&file, 1, &mut mine).unwrap();
        assert!(mine.to_vec().unwrap() == std::fs::read(scratch.path()).unwrap()[1..=len]);
    }
    drop(holds);
    users.iter().for_each(UserStream::finish);
    assert!(answers.iter().all(|answer| told(answer).unwrap() == 1 << 20));
}

#[test]
fn threads_share_a_stream_and_have_their_own() {
    const LEN: usize = 100_000;
    let turn = turn();
    turn.fake.set_delay_us(0);
    let session = auto();
    let shared = UserStream::new(&turn, &session);
    let (_scratch, file) = subject(LEN * 8);
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (session, file, fake, shared, finished) =
                (&session, &file, turn.fake, shared.handle, &finished);
            scope.spawn(move || {
                let primary = fake.retain_primary(0).unwrap();
                fake.set_current_context(primary).unwrap();
                let own = fake.create_stream(1).unwrap();
                for round in 0..20 {
                    let handle = if round % 2 == 0 { shared } else { own };
                    let buffer = session.buffer(0, LEN).unwrap();
                    let at = (thread * LEN) as u64;
                    let (read, answer) = fixed(file, &buffer.memory(), Direction::Read, (at, 0, LEN));
                    enqueue(session, handle, read).unwrap();
                    // SAFETY: both streams live on.
                    let stream = unsafe { session.device(0).unwrap().foreign_stream(handle) }.unwrap();
                    stream.synchronize(Wait::Block).unwrap();
                    assert_eq!(told(&answer).unwrap(), LEN as u64);
                    assert!(fake.read(buffer.address(), LEN).unwrap() == pattern(KEY, at, LEN));
                    finished.fetch_add(1, Ordering::Relaxed);
                }
                fake.destroy_stream(own).unwrap();
            });
        }
    });
    assert_eq!(finished.load(Ordering::Relaxed), 160);
}

/// More streams than the server remembers; each is destroyed, and handles may come back.
#[test]
fn streams_come_and_go() {
    let turn = turn();
    turn.fake.set_delay_us(0);
    let session = auto();
    let (_scratch, file) = subject(8192);
    let buffer = session.buffer(0, 8192).unwrap();
    for _ in 0..700 {
        let user = UserStream::new(&turn, &session);
        let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 8192));
        enqueue(&session, user.handle, read).unwrap();
        user.finish();
        assert_eq!(told(&answer).unwrap(), 8192);
    }
    assert!(turn.fake.leaks().registrations < 60, "{:?}", turn.fake.leaks());
}

// ---- what waiting costs -------------------------------------------------------------------------------------------

/// How often the stream thread went to sleep.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_server = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("forebay-0-strea"))
    };
    let server = tasks.into_iter().find(is_server).unwrap();
    let status = std::fs::read_to_string(server.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// A slow disk is waited for asleep: with naps of 200 µs these 200 ms would be a thousand of them.
#[test]
fn the_stream_thread_sleeps_while_files_are_read() {
    in_process(&[], &[], || {
        let turn = turn();
        let session = auto();
        let source = MemorySource::new(pattern(KEY, 0, 5 << 20), Duration::from_millis(500));
        let file = File::from_source(Arc::new(source) as Arc<dyn Source>).unwrap();
        let users: Vec<_> = (0..3).map(|_| UserStream::new(&turn, &session)).collect();
        let buffer = session.buffer(0, 5 << 20).unwrap();
        let answers: Vec<_> = users
            .iter()
            .map(|user| {
                let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 5 << 20));
                enqueue(&session, user.handle, read).unwrap();
                answer
            })
            .collect();
        std::thread::sleep(Duration::from_millis(150));
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(200));
        let during = sleeps() - before;
        assert!(answers.iter().all(|answer| answer.lock().unwrap().is_none()), "the reads are under way");
        assert!(during <= 5, "{during} naps");
        for (user, answer) in users.iter().zip(&answers) {
            user.finish();
            assert_eq!(told(answer).unwrap(), 5 << 20);
        }
    });
}
