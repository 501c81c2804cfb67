//! The words of help and errors, whole.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use crate::support::{finish, run, sample};

#[test]
fn help() {
    let directory = tempfile::tempdir().unwrap();
    for (name, args) in [
        ("help", "--help"),
        ("help_bench", "bench -h"),
        ("help_cp", "cp -h"),
        ("help_verify", "verify -h"),
        ("help_demo", "demo -h"),
        ("help_stats", "stats -h"),
        ("help_check", "check -h"),
        ("help_s3", "s3 -h"),
        ("help_s3_ls", "s3 ls -h"),
        ("help_s3_cp", "s3 cp -h"),
        ("help_s3_rm", "s3 rm -h"),
        ("help_s3_sync", "s3 sync -h"),
        ("help_s3_presign", "s3 presign -h"),
        ("help_s3_probe", "s3 probe -h"),
        ("help_serve", "serve -h"),
        ("help_serve_s3", "serve s3 -h"),
    ] {
        insta::assert_snapshot!(name, run(directory.path(), args).ok().out);
    }
}

#[test]
fn errors() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    std::fs::create_dir(directory.path().join("d")).unwrap();
    std::fs::write(directory.path().join("empty"), "").unwrap();
    std::fs::write(directory.path().join("bad.gdsio"), "[global]\nrw=read\nspeed=high\n[job0]\nfilename=x\n")
        .unwrap();
    let mut text = String::new();
    for args in [
        "bench",
        "bench -f missing",
        "bench -f d",
        "bench -D missing",
        "bench -D x",
        "bench -f x -s 2M",
        "bench -f x -o 2M",
        "bench -f x -s 0",
        "bench -f x -i 0",
        "bench -f x -i 4X",
        "bench -f x -i 1M:64K:4K",
        "bench -f x -s 4K",
        "bench -f x -w 0",
        "bench -f x -d 7",
        "bench -f x -d cuda:0",
        "bench -f x -d 0,1",
        "bench -f x -x 9",
        "bench -f x -I 4",
        "bench -f x -m 9",
        "bench -f x -x 2 -m 3",
        "bench -f x -T 0",
        "bench -f x -n 4095",
        "bench -f x -k 0xg",
        "bench -f x -P rdma://a",
        "bench -f x -M 50",
        "bench -f x -U",
        "bench -f x -f x -d 0 -d 0 -d 0",
        "bench -f x -D d",
        "bench -f x --nonsense",
        "bench -f x -s -1",
        "bench -f x -w abc",
        "bench -f x -T abc",
        "bench -f x --lanes 65",
        "bench -f x --json x",
        "bench -f /dev/null",
        "bench -P x",
        "bench x",
        "bench d",
        "bench --files x",
        "bench -f x --engine warp",
        "bench -f x --strict staged -i 64K",
        "bench -f x --json missing/r.json",
        "bench -f x --gather=disk",
        "bench -f x --gather -I 1",
        "bench -f x --gather -i 4K:8K:4K",
        "bench -D d --gather",
        "bench -f x --open-cost -I 1",
        "bench -D d --open-cost",
        "bench --files missing",
        "bench --files d",
        "bench --files d -V",
        "bench -f x --make-files 3",
        "bench -f x --bare --engine mapped -x 6",
        "bench -f x --engine mapped",
        "bench -f y -I 1",
        "bench missing.gdsio",
        "bench bad.gdsio",
        "cp x",
        "cp missing y",
        "cp d y",
        "cp x missing/y",
        "cp x missing/",
        "verify -f empty",
        "verify -f missing",
        "verify -f x -s 2M",
        "verify -f x -n 0",
        "demo --size 1",
        "demo -d p2pmem:ffff:00:00.0",
        "check -d p2pmem:ffff:00:00.0",
        "check -d nonsense",
        "check -d -1",
        "doctor --pid 0",
        "report -d abc",
        "report --compare empty empty",
        "replay d",
        "nonsense",
    ] {
        let done = run(directory.path(), args);
        let code = done.code.unwrap();
        // 6: of two reports one cannot be read.
        assert!(matches!(code, 1..=3 | 6), "{args}: {code}");
        assert!(!done.err.contains("panicked"), "{args}: {}", done.err);
        // clap's own errors name the way to the help, ours have hints.
        assert!(done.err.contains("hint: ") || done.err.contains("--help"), "{args}: {}", done.err);
        let _ = writeln!(text, "$ forebay {args}\n{}[{code}]\n", done.err);
    }
    // What depends on the machine.
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = if line.starts_with("hint: no GPU because") { "hint: no GPU because: …" } else { line };
        let line = if line.starts_with("hint: nodes of this machine")
            || line.starts_with("hint: this machine tells of no NUMA")
        {
            "hint: (nodes)"
        } else {
            line
        };
        // All engines; none is named here, so that a new one does not change the text.
        let line =
            if line.starts_with("hint: use one of: p2p, ") { "hint: use one of: (engines)" } else { line };
        let line = match line.split_once(".forebay-") {
            Some((head, tail)) => {
                format!("{head}.forebay-PID{}", tail.trim_start_matches(|c: char| c.is_ascii_digit()))
            }
            None => line.to_owned(),
        };
        lines.push(line);
    }
    insta::assert_snapshot!("errors", lines.join("\n"));
}

#[test]
fn environment_mistakes_are_told() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let mut command = crate::support::forebay();
    command.current_dir(directory.path()).args(["bench", "-f", "x"]).env("FOREBAY_CACHE", "lukewarm");
    finish(command).fails(2, "lukewarm");
}

/// A variable that is misspelt does nothing; that is said, with the name that was meant.
#[test]
fn unknown_variables_are_named_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = crate::support::forebay();
    command
        .current_dir(directory.path())
        .args(["stats"])
        .env("FOREBAY_STRCT", "staged")
        .env("FOREBAY_LANES", "1");
    let done = finish(command).ok();
    let wanted =
        "note: FOREBAY_STRCT is no variable of forebay and does nothing; the nearest is FOREBAY_STRICT\n";
    assert!(done.err.starts_with(wanted) && done.err.matches("FOREBAY_").count() == 2, "{}", done.err);
}

/// Each buffer would be given, and all of them end the process, or another.
#[test]
fn more_memory_than_there_is_is_not_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    for types in ["-x 0", "-x 1", "-x 6 -B 65536", "--compare 0,2"] {
        let line = format!("bench -f x -w 4096 -i 16G -s 16G {types}");
        run(directory.path(), &line).fails(1, "the buffers need more host memory than there is");
    }
    run(directory.path(), "bench -f x -w 100000").fails(2, "100000 threads");
    run(directory.path(), "bench -f x -w 4096 -f x -w 4096").fails(2, "8192 threads in 2 jobs");
}

/// `--strict` goes before the variable, which the hint names elsewhere.
#[test]
fn what_the_hint_of_strict_says_can_be_typed() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let line = "bench -f x -i 64K --strict staged";
    run(directory.path(), line).fails(1, "hint: allow it: --strict staged,host\n");
    run(directory.path(), &format!("{line},host")).ok();
}

/// It is known before the first of them is made.
#[test]
fn more_files_than_there_is_room_for_are_not_made() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("d")).unwrap();
    run(directory.path(), "bench --files d --make-files 1000000000000 -i 1M").fails(1, "there is no room");
    assert_eq!(std::fs::read_dir(directory.path().join("d")).unwrap().count(), 0);
}

/// The mode is named, not what a file of that kind looks like.
#[test]
fn files_of_others_are_told_as_such() {
    // SAFETY: no pointers are passed.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(directory.path().join("d")).unwrap();
    std::fs::create_dir(directory.path().join("locked")).unwrap();
    sample(directory.path(), "secret", 32 << 20);
    sample(&directory.path().join("locked"), "x", 4096);
    for (name, mode) in [("secret", 0o600), ("locked", 0o700)] {
        std::fs::set_permissions(directory.path().join(name), Permissions::from_mode(mode)).unwrap();
    }
    for args in [
        "bench secret",
        "doctor --log secret d",
        "doctor locked/x",
        "check locked/x",
        "trace secret",
        "replay secret",
        "report --compare secret secret",
        "report sizes secret -o r --quick",
        "report sizes d --spec secret -o r",
    ] {
        let mut command = crate::support::forebay();
        command.current_dir(directory.path()).args(args.split_whitespace()).uid(65534).gid(65534);
        let done = finish(command);
        assert!(done.err.contains("mode") && !done.err.contains("make one"), "{args}: {}", done.err);
        assert!(!done.err.contains("no such file"), "{args}: {}", done.err);
    }
}
