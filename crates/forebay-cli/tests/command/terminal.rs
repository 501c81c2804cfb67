//! What is at the terminal: the live line of `bench`, its interrupts and its flags about time; `top`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{finish, forebay, names, run, sample};
use forebay_stats::Reader;
use serde_json::Value;

/// A terminal of 120 columns: what a user sees and types, and what a program is given.
fn terminal() -> (File, File) {
    let (mut user, mut program) = (-1, -1);
    let size = libc::winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the two numbers are written, the size is read, and the other pointers may be null.
    let opened = unsafe {
        libc::openpty(
            &raw mut user,
            &raw mut program,
            std::ptr::null_mut(),
            std::ptr::null(),
            &raw const size,
        )
    };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were just opened, and nobody else has them.
    unsafe { (File::from(OwnedFd::from_raw_fd(user)), File::from(OwnedFd::from_raw_fd(program))) }
}

/// What comes to the terminal until its programs have ended.
fn seen(mut user: File) -> String {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    // Without a program that has it open, reading fails.
    while let Ok(count @ 1..) = user.read(&mut part) {
        text.extend_from_slice(&part[..count]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A bench of half a minute that may be interrupted, and counts.
fn bench(directory: &Path, args: &str) -> Command {
    let mut command = forebay();
    command.current_dir(directory).args(["bench", "-f", "x", "-i", "4K", "-T", "30"]);
    command.args(args.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
    crate::support::as_in_a_terminal(&mut command);
    command
}

/// Waits until the process has moved bytes.
fn until_it_moves(child: &Child) {
    let begun = Instant::now();
    let bytes = || Some(Reader::attach(child.id()).ok()?.snapshot().ok()?.engine_bytes());
    while bytes().unwrap_or(0) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the run does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: a child of ours that was not waited for yet.
    unsafe { libc::kill(child.id() as i32, signal) };
}

#[test]
fn an_interrupted_run_prints_what_it_has_measured() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    for (number, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        // Of three passes the first is cut, and the others are not begun.
        let child = bench(directory.path(), "-I 2 --repeat 3 --ceiling --json report.json").spawn().unwrap();
        until_it_moves(&child);
        signal(&child, number);
        let done = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert_eq!(done.status.code(), Some(code), "{out}{err}");
        assert!(out.starts_with("IoType: RANDREAD") && out.lines().count() == 1, "{out}{err}");
        assert!(err.contains("error: interrupted: the figures are of the time until then"), "{err}");
        let report: Value = read_json(&directory.path().join("report.json"));
        assert_eq!(
            (&report["interrupted"], &report["passes"][0]["interrupted"]),
            (&true.into(), &true.into())
        );
        let pass = &report["passes"][0];
        assert!(
            report["passes"].as_array().unwrap().len() == 1 && pass["ops"].as_u64().unwrap() > 0,
            "{pass}"
        );
        assert!(pass["seconds"].as_f64().unwrap() < 20.0, "{pass}");
    }
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_run_that_is_interrupted_before_it_measures_keeps_the_old_report() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("old.json"), "old").unwrap();
    for report in ["old.json", "new.json"] {
        // It waits for a file that is too fresh to be pinned.
        std::fs::write(directory.path().join("x"), vec![7; 1 << 20]).unwrap();
        let mut command = bench(directory.path(), &format!("-I 2 --trim --json {report}"));
        command.env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap());
        let child = command.spawn().unwrap();
        let file = directory.path().join("x").canonicalize().unwrap();
        let has_opened = || {
            let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
            open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|path| path == file)
        };
        let begun = Instant::now();
        while !has_opened() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the run does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        signal(&child, libc::SIGINT);
        let done = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(err.contains("error: interrupted: "), "{err}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{err}");
    }
    assert_eq!(names(directory.path()), ["old.json", "x"]);
    assert_eq!(std::fs::read_to_string(directory.path().join("old.json")).unwrap(), "old");
}

#[test]
fn a_terminal_has_a_live_line() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let (user, program) = terminal();
    let mut command = forebay();
    command.current_dir(directory.path()).args("bench -f x -I 2 -i 4K -T 2 --ramp 2".split_whitespace());
    command.stdout(Stdio::null()).stderr(program);
    let mut child = command.spawn().unwrap();
    drop(command);
    let text = seen(user);
    assert!(child.wait().unwrap().success(), "{text}");
    for part in [" GB/s  ", " IOPS  p99 ", " s left", "ramp ", "bench"] {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
    // It is gone at the end: the report's lines begin on a clean one.
    assert!(
        text.contains("\n  latency us  mean ") && text.contains("  ramp        2 s before it, not counted"),
        "{text:?}"
    );
}

#[test]
fn json_on_standard_output_is_alone_there() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let done = run(directory.path(), "bench -f x -i 64K --json -").ok();
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&report["passes"][0]["bytes"], &report["interrupted"]), (&(1 << 20).into(), &false.into()));
    assert!(done.err.contains("IoType: READ XferType: GPUD "), "{}", done.err);
    assert_eq!(names(directory.path()), ["x"]);
    let mut full = forebay();
    full.current_dir(directory.path()).args("bench -f x -i 64K --json -".split_whitespace());
    let mut child = full
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

/// The first pass of a run.
fn pass(directory: &Path, args: &str) -> Value {
    let done = run(directory, &format!("bench {args} --json -")).ok();
    let report: Value = serde_json::from_str(&done.out).unwrap();
    report["passes"][0].clone()
}

#[test]
fn a_rate_is_kept_by_all_threads_together() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 4 << 20);
    // By blocking calls, batches and a pipeline; raw and by the engine.
    for args in ["-x 0 -w 4", "-x 6 -w 4 -B 4", "-x 3 -w 2", "-x 2 --bare"] {
        let one = pass(directory.path(), &format!("-f x -I 2 -i 4K -T 1 --rate 500iops {args}"));
        let iops = one["iops"].as_f64().unwrap();
        // A busy machine is slower; it may make up for 100 ms and a batch.
        assert!((50.0..=580.0).contains(&iops), "{args}: {one}");
        assert_eq!(one["rate_limit"]["iops"], 500);
        // The wait is no latency.
        assert!(one["latency_us"]["p50"].as_f64().unwrap() < 7000.0, "{args}: {one}");
    }
    // Three in a second: the wait after the last belongs to the run.
    let one = pass(directory.path(), "-f x -I 2 -i 4K -T 1 --rate 3iops");
    assert!((0.9..=4.1).contains(&one["iops"].as_f64().unwrap()), "{one}");
    let one = pass(directory.path(), "-f x -i 64K -T 1 --rate 8M");
    let rate = one["bytes"].as_f64().unwrap() / f64::from(1 << 20);
    assert!((1.0..=9.5).contains(&rate), "{one}");
    // Writes at a rate are all there to be checked, whenever the time is over.
    run(directory.path(), "bench -f w -s 1M -I 3 -i 4K -w 3 -T 1 --rate 200iops -V").ok();
}

#[test]
fn a_ramp_is_not_counted() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let began = Instant::now();
    let one = pass(directory.path(), "-f x -I 2 -i 64K -T 1 --ramp 1.5 --rate 200iops");
    assert!(began.elapsed() > Duration::from_millis(2400));
    let (ops, bytes) = (one["ops"].as_u64().unwrap(), one["bytes"].as_u64().unwrap());
    assert!((20..=230).contains(&ops) && bytes == ops << 16, "{one}");
    assert!((0.5..1.5).contains(&one["seconds"].as_f64().unwrap()) && one["ramp_s"] == 1.5, "{one}");
    // Engines, buckets and jobs have the same counts.
    let engines = one["engines"].as_array().unwrap().iter().map(|one| one["bytes"].as_u64().unwrap());
    let buckets =
        one["over_time"]["buckets"].as_array().unwrap().iter().map(|one| one["bytes"].as_u64().unwrap());
    assert_eq!((engines.sum(), buckets.sum(), one["jobs"][0]["bytes"].as_u64()), (bytes, bytes, Some(bytes)));
}

#[test]
fn a_steady_run_ends_and_an_unsteady_one_has_a_bound() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let one = pass(directory.path(), "-f x -I 2 -i 4K -T 40 --rate 300iops --until-steady=50");
    let (seconds, steady) = (one["seconds"].as_f64().unwrap(), &one["steady"]);
    assert!((4.5..35.0).contains(&seconds) && steady["is_steady"] == true, "{one}");
    assert!((100.0..400.0).contains(&steady["iops"].as_f64().unwrap()), "{steady}");
    // No machine is as steady as this.
    let one = pass(directory.path(), "-f x -I 2 -i 4K -T 6.5 --until-steady=0.1");
    assert!(one["steady"]["is_steady"] == false && one["seconds"].as_f64().unwrap() > 6.0, "{one}");
    run(directory.path(), "bench -f x --until-steady=0").fails(2, "--until-steady");
    run(directory.path(), "bench -f x --ramp 1").fails(2, "--ramp");
}

#[test]
fn unlink_removes_what_the_run_has_made_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "kept", 1 << 20);
    std::fs::create_dir(directory.path().join("d")).unwrap();
    run(directory.path(), "bench -f new -f kept -I 1 -s 1M -i 64K -V --unlink --overwrite").ok();
    run(directory.path(), "bench -D d -I 1 -w 3 -s 1M -i 64K --unlink").ok();
    // Of a link, only the file that it leads to is the run's.
    std::os::unix::fs::symlink("d/target", directory.path().join("link")).unwrap();
    run(directory.path(), "bench -f link -I 1 -s 1M -i 64K --unlink").ok();
    assert!(directory.path().join("link").is_symlink());
    std::fs::remove_file(directory.path().join("link")).unwrap();
    run(directory.path(), "bench --files made/below --make-files 20 -i 4K --unlink").ok();
    assert_eq!(names(directory.path()), ["d", "kept"]);
    assert!(names(&directory.path().join("d")).is_empty());
    // Neither does a run that fails leave any.
    run(directory.path(), "bench -f new -f missing/new -I 1 -s 1M --unlink").fails(1, "missing/new");
    // Nor one that is interrupted.
    let child = bench(directory.path(), "-I 3 -s 1M --unlink").spawn().unwrap();
    until_it_moves(&child);
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(names(directory.path()), ["d", "kept"]);
    // Nor one that is interrupted while it makes them.
    let mut command = forebay();
    command.current_dir(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
    command.args("bench --files made --make-files 100000 -i 4K --unlink".split_whitespace());
    crate::support::as_in_a_terminal(&mut command);
    let (mut child, begun) = (command.spawn().unwrap(), Instant::now());
    while !directory.path().join("made/00/00000000").exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it makes no files");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(directory.path()), ["d", "kept"]);
    run(directory.path(), "bench -f kept --unlink").fails(2, "--unlink");
}

#[test]
fn top_once_shows_a_running_bench() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let mut child =
        bench(directory.path(), "-I 2").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until_it_moves(&child);
    let json = run(directory.path(), "top --json").ok().out;
    let text = run(directory.path(), "top").ok().out;
    child.kill().unwrap();
    child.wait().unwrap();
    let rows: Value = serde_json::from_str(&json).unwrap();
    let row = rows.as_array().unwrap().iter().find(|row| row["pid"] == child.id()).unwrap();
    assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["host"] == true, "{row}");
    assert_eq!((&row["engines"][0]["name"], &row["engines"][0]["percent"]), (&"host".into(), &100.0.into()));
    assert!(text.starts_with("    PID "), "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with(&format!("{} ", child.id()))), "{text}");
    let done = run(directory.path(), "top --interval 0");
    assert!(done.code == Some(2) && done.err.contains("use 0.05 to 86400 seconds"), "{done:?}");
}

#[test]
fn top_is_redrawn_sorts_by_keys_and_leaves_the_terminal_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let settings = |file: &File| {
        // SAFETY: all-zero bytes are valid settings, and the call writes only these.
        unsafe {
            let mut found: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(std::os::fd::AsRawFd::as_raw_fd(file), &raw mut found), 0);
            (found.c_lflag, found.c_cc)
        }
    };
    for (keys, code) in [("iq", Some(0)), ("\x03", Some(130))] {
        let (mut user, program) = terminal();
        let before = settings(&user);
        let mut command = forebay();
        command.current_dir(directory.path()).args(["top", "--interval", "0.1"]);
        let give = || Stdio::from(program.try_clone().unwrap());
        command.stdin(give()).stdout(give()).stderr(give());
        crate::support::in_terminal_of_stdin(&mut command);
        let mut child = command.spawn().unwrap();
        drop(command);
        let begun = Instant::now();
        while settings(&user) == before {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (mut text, mut part) = (String::new(), [0; 4096]);
        while text.matches("\x1b[H").count() < 3 {
            let mut ask =
                libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&user), events: libc::POLLIN, revents: 0 };
            // SAFETY: one local struct is read and written.
            assert_eq!(unsafe { libc::poll(&raw mut ask, 1, 20_000) }, 1, "it is not redrawn: {text:?}");
            let count = user.read(&mut part).unwrap();
            text.push_str(&String::from_utf8_lossy(&part[..count]));
        }
        user.write_all(keys.as_bytes()).unwrap();
        assert_eq!(child.wait().unwrap().code(), code, "{keys:?}");
        assert!(settings(&user) == before, "{keys:?}: the terminal is not as it was");
        drop(program);
        text += &seen(user);
        assert!(text.contains("forebay top: ") && text.contains("b bytes*,"), "{text:?}");
        assert!(keys != "iq" || text.contains("i IOPS*,"), "{text:?}");
        assert!(text.trim_end().ends_with("\x1b[?1049l"), "{text:?}");
    }
    // Without a terminal it prints once.
    let mut command = forebay();
    command.args(["top", "--interval", "0.1"]);
    assert!(!finish(command).ok().out.contains('\x1b'));
}
