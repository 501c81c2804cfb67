//! Files of an NFS server by URL: `forebay nfs probe`, `cp`, `bench`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;

use fake_nfs::{Asked, Fault, Server};
use support::{finish, forebay, run, run_fake};

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

#[test]
fn probe_tells_versions_limits_and_rates() {
    let server = Server::start();
    server.put("/export/file", bytes(9_000_001));
    let port = server.address().port();
    let done = finish({
        let mut command = forebay();
        command.args(["nfs", "probe", &format!("nfs://127.0.0.1:{port}/export/file?mountport={port}")]);
        command
    })
    .ok();
    let lines: Vec<_> = done.out.lines().collect();
    assert_eq!(lines[0], format!("nfs://127.0.0.1:{port}/export/file"));
    let yes = "yes; reads of 1024 KiB and writes of 1024 KiB a call; Regular of 9000001 bytes";
    for (line, version) in lines[1..4].iter().zip(["v4.1", "v4.0", "v3"]) {
        assert_eq!(*line, format!("{version:<5} {yes}"));
    }
    for (line, connections) in lines[4..7].iter().zip([1, 4, 8]) {
        assert!(line.starts_with(&format!("tcp   v4.1, {connections} connection")), "{line}");
        assert!(
            line.ends_with("CPU s/GB (9000001 bytes, the best of 3, the same bytes each time)"),
            "{line}"
        );
    }
    // The server of the test has no RDMA, whatever this machine has.
    assert!(lines[7].starts_with("rdma  no: "), "{}", lines[7]);
    assert_eq!(server.count(Asked::Write), 0);
}

#[test]
fn probe_tells_of_a_server_that_lies_and_of_one_that_is_not_there() {
    let server = Server::start();
    server.put("/export/file", bytes(100_000));
    // The second pass differs from the first in one byte.
    server.faults(|seen| (seen.asked == Asked::Read && seen.before == 5).then_some(Fault::Word(200, 1)));
    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), &format!("nfs probe {}", server.url("/export/file", "4.0")))
        .fails(1, "not the same");
    let gone = {
        let server = Server::start();
        server.url("/export/file", "4.1")
    };
    run(directory.path(), &format!("nfs probe {gone}")).fails(1, "cannot connect to the server");
    run(directory.path(), "nfs probe server").fails(2, "not a path of a server");
}

#[test]
fn cp_brings_a_file_of_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    for (len, version) in [(0, "3"), (1, "4.1"), (20_000_003, "3"), (20_000_003, "4.0")] {
        server.put("/export/file", bytes(len));
        for run in [run, run_fake] {
            let url = server.url("/export/file", version);
            let done = run(directory.path(), &format!("cp {url} copy --verify")).ok();
            assert!(fs::read(directory.path().join("copy")).unwrap() == bytes(len), "{len} {version}");
            assert!(len == 0 || done.err.contains(&format!("NFS v{version} over TCP")), "{}", done.err);
        }
    }
    let url = server.url("/export/new", "3");
    run(directory.path(), &format!("cp copy {url}")).fails(1, "not made by URL");
    // In a folder it has the name that it has there.
    fs::create_dir(directory.path().join("folder")).unwrap();
    server.put("/export/a file", vec![7; 100]);
    run(directory.path(), &format!("cp {} folder", server.url("/export/a%20file", "3"))).ok();
    assert_eq!(fs::read(directory.path().join("folder/a file")).unwrap(), [7; 100]);
    let mut off = forebay();
    off.current_dir(directory.path()).env("FOREBAY_NFS", "off").args([
        "cp",
        &server.url("/export/file", "3"),
        "x",
    ]);
    finish(off).fails(1, "FOREBAY_NFS=off");
}

#[test]
fn bench_reads_writes_and_verifies_a_file_of_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", vec![0; 8 << 20]);
    let url = server.url("/export/file", "4.1");
    for run in [run, run_fake] {
        run(directory.path(), &format!("bench -P {url} -I 1 -i 1M -w 2 -V --overwrite --json r.json")).ok();
        let report = fs::read_to_string(directory.path().join("r.json")).unwrap();
        assert!(
            report.contains(r#""file_system": "nfs""#) || report.contains(r#""file_system":"nfs""#),
            "{report}"
        );
        run(directory.path(), &format!("bench -P {url} -I 0 -i 64K -w 4 -V")).ok();
        run(directory.path(), &format!("bench -f {url} -I 2 -i 4K -w 4 -T 1")).ok();
    }
    assert!(server.durable("/export/file").iter().any(|byte| *byte != 0));
    run(directory.path(), &format!("bench -P {url} -I 1")).fails(1, "not looked at");
    run(directory.path(), &format!("bench -P {url} -x 1")).fails(1, "raw calls need a file");
    run(directory.path(), "bench -P rdma://x").fails(2, "RDMA targets");
}

/// What a reader of the table needs, with no mount at all: reads by forebay's own client, and why the rest is absent.
#[test]
fn report_measures_a_file_of_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", bytes(32 << 20));
    let url = server.url("/export/file", "4.1");
    run(directory.path(), &format!("report gds-modes {url} -o out")).fails(2, "by the preset nfs-rdma alone");
    run(directory.path(), &format!("report nfs-rdma {} -o out", server.url("/export/none", "3")))
        .fails(1, "no such file");
    run_fake(directory.path(), &format!("report nfs-rdma {url} --seconds 0.05 --repeat 1 -o out")).ok();
    let report = fs::read_to_string(directory.path().join("out/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 24);
    for row in rows {
        let labels = &row["labels"];
        let state = row["state"]["absent"]["reason"].as_str().unwrap_or("measured");
        let expected = match [0, 1, 2].map(|at| labels[at].as_str().unwrap()) {
            [_, "64K × 4+4, two mounts", _] => "one path is given",
            [_, _, kind] if !kind.starts_with('0') => "raw calls need a file",
            ["random write", ..] => "is only read",
            _ => "measured",
        };
        assert!(state.contains(expected), "{row}");
        if expected == "measured" {
            let run = &row["runs"][0];
            assert_eq!(run["engines"][0]["ways"]["by request"], run["bytes"], "{row}");
            assert!(run["notes"][0]["text"].as_str().unwrap().starts_with("NFS v4.1 over TCP"), "{row}");
        }
    }
    let text = fs::read_to_string(directory.path().join("out/report.md")).unwrap();
    assert!(text.contains("read without a mount by forebay's own client"), "{text}");
}
