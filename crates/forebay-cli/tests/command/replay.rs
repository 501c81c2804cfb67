//! `forebay replay`: what it prints, what it refuses, what it leaves behind.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{as_in_a_terminal, forebay, run, run_fake, sample};
use forebay_trace::{Api, MemoryCode, Record, Trace};
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A folder with `data` of 8 MiB, `out` of 4 MiB, and a trace of `calls`, whose files are 1 and 2.
fn recorded(calls: &[Record]) -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    sample(folder.path(), "data", 8 << 20);
    sample(folder.path(), "out", 4 << 20);
    let trace = Trace::create(folder.path().join("t")).unwrap();
    for (name, size) in [("data", 8 * MIB), ("out", 4 * MIB)] {
        let file = trace.file(folder.path().join(name));
        trace.record(&Record { api: Api::HandleRegister, thread: 1, file, size, ..Record::default() });
    }
    for call in calls {
        trace.record(call);
    }
    trace.finish();
    folder
}

/// A call of 1 MiB that took 2 ms; `index` is its time in steps of 20 ms.
fn call(api: Api, memory: MemoryCode, file: u32, index: u64) -> Record {
    Record {
        api,
        memory,
        gpu: (memory == MemoryCode::Device).then_some(0),
        thread: 1,
        start: index * 20_000_000,
        latency: 2_000_000,
        file,
        offset: (index % 4 * MIB) as i64,
        size: MIB,
        result: MIB as i64,
        address: 0x7000_0000_0000,
        ..Record::default()
    }
}

fn reads(memory: MemoryCode, count: u64) -> Vec<Record> {
    (0..count).map(|index| call(Api::Read, memory, 1, index)).collect()
}

/// The text without what differs from run to run: folders, figures.
fn plain(text: &str, folder: &Path) -> String {
    let text = text.replace(folder.to_str().unwrap(), "DIR");
    let mut plain = String::new();
    for line in text.lines().skip(1) {
        for word in line.split_inclusive(' ') {
            let trimmed = word.trim_end();
            let is_figure = trimmed.parse::<f64>().is_ok() && trimmed.contains('.');
            match trimmed.split_once("forebay-replay-") {
                Some((before, _)) => {
                    plain.push_str(&word.replace(trimmed, &format!("{before}forebay-replay-XXXXXX")));
                }
                None if is_figure => plain.push_str(&word.replace(trimmed, "N")),
                None => plain.push_str(word),
            }
        }
        plain.push('\n');
    }
    plain
}

#[test]
fn help() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!("help_replay", run(folder.path(), "replay --help").ok().out);
}

#[test]
fn a_replay_is_told() {
    let mut calls = reads(MemoryCode::Device, 8);
    calls.push(call(Api::Write, MemoryCode::Host, 2, 8));
    calls.push(Record { result: -5, ..call(Api::Read, MemoryCode::Device, 1, 9) });
    let folder = recorded(&calls);
    let done =
        run_fake(folder.path(), "replay t --rounds 2 --dir . --engine plain,staged --json r.json").ok();
    let shown: Vec<_> = done.out.lines().collect();
    let table = shown.iter().position(|line| line.starts_with("turn ")).unwrap();
    let (above, rows) = (plain(&shown[..=table].join("\n"), folder.path()), &shown[table + 1..table + 4]);
    let host =
        above.lines().next().unwrap().split(" on ").nth(1).unwrap().split(':').next().unwrap().to_owned();
    let pid = format!("pid {}", above.split(' ').nth(1).unwrap());
    let (system, rest) = (above.find("XXXXXX (").unwrap() + 8, above.find(")\n  made for").unwrap());
    let above = above.replace(&above[system..rest], "FILESYSTEM");
    insta::assert_snapshot!("replay", above.replace(&host, "HOST").replacen(&pid, "pid PID", 1));
    for (row, way) in rows.iter().zip(["recorded", "plain", "staged"]) {
        assert!(row.starts_with(way) && row.contains(" 9 ") && row.contains("9.0 MiB"), "{row}");
    }
    let verdict = shown.last().unwrap();
    assert!(verdict.starts_with("The direct path would not be taken here"), "{verdict}");

    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("r.json")).unwrap()).unwrap();
    let recorded = &report["recorded"]["turn"];
    for turn in report["turns"].as_array().unwrap() {
        assert_eq!(
            (&turn["calls"], &turn["read"], &turn["written"]),
            (&recorded["calls"], &recorded["read"], &recorded["written"])
        );
        let (new, old) = (turn["seconds"].as_f64().unwrap(), recorded["seconds"].as_f64().unwrap());
        assert!((new - old).abs() <= old * 0.05, "{new} s, recorded {old} s");
    }
    assert_eq!(report["left_out"]["failed"], 1);
    assert_eq!(crate::support::names(folder.path()), ["data", "out", "r.json", "t"]);
}

/// The pages of a warm file are read in place, and the last sentence is about that, in text and JSON.
#[test]
fn the_direct_path_is_judged_where_it_is_taken() {
    let folder = recorded(&reads(MemoryCode::Device, 8));
    std::thread::sleep(Duration::from_millis(1100));
    let line = "replay t --rounds 3 --fast --warm --engine plain,staged,mapped --json r.json";
    let done = run_fake(folder.path(), line).ok();
    let verdict = done.out.lines().last().unwrap();
    assert!(
        verdict.starts_with("The direct path would ") && verdict.contains(") with mapped, "),
        "{verdict}"
    );
    assert!(!verdict.contains("taken here") && verdict.ends_with(" (3 turns each)."), "{verdict}");
    let mut rows = done.out.lines().filter(|line| line.starts_with("mapped "));
    let (figures, compared) = (rows.next().unwrap(), rows.next().unwrap());
    assert!(figures.contains(" warm ") && figures.contains(" 8       0 "), "{figures}");

    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("r.json")).unwrap()).unwrap();
    assert_eq!(report["verdict"], verdict);
    let turns = report["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 3);
    for turn in turns {
        let (busy, range) = (turn["busy_seconds"].as_f64().unwrap(), &turn["busy_range"]);
        assert_eq!(range["turns"], 3);
        assert!(range["least"].as_f64().unwrap() <= busy && busy <= range["greatest"].as_f64().unwrap());
    }
    // The better of the others, not always plain calls.
    let busy = |at: usize| turns[at]["busy_seconds"].as_f64().unwrap();
    let against = &turns[2]["against"];
    assert_eq!(against["way"], if busy(0) < busy(1) { "plain" } else { "staged" });
    let word = match (against["judged"].as_str().unwrap(), report["answer"].as_str().unwrap()) {
        ("faster", "helps" | "helps_little") => "faster than",
        ("slower", "slower") => "slower than",
        ("noise", "noise") => "within the noise of",
        other => panic!("{other:?} do not agree: {}", done.out),
    };
    let told = format!("{word} {}: ", against["way"].as_str().unwrap());
    assert!(compared.contains(&told), "{compared}");
}

#[test]
fn without_a_gpu_it_says_what_cannot_be_told() {
    let folder = recorded(&reads(MemoryCode::Device, 4));
    let done = run(folder.path(), "replay t --rounds 1 --fast").ok();
    assert!(done.out.contains("memory: host memory, since no GPU is here\n"), "{}", done.out);
    let last = done.out.lines().last().unwrap();
    assert!(last.starts_with("Whether the direct path would help is unknown without a GPU"), "{last}");
    let folder = recorded(&reads(MemoryCode::Host, 4));
    let done = run(folder.path(), "replay t --rounds 1 --fast").ok();
    assert!(
        done.out.lines().last().unwrap().starts_with("The direct path would not help: it ends in GPU memory")
    );
}

#[test]
fn what_is_written_to_stays_unless_that_is_asked_for() {
    let calls: Vec<_> = (0..4).map(|index| call(Api::Write, MemoryCode::Host, 2, index)).collect();
    let folder = recorded(&calls);
    let out = folder.path().join("out");
    let before = std::fs::read(&out).unwrap();
    let done = run(folder.path(), "replay t --rounds 1 --fast").ok();
    assert!(done.out.contains("out: it is written to\n"), "{}", done.out);
    assert_eq!(std::fs::read(&out).unwrap(), before);

    let grown = [before.as_slice(), b"more"].concat();
    std::fs::write(&out, &grown).unwrap();
    let done =
        run(folder.path(), "replay t --rounds 1 --fast --in-place --yes").fails(2, "can be written in place");
    assert!(
        done.err.contains("will not be overwritten: ") && done.err.contains("not those of the recording"),
        "{}",
        done.err
    );
    assert_eq!(std::fs::read(&out).unwrap(), grown);
    std::fs::write(&out, &before).unwrap();

    let done = run(folder.path(), "replay t --rounds 1 --fast --in-place").fails(2, "would be overwritten");
    assert!(done.err.starts_with(&format!("will be overwritten: {}\n", out.display())), "{}", done.err);
    assert_eq!(std::fs::read(&out).unwrap(), before);

    let done = run(folder.path(), "replay t --rounds 1 --fast --in-place --yes").ok();
    assert!(done.err.starts_with(&format!("will be overwritten: {}\n", out.display())), "{}", done.err);
    let after = std::fs::read(&out).unwrap();
    assert!(after.len() == before.len() && after != before);
    assert_eq!(crate::support::names(folder.path()), ["data", "out", "t"]);

    std::fs::hard_link(&out, folder.path().join("r.json")).unwrap();
    for (json, file) in [("r.json", "out"), ("t", "t")] {
        let before = std::fs::read(folder.path().join(file)).unwrap();
        run(folder.path(), &format!("replay t --rounds 1 --fast --json {json}"))
            .fails(2, "would overwrite the trace or a file of it");
        assert!(std::fs::read(folder.path().join(file)).unwrap() == before, "{file}");
    }

    // The recorded name may lead to another file: that one is named too.
    std::fs::rename(&out, folder.path().join("real")).unwrap();
    std::os::unix::fs::symlink("real", &out).unwrap();
    let done = run(folder.path(), "replay t --rounds 1 --fast --in-place").fails(2, "would be overwritten");
    let real = out.canonicalize().unwrap();
    let named = format!("{}, which is {}, a file with 2 names (hard links)\n", out.display(), real.display());
    assert!(done.err.contains(&named), "{}", done.err);
}

#[test]
fn refusals() {
    let folder = recorded(&reads(MemoryCode::Host, 4));
    let trace = std::fs::read(folder.path().join("t")).unwrap();
    std::fs::write(folder.path().join("cut"), &trace[..1000]).unwrap();
    std::fs::write(folder.path().join("empty"), &trace[..4096]).unwrap();
    std::fs::write(folder.path().join("text"), "no trace at all").unwrap();
    let mut text = String::new();
    for (args, code) in [
        ("replay", 2),
        ("replay missing", 1),
        ("replay text", 1),
        ("replay cut", 1),
        ("replay empty", 1),
        ("replay t --engine mapped", 2),
        ("replay t --yes", 2),
    ] {
        let done = run(folder.path(), args);
        assert_eq!(done.code, Some(code), "{args}: {done:?}");
        let _ =
            write!(text, "$ forebay {args}\n{}\n", done.err.replace(folder.path().to_str().unwrap(), "DIR"));
    }
    insta::assert_snapshot!("replay_refusals", text);
    // A file that is gone is made, and then its folder has to be there.
    std::fs::remove_file(folder.path().join("data")).unwrap();
    run(folder.path(), "replay t --dir missing").fails(1, "cannot use the folder for made files");
    let done = run(folder.path(), "replay t --rounds 1 --fast").ok();
    assert!(done.out.contains("data: it is not there"), "{}", done.out);
}

/// A trace of a living or killed process ends anywhere.
#[test]
fn a_cut_trace_is_repeated_as_far_as_it_goes() {
    let folder = recorded(&reads(MemoryCode::Host, 4));
    let trace = std::fs::read(folder.path().join("t")).unwrap();
    let mut cut = trace[..trace.len() - 100].to_vec();
    cut[56..64].fill(0);
    std::fs::write(folder.path().join("cut"), cut).unwrap();
    let done = run(folder.path(), "replay cut --rounds 1 --fast").ok();
    assert!(done.out.contains("note: the trace was not closed"), "{}", done.out);
    let is_row = |line: &&str| line.starts_with("recorded") || line.starts_with("host");
    let rows: Vec<_> = done.out.lines().filter(is_row).take(2).collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.contains(" 2       0    2.0 MiB")), "{}", done.out);
}

#[test]
fn a_full_disk_is_known_before_anything_is_made() {
    let calls: Vec<_> = (0..4).map(|index| call(Api::Write, MemoryCode::Host, 2, index)).collect();
    let folder = recorded(&calls);
    let script = "mount -t tmpfs -o size=1m none /mnt && $FOREBAY replay t --rounds 1 --fast --dir /mnt; code=$?; ls -A /mnt; exit $code";
    let Some(done) = crate::support::in_namespace(folder.path(), script) else { return };
    assert_eq!(done.out, "");
    done.fails(1, "there is no room for the files that have to be made");
}

/// Made files go when a signal ends the replay in the middle of a long gap.
#[test]
fn an_interrupted_replay_leaves_nothing() {
    let calls = [call(Api::Write, MemoryCode::Host, 2, 0), call(Api::Write, MemoryCode::Host, 2, 3000)];
    let folder = recorded(&calls);
    let mut command = forebay();
    as_in_a_terminal(&mut command);
    command.current_dir(folder.path()).args(["replay", "t", "--dir", "."]).process_group(0);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let made =
        || crate::support::names(folder.path()).into_iter().find(|name| name.starts_with("forebay-replay-"));
    while made().is_none_or(|name| crate::support::names(&folder.path().join(name)).is_empty()) {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing was made");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: our own child, not yet reaped.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(130));
    assert!(begun.elapsed() < Duration::from_secs(40), "it ends at once");
    assert_eq!(made(), None);
}

/// Finished turns are reported, with their verdict.
#[test]
fn an_interrupted_replay_tells_what_was_done() {
    let folder = recorded(&reads(MemoryCode::Host, 4));
    let mut command = forebay();
    as_in_a_terminal(&mut command);
    command.current_dir(folder.path()).args(["replay", "t", "--rounds", "1000", "--json", "r.json"]);
    let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    // SAFETY: our own child, not yet reaped.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let done = child.wait_with_output().unwrap();
    let out = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(130), "{out}");
    assert!(out.contains("note: stopped before all turns were done"), "{out}");
    assert!(out.lines().last().unwrap().starts_with("The direct path would not help"), "{out}");
    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("r.json")).unwrap()).unwrap();
    assert_eq!((&report["is_cut"], report["turns"].as_array().unwrap().len()), (&true.into(), 2), "{out}");
}

/// What a trace may hold that no program records.
#[test]
fn damaged_records_are_counted() {
    let good = call(Api::Read, MemoryCode::Host, 1, 0);
    let calls = [
        good,
        Record { offset: -1, ..good },
        Record { size: 1 << 50, result: 1 << 50, ..good },
        Record { offset: i64::MAX, ..good },
        Record { result: 2 * MIB as i64, ..good },
        Record { file: 0, ..good },
    ];
    let folder = recorded(&calls);
    let mut trace = std::fs::OpenOptions::new().append(true).open(folder.path().join("t")).unwrap();
    trace.write_all(&[0x7F; 64]).unwrap();
    let done = run(folder.path(), "replay t --rounds 1 --fast").ok();
    assert!(done.out.contains("5 calls: not repeated, since their records are damaged"), "{}", done.out);
    assert!(done.out.contains("1 call: not repeated, since this release does not know them"), "{}", done.out);
}

/// `tests/data/kvikio.trace` is of KvikIO's C++ example (basic_io, 26.08, KVIKIO_GDS_THRESHOLD=0) on the software GPU: reads,
/// writes, a batch, a cancelled batch, streams, six threads, and a file that is not here.
#[test]
fn a_trace_of_kvikio_is_repeated() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kvikio.trace");
    for gaps in ["", " --fast"] {
        let line =
            format!("replay {trace} --rounds 1 --engine plain,forebay,staged --json r.json --dir .{gaps}");
        let done = run_fake(folder.path(), &line).ok();
        let report: Value =
            serde_json::from_slice(&std::fs::read(folder.path().join("r.json")).unwrap()).unwrap();
        let turns = report["turns"].as_array().unwrap();
        assert_eq!(turns.len(), 3, "{}", done.out);
        for turn in turns.iter().chain([&report["recorded"]["turn"]]) {
            let found = (&turn["calls"], &turn["read"], &turn["written"], &turn["errors"]);
            assert_eq!(found, (&13.into(), &24_576.into(), &16_384.into(), &0.into()), "{}", done.out);
        }
        // A cancelled call is not repeated.
        assert_eq!((&report["left_out"]["failed"], &report["changed"]["late"]), (&4.into(), &4.into()));
    }
}

/// Every field of the JSON report stands on its page.
#[test]
fn the_json_is_documented() {
    fn keys(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                found.push(name.clone());
                keys(value, found);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            _ => {}
        }
    }
    let folder = recorded(&reads(MemoryCode::Device, 2));
    run_fake(folder.path(), "replay t --rounds 1 --fast --json r.json").ok();
    let report = serde_json::from_slice(&std::fs::read(folder.path().join("r.json")).unwrap()).unwrap();
    let mut found = Vec::new();
    keys(&report, &mut found);
    let page = include_str!("../../../../docs/guides/replay.md").split("\n## JSON\n").nth(1).unwrap();
    for name in found {
        let stands = page.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name);
        assert!(stands, "{name} is not documented");
    }
}

/// A thread for each of these would not start everywhere, and the first that did not took the process with it.
#[test]
fn too_many_callers_are_refused_before_anything_is_made() {
    let at_once = |thread: u32| Record { thread, ..call(Api::Read, MemoryCode::Host, 3, 0) };
    let folder = recorded(&(1..=5000).map(at_once).collect::<Vec<_>>());
    std::fs::create_dir(folder.path().join("made")).unwrap();
    let done = run(folder.path(), "replay t --dir made").fails(1, "too many callers at once");
    assert!(done.err.contains("callers=5000, most=4096"), "{}", done.err);
    assert_eq!(crate::support::names(&folder.path().join("made")), Vec::<String>::new());
}

#[test]
fn more_files_than_may_be_open_are_refused_before_anything_is_made() {
    let of = |file: u32| call(Api::Read, MemoryCode::Host, file, u64::from(file));
    let folder = recorded(&(3..=100).map(of).collect::<Vec<_>>());
    std::fs::create_dir(folder.path().join("made")).unwrap();
    let mut command = forebay();
    command.current_dir(folder.path()).args(["replay", "t", "--dir", "made"]);
    // SAFETY: between fork and exec only this system call is made.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 200, rlim_max: 200 };
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            Ok(())
        });
    }
    let done = crate::support::finish(command).fails(1, "more files than may be open at once");
    assert!(done.err.contains("hint: raise the limit of open files: ulimit -n 422"), "{}", done.err);
    assert_eq!(crate::support::names(&folder.path().join("made")), Vec::<String>::new());
}
