//! Traces as they are written: by many threads, by processes that die, on full disks.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::HashMap;
use std::io::Cursor;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use forebay_error::ErrorKind;
use forebay_trace::{
    Api, CallFlags, EngineCode, EngineKind, MemoryCode, Record, Trace, TraceReader, TraceSummary, thread_id,
};

fn records(path: &Path) -> Vec<Record> {
    TraceReader::open(path).unwrap().map(Result::unwrap).collect()
}

fn read(offset: i64, size: u64) -> Record {
    Record { api: Api::Read, offset, size, result: size as i64, ..Record::default() }
}

/// Runs one of the `child_…` tests below in a process of its own.
fn child(name: &str, path: &Path, wrap: &[&str]) -> Output {
    let this = std::env::current_exe().unwrap();
    let mut words: Vec<_> = wrap.iter().map(std::ffi::OsStr::new).collect();
    words.extend([this.as_os_str(), name.as_ref(), "--exact".as_ref(), "--nocapture".as_ref()]);
    Command::new(words[0]).args(&words[1..]).env("TRACE_UNDER_TEST", path).output().unwrap()
}

/// The path that a `child_…` test was given; those do nothing by themselves.
fn given() -> Option<std::path::PathBuf> {
    std::env::var_os("TRACE_UNDER_TEST").map(Into::into)
}

#[test]
fn everything_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let trace = Trace::create(&path).unwrap();
    let long = format!("/data/{}", "x".repeat(300));
    let (one, two) = (trace.file("/data/one"), trace.file(&long));
    assert_eq!((trace.file("/data/one"), one != two), (one, true));
    let record = Record {
        api: Api::BatchWrite,
        memory: MemoryCode::Managed,
        engine: EngineCode::One(EngineKind::Staged),
        gpu: Some(3),
        flags: CallFlags::REGISTERED,
        thread: thread_id(),
        start: trace.now(),
        latency: 5,
        file: two,
        group: 4,
        offset: 1 << 41,
        size: 77,
        result: -5,
        address: 0x7000,
    };
    trace.record(&record);
    trace.record(&read(0, 1));
    drop(trace);
    let mut reader = TraceReader::open(&path).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).collect::<Vec<_>>(), [record, read(0, 1)]);
    assert_eq!(reader.name(one).unwrap(), Path::new("/data/one"));
    assert_eq!(reader.name(two).unwrap(), Path::new(&long));
    assert_eq!(reader.name(99), None);
    assert_eq!(reader.skipped(), 0);
    let header = reader.header();
    assert_eq!((header.pid, header.lost, header.end > 0), (std::process::id(), 0, true));
    // Header, two names of 1 and 7 parts, two records.
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096 + 64 * 10);
}

#[test]
fn many_threads_lose_nothing_over_many_steps() {
    const THREADS: u64 = 8;
    const EACH: u64 = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let trace = Trace::create(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let trace = &trace;
            scope.spawn(move || {
                let file = trace.file(format!("/data/{thread}"));
                for index in 0..EACH {
                    trace.record(&Record { file, thread: thread_id(), ..read(index as i64, thread + 1) });
                }
            });
        }
    });
    drop(trace);
    let mut seen: HashMap<u32, Vec<i64>> = HashMap::new();
    for record in records(&path) {
        seen.entry(record.file).or_default().push(record.offset);
    }
    assert_eq!(seen.len() as u64, THREADS);
    for offsets in seen.values_mut() {
        assert!(offsets.is_sorted(), "one thread's records are in order");
        assert_eq!(offsets.len() as u64, EACH);
        offsets.dedup();
        assert_eq!(offsets.len() as u64, EACH, "none twice");
    }
}

#[test]
fn child_is_killed() {
    let Some(path) = given() else { return };
    let trace = Trace::create(path).unwrap();
    for index in 0..100_000 {
        trace.record(&read(index, 4096));
    }
    // SAFETY: no arguments that could be wrong.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn a_killed_process_leaves_all_it_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let done = child("child_is_killed", &path, &["env"]);
    assert_eq!(done.status.signal(), Some(libc::SIGKILL), "{done:?}");
    assert_eq!(records(&path).len(), 100_000);
    let summary = TraceSummary::of(TraceReader::open(&path).unwrap()).unwrap();
    assert!(!summary.closed);
    assert!(forebay_trace::text(&summary).contains("was not closed"));
}

#[test]
fn a_trace_can_be_read_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let trace = Trace::create(&path).unwrap();
    trace.record(&read(7, 1));
    assert_eq!(records(&path), [read(7, 1)]);
    trace.finish();
    trace.record(&read(8, 1));
    trace.finish();
    assert_eq!(records(&path), [read(7, 1)], "nothing is recorded after the end");
}

#[test]
fn child_forks() {
    let Some(path) = given() else { return };
    let trace = Trace::create(path).unwrap();
    // Far enough that the growing thread runs.
    for index in 0..50_000 {
        trace.record(&read(index, 1));
    }
    // SAFETY: the child only records, drops and leaves.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        trace.record(&read(666, 666));
        assert_eq!(trace.file("/child"), 0);
        drop(trace);
        // SAFETY: ends the child without running the test harness's exit.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    trace.record(&read(50_000, 1));
}

#[test]
fn a_forked_child_does_not_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let done = child("child_forks", &path, &["env"]);
    assert!(done.status.success(), "{done:?}");
    let found = records(&path);
    assert_eq!(found.len(), 50_001);
    assert!(found.iter().all(|record| record.size == 1));
}

#[test]
fn child_fills_the_disk() {
    let Some(path) = given() else { return };
    let notes = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&notes);
    let trace = Trace::create_noting(&path, move |note| heard.lock().unwrap().push(note.clone())).unwrap();
    let calls = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for index in 0..100_000 {
                    trace.record(&read(index, 1));
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    drop(trace);
    let notes = notes.lock().unwrap();
    assert_eq!(notes.len(), 1, "told once: {notes:?}");
    assert_eq!(notes[0].kind(), ErrorKind::NoSpace);
    assert!(notes[0].to_string().starts_with("tracing stopped: "), "{}", notes[0]);
    assert!(!notes[0].hints().is_empty());
    let reader = TraceReader::open(&path).unwrap();
    let lost = reader.header().lost;
    let kept = reader.count() as u64;
    assert_eq!(kept + lost, u64::from(calls.into_inner()));
    assert!(kept > 60_000 && lost > 60_000, "{kept} kept, {lost} lost");
}

#[test]
fn a_full_disk_stops_the_trace_and_not_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().to_str().unwrap();
    let probe = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", mount]).output();
    if !probe.as_ref().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: no user and mount namespaces here: {probe:?}");
        return;
    }
    let script = format!("mount -t tmpfs -o size=10m none {mount} && exec \"$@\"");
    let wrap = ["unshare", "-rm", "sh", "-c", &script, "sh"];
    let done = child("child_fills_the_disk", &folder.path().join("t"), &wrap);
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_limit_for_files_stops_the_trace_and_not_the_program() {
    let folder = tempfile::tempdir().unwrap();
    // In kibibytes with bash.
    let wrap = ["bash", "-c", "ulimit -f 9000 && exec \"$@\"", "bash"];
    let done = child("child_fills_the_disk", &folder.path().join("t"), &wrap);
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_disk_that_is_full_from_the_start_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = Trace::create(folder.path().join("no/such/t")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(!error.hints().is_empty());
}

#[test]
fn a_cut_trace_has_its_whole_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let trace = Trace::create(&path).unwrap();
    trace.record(&read(1, 1));
    trace.record(&read(2, 1));
    drop(trace);
    let bytes = std::fs::read(&path).unwrap();
    let cut = TraceReader::new(Cursor::new(&bytes[..bytes.len() - 1])).unwrap();
    assert_eq!(cut.map(Result::unwrap).collect::<Vec<_>>(), [read(1, 1)]);
}
