//! `forebay report` with real rows: over the software GPU, interrupted, on full disks, in folders that are not to be
//! written, twice at once; and what its HTML is.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{as_in_a_terminal, finish, forebay, in_namespace, names, run, run_fake, sample};
use serde_json::Value;

/// Ten rows of a moment each.
const QUICK: &str = "report gds-modes --quick --seconds 0.05 --size 16M data -o out";

fn bed() -> tempfile::TempDir {
    let bed = tempfile::tempdir().unwrap();
    fs::create_dir(bed.path().join("data")).unwrap();
    bed
}

fn read(bed: &Path, name: &str) -> String {
    fs::read_to_string(bed.join("out").join(name)).unwrap()
}

fn state(bed: &Path) -> Value {
    serde_json::from_str(&read(bed, "report.json")).unwrap()
}

fn rows(report: &Value) -> Vec<&Value> {
    let tables = report["tables"].as_array().unwrap();
    tables.iter().flat_map(|table| table["rows"].as_array().unwrap()).collect()
}

/// Well-formed, complete, and nothing from outside.
fn check_html(html: &str, report: &Value) {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(html, options).unwrap();
    let root = page.root_element();
    assert!(root.has_tag_name(("http://www.w3.org/1999/xhtml", "html")));
    let mut ids = BTreeSet::new();
    let mut elements = BTreeMap::<&str, usize>::new();
    for node in page.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        *elements.entry(name).or_default() += 1;
        let banned = ["script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use"];
        assert!(!banned.contains(&name), "<{name}>");
        for attribute in node.attributes() {
            assert!(!attribute.name().starts_with("on"), "{attribute:?}");
            let is_link = ["href", "src", "srcset", "action", "data"].contains(&attribute.name());
            assert!(!is_link || attribute.value().starts_with('#'), "{attribute:?}");
        }
        if let Some(id) = node.attribute("id") {
            assert!(ids.insert(id.to_owned()), "twice: {id}");
        }
    }
    for node in page.descendants().filter(roxmltree::Node::is_element) {
        let named = node.attribute("aria-labelledby").map_or(vec![], |ids| ids.split(' ').collect());
        let linked = node.attribute("href").map(|href| &href[1..]);
        for id in named.into_iter().chain(linked) {
            assert!(ids.contains(id), "nothing is called {id}");
        }
    }
    assert!(!html.contains("url(") && !html.contains("@import"), "a style from outside");
    assert_eq!(html.matches("://").count(), 1, "the name space alone");
    // Each chart has a title, a description and its figures beside it.
    for name in ["svg", "title", "desc", "figcaption"] {
        let wanted = elements["figure"] + usize::from(name == "title");
        assert_eq!(elements[name], wanted, "{name}");
    }
    let text: String = root.descendants().filter_map(|node| node.text()).collect::<Vec<_>>().join("\n");
    for row in rows(report) {
        for label in row["labels"].as_array().unwrap() {
            assert!(text.contains(label.as_str().unwrap()), "no {label}");
        }
    }
    let body_rows = root
        .descendants()
        .filter(|node| node.has_tag_name("tr") || node.tag_name().name() == "tr")
        .filter(|node| node.ancestors().nth(3).is_some_and(|one| one.attribute("class") == Some("wide")))
        .filter(|node| node.ancestors().any(|one| one.tag_name().name() == "tbody"))
        .filter(|node| !node.ancestors().any(|one| one.tag_name().name() == "details"));
    assert!(body_rows.count() >= rows(report).len());
}

/// A line for each run, and as many cells as heads in each.
fn check_csv(csv: &str, report: &Value) {
    // Names here have commas, in quotes.
    let cells = |line: &str| {
        let mut quoted = false;
        line.chars()
            .filter(|c| {
                quoted ^= *c == '"';
                *c == ',' && !quoted
            })
            .count()
            + 1
    };
    let heads = cells(csv.lines().next().unwrap());
    assert!(csv.starts_with("table,row,kind,run,part,cache,moved_by,gb_per_s,") && heads > 20, "{csv}");
    assert!(csv.lines().all(|line| cells(line) == heads), "{csv}");
    let runs = rows(report).iter().map(|row| row["runs"].as_array().unwrap().len()).sum::<usize>();
    assert_eq!(csv.lines().filter(|line| line.contains(",run,")).count() - 1, runs, "{csv}");
}

/// Each way moves the same objects, and nothing of them stays.
#[test]
fn objects_beside_files() {
    let bed = bed();
    run_fake(bed.path(), "report objects --quick --seconds 0.05 --size 32M data -o out").ok();
    let report = state(bed.path());
    assert_eq!(rows(&report).len(), 3 * 3 * 3);
    let engine = |row: &Value| row["runs"][0]["engines"][0]["engine"].as_str().unwrap().to_owned();
    for row in rows(&report) {
        let reason = row["state"].to_string();
        // On tmpfs nothing is cold.
        if !reason.contains("nothing of it is cold") {
            assert_eq!(row["state"], "done", "{row:#}");
            assert!(row["runs"][0]["bytes"].as_u64().unwrap() >= 1 << 20, "{row:#}");
            assert!(
                row["runs"][0]["user_s"].as_f64().unwrap() + row["runs"][0]["system_s"].as_f64().unwrap()
                    > 0.0
            );
        }
    }
    // An object that comes by its file is moved as the file is, and by HTTP otherwise.
    let warm = |way: &str| {
        let id = format!("read, warm · 1M × 1 · {way}");
        engine(rows(&report).into_iter().find(|row| row["id"] == id.as_str()).unwrap())
    };
    assert_eq!(warm("S3, by its file (local)"), warm("POSIX"));
    assert_eq!(fs::read_dir(bed.path().join("data")).unwrap().count(), 0);
    check_html(&read(bed.path(), "report.html"), &report);
    check_csv(&read(bed.path(), "report.csv"), &report);
}

#[test]
fn a_quick_report_over_the_software_gpu() {
    let bed = bed();
    let done = run_fake(bed.path(), QUICK).ok();
    assert_eq!(done.out.lines().count(), 10, "{}", done.out);
    let report = state(bed.path());
    assert_eq!(rows(&report).len(), 10);
    for row in rows(&report) {
        assert_eq!(row["state"], "done", "{row:#}");
        let run = &row["runs"][0];
        assert!(run["bytes"].as_u64().unwrap() > 0 && run["seconds"].as_f64().unwrap() > 0.0, "{row:#}");
        assert!(!run["engines"].as_array().unwrap().is_empty(), "{row:#}");
        assert_eq!(run["cache"], "cold", "{row:#}");
    }
    assert!(!report["machine"]["devices"][0]["is_host"].as_bool().unwrap());
    check_html(&read(bed.path(), "report.html"), &report);
    assert!(read(bed.path(), "report.md").contains("| type 0: storage → GPU | 4 |"));
    check_csv(&read(bed.path(), "report.csv"), &report);
    assert_eq!(names(&bed.path().join("data")), Vec::<String>::new());
    assert_eq!(
        names(&bed.path().join("out")),
        [".report.lock", "report.csv", "report.html", "report.json", "report.md"]
    );
    let compared = run(bed.path(), "report --compare out out/report.json").ok();
    let last = "0 better, 0 worse, 0 within the noise, 30 not judged (fewer than 3 runs, and less than 2.5× apart)\n";
    assert!(compared.out.ends_with(last), "{}", compared.out);
}

#[test]
fn a_file_that_is_there_is_only_read() {
    let bed = bed();
    let file = sample(bed.path(), "data/mine", 16 << 20);
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let before = fs::read(&file).unwrap();
    let done = run(bed.path(), "report nfs-rdma --quick --seconds 0.05 data/mine -o out").ok();
    assert!(done.err.contains("6 of 18 rows, 12 not possible here, 0 failed"), "{}", done.err);
    assert_eq!(fs::read(&file).unwrap(), before);
    let report = state(bed.path());
    let absent: Vec<_> = rows(&report).into_iter().filter(|row| row["state"]["absent"].is_object()).collect();
    assert_eq!(absent.len(), 12, "six writes, and six rows that need two mounts");
    assert!(read(bed.path(), "report.html").contains("is only read"));
    check_html(&read(bed.path(), "report.html"), &report);
}

/// A program of this name before all others.
fn program(bed: &Path, name: &str, text: &str) -> String {
    let folder = bed.join("bin");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), text).unwrap();
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

fn run_with_path(bed: &Path, args: &str, path: &str) -> crate::support::Done {
    let mut command = forebay();
    command.current_dir(bed).args(args.split_whitespace()).env("PATH", path);
    finish(command)
}

#[test]
fn server_cpu() {
    let args = "report nfs-rdma --quick --seconds 0.05 --size 16M --server ssh:store data -o out";
    let measured = |report: &Value| -> Vec<Value> {
        let done = done_rows(report).into_iter();
        done.map(|row| row["runs"][0]["server_percent"].clone()).collect()
    };
    let there = bed();
    // Three looks a run: a tenth of four CPUs is busy anyway, the run adds a tick.
    let ssh = "#!/bin/sh\necho \"$@\" >> asked\nat=$(($(wc -l < asked) - 2)); [ $at -ge 0 ] || at=0; third=$((at % 3 / 2))\n\
        echo \"cpu  $((at * 100 + third)) 0 0 $((at * 900 - third)) 0 0 0 0\"; for cpu in 0 1 2 3; do echo cpu$cpu 0; done\n";
    let path = program(there.path(), "ssh", ssh);
    run_with_path(there.path(), args, &path).ok();
    let report = state(there.path());
    assert_eq!(done_rows(&report).len(), 12);
    for row in done_rows(&report) {
        let run = &row["runs"][0];
        let expected = 0.25 / run["seconds"].as_f64().unwrap();
        assert!((run["server_percent"].as_f64().unwrap() - expected).abs() < 1e-9, "{row:#}");
        assert!(run["ceiling"].is_null(), "{row:#}");
    }
    let asked = fs::read_to_string(there.path().join("asked")).unwrap();
    assert_eq!(asked.lines().count(), 37, "once before all, and three times a run");
    assert!(asked.lines().all(|line| line.ends_with("-- store cat /proc/stat")), "{asked}");

    // It is tried before the first row, and before a file is made.
    let gone = bed();
    let path = program(gone.path(), "ssh", "#!/bin/sh\necho 'no route to host' >&2\nexit 255\n");
    let done = run_with_path(gone.path(), args, &path)
        .fails(1, "cannot read the server's CPU: ssh store cat /proc/stat");
    assert!(
        done.err.contains("no route to host") && done.err.contains("has to work without a password"),
        "{}",
        done.err
    );
    assert!(done_rows(&state(gone.path())).is_empty() && !done.err.contains("making "), "{}", done.err);
    // One that is gone later costs its column.
    let lost = bed();
    let once = "#!/bin/sh\n[ -e asked ] && exit 255; touch asked; echo 'cpu 1 0 0 1 0 0 0 0'; echo cpu0 0\n";
    let path = program(lost.path(), "ssh", once);
    run_with_path(lost.path(), args, &path).ok();
    assert!(measured(&state(lost.path())).iter().all(Value::is_null));
    assert!(
        read(lost.path(), "report.md")
            .contains("server CPU is not known: ssh store cat /proc/stat: exit code 255")
    );
}

#[test]
fn load_beside_rows_is_shown_as_measured() {
    let bed = bed();
    let path = program(bed.path(), "stress-ng", "#!/bin/sh\necho \"$@\" >> stressed\nexec sleep 60\n");
    run_with_path(bed.path(), "report busy --quick --seconds 0.05 --size 16M data -o out", &path).ok();
    let stressed = fs::read_to_string(bed.path().join("stressed")).unwrap();
    assert_eq!(stressed, format!("--quiet --cpu {} --cpu-load 80\n", forebay_config::allowed_cpus()));
    let report = state(bed.path());
    for row in rows(&report) {
        let load = &row["runs"][0]["load"];
        let by = if row["labels"][1] == "busy" { "stress-ng" } else { "no load of the report" };
        assert_eq!(load["by"], by, "{row:#}");
        assert!((0.0..=100.0).contains(&load["during_percent"].as_f64().unwrap()), "{row:#}");
    }
}

#[test]
fn loads_by_what_is_installed() {
    let args = "report first-touch --quick --size 16M data -o out";
    let there = bed();
    // A Python that has one library.
    let python = "#!/bin/sh\ncase $3 in\n  forebay) echo a line; echo '{\"seconds\": 0.5, \"bytes\": 1000000000, \"user_s\": 0.1, \
        \"system_s\": 0.1, \"engine\": \"forebay\", \"cache\": \"warm\"}';;\n  *) echo \"$3 cannot be imported\" >&2; exit 3;;\nesac\n";
    let path = program(there.path(), "python3", python);
    run_with_path(there.path(), args, &path).ok();
    let report = state(there.path());
    let of = |labels: [&str; 3]| {
        let all = rows(&report);
        (*all.iter().find(|row| row["labels"] == serde_json::json!(labels)).unwrap()).clone()
    };
    assert_eq!(of(["load", "warm, first", "forebay"])["runs"][0]["bytes"], 1_000_000_000);
    assert_eq!(
        of(["load", "warm, first", "safetensors"])["state"]["absent"]["reason"],
        "safetensors cannot be imported"
    );
    assert_eq!(of(["read", "cold", "kvikio"])["state"]["absent"]["reason"], "kvikio cannot be imported");
    assert_eq!(of(["read", "warm, third", "forebay"])["runs"][0]["cache"], "warm");
    assert_eq!(names(&there.path().join("data")), Vec::<String>::new());

    let without = bed();
    run_with_path(without.path(), args, "/nowhere").ok();
    assert!(read(without.path(), "report.md").contains("not here: python3 is not installed"));
}

/// Starts a report of which some rows are done, and others are not.
fn started(bed: &Path, args: &str, wanted: usize) -> Child {
    let mut command = forebay();
    command.current_dir(bed).args(args.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    as_in_a_terminal(&mut command);
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    let done = || {
        let text = fs::read_to_string(bed.join("out/report.json")).unwrap_or_default();
        serde_json::from_str::<Value>(&text)
            .is_ok_and(|report| rows(&report).iter().filter(|row| row["state"] == "done").count() >= wanted)
    };
    while !done() {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        assert!(begun.elapsed() < Duration::from_secs(50), "no row was done");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

#[test]
fn interrupted_and_resumed() {
    let bed = bed();
    let args = "report gds-modes --quick --seconds 0.3 --size 16M data -o out";
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let before = state_or_null(bed.path());
        let wanted = done_rows(&before).len() + 2;
        let mut child = started(bed.path(), args, wanted);
        // SAFETY: no pointers are passed; the process is our child.
        unsafe { libc::kill(child.id() as i32, signal) };
        assert_eq!(child.wait().unwrap().code(), Some(code));
        let now = state(bed.path());
        assert!(rows(&now).iter().any(|row| row["state"] == "waiting"), "all was done already");
        assert!(read(bed.path(), "report.html").contains("not run yet"));
        check_html(&read(bed.path(), "report.html"), &now);
        kept(&before, &now);
    }
    // Killed: finished runs are in the report.
    let before = state(bed.path());
    let mut child = started(bed.path(), args, done_rows(&before).len() + 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = state(bed.path());
    let done = run(bed.path(), args).ok();
    let now = state(bed.path());
    assert_eq!(done.out.lines().count(), 10 - done_rows(&before).len(), "a row that was done ran again");
    kept(&before, &now);
    assert_eq!(done_rows(&now).len(), 10);
    assert_eq!(names(&bed.path().join("data")), Vec::<String>::new());
    let again = run(bed.path(), args).ok();
    assert!(again.out.is_empty() && again.err.contains("--again"), "{}", again.err);
}

fn state_or_null(bed: &Path) -> Value {
    if bed.join("out/report.json").exists() { state(bed) } else { serde_json::json!({ "tables": [] }) }
}

fn done_rows(report: &Value) -> Vec<&Value> {
    rows(report).into_iter().filter(|row| row["state"] == "done").collect()
}

/// Rows that were done are as they were.
fn kept(before: &Value, now: &Value) {
    for row in done_rows(before) {
        assert!(rows(now).contains(&row), "{row:#}");
    }
}

#[test]
fn a_time_limit_says_that_rows_are_left() {
    let bed = bed();
    let part = run(bed.path(), &format!("{QUICK} --for 0.01s"));
    assert_eq!(part.code, Some(3), "{}", part.err);
    assert!(
        part.err.contains("1 of 10 rows") && part.err.contains("the same command goes on"),
        "{}",
        part.err
    );
    let left = bed.path().canonicalize().unwrap().join("data/forebay-report.data");
    let said = format!("left for it, and can be removed: {}", left.display());
    assert!(part.err.contains(&said), "{}", part.err);
    let rest = run(bed.path(), QUICK).ok();
    assert!(!left.exists() && !rest.err.contains("can be removed"), "{}", rest.err);
}

#[test]
fn two_reports_in_one_folder() {
    let bed = bed();
    let mut child = started(bed.path(), "report gds-modes --quick --seconds 1 --size 16M data -o out", 1);
    run(bed.path(), QUICK).fails(1, "another report is being made");
    run(bed.path(), &QUICK.replace("out", "other")).fails(1, "another report measures with this file");
    run(bed.path(), &format!("{QUICK} --again").replace("-o out", "-o other"))
        .fails(1, "another report measures");
    // SAFETY: no pointers are passed; the process is our child.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    run(bed.path(), QUICK).fails(2, "of another kind: seconds: 1.0 then, 0.05 now");
    run(bed.path(), &format!("{QUICK} --again")).ok();
}

#[test]
fn a_row_that_fails_fails_the_command() {
    let bed = bed();
    // Host memory has no engine of this name.
    fs::write(
        bed.path().join("mine.toml"),
        "title = 'mine'\n[axes]\ntype = [0]\nengine = ['host', 'mapped']\n[[chart]]\nx = 'engine'\nseries = 'type'\ny = 'gb_per_s'\n",
    )
    .unwrap();
    let done = run(bed.path(), "report --spec mine.toml --quick --seconds 0.05 --size 16M data -o out");
    assert_eq!(done.code, Some(1), "{}{}", done.out, done.err);
    assert!(done.out.contains("spec-mine: 0 · mapped: failed: "), "{}", done.out);
    let report = state(bed.path());
    assert!(rows(&report)[1]["state"]["failed"]["reason"].as_str().unwrap().len() > 10);
    check_html(&read(bed.path(), "report.html"), &report);
}

#[test]
fn folders_without_the_right_to_write() {
    let bed = bed();
    // Pages that are not on the disk yet cannot be dropped.
    fs::File::open(sample(bed.path(), "data/mine", 16 << 20)).unwrap().sync_all().unwrap();
    let lock = |path: &str, mode| {
        fs::set_permissions(bed.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    let as_nobody = |args: &str| {
        let mut command = forebay();
        command.current_dir(bed.path()).args(args.split_whitespace());
        // SAFETY: the call reads the process's own id.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(65534).gid(65534);
        }
        finish(command)
    };
    lock(".", 0o777);
    // The data's folder.
    lock("data", 0o555);
    let done = as_nobody(QUICK).fails(1, "cannot create the file to measure");
    assert!(done.err.contains("a file that is there"), "{}", done.err);
    let args = "report latency --quick --seconds 0.05 data/mine -o other";
    as_nobody(args).ok();
    // The report's.
    fs::create_dir(bed.path().join("locked")).unwrap();
    lock("locked", 0o555);
    as_nobody("report latency --quick data/mine -o locked").fails(1, "the folder of the report");
    as_nobody("report latency --quick data/mine -o locked/below").fails(1, "the folder of the report");
    lock("data", 0o755);
}

/// A limit on the size of files stands for a full disk where no file system can be mounted; this one is a real one.
#[test]
fn a_full_disk() {
    let bed = bed();
    let script = "mount -t tmpfs -o size=24m none data && mkdir data/out && \
        $FOREBAY report latency --quick --seconds 0.05 --size 16M data -o data/out && \
        cp data/out/report.json before && \
        dd if=/dev/zero of=data/fill bs=64k 2>/dev/null; \
        $FOREBAY report latency --quick --seconds 0.05 --size 16M --again data -o data/out; code=$?; \
        ls -A data/out > names; cmp before data/out/report.json || echo 'the old report is broken' >&2; exit $code";
    let Some(done) = in_namespace(bed.path(), script) else { return };
    let done = done.fails(1, "No space left");
    assert!(!done.err.contains("broken"), "{}", done.err);
    let left = fs::read_to_string(bed.path().join("names")).unwrap();
    assert_eq!(left, ".report.lock\nreport.csv\nreport.html\nreport.json\nreport.md\n");
}

/// A path that is there is no misspelt preset: without presets, all of them are made. Words may come in any order.
#[test]
fn a_path_is_a_path() {
    let bed = bed();
    let of = |words: &str| {
        let _ = fs::remove_dir_all(bed.path().join("out"));
        let line = format!("report --quick --yes -d 0 --seconds 0.05 --size 16M --for 0s {words} -o out");
        assert_eq!(run(bed.path(), &line).code, Some(3), "{words}");
        let tables = state(bed.path())["tables"].as_array().unwrap().clone();
        tables.iter().map(|table| table["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of("data").len(), 10);
    assert_eq!(of("data latency"), ["latency"]);
    // A folder of a preset's name is meant where it is written as a path.
    fs::create_dir(bed.path().join("sizes")).unwrap();
    run(bed.path(), "report sizes -o out")
        .fails(2, "hint: if sizes is meant to be the path, write it as ./sizes");
    assert_eq!(of("latency ./sizes"), ["latency"]);
}

/// `all` loads the machine: who cannot be asked has to say so.
#[test]
fn all_asks_before_it_loads_the_machine() {
    let bed = bed();
    let done = run(bed.path(), "report all --quick data -o out")
        .fails(2, "loads all CPUs to 80 %, and nobody is here");
    assert!(
        done.err.contains("hint: add --yes, or name the others: gds-modes nfs-rdma sweep"),
        "{}",
        done.err
    );
    assert!(!bed.path().join("out").exists());
    run(bed.path(), "report data -o out").fails(2, "and fills memory to 80 %");
    // Who names it knows.
    let named = "report busy latency --quick --seconds 0.05 --size 16M --for 0s data -o out";
    assert_eq!(run(bed.path(), named).code, Some(3));
}

/// Two reports as files, and an exit code for each outcome.
#[test]
fn comparisons() {
    let bed = bed();
    run(bed.path(), QUICK).ok();
    let mut report = state(bed.path());
    let write = |name: &str, report: &Value| fs::write(bed.path().join(name), report.to_string()).unwrap();
    let code = |args: &str| run(bed.path(), &format!("report --compare {args}")).code;
    assert_eq!(code("out out -o compared"), Some(0), "noise");
    assert_eq!(
        names(&bed.path().join("compared")),
        [".report.lock", "compare.html", "compare.json", "compare.md"]
    );
    let found: Value =
        serde_json::from_str(&fs::read_to_string(bed.path().join("compared/compare.json")).unwrap()).unwrap();
    assert_eq!((&found["outcome"], found["changes"].as_array().unwrap().len()), (&Value::from("noise"), 30));
    let html = fs::read_to_string(bed.path().join("compared/compare.html")).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(&html, options).unwrap();
    assert_eq!(page.descendants().filter(|node| node.tag_name().name() == "tr").count(), 31);
    assert!(fs::read_to_string(bed.path().join("compared/compare.md")).unwrap().contains("| row | figure |"));
    // Its own files are replaced, those of others not.
    assert_eq!(code("out out -o compared"), Some(0));
    fs::write(bed.path().join("compared/compare.json"), "mine").unwrap();
    // 1 would be a figure that is worse.
    run(bed.path(), "report --compare out out -o compared").fails(6, "that no report wrote");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let unread =
        forebay().current_dir(bed.path()).args(["report", "--compare", "out", "out"]).stdout(full).output();
    assert_eq!(unread.unwrap().status.code(), Some(6));
    for row in report["tables"][0]["rows"].as_array_mut().unwrap() {
        row["runs"][0]["bytes"] = (row["runs"][0]["bytes"].as_u64().unwrap() * 10).into();
    }
    write("fast.json", &report);
    assert_eq!((code("out fast.json"), code("fast.json out")), (Some(4), Some(1)), "better, worse");
    report["tables"][0]["id"] = "another".into();
    write("other.json", &report);
    assert_eq!(code("out other.json"), Some(5), "nothing in common");
    assert_eq!((code("out data"), code("out data/forebay")), (Some(6), Some(6)), "unreadable");
}

/// The title, the note and who made the report.
#[test]
fn a_title_and_a_note() {
    let bed = bed();
    let mut command = forebay();
    command.current_dir(bed.path()).args(QUICK.split_whitespace()).args(["--for", "0s"]);
    command.args(["--title", "Array <7>", "--note", "For ACME & Sons"]);
    finish(command);
    // The rest of it keeps them.
    run(bed.path(), QUICK).ok();
    let html = read(bed.path(), "report.html");
    assert!(html.contains("<h1>Array &lt;7&gt;</h1>") && html.contains("For ACME &amp; Sons</p>"), "{html}");
    assert!(read(bed.path(), "report.md").starts_with("# Array &lt;7>\n\nFor ACME & Sons\n"));
    for head in ["Fastest", "CPU", "Where it loses", "What limits", "What to do"] {
        assert!(html.contains(&format!("<b>{head}</b> ")), "{head}");
    }
    check_html(&html, &state(bed.path()));
}

#[test]
fn a_file_that_has_no_room() {
    let bed = bed();
    let mut command = Command::new("sh");
    // No file may grow beyond a MiB; SIGXFSZ is ignored, so that writes fail as on a full disk.
    command.args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_forebay")]);
    command.args(QUICK.split_whitespace()).current_dir(bed.path()).env("FOREBAY_LIBCUDA", "/no/driver");
    let done = finish(command).fails(1, "cannot write the file to measure");
    assert!(done.err.contains("File too large"), "{}", done.err);
    assert_eq!(names(&bed.path().join("data")), Vec::<String>::new(), "a part of it was left");
}

#[test]
fn words_of_help_and_errors() {
    let bed = bed();
    insta::assert_snapshot!("help_report", run(bed.path(), "report -h").ok().out);
    fs::write(bed.path().join("bad.toml"), "title = 'x'\n[axes]\nsise = ['4K']\n").unwrap();
    let mut text = String::new();
    for args in [
        "report",
        "report data",
        "report gds-mode data -o out",
        "report --quick -d 0 dta -o out",
        "report gds-modes -o out",
        "report gds-modes data",
        "report gds-modes missing -o out",
        "report gds-modes data -o out -d 3",
        "report gds-modes data -o out --server host",
        "report gds-modes data -o out --for soon",
        "report gds-modes data -o out --size 1M",
        "report gds-modes data -o out --seconds 0",
        "report gds-modes data -o out --pair nearest",
        "report --spec missing.toml data -o out",
        "report --spec bad.toml data -o out",
        "report --compare data out",
        "report --compare bad.toml bad.toml",
    ] {
        let done = run(bed.path(), args);
        let _ = write!(text, "$ forebay {args}\n{}exit {}\n\n", done.err, done.code.unwrap());
    }
    let path = bed.path().canonicalize().unwrap().display().to_string();
    insta::assert_snapshot!(text.replace(&path, "…"));
}
