//! Restrictions of a machine: io_uring, locked memory, descriptors, permissions, space. forebay works all the same
//! and says what is missing, or fails with a clear error.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{
    self, Scratch, Target, chill, config, disk, drop_privileges, has_hint, in_process, pattern, session,
    soon, turn,
};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::{File, Note, ReadPiece, Session};
use forebay_error::{Error, ErrorKind};

const KEY: u64 = 43;
const LEN: usize = 3_000_001;
const BACKENDS: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Threads];

/// Lets the calls with these numbers fail with `errno` on this thread and those that it starts.
fn forbid(calls: &[i64], errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // Load the call's number; each comparison that hits goes on to the error, each that misses skips it.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for call in calls {
        let compare = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32);
        filter.push(libc::sock_filter { jf: 1, ..compare });
        filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives through the call; both calls change this thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Forbids io_uring to a new thread and runs `body` there.
fn without_io_uring(errno: i32, body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            forbid(&[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register], errno);
            body();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Reads and writes, cold and warm, small and large, over one session; all bytes right.
fn exercise(session: &Session, directory: &Path) {
    let scratch = Scratch::with_pattern(directory, KEY, LEN);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    for target in Target::ALL {
        for is_cold in [true, false] {
            if is_cold {
                chill(&file);
            }
            for len in [60_000, LEN] {
                let mut buffer = target.buffer(session, len);
                session.read(&file, 0, &mut buffer).unwrap();
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
                session.write(&file, 0, &buffer).unwrap();
            }
            let pieces: Vec<_> = (0..200)
                .map(|index| ReadPiece {
                    offset: 14_000 * index as u64 + 3,
                    range: index * 777..(index + 1) * 777,
                })
                .collect();
            let outcome =
                session.read_batch(&file, &pieces, target.buffer(session, 200 * 777)).unwrap().wait();
            let bytes = outcome.buffer.to_vec().unwrap();
            for (piece, entry) in pieces.into_iter().zip(outcome.entries) {
                entry.unwrap();
                assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, 777));
            }
        }
    }
    assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, LEN));
}

#[test]
fn without_io_uring_threads_do_the_work_and_say_so() {
    let _turn = turn();
    for (errno, word) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "kernel")] {
        without_io_uring(errno, || {
            let session = session(IoBackend::Auto, CachePolicy::Auto);
            for device in [session.device(0).unwrap(), session.devices().host.clone()] {
                let report = session.report(&device).unwrap();
                assert_eq!(report.backend, "threads");
                let note = &report.notes[0];
                assert!(
                    note.text.contains("threads with preadv") && note.text.contains("io_uring"),
                    "{note:?}"
                );
                assert!(note.hint.as_ref().unwrap().contains(word), "{note:?}");
            }
            exercise(&session, &disk());
            let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
            let mut buffer = session.buffer(0, LEN).unwrap();
            let receipt = session.read(&File::open(scratch.path()).unwrap(), 0, &mut buffer).unwrap();
            assert!(receipt.to_string().contains("note: cold reads use threads with preadv"), "{receipt}");
            assert!(receipt.to_string().contains("hint: "), "{receipt}");
        });
    }
}

#[test]
fn without_io_uring_who_insists_on_it_gets_an_error() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    without_io_uring(libc::EPERM, || {
        let session = session(IoBackend::Ring, CachePolicy::Auto);
        let error = session.report(&session.device(0).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(has_hint(&error, "seccomp"), "{error:?}");
        for target in Target::ALL {
            let mut buffer = target.buffer(&session, LEN);
            let error = session.read(&File::open(scratch.path()).unwrap(), 0, &mut buffer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        }
    });
}

#[test]
fn without_cachestat_samples_tell_the_residency() {
    let _turn = turn();
    const CACHESTAT: i64 = 451;
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    let without = |work: &(dyn Fn() + Sync)| {
        let forbidden = || {
            forbid(&[CACHESTAT], libc::EPERM);
            work();
        };
        std::thread::scope(|scope| scope.spawn(forbidden).join().unwrap());
    };
    without(&|| {
        let warm = file.residency(0, LEN as u64).unwrap();
        assert!(warm.cached == LEN as u64 && warm.method.contains("RWF_NOWAIT"), "{warm:?}");
    });
    // Here, where the kernel counts: samples have cold pages read ahead, and may meet those next.
    chill(&file);
    without(&|| {
        for io in BACKENDS {
            exercise(&session(io, CachePolicy::Auto), &disk());
        }
    });
}

fn set_limit(resource: libc::__rlimit_resource_t, limit: u64) {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the limit lives through the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// A directory in memory that every user may write to.
fn public() -> PathBuf {
    PathBuf::from("/dev/shm")
}

#[test]
fn little_locked_memory_costs_registered_buffers_only() {
    in_process(&[], &[], || {
        let _turn = turn();
        // A file on a disk that the other user may read, opened before.
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = File::options().write(true).open(scratch.path()).unwrap();
        set_limit(libc::RLIMIT_MEMLOCK, 64 << 10);
        drop_privileges();
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        for device in [session.device(0).unwrap(), session.devices().host.clone()] {
            let report = session.report(&device).unwrap();
            let note = report.notes.iter().find(|note| note.text.contains("without registered buffers"));
            match note {
                Some(note) => {
                    assert_eq!(report.backend, "io_uring", "{report:?}");
                    assert!(note.hint.as_ref().unwrap().contains("ulimit -l"), "{note:?}");
                }
                // Where io_uring is forbidden altogether.
                None => assert!(report.notes.iter().any(|note| note.text.contains("threads")), "{report:?}"),
            }
        }
        for target in Target::ALL {
            for is_cold in [true, false] {
                if is_cold {
                    chill(&file);
                }
                let mut buffer = target.buffer(&session, LEN);
                let receipt = session.read(&file, 0, &mut buffer).unwrap();
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
                assert!(receipt.to_string().contains("hint: "), "{receipt}");
                session.write(&file, 0, &buffer).unwrap();
            }
        }
        exercise(&session, &public());
        std::fs::read(scratch.path()).map(|bytes| assert!(bytes == pattern(KEY, 0, LEN))).unwrap_or_default();
    });
}

/// The first slot fits the limit, what a lane pins when it has more to do does not.
#[test]
fn a_lane_that_outgrows_the_limit_of_locked_memory_says_so() {
    in_process(&[], &[], || {
        let _turn = turn();
        let scratch = Scratch::with_pattern(&disk(), KEY, 4 * LEN);
        let file = File::open(scratch.path()).unwrap();
        set_limit(libc::RLIMIT_MEMLOCK, (1 << 20) + (512 << 10));
        drop_privileges();
        let small = config(IoBackend::Auto, CachePolicy::Bypass);
        common::install_gpu();
        let session = Session::with_config(Config { lanes: 1, slot_size: 1 << 20, ..small }).unwrap();
        let gpu = session.device(0).unwrap();
        let said = || {
            let report = session.report(&gpu).unwrap();
            report.notes.iter().any(|note| has_hint_of(note, "without registered buffers", "ulimit -l"))
        };
        if session.report(&gpu).unwrap().backend != "io_uring" {
            println!("skipped: io_uring is forbidden here");
            return;
        }
        assert!(!said(), "one slot fits");
        let mut buffer = session.buffer(0, 4 * LEN).unwrap();
        session.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 4 * LEN));
        assert!(said(), "{:?}", session.report(&gpu).unwrap());
    });
}

fn has_hint_of(note: &Note, text: &str, hint: &str) -> bool {
    note.text.contains(text) && note.hint.as_ref().is_some_and(|is| is.contains(hint))
}

/// Threads of this process that are lanes.
fn lanes_alive() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("forebay-")).count()
}

/// Found by this test: lanes that had started before a later one found no descriptor slept on for good, with their
/// pinned memory.
#[test]
fn too_few_descriptors_are_an_error_and_leave_no_lane_behind() {
    in_process(&[], &[], || {
        let turn = turn();
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = File::open(scratch.path()).unwrap();
        // Without gaps below the limit, what is to spare is known.
        let mut fillers = Vec::new();
        let highest =
            |fillers: &Vec<std::fs::File>| fillers.iter().map(AsRawFd::as_raw_fd).max().unwrap_or(0);
        while fillers.len() < 32 || highest(&fillers) < fillers.len() as i32 {
            fillers.push(std::fs::File::open("/dev/null").unwrap());
        }
        let used = highest(&fillers) as u64 + 1;
        let before = turn.fake.leaks().registrations;
        for spare in 0..6 {
            for io in BACKENDS {
                let session = Session::with_config(forebay_config::Config {
                    lanes: 4,
                    ..config(io, CachePolicy::Auto)
                });
                let session = session.unwrap();
                let mut buffer = session.buffer(0, LEN).unwrap();
                let limit = libc::rlimit { rlim_cur: used + spare, rlim_max: 4096 };
                // SAFETY: the limit lives through the call.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
                let result = session.read(&file, 0, &mut buffer);
                let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
                // SAFETY: the limit lives through the call.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
                match result {
                    Ok(_) => assert!(spare > 0 && buffer.to_vec().unwrap() == pattern(KEY, 0, LEN)),
                    Err(error) => {
                        assert_eq!(
                            (error.kind(), error.errno()),
                            (ErrorKind::TooManyFiles, libc::EMFILE),
                            "{error:?}"
                        );
                        assert!(has_hint(&error, "ulimit -n"), "{error:?}");
                    }
                }
                // Lanes that did start have gone to sleep by now.
                std::thread::sleep(Duration::from_millis(50));
                drop((session, buffer));
                let tidy = || lanes_alive() == 0 && turn.fake.leaks().registrations == before;
                assert!(
                    soon(tidy),
                    "{spare} spare, {io}: {} lanes left, {:?}",
                    lanes_alive(),
                    turn.fake.leaks()
                );
            }
        }
    });
}

#[track_caller]
fn refused(result: forebay_error::Result<File>, kind: ErrorKind, path: &Path) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error:?}");
    assert_eq!(common::context(&error, "path"), Some(path.to_str().unwrap()), "{error:?}");
    assert!(!error.hints().is_empty(), "{error:?}");
    error
}

#[test]
fn a_file_of_somebody_else_is_refused_with_a_hint() {
    in_process(&[], &[], || {
        let secret = Scratch::with_pattern(&public(), KEY, 5000);
        let shown = Scratch::with_pattern(&public(), KEY, 5000);
        std::fs::set_permissions(secret.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(shown.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        let _turn = turn();
        if !drop_privileges() {
            println!("skipped: this user owns all that it can create");
            return;
        }
        refused(File::open(secret.path()), ErrorKind::PermissionDenied, secret.path());
        refused(File::options().write(true).open(shown.path()), ErrorKind::PermissionDenied, shown.path());
        // Neither owned nor writable: read all the same, whatever the kernel tells of its residency.
        let file = File::open(shown.path()).unwrap();
        assert!(file.residency(0, 5000).unwrap().total == 5000);
        for io in BACKENDS {
            for target in Target::ALL {
                let session = session(io, CachePolicy::Auto);
                let mut buffer = target.buffer(&session, 5000);
                session.read(&file, 0, &mut buffer).unwrap();
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 5000));
            }
        }
    });
}

/// Becomes root of a user and mount namespace of its own.
const NAMESPACE: [&str; 4] = ["unshare", "--user", "--map-root-user", "--mount"];

fn mount_memory(at: &Path, flags: u64, size: &str) {
    let path = CString::new(at.as_os_str().as_bytes()).unwrap();
    let options = CString::new(format!("size={size}")).unwrap();
    // SAFETY: all strings end with NUL and live through the call.
    let rc = unsafe {
        libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), flags, options.as_ptr().cast())
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_file_system_that_fills_up_says_so() {
    in_process(&NAMESPACE, &[], || {
        let _turn = turn();
        let directory = tempfile::tempdir().unwrap();
        mount_memory(directory.path(), 0, "1m");
        for io in BACKENDS {
            for target in Target::ALL {
                let session = session(io, CachePolicy::Auto);
                let mut buffer = target.buffer(&session, LEN);
                buffer.copy_from_slice(&pattern(KEY, 0, LEN)).unwrap();
                // Into a new file; into the hole of one that has its length already.
                for len in [0, LEN as u64] {
                    let path = directory.path().join("full");
                    let file = File::options().write(true).create(true).truncate(true).open(&path).unwrap();
                    file.set_len(len).unwrap();
                    let error = session.write(&file, 0, &buffer).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
                    assert!(has_hint(&error, "df -h"), "{error:?}");
                    let error = file.make_room(LEN as u64).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    let error = file.preallocate(LEN as u64).unwrap_err();
                    assert!(error.kind() == ErrorKind::NoSpace && has_hint(&error, "df -h"), "{error:?}");
                    // Space comes back, and with it success.
                    file.set_len(0).unwrap();
                    session.write_from(&file, 0, &buffer, 0..700_000).unwrap();
                    assert!(std::fs::read(&path).unwrap() == pattern(KEY, 0, 700_000));
                }
            }
        }
    });
}

#[test]
fn a_read_only_file_system_says_so() {
    in_process(&NAMESPACE, &[], || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        mount_memory(directory.path(), 0, "1m");
        std::fs::write(&path, pattern(KEY, 0, 9000)).unwrap();
        mount_memory_again(directory.path());
        let error = refused(File::options().write(true).open(&path), ErrorKind::ReadOnly, &path);
        assert!(has_hint(&error, "remount,rw"), "{error:?}");
        let new = directory.path().join("new");
        refused(File::options().write(true).create(true).open(&new), ErrorKind::ReadOnly, &new);
        let _turn = turn();
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let mut buffer = session.buffer(0, 9000).unwrap();
        session.read(&File::open(&path).unwrap(), 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 9000));
    });
}

/// Makes it read-only.
fn mount_memory_again(at: &Path) {
    mount_memory(at, libc::MS_REMOUNT | libc::MS_RDONLY, "1m");
}

#[test]
fn without_proc_files_open_and_are_read() {
    in_process(&NAMESPACE, &[], || {
        let _turn = turn();
        mount_memory(Path::new("/proc"), 0, "4k");
        assert!(std::fs::read_dir("/proc").unwrap().next().is_none());
        for io in BACKENDS {
            exercise(&session(io, CachePolicy::Auto), &disk());
        }
    });
}
