//! Names of files that are neither on this machine nor on an NFS server: every command refuses them, with a hint.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{names, run, sample};

/// All places of a command line that take a name; `U` stands for it.
const PLACES: [&str; 29] = [
    "bench -f U",
    "bench -f U -I 1 -s 1M",
    "bench -D U",
    "bench -P U",
    "bench --files U",
    "bench U",
    "bench job.gdsio",
    "bench -f x --json U",
    "check U",
    "check -f U",
    "doctor U",
    "doctor --log U",
    "doctor --bench U",
    "doctor --root U",
    "doctor --severities U",
    "cp U y",
    "cp x U",
    "verify -f U",
    "demo --dir U",
    "report gds-modes U -o r",
    "report x -o U",
    "report x -o r --spec U",
    "report --compare U U",
    "run --trace U -- true",
    "trace U",
    "replay U",
    "replay x --dir U",
    "replay x --json U",
    "nfs probe U",
];

#[test]
fn every_command_refuses_what_lies_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    for (index, place) in PLACES.into_iter().enumerate() {
        let (url, client) = [
            ("gs://bucket/key", "Google Cloud Storage"),
            ("hf://org/model", "Hugging Face"),
            ("https://host/key", "HTTP"),
        ][index % 3];
        let job = format!("[global]\nrw=read\n[job0]\nfilename={url}\n");
        std::fs::write(directory.path().join("job.gdsio"), job).unwrap();
        let done = run(directory.path(), &place.replace('U', url));
        // Monitoring takes the doctor's 2 for a fault of the machine.
        let code = if place.starts_with("doctor") { 3 } else { 2 };
        done.fails(code, &format!("forebay has no client for {client} (url={url}"));
    }
    assert_eq!(names(directory.path()), ["job.gdsio", "x"], "nothing is made");
}

/// No folder `nfs:` is made of a URL.
#[test]
fn nothing_is_made_by_the_name_of_a_server() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    for url in ["nfs://server/x", "nfs://", "nfs:/server/x", "server:/x", "s3://bucket/x", "s3:/bucket/x"] {
        for place in [
            "report gds-modes . -o U",
            "replay x --dir U",
            "replay x --json U",
            "demo --dir U",
            "bench -f x --json U",
            "run --trace U -- true",
        ] {
            run(directory.path(), &place.replace('U', url)).fails(2, "a path of this machine is needed");
        }
    }
    for url in ["nfs:/server/x", "server:/x"] {
        let done =
            run(directory.path(), &format!("cp x {url}")).fails(2, "a file of a server is named by a URL");
        assert!(done.err.contains("hint: nfs://server/x\n"), "{}", done.err);
    }
    run(directory.path(), "cp x nfs://").fails(2, "it has no path");
    assert_eq!(names(directory.path()), ["x"]);
}

#[test]
fn a_server_may_have_the_name_of_a_scheme() {
    let directory = tempfile::tempdir().unwrap();
    let done = run(directory.path(), "nfs probe s3:/bucket/key").fails(2, "objects are named");
    assert!(done.err.contains("hint: a server of that name: nfs://s3/bucket/key"), "{}", done.err);
}

#[test]
fn a_repository_of_models_is_told_from_a_wrong_path() {
    let directory = tempfile::tempdir().unwrap();
    for place in [
        "bench -f U",
        "bench -D U",
        "check U",
        "doctor U",
        "cp U y",
        "verify -f U",
        "report gds-modes U -o r",
        "trace U",
        "replay U",
    ] {
        let done = run(directory.path(), &place.replace('U', "org/model-1.5"));
        assert!(done.code.is_some_and(|code| (1..=3).contains(&code)), "{place}: {done:?}");
        assert!(
            done.err.contains("hf download org/model-1.5 --local-dir DIRECTORY"),
            "{place}: {}",
            done.err
        );
    }
}

#[test]
fn a_folder_of_such_a_name_can_be_named() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("gs:/bucket");
    std::fs::create_dir_all(&folder).unwrap();
    sample(&folder, "key", 1 << 20);
    run(directory.path(), "bench -f ./gs://bucket/key -s 1M").ok();
}
