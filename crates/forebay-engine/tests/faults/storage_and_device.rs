//! Faults of storage and device: a clear error with a hint, nothing else harmed, no hang.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{
    Random, Scratch, Stop, Target, chill, context, disk, has_hint, pattern, session, soon, turn,
};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::source::{
    Answer, Calls, Fault, Faulty, Fill, HostRange, Kernel, Request, Requests, Source, StateToken,
};
use forebay_engine::{Batch, Direction, File, Memory, Note, Piece, ReadPiece, Session, Transfer};
use forebay_error::{Error, ErrorKind, Result};

const KEY: u64 = 41;
const ALWAYS: u64 = u64::MAX;
const BACKENDS: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Threads];
const POLICIES: [CachePolicy; 3] = [CachePolicy::Auto, CachePolicy::Keep, CachePolicy::Bypass];
/// On the caller's thread, and through the lanes.
const LENGTHS: [usize; 2] = [60_000, 3_000_001];

/// Every backend, policy and memory.
fn each(test: impl Fn(&Session, Target)) {
    for io in BACKENDS {
        for cache in POLICIES {
            let session = session(io, cache);
            for target in Target::ALL {
                println!("{io} {cache} {target:?}");
                test(&session, target);
            }
        }
    }
}

fn open(scratch: &Scratch, calls: impl Calls + 'static) -> File {
    File::options().write(true).calls(Box::new(calls)).open(scratch.path()).unwrap()
}

fn faulty(scratch: &Scratch, direction: Direction, offset: usize, fault: Fault, times: u64) -> File {
    open(scratch, Faulty::new(direction, offset as u64, fault, times))
}

/// A clear error of the storage: where, and what to type.
#[track_caller]
fn check_storage_error(error: &Error, scratch: &Scratch, kind: ErrorKind, errno: i32) {
    assert_eq!((error.kind(), error.errno()), (kind, errno), "{error:?}");
    assert_eq!(context(error, "file"), Some(scratch.path().to_str().unwrap()), "{error:?}");
    assert!(context(error, "offset").is_some(), "{error:?}");
    assert!(!error.hints().is_empty(), "{error:?}");
}

// ---- faults of the storage ----------------------------------------------------------------------------------------

#[test]
fn a_failing_read_says_where() {
    let _turn = turn();
    each(|session, target| {
        for len in LENGTHS {
            let scratch = Scratch::with_pattern(&disk(), KEY, len);
            let file = faulty(&scratch, Direction::Read, len / 2, Fault::Errno(libc::EIO), ALWAYS);
            let mut buffer = target.buffer(session, len);
            let error = session.read(&file, 0, &mut buffer).unwrap_err();
            check_storage_error(&error, &scratch, ErrorKind::Io, libc::EIO);
            let error = session.submit_read(&file, 0, buffer).unwrap().wait().into_result().unwrap_err();
            check_storage_error(&error, &scratch, ErrorKind::Io, libc::EIO);
            // The session and the file are as good as before for what does not touch the bad place.
            let mut rest = target.buffer(session, len / 4);
            session.read(&file, 0, &mut rest).unwrap();
            assert!(rest.to_vec().unwrap() == pattern(KEY, 0, len / 4));
        }
    });
}

#[test]
fn a_failing_write_says_where() {
    let _turn = turn();
    each(|session, target| {
        for len in LENGTHS {
            let scratch = Scratch::with_pattern(&disk(), KEY, len);
            let file = faulty(&scratch, Direction::Write, len / 2, Fault::Errno(libc::EIO), ALWAYS);
            let mut buffer = target.buffer(session, len);
            buffer.copy_from_slice(&pattern(7, 0, len)).unwrap();
            let error = session.write(&file, 0, &buffer).unwrap_err();
            check_storage_error(&error, &scratch, ErrorKind::Io, libc::EIO);
            let error = session.submit_write(&file, 0, buffer).unwrap().wait().into_result().unwrap_err();
            check_storage_error(&error, &scratch, ErrorKind::Io, libc::EIO);
        }
    });
}

#[test]
fn a_full_disk_says_so() {
    let _turn = turn();
    each(|session, target| {
        for len in LENGTHS {
            let scratch = Scratch::with_pattern(&disk(), KEY, len);
            for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
                let file = faulty(&scratch, Direction::Write, len / 2, Fault::Errno(errno), ALWAYS);
                let buffer = target.buffer(session, len);
                let error = session.write(&file, 0, &buffer).unwrap_err();
                check_storage_error(&error, &scratch, ErrorKind::NoSpace, errno);
            }
        }
    });
}

#[test]
fn one_bad_entry_leaves_the_others_of_a_batch_alone() {
    const STEP: usize = 128 << 10;
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 40 * STEP);
    each(|session, target| {
        // Small ones that are packed together, and some that are not.
        for lens in [[4096, 513], [4096, 100_000]] {
            let bad = 17;
            let file = faulty(&scratch, Direction::Read, bad * STEP, Fault::Errno(libc::EIO), ALWAYS);
            if session.config().cache == CachePolicy::Auto {
                chill(&file);
            }
            let mut at = 0;
            let pieces: Vec<_> = (0..40)
                .map(|index| {
                    let range = at..at + lens[index % 2];
                    at = range.end;
                    ReadPiece { offset: (index * STEP) as u64, range }
                })
                .collect();
            let outcome = session.read_batch(&file, &pieces, target.buffer(session, at)).unwrap().wait();
            let bytes = outcome.buffer.to_vec().unwrap();
            for (index, (piece, entry)) in pieces.iter().zip(&outcome.entries).enumerate() {
                if index == bad {
                    let error = entry.as_ref().unwrap_err();
                    check_storage_error(error, &scratch, ErrorKind::Io, libc::EIO);
                    assert_eq!(context(error, "offset"), Some((bad * STEP).to_string().as_str()));
                } else {
                    assert_eq!(*entry.as_ref().unwrap(), piece.range.len() as u64, "entry {index}");
                    assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, piece.range.len()));
                }
            }
        }
    });
}

#[test]
fn one_bad_entry_leaves_the_other_writes_of_a_batch_alone() {
    const STEP: usize = 128 << 10;
    let _turn = turn();
    each(|session, target| {
        let scratch = Scratch::with_pattern(&disk(), KEY, 40 * STEP);
        let file = faulty(&scratch, Direction::Write, 17 * STEP, Fault::Errno(libc::EIO), ALWAYS);
        let lens = [4096, 513, 100_000];
        let mut buffer = target.buffer(session, 100_000);
        buffer.copy_from_slice(&pattern(8, 0, 100_000)).unwrap();
        let pieces = (0..40)
            .map(|index| Piece {
                offset: (index * STEP) as u64,
                address: buffer.address(),
                len: lens[index % 3],
            })
            .collect();
        let (direction, memory) = (Direction::Write, buffer.memory());
        let batch = Batch { file: file.clone(), memory, direction, pieces, allow_short: false };
        // SAFETY: the buffer lives until the ticket is waited for.
        let outcome = unsafe { session.submit_batch(batch) }.unwrap().wait();
        let bytes = std::fs::read(scratch.path()).unwrap();
        for (index, entry) in outcome.entries.iter().enumerate() {
            if index == 17 {
                check_storage_error(entry.as_ref().unwrap_err(), &scratch, ErrorKind::Io, libc::EIO);
                continue;
            }
            let len = lens[index % 3];
            assert_eq!(*entry.as_ref().unwrap(), len as u64, "entry {index}");
            let piece = &bytes[index * STEP..(index + 1) * STEP];
            assert!(
                piece[..len] == pattern(8, 0, len)
                    && piece[len..] == pattern(KEY, (index * STEP + len) as u64, STEP - len)
            );
        }
    });
}

#[test]
fn short_and_interrupted_calls_are_taken_up_again() {
    let _turn = turn();
    let faults = [Fault::Short(1), Fault::Short(1000), Fault::Short(4096), Fault::Errno(libc::EINTR)];
    each(|session, target| {
        for len in LENGTHS {
            let scratch = Scratch::with_pattern(&disk(), KEY, len);
            for (is_cold, is_submitted) in [(false, false), (false, true), (true, false), (true, true)] {
                for fault in faults {
                    let file = faulty(&scratch, Direction::Read, len / 2, fault, 7);
                    if is_cold {
                        chill(&file);
                    }
                    // By the caller's thread where it is small, or by the lanes.
                    let mut buffer = target.buffer(session, len);
                    let (receipt, buffer) = if is_submitted {
                        session.submit_read(&file, 0, buffer).unwrap().wait().into_result().unwrap()
                    } else {
                        (session.read(&file, 0, &mut buffer).unwrap(), buffer)
                    };
                    assert_eq!(receipt.bytes(), len as u64);
                    assert!(
                        buffer.to_vec().unwrap() == pattern(KEY, 0, len),
                        "{fault:?} of {len}, cold: {is_cold}"
                    );
                }
            }
            for (key, fault) in faults.into_iter().enumerate() {
                let file = faulty(&scratch, Direction::Write, len / 2, fault, 7);
                let bytes = pattern(key as u64, 0, len);
                let mut buffer = target.buffer(session, len);
                buffer.copy_from_slice(&bytes).unwrap();
                assert_eq!(session.write(&file, 0, &buffer).unwrap().bytes(), len as u64);
                assert!(std::fs::read(scratch.path()).unwrap() == bytes, "{fault:?} of {len}");
            }
        }
    });
}

/// Changes the file's length at the first call that moves bytes.
#[derive(Debug)]
struct Resizing {
    path: PathBuf,
    len: u64,
    done: AtomicBool,
}

impl Resizing {
    fn new(scratch: &Scratch, len: u64) -> Self {
        Self { path: scratch.path().to_owned(), len, done: AtomicBool::new(false) }
    }

    fn resize(&self) {
        if !self.done.swap(true, Ordering::SeqCst) {
            std::fs::OpenOptions::new().write(true).open(&self.path).unwrap().set_len(self.len).unwrap();
        }
    }
}

impl Calls for Resizing {
    unsafe fn read(&self, fd: i32, memory: HostRange, offset: u64, nowait: bool) -> isize {
        self.resize();
        // SAFETY: passed on.
        unsafe { Kernel.read(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: i32, memory: HostRange, offset: u64) -> isize {
        // SAFETY: passed on.
        unsafe { Kernel.write(fd, memory, offset) }
    }

    fn completed(&self, _: Direction, _memory: HostRange, _offset: u64, result: i32) -> i32 {
        self.resize();
        result
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_a_short_read() {
    const LEN: usize = 6 << 20;
    let _turn = turn();
    for directory in [disk(), PathBuf::from("/dev/shm")] {
        each(|session, target| {
            for left in [0, 4097, LEN as u64 / 2 + 1] {
                let scratch = Scratch::with_pattern(&directory, KEY, LEN);
                let file = open(&scratch, Resizing::new(&scratch, left));
                let buffer = target.buffer(session, LEN);
                let error = session.submit_read(&file, 0, buffer).unwrap().wait().into_result().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ShortRead, "{error:?}");
                assert!(has_hint(&error, "shrinks"), "{error:?}");
                assert!(context(&error, "got").unwrap().parse::<u64>().unwrap() < LEN as u64);
            }
        });
    }
}

#[test]
fn a_file_that_grows_while_it_is_read_is_read_as_asked() {
    const LEN: usize = 3_000_001;
    let _turn = turn();
    each(|session, target| {
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = open(&scratch, Resizing::new(&scratch, 2 * LEN as u64));
        let mut buffer = target.buffer(session, LEN);
        session.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
        // The next reader sees the new part: a hole.
        assert_eq!(file.len().unwrap(), 2 * LEN as u64);
        session.read(&file, LEN as u64, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_file_that_is_cut_and_filled_all_the_time_never_hangs_a_reader() {
    const LEN: usize = 4 << 20;
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let stop = AtomicBool::new(false);
    let writer = std::fs::OpenOptions::new().write(true).open(scratch.path()).unwrap();
    let bytes = pattern(KEY, 0, LEN);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                writer.set_len(100_000).unwrap();
                writer.write_all_at(&bytes, 0).unwrap();
            }
        });
        for io in BACKENDS {
            let session = session(io, CachePolicy::Auto);
            let file = File::open(scratch.path()).unwrap();
            for target in Target::ALL {
                let mut buffer = target.buffer(&session, LEN);
                for _ in 0..20 {
                    if let Err(error) = session.read(&file, 0, &mut buffer) {
                        assert_eq!(error.kind(), ErrorKind::ShortRead, "{error:?}");
                    }
                }
            }
        }
    });
    drop(turn);
}

#[test]
fn holes_are_read_as_zeros() {
    const LEN: usize = 5 << 20;
    let _turn = turn();
    for directory in [disk(), PathBuf::from("/dev/shm")] {
        let scratch = Scratch::new(&directory);
        let mut expected = vec![0u8; LEN];
        let outside = std::fs::File::create(scratch.path()).unwrap();
        outside.set_len(LEN as u64).unwrap();
        for at in [4096, 1_500_000, 3 << 20] {
            let bytes = pattern(KEY, at as u64, 70_001);
            outside.write_all_at(&bytes, at as u64).unwrap();
            expected[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        outside.sync_all().unwrap();
        each(|session, target| {
            for is_cold in [false, true] {
                let file = File::open(scratch.path()).unwrap();
                if is_cold {
                    chill(&file);
                }
                let mut buffer = target.buffer(session, LEN);
                buffer.copy_from_slice(&vec![0xA5; LEN]).unwrap();
                session.read(&file, 0, &mut buffer).unwrap();
                assert!(buffer.to_vec().unwrap() == expected, "cold: {is_cold}");
            }
        });
    }
}

#[test]
fn a_write_into_a_hole_leaves_the_rest_of_it() {
    let _turn = turn();
    for directory in [disk(), PathBuf::from("/dev/shm")] {
        each(|session, target| {
            for len in [1, 5000, 700_001] {
                let scratch = Scratch::new(&directory);
                let file = File::options().write(true).create(true).open(scratch.path()).unwrap();
                file.set_len(2 << 20).unwrap();
                let bytes = pattern(KEY, 0, len);
                let mut buffer = target.buffer(session, len);
                buffer.copy_from_slice(&bytes).unwrap();
                session.write(&file, 500_001, &buffer).unwrap();
                let now = std::fs::read(scratch.path()).unwrap();
                assert_eq!(now.len(), 2 << 20);
                assert!(now[500_001..500_001 + len] == bytes);
                assert!(now[..500_001].iter().chain(&now[500_001 + len..]).all(|byte| *byte == 0));
            }
        });
    }
}

#[test]
fn the_wrong_direction_says_how_to_open() {
    let _turn = turn();
    for directory in [disk(), PathBuf::from("/dev/shm")] {
        each(|session, target| {
            for len in LENGTHS {
                let scratch = Scratch::with_pattern(&directory, KEY, len);
                let mut buffer = target.buffer(session, len);
                let file = File::open(scratch.path()).unwrap();
                let error = session.write(&file, 0, &buffer).unwrap_err();
                check_storage_error(&error, &scratch, ErrorKind::InvalidInput, libc::EBADF);
                assert!(has_hint(&error, "open the file for this direction"), "{error:?}");
                let file = File::options().read(false).write(true).open(scratch.path()).unwrap();
                let error = session.read(&file, 0, &mut buffer).unwrap_err();
                check_storage_error(&error, &scratch, ErrorKind::InvalidInput, libc::EBADF);
                assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, len));
            }
        });
    }
}

/// A source that takes no bytes, or more than there are, is an error: neither a loop nor a panic.
#[test]
fn answers_to_writes_that_cannot_be_are_errors() {
    let file = File::from_source(std::sync::Arc::new(Moody { bytes: Vec::new(), bad: 9 })).unwrap();
    assert_eq!(file.write_host(b"header", 9).unwrap_err().message(), "the source took no bytes");
    assert_eq!(file.set_len(10).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(file.write_host(b"header", 0).unwrap_err().kind(), ErrorKind::Internal);
}

/// A source whose answers are what the test says, from another thread.
#[derive(Debug)]
struct Moody {
    bytes: Vec<u8>,
    bad: u64,
}

impl Requests for Moody {
    fn start(&self, request: Request, done: Answer) {
        if request.direction == Direction::Write {
            // A full store, or one that cannot count.
            return done(Ok(if request.offset == self.bad { 0 } else { request.memory.len + 1 }));
        }
        let bad = (request.offset..request.offset + request.memory.len as u64).contains(&self.bad);
        let at = request.offset as usize;
        let part = self.bytes[at..at + request.memory.len].to_vec();
        std::thread::spawn(move || {
            if bad {
                return done(Err(Error::new(ErrorKind::Timeout, "the storage server does not answer")));
            }
            // SAFETY: the lane keeps the buffer until the answer.
            unsafe { request.memory.bytes_mut().copy_from_slice(&part) };
            done(Ok(part.len()));
        });
    }
}

impl Source for Moody {
    fn name(&self) -> String {
        "moody".to_owned()
    }
    fn len(&self) -> Result<u64> {
        Ok(self.bytes.len() as u64)
    }
    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }
    fn state(&self) -> Result<Option<StateToken>> {
        Ok(None)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_request_that_fails_elsewhere_keeps_its_reason() {
    const LEN: usize = 3_000_000;
    let _turn = turn();
    each(|session, target| {
        let source = Moody { bytes: pattern(KEY, 0, LEN), bad: 1_600_000 };
        let file = File::from_source(std::sync::Arc::new(source)).unwrap();
        let mut buffer = target.buffer(session, LEN);
        let error = session.read(&file, 0, &mut buffer).unwrap_err();
        assert_eq!((error.kind(), context(&error, "file")), (ErrorKind::Timeout, Some("moody")), "{error:?}");
        let pieces: Vec<_> = (0..30)
            .map(|index| ReadPiece {
                offset: index as u64 * 100_000,
                range: index * 5000..(index + 1) * 5000,
            })
            .collect();
        let outcome = session.read_batch(&file, &pieces, buffer).unwrap().wait();
        let bytes = outcome.buffer.to_vec().unwrap();
        for (index, (piece, entry)) in pieces.iter().zip(&outcome.entries).enumerate() {
            assert_eq!(entry.is_err(), index == 16, "entry {index}: {entry:?}");
            assert!(entry.is_err() || bytes[piece.range.clone()] == pattern(KEY, piece.offset, 5000));
        }
    });
}

// ---- faults of the device -----------------------------------------------------------------------------------------

#[test]
fn device_memory_that_runs_out_says_how_much_there_was() {
    let turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let total = session.device(0).unwrap().info().total_memory as usize;
    let error = session.buffer(0, total + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceOutOfMemory, "{error:?}");
    assert!(context(&error, "free").is_some() && has_hint(&error, "nvidia-smi"), "{error:?}");
    let error = session.host_buffer(usize::MAX / 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error:?}");
    session.buffer(0, 4096).unwrap();
    let error = session.buffer(1, 4096).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && has_hint(&error, "use one of: -d 0"), "{error:?}");
    drop(turn);
}

#[test]
fn a_refused_pin_is_an_error_and_no_hang() {
    let turn = turn();
    for io in BACKENDS {
        for len in LENGTHS {
            let scratch = Scratch::with_pattern(&disk(), KEY, len);
            let file = File::open(scratch.path()).unwrap();
            // What lanes need first; the rest; all of it.
            for (after, times) in [(0, 1), (1, 1), (0, 0)] {
                let refused = session(io, CachePolicy::Auto);
                let mut buffer = refused.buffer(0, len).unwrap();
                turn.fake.fail_next("cuMemHostRegister_v2", 2, after, times);
                let outcome = refused.read(&file, 0, &mut buffer);
                if len > 1 << 20 && (after, times) == (0, 1) {
                    // Lanes whose memory cannot be pinned at once have theirs pinned one by one.
                    outcome.unwrap();
                } else if after == 0 {
                    let error = outcome.unwrap_err();
                    assert!(error.message().contains("cuMemHostRegister"), "{error:?}");
                } else if len <= 1 << 20 {
                    // Short ones have all callers' memory, longer ones need their own, too.
                    let error = outcome.unwrap_err();
                    assert!(error.message().contains("cuMemHostRegister"), "{error:?}");
                } else {
                    // The first slots do the work, also that of a lane that needs more.
                    outcome.unwrap();
                    let device = refused.device(0).unwrap();
                    let notes = || refused.report(&device).unwrap().notes;
                    let says = |note: &Note| note.text.contains("cuMemHostRegister");
                    let is_told = || {
                        drop(refused.submit_read(&file, 0, refused.buffer(0, len).unwrap()).unwrap());
                        notes().iter().any(says)
                    };
                    assert!(soon(is_told), "{:?}", notes());
                }
                turn.fake.reset();
                // Host memory is none of the device's business.
                let mut host = refused.host_buffer(len).unwrap();
                refused.read(&file, 0, &mut host).unwrap();
                drop((refused, buffer, host));
                let works = session(io, CachePolicy::Auto);
                let mut buffer = works.buffer(0, len).unwrap();
                works.read(&file, 0, &mut buffer).unwrap();
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
            }
        }
    }
}

#[test]
fn a_copy_that_fails_late_fails_its_ticket() {
    let turn = turn();
    for io in BACKENDS {
        for len in LENGTHS {
            for direction in [Direction::Read, Direction::Write] {
                for after in [0, 2] {
                    if len < 1 << 20 && after > 0 {
                        continue;
                    }
                    let scratch = Scratch::with_pattern(&disk(), KEY, len);
                    let file = File::options().write(true).open(scratch.path()).unwrap();
                    let session = session(io, CachePolicy::Auto);
                    // All lanes run before the GPU breaks.
                    session.report(&session.device(0).unwrap()).unwrap();
                    let buffer = session.buffer(0, len).unwrap();
                    turn.fake.fail_next("async:copy", 700, after, 1);
                    turn.fake.fail_next("async:kernel", 700, after, 1);
                    let ticket = match direction {
                        Direction::Read => session.submit_read(&file, 0, buffer).unwrap(),
                        Direction::Write => session.submit_write(&file, 0, buffer).unwrap(),
                    };
                    let error = ticket.wait().into_result().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error:?}");
                    assert!(has_hint(&error, "xid"), "{error:?}");
                    // A broken context fails what comes next too, on the caller's thread as in the lanes.
                    let address = session.host_buffer(len).unwrap();
                    for small in [false, true] {
                        let device = session.device(0).unwrap();
                        let memory = Memory::new(device, address.address());
                        let len = if small { 512.min(len) } else { len };
                        let transfer = Transfer {
                            file: file.clone(),
                            offset: 0,
                            memory,
                            len,
                            direction,
                            allow_short: false,
                        };
                        // SAFETY: the memory lives on; the broken GPU touches none of it.
                        let error = unsafe { session.run(&transfer) }.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error:?}");
                    }
                    // Files and host memory go on.
                    let mut host = session.host_buffer(len).unwrap();
                    session.read(&file, 0, &mut host).unwrap();
                    turn.fake.reset();
                }
            }
        }
    }
}

#[test]
fn a_driver_call_that_fails_once_fails_one_transfer() {
    let turn = turn();
    let calls = [
        ("cuStreamCreate", 2),
        ("cuEventCreate", 2),
        ("cuMemcpyHtoDAsync_v2", 1),
        ("cuMemcpyHtoDAsync_v2", 719),
        ("cuEventRecord", 400),
        ("cuEventQuery", 719),
        ("cuLaunchKernel", 701),
        ("cuModuleLoadData", 218),
    ];
    for io in BACKENDS {
        for (call, code) in calls {
            for len in LENGTHS {
                let scratch = Scratch::with_pattern(&disk(), KEY, len);
                let file = File::open(scratch.path()).unwrap();
                let session = session(io, CachePolicy::Auto);
                let buffer = session.buffer(0, len).unwrap();
                let pieces: Vec<_> = (0..40)
                    .map(|index| ReadPiece {
                        offset: index as u64 * 1000,
                        range: index * 1000..(index + 1) * 1000,
                    })
                    .collect();
                turn.fake.fail_next(call, code, 0, 1);
                let outcome = session.read_batch(&file, &pieces, buffer).unwrap().wait();
                for entry in &outcome.entries {
                    // Some of these have a way round (no kernels: copies).
                    assert!(
                        entry.as_ref().is_ok_and(|bytes| *bytes == 1000) || entry.is_err(),
                        "{call}: {entry:?}"
                    );
                }
                let mut buffer = outcome.buffer;
                let _ = session.read(&file, 0, &mut buffer);
                turn.fake.reset();
                session
                    .read(&file, 0, &mut buffer)
                    .unwrap_or_else(|error| panic!("{call} has long passed: {error:?}"));
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len), "{call}");
            }
        }
    }
}

/// Found by this test: the lane failed its works without waiting for copies that it had queued already, so that the
/// ticket resolved while the device still wrote to the caller's memory (and read the lane's slots).
#[test]
fn no_copy_is_in_flight_once_a_failed_ticket_has_resolved() {
    const LEN: usize = 200_000;
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 4 << 20);
    let file = File::open(scratch.path()).unwrap();
    for io in BACKENDS {
        for round in 0..5 {
            let session = session(io, CachePolicy::Auto);
            let buffer = session.buffer(0, LEN).unwrap();
            turn.fake.set_delay_us(60_000);
            turn.fake.fail_next("cuEventRecord", 400, 0, 1);
            let outcome = session.submit_read(&file, 0, buffer).unwrap().wait();
            outcome.result().unwrap_err();
            let (queued, done) = (turn.fake.calls("cuMemcpyHtoDAsync_v2"), turn.fake.calls("async:copy"));
            assert_eq!(queued, done, "{io}, round {round}: copies queued and done when the ticket resolved");
            turn.fake.reset();
        }
    }
}

#[test]
fn late_streams_change_nothing_but_the_time() {
    let turn = turn();
    turn.fake.set_delay_us(3000);
    let scratch = Scratch::with_pattern(&disk(), KEY, 3_000_001);
    for io in BACKENDS {
        let session = session(io, CachePolicy::Auto);
        let file = File::options().write(true).open(scratch.path()).unwrap();
        for is_cold in [false, true] {
            if is_cold {
                chill(&file);
            }
            let mut buffer = session.buffer(0, 3_000_001).unwrap();
            session.read(&file, 0, &mut buffer).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 3_000_001));
            let mut random = Random(9);
            let mut at = 0;
            let pieces: Vec<_> = (0..300)
                .map(|_| {
                    let range = at..at + 1 + random.below(9000) as usize;
                    at = range.end;
                    ReadPiece { offset: random.below(2_900_000), range }
                })
                .collect();
            let outcome = session.read_batch(&file, &pieces, session.buffer(0, at).unwrap()).unwrap().wait();
            let bytes = outcome.buffer.to_vec().unwrap();
            for piece in pieces {
                assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, piece.range.len()));
            }
            session.write(&file, 0, &buffer).unwrap();
            session.write_from(&file, 77, &buffer, 77..9000).unwrap();
            assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, 3_000_001));
        }
    }
    drop(turn);
}
