//! Files by a caller's descriptor: it stays as it is, and so do the caller's locks.

use std::fs::{OpenOptions, Permissions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{self, Scratch, Target, chill, disk, in_process, pattern, turn};
use crate::pages::{self, MIB, fetch, memory, only, open, raw};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{Buffer, File, Session, Way};
use forebay_error::ErrorKind;

const KEY: u64 = 91;
const LEN: usize = 3 * MIB + 4321;
/// Longer than idle descriptors are kept.
const LATER: Duration = Duration::from_secs(13);

fn directories() -> [PathBuf; 2] {
    [disk(), memory()]
}

fn adopt(file: &impl AsRawFd) -> File {
    // SAFETY: each test keeps its descriptor open longer than the file.
    unsafe { File::adopt(file.as_raw_fd()) }.unwrap()
}

fn plain() -> Session {
    common::session(IoBackend::default(), CachePolicy::default())
}

/// The caller's own opening of a file.
fn caller(path: &Path, flags: i32) -> std::io::Result<std::fs::File> {
    let access = flags & libc::O_ACCMODE;
    let (read, write) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
    OpenOptions::new().read(read).write(write).custom_flags(flags & !libc::O_ACCMODE).open(path)
}

fn flags(fd: RawFd) -> (i32, i32) {
    // SAFETY: no pointers are passed.
    unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFD)) }
}

fn position(fd: RawFd) -> i64 {
    // SAFETY: no pointers are passed.
    unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }
}

fn fill(session: &Session, target: Target, bytes: &[u8]) -> Buffer {
    let mut buffer = target.buffer(session, bytes.len());
    buffer.copy_from_slice(bytes).unwrap();
    buffer
}

/// How many descriptors of ours an adopted file has: memory needs none with O_DIRECT.
fn ours(directory: &Path) -> usize {
    if directory == memory() { 1 } else { 2 }
}

/// This process's descriptors of a file.
fn descriptors(path: &Path) -> Vec<RawFd> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let of_file = all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == path));
    of_file.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[test]
fn both_ways_are_served_and_the_descriptor_stays_as_it_was() {
    let _turn = turn();
    let session = open(pages::config());
    for directory in directories() {
        for extra in [0, libc::O_DIRECT, libc::O_DSYNC, libc::O_SYNC | libc::O_DIRECT] {
            let scratch = Scratch::with_pattern(&directory, KEY, LEN);
            let Ok(theirs) = caller(scratch.path(), libc::O_RDWR | extra) else {
                println!("skipped: no flags {extra:o} in {}", directory.display());
                continue;
            };
            // SAFETY: no pointers are passed.
            unsafe { libc::lseek(theirs.as_raw_fd(), 4096, libc::SEEK_SET) };
            let before = (flags(theirs.as_raw_fd()), position(theirs.as_raw_fd()));
            let file = adopt(&theirs);
            assert_eq!(file.access(), (true, true));
            assert!(!file.is_append());
            assert_eq!((file.path(), file.name()), (None, scratch.path().display().to_string()));
            assert_eq!((file.buffered_refused(), file.len().unwrap()), (None, LEN as u64));
            let (first, second) = (file.raw_fd().unwrap(), file.direct_fd());
            assert_eq!(second.is_some(), directory != memory());
            for (ours, direct) in [(Some(first), 0), (second, libc::O_DIRECT)] {
                let Some(ours) = ours else { continue };
                let (mode, closes) = flags(ours);
                assert_eq!(mode & libc::O_DIRECT, direct, "{mode:o}");
                let same = libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC;
                assert_eq!(mode & same, before.0.0 & same, "{mode:o}");
                assert!(closes & libc::FD_CLOEXEC != 0 && ours > 2 && ours != theirs.as_raw_fd());
            }
            for target in Target::ALL {
                chill(&file);
                for (offset, len) in [(0, LEN), (4096, MIB), (77, 1000), (LEN as u64 - 5, 5)] {
                    let mut buffer = target.buffer(&session, len);
                    session.read(&file, offset, &mut buffer).unwrap();
                    assert!(
                        buffer.to_vec().unwrap() == pattern(KEY, offset, len),
                        "{target:?} {offset} {len}"
                    );
                }
                for (offset, len) in [(0u64, MIB), (MIB as u64 + 13, 100_001)] {
                    let bytes = pattern(KEY + 1, offset, len);
                    session.write(&file, offset, &fill(&session, target, &bytes)).unwrap();
                    let mut back = vec![0; len];
                    raw(scratch.path()).read_exact_at(&mut back, offset).unwrap();
                    assert!(back == bytes, "{target:?} {offset} {len}");
                    let bytes = pattern(KEY, offset, len);
                    session.write(&file, offset, &fill(&session, target, &bytes)).unwrap();
                }
                file.sync().unwrap();
            }
            drop(file);
            assert_eq!((flags(theirs.as_raw_fd()), position(theirs.as_raw_fd())), before);
        }
    }
}

#[test]
fn access_shows_and_what_cannot_be_done_fails() {
    let _turn = turn();
    let session = plain();
    for directory in directories() {
        let scratch = Scratch::with_pattern(&directory, KEY, MIB);
        let mut buffer = session.host_buffer(4096).unwrap();

        let theirs = caller(scratch.path(), libc::O_RDONLY).unwrap();
        let file = adopt(&theirs);
        assert_eq!(file.access(), (true, false));
        session.read(&file, 0, &mut buffer).unwrap();
        assert!(session.write(&file, 0, &buffer).is_err());

        let theirs = caller(scratch.path(), libc::O_WRONLY).unwrap();
        let file = adopt(&theirs);
        assert_eq!(file.access(), (false, true));
        session.write(&file, 0, &buffer).unwrap();
        assert!(session.read(&file, 0, &mut buffer).is_err());

        let theirs = caller(scratch.path(), libc::O_RDWR | libc::O_APPEND).unwrap();
        assert!(adopt(&theirs).is_append());
    }
    assert_eq!(File::open("/proc/self/exe").unwrap().access(), (true, false));
}

#[test]
fn what_has_no_offsets_is_refused() {
    let _turn = turn();
    let kind = |fd: RawFd| {
        // SAFETY: the descriptor is open during the call, or none.
        unsafe { File::adopt(fd) }.unwrap_err().kind()
    };
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(kind(reader.as_raw_fd()), ErrorKind::InvalidInput);
    assert_eq!(kind(std::fs::File::open("/dev/null").unwrap().as_raw_fd()), ErrorKind::InvalidInput);
    assert_eq!(kind(std::fs::File::open("/").unwrap().as_raw_fd()), ErrorKind::IsDirectory);
    let named = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/proc/self/exe").unwrap();
    assert_eq!(kind(named.as_raw_fd()), ErrorKind::InvalidInput);
    for none in [-1, 1 << 20] {
        // SAFETY: no such descriptor.
        assert!(unsafe { File::adopt(none) }.is_err());
    }
}

#[test]
fn a_second_descriptor_is_used_again() {
    let _turn = turn();
    for directory in directories() {
        let scratch = Scratch::with_pattern(&directory, KEY, MIB);
        let theirs = caller(scratch.path(), libc::O_RDWR).unwrap();
        let mut seen = Vec::new();
        for _ in 0..100 {
            drop(adopt(&theirs));
            seen = descriptors(scratch.path());
            assert!(seen.len() <= 1 + ours(&directory), "{seen:?}");
        }
        // Another access has another.
        let reader = caller(scratch.path(), libc::O_RDONLY).unwrap();
        drop(adopt(&reader));
        assert_eq!(descriptors(scratch.path()).len(), seen.len() + 1 + ours(&directory));
    }
}

#[test]
fn standard_input_is_never_taken() {
    in_process(&[], &[], || {
        let files = directories().map(|directory| Scratch::with_pattern(&directory, KEY, MIB));
        let theirs = files.each_ref().map(|file| caller(file.path(), libc::O_RDWR).unwrap());
        // SAFETY: nobody here reads standard input.
        unsafe { libc::close(0) };
        for (file, theirs) in files.iter().zip(&theirs) {
            let adopted = adopt(theirs);
            let all = descriptors(file.path());
            assert!(
                all.len() == 1 + ours(file.path().parent().unwrap()) && all.iter().all(|fd| *fd > 2),
                "{all:?}"
            );
            assert_eq!(flags(0).0, -1, "something took number 0");
            drop(adopted);
        }
    });
}

#[test]
fn without_permission_there_is_what_was_given() {
    in_process(&[], &[], || {
        let session = plain();
        let scratch = Scratch::with_pattern(&disk(), KEY, MIB);
        let buffered = caller(scratch.path(), libc::O_RDWR).unwrap();
        let direct = caller(scratch.path(), libc::O_RDWR | libc::O_DIRECT);
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o0)).unwrap();
        // SAFETY: no pointers are passed. Fails unless it is root, who may open everything.
        unsafe { libc::seteuid(65534) };
        let file = adopt(&buffered);
        assert_eq!(file.direct_fd(), None);
        assert!(file.direct_refused().unwrap().contains("ermission denied"), "{:?}", file.direct_refused());
        let mut buffer = session.host_buffer(MIB).unwrap();
        session.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, MIB));
        let Ok(direct) = direct else { return println!("skipped: no O_DIRECT in {}", disk().display()) };
        let file = adopt(&direct);
        assert!(file.buffered_refused().unwrap().contains("ermission denied"));
        assert!(file.direct_fd().is_some_and(|fd| fd != direct.as_raw_fd()));
        chill(&file);
        session.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, MIB));
    });
}

#[test]
fn block_devices_can_be_adopted() {
    let _turn = turn();
    let devices = std::fs::read_dir("/sys/class/block").unwrap().flatten();
    let opened = devices.filter_map(|entry| {
        let file = std::fs::File::open(Path::new("/dev").join(entry.file_name())).ok()?;
        let mut page = vec![0; 4096];
        file.read_exact_at(&mut page, 0).ok().map(|()| (file, page))
    });
    let Some((theirs, page)) = { opened }.next() else {
        return println!("skipped: no block device can be read here");
    };
    let session = plain();
    let file = adopt(&theirs);
    assert_ne!(file.len().unwrap(), 0);
    let mut buffer = session.host_buffer(4096).unwrap();
    session.read(&file, 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == page);
}

// ---- locks --------------------------------------------------------------------------------------------------------

/// Sets or takes back a POSIX lock on the whole file.
fn lock(fd: RawFd, kind: i32) {
    // SAFETY: a zeroed flock is a valid value, the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    // SAFETY: it lives through the call.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETLK, &lock) }, 0, "{}", std::io::Error::last_os_error());
}

/// Whether another process sees a POSIX lock on the file.
fn is_locked(path: &Path) -> bool {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the child makes system calls only; all pointers are to its own memory.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let fd = libc::open(path.as_ptr(), libc::O_RDWR);
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as i16;
            let asked = libc::fcntl(fd, libc::F_GETLK, &mut lock);
            libc::_exit(if asked < 0 { 2 } else { i32::from(lock.l_type != libc::F_UNLCK as i16) });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) < 2, "{status}");
        libc::WEXITSTATUS(status) == 1
    }
}

/// Reads and writes an adopted file by all engines; the sessions that did.
fn use_file(theirs: &impl AsRawFd) -> [Session; 2] {
    let file = adopt(theirs);
    let staged = open(pages::config());
    for target in Target::ALL {
        chill(&file);
        let mut buffer = target.buffer(&staged, LEN);
        staged.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
        staged.write(&file, 0, &buffer).unwrap();
    }
    file.residency(0, LEN as u64).unwrap();
    std::thread::sleep(pages::SETTLE * 2);
    let mapped = open(only());
    staged.probe_mapped(&file, &pages::gpu(&staged)).unwrap();
    let (bytes, receipt) = fetch(&mapped, &file, 0, LEN).unwrap();
    assert!(bytes == pattern(KEY, 0, LEN));
    assert_eq!(receipt.moved[Way::Mapped], LEN as u64, "{receipt}");
    [staged, mapped]
}

#[test]
fn posix_locks_outlive_adopted_files() {
    let _turn = turn();
    let files = directories().map(|directory| Scratch::with_pattern(&directory, KEY, LEN));
    let theirs = files.each_ref().map(|file| caller(file.path(), libc::O_RDWR).unwrap());
    for (file, theirs) in files.iter().zip(&theirs) {
        assert!(!is_locked(file.path()));
        lock(theirs.as_raw_fd(), libc::F_WRLCK);
        drop(use_file(theirs));
        assert!(is_locked(file.path()), "{}", file.path().display());
    }
    std::thread::sleep(LATER);
    for (file, theirs) in files.iter().zip(&theirs) {
        assert!(is_locked(file.path()), "{}", file.path().display());
        assert_eq!(descriptors(file.path()).len(), 1 + ours(file.path().parent().unwrap()));
        lock(theirs.as_raw_fd(), libc::F_UNLCK);
    }
    std::thread::sleep(LATER);
    for (file, theirs) in files.iter().zip(&theirs) {
        assert_eq!(descriptors(file.path()), [theirs.as_raw_fd()], "not closed without a lock");
    }
}

fn may_flock(fd: RawFd) -> bool {
    // SAFETY: no pointers are passed.
    unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[test]
fn flocks_last_as_long_as_the_callers_descriptor() {
    let _turn = turn();
    for directory in directories() {
        let scratch = Scratch::with_pattern(&directory, KEY, LEN);
        let theirs = caller(scratch.path(), libc::O_RDWR).unwrap();
        assert!(may_flock(theirs.as_raw_fd()));
        let _sessions = use_file(&theirs);
        let other = raw(scratch.path());
        assert!(!may_flock(other.as_raw_fd()), "the lock is gone");
        drop(theirs);
        // Nothing in the engine keeps that file open: neither pages that linger nor a ring.
        let closed = Instant::now();
        while !may_flock(other.as_raw_fd()) {
            assert!(closed.elapsed() < Duration::from_secs(2), "the lock outlives its descriptor");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn locks_of_the_open_file_stay() {
    let _turn = turn();
    for directory in directories() {
        let scratch = Scratch::with_pattern(&directory, KEY, LEN);
        let theirs = caller(scratch.path(), libc::O_RDWR).unwrap();
        // SAFETY: a zeroed flock is a valid value, the whole file; it lives through the calls.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
        drop(use_file(&theirs));
        let other = raw(scratch.path());
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(other.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) }, 0);
        assert_eq!(lock.l_type, libc::F_WRLCK as i16, "{}", directory.display());
    }
}

#[test]
fn a_memfd_can_be_adopted() {
    let _turn = turn();
    // SAFETY: a NUL-terminated name; the descriptor is new and owned here.
    let theirs = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"adopted".as_ptr(), libc::MFD_CLOEXEC)) };
    let session = plain();
    let file = adopt(&theirs);
    let bytes = pattern(KEY, 0, LEN);
    session.write(&file, 0, &fill(&session, Target::Host, &bytes)).unwrap();
    let mut buffer = session.host_buffer(LEN).unwrap();
    session.read(&file, 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == bytes);
}
