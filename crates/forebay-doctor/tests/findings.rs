//! Each finding over a made tree: a healthy machine has none, and one thing planted gives that finding alone, with
//! where it was read and what to type.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cases;
mod fixes;
mod server_copies;
mod trees;

use std::collections::BTreeSet;

use cases::{HEALTHY, all_cases, beside, contained, healthy_objects, pid, running};
use forebay_doctor::exercise::DriverOffer;
use forebay_doctor::finding::Severity;
use forebay_doctor::{DoctorOptions, DoctorReport, RootedSystem, diagnose, gpu};
use trees::{Tree, healthy};

fn look(tree: &Tree, options: &DoctorOptions) -> DoctorReport {
    look_with(tree, options, |_| {})
}

fn look_with(tree: &Tree, options: &DoctorOptions, change: impl FnOnce(&mut DriverOffer)) -> DoctorReport {
    // Thousands of small files: in memory where that is possible.
    let memory = std::path::Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let dir = tempfile::tempdir_in(place).unwrap();
    tree.write(dir.path());
    let system = RootedSystem::new(dir.path());
    let mut offered = gpu::by_files(&system);
    change(&mut offered);
    diagnose(&system, &offered, options).unwrap_or_else(|why| panic!("{why:?}"))
}

fn bad(report: &DoctorReport) -> Vec<&'static str> {
    let bad = report.findings.iter().filter(|finding| finding.severity > Severity::Ok);
    bad.map(|finding| finding.id).collect()
}

#[test]
fn a_healthy_machine_has_no_finding() {
    for paths in [vec![], vec!["/nfs".to_owned(), "/data".to_owned()]] {
        let report = look(&healthy(), &DoctorOptions { paths, ..DoctorOptions::default() });
        assert_eq!((bad(&report), report.exit_code), (vec![], 0), "{:#?}", report.findings);
    }
    let report =
        look(&contained(&mut healthy()).clone(), &DoctorOptions { pod: true, ..DoctorOptions::default() });
    assert_eq!((bad(&report), report.exit_code), (vec!["container"], 0), "{:#?}", report.findings);
    let report = look(running(&mut healthy(), "python train.py"), &pid());
    assert_eq!((bad(&report), report.exit_code), (vec!["no-counters"], 0), "{:#?}", report.findings);
}

#[test]
fn what_is_well_is_no_alarm() {
    let mut failures = Vec::new();
    for (what, plant, notes) in HEALTHY {
        let mut tree = healthy();
        let options = plant(&mut tree);
        let report = look(&tree, &options);
        if (bad(&report).as_slice(), report.exit_code) != (*notes, 0) {
            failures.push(format!("{what}: {:#?}", report.findings));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn objects_that_come_as_well_as_they_can_are_no_alarm() {
    for (what, plant) in healthy_objects() {
        let mut tree = healthy();
        let options = plant(&mut tree);
        let report = look(&tree, &options);
        assert_eq!((bad(&report), report.exit_code), (vec![], 0), "{what}: {:#?}", report.findings);
    }
}

#[test]
fn an_object_beside_the_machine_has_no_finding_twice() {
    let mut tree = healthy();
    tree.file("/sys/class/net/ens1/mtu", "1500\n");
    let (_, plant) = healthy_objects()[0];
    let options = DoctorOptions { paths: vec!["/nfs".to_owned()], ..plant(&mut tree) };
    assert_eq!(bad(&look(&tree, &options)), ["mtu"]);
}

#[test]
fn a_second_library_is_no_alarm_where_cuda_starts() {
    let mut tree = healthy();
    tree.moved("/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/old");
    tree.file("/usr/lib/x86_64-linux-gnu/libcuda.so.590.44.01", "");
    tree.file("/usr/lib/x86_64-linux-gnu/libcufile.so.0", "");
    let ids = |report: DoctorReport| bad(&report);
    assert_eq!(ids(look(&tree, &DoctorOptions::default())), ["driver-mismatch"]);
    let starts = |offered: &mut DriverOffer| offered.gpus[0].driver_api = 13000;
    assert_eq!(ids(look_with(&tree, &DoctorOptions::default(), starts)), [""; 0]);
}

#[test]
fn each_finding_is_found_alone_with_its_evidence_and_its_fix() {
    let mut failures = Vec::new();
    for case in all_cases() {
        let mut tree = healthy();
        let options = (case.plant)(&mut tree);
        let report = look(&tree, &options);
        let name = format!("{} ({})", case.id, case.what);
        let wanted: BTreeSet<&str> = beside(case).iter().copied().chain([case.id]).collect();
        let got: BTreeSet<&str> = bad(&report).into_iter().collect();
        if got != wanted {
            failures.push(format!("{name}: found {got:?}"));
            continue;
        }
        let found: Vec<_> = report
            .findings
            .iter()
            .filter(|finding| finding.id == case.id && finding.severity > Severity::Ok)
            .collect();
        if !found.iter().any(|finding| finding.severity == case.severity) {
            failures.push(format!(
                "{name}: severities {:?}",
                found.iter().map(|f| f.severity).collect::<Vec<_>>()
            ));
        }
        if !found.iter().any(|finding| {
            finding.evidence.iter().any(|seen| seen.contains(case.seen)) || case.seen.is_empty()
        }) {
            failures.push(format!("{name}: evidence {:?}", found[0].evidence));
        }
        if !found.iter().any(|finding| finding.fix.as_deref().unwrap_or_default().contains(case.fix)) {
            failures.push(format!("{name}: fix {:?}", found[0].fix));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The table of docs/reference/doctor.md: ids of a row, its columns.
fn documented() -> Vec<(Vec<String>, String, String)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/doctor.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 6);
    rows.map(|row| {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let ids = columns[1].split(", ").map(|id| id.trim_matches('`').to_owned()).collect();
        (ids, columns[4].to_owned(), columns[5].to_owned())
    })
    .collect()
}

#[test]
fn the_page_has_every_finding_with_the_tests_that_there_are() {
    let rows = documented();
    let of_page: BTreeSet<&str> = rows.iter().flat_map(|(ids, ..)| ids).map(String::as_str).collect();
    let tested: BTreeSet<&str> = rows
        .iter()
        .filter(|(_, tree, _)| tree == "tree")
        .flat_map(|(ids, ..)| ids)
        .map(String::as_str)
        .collect();
    let cases: BTreeSet<&str> = all_cases().map(|case| case.id).collect();
    assert_eq!(tested, cases, "docs/reference/doctor.md and tests/cases");

    // Ids of the rules that only check has: they come from the exercise, or report what is in order.
    let of_check = [
        "engine-fails",
        "nothing-works",
        "not-exercised",
        "no-lanes",
        "engine-note",
        "o-direct",
        "residency",
        "nfs-handle",
        "nfs-any-port",
        "nfs-rdma-port",
        "gpu",
        "engines",
    ];
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules");
    let mut ids = BTreeSet::new();
    for entry in std::fs::read_dir(rules).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for call in ["add(", "hinted("] {
            for rest in source.split(call).skip(1) {
                let Some(rest) = rest.trim_start().strip_prefix('"') else { continue };
                let id = rest.split('"').next().unwrap();
                assert!(of_page.contains(id) || of_check.contains(&id), "no row for {id}");
                ids.insert(id.to_owned());
            }
        }
    }
    // Options take these ids and no other.
    ids.extend(of_page.into_iter().map(str::to_owned));
    let list = std::fs::read_to_string(format!("{rules}/ids.rs")).unwrap();
    let known: BTreeSet<String> = list.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(known, ids, "src/rules/ids.rs");
}

#[test]
fn the_scenarios_of_the_page_plant_what_it_says() {
    for (ids, _, lab) in documented().into_iter().filter(|(.., lab)| !lab.is_empty() && !lab.starts_with('–'))
    {
        let name = lab.split(',').next().unwrap();
        let path = format!("{}/../../lab/scenarios/{name}.sh", env!("CARGO_MANIFEST_DIR"));
        let script = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        for id in ids {
            assert!(script.contains(&format!("found {id} ")), "{name} does not plant {id}");
            let typed =
                script.contains(&format!("type_fix {id}\n")) || script.contains(&format!("type_fix {id} "));
            assert_eq!(typed, lab.ends_with("typed"), "{name}: {id}");
        }
    }
}

#[test]
fn the_page_names_every_key() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/doctor.md");
    let page = std::fs::read_to_string(page).unwrap();
    let report = look(running(&mut healthy(), "python train.py"), &pid());
    let report = serde_json::to_value(report).unwrap();
    for part in [&report, &report["process"], &report["findings"][0]] {
        for key in part.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{key}`")), "docs/reference/doctor.md does not name {key}");
        }
    }
}
