//! A running process: this one, with counters of its own.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use forebay_doctor::exercise::DriverOffer;
use forebay_doctor::finding::{Finding, Severity};
use forebay_doctor::{DoctorOptions, RealSystem, diagnose};
use forebay_stats::{Counters, Io, Moved, Reader};

const GB: u64 = 1 << 30;

/// One test: a process has its counters once.
#[test]
fn live_counters_say_which_engine_moves_the_bytes_and_why_not_a_better_one() {
    let counters = Counters::open().unwrap();
    let io = Io {
        bytes: GB,
        latency: Duration::from_millis(1),
        gpu: None,
        unaligned: false,
        posix: false,
        ok: true,
    };
    counters.read(io);
    counters.engine("staged", Moved::from_ways([0, 2 * GB, GB, 0, 0, 0, 0, 0]));
    counters.refused("mapped", "switched off", Some("unset FOREBAY_PIN_BUDGET"), 3 * GB);
    counters.refused("p2p", "no driver offers a GPU's memory", None, 3 * GB);
    counters.refused("mapped", "its pages are not in the page cache", Some("cat FILE > /dev/null"), GB);
    counters.refused("mapped", "of one small file", Some("wait"), 4096);
    counters.note("io_uring works without registered buffers", Some("ulimit -l unlimited"));
    let pid = std::process::id();
    let options = DoctorOptions {
        pid: Some(pid),
        counters: Some(Reader::attach(pid).unwrap().snapshot().unwrap()),
        ..DoctorOptions::default()
    };
    let report = diagnose(&RealSystem, &DriverOffer::default(), &options).unwrap();
    let of =
        |id: &str| -> Vec<&Finding> { report.findings.iter().filter(|finding| finding.id == id).collect() };

    let paths = of("cpu-path");
    assert_eq!(paths.len(), 3, "what concerns a few bytes is left out: {paths:#?}");
    assert_eq!(paths[0].severity, Severity::Slower);
    assert_eq!(paths[0].text, "3 GiB of 3 GiB took the CPU's path, not mapped: switched off");
    assert_eq!(paths[0].fix.as_deref(), Some("unset FOREBAY_PIN_BUDGET"));
    assert_eq!(
        paths[0].evidence[0],
        format!("counters of {pid}: staged: 2 GiB O_DIRECT, 1 GiB cold through the page cache")
    );
    assert!(paths[0].evidence[1].starts_with(&format!("/proc/{pid}/stat: ")), "{:?}", paths[0].evidence);
    assert_eq!(paths[1].severity, Severity::Note, "nothing helps: {paths:#?}");
    assert_eq!(paths[2].severity, Severity::Note, "cold files are nothing wrong: {paths:#?}");

    assert_eq!(
        of("buffered")[0].text,
        "1 GiB of 3 GiB were read cold through the page cache, not by O_DIRECT"
    );
    assert_eq!(of("engine-note")[0].fix.as_deref(), Some("ulimit -l unlimited"));
    assert_eq!(of("engines")[0].severity, Severity::Ok);
    assert_eq!(of("no-counters").len(), 0);
    assert_eq!(report.process.as_ref().unwrap().pid, pid);
}

#[test]
fn a_process_that_is_not_there_is_an_error_with_a_hint() {
    let options = DoctorOptions { pid: Some(u32::MAX - 1), ..DoctorOptions::default() };
    let error = diagnose(&RealSystem, &DriverOffer::default(), &options).unwrap_err();
    assert_eq!(error.text, "no such process: 4294967294");
    assert_eq!(error.fix.as_deref(), Some("ps -e lists them"));
}
