//! `forebay bench --hosts` and `forebay report --hosts`: by an `ssh` that runs the command here, and by ssh and sshd
//! over loopback addresses.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Done, as_in_a_terminal, finish, forebay, sample};
use serde_json::Value;

fn bed() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// The command with programs of `bin` before all others.
fn with_programs(directory: &Path, args: &str) -> Command {
    let mut command = forebay();
    let path = format!("{}:{}", directory.join("bin").display(), std::env::var("PATH").unwrap());
    command.current_dir(directory).args(args.split_whitespace()).env("PATH", path);
    command
}

/// Machines a and b, of which b is connected late, and c, which does not answer. Each notes when its benchmark began.
fn with_ssh(directory: &Path, args: &str) -> Command {
    let ssh = "for word; do host=$command command=$word; done
case $host in
b) echo 'Welcome to b'; sleep 1 ;;
c) echo 'ssh: connect to host c port 22: Connection refused' >&2; exit 255 ;;
esac
HOST=$host exec sh -c \"$command\"";
    program(&directory.join("bin/ssh"), ssh);
    let real = env!("CARGO_BIN_EXE_forebay");
    let began = format!("date +%s.%N >{}/began.$HOST; exec {real} \"$@\"", directory.display());
    program(&directory.join("bin/forebay"), &began);
    with_programs(directory, args)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The first words of the lines.
fn names(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
fn rates_of_machines_add_up_and_a_failure_has_its_row() {
    let directory = bed();
    sample(directory.path(), "x", 8 << 20);
    let done = finish(with_ssh(directory.path(), "bench --hosts a,ssh:b,c -f x -i 1M -w 2 --json all.json"));
    assert_eq!(done.code, Some(3), "one failed: {done:?}");
    assert_eq!(names(&done.out), ["host", "a", "b", "sum", "c"], "{}", done.out);
    let refused = "c     failed: ssh: connect to host c port 22: Connection refused\n";
    assert!(done.out.ends_with(refused), "{}", done.out);

    let report = json(&directory.path().join("all.json"));
    let rate = |host: usize| report["hosts"][host]["report"]["passes"][0]["gb_per_s"].as_f64().unwrap();
    let sum = &report["sums"][0];
    assert!((sum["gb_per_s"].as_f64().unwrap() - rate(0) - rate(1)).abs() < 1e-9, "{sum}");
    assert_eq!((sum["hosts"].as_u64(), &report["hosts"][2]["report"]), (Some(2), &Value::Null));

    // The one that was there first waited for the other.
    let began = |host: &str| -> f64 {
        fs::read_to_string(directory.path().join(format!("began.{host}"))).unwrap().trim().parse().unwrap()
    };
    assert!((began("a") - began("b")).abs() < 0.9, "{} {}", began("a"), began("b"));
}

#[test]
fn an_error_of_a_machine_is_its_own() {
    let directory = bed();
    let done = finish(with_ssh(directory.path(), "bench --hosts a -f missing -i 1M"));
    assert!(done.out.contains("a     failed: cannot open"), "{done:?}");
    done.fails(1, "no host measured anything");
    for wrong in ["--hosts -x -f x", "--hosts a -f x -x 2 --engine staged", "--hosts a --open-cost -f x"] {
        let done = finish(with_ssh(directory.path(), &format!("bench {wrong}")));
        assert!(done.code == Some(2) && done.out.is_empty(), "{wrong}: {done:?}");
    }
}

#[test]
fn an_interrupt_ends_all_machines_with_their_figures() {
    let directory = bed();
    sample(directory.path(), "x", 8 << 20);
    let mut command = with_ssh(directory.path(), "bench --hosts a,b -f x -i 1M -T 60 --json all.json");
    as_in_a_terminal(&mut command);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while !directory.path().join("began.b").exists() {
        assert!(started.elapsed() < Duration::from_secs(30), "it does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(1500));
    // SAFETY: the process is a child that has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(started.elapsed() < Duration::from_secs(40));
    assert_eq!(names(&String::from_utf8_lossy(&output.stdout)), ["host", "a", "b", "sum"], "{output:?}");
    assert_eq!(json(&directory.path().join("all.json"))["hosts"][1]["report"]["interrupted"], true);
}

#[test]
fn rows_of_a_report_run_on_all_machines() {
    let directory = bed();
    fs::create_dir(directory.path().join("data")).unwrap();
    let args = "report gds-modes first-touch --quick --seconds 0.05 --size 16M --hosts a,c data -o out";
    let done = finish(with_ssh(directory.path(), args)).ok();
    let report = json(&directory.path().join("out/report.json"));
    assert_eq!(report["command"]["hosts"], serde_json::json!(["a", "c"]));
    let tables = report["tables"].as_array().unwrap();
    let row = &tables[0]["rows"][0];
    let run = &row["runs"][0];
    assert_eq!(run["pairs"][0]["name"], "a", "{row}");
    let notes = run["notes"].to_string();
    assert!(notes.contains("c failed: ssh: connect to host c port 22: Connection refused"), "{notes}");
    assert!(row["command"].as_str().unwrap().contains("--hosts a,c"), "{row}");
    let page = fs::read_to_string(directory.path().join("out/report.md")).unwrap();
    assert!(page.contains("At once: a ") && page.contains("--hosts a,c"), "{page}");
    // Libraries of Python load on one machine.
    let states = tables[1]["rows"].as_array().unwrap().iter().map(|row| row["state"].to_string());
    assert!(states.into_iter().any(|state| state.contains("without --hosts")), "{done:?}");
}

/// sshd at 127.0.0.2 and 127.0.0.3, for the user that runs the test.
struct Sshd {
    daemon: Child,
    port: u16,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl Sshd {
    /// `None`, with the reason printed, where it does not start.
    fn start(directory: &Path) -> Option<Self> {
        let sshd = PathBuf::from("/usr/sbin/sshd");
        if !sshd.exists() {
            eprintln!("skipped: no sshd here (apt install openssh-server)");
            return None;
        }
        let key = |name: &str| {
            let words = ["-q", "-t", "ed25519", "-N", "", "-f", name];
            Command::new("ssh-keygen").args(words).current_dir(directory).status().unwrap();
        };
        key("host_key");
        key("key");
        let port = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap().port();
        let here = directory.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.2\nListenAddress 127.0.0.3\nHostKey {here}/host_key\nPidFile none\n\
             AuthorizedKeysFile {here}/key.pub\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n\
             SetEnv PATH={here}/bin:/usr/bin:/bin\n"
        );
        fs::write(directory.join("sshd_config"), config).unwrap();
        // Debian's service makes it.
        let _ = fs::create_dir("/run/sshd");
        let log = fs::File::create(directory.join("sshd.log")).unwrap();
        let daemon = Command::new(&sshd)
            .args(["-D", "-e", "-f", "sshd_config"])
            .current_dir(directory)
            .stderr(log)
            .spawn()
            .unwrap();
        let mut started = Self { daemon, port };
        let since = Instant::now();
        while TcpStream::connect(("127.0.0.3", port)).is_err() {
            if started.daemon.try_wait().unwrap().is_some() || since.elapsed() > Duration::from_secs(10) {
                let log = fs::read_to_string(directory.join("sshd.log")).unwrap_or_default();
                eprintln!("skipped: sshd does not start: {log}");
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(started)
    }

    /// The command, whose ssh takes the key and trusts the host.
    fn run(&self, directory: &Path, args: &str) -> Done {
        let here = directory.display();
        let config = format!(
            "IdentityFile {here}/key\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nPort {}\n",
            self.port
        );
        fs::write(directory.join("ssh_config"), config).unwrap();
        program(&directory.join("bin/ssh"), &format!("exec /usr/bin/ssh -F {here}/ssh_config \"$@\""));
        let link = directory.join("bin/forebay");
        let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), link);
        finish(with_programs(directory, args))
    }
}

#[test]
fn over_a_real_sshd() {
    let directory = bed();
    let Some(sshd) = Sshd::start(directory.path()) else { return };
    sample(directory.path(), "it's", 8 << 20);
    let here = directory.path().display();
    // Nobody listens at 127.0.0.4.
    let hosts = "127.0.0.2,127.0.0.3,127.0.0.4";
    let done = sshd.run(directory.path(), &format!("bench --hosts {hosts} -f {here}/it's -i 1M --json -"));
    assert_eq!(done.code, Some(3), "{done:?}");
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(report["sums"][0]["hosts"], 2, "{report}");
    let refused = "Connection refused";
    assert!(report["hosts"][2]["error"].as_str().unwrap().contains(refused), "{report}");
    assert_eq!(names(&done.err)[..4], ["host", "127.0.0.2", "127.0.0.3", "sum"], "{}", done.err);

    fs::create_dir(directory.path().join("data")).unwrap();
    let args = format!("report gds-modes --quick --seconds 0.05 --size 16M --hosts {hosts} data -o out");
    sshd.run(directory.path(), &args).ok();
    let report = json(&directory.path().join("out/report.json"));
    let run = &report["tables"][0]["rows"][0]["runs"][0];
    assert_eq!(run["pairs"].as_array().unwrap().len(), 2, "{run}");
    assert!(run["notes"].to_string().contains(refused), "{run}");
}
