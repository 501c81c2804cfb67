//! Reads that ask for far more than the file has: what there is, at once; and what it gets meanwhile.

use std::fs::OpenOptions;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Scratch, Target, chill, config, disk, pattern, session, turn};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::source::{Calls, HostRange, Kernel};
use forebay_engine::{Batch, Direction, File, Memory, Piece, Session, Transfer};
use forebay_error::{ErrorKind, Result};

const KEY: u64 = 53;
const LEN: usize = (32 << 20) + 777;
const FAR: usize = 1 << 46;
/// Planning so much, or asking the kernel for it piece by piece, takes minutes.
const SOON: Duration = Duration::from_secs(10);

fn directories() -> [PathBuf; 2] {
    [disk(), "/dev/shm".into()]
}

fn read(session: &Session, file: &File, offset: u64, len: usize, memory: Memory, short: bool) -> Result<u64> {
    let transfer =
        Transfer { file: file.clone(), offset, memory, len, direction: Direction::Read, allow_short: short };
    let began = Instant::now();
    // SAFETY: callers have memory for all bytes that the file has from there.
    let done = unsafe { session.run(&transfer) }.map(|receipt| receipt.bytes());
    assert!(began.elapsed() < SOON, "{len} bytes from {offset}: {:?}", began.elapsed());
    done
}

#[test]
fn a_read_of_terabytes_ends_with_the_file() {
    let _turn = turn();
    for directory in directories() {
        let scratch = Scratch::with_pattern(&directory, KEY, LEN);
        for lanes in [1, 2] {
            for io in [IoBackend::Auto, IoBackend::Threads] {
                let session =
                    Session::with_config(Config { lanes, ..config(io, CachePolicy::Auto) }).unwrap();
                let file = File::open(scratch.path()).unwrap();
                for (target, is_cold) in
                    Target::ALL.into_iter().flat_map(|each| [(each, true), (each, false)])
                {
                    if is_cold {
                        chill(&file);
                    }
                    let buffer = target.buffer(&session, LEN);
                    for offset in [0u64, 4096, 77] {
                        let there = LEN - offset as usize;
                        let got = read(&session, &file, offset, FAR, buffer.memory(), true).unwrap();
                        assert_eq!(got, there as u64, "{target:?} {io} {lanes} {offset}");
                        assert!(buffer.to_vec().unwrap()[..there] == pattern(KEY, offset, there));
                    }
                    assert_eq!(read(&session, &file, LEN as u64, FAR, buffer.memory(), true).unwrap(), 0);
                    assert_eq!(read(&session, &file, 1 << 50, FAR, buffer.memory(), true).unwrap(), 0);
                    let error = read(&session, &file, 0, FAR, buffer.memory(), false).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ShortRead, "{error:?}");
                }
            }
        }
    }
}

#[test]
fn entries_of_a_batch_end_there_each() {
    let _turn = turn();
    for directory in directories() {
        let scratch = Scratch::with_pattern(&directory, KEY, LEN);
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let file = File::open(scratch.path()).unwrap();
        for (target, allow_short) in Target::ALL.into_iter().flat_map(|each| [(each, true), (each, false)]) {
            let buffers: Vec<_> = (0..4).map(|_| target.buffer(&session, LEN)).collect();
            let piece =
                |index: usize, offset: u64, len| Piece { offset, address: buffers[index].address(), len };
            let pieces = vec![
                piece(0, 0, FAR),
                piece(1, 16 << 20, 1 << 40),
                piece(2, LEN as u64 + 5, FAR),
                piece(3, 1 << 20, 2 << 20),
            ];
            let memory = buffers[0].memory();
            let batch = Batch { file: file.clone(), memory, direction: Direction::Read, pieces, allow_short };
            let began = Instant::now();
            // SAFETY: each buffer has room for all of the file, and lives until the ticket is waited for.
            let outcome = unsafe { session.submit_batch(batch) }.unwrap().wait();
            assert!(began.elapsed() < SOON);
            let whole = [LEN as u64, LEN as u64 - (16 << 20), 0, 2 << 20];
            for (index, entry) in outcome.entries.into_iter().enumerate() {
                if allow_short || index == 3 {
                    assert_eq!(entry.unwrap(), whole[index], "{target:?} {index}");
                } else {
                    assert_eq!(entry.unwrap_err().kind(), ErrorKind::ShortRead, "{target:?} {index}");
                }
            }
            for (index, offset) in [(0, 0), (1, 16 << 20), (3, 1 << 20)] {
                let len = whole[index] as usize;
                assert!(buffers[index].to_vec().unwrap()[..len] == pattern(KEY, offset, len), "{index}");
            }
        }
    }
}

#[test]
fn so_do_reads_in_the_order_of_a_stream() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let file = File::open(scratch.path()).unwrap();
    for (offset, there) in [(0u64, LEN), (LEN as u64, 0)] {
        let buffer = session.host_buffer(LEN).unwrap();
        let transfer = Transfer {
            file: file.clone(),
            offset,
            memory: buffer.memory(),
            len: FAR,
            direction: Direction::Read,
            allow_short: true,
        };
        let began = Instant::now();
        // SAFETY: the buffer has room for all of the file, and lives until the ticket is waited for.
        let outcome = unsafe { session.submit_on(0, vec![transfer]) }.unwrap().wait();
        assert!(began.elapsed() < SOON);
        assert_eq!(*outcome.entries[0].as_ref().unwrap(), there as u64);
        assert!(buffer.to_vec().unwrap()[..there] == pattern(KEY, offset, there));
    }
}

/// Makes the file longer when its last byte is read, some times.
#[derive(Debug)]
struct Growing {
    path: PathBuf,
    times: AtomicUsize,
}

const MORE: usize = (3 << 20) + 11;

impl Growing {
    fn look(&self, offset: u64, len: usize) {
        let now = std::fs::metadata(&self.path).unwrap().len();
        let takes = |left: usize| left.checked_sub(1);
        if offset + len as u64 >= now
            && self.times.try_update(Ordering::SeqCst, Ordering::SeqCst, takes).is_ok()
        {
            let file = OpenOptions::new().write(true).open(&self.path).unwrap();
            file.write_all_at(&pattern(KEY, now, MORE), now).unwrap();
        }
    }
}

impl Calls for Growing {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        // SAFETY: as promised by the caller.
        let got = unsafe { Kernel.read(fd, memory, offset, nowait) };
        self.look(offset, got.max(0) as usize);
        got
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        // SAFETY: as promised by the caller.
        unsafe { Kernel.write(fd, memory, offset) }
    }

    fn completed(&self, _direction: Direction, _memory: HostRange, offset: u64, result: i32) -> i32 {
        self.look(offset, result.max(0) as usize);
        result
    }
}

fn growing(path: &Path, times: usize) -> File {
    let calls = Growing { path: path.to_owned(), times: AtomicUsize::new(times) };
    File::options().calls(Box::new(calls)).open(path).unwrap()
}

#[test]
fn what_the_file_gets_meanwhile_is_read_on() {
    let _turn = turn();
    for directory in directories() {
        for (io, is_cold) in [(IoBackend::Auto, true), (IoBackend::Auto, false), (IoBackend::Threads, true)] {
            let session = session(io, CachePolicy::Auto);
            for target in Target::ALL {
                for (times, asked) in [(2, FAR), (2, LEN + MORE + 5), (3, LEN + MORE)] {
                    let scratch = Scratch::with_pattern(&directory, KEY, LEN);
                    let file = growing(scratch.path(), times);
                    if is_cold {
                        chill(&file);
                    }
                    let buffer = target.buffer(&session, LEN + 3 * MORE);
                    let got = read(&session, &file, 0, asked, buffer.memory(), true).unwrap() as usize;
                    assert_eq!(got, asked.min(LEN + times * MORE), "{target:?} {io} {times} {asked}");
                    assert!(buffer.to_vec().unwrap()[..got] == pattern(KEY, 0, got));
                }
            }
        }
    }
}

/// A file of /proc says that it has no bytes.
#[test]
fn where_the_length_is_0_it_is_read_to_the_end() {
    let _turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let wanted = std::fs::read("/proc/version").unwrap();
    let file = File::open("/proc/version").unwrap();
    for target in Target::ALL {
        let buffer = target.buffer(&session, 4 << 20);
        let got = read(&session, &file, 0, 4 << 20, buffer.memory(), true).unwrap() as usize;
        assert!(buffer.to_vec().unwrap()[..got] == wanted);
    }
}

/// An empty file tells as little.
#[test]
fn a_read_of_terabytes_of_nothing_ends_at_once() {
    let _turn = turn();
    let began = Instant::now();
    for directory in directories() {
        let scratch = Scratch::with_pattern(&directory, KEY, 0);
        let file = File::open(scratch.path()).unwrap();
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        for target in Target::ALL {
            let buffer = target.buffer(&session, 4096);
            for offset in [0, 4096, 1 << 40] {
                assert_eq!(read(&session, &file, offset, FAR, buffer.memory(), true).unwrap(), 0);
                let error = read(&session, &file, offset, FAR, buffer.memory(), false).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ShortRead);
            }
        }
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}
