//! Files of an NFS server by URL: `forebay nfs probe`, `cp`, `bench`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::support::{as_in_a_terminal, finish, forebay, names, run, run_fake};
use fake_nfs::{Asked, Fault, Seen, Server};

fn bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    forebay_gpu::fill_pattern(&mut bytes, 1, 0);
    bytes
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
    assert_eq!(lines[0], format!("nfs://127.0.0.1:{port}/export/file?mountport={port}"));
    let yes = "yes; reads of 1024 KiB and writes of 1024 KiB a call; file of 9000001 bytes";
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
    // The test's server has no RDMA, even if this machine does.
    assert!(lines[7].starts_with("rdma  no: "), "{}", lines[7]);
    assert_eq!(server.count(Asked::Write), 0);
}

#[test]
fn probe_writes_its_report_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", bytes(100_000));
    let url = server.url("/export/file", "3");
    run(directory.path(), &format!("nfs probe {url} --json report.json")).ok();
    let text = fs::read_to_string(directory.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["schema"], &report["size"]), (&"forebay.nfs-probe/1".into(), &100_000.into()));
    assert_eq!(report["tcp"].as_array().unwrap().len(), 3);
    let before = server.connections();
    run(directory.path(), &format!("nfs probe {url} --json nowhere/report.json")).fails(1, "report");
    assert_eq!(server.connections(), before, "asked, though the report cannot be written");
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
            if len > 5 {
                run(directory.path(), &format!("verify -f {url} -o 5 -n 3")).ok();
            }
            assert!(fs::read(directory.path().join("copy")).unwrap() == bytes(len), "{len} {version}");
            assert!(len == 0 || done.err.contains(&format!("NFS v{version} over TCP")), "{}", done.err);
        }
    }
    for version in ["3", "4.1"] {
        let (url, other) = (server.url("/export/new", version), server.url("/export/newer", version));
        run(directory.path(), &format!("cp copy {url} --verify")).ok();
        run(directory.path(), &format!("cp {url} {other} --verify")).ok();
        assert!(server.durable("/export/newer") == bytes(20_000_003), "{version}");
    }
    fs::write(directory.path().join("100%2e?"), "x").unwrap();
    run(directory.path(), &format!("cp 100%2e? {}", server.url("/export/", "3"))).ok();
    assert_eq!(server.durable("/export/100%2e?"), b"x");
    let url = server.url("/none/new", "3");
    run(directory.path(), &format!("cp copy {url}")).fails(1, "no such file or directory");
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
fn further_addresses_of_a_server_are_used_or_told() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start();
    while server.listen_at([127, 0, 0, 2].into()).is_err() {
        server = Server::start();
    }
    server.put("/export/file", bytes(20_000_003));
    // Each reply is late: all connections get work.
    server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Late(Duration::from_millis(10))));
    let servers = "127.0.0.1=127.0.0.2,127.0.0.3";
    for version in ["3", "4.1"] {
        let url = server.url("/export/file", version);
        let mut command = forebay();
        command.current_dir(directory.path()).env("FOREBAY_NFS_SERVERS", servers);
        command.args(["cp", &url, "copy", "--verify"]);
        let done = finish(command).ok();
        assert!(fs::read(directory.path().join("copy")).unwrap() == bytes(20_000_003), "{version}");
        for words in [
            "up to 8 connections to 2 addresses",
            "address 127.0.0.3 of server 127.0.0.1 left out: cannot connect",
        ] {
            assert!(done.err.contains(words), "{version}: {}", done.err);
        }
    }
    let used = server.connections_to([127, 0, 0, 2].into());
    let mut command = forebay();
    command.env("FOREBAY_NFS_SERVERS", servers).args(["nfs", "probe", &server.url("/export/file", "4.1")]);
    let done = finish(command).ok();
    assert!(done.out.contains("\naddr  127.0.0.3 left out: cannot connect"), "{}", done.out);
    assert!(server.connections_to([127, 0, 0, 2].into()) > used + 1);
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
    run(directory.path(), &format!("bench -P {url} -I 1")).fails(1, "not checked");
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
            [_, _, kind] if !kind.starts_with("type 0") => "raw calls need a file",
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

/// The port of a server that takes any connection, and does this with it.
fn listen(answer: fn(std::net::TcpStream)) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    port
}

/// Sends what is no reply, and waits until the client has it.
fn send_garbage(mut stream: std::net::TcpStream) {
    use std::io::{Read, Write};
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let _ = stream.read(&mut [0; 1]);
}

/// Closes the connection once it has the call: with bytes left unread, what the client sees would be a matter of time.
fn hang_up(mut stream: std::net::TcpStream) {
    let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
}

/// The words of what a user reads who typed something wrong, whole.
#[test]
fn errors_of_servers_and_urls() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", bytes(100_000));
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (garbage, closed) = (listen(send_garbage), listen(hang_up));
    let url = server.url("/export/file", "4.1");
    let mut text = String::new();
    let ports =
        [(server.address().port(), "PORT"), (nowhere, "NOWHERE"), (garbage, "GARBAGE"), (closed, "CLOSED")];
    let mut tell = |variables: &[(&str, &str)], args: &str| {
        let mut command = forebay();
        command.current_dir(directory.path()).args(args.split_whitespace());
        command.envs(variables.iter().copied());
        let done = finish(command);
        assert!(done.err.contains("hint: ") && !done.err.contains("panicked"), "{args}: {}", done.err);
        let variables: Vec<_> = variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let variables = variables.concat();
        let told = format!("$ {variables}forebay {args}\n{}[{}]\n\n", done.err, done.code.unwrap());
        let told = told.replace(&directory.path().display().to_string(), "DIRECTORY");
        text += &ports.iter().fold(told, |told, (port, name)| told.replace(&port.to_string(), name));
    };
    let port = server.address().port();
    for args in [
        format!("check {url}"),
        format!("check -f {url}"),
        format!("doctor {url}"),
        "verify -f 127.0.0.1:/export/file".to_owned(),
        "check 127.0.0.1:/export/file".to_owned(),
        "cp 127.0.0.1:/export/file x".to_owned(),
        "cp nfs:/127.0.0.1/export/file x".to_owned(),
        "cp x 127.0.0.1:/export/new".to_owned(),
        "cp x nfs://root@127.0.0.1/export/new".to_owned(),
        "cp nfs://root@127.0.0.1/export/file x".to_owned(),
        format!("cp {url}&version=3 x"),
        format!("cp {url}&mountport=20048 x"),
        "cp nfs://127.0.0.1/a%00b x".to_owned(),
        "cp nfs://127.0.0.1/export/what?.bin x".to_owned(),
        "cp nfs://127.0.0.1/export/100%.bin x".to_owned(),
        "cp nfs://127.0.0.1/export/file? x".to_owned(),
        "cp nfs://127.0.0.1/export/file?version=5 x".to_owned(),
        format!("cp nfs://127.0.0.1:{port}/export/file/?version=4.1 x"),
        "bench -f 127.0.0.1:/export/file".to_owned(),
        "bench -f 127.0.0.1:/export/file -I 1 -s 1M".to_owned(),
        "bench -P 127.0.0.1:/export/file".to_owned(),
        "bench -P nfs://root@127.0.0.1/export/file".to_owned(),
        "report nfs-rdma 127.0.0.1:/export/file -o out".to_owned(),
        "nfs probe nfs:/127.0.0.1/export/file".to_owned(),
        format!("cp nfs://127.0.0.1:{port}/export/file?version=3&mountport={nowhere} x"),
        format!("nfs probe nfs://127.0.0.1:{nowhere}/export/file"),
        format!("cp nfs://127.0.0.1:{garbage}/export/file?version=4.1 x"),
        format!("cp nfs://127.0.0.1:{closed}/export/file?version=4.1 x"),
        format!("cp nfs://127.0.0.1:{port}/export?version=4.1 x"),
        format!("cp nfs://127.0.0.1:{port}/export/none?version=4.1 x"),
        format!("cp nfs://127.0.0.1:{port}/export/file/none?version=4.1 x"),
    ] {
        tell(&[], &args);
    }
    for (name, value) in [
        ("FOREBAY_NFS", "nonsense"),
        ("FOREBAY_NFS", "OFF"),
        ("FOREBAY_NFS_CONNECTIONS", "17"),
        ("FOREBAY_NFS_CONNECTIONS", "many"),
        ("FOREBAY_NFS_SERVERS", "10.0.0.11"),
        ("FOREBAY_NFS_SERVERS", "nas1=10.0.0.11:2049"),
    ] {
        for args in [format!("cp {url} x"), format!("bench -P {url}"), format!("nfs probe {url}")] {
            tell(&[(name, value)], &args);
        }
    }
    insta::assert_snapshot!("errors_of_servers_and_urls", text);
}

/// What a name with a colon is, if it is there, is a file.
#[test]
fn a_file_with_a_colon_in_its_name_is_copied() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("server:")).unwrap();
    for name in ["a:b", "server:/file"] {
        fs::write(directory.path().join(name), bytes(1000)).unwrap();
        run(directory.path(), &format!("cp {name} copy")).ok();
        run(directory.path(), &format!("cp copy {name}2")).ok();
        run(directory.path(), &format!("verify -f {name}2")).ok();
    }
}

#[test]
fn schemes_are_taken_in_any_case() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", bytes(100_000));
    let url = server.url("/export/file", "4.1").replace("nfs://", "NFS://");
    run(directory.path(), &format!("cp {url} .")).ok();
    assert!(fs::read(directory.path().join("file")).unwrap() == bytes(100_000));
    run(directory.path(), &format!("bench -P {url} -I 0 -i 64K")).ok();
    run(directory.path(), &format!("nfs probe {url}")).ok();
}

#[test]
fn probe_says_why_there_are_no_rates() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/empty", Vec::new());
    for (path, what) in [("/export/empty", "file of 0 bytes"), ("/export", "directory")] {
        let done = run(directory.path(), &format!("nfs probe {}", server.url(path, "4.1"))).ok();
        let wanted = format!(
            "v4.1  yes; reads of 1024 KiB and writes of 1024 KiB a call; {what}\ntcp   not measured: {what}: name a \
             file that has bytes\n"
        );
        assert!(done.out.ends_with(&wanted), "{}", done.out);
    }
}

#[test]
fn probe_says_that_its_server_has_no_further_address() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", bytes(100_000));
    let mut command = forebay();
    command.current_dir(directory.path()).env("FOREBAY_NFS_SERVERS", "nas9=127.0.0.2,nas10=127.0.0.3");
    command.args(["nfs", "probe", &server.url("/export/file", "4.1")]);
    let done = finish(command).ok();
    let note = "note: FOREBAY_NFS_SERVERS has no address of 127.0.0.1, only of nas9, nas10\n";
    assert!(done.err.contains(note), "{}", done.err);
}

#[test]
fn one_connection_is_not_up_to_one() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", bytes(100_000));
    let mut command = forebay();
    command.current_dir(directory.path()).env("FOREBAY_NFS_CONNECTIONS", "1");
    command.args(["cp", &server.url("/export/file", "4.1"), "x"]);
    assert!(finish(command).ok().err.contains("server 127.0.0.1, 1 connection\n"));
}

/// An error of a read names its file once, whatever layers it went through.
#[test]
fn errors_of_reads_name_their_file_once() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", bytes(100_000));
    server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Status(70)));
    let url = server.url("/export/file", "4.1");
    for args in [format!("cp {url} x"), format!("bench -P {url} -i 64K -I 0")] {
        let done = run(directory.path(), &args);
        assert_eq!((done.code, done.err.matches("/export/file").count()), (Some(1), 1), "{}", done.err);
    }
}

/// Starts a command as from a terminal.
fn started(directory: &Path, args: &str) -> Child {
    let mut command = forebay();
    command.current_dir(directory).args(args.split_whitespace());
    as_in_a_terminal(&mut command);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends it a signal, and waits; how it ended, how long it took, and what it said.
fn signalled(mut child: Child, signal: libc::c_int) -> (ExitStatus, Duration, String) {
    let began = Instant::now();
    // SAFETY: a child that was not waited for yet.
    unsafe { libc::kill(child.id() as i32, signal) };
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (child.wait().unwrap(), began.elapsed(), err)
}

fn wait_until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    // It waits for the answer by then.
    std::thread::sleep(Duration::from_millis(300));
}

const SOON: Duration = Duration::from_millis(2500);

#[test]
fn a_signal_ends_what_waits_for_a_silent_server() {
    let directory = tempfile::tempdir().unwrap();
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        for version in ["3", "4.1"] {
            // While it opens the file, and while it reads.
            for is_open in [false, true] {
                let server = Server::start();
                server.put("/export/file", bytes(40_000_000));
                server.faults(move |seen| (!is_open || seen.asked == Asked::Read).then_some(Fault::NoReply));
                let child =
                    started(directory.path(), &format!("cp {} copy", server.url("/export/file", version)));
                wait_until(|| if is_open { server.count(Asked::Read) > 0 } else { server.connections() > 0 });
                let (ended, took, err) = signalled(child, signal);
                assert_eq!(
                    (ended.code(), err.as_str()),
                    (Some(code), "error: interrupted: nothing was copied\n")
                );
                assert!(took < SOON, "{version} {is_open} {took:?}");
                assert!(names(directory.path()).is_empty(), "{:?}", names(directory.path()));
            }
        }
        let server = Server::start();
        server.put("/export/file", bytes(40_000_000));
        server.faults(move |seen| (seen.asked == Asked::Read && seen.before > 20).then_some(Fault::NoReply));
        let url = server.url("/export/file", "4.1");
        let child = started(directory.path(), &format!("bench -P {url} -I 0 -x 0 -i 1M -w 2 -T 60"));
        wait_until(|| server.count(Asked::Read) > 20);
        let (ended, took, err) = signalled(child, signal);
        // The figures until then are there.
        assert_eq!(ended.code(), Some(code), "{err}");
        assert!(err.contains("interrupted: the figures are of the time until then"), "{err}");
        assert!(took < SOON, "{took:?}");
    }
}

#[test]
fn a_signal_while_the_copy_gets_its_name_says_that_it_may_have_it() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), b"bytes").unwrap();
    for version in ["3", "4.1"] {
        let server = Server::start();
        server.put("/export/copy", b"old".to_vec());
        server.faults(|seen| (seen.asked == Asked::Rename).then_some(Fault::NoReply));
        let child = started(directory.path(), &format!("cp file {}", server.url("/export/copy", version)));
        wait_until(|| server.count(Asked::Rename) > 0);
        let (ended, took, err) = signalled(child, libc::SIGINT);
        let expected = "error: interrupted: the copy may have its name already\n";
        assert_eq!((ended.code(), err.as_str()), (Some(130), expected));
        assert!(took < SOON, "{version} {took:?}");
        assert_eq!(
            (server.paths(), server.durable("/export/copy")),
            (vec!["/export/copy".to_owned()], b"bytes".to_vec())
        );
    }
}

#[test]
fn a_server_that_is_silent_for_long_is_told_meanwhile_and_in_the_receipt() {
    let directory = tempfile::tempdir().unwrap();
    let late = |seen: &Seen| {
        (seen.asked == Asked::Read && seen.before == 3).then_some(Fault::Late(Duration::from_secs(12)))
    };
    let (one, two) = (Server::start(), Server::start());
    for server in [&one, &two] {
        server.put("/export/file", bytes(4 << 20));
        server.faults(late);
    }
    let copy = started(directory.path(), &format!("cp {} copy", one.url("/export/file", "3")));
    let bench = format!("bench -P {} -I 0 -x 0 -i 1M -w 1", two.url("/export/file", "4.1"));
    let bench = started(directory.path(), &bench);
    for child in [copy, bench] {
        let done = child.wait_with_output().unwrap();
        let err = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{err}");
        assert!(err.contains("note: server 127.0.0.1 has not answered for 10 s: still trying\n"), "{err}");
        assert_eq!(err.matches("note: held up: server 127.0.0.1 was silent for 1").count(), 1, "{err}");
    }
}

/// What acts on this machine's page cache, or by raw calls, does nothing for a file of a server.
#[test]
fn flags_that_do_nothing_for_a_server_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let url = "nfs://127.0.0.1:9/export/file";
    for flags in ["--drop-cache", "--warm", "--ceiling", "--trim", "--cache keep", "-O 1", "--gather -i 4K"] {
        for target in ["-P", "-f"] {
            run(directory.path(), &format!("bench {target} {url} {flags}"))
                .fails(2, flags.split(' ').next().unwrap());
        }
    }
    for target in ["-D", "--files"] {
        run(directory.path(), &format!("bench {target} nfs://127.0.0.1:9/export"))
            .fails(2, "directories of a server");
    }
}

/// Names are bytes: a printed name that is not UTF-8 can be typed again.
#[test]
fn a_name_that_is_no_text_can_be_typed() {
    let directory = tempfile::tempdir().unwrap();
    let raw = OsStr::from_bytes(b"nfs://127.0.0.1:9/export/caf\xE9?version=4.1");
    let mut command = forebay();
    command.current_dir(directory.path()).args(["verify", "-f"]).arg(raw);
    let typed = "nfs://127.0.0.1:9/export/caf%E9?version=4.1";
    let done = finish(command).fails(1, "127.0.0.1");
    assert!(done.err.contains(typed), "{}", done.err);
    let done = run(directory.path(), &format!("cp {typed} y")).fails(1, "127.0.0.1");
    assert!(done.err.contains(typed), "{}", done.err);
    // The double has its names as text, in which a byte that is none reads as U+FFFD.
    let server = Server::start();
    server.put("/export/caf\u{FFFD}", bytes(100_000));
    for version in ["3", "4.1"] {
        run(directory.path(), &format!("cp {} .", server.url("/export/caf%E9", version))).ok();
        let copy = directory.path().join(OsStr::from_bytes(b"caf\xE9"));
        assert_eq!(fs::read(&copy).unwrap(), bytes(100_000));
        fs::remove_file(copy).unwrap();
    }
}

#[test]
fn probe_measures_small_reads_and_writes_only_when_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    for version in ["3", "4.1"] {
        let server = Server::start();
        server.put("/export/file", bytes(100_000));
        let before = server.paths();
        for what in ["/export/file", "/export"] {
            let url = server.url(what, version);
            let done = run(directory.path(), &format!("nfs probe {url} --write --json -")).ok();
            let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
            assert!(done.err.contains("write 4 KiB, durable, one at a time: p50 "), "{}", done.err);
            let writes = &report["writes"];
            assert_eq!((&writes["bytes"], &writes["error"]), (&(64 << 20).into(), &serde_json::Value::Null));
            assert!(writes["alone"]["count"].as_u64() > Some(0), "{writes}");
            // Each piece of 4 MiB is longer than what the server takes in one call.
            assert!(
                writes["commits"].as_u64() >= Some(16) && writes["commit_us"].as_f64() > Some(0.0),
                "{writes}"
            );
            let small = &report["small_reads"];
            if what == "/export" {
                assert!(small.is_null());
                continue;
            }
            assert!(done.err.contains("4 KiB v"), "{}", done.err);
            assert!(small["alone"]["p99_us"].as_f64() >= small["alone"]["p50_us"].as_f64(), "{small}");
            assert!(small["iops"].as_f64() > Some(1.0), "{small}");
        }
        assert_eq!(server.paths(), before, "the probe leaves files");
        assert!(server.durable("/export/file") == bytes(100_000));
        // A folder that nobody may write to.
        server.faults(|seen| (seen.asked == Asked::Make).then_some(Fault::Status(13)));
        let done =
            run(directory.path(), &format!("nfs probe {} --write", server.url("/export/file", version))).ok();
        assert!(done.out.contains("write no: "), "{}", done.out);
        // Other bytes come back than were written: a fault, where the above are facts of a server.
        server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Word(1000, 1)));
        let done = run(directory.path(), &format!("nfs probe {} --write", server.url("/export", version)));
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(
            done.out.contains("write no: the file is not the same when it is read again"),
            "{}",
            done.out
        );
        assert_eq!(server.paths(), before);
    }
}

#[test]
fn an_interrupted_probe_leaves_no_file_on_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.put("/export/file", bytes(100_000));
    let before = server.paths();
    let mut command = forebay();
    command.current_dir(directory.path()).args(["nfs", "probe", &server.url("/export/file", "4.1")]);
    command.args(["--write", "--json", "r.json"]).stdout(Stdio::null()).stderr(Stdio::piped());
    crate::support::as_in_a_terminal(&mut command);
    let (child, begun) = (command.spawn().unwrap(), Instant::now());
    while server.paths() == before {
        assert!(begun.elapsed() < Duration::from_secs(30), "it writes nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: a child of ours that was not waited for yet.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let done = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(130) && err.contains("error: interrupted: "), "{err}");
    assert_eq!(server.paths(), before);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "a report of a part");
}
