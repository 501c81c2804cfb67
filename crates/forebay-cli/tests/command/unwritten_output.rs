//! Output that cannot be written makes the command fail, with the reason. A reader that has gone is no failure.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{forebay, sample};
use forebay_trace::{Api, MemoryCode, Record, Trace};

const COMMANDS: [&str; 15] = [
    "--help",
    "--version",
    "trace t",
    "trace --csv t",
    "trace --json t",
    "replay t --rounds 1 --engine plain",
    "stats",
    "stats --json",
    "stats --prometheus",
    "doctor .",
    "doctor --json .",
    "check .",
    "check -v",
    "bench -f x",
    "verify -f x",
];

/// A folder with a file and a trace of one read of it.
fn bed() -> tempfile::TempDir {
    let bed = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data = sample(bed.path(), "x", 1 << 20);
    let trace = Trace::create(bed.path().join("t")).unwrap();
    let (file, size) = (trace.file(&data), 1 << 20);
    trace.record(&Record { api: Api::HandleRegister, thread: 1, file, size, ..Record::default() });
    let (api, memory) = (Api::Read, MemoryCode::Host);
    trace.record(&Record { api, memory, thread: 1, file, size, result: 1 << 20, ..Record::default() });
    trace.finish();
    bed
}

/// The command with its output there; another process that has counters makes `stats` print something.
fn command(bed: &Path, line: &str, out: Stdio) -> Command {
    let mut command = forebay();
    command.current_dir(bed).args(line.split_whitespace()).stdout(out).stderr(Stdio::piped());
    command
}

/// To monitoring, 1 of doctor is a warning.
fn failure_of(line: &str) -> i32 {
    if line.starts_with("doctor") { 3 } else { 1 }
}

#[test]
fn a_full_disk_is_a_failure() {
    let bed = bed();
    for line in COMMANDS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let done = command(bed.path(), line, full.into()).output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        if line == "stats" && err.contains("no process of this user has counters") {
            continue;
        }
        assert_eq!(done.status.code(), Some(failure_of(line)), "{line}: {err}");
        assert!(err.contains("error: cannot write the output: No space left on device"), "{line}: {err}");
        assert!(err.contains("hint: "), "{line}: {err}");
    }
}

/// Rust opens /dev/null in its place, which takes everything.
#[test]
fn a_closed_standard_output_is_a_failure() {
    let bed = bed();
    for line in ["--version", "trace t", "doctor .", "check -v", "bench -f x"] {
        let mut shell = crate::support::clean(Command::new("sh"));
        shell.current_dir(bed.path()).args(["-c", "exec \"$@\" >&-", "sh"]);
        shell.arg(env!("CARGO_BIN_EXE_forebay")).args(line.split_whitespace());
        let done = shell.output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(failure_of(line)), "{line}: {err}");
        assert!(err.contains("error: cannot write the output: Bad file descriptor"), "{line}: {err}");
        assert!(err.contains("hint: standard output is closed"), "{line}: {err}");
    }
    // A discarded stream (/dev/null) is no failure.
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
    assert!(command(bed.path(), "--version", null.into()).status().unwrap().success());
}

#[test]
fn a_reader_that_has_gone_is_none() {
    let bed = bed();
    for line in ["--help", "trace t", "trace --csv t", "stats --json"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = command(bed.path(), line, writer.into()).output().unwrap();
        assert_eq!((done.status.code(), done.stderr.len()), (Some(0), 0), "{line}: {done:?}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let bed = bed();
    let null = || Stdio::from(File::options().write(true).open("/dev/null").unwrap());
    for line in ["bench -f x --json /dev/full", "replay t --rounds 1 --engine plain --json /dev/full"] {
        let done = command(bed.path(), line, null()).output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(failure_of(line)), "{line}: {err}");
        assert!(err.contains("No space left on device (path=/dev/full)"), "{line}: {err}");
        assert!(err.contains("hint: "), "{line}: {err}");
    }
}
