//! Reports over a stand-in for `forebay bench`: a script that prints made figures, and fails on demand.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_error::ErrorKind;
use forebay_report::model::{Report, Row, State, Table};
use forebay_report::{Ended, Extent, Order, Pairing, Planned, Preset, Progress, Quantity, Verdict, Watch};

/// Answers by `-x`; appends its arguments to `calls`. `fail-N` beside it makes type N fail.
const BENCH: &str = r#"#!/bin/sh
folder=$(dirname "$0")
case " $* " in *" --objects "*) echo "$@" >> "$folder/calls"
  echo '{"seconds": 0.5, "bytes": 1048576, "latencies": [80.0, 90.0], "user_s": 0.1, "system_s": 0.1, "engine": "host"}'; exit;;
esac
if [ "$1" = report ]; then echo ready; exec sleep 1000; fi
echo "$@" >> "$folder/calls"
type=$(echo "$@" | sed 's/.* -x \([0-9]\).*/\1/')
if [ -e "$folder/crash-$type" ]; then kill -SEGV $$; fi
if [ -e "$folder/fail-$type" ]; then echo "error: no <such> type" >&2; echo "hint: buy a drive & a GPU" >&2; exit 1; fi
speed=$(cat "$folder/speed" 2>/dev/null || echo 1)
echo "IoType: READ XferType: GPUD"
pass() { cat <<JSON
{"bytes": ${speed}00000000$type, "ops": 1000, "seconds": 2.0, "cpu": {"user_s": 0.5, "system_s": 0.25, "one_cpu_user_s": 0.1, "one_cpu_system_s": 0.4},
  "latency_us": {"mean": 88.5, "p99": 100.25}, "engines": [
   {"engine": "staged", "bytes": 900, "cached": 0, "direct": 900, "buffered": 0, "requested": 0, "mapped": 0, "drive": 0, "resident": 0},
   {"engine": "mapped", "bytes": 100, "cached": 0, "direct": 0, "buffered": 0, "requested": 0, "mapped": 100, "drive": 0, "resident": 0}],
  "refused": [{"engine": "p2p", "reason": "no BAR", "hint": "a drive"}], "notes": [], "state": "cold",
  "ceiling": {"gb_per_s": 2.5, "method": "raw calls"}, "jobs": []}
JSON
}
echo '{
 "passes": ['
pass
for _ in $(seq 2 "$(echo "$@" | sed -n 's/.* --repeat \([0-9]*\).*/\1/p')" 2>/dev/null); do echo ,; pass; done
echo ']}'
"#;

/// Answers as the script for libraries does, which it is given behind `-c`.
const PYTHON: &str = r#"#!/bin/sh
echo "$3 $6 $7 $KVIKIO_NTHREADS $KVIKIO_TASK_SIZE" >> "$(dirname "$0")/loads"
if [ "$3" = runai ]; then echo "it cannot be imported" >&2; exit 3; fi
echo '{"seconds": 0.5, "bytes": 1000000000, "user_s": 0.1, "system_s": 0.1, "engine": "it", "cache": "mixed"}'
"#;

struct Bed {
    folder: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("bench", BENCH), ("python", PYTHON)] {
            let program = folder.path().join(name);
            fs::write(&program, text).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(folder.path().join("data")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn order(&self, presets: &[Preset]) -> Order {
        Order {
            presets: presets.to_vec(),
            spec: None,
            devices: vec![0.into()],
            paths: vec![self.path("data")],
            out: self.path("out"),
            title: String::new(),
            note: String::new(),
            extent: Extent::Quick,
            server: None,
            hosts: Vec::new(),
            size: Some(1 << 20),
            repeat: None,
            seconds: Some(0.1),
            pairing: Pairing::Pci,
            limit: None,
            accept_changes: false,
            again: false,
            executable: vec![self.path("bench").into()],
            python: self.path("python").into(),
        }
    }

    fn calls(&self) -> usize {
        self.lines("calls") + self.lines("loads")
    }

    fn lines(&self, name: &str) -> usize {
        fs::read_to_string(self.path(name)).map_or(0, |text| text.lines().count())
    }

    fn report(&self, name: &str) -> String {
        fs::read_to_string(self.path("out").join(name)).unwrap()
    }
}

/// One test at a time: a process that another thread is just starting holds all locks of files until its program runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stops after a number of runs, and remembers what it saw.
#[derive(Default)]
struct Watcher {
    stop_at: Option<usize>,
    seen: Cell<usize>,
    rows: RefCell<Vec<String>>,
}

impl Watch for Watcher {
    fn stopped(&self) -> bool {
        self.stop_at.is_some_and(|at| self.seen.get() >= at)
    }
    fn planned(&self, planned: &Planned) {
        assert!(planned.runs >= planned.rows && planned.rows > 0 && !planned.time.is_zero());
    }
    fn making(&self, _: &Path, _: u64) {}
    fn begins(&self, progress: &Progress<'_>) {
        assert!(progress.done < progress.all);
        self.seen.set(self.seen.get() + 1);
    }
    fn row(&self, _: &Table, row: &Row) {
        self.rows.borrow_mut().push(row.id.clone());
    }
}

fn run(order: &Order) -> forebay_report::Finished {
    forebay_report::run(order, &Watcher::default()).unwrap()
}

#[test]
fn every_preset_plans_and_runs() {
    let _alone = alone();
    for (preset, name, _) in forebay_report::PRESETS {
        let bed = Bed::new();
        let finished = run(&bed.order(&[preset]));
        assert_eq!(finished.ended, Ended::Complete, "{name}");
        let report = &finished.report;
        assert_eq!((report.tables[0].id.as_str(), report.waiting(), report.failed()), (name, 0, 0));
        assert_eq!(finished.runs, bed.calls(), "{name}");
        assert!(finished.runs > 5, "{name}");
        assert_eq!(fs::read_dir(bed.path("data")).unwrap().count(), 0, "{name}");
        let html = bed.report("report.html");
        assert_eq!(html.matches("<svg").count(), report.tables[0].charts.len(), "{name}");
    }
}

#[test]
fn loads_by_libraries() {
    let _alone = alone();
    let bed = Bed::new();
    let report = run(&bed.order(&[Preset::FirstTouch])).report;
    let of = |labels: [&str; 3]| report.rows().find(|row| row.labels == labels).unwrap();
    assert_eq!(of(["read", "warm, third", "kvikio"]).runs[0].cache, "mixed", "what the script has measured");
    let reason = "it cannot be imported".to_owned();
    assert_eq!(of(["load", "warm, first", "runai"]).state, State::Absent { reason });
    let loads = fs::read_to_string(bed.path("loads")).unwrap();
    assert!(loads.contains("kvikio warm 3 8 4194304\n"), "{loads}");
    let html = bed.report("report.html");
    let line = format!(
        "KVIKIO_TASK_SIZE=4194304 python3 peers.py kvikio {} cpu warm 3\n",
        bed.path("data/forebay-report.data").display()
    );
    assert!(html.contains(&line) && html.contains("# peers.py is "), "{html}");
}

#[test]
fn published_figures_stand_where_they_belong() {
    let _alone = alone();
    let bed = Bed::new();
    fs::create_dir(bed.path("data/b")).unwrap();
    let order = Order {
        devices: vec![0.into(), 0.into()],
        paths: vec![bed.path("data"), bed.path("data/b")],
        limit: Some(Duration::ZERO),
        ..bed.order(&[Preset::Workers, Preset::Busy])
    };
    let report = run(&order).report;
    let published = |pair: usize, quantity| {
        let row = report.tables[0].rows.iter().filter(|row| row.labels[1] == "64").nth(pair * 2).unwrap();
        row.published.get(&quantity).copied()
    };
    // Theirs are of eight pairs; “less than 6 cores” is a bound.
    assert_eq!([0, 1, 2].map(|pair| published(pair, Quantity::GbPerS)), [Some(1.1), Some(1.1), Some(2.2)]);
    assert_eq!(published(2, Quantity::CpuCores), Some(1.5));
    let bounded = report.rows().filter(|row| row.at_most == [Quantity::CpuCores]);
    assert_eq!(bounded.count(), 3);
    assert!(bed.report("report.md").contains("< 1.50") || bed.report("report.md").contains("&lt; 1.50"));
    let text = bed.report("report.md");
    let ratios = "throughput: theirs up to 6.00×; latency: theirs down to 0.26×";
    assert!(text.contains(ratios), "{text}");
}

#[test]
fn the_pinned_cpu() {
    let _alone = alone();
    let bed = Bed::new();
    let report = run(&bed.order(&[Preset::NfsRdma])).report;
    let row = report.rows().find(|row| row.state == State::Done).unwrap();
    let of = |quantity| row.summary(quantity).unwrap().median;
    assert_eq!((of(Quantity::UserPercent), of(Quantity::SystemPercent)), (25.0, 12.5), "of the process");
    let folder = bed.path("data/forebay-report.files").display().to_string();
    let line = format!("mkdir -p {folder}\nforebay bench -D {folder} -s 1M -x 1 -I 1 -i 1M -w 8\n");
    let html = bed.report("report.html");
    assert!(html.contains(&line), "what makes the files again: {html}");
    assert!(html.contains(&format!("{folder} has 8 files of 1.0 MiB.")), "{html}");
    for note in ["a file of 1M for each worker (--size); QSAN", "rows run for 0.1 s (--seconds); QSAN"] {
        assert!(html.contains(note), "{html}");
    }
}

#[test]
fn markdown() {
    let _alone = alone();
    let bed = Bed::new();
    fs::write(bed.path("fail-5"), "").unwrap();
    fs::write(bed.path("crash-7"), "").unwrap();
    run(&Order { repeat: Some(2), ..bed.order(&[Preset::GdsModes]) });
    let text = bed.report("report.md");
    let table = text.split_once("\n## ").unwrap().1;
    let machine = table.find("Ours: ").unwrap()..table.find(" Our bytes").unwrap();
    insta::assert_snapshot!(table.replace(&table[machine], "Ours: …"));
}

#[test]
fn a_stopped_report_goes_on_where_it_was() {
    let _alone = alone();
    let bed = Bed::new();
    let order = bed.order(&[Preset::GdsModes, Preset::Latency]);
    let stopped = forebay_report::run(&order, &Watcher { stop_at: Some(4), ..Watcher::default() }).unwrap();
    assert_eq!(stopped.ended, Ended::Stopped);
    // The fourth run was stopped in the middle.
    let before: Vec<Row> = stopped.report.rows().filter(|row| row.state == State::Done).cloned().collect();
    assert_eq!(before.len(), 3);
    assert!(bed.path("data/forebay-report.data").exists(), "its file is needed again");
    assert!(bed.report("report.html").contains("not run yet"));
    let calls = bed.calls();
    let rest = run(&order);
    assert_eq!(rest.ended, Ended::Complete);
    assert_eq!(rest.runs, rest.report.rows().count() - 3);
    assert_eq!(bed.calls() - calls, rest.runs, "a row that was done ran again");
    for row in before {
        let now = rest.report.rows().find(|one| one.id == row.id).unwrap();
        assert_eq!(serde_json::to_string(&now.runs).unwrap(), serde_json::to_string(&row.runs).unwrap());
    }
    let again = run(&order);
    assert_eq!((again.ended, again.runs), (Ended::Complete, 0));
    assert_eq!(run(&Order { again: true, ..order }).runs, rest.report.rows().count());
}

/// The part of a file that bench takes for its own.
fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let key = forebay_bench::pattern_key(Path::new("forebay-report.data"), 0);
    forebay_gpu::fill_pattern(&mut bytes, key, 0);
    bytes
}

fn refused(order: &Order, name: &str) -> forebay_error::Error {
    let error = forebay_report::run(order, &Watcher::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(format!("{error:?}").contains(name), "{error:?}");
    assert!(!error.hints().is_empty());
    error
}

#[test]
fn a_finished_report_leaves_files_of_others() {
    let _alone = alone();
    let bed = Bed::new();
    let order = bed.order(&[Preset::GdsModes]);
    run(&order);
    // Another report's, or the user's.
    fs::write(bed.path("data/forebay-report.data"), pattern(1 << 20)).unwrap();
    let again = run(&order);
    assert_eq!((again.ended, again.runs), (Ended::Complete, 0));
    assert!(bed.path("data/forebay-report.data").exists());
}

#[test]
fn what_no_report_made_is_refused_and_left() {
    let _alone = alone();
    for name in ["forebay-report.data", "forebay-report.data.part", "forebay-report.safetensors"] {
        let make: [fn(&Path, &Path); 4] = [
            |mine, place| std::os::unix::fs::symlink(mine, place).unwrap(),
            |mine, place| fs::hard_link(mine, place).unwrap(),
            |mine, place| assert!(fs::copy(mine, place).unwrap() > 0),
            |_, place| fs::create_dir(place).unwrap(),
        ];
        for (index, make) in make.into_iter().enumerate() {
            let bed = Bed::new();
            // The right length, and the right beginning where others own it by another name.
            let mine = if index < 2 { pattern(1 << 20) } else { vec![5; 1 << 20] };
            fs::write(bed.path("mine"), &mine).unwrap();
            let place = bed.path("data").join(name);
            make(&bed.path("mine"), &place);
            let order = Order { python: "/bin/false".into(), ..bed.order(&[Preset::FirstTouch]) };
            let hints = refused(&order, name).hints().join("; ");
            let left = format!("{} is left", bed.path("data/forebay-report.data").display());
            assert_eq!(hints.contains(&left), name.ends_with("safetensors"), "{hints}");
            assert!(fs::read(bed.path("mine")).unwrap() == mine, "{name} {index}");
            assert!(place.is_dir() || fs::read(&place).unwrap() == mine, "{name} {index}");
            assert_eq!(bed.calls(), 0);
        }
    }
}

/// Reads of what a file does not hold reach no drive.
#[test]
fn a_file_with_holes_is_refused() {
    let _alone = alone();
    let bed = Bed::new();
    let mine = bed.path("mine");
    for at in [None, Some(0), Some(8 << 20)] {
        let file = fs::File::create(&mine).unwrap();
        file.set_len(16 << 20).unwrap();
        if let Some(at) = at {
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; 8 << 20], at).unwrap();
        }
        let order = Order { paths: vec![mine.clone()], ..bed.order(&[Preset::GdsModes]) };
        let error = forebay_report::run(&order, &Watcher::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let said = error.to_string();
        assert!(said.starts_with("the file has holes, or blocks that were never written (path="), "{said}");
        assert!(error.hints()[0].contains("cp --sparse=never --reflink=never "), "{error:?}");
    }
    fs::write(&mine, vec![7; 16 << 20]).unwrap();
    let order = Order { paths: vec![mine], ..bed.order(&[Preset::GdsModes]) };
    assert!(run(&order).runs > 0);
    // One of ours that has lost its data is made again.
    let own = bed.path("data/forebay-report.data");
    fs::write(&own, pattern(1 << 16)).unwrap();
    fs::File::options().write(true).open(&own).unwrap().set_len(1 << 20).unwrap();
    let order =
        Order { limit: Some(Duration::ZERO), out: bed.path("other"), ..bed.order(&[Preset::GdsModes]) };
    run(&order);
    assert!(fs::read(&own).unwrap() == pattern(1 << 20));
}

/// Workers have a file each, which a stopped report leaves and a finished one removes; what is in its place is left.
#[test]
fn files_of_workers() {
    let _alone = alone();
    let bed = Bed::new();
    let order = bed.order(&[Preset::NfsRdma]);
    let stopped = forebay_report::run(&order, &Watcher { stop_at: Some(2), ..Watcher::default() }).unwrap();
    assert_eq!((stopped.ended, stopped.left.len()), (Ended::Stopped, 8));
    let folder = bed.path("data/forebay-report.files");
    let inode = |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(folder.join(name)).unwrap());
    let before = inode("gdsio.3");
    assert!(!bed.path("data/forebay-report.data").exists(), "no row reads it");
    assert_eq!(run(&Order { limit: Some(Duration::ZERO), ..order.clone() }).ended, Ended::OutOfTime);
    assert_eq!(inode("gdsio.3"), before, "they are taken again");
    fs::write(folder.join("mine"), "mine").unwrap();
    assert_eq!(run(&order).ended, Ended::Complete);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "what a user put there is left");
    fs::write(folder.join("gdsio.2"), "mine").unwrap();
    refused(&Order { again: true, ..order.clone() }, "gdsio.2");
    assert_eq!(fs::read(folder.join("gdsio.2")).unwrap(), b"mine");
    fs::remove_dir_all(&folder).unwrap();
    fs::create_dir(bed.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(bed.path("elsewhere"), &folder).unwrap();
    refused(&Order { again: true, ..order }, "forebay-report.files");
    assert_eq!(fs::read_dir(bed.path("elsewhere")).unwrap().count(), 0);
}

#[test]
fn a_file_of_the_users_named_like_a_model_is_only_read() {
    let _alone = alone();
    let bed = Bed::new();
    let mine = bed.path("data/forebay-report.safetensors");
    let bytes = vec![7; 16 << 20];
    fs::write(&mine, &bytes).unwrap();
    let order = bed.order(&[Preset::FirstTouch]);
    run(&Order { paths: vec![mine.clone()], python: "/bin/false".into(), ..order });
    assert!(fs::read(mine).unwrap() == bytes);
}

/// I/Os of 1 MiB in a file of some KiB would be called what they are not.
#[test]
fn a_file_that_is_too_short_is_refused() {
    let _alone = alone();
    let bed = Bed::new();
    let mine = bed.path("mine");
    fs::write(&mine, vec![7; 70_001]).unwrap();
    let order = Order { paths: vec![mine], ..bed.order(&[Preset::GdsModes]) };
    let error = forebay_report::run(&order, &Watcher::default()).unwrap_err();
    assert_eq!(
        (error.kind(), error.hints()[0].as_str()),
        (ErrorKind::InvalidInput, "name a file of at least 16 MiB")
    );
    assert_eq!(bed.calls(), 0);
}

#[test]
fn a_disk_without_room_is_not_filled() {
    let _alone = alone();
    let bed = Bed::new();
    let order = Order { size: Some(1 << 60), ..bed.order(&[Preset::GdsModes]) };
    let began = std::time::Instant::now();
    let error = forebay_report::run(&order, &Watcher::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::NoSpace && error.to_string().contains("free="), "{error}");
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(fs::read_dir(bed.path("data")).unwrap().count(), 0);
}

#[test]
fn files_of_the_report_are_not_put_over_others() {
    let _alone = alone();
    for name in ["report.html", "report.md"] {
        let bed = Bed::new();
        fs::create_dir(bed.path("out")).unwrap();
        fs::write(bed.path("out").join(name), "mine").unwrap();
        for again in [false, true] {
            refused(&Order { again, ..bed.order(&[Preset::GdsModes]) }, name);
            assert_eq!(bed.report(name), "mine");
        }
    }
    let bed = Bed::new();
    fs::create_dir(bed.path("out")).unwrap();
    fs::write(bed.path("out/report.json"), "{\"passed\": true}").unwrap();
    let order = Order { again: true, ..bed.order(&[Preset::GdsModes]) };
    refused(&order, "report.json");
    assert_eq!(bed.report("report.json"), "{\"passed\": true}");
    // A link where the next one is written first.
    fs::remove_file(bed.path("out/report.json")).unwrap();
    fs::write(bed.path("mine"), "mine").unwrap();
    std::os::unix::fs::symlink(bed.path("mine"), bed.path("out/.report.json.new")).unwrap();
    run(&order);
    assert_eq!(fs::read_to_string(bed.path("mine")).unwrap(), "mine");
    assert!(!bed.path("out/report.json").is_symlink());
}

#[test]
fn a_file_has_the_size_that_its_own_report_asks_for() {
    let _alone = alone();
    let bed = Bed::new();
    // A killed report left one that is not whole, and another report one of its own size.
    fs::write(bed.path("data/forebay-report.data.part"), pattern(1 << 20)).unwrap();
    fs::write(bed.path("data/forebay-report.data"), pattern(16 << 20)).unwrap();
    let data = bed.path("data/forebay-report.data");
    let order = Order { size: None, ..bed.order(&[Preset::GdsModes]) };
    let stop = || Watcher { stop_at: Some(2), ..Watcher::default() };
    let first = forebay_report::run(&order, &stop()).unwrap();
    let size = fs::metadata(&data).unwrap().len();
    assert!(size > 16 << 20, "{size}");
    assert_eq!((first.report.files[0].size, first.left), (size, vec![data.clone()]));
    assert!(bed.report("report.md").contains("forebay-report.data has "));
    assert!(!bed.path("data/forebay-report.data.part").exists());
    // Rows have written to it since.
    fs::write(&data, vec![0; size as usize]).unwrap();
    let rest = run(&order);
    assert_eq!((rest.report.files[0].size, rest.ended, rest.left.len()), (size, Ended::Complete, 0));
    assert!(!data.exists());
}

#[test]
fn rows_whose_program_was_not_here_are_tried_again() {
    let _alone = alone();
    let bed = Bed::new();
    let order = Order { python: bed.path("python").into(), ..bed.order(&[Preset::FirstTouch]) };
    let absent =
        |report: &Report| report.rows().filter(|row| matches!(row.state, State::Absent { .. })).count();
    let first = run(&order).report;
    assert!(absent(&first) > 0);
    let load = "{\"seconds\": 1, \"bytes\": 9, \"user_s\": 0, \"system_s\": 0, \"engine\": \"x\", \"cache\": \"cold\"}";
    fs::write(bed.path("python"), format!("#!/bin/sh\necho '{load}'\n")).unwrap();
    fs::set_permissions(bed.path("python"), fs::Permissions::from_mode(0o755)).unwrap();
    let second = run(&order);
    assert_eq!((absent(&second.report), second.runs), (0, absent(&first) + first.failed()));
}

#[test]
fn a_load_that_cannot_be_started_fails_its_rows() {
    let _alone = alone();
    let bed = Bed::new();
    let text = BENCH.replace("echo ready; exec sleep 1000", "exit 1");
    fs::write(bed.path("bench"), text).unwrap();
    let order = bed.order(&[Preset::Busy]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join("stress-ng").exists()) {
        eprintln!("skipped: stress-ng makes the load here");
        return;
    }
    let report = run(&order).report;
    for row in report.rows() {
        let failed =
            matches!(&row.state, State::Failed { reason, .. } if reason.contains("the load beside it"));
        assert_eq!(failed, row.labels[1] == "busy", "{row:?}");
    }
}

#[test]
fn a_time_limit_leaves_rows_for_the_same_command() {
    let _alone = alone();
    let bed = Bed::new();
    let order = Order { limit: Some(Duration::ZERO), ..bed.order(&[Preset::GdsModes]) };
    for left in (0..10).rev() {
        let part = run(&order);
        assert_eq!((part.report.waiting(), part.runs), (left, 1));
        assert_eq!(part.ended, if left == 0 { Ended::Complete } else { Ended::OutOfTime });
    }
}

#[test]
fn a_failing_row_stands_with_its_reason_and_is_tried_again_in_the_end() {
    let _alone = alone();
    let bed = Bed::new();
    fs::write(bed.path("fail-2"), "").unwrap();
    let order = bed.order(&[Preset::GdsModes]);
    let finished = run(&order);
    assert_eq!(
        (finished.ended, finished.report.failed(), finished.report.waiting()),
        (Ended::Complete, 2, 0)
    );
    let html = bed.report("report.html");
    assert!(html.contains("failed: no &lt;such&gt; type (hint: buy a drive &amp; a GPU)"), "{html}");
    fs::remove_file(bed.path("fail-2")).unwrap();
    let calls = bed.calls();
    assert_eq!(run(&order).report.failed(), 0);
    assert_eq!(bed.calls() - calls, 2);
}

#[test]
fn another_command_or_machine_is_refused() {
    let _alone = alone();
    let bed = Bed::new();
    let order = bed.order(&[Preset::GdsModes]);
    run(&order);
    let refused = |order: &Order, word: &str| {
        let error = forebay_report::run(order, &Watcher::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(word), "{error}");
        assert!(error.hints()[0].contains("--again"), "{:?}", error.hints());
    };
    refused(&bed.order(&[Preset::Latency]), "presets");
    refused(&Order { size: Some(2 << 20), ..order.clone() }, "size");
    let state = bed.path("out/report.json");
    let mut report: Report = serde_json::from_str(&fs::read_to_string(&state).unwrap()).unwrap();
    report.machine.cpus += 1;
    fs::write(&state, serde_json::to_string(&report).unwrap()).unwrap();
    refused(&order, "cpus");
    report.machine.cpus -= 1;
    for change in [
        (|report| report.release = "0.0.1".to_owned()) as fn(&mut Report),
        |report| report.machine.paths[0].options = "proto=tcp".to_owned(),
        |report| report.machine.paths[0].drive = "another".to_owned(),
        |report| report.machine.paths[0].source = "server:/export".to_owned(),
    ] {
        let mut other = report.clone();
        change(&mut other);
        fs::write(&state, serde_json::to_string(&other).unwrap()).unwrap();
        refused(&order, if other.release == report.release { "paths" } else { "release" });
    }
    fs::write(&state, "{\"version\": 99}").unwrap();
    assert!(forebay_report::run(&order, &Watcher::default()).unwrap_err().to_string().contains("version 99"));
    fs::write(&state, "{").unwrap();
    let error = forebay_report::run(&order, &Watcher::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

/// Changes the state of a report that is there.
fn change(bed: &Bed, change: impl Fn(&mut Report)) {
    let path = bed.path("out/report.json");
    let mut report: Report = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut report);
    fs::write(&path, serde_json::to_string(&report).unwrap()).unwrap();
}

#[test]
fn a_report_goes_on_on_a_like_machine_and_says_so() {
    let _alone = alone();
    let bed = Bed::new();
    let order = Order { repeat: Some(2), ..bed.order(&[Preset::GdsModes]) };
    let watcher = Watcher { stop_at: Some(4), ..Watcher::default() };
    assert_eq!(forebay_report::run(&order, &watcher).unwrap().ended, Ended::Stopped);
    let before = bed.report("report.html");
    assert!(!before.contains("Part 1"));
    // Another start, or another machine: its memory is what it has got so far, and the file is gone.
    change(&bed, |report| {
        report.machine.boot = "another".to_owned();
        report.machine.memory /= 4;
    });
    fs::remove_file(bed.path("data/forebay-report.data")).unwrap();
    let rest = run(&order);
    assert_eq!((rest.ended, rest.report.earlier.len()), (Ended::Complete, 1));
    let places: Vec<usize> = rest.report.rows().flat_map(|row| &row.runs).map(|run| run.place).collect();
    assert_eq!(places.iter().filter(|place| **place == 0).count(), 3);
    assert_eq!(places.len(), 20);
    for name in ["report.html", "report.md"] {
        let text = bed.report(name);
        assert!(
            text.contains("was measured on this machine before a reboot, or a machine like it."),
            "{text}"
        );
        let mixed = rest.report.rows().filter(|row| row.runs[0].place != row.runs[1].place).count();
        assert_eq!((mixed, text.matches("Its runs are of parts 1 and 2.").count()), (3, 3), "{name}");
        assert!(text.contains("It is compared with a row of another part."), "{name}");
    }
    // Nothing is left: where the command runs again does not become where it was measured.
    change(&bed, |report| report.machine.boot = "a third".to_owned());
    let again = run(&order).report;
    assert_eq!((again.machine.boot.as_str(), again.earlier.len()), ("a third", 1));
}

#[test]
fn another_build_or_machine_is_accepted_by_a_flag() {
    let _alone = alone();
    let bed = Bed::new();
    let order = bed.order(&[Preset::GdsModes]);
    let watcher = Watcher { stop_at: Some(4), ..Watcher::default() };
    forebay_report::run(&order, &watcher).unwrap();
    change(&bed, |report| {
        report.build = "another".to_owned();
        // It had other threads there.
        report.tables[0].rows[0].command += " -w 3";
    });
    let error = forebay_report::run(&order, &Watcher::default()).unwrap_err();
    assert!(error.message().contains("its build was another, not "), "{error}");
    assert!(error.hints()[0].contains("--accept-changes"), "{:?}", error.hints());
    let rest = run(&Order { accept_changes: true, ..order.clone() });
    assert_eq!(
        rest.report.rows().filter(|row| row.runs[0].place == 0).count(),
        2,
        "the changed row is measured again"
    );
    assert!(
        bed.report("report.html")
            .contains("on another machine or build than the last part: its build was another")
    );
    // From here on it is this build's.
    assert_eq!(run(&order).runs, 0);
    let refused = forebay_report::run(
        &Order { accept_changes: true, ..bed.order(&[Preset::Latency]) },
        &Watcher::default(),
    );
    assert!(
        !refused.unwrap_err().hints()[0].contains("--accept-changes"),
        "another command is another report"
    );
}

#[test]
fn a_run_does_not_go_on_long_after_the_time_limit() {
    let _alone = alone();
    let bed = Bed::new();
    let text = BENCH.replace("speed=", "sleep 1000\nspeed=");
    fs::write(bed.path("bench"), text).unwrap();
    let began = std::time::Instant::now();
    let part = run(&Order { limit: Some(Duration::from_millis(100)), ..bed.order(&[Preset::GdsModes]) });
    assert_eq!((part.ended, part.runs, part.report.failed()), (Ended::OutOfTime, 0, 0));
    assert!(began.elapsed() < Duration::from_mins(1));
}

/// The same command would end there again and again.
#[test]
fn a_time_limit_that_no_file_is_made_in_is_an_error() {
    struct Slow;
    impl Watch for Slow {
        fn stopped(&self) -> bool {
            false
        }
        fn planned(&self, _: &Planned) {}
        fn making(&self, _: &Path, _: u64) {
            std::thread::sleep(Duration::from_millis(5200));
        }
        fn begins(&self, _: &Progress<'_>) {}
        fn row(&self, _: &Table, _: &Row) {}
    }
    let _alone = alone();
    let bed = Bed::new();
    let order = Order { limit: Some(Duration::from_millis(100)), ..bed.order(&[Preset::GdsModes]) };
    let error = forebay_report::run(&order, &Slow).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().starts_with("cannot make the file within the time limit (path="), "{error}");
    assert!(error.hints()[0].contains("--for 60s"), "{error:?}");
    assert_eq!(fs::read_dir(bed.path("data")).unwrap().count(), 0);
    assert!(run(&order).runs > 0, "made in time, rows are measured");
}

#[test]
fn compared_reports() {
    let _alone = alone();
    let (old, new) = (Bed::new(), Bed::new());
    run(&Order { repeat: Some(3), ..old.order(&[Preset::GdsModes]) });
    fs::write(new.path("speed"), "2").unwrap();
    fs::write(new.path("fail-3"), "").unwrap();
    run(&Order { repeat: Some(3), ..new.order(&[Preset::GdsModes]) });
    let compare = |one: &Bed, two: &Bed| {
        forebay_report::compare(&one.path("out"), &two.path("out/report.json")).unwrap()
    };
    let found = compare(&old, &new);
    // Nine rows in both: throughput and CPU per byte are better, the latency is the same.
    let counts = [Verdict::Better, Verdict::Worse, Verdict::Noise].map(|verdict| found.count(verdict));
    assert_eq!(counts, [18, 1, 9], "{}", found.text());
    let failed = "worse: gds-modes: type 3: storage → CPU → GPU, async · 4: failed: no <such> type\n";
    assert!(
        found.text().starts_with(failed) && !found.text().contains("not measured in both"),
        "{}",
        found.text()
    );
    let back = compare(&new, &old);
    assert_eq!(back.count(Verdict::Worse), 18);
    assert!(back.text().contains("note: 1 rows are not measured in both"), "{}", back.text());
    assert_eq!(compare(&old, &old).count(Verdict::Noise), 30);
    let other = Bed::new();
    let order = other.order(&[Preset::GdsModes]);
    run(&Order { size: Some(2 << 20), repeat: Some(1), seconds: Some(0.2), ..order });
    let state = other.path("out/report.json");
    let text = fs::read_to_string(&state).unwrap();
    let release = format!("\"release\": \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&release), "{text}");
    fs::write(&state, text.replace(&release, "\"release\": \"9.9.9\"")).unwrap();
    let notes = compare(&old, &other).notes.join(" ");
    for word in ["9.9.9", "length of a run", "size of the file", "number of runs"] {
        assert!(notes.contains(word), "{word}: {notes}");
    }
}

#[test]
fn several_pairs_run_alone_and_at_once() {
    let _alone = alone();
    let bed = Bed::new();
    fs::create_dir(bed.path("data/b")).unwrap();
    let order = Order {
        devices: vec![0.into(), 0.into()],
        paths: vec![bed.path("data"), bed.path("data/b")],
        ..bed.order(&[Preset::Latency])
    };
    let report = run(&order).report;
    let pairs: Vec<&str> = {
        let mut all: Vec<&str> = report.rows().map(|row| row.labels[0].as_str()).collect();
        all.dedup();
        all
    };
    assert_eq!(pairs.len(), 3, "{pairs:?}");
    assert_eq!(pairs[2], "all at once");
    let at_once = report.rows().find(|row| row.labels[0] == "all at once").unwrap();
    assert_eq!(at_once.command.matches(" -f ").count(), 2, "{}", at_once.command);
    assert!(report.notes.iter().any(|note| note.ends_with("on PCI is not known.")), "{:?}", report.notes);
}

/// A second path is the second mount of `nfs-rdma`; pairs are as many as GPUs.
#[test]
fn one_gpu_and_two_paths() {
    let _alone = alone();
    let bed = Bed::new();
    fs::create_dir(bed.path("data/b")).unwrap();
    let order = Order {
        paths: vec![bed.path("data"), bed.path("data/b")],
        extent: Extent::Full,
        limit: Some(Duration::ZERO),
        ..bed.order(&[Preset::NfsRdma, Preset::Workers, Preset::Sizes, Preset::Latency])
    };
    let report = run(&order).report;
    assert_eq!(
        report.tables[0].rows.iter().filter(|row| row.command.matches(" -D ").count() == 2).count(),
        6
    );
    for table in &report.tables[1..] {
        assert!(table.rows.iter().all(|row| row.command.matches(" -f ").count() == 1), "{}", table.id);
        assert_eq!(table.rows.len(), 20, "{}", table.id);
        assert!(
            table.notes.iter().any(|note| note.contains("/data/b has no row") && note.contains("-d 0,0 "))
        );
    }
}

#[test]
fn specs() {
    let _alone = alone();
    let bed = Bed::new();
    let spec = bed.path("mine.toml");
    let order = Order { spec: Some(spec.clone()), ..bed.order(&[]) };
    // The example of the documentation.
    let page = include_str!("../../../docs/reference/report-spec.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    fs::write(&spec, example).unwrap();
    let report = run(&order).report;
    assert_eq!(report.tables[0].id, "spec-mine");
    assert_eq!((report.rows().count(), report.failed(), report.tables[0].charts.len()), (12, 0, 2));
    assert!(report.rows().any(|row| !row.published.is_empty()));
    let mut text = String::new();
    for wrong in [
        "title = 3",
        "title = \"x\"\n[axes]\n",
        "title = \"x\"\n[axes]\nsise = [\"4K\"]",
        "title = \"x\"\n[axes]\nsize = [\"4X\"]",
        "title = \"x\"\n[axes]\nsize = []",
        "title = \"x\"\n[axes]\ntype = [0, 0]",
        "title = \"x\"\n[axes]\ntype = [8]",
        "title = \"x\"\n[axes]\nthreads = [0]",
        "title = \"x\"\n[axes]\npair = [1]",
        "title = \"x\"\ncolumns = [\"speed\"]\n[axes]\ntype = [0]",
        "title = \"x\"\nrepeat = 0\n[axes]\ntype = [0]",
        "title = \"x\"\nrepeat = 1000000000000\n[axes]\ntype = [0]",
        "title = \"x\"\nseconds = inf\n[axes]\ntype = [0]",
        "title = \"x\"\nseconds = nan\n[axes]\ntype = [0]",
        "title = \"x\"\n[axes]\nthreads = [9000000000000000000]",
        "title = \"x\"\n[axes]\ntype = [0]\n[compare]\naxis = \"type\"\nbase = 2",
        "title = \"x\"\n[axes]\ntype = [0]\n[[chart]]\nx = \"size\"\nseries = \"type\"\ny = \"gb_per_s\"",
        "title = \"x\"\nnonsense = 1\n[axes]\ntype = [0]",
        "title = \"x\"\ncolumns = [\"gb_per_s\", \"mib_per_s\"]\n[axes]\ntype = [0]",
    ] {
        fs::write(&spec, wrong).unwrap();
        let error = forebay_report::run(&order, &Watcher::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wrong}");
        assert!(!error.hints().is_empty(), "{wrong}");
        let wrong = wrong.replace('\n', "; ");
        let _ = writeln!(text, "{wrong}\n  {}\n  hint: {}", error.message(), error.hints()[0]);
    }
    insta::assert_snapshot!(text);
}
