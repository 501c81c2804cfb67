//! Stream order: transfers start when a user's stream gets there, and work queued later sees their bytes. Memory
//! and streams of other contexts; captures that go on elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Scratch, Target, chill, disk, in_process, pattern, session, turn};
use crate::user::{UserStream, make_current};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{Direction, File, Memory, ReadPiece, Transfer};
use forebay_error::ErrorKind;
use forebay_gpu::{AllocationKind, Context, DeviceRange, HostRange, Wait};

const KEY: u64 = 53;
const BACKENDS: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Threads];
const LENGTHS: [usize; 2] = [60_000, 1_500_001];

fn transfer(file: &File, offset: u64, memory: Memory, len: usize, direction: Direction) -> Transfer {
    Transfer { file: file.clone(), offset, memory, len, direction, allow_short: false }
}

/// A writable file with the pattern of KEY.
fn subject(len: usize) -> (Scratch, File) {
    let scratch = Scratch::with_pattern(&disk(), KEY, len);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    (scratch, file)
}

fn nothing_starts_early_and_later_work_sees_the_bytes() {
    let turn = turn();
    make_current(turn.fake);
    for io in BACKENDS {
        for delay in [20, 2000] {
            turn.fake.set_delay_us(delay);
            for len in LENGTHS {
                let session = session(io, CachePolicy::Auto);
                let device = session.device(0).unwrap();
                let user = UserStream::new(&turn, &device);
                let (_scratch, file) = subject(len);
                let buffer = session.buffer(0, len).unwrap();
                let mut back = session.host_buffer(len).unwrap();
                let blank = vec![0xA5; len];
                assert!(turn.fake.write(buffer.address(), &blank));

                let release = user.hold();
                let read = transfer(&file, 0, buffer.memory(), len, Direction::Read);
                // SAFETY: the stream and all memory live until the synchronisation below.
                let ticket = unsafe { session.submit_on(user.handle, vec![read]) }.unwrap();
                let out = back.as_mut_slice().unwrap();
                // SAFETY: as above.
                unsafe {
                    device.pin(HostRange::new(out.as_mut_ptr(), len)).unwrap();
                    user.stream.copy_out(HostRange::new(out.as_mut_ptr(), len), buffer.address()).unwrap();
                }
                assert!(
                    !ticket.wait_timeout(Duration::from_millis(50)),
                    "resolved before its stream got there"
                );
                assert!(
                    turn.fake.read(buffer.address(), len).unwrap() == blank,
                    "started before its stream got there"
                );
                drop(release);
                // The stream alone is waited for, not the ticket.
                user.stream.synchronize(Wait::Block).unwrap();
                assert!(out == pattern(KEY, 0, len), "work queued later ran before the transfer was done");
                // SAFETY: the copy is done.
                unsafe { device.unpin(out.as_mut_ptr()) };
                let outcome = ticket.wait();
                assert_eq!(outcome.result().unwrap().bytes(), len as u64);
            }
        }
    }
}

fn a_write_takes_what_the_stream_made_before() {
    let turn = turn();
    make_current(turn.fake);
    for io in BACKENDS {
        for len in LENGTHS {
            let session = session(io, CachePolicy::Auto);
            let device = session.device(0).unwrap();
            let user = UserStream::new(&turn, &device);
            let (scratch, file) = subject(len);
            let buffer = session.buffer(0, len).unwrap();
            let release = user.hold();
            let write = transfer(&file, 0, buffer.memory(), len, Direction::Write);
            // SAFETY: the stream and all memory live until the ticket is waited for.
            let ticket = unsafe {
                user.stream.fill_pattern(DeviceRange::new(buffer.address(), len), 99, 0).unwrap();
                let ticket = session.submit_on(user.handle, vec![write]).unwrap();
                // What comes later does not reach the file.
                user.stream.fill_pattern(DeviceRange::new(buffer.address(), len), 100, 0).unwrap();
                ticket
            };
            std::thread::sleep(Duration::from_millis(20));
            assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, len));
            drop(release);
            ticket.wait().into_result().unwrap();
            assert!(std::fs::read(scratch.path()).unwrap() == pattern(99, 0, len));
            user.stream.synchronize(Wait::Block).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(100, 0, len));
        }
    }
}

fn many_submissions_on_several_streams_keep_their_order() {
    const LEN: usize = 20_000;
    const ROUNDS: usize = 40;
    let turn = turn();
    make_current(turn.fake);
    turn.fake.set_delay_us(200);
    for io in BACKENDS {
        let session = session(io, CachePolicy::Auto);
        let device = session.device(0).unwrap();
        let mut streams: Vec<_> = (0..3).map(|_| UserStream::new(&turn, &device)).collect();
        streams.push(UserStream::of(&turn, &device, 0));
        let (_scratch, file) = subject(LEN * ROUNDS * streams.len());
        // Each round reads another part of the file over the same memory and checks it on the stream.
        let checks: Vec<_> = streams.iter().map(|_| Arc::new(AtomicU64::new(0))).collect();
        let buffers: Vec<_> = streams.iter().map(|_| session.buffer(0, LEN).unwrap()).collect();
        let mut tickets = Vec::new();
        for round in 0..ROUNDS {
            for (index, user) in streams.iter().enumerate() {
                let offset = ((round * streams.len() + index) * LEN) as u64;
                let address = buffers[index].address();
                let read = transfer(&file, offset, buffers[index].memory(), LEN, Direction::Read);
                // SAFETY: streams and memory live until the synchronisation below.
                tickets.push(unsafe { session.submit_on(user.handle, vec![read]) }.unwrap());
                let (good, fake) = (checks[index].clone(), turn.fake);
                user.stream
                    .callback(Box::new(move || {
                        if fake.read(address, LEN).unwrap() == pattern(KEY, offset, LEN) {
                            good.fetch_add(1, Ordering::Relaxed);
                        }
                    }))
                    .unwrap();
            }
        }
        for user in &streams {
            user.stream.synchronize(Wait::Block).unwrap();
        }
        // The thread that keeps their results may be a moment later than the stream.
        let soon = Instant::now() + Duration::from_secs(10);
        let left = || soon.saturating_duration_since(Instant::now());
        assert!(tickets.iter().all(|ticket| ticket.wait_timeout(left())));
        for good in checks {
            assert_eq!(good.load(Ordering::Relaxed), ROUNDS as u64, "{io}: rounds that saw their bytes");
        }
    }
}

#[test]
fn reads_keep_the_order_of_their_stream() {
    nothing_starts_early_and_later_work_sees_the_bytes();
}

#[test]
fn writes_keep_the_order_of_their_stream() {
    a_write_takes_what_the_stream_made_before();
}

#[test]
fn many_submissions_keep_the_order_of_their_streams() {
    many_submissions_on_several_streams_keep_their_order();
}

/// A driver without stream memory operations: a callback holds the stream instead.
#[test]
fn the_order_is_kept_without_stream_memory_operations() {
    let hidden = [(
        "FOREBAY_HIDE_SYMBOLS",
        "cuStreamWaitValue32,cuStreamWaitValue32_v2,cuStreamWriteValue32,cuStreamWriteValue32_v2,cuStreamBatchMemOp_v2",
    )];
    in_process(&[], &hidden, || {
        let missing = {
            let _turn = turn();
            forebay_gpu::cuda::symbols_missing().unwrap()
        };
        assert_eq!(missing.len(), 5, "{missing:?}");
        nothing_starts_early_and_later_work_sees_the_bytes();
        a_write_takes_what_the_stream_made_before();
        many_submissions_on_several_streams_keep_their_order();
    });
}

/// Two calls instead of one batch.
#[test]
fn the_order_is_kept_without_batches_of_memory_operations() {
    for hidden in
        ["cuStreamBatchMemOp_v2", "cuStreamBatchMemOp_v2,cuStreamWaitValue32_v2,cuStreamWriteValue32_v2"]
    {
        let variables = [("FOREBAY_HIDE_SYMBOLS", hidden)];
        in_process(&[], &variables, || {
            nothing_starts_early_and_later_work_sees_the_bytes();
            a_write_takes_what_the_stream_made_before();
        });
    }
}

/// A context in which no kernel runs: the lanes copy, and the stream waits for them.
#[test]
fn the_order_is_kept_without_kernels() {
    let variables = [("FOREBAY_HIDE_SYMBOLS", "cuModuleLoadData")];
    in_process(&[], &variables, || {
        let turn = turn();
        make_current(turn.fake);
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let handle = turn.fake.create_stream(1).unwrap();
        for len in LENGTHS {
            let (scratch, file) = subject(len);
            let buffer = session.buffer(0, len).unwrap();
            for direction in [Direction::Read, Direction::Write, Direction::Read] {
                let transfer = transfer(&file, 0, buffer.memory(), len, direction);
                // SAFETY: stream and memory live until the ticket is waited for.
                let ticket = unsafe { session.submit_on(handle, vec![transfer]) }.unwrap();
                ticket.wait().into_result().unwrap();
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
            }
            assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, len));
        }
        turn.fake.destroy_stream(handle).unwrap();
    });
}

#[test]
fn host_memory_has_a_stream_too() {
    let turn = turn();
    make_current(turn.fake);
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let (_scratch, file) = subject(1_500_001);
    let buffer = session.host_buffer(1_500_001).unwrap();
    let read = transfer(&file, 0, buffer.memory(), 1_500_001, Direction::Read);
    // SAFETY: the buffer lives until the ticket is waited for.
    let ticket = unsafe { session.submit_on(0, vec![read]) }.unwrap();
    ticket.wait().into_result().unwrap();
    assert!(buffer.as_slice().unwrap() == pattern(KEY, 0, 1_500_001));
}

#[test]
fn a_failed_transfer_lets_its_stream_go_on() {
    let turn = turn();
    make_current(turn.fake);
    for io in BACKENDS {
        let session = session(io, CachePolicy::Auto);
        let device = session.device(0).unwrap();
        let user = UserStream::new(&turn, &device);
        let (_scratch, file) = subject(1000);
        let buffer = session.buffer(0, 2_000_000).unwrap();
        for len in [2000, 2_000_000] {
            let read = transfer(&file, 0, buffer.memory(), len, Direction::Read);
            // SAFETY: stream and memory live until the ticket is waited for.
            let ticket = unsafe { session.submit_on(user.handle, vec![read]) }.unwrap();
            user.stream.synchronize(Wait::Block).unwrap();
            assert_eq!(ticket.wait().result().unwrap_err().kind(), ErrorKind::ShortRead);
        }
    }
}

/// Found by this test: an error after the start was queued came back while the transfer was going to run all the
/// same, on memory that the caller believes to be its own again.
#[test]
fn a_submission_that_is_refused_never_starts() {
    let turn = turn();
    make_current(turn.fake);
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let device = session.device(0).unwrap();
    let user = UserStream::new(&turn, &device);
    let (_scratch, file) = subject(60_000);
    let buffer = session.buffer(0, 60_000).unwrap();
    let blank = vec![0xA5; 60_000];
    // The last one fails so late that the transfer was begun, and its bytes read.
    let calls = ["cuStreamGetCtx", "cuMemHostRegister_v2", "cuStreamBatchMemOp_v2", "cuLaunchKernel", "late"];
    for call in calls {
        assert!(turn.fake.write(buffer.address(), &blank));
        let name = if call == "late" { "cuLaunchKernel" } else { call };
        if call == "late" {
            turn.fake.hang_next(name, 100);
        }
        turn.fake.fail_next(name, 1, 0, 1);
        let read = transfer(&file, 0, buffer.memory(), 60_000, Direction::Read);
        // SAFETY: stream and memory live on.
        let refused = unsafe { session.submit_on(user.handle, vec![read]) };
        turn.fake.reset();
        if let Ok(ticket) = refused {
            // The engine found another way, and then the transfer is to be right; or it had begun.
            if ticket.wait().into_result().is_ok() {
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 60_000), "{call}");
                continue;
            }
        }
        user.stream.synchronize(Wait::Block).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(
            turn.fake.read(buffer.address(), 60_000).unwrap() == blank,
            "{call} failed, and yet the transfer ran"
        );
    }
}

/// Found by this test: the session unmapped the word that the stream was still to wait for.
#[test]
fn a_stream_outlives_the_session_of_its_transfer() {
    in_process(&[], &[], || {
        let turn = turn();
        make_current(turn.fake);
        let device = forebay_gpu::cuda::devices().unwrap().remove(0);
        for _ in 0..20 {
            let session = session(IoBackend::Auto, CachePolicy::Auto);
            let user = UserStream::new(&turn, &device);
            let (_scratch, file) = subject(60_000);
            let buffer = session.buffer(0, 60_000).unwrap();
            turn.fake.set_delay_us(10_000);
            let read = transfer(&file, 0, buffer.memory(), 60_000, Direction::Read);
            // SAFETY: stream and memory live until the synchronisation below.
            let ticket = unsafe { session.submit_on(user.handle, vec![read]) }.unwrap();
            ticket.wait().into_result().unwrap();
            drop(session);
            user.stream.synchronize(Wait::Block).unwrap();
            turn.fake.set_delay_us(20);
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 60_000));
        }
    });
}

/// Found by this test: the transfer went to lanes that had ended, and nobody ever answered.
#[test]
fn a_session_dropped_before_its_stream_gets_there_resolves_the_ticket() {
    in_process(&[], &[], || {
        let turn = turn();
        make_current(turn.fake);
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let user = UserStream::new(&turn, &session.device(0).unwrap());
        let (_scratch, file) = subject(60_000);
        let buffer = session.buffer(0, 60_000).unwrap();
        let release = user.hold();
        let read = transfer(&file, 0, buffer.memory(), 60_000, Direction::Read);
        // SAFETY: stream and memory live until the ticket is resolved, or the process ends.
        let ticket = unsafe { session.submit_on(user.handle, vec![read]) }.unwrap();
        let closer = std::thread::spawn(move || drop(session));
        std::thread::sleep(Duration::from_millis(50));
        drop(release);
        if !ticket.wait_timeout(Duration::from_secs(5)) {
            eprintln!("the ticket is never resolved");
            // The stream would hold, or break, what goes on.
            std::process::exit(1);
        }
        // Done, or an error that says so: both are answers.
        if ticket.wait().into_result().is_ok() {
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 60_000));
        }
        user.stream.synchronize(Wait::Block).unwrap();
        closer.join().unwrap();
    });
}

/// Found by this test: where the stream's own work fails, the driver drops the callback that would start the transfer,
/// and nobody ever answered.
#[test]
fn a_stream_that_breaks_before_the_transfer_resolves_the_ticket() {
    in_process(&[], &[], || {
        let turn = turn();
        make_current(turn.fake);
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let device = session.device(0).unwrap();
        let (_scratch, file) = subject(60_000);
        let buffer = session.buffer(0, 60_000).unwrap();
        session.report(&device).unwrap();
        let user = UserStream::new(&turn, &device);
        let release = user.hold();
        turn.fake.fail_next("async:kernel", 719, 0, 1);
        let read = transfer(&file, 0, buffer.memory(), 60_000, Direction::Read);
        // SAFETY: stream and memory live until the end of the process.
        let ticket = unsafe {
            user.stream.fill_pattern(DeviceRange::new(buffer.address(), 60_000), 1, 0).unwrap();
            session.submit_on(user.handle, vec![read]).unwrap()
        };
        drop(release);
        let is_done = ticket.wait_timeout(Duration::from_secs(5));
        turn.fake.reset();
        std::mem::forget((user, buffer));
        assert!(is_done, "the ticket is never resolved");
        assert_eq!(ticket.wait().result().unwrap_err().kind(), ErrorKind::DeviceLost);
    });
}

// ---- captures -----------------------------------------------------------------------------------------------------

#[test]
fn captures_elsewhere_stay_intact_while_transfers_run() {
    const GLOBAL: i32 = 0;
    const OF_THREAD: i32 = 1;
    let turn = turn();
    make_current(turn.fake);
    for io in BACKENDS {
        for mode in [GLOBAL, OF_THREAD] {
            let captured = turn.fake.create_stream(1).unwrap();
            let session = session(io, CachePolicy::Auto);
            let (scratch, file) = subject(1_500_001);
            turn.fake.begin_capture(captured, mode).unwrap();
            // Everything for the first time, with the start of lanes and slots; then again.
            for round in 0..2 {
                for len in LENGTHS {
                    if round == 1 {
                        chill(&file);
                    }
                    let mut buffer = session.buffer(0, len).unwrap();
                    session.read(&file, 0, &mut buffer).unwrap();
                    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
                    session.write(&file, 0, &buffer).unwrap();
                    session.locate(buffer.address()).unwrap();
                }
                let pieces: Vec<_> = (0..50)
                    .map(|at| ReadPiece { offset: at as u64 * 20_000, range: at * 700..(at + 1) * 700 })
                    .collect();
                let buffer = session.buffer(0, 35_000).unwrap();
                session.read_batch(&file, &pieces, buffer).unwrap().wait().into_result().unwrap();
                // On another stream of the user's, too.
                let handle = {
                    // The user's own call is made as carefully as ours.
                    let session = session.clone();
                    let made = std::thread::spawn(move || {
                        let device = session.device(0).unwrap();
                        device.adopt_thread();
                        let fake = fake_cuda::install().unwrap();
                        make_current(fake);
                        fake.create_stream(1).unwrap()
                    });
                    made.join().unwrap()
                };
                let buffer = session.buffer(0, 60_000).unwrap();
                let read = transfer(&file, 0, buffer.memory(), 60_000, Direction::Read);
                // SAFETY: stream and memory live until the ticket is waited for.
                unsafe { session.submit_on(handle, vec![read]) }.unwrap().wait().into_result().unwrap();
            }
            drop(session);
            assert_eq!(turn.fake.end_capture(captured).unwrap(), 0, "no work of the engine was captured");
            assert_eq!(turn.fake.capture_mode(), GLOBAL, "the thread's mode is what it was");
            assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, 1_500_001));
        }
    }
}

/// Found by this test: the callback went into the graph, which would start the transfer never or (a replayed graph)
/// with freed memory.
#[test]
fn a_stream_that_captures_is_refused() {
    in_process(&[], &[], || {
        let turn = turn();
        make_current(turn.fake);
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let captured = turn.fake.create_stream(1).unwrap();
        let (_scratch, file) = subject(60_000);
        let buffer = session.buffer(0, 60_000).unwrap();
        turn.fake.begin_capture(captured, 0).unwrap();
        let read = transfer(&file, 0, buffer.memory(), 60_000, Direction::Read);
        // SAFETY: stream and memory live on.
        let result = unsafe { session.submit_on(captured, vec![read]) };
        assert_eq!(turn.fake.end_capture(captured).unwrap(), 0, "the graph is as it was");
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert_eq!(error.message(), "the stream is being captured");
        assert!(!error.hints().is_empty(), "{error:?}");
    });
}

// ---- kinds of memory, and contexts --------------------------------------------------------------------------------

#[test]
fn every_kind_of_memory_is_located_and_served() {
    use AllocationKind as A;
    const LEN: usize = 1_500_001;
    let turn = turn();
    make_current(turn.fake);
    for io in BACKENDS {
        let session = session(io, CachePolicy::Auto);
        let device = session.device(0).unwrap();
        let (scratch, file) = subject(LEN);
        let serve = |what: &str, address: u64, is_host: bool| {
            for skip in [0, 4099] {
                let memory = session.locate(address + skip).unwrap();
                assert_eq!(memory.device.info().is_host, is_host, "{what}");
                assert_eq!((memory.address, memory.context), (address + skip, Context::PRIMARY), "{what}");
                let len = LEN - skip as usize;
                // SAFETY: the memory lives until both are done.
                unsafe {
                    let receipt =
                        session.run(&transfer(&file, skip, memory.clone(), len, Direction::Read)).unwrap();
                    assert_eq!(receipt.bytes(), len as u64, "{what}");
                    session.run(&transfer(&file, skip, memory.clone(), len, Direction::Write)).unwrap();
                    session.run(&transfer(&file, 77, memory, 1000, Direction::Read)).unwrap();
                }
            }
            assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, LEN), "{what}");
        };
        for (kind, is_host) in [
            (A::Device, false),
            (A::Virtual, false),
            (A::Managed, false),
            (A::PinnedHost, true),
            (A::HostHeap, true),
            (A::HostMap, true),
        ] {
            let address = device.allocate_kind(kind, LEN).unwrap();
            serve(&format!("{kind:?}"), address, is_host);
            // SAFETY: allocated above, unused by now.
            unsafe { device.free_kind(kind, DeviceRange::new(address, LEN)) };
        }
        let pool = turn.fake.allocate_from_pool(LEN).unwrap();
        serve("pool", pool, false);
        turn.fake.free(pool).unwrap();
        let mut registered = vec![0u8; LEN];
        // SAFETY: unpinned below.
        unsafe { device.pin(HostRange::new(registered.as_mut_ptr(), LEN)) }.unwrap();
        serve("registered", registered.as_ptr() as u64, true);
        // SAFETY: unused by now.
        unsafe { device.unpin(registered.as_mut_ptr()) };
        for nowhere in [0, 1, u64::MAX] {
            assert!(session.locate(nowhere).unwrap().device.info().is_host);
        }
    }
}

#[test]
fn memory_of_a_second_context_is_served_in_it() {
    const LEN: usize = 1_500_001;
    let turn = turn();
    for io in BACKENDS {
        let second = turn.fake.create_context(0).unwrap();
        let theirs = turn.fake.allocate(LEN).unwrap();
        let handle = turn.fake.create_stream(1).unwrap();
        let session = session(io, CachePolicy::Auto);
        let memory = session.locate(theirs).unwrap();
        assert_ne!(memory.context, Context::PRIMARY);
        let (scratch, file) = subject(LEN);
        let ours = session.buffer(0, LEN).unwrap();
        let primary = turn.fake.retain_primary(0).unwrap();
        for current in [second, 0, primary] {
            turn.fake.set_current_context(current).unwrap();
            for len in [5000, LEN] {
                assert!(turn.fake.write(theirs, &vec![0xA5; LEN]));
                // Both contexts in one submission, then one of each way on the caller's thread or the lanes.
                let reads = vec![
                    transfer(&file, 0, memory.clone(), len, Direction::Read),
                    transfer(&file, 0, ours.memory(), len, Direction::Read),
                ];
                // SAFETY: all memory, and the stream, live until the transfers are done.
                unsafe {
                    session.submit(reads).unwrap().wait().into_result().unwrap();
                    assert!(turn.fake.read(theirs, len).unwrap() == pattern(KEY, 0, len));
                    assert!(turn.fake.read(ours.address(), len).unwrap() == pattern(KEY, 0, len));
                    assert!(turn.fake.write(theirs, &pattern(5, 0, len)));
                    session.run(&transfer(&file, 0, memory.clone(), len, Direction::Write)).unwrap();
                    assert!(std::fs::read(scratch.path()).unwrap()[..len] == pattern(5, 0, len));
                    std::fs::write(scratch.path(), pattern(KEY, 0, LEN)).unwrap();
                    session.run(&transfer(&file, 0, memory.clone(), len, Direction::Read)).unwrap();
                    assert!(turn.fake.read(theirs, len).unwrap() == pattern(KEY, 0, len));
                    // A stream of theirs.
                    let read = transfer(&file, 0, memory.clone(), len, Direction::Read);
                    session.submit_on(handle, vec![read]).unwrap().wait().into_result().unwrap();
                }
                assert_eq!(turn.fake.current_context(), current, "the thread's context is what it was");
            }
        }
        turn.fake.set_current_context(second).unwrap();
        drop((session, ours));
        turn.fake.destroy_stream(handle).unwrap();
        turn.fake.free(theirs).unwrap();
        turn.fake.destroy_context(second).unwrap();
    }
}

#[test]
fn a_thread_without_a_context_gets_none() {
    let turn = turn();
    turn.fake.set_current_context(0).unwrap();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let (_scratch, file) = subject(60_000);
    for target in Target::ALL {
        let mut buffer = target.buffer(&session, 60_000);
        session.read(&file, 0, &mut buffer).unwrap();
        session.submit_read(&file, 0, buffer).unwrap().wait().into_result().unwrap();
        assert_eq!(turn.fake.current_context(), 0);
    }
}

#[test]
fn device_memory_the_session_cannot_tell_apart_is_an_error() {
    let turn = turn();
    make_current(turn.fake);
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    turn.fake.fail_next("cuPointerGetAttributes", 719, 0, 1);
    let error = session.locate(0x1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error:?}");
}
