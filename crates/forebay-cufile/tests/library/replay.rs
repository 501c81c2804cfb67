//! Programs in C on the library, their traces run again: the same calls and bytes, the same gaps, and no byte of their
//! files changed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use forebay_config::Config;
use forebay_replay::{ELECTED, PLAIN, Replay, ReplayPlan, ReplayReport, Silent, run};

use crate::common::{MANIFEST, cc, clean, library_folder, scratch, text_of, wait};

/// Runs `tests/c/NAME.c` with a trace; the trace.
fn record(name: &str, folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let mut command = cc();
    command.arg("-std=gnu11").arg(format!("{MANIFEST}/tests/c/{name}.c")).arg("-o").arg(&program);
    command.arg("-L").arg(library_folder()).args(["-lcufile", "-lpthread", "-ldl"]);
    let built = command.output().unwrap();
    assert!(built.status.success(), "{}", text_of(&built));
    let trace = folder.join("calls.trace");
    let mut command = clean(&program);
    command.arg(folder).current_dir(folder).env("FOREBAY_TRACE", &trace);
    command.env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = wait(child, Duration::from_mins(2));
    assert!(output.status.success(), "{name}: {}\n{}", output.status, text_of(&output));
    trace
}

/// How tests replay: pages are pinned soon after a change, and how fast the software GPU registers them tells nothing.
fn replay(folder: &Path) -> Replay {
    fake_cuda::install().unwrap();
    let config = Config { pin_settle: Duration::from_millis(20), pin_pace: 0, ..Config::default() };
    Replay { folder: folder.to_owned(), rounds: Some(1), config, ..Replay::default() }
}

/// Every turn made the recorded calls.
fn same(report: &ReplayReport, ways: &[&str]) {
    let found: Vec<_> = report.turns.iter().map(|turn| turn.way.as_str()).collect();
    assert_eq!(found, ways, "{:?}", report.not_here);
    let recorded = &report.recorded.turn;
    for turn in &report.turns {
        assert_eq!((turn.errors, &turn.first_error), (0, &None), "{}", turn.way);
        let found = (turn.calls, turn.read, turn.written);
        assert_eq!(found, (recorded.calls, recorded.read, recorded.written), "{}", turn.way);
        let named: u64 = turn.engines.iter().map(|one| one.bytes).sum();
        assert_eq!(named, if turn.way == PLAIN { 0 } else { turn.bytes }, "{}: {:?}", turn.way, turn.engines);
    }
}

#[test]
fn a_program_with_gaps_is_run_again_in_its_own_time() {
    let folder = scratch();
    let trace = record("paced", folder.path());
    let before = std::fs::read(folder.path().join("out")).unwrap();
    let plan = ReplayPlan::load(&trace).unwrap();
    let wanted = [PLAIN, ELECTED, "staged"];
    let replay = Replay { ways: wanted.map(str::to_owned).to_vec(), ..replay(folder.path()) };
    let report = run(&plan, &replay, &Silent).unwrap();
    same(&report, &wanted);
    let recorded = report.recorded.turn.seconds;
    assert!(recorded > 1.0, "{recorded}");
    for turn in &report.turns {
        let off = (turn.seconds - recorded).abs() / recorded;
        assert!(off <= 0.05, "{}: {:.3} s, recorded {recorded:.3} s", turn.way, turn.seconds);
    }
    // 48 reads and one that finds the end, 24 writes, 24 batches of 8, 24 on a stream.
    let turn = report.turn("staged").unwrap();
    assert_eq!(
        (turn.calls, turn.read, turn.written),
        (49 + 24 + 192 + 24, (48 + 192 + 24) * 65_536 + 100, 24 * 131_055)
    );
    assert_eq!(report.recorded.callers, 4);
    let made: Vec<_> = report
        .files
        .iter()
        .filter_map(|file| Some((Path::new(&file.path).file_name()?, file.made.as_ref()?)))
        .collect();
    assert_eq!(made.len(), 1, "{:?}", report.files);
    // Its own writes made it longer than it was when the recording began: it could not be overwritten either.
    let why = format!("it is written to, and it has {} bytes, not those of the recording", before.len());
    assert_eq!((made[0].0.to_str(), made[0].1.as_str()), (Some("out"), why.as_str()));
    assert_eq!(std::fs::read(folder.path().join("out")).unwrap(), before);

    // Without the gaps the calls take a small part of that.
    let report = run(&plan, &Replay { is_fast: true, ..replay }, &Silent).unwrap();
    same(&report, &wanted);
    assert!(report.turns.iter().all(|turn| turn.seconds < recorded / 2.0), "{report:?}");
}

#[test]
fn every_kind_of_call_is_repeated() {
    for name in ["read_write", "vectors", "batch", "stream", "threads"] {
        let folder = scratch();
        let trace = record(name, folder.path());
        let plan = ReplayPlan::load(&trace).unwrap();
        let wanted = [PLAIN, ELECTED, "staged"];
        let ways = wanted.map(str::to_owned).to_vec();
        let replay = Replay { ways, is_fast: true, ..replay(folder.path()) };
        let report = run(&plan, &replay, &Silent).unwrap_or_else(|error| panic!("{name}: {error}"));
        same(&report, &wanted);
        assert!(report.recorded.turn.calls > 4 && report.left_out.damaged == 0, "{name}: {report:?}");
    }
}
