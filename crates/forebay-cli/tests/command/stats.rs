//! `forebay stats` and `gds_stats`: this process's own counters, seen by the command.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::support::{Done, clean, finish, forebay};
use forebay_stats::{Counters, FileCounter, Io, Moved, Way};

/// The counters of this process, which did a bit of everything.
fn counters() -> &'static Counters {
    static COUNTERS: OnceLock<Counters> = OnceLock::new();
    COUNTERS.get_or_init(|| {
        let counters = Counters::open_in(None).unwrap();
        let latency = Duration::from_micros(100);
        let io = Io { bytes: 1 << 20, latency, gpu: Some(0), unaligned: false, posix: false, ok: true };
        counters.read(io);
        counters.write(Io { bytes: 3 << 20, gpu: None, ..io });
        counters.gpu(0, [0xab; 16]);
        counters.engine("mapped", Moved::of(Way::Mapped, 1 << 20));
        counters.refused("p2p", "this version of forebay does not have it yet", Some("wait"), 1 << 20);
        counters
    })
}

fn stats(args: &str) -> Done {
    counters();
    let mut command = forebay();
    command.arg("stats").args(args.replace("OURS", &std::process::id().to_string()).split_whitespace());
    finish(command)
}

/// What differs from run to run, written as words: the process, and what depends on the clock.
fn steady(text: &str) -> String {
    let pid = std::process::id().to_string();
    let mut steady = String::new();
    for line in text.lines() {
        let line = match line.split_once(": ") {
            Some((name, _)) if name.contains("BandWidth") || name.starts_with("Avg ") => {
                format!("{name}: RATE")
            }
            Some((name, _)) if name == format!("receipt of process {pid}") => {
                "receipt of process PID: PROGRAM".into()
            }
            _ => line.to_owned(),
        };
        let words = line.split(' ').map(|word| match word.split_once('=') {
            Some((name @ ("bw" | "util(%)"), _)) => format!("{name}=RATE"),
            _ => word.to_owned(),
        });
        steady.push_str(&words.collect::<Vec<_>>().join(" "));
        steady.push('\n');
    }
    steady
}

#[test]
fn one_process_as_text() {
    insta::assert_snapshot!("stats", steady(&stats("-p OURS").ok().out));
    insta::assert_snapshot!("stats_level_3", steady(&stats("-p OURS -l 3").ok().out));
}

#[test]
fn gds_stats_takes_its_flags_and_prints_its_text_alone() {
    counters();
    let run = |args: &[&str]| {
        let mut command = clean(Command::new(env!("CARGO_BIN_EXE_forebay")));
        command.arg0("gds_stats").args(args);
        finish(command)
    };
    let pid = std::process::id().to_string();
    let text = run(&["-p", &pid, "-l", "2"]).ok().out;
    assert!(text.starts_with("cuFile STATS VERSION : 8\nGLOBAL STATS:\nRead: ok = 1 err = 0\n"), "{text}");
    assert!(text.ends_with("65536-...(KiB): 0  0\n"), "{text}");
    assert_eq!(run(&["-p", &pid, "-l", "4"]).code, Some(2));
    assert_eq!(run(&["-l", "1"]).code, Some(2));
}

#[test]
fn machines_read_json_and_prometheus() {
    let pid = u64::from(std::process::id());
    let one: serde_json::Value = serde_json::from_str(&stats("-p OURS --json").ok().out).unwrap();
    assert_eq!((one["pid"].as_u64(), one["read"]["bytes"].as_u64()), (Some(pid), Some(1 << 20)));
    assert_eq!(one["engines"][0]["name"], "mapped");
    let all: serde_json::Value = serde_json::from_str(&stats("--json").ok().out).unwrap();
    assert!(all.as_array().unwrap().iter().any(|one| one["pid"].as_u64() == Some(pid)), "{all}");
    let text = stats("-p OURS --prometheus").ok().out;
    let line = format!("forebay_io_bytes_total{{pid=\"{pid}\",direction=\"write\"}} {}", 3 << 20);
    assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    assert_eq!(stats("-p OURS --prometheus --json").code, Some(2));
}

/// The text at /metrics of a server that is started for it and ended by Ctrl-C.
fn listened() -> String {
    counters();
    let mut command = forebay();
    command.args(["stats", "--listen", "127.0.0.1:0"]);
    crate::support::as_in_a_terminal(&mut command);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("metrics at http://").unwrap().strip_suffix("/metrics").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    // SAFETY: a signal to a child of ours that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    text.to_owned()
}

/// Each query of the Grafana board names a metric that is there, and labels that it has.
#[test]
fn prometheus_scrapes_the_metrics_that_the_board_asks_for() {
    let text = listened();
    let pid = std::process::id();
    let line = format!("forebay_io_bytes_total{{pid=\"{pid}\",direction=\"write\"}} {}", 3 << 20);
    assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../share/grafana/forebay.json");
    let board: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    queries.extend(variables.filter(|one| one["type"] == "query").map(|one| one["query"].as_str().unwrap()));
    assert!(queries.len() > 10);
    for query in queries {
        let names: Vec<&str> = query
            .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .filter(|word| word.starts_with("forebay_"))
            .collect();
        assert!(!names.is_empty(), "{query}");
        for name in names {
            let sample = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
            let sample = sample.unwrap_or_else(|| panic!("{query}: no {name} in\n{text}"));
            let by = query.split("sum by (").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or("pid");
            // Prometheus itself adds `instance`.
            for label in by.split(", ").filter(|label| *label != "instance") {
                assert!(sample.contains(&format!("{label}=\"")), "{query}: no {label} in {sample}");
            }
        }
    }
}

#[test]
fn addresses_that_cannot_be_served_are_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    stats(&format!("--listen {address}")).fails(1, "cannot listen");
    stats("--listen localhost:9464").fails(2, "not an address and a port");
    assert_eq!(stats("--listen 127.0.0.1:0 -p OURS").code, Some(2));
}

#[test]
fn without_a_process_all_are_listed() {
    let text = stats("").ok().out;
    let pid = std::process::id().to_string();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&pid));
    let line = line.unwrap_or_else(|| panic!("no {pid} in\n{text}"));
    assert!(line.contains("1.0 MiB") && line.contains("3.0 MiB"), "{line}");
}

#[test]
fn who_cannot_be_read_is_told_why_and_what_to_do() {
    stats("-p 4000000000").fails(1, "no such process");
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let done = stats(&format!("-p {}", other.id()));
    other.kill().unwrap();
    other.wait().unwrap();
    done.fails(1, "does not use forebay");
    assert_eq!(stats("-p OURS --watch 0").code, Some(2));
}

#[test]
fn watching_goes_on_until_it_is_interrupted_or_nobody_reads() {
    counters();
    let watch = || {
        let mut command = forebay();
        command.args(["stats", "--json", "--watch", "0.1", "-p", &std::process::id().to_string()]);
        crate::support::as_in_a_terminal(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..3 {
            let line = lines.next().unwrap().unwrap();
            assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{line}");
        }
        (child, lines)
    };
    let (mut child, lines) = watch();
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(lines);
    let (mut child, lines) = watch();
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn who_is_stuck_in_a_full_pipe_ends_at_the_second_signal() {
    use std::os::unix::process::ExitStatusExt;
    counters();
    let mut command = forebay();
    command.args(["stats", "--json", "--watch", "0.1", "-p", &std::process::id().to_string()]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // Nobody reads from it.
    let pipe = child.stdout.as_ref().unwrap().as_raw_fd();
    // SAFETY: the pipe is ours; its size is all that changes.
    assert!(unsafe { libc::fcntl(pipe, libc::F_SETPIPE_SZ, 4096) } > 0);
    let is_stuck = || {
        let path = format!("/proc/{}/wchan", child.id());
        std::fs::read_to_string(path).is_ok_and(|place| place.contains("pipe"))
    };
    let started = Instant::now();
    while !is_stuck() && started.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..400 {
        // SAFETY: a signal to a child that was not waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        std::thread::sleep(Duration::from_millis(50));
        if child.try_wait().unwrap().is_some() {
            break;
        }
    }
    let _ = child.kill();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM), "it goes on");
}

/// A process whose names contain terminal control codes; not a test by itself.
#[test]
fn fixture_of_odd_names() {
    if std::env::var_os("FIXTURE").is_none() {
        return;
    }
    let odd = |name: &str| format!("{name}\u{1b}[2J\n\u{9b}31m\u{7f}\u{202e}\r");
    let counters = Counters::open_in(None).unwrap();
    let latency = Duration::from_micros(100);
    counters.read(Io { bytes: 4096, latency, gpu: None, unaligned: false, posix: false, ok: true });
    counters.engine(&odd("engine"), Moved::of(Way::Cached, 4096));
    counters.refused(&odd("p2p"), &odd("reason"), Some(&odd("hint")), 4096);
    counters.note(&odd("note"), Some(&odd("hint")));
    counters.file(&FileCounter::new(&odd("file")), 4096, latency);
    // The command line is clean by our own hand; another's need not be.
    overwrite_program(&odd("program"));
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    std::process::exit(0);
}

/// Puts other text where this process's counters have its command line.
fn overwrite_program(text: &str) {
    let line = std::fs::read("/proc/self/cmdline").unwrap();
    let line: Vec<u8> =
        line[..line.len() - 1].iter().map(|&byte| if byte == 0 { b' ' } else { byte }).collect();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if !target.to_string_lossy().starts_with("/memfd:forebay") {
            continue;
        }
        let file = std::fs::OpenOptions::new().read(true).write(true).open(entry.path()).unwrap();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let start = &line[..line.len().min(40)];
        let at = bytes.windows(start.len()).position(|window| window == start).unwrap();
        file.write_all_at(text.as_bytes(), at as u64).unwrap();
    }
}

#[test]
fn names_of_others_do_not_steer_the_terminal() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["stats::fixture_of_odd_names", "--exact", "--nocapture"]).env("FIXTURE", "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    let mut texts = vec![stats("").ok().out, stats("--json").ok().out];
    for flags in ["", "-l 3", "--json", "--prometheus"] {
        texts.push(stats(&format!("{flags} -p {}", child.id())).ok().out);
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    for text in &texts {
        assert!(text.contains("program"), "{text}");
        let odd = text.chars().find(|&c| (c.is_control() && c != '\n') || c == '\u{202e}');
        assert!(odd.is_none(), "{odd:?} in {text:?}");
    }
    assert!(texts[2].contains("note: note\\u{1b}[2J\\n\\u{9b}31m\\u{7f}\\u{202e}\\r"), "{}", texts[2]);
    let one: serde_json::Value = serde_json::from_str(&texts[4]).unwrap();
    assert_eq!(one["engines"][0]["name"], "engine\u{1b}[2J\n\u{9b}31m\u{7f}\u{202e}\r");
}

/// A bench is a process like any other: its transfers are counted, under its own name and as gdsio.
#[test]
fn a_running_bench_is_seen() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    crate::support::sample(directory.path(), "x", 8 << 20);
    let link = directory.path().join("gdsio");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), &link).unwrap();
    let bench = {
        let mut command = forebay();
        command.arg("bench");
        command
    };
    for mut command in [bench, clean(Command::new(&link))] {
        command.current_dir(directory.path()).args(["-f", "x", "-i", "64K", "-x", "0", "-T", "30"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let begun = Instant::now();
        let seen = loop {
            let mut command = clean(Command::new(env!("CARGO_BIN_EXE_forebay")));
            command.args(["stats", "--json", "-p", &pid.to_string()]);
            let done = finish(command);
            let found: Option<serde_json::Value> = serde_json::from_str(&done.out).ok();
            let bytes = found.map_or(0, |found| found["engines"][0]["bytes"].as_u64().unwrap_or(0));
            if bytes > 1 << 20 || begun.elapsed() > Duration::from_secs(20) {
                break (bytes, done);
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.0 > 1 << 20, "{:?}", seen.1);
    }
}
