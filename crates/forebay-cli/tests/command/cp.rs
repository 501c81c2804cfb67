//! `forebay cp` and `forebay verify`: nothing but a whole copy ever has the final name.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Done, finish, forebay, in_namespace, names, run, run_fake, sample};

#[test]
fn copies_are_equal_and_keep_the_mode() {
    let directory = tempfile::tempdir().unwrap();
    for (name, len) in
        [("empty", 0), ("tiny", 1), ("odd", 5_000_001), ("chunk", 16 << 20), ("more", (80 << 20) + 3)]
    {
        let source = sample(directory.path(), name, len);
        fs::set_permissions(&source, fs::Permissions::from_mode(0o640)).unwrap();
        for run in [run, run_fake] {
            // The second overwrites what the first made.
            let done = run(directory.path(), &format!("cp {name} copy --verify")).ok();
            assert!(done.out.is_empty(), "{}", done.out);
            let copy = directory.path().join("copy");
            assert!(fs::read(&source).unwrap() == fs::read(&copy).unwrap(), "{name} differs");
            assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o640);
        }
    }
    assert_eq!(names(directory.path()), ["chunk", "copy", "empty", "more", "odd", "tiny"]);
}

#[test]
fn rights_come_from_the_umask_or_from_the_replaced_file() {
    let directory = tempfile::tempdir().unwrap();
    let source = sample(directory.path(), "x", 4096);
    fs::set_permissions(&source, fs::Permissions::from_mode(0o4777)).unwrap();
    let copy = |name: &str| {
        let mut command = forebay();
        command.current_dir(directory.path()).args(["cp", "x", name]);
        // SAFETY: between fork and exec only this system call is made.
        unsafe {
            command.pre_exec(|| {
                libc::umask(0o027);
                Ok(())
            });
        }
        finish(command).ok();
        fs::metadata(directory.path().join(name)).unwrap()
    };
    assert_eq!(copy("new").permissions().mode() & 0o7777, 0o750);
    for bits in [0o604, 0o666, 0o4711] {
        let old = sample(directory.path(), "old", 1);
        // Only root gives files away. A file that is given away loses its setuid bit.
        let owner = std::os::unix::fs::chown(&old, Some(1234), Some(4321)).is_ok().then_some((1234, 4321));
        fs::set_permissions(&old, fs::Permissions::from_mode(bits)).unwrap();
        let now = copy("old");
        assert_eq!((now.permissions().mode() & 0o7777, now.len()), (bits & 0o777, 4096));
        assert!(owner.is_none_or(|owner| owner == (now.uid(), now.gid())), "{now:?}");
        fs::remove_file(&old).unwrap();
    }
}

#[test]
fn holes_stay_holes() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("to")).unwrap();
    let piece = vec![7_u8; 5_000_000];
    let many: Vec<u64> = (0..1500).map(|n| n * 8192).collect();
    for (len, places, size) in [
        (20_u64 << 20, &[][..], 1),
        ((64 << 20) + 11, &[3 << 20, 40 << 20, 64 << 20], 11),
        (64 << 20, &[0, 40 << 20], 5_000_000),
        (48 << 20, &many[..], 4096),
    ] {
        let source = directory.path().join("sparse");
        let file = fs::File::create(&source).unwrap();
        file.set_len(len).unwrap();
        for place in places {
            file.write_all_at(&piece[..size], *place).unwrap();
        }
        for (run, args) in [(run as fn(&Path, &str) -> Done, "--verify"), (run_fake, "")] {
            let done = run(directory.path(), &format!("cp sparse to {args}")).ok();
            let copy = directory.path().join("to/sparse");
            assert!(fs::read(&source).unwrap() == fs::read(&copy).unwrap(), "{len} {args} differs");
            let (source, copy) = (fs::metadata(&source).unwrap(), fs::metadata(&copy).unwrap());
            let metadata = 1 << 20;
            assert!(copy.blocks() * 512 <= source.blocks() * 512 + metadata, "{source:?} {copy:?}");
            let holes = done.err.lines().find_map(|line| line.strip_prefix("  holes  ")).unwrap();
            // Blocks of the file system, and a decimal that is printed.
            let expected = (len - (places.len() * size.next_multiple_of(4096)) as u64) as f64;
            assert!((size_of(holes) / expected - 1.0).abs() < 0.01, "{}", done.err);
        }
    }
    // A file without holes has none, zeros or not.
    fs::write(directory.path().join("zeros"), vec![0; 1 << 20]).unwrap();
    let done = run(directory.path(), "cp zeros copy").ok();
    assert!(!done.err.contains("holes"), "{}", done.err);
    assert!(fs::metadata(directory.path().join("copy")).unwrap().blocks() * 512 >= 1 << 20);
}

/// Bytes of a size that was printed.
fn size_of(text: &str) -> f64 {
    let (number, unit) = text.split_once(' ').unwrap();
    let power = ["B", "KiB", "MiB", "GiB"].iter().position(|known| *known == unit).unwrap();
    number.parse::<f64>().unwrap() * 1024_f64.powi(power as i32)
}

#[test]
fn what_does_not_tell_its_length_is_read_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    for path in ["/proc/version", "/proc/kallsyms", "/sys/devices/system/cpu/online"] {
        let Ok(expected) = fs::read(path) else {
            println!("skipped in part: no {path} here");
            continue;
        };
        assert!(!expected.is_empty() && fs::metadata(path).unwrap().len() != expected.len() as u64, "{path}");
        for run in [run, run_fake] {
            let done = run(directory.path(), &format!("cp {path} copy --verify")).ok();
            assert!(fs::read(directory.path().join("copy")).unwrap() == expected, "{path} differs");
            let size = size_of(done.err.split(" in ").next().unwrap());
            assert!((size / expected.len() as f64 - 1.0).abs() < 0.06, "{}", done.err);
            assert!(done.err.contains("does not tell its length"), "{}", done.err);
        }
    }
    run(directory.path(), "verify -f /proc/version").fails(1, "does not tell its length");
}

#[test]
fn bad_sources_and_destinations() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 4096);
    fs::create_dir(directory.path().join("d")).unwrap();
    for (args, word) in [
        ("cp missing y", "No such file"),
        ("cp d y", "directory"),
        ("cp x nowhere/y", "No such file"),
        ("cp x x", "same file"),
        ("cp /dev/zero y", "regular"),
        ("cp x y -d 9", "no such device"),
    ] {
        run(directory.path(), args).fails(1, word);
    }
    assert_eq!(names(directory.path()), ["d", "x"]);
}

/// Whether a process has a file open in the folder that has no name, or a hidden one.
fn has_begun(process: u32, folder: &Path) -> bool {
    let is_hidden = |name: String| name.starts_with(".copy.forebay-");
    let is_nameless = |to: PathBuf| to.starts_with(folder) && to.to_string_lossy().ends_with(" (deleted)");
    let open = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    names(folder).into_iter().any(is_hidden)
        || open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(is_nameless)
}

/// Starts copying something large, and sends a signal once the copy has begun.
fn in_the_middle(signal: libc::c_int) -> (Option<i32>, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let source = fs::File::create(directory.path().join("big")).unwrap();
    let part = vec![1_u8; 16 << 20];
    (0..48).for_each(|n| source.write_all_at(&part, n * part.len() as u64).unwrap());
    let mut command = forebay();
    command.current_dir(directory.path()).args(["cp", "big", "copy"]);
    crate::support::as_in_a_terminal(&mut command);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !has_begun(child.id(), directory.path()) {
        assert!(started.elapsed() < Duration::from_secs(30), "the copy does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: a child that was not waited for yet.
    unsafe { libc::kill(child.id() as i32, signal) };
    let status = child.wait().unwrap();
    (status.code(), names(directory.path()))
}

#[test]
fn killed_in_the_middle_leaves_nothing_under_the_name() {
    let (code, names) = in_the_middle(libc::SIGKILL);
    assert_eq!(code, None);
    assert!(!names.contains(&"copy".to_owned()), "{names:?}");
}

#[test]
fn interrupted_in_the_middle_leaves_nothing_at_all() {
    for (signal, expected) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let (code, names) = in_the_middle(signal);
        assert_eq!(code, Some(expected));
        assert_eq!(names, ["big"]);
    }
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 4 << 20);
    let script =
        "mount -t tmpfs -o size=2m none /mnt && \"$FOREBAY\" cp x /mnt/y; code=$?; ls -A /mnt; exit $code";
    let Some(done) = in_namespace(directory.path(), script) else { return };
    assert_eq!(done.out, "");
    done.fails(1, "No space left");
    let script =
        "mount -t tmpfs -o size=2m none /mnt && \"$FOREBAY\" bench -f /mnt/y -I 1 -s 4M -i 64K -x $0";
    for xfer in 0..8 {
        let script = script.replace("$0", &xfer.to_string());
        let Some(done) = in_namespace(directory.path(), &script) else { return };
        if (1..4).contains(&xfer) && done.err.contains("no O_DIRECT") {
            continue;
        }
        done.fails(1, "No space left");
    }
}

#[test]
fn a_read_only_file_system_is_told() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    for command in ["cp x /mnt/y", "bench -f /mnt/y -I 1 -s 1M", "demo --size 16M --dir /mnt"] {
        let script = format!("mount -t tmpfs -o ro none /mnt && \"$FOREBAY\" {command}");
        let Some(done) = in_namespace(directory.path(), &script) else { return };
        done.fails(1, "Read-only file system");
    }
}

#[test]
fn verify_prints_the_tool_s_lines() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 100_000);
    let link = directory.path().join("gdsio_verify");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), &link).unwrap();
    let mut command = crate::support::clean(std::process::Command::new(&link));
    command
        .current_dir(directory.path())
        .args(["-f", "x", "-d", "0", "-o", "4096", "-s", "8192", "-n", "2", "-m", "0"]);
    let done = finish(command).ok();
    let expected = "gpu index :0,file :x, gpu buffer alignment :0, gpu buffer offset :0, gpu devptr offset :0, file offset :4096, io_requested :8192, io_chunk_size :4096, bufregister :true, sync :0, nr ios :2, \nfsync :0, \nBatch mode: 0\nData Verification Success\n";
    assert_eq!(done.out, expected);
    run_fake(directory.path(), "verify -f x").ok();
    run(directory.path(), "verify -f x -s 1M").fails(1, "beyond the end");
}

#[test]
fn bytes_read_in_place_are_told() {
    let directory = tempfile::tempdir().unwrap();
    crate::support::sample(directory.path(), "x", 20 << 20);
    // Pages of a file that was written a moment ago are not pinned.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let copied = crate::support::run_fake(directory.path(), "cp x y --verify").ok();
    assert!(copied.err.contains("read   mapped") && copied.err.contains("in place"), "{}", copied.err);
    let verified = crate::support::run_fake(directory.path(), "verify -f x").ok();
    assert!(verified.err.contains("read by mapped"), "{}", verified.err);
}
