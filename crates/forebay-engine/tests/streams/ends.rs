//! How transfers in the order of a stream end: results, errors, captures, sessions and devices that go away.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::late::{KEY, UserStream, auto, enqueue, fixed, late, make_current, subject, told};
use crate::common::{Scratch, chill, disk, in_process, pattern, soon, turn};
use forebay_engine::source::{Fault, Faulty, MemorySource, Source};
use forebay_engine::{Bound, Direction, File, OpenOptions};
use forebay_error::{Error, ErrorKind};
use forebay_gpu::DeviceRange;

// ---- results ------------------------------------------------------------------------------------------------------

#[test]
fn a_read_at_the_end_of_the_file_is_short() {
    let turn = turn();
    for cold in [false, true] {
        for (len, offset, want) in [
            (1000, 0, 1000),
            (1000, 999, 1),
            (1000, 1000, 0),
            (1000, 5000, 0),
            ((5 << 20) + 3, 1, (5 << 20) + 2),
            (3 << 20, 0, 3 << 20),
        ] {
            let session = auto();
            let user = UserStream::new(&turn, &session);
            let (_scratch, file) = subject(len);
            if cold {
                chill(&file);
            }
            let most = 9 << 20;
            let buffer = session.buffer(0, most).unwrap();
            assert!(turn.fake.write(buffer.address(), &vec![0xA5; most]));
            let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (offset, 0, most));
            enqueue(&session, user.handle, read).unwrap();
            user.finish();
            assert_eq!(told(&answer).unwrap(), want as u64, "{len} {offset}");
            let bytes = turn.fake.read(buffer.address(), most).unwrap();
            assert!(bytes[..want] == pattern(KEY, 0, len)[(offset as usize).min(len)..][..want]);
            assert!(bytes[want..].iter().all(|byte| *byte == 0xA5), "bytes that nobody read were written");
        }
    }
}

#[test]
fn errors_are_told_and_the_stream_goes_on() {
    let turn = turn();
    let session = auto();
    let user = UserStream::new(&turn, &session);
    let scratch = Scratch::with_pattern(&disk(), KEY, 9 << 20);
    let buffer = session.buffer(0, 9 << 20).unwrap();
    for direction in [Direction::Read, Direction::Write] {
        for (offset, len) in [(10, 4096), (5 << 20, 9 << 20)] {
            let faulty = Faulty::new(direction, offset, Fault::Errno(libc::EIO), u64::MAX);
            let file =
                OpenOptions::default().write(true).calls(Box::new(faulty)).open(scratch.path()).unwrap();
            let (operation, answer) = fixed(&file, &buffer.memory(), direction, (0, 0, len));
            enqueue(&session, user.handle, operation).unwrap();
            user.finish();
            assert_eq!(told(&answer).unwrap_err().kind(), ErrorKind::Io, "{direction:?}");
        }
    }
    let file = File::open(scratch.path()).unwrap();
    let memory = buffer.memory();
    let refuse = || Err(Error::new(ErrorKind::Cancelled, "no"));
    let (read, answer) = late(&file, &memory, Direction::Read, 100, refuse);
    enqueue(&session, user.handle, read).unwrap();
    let address = memory.address;
    let (more, too_much) =
        late(&file, &memory, Direction::Read, 100, move || Ok(Bound { offset: 0, address, len: 101 }));
    enqueue(&session, user.handle, more).unwrap();
    let (panics, panicked) = late(&file, &memory, Direction::Read, 100, || panic!("on purpose"));
    enqueue(&session, user.handle, panics).unwrap();
    let (read, good) = fixed(&file, &memory, Direction::Read, (0, 0, 100));
    enqueue(&session, user.handle, read).unwrap();
    user.finish();
    assert_eq!(told(&answer).unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(told(&too_much).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(told(&panicked).unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(told(&good).unwrap(), 100);
}

#[test]
fn a_source_without_a_descriptor_is_read_too() {
    let turn = turn();
    let session = auto();
    let user = UserStream::new(&turn, &session);
    let source = MemorySource::new(pattern(KEY, 0, 5 << 20), Duration::from_micros(200));
    let file = File::from_source(Arc::new(source) as Arc<dyn Source>).unwrap();
    let buffer = session.buffer(0, 5 << 20).unwrap();
    for len in [100, 5 << 20] {
        let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, len));
        enqueue(&session, user.handle, read).unwrap();
        user.finish();
        assert_eq!(told(&answer).unwrap(), len as u64);
        assert!(turn.fake.read(buffer.address(), len).unwrap() == pattern(KEY, 0, len));
    }
}

// ---- captures, and ends -------------------------------------------------------------------------------------------

#[test]
fn a_capturing_stream_is_refused_and_stays_valid() {
    in_process(&[], &[], || {
        let turn = turn();
        make_current(&turn);
        let session = auto();
        let (_scratch, file) = subject(60_000);
        let buffer = session.buffer(0, 60_000).unwrap();
        let captured = turn.fake.create_stream(1).unwrap();
        let other = turn.fake.create_stream(1).unwrap();
        for mode in [0, 1] {
            turn.fake.begin_capture(captured, mode).unwrap();
            let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
            let error = enqueue(&session, captured, read).unwrap_err();
            assert_eq!(
                (error.kind(), error.message()),
                (ErrorKind::Unsupported, "the stream is being captured")
            );
            assert!(answer.lock().unwrap().is_none());
            // The first operation of another stream, kernels and pinned memory included.
            let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
            enqueue(&session, other, read).unwrap();
            assert!(soon(|| answer.lock().unwrap().is_some()));
            assert_eq!(turn.fake.end_capture(captured).unwrap(), 0, "no work of the engine was captured");
            assert_eq!(told(&answer).unwrap(), 60_000);
        }
        let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
        enqueue(&session, captured, read).unwrap();
        assert!(soon(|| answer.lock().unwrap().is_some()));
    });
}

#[test]
fn what_is_queued_outlives_its_session() {
    let turn = turn();
    for len in [5000, 3 << 20] {
        let session = auto();
        let user = UserStream::new(&turn, &session);
        let (_scratch, file) = subject(len);
        chill(&file);
        let buffer = session.buffer(0, len).unwrap();
        let release = user.hold();
        let answers: Vec<_> = (0..5)
            .map(|_| {
                let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, len));
                enqueue(&session, user.handle, read).unwrap();
                answer
            })
            .collect();
        drop((session, file));
        drop(release);
        user.finish();
        assert!(answers.iter().all(|answer| told(answer).unwrap() == len as u64));
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
        drop((user, buffer));
        assert!(soon(|| turn.fake.leaks().registrations == 0), "{:?}", turn.fake.leaks());
    }
}

#[test]
fn the_last_owner_of_a_session_may_be_told() {
    let turn = turn();
    let session = auto();
    let user = UserStream::new(&turn, &session);
    let (_scratch, file) = subject(5000);
    let buffer = session.buffer(0, 5000).unwrap();
    let (mut read, _) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 5000));
    let (tell, told) = channel();
    let owned = session.clone();
    read.done = Box::new(move |result| {
        drop(owned);
        let _ = tell.send(result);
    });
    let release = user.hold();
    enqueue(&session, user.handle, read).unwrap();
    drop(session);
    drop(release);
    assert_eq!(told.recv_timeout(Duration::from_secs(5)).unwrap().unwrap(), 5000);
    user.finish();
}

#[test]
fn a_broken_gpu_leaves_what_is_queued() {
    in_process(&[], &[], || {
        let turn = turn();
        let session = auto();
        let user = UserStream::new(&turn, &session);
        let (_scratch, file) = subject(60_000);
        let buffer = session.buffer(0, 60_000).unwrap();
        let (read, _) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
        enqueue(&session, user.handle, read).unwrap();
        user.finish();
        let release = user.hold();
        turn.fake.fail_next("async:kernel", 719, 0, 1);
        // SAFETY: all memory lives until the end of the process.
        unsafe { user.stream.fill_pattern(DeviceRange::new(buffer.address(), 60_000), 1, 0) }.unwrap();
        let (read, answer) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
        enqueue(&session, user.handle, read).unwrap();
        drop(release);
        std::thread::sleep(Duration::from_millis(50));
        assert!(answer.lock().unwrap().is_none());
        let (read, _) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
        assert_eq!(enqueue(&session, user.handle, read).unwrap_err().kind(), ErrorKind::DeviceLost);
        std::mem::forget((user, buffer));
        drop(session);
    });
}

#[test]
fn a_forked_child_gets_an_error() {
    in_process(&[], &[], || {
        let turn = turn();
        let session = auto();
        let user = UserStream::new(&turn, &session);
        let (_scratch, file) = subject(60_000);
        let buffer = session.buffer(0, 60_000).unwrap();
        let (read, _) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
        enqueue(&session, user.handle, read).unwrap();
        user.finish();
        let (read, _) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
        // SAFETY: the child calls only what is under test, and leaves without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = enqueue(&session, user.handle, read)
                .is_err_and(|error| error.kind() == ErrorKind::Unsupported);
            drop(session);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let ended = soon(|| {
            let mut status = 1;
            // SAFETY: a valid place.
            unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) == child && status == 0 }
        });
        assert!(ended, "the child hangs, or was not refused");
    });
}
