//! Programs that close descriptors which are not theirs, and open files of their own under the same numbers.

use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::{self, Scratch, Target, chill, context, disk, in_process, pattern, session, turn};
use crate::pages;
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{Buffer, File, ReadPiece, Session, Way};
use forebay_error::Error;

const KEY: u64 = 61;
const LEN: usize = (6 << 20) + 99;
const STRANGE: [u8; 8192] = [0xEE; 8192];

/// Closes all above 2, and gives the lower numbers to one file.
fn replace_all(stranger: &Scratch) -> Vec<RawFd> {
    // SAFETY: plain numbers; the test uses none of the closed descriptors.
    unsafe { assert_eq!(libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32), 0) };
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(stranger.path());
    (0..600).map(|_| open().unwrap().into_raw_fd()).collect()
}

fn check_strangers(stranger: &Scratch, all: &[RawFd]) {
    assert!(std::fs::read(stranger.path()).unwrap() == STRANGE);
    for fd in all {
        // SAFETY: plain numbers.
        let at = unsafe { libc::lseek(*fd, 0, libc::SEEK_CUR) };
        assert_eq!(at, 0, "descriptor {fd} was closed or used");
    }
}

fn says_so(error: &Error) {
    assert_eq!(error.errno(), libc::EBADF, "{error:?}");
    assert!(!error.hints().is_empty(), "{error:?}");
}

/// Every way of a file whose descriptors are gone fails, and says why.
fn all_fail(session: &Session, file: &File) {
    for target in Target::ALL {
        for len in [4096, LEN] {
            let mut buffer = target.buffer(session, len);
            says_so(&session.read(file, 0, &mut buffer).unwrap_err());
            says_so(&session.write(file, 0, &buffer).unwrap_err());
            let submitted = session.submit_read(file, 0, buffer);
            says_so(&submitted.and_then(|ticket| ticket.wait().into_result().map(drop)).unwrap_err());
        }
        let pieces: Vec<_> = (0..100)
            .map(|at| ReadPiece { offset: at as u64 * 40_000, range: at * 4096..(at + 1) * 4096 })
            .collect();
        let outcome = session.read_batch(file, &pieces, target.buffer(session, 100 * 4096)).unwrap().wait();
        outcome.entries.into_iter().for_each(|entry| says_so(&entry.unwrap_err()));
    }
    says_so(&file.set_len(0).unwrap_err());
    says_so(&file.sync().unwrap_err());
    says_so(&file.len().unwrap_err());
    assert!(file.state().is_err());
}

fn all_works(session: &Session) {
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    for target in Target::ALL {
        chill(&file);
        for len in [4096, LEN] {
            let mut buffer: Buffer = target.buffer(session, len);
            session.read(&file, 0, &mut buffer).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
            session.write(&file, 0, &buffer).unwrap();
        }
    }
    assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, LEN));
}

fn close_all(io: IoBackend) {
    let session = session(io, CachePolicy::Auto);
    all_works(&session);
    let (scratch, stranger) = (Scratch::with_pattern(&disk(), KEY, LEN), Scratch::new(&disk()));
    std::fs::write(stranger.path(), STRANGE).unwrap();
    let file = File::options().write(true).open(scratch.path()).unwrap();
    let memory = File::options().write(true).create(true).open("/dev/shm/forebay-closed").unwrap();
    memory.set_len(LEN as u64).unwrap();
    std::fs::remove_file("/dev/shm/forebay-closed").unwrap();
    let strangers = replace_all(&stranger);
    all_fail(&session, &file);
    all_fail(&session, &memory);
    check_strangers(&stranger, &strangers);
    all_works(&session);
    drop((file, memory));
    all_works(&session);
    drop(session);
    check_strangers(&stranger, &strangers);
    assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, LEN));
}

#[test]
fn a_program_that_closes_all_is_told() {
    in_process(&[], &[], || close_all(IoBackend::Auto));
}

#[test]
fn so_is_one_without_io_uring() {
    in_process(&[], &[], || close_all(IoBackend::Threads));
}

/// Our descriptors of a file, with or without O_DIRECT.
fn ours(of: &Scratch, direct: bool) -> Vec<RawFd> {
    let names_it =
        |entry: &std::fs::DirEntry| std::fs::read_link(entry.path()).is_ok_and(|at| at == of.path());
    let all = std::fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap).filter(names_it);
    let numbers = all.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap());
    // SAFETY: plain numbers.
    let is_direct = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GETFL) } & libc::O_DIRECT != 0;
    numbers.filter(|fd| is_direct(fd) == direct).collect()
}

/// Their numbers are the other file's from now on.
fn replace_ours(of: &Scratch, direct: bool, other: &std::fs::File) {
    for fd in ours(of, direct) {
        // SAFETY: plain numbers.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    }
}

/// A look at the other one would be a system call for nothing.
#[test]
fn a_cold_read_needs_its_own_descriptor_alone() {
    in_process(&[], &[], || {
        let session = session(IoBackend::Auto, CachePolicy::Bypass);
        let (scratch, stranger) = (Scratch::with_pattern(&disk(), KEY, LEN), Scratch::new(&disk()));
        std::fs::write(stranger.path(), STRANGE).unwrap();
        let other = std::fs::OpenOptions::new().read(true).open(stranger.path()).unwrap();
        let file = File::options().open(scratch.path()).unwrap();
        if file.direct_refused().is_some() {
            return println!("skipped: no O_DIRECT here");
        }
        let lose = |direct| replace_ours(&scratch, direct, &other);
        lose(false);
        let mut buffer = Target::Device.buffer(&session, 4096);
        session.read(&file, 8192, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 8192, 4096));
        // The last bytes, which O_DIRECT does not have as a whole block, are asked of the page cache.
        let tail = LEN as u64 / 4096 * 4096;
        let mut short = Target::Device.buffer(&session, LEN - tail as usize + 1);
        says_so(&session.read(&file, tail, &mut short).unwrap_err());
        lose(true);
        says_so(&session.read(&file, 8192, &mut buffer).unwrap_err());
        std::mem::forget(file);
    });
}

#[test]
fn a_direct_write_needs_its_own_descriptor_alone() {
    in_process(&[], &[], || {
        let session = session(IoBackend::Auto, CachePolicy::Bypass);
        let (scratch, stranger) = (Scratch::with_pattern(&disk(), 1, LEN), Scratch::new(&disk()));
        std::fs::write(stranger.path(), STRANGE).unwrap();
        let other = std::fs::OpenOptions::new().read(true).write(true).open(stranger.path()).unwrap();
        let file = File::options().write(true).open(scratch.path()).unwrap();
        if file.direct_refused().is_some() {
            return println!("skipped: no O_DIRECT here");
        }
        let lose = |direct| replace_ours(&scratch, direct, &other);
        let buffers = Target::ALL.map(|target| {
            let mut buffer = target.buffer(&session, 4096);
            buffer.copy_from_slice(&pattern(KEY, 8192, 4096)).unwrap();
            buffer
        });
        lose(false);
        for (offset, buffer) in [8192, 16_384].into_iter().zip(&buffers) {
            session.write(&file, offset, buffer).unwrap();
            let mut got = vec![0; 4096];
            std::fs::File::open(scratch.path()).unwrap().read_exact_at(&mut got, offset).unwrap();
            assert!(got == pattern(KEY, 8192, 4096));
            says_so(&session.write(&file, offset + 100, buffer).unwrap_err());
        }
        lose(true);
        for buffer in &buffers {
            says_so(&session.write(&file, 8192, buffer).unwrap_err());
        }
        assert_eq!(std::fs::read(stranger.path()).unwrap(), STRANGE);
        std::mem::forget(file);
    });
}

/// What a ring's closed descriptor comes to on kernels that know a ring by nothing else: no call on it works any more.
fn break_rings() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let compare = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_enter as u32);
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..compare },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EBADF as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives through the call; it is for all threads of a process of its own.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program), 0);
    }
}

#[test]
fn a_lane_that_loses_its_ring_fails_what_it_has_and_goes_on() {
    in_process(&[], &[], || {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        all_works(&session);
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = File::open(scratch.path()).unwrap();
        for device in [session.device(0).unwrap(), session.devices().host.clone()] {
            if session.report(&device).unwrap().backend != "io_uring" {
                return println!("skipped: no io_uring here");
            }
        }
        break_rings();
        let began = Instant::now();
        let (mut failed, mut good) = (0, 0);
        // Each lane finds out for itself.
        while good < 20 {
            for target in Target::ALL {
                chill(&file);
                match session
                    .submit_read(&file, 0, target.buffer(&session, LEN))
                    .unwrap()
                    .wait()
                    .into_result()
                {
                    Ok((_, buffer)) => {
                        good += 1;
                        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
                    }
                    Err(error) => {
                        (failed, good) = (failed + 1, 0);
                        says_so(&error);
                        assert!(context(&error, "file").is_some());
                    }
                }
            }
            assert!(began.elapsed() < Duration::from_mins(1), "{failed} failed");
        }
        assert!(failed > 0, "no ring was used");
        all_works(&session);
    });
}

/// A memory file's pages are mapped; seals that come later hold for them, too.
#[test]
fn a_sealed_memory_file_is_not_written() {
    let _turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    for target in Target::ALL {
        // SAFETY: a NUL-terminated name; the descriptor is new and owned here.
        let theirs: std::fs::File = unsafe {
            let fd = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            std::os::fd::FromRawFd::from_raw_fd(fd)
        };
        theirs.write_all_at(&pattern(KEY, 0, LEN), 0).unwrap();
        // SAFETY: it stays open longer than the file.
        let file = unsafe { File::adopt(theirs.as_raw_fd()) }.unwrap();
        let mut buffer = target.buffer(&session, LEN);
        buffer.copy_from_slice(&pattern(KEY + 1, 0, LEN)).unwrap();
        session.write(&file, 0, &buffer).unwrap();
        assert!(
            std::fs::read(format!("/proc/self/fd/{}", theirs.as_raw_fd())).unwrap()
                == pattern(KEY + 1, 0, LEN)
        );
        let fd = theirs.as_raw_fd();
        // SAFETY: plain numbers.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) }, 0);
        buffer.copy_from_slice(&pattern(KEY + 2, 0, LEN)).unwrap();
        for len in [4096, 300 << 10, LEN] {
            let error = session.write_from(&file, 0, &buffer, 0..len).unwrap_err();
            assert_eq!(error.errno(), libc::EPERM, "{target:?} {len}: {error:?}");
        }
        session.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY + 1, 0, LEN), "{target:?}");
    }
}

/// Nor by a device, through pages that are registered already.
#[test]
fn a_sealed_memory_file_is_not_written_in_place() {
    let _turn = common::turn();
    // SAFETY: a NUL-terminated name; the descriptor is new and owned here.
    let theirs: std::fs::File = unsafe {
        let fd = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    };
    theirs.write_all_at(&pattern(KEY, 0, LEN), 0).unwrap();
    std::thread::sleep(pages::SETTLE * 2);
    let session = pages::open(pages::only());
    // SAFETY: it stays open longer than the file.
    let file = unsafe { File::adopt(theirs.as_raw_fd()) }.unwrap();
    let mut buffer = Target::Device.buffer(&session, LEN);
    buffer.copy_from_slice(&pattern(KEY + 1, 0, LEN)).unwrap();
    let receipt = session.write(&file, 0, &buffer).unwrap();
    assert_eq!(receipt.moved[Way::Mapped], LEN as u64, "{receipt}");
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) }, 0);
    buffer.copy_from_slice(&pattern(KEY + 2, 0, LEN)).unwrap();
    let error = session.write(&file, 0, &buffer).unwrap_err();
    assert!(error.message().contains("sealed"), "{error:?}");
    assert!(
        std::fs::read(format!("/proc/self/fd/{}", theirs.as_raw_fd())).unwrap() == pattern(KEY + 1, 0, LEN)
    );
}
