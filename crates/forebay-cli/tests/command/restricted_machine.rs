//! Where the machine forbids things: the work goes on another way, or a clear error says why not.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{finish, forebay, in_namespace, run, sample};

/// Makes io_uring_setup fail with EPERM in this process and its children, as default container profiles do.
fn deny_io_uring() -> std::io::Result<()> {
    filter([
        step(LOAD, 0, 0, 0),
        step(JUMP_EQ, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ])
}

/// Makes io_uring_setup of more than 4 entries fail with ENOMEM, as RLIMIT_MEMLOCK does before kernel 5.12.
fn deny_large_rings() -> std::io::Result<()> {
    const FIRST_ARGUMENT: u32 = 16;
    filter([
        step(LOAD, 0, 0, 0),
        step(JUMP_EQ, 0, 3, libc::SYS_io_uring_setup as u32),
        step(LOAD, 0, 0, FIRST_ARGUMENT),
        step(JUMP_GT, 0, 1, 4),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ])
}

const LOAD: u32 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP_EQ: u32 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_GT: u32 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
const RETURN: u32 = 0x06; // BPF_RET | BPF_K

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn filter<const N: usize>(mut program: [libc::sock_filter; N]) -> std::io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the calls; both only change this process.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn round_trip(directory: &Path, prepare: fn() -> std::io::Result<()>, fake: bool) -> String {
    let mut told = String::new();
    for args in ["-I 1 -s 8M -i 1M -w 2", "-I 0 -i 1M -w 2 --drop-cache", "-I 2 -i 4K -x 6 -w 16"] {
        let mut command = forebay();
        command.current_dir(directory).args(["bench", "-f", "x", "-V"]).args(args.split_whitespace());
        if fake {
            command.env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap());
        }
        // SAFETY: only calls that may be made between fork and exec.
        unsafe { command.pre_exec(prepare) };
        let done = finish(command);
        if done.err.contains("memory and are never cold") {
            eprintln!("skipped the cold part: this directory is tmpfs");
            continue;
        }
        told.push_str(&done.ok().err);
    }
    told
}

#[test]
fn io_uring_forbidden() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for fake in [false, true] {
        let told = round_trip(directory.path(), deny_io_uring, fake);
        assert!(told.contains("io_uring"), "nothing says that io_uring is missing:\n{told}");
    }
    let mut command = forebay();
    command.current_dir(directory.path()).args(["bench", "-f", "x", "--io", "ring", "-i", "4M"]);
    // SAFETY: as above.
    unsafe { command.pre_exec(deny_io_uring) };
    finish(command).fails(1, "io_uring");
}

#[test]
fn hardly_any_locked_memory() {
    fn limit() -> std::io::Result<()> {
        let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
        // SAFETY: changes this process only.
        if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for fake in [false, true] {
        round_trip(directory.path(), limit, fake);
    }
}

#[test]
fn proc_unreadable() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    for command in ["bench -f x -i 64K", "cp x y", "verify -f x", "demo --size 16M --dir ."] {
        let script = format!("mount -t tmpfs none /proc && \"$FOREBAY\" {command}");
        let Some(done) = in_namespace(directory.path(), &script) else { return };
        done.ok();
    }
}

#[test]
fn a_hidden_proc_is_named_as_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    let script = |command: &str| {
        in_namespace(
            directory.path(),
            &format!("mount -t tmpfs none /proc && ulimit -l 64; \"$FOREBAY\" {command}"),
        )
    };
    let Some(checked) = script("check .") else { return };
    assert!(checked.out.contains("/proc does not show this process"), "{}", checked.out);
    assert!(!checked.out.contains("memlock: RLIMIT_MEMLOCK is"), "a false alarm:\n{}", checked.out);
    for (command, code) in [("stats", 0), ("stats -p 1", 1), ("run -- true", 1)] {
        let done = script(command).unwrap();
        assert_eq!(done.code, Some(code), "{command}: {}", done.err);
        assert!(done.err.contains("/proc does not show processes"), "{command}: {}", done.err);
        assert!(done.err.contains("hint: mount -t proc proc /proc"), "{command}: {}", done.err);
    }
    std::fs::write(directory.path().join("own.c"), "int own;\n").unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-Wl,-soname,libcufile.so.0", "-o", "libcufile.so.0", "own.c"])
        .current_dir(directory.path())
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("skipped the last part: no C compiler here");
        return;
    }
    let done = script("run --lib . --receipt -- true").unwrap().ok();
    assert!(done.err.contains("note: /proc does not show processes"), "{}", done.err);
}

#[test]
fn lanes_without_a_ring_are_not_called_ok() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = forebay();
    command.current_dir(directory.path()).args(["check", "."]);
    // SAFETY: only calls that may be made between fork and exec.
    unsafe { command.pre_exec(deny_large_rings) };
    let done = finish(command);
    assert!(done.out.contains("a small io_uring can be made, but the lanes use threads"), "{}", done.out);
    assert!(done.out.contains("io_uring is not available: Cannot allocate memory"), "{}", done.out);
    assert!(!done.out.contains("io_uring is allowed"), "{}", done.out);
}

/// Whether a program that was started in the file's folder has it open.
fn is_open(path: &Path) -> bool {
    let leads_to = |link: &Path, to: &Path| std::fs::read_link(link).is_ok_and(|found| found == to);
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries(Path::new("/proc"))
        .map(|process| process.path())
        .filter(|process| leads_to(&process.join("cwd"), path.parent().unwrap()))
        .any(|process| entries(&process.join("fd")).any(|fd| leads_to(&fd.path(), path)))
}

#[test]
fn truncated_during_a_read() {
    let directory = tempfile::tempdir().unwrap();
    // Links of /proc are resolved.
    let root = directory.path().canonicalize().unwrap();
    for xfer in 0..8 {
        let path = sample(&root, "x", 8 << 20);
        let cut = std::thread::spawn(move || {
            // The process has to start first, which takes long beside others.
            while !is_open(&path) {
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(300));
            std::fs::File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
        });
        run(directory.path(), &format!("bench -f x -x {xfer} -i 64K -w 2 -T 5")).fails(1, "the file ended");
        cut.join().unwrap();
    }
}

#[test]
fn device_memory_too_small() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let mut command = forebay();
    command.current_dir(directory.path()).args(["bench", "-f", "x", "-I", "1", "-s", "256M", "-i", "256M"]);
    command.env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap()).env("FAKE_CUDA_MEMORY", "67108864");
    finish(command).fails(1, "memory");
}

#[test]
fn no_permission() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample(directory.path(), "x", 1 << 20);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::File::open(&path).is_ok() {
        eprintln!("skipped: this user may read everything");
        return;
    }
    run(directory.path(), "bench -f x").fails(1, "Permission denied");
    run(directory.path(), "cp x y").fails(1, "Permission denied");
}
