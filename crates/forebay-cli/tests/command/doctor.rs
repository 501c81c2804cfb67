//! `forebay doctor` as a program: on a made tree, on a running process, on this machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{finish, forebay, in_namespace, run, run_fake, sample};
use serde_json::Value;

/// A machine with a GPU and an NFS mount over TCP beside an RDMA link.
fn tree(root: &Path) {
    let nfs = "rw,vers=4.2,rsize=1048576,wsize=1048576,proto=tcp,port=2049,addr=10.0.0.1";
    for (path, text) in [
        ("proc/sys/kernel/osrelease", "6.8.0-60-generic\n".to_owned()),
        ("proc/self/status", "Name:\tx\nCapEff:\t0\n".to_owned()),
        (
            "proc/self/mountinfo",
            format!("27 1 0:40 / / rw - tmpfs none rw\n41 27 0:50 / /nfs rw - nfs4 10.0.0.1:/e {nfs}\n"),
        ),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n".to_owned(),
        ),
        ("proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t\t NVIDIA H100 PCIe\n".to_owned()),
        ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n".to_owned()),
        ("dev/nvidiactl", String::new()),
        ("dev/nvidia-uvm", String::new()),
        ("nfs/file", String::new()),
        ("var/log/kern.log", "[ 1.0] nfs: server 10.0.0.1 not responding, still trying\n".to_owned()),
    ] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[test]
fn a_saved_machine() {
    let directory = tempfile::tempdir().unwrap();
    tree(&directory.path().join("saved"));
    let done = run(directory.path(), "doctor --root saved /nfs");
    assert_eq!(done.code, Some(2), "{}", done.err);
    insta::assert_snapshot!("doctor", done.out);
    insta::assert_snapshot!(
        "doctor_json",
        run(directory.path(), "doctor --root saved --json --all /nfs").out
    );

    // The log answers later. The remaining finding is "slower", which fails unless only "blocks" shall fail.
    std::fs::write(directory.path().join("log"), "[ 1.0] nothing\n").unwrap();
    assert_eq!(run(directory.path(), "doctor --root saved --log log /nfs").code, Some(1));
    assert_eq!(run(directory.path(), "doctor --root saved --log log --fail-on blocks /nfs").code, Some(0));
    // Without the path it is one of many mounts: a note.
    assert_eq!(run(directory.path(), "doctor --root saved --log log").code, Some(0));
}

/// A process's variable may name anything: none of it is waited for, taken away or read without an end.
#[test]
fn a_process_names_what_is_no_plain_file() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = fifo(directory.path());
    for (named, what) in
        [(fifo.as_str(), "a FIFO"), ("/dev/zero", "a device"), ("/proc/kmsg", "made up by the kernel")]
    {
        let mut child = Command::new("sleep").arg("60").env("CUFILE_ENV_PATH_JSON", named).spawn().unwrap();
        let began = Instant::now();
        let done = run(directory.path(), &format!("doctor --all --pid {}", child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(began.elapsed() < Duration::from_secs(20), "{named}: {:?}", began.elapsed());
        assert!(done.out.contains("no plain file") && done.out.contains(what), "{named}: {done:?}");
    }
}

#[test]
fn no_command_waits_for_a_fifo() {
    let directory = tempfile::tempdir().unwrap();
    fifo(directory.path());
    sample(directory.path(), "x", 16 << 20);
    let report = directory.path().join("report");
    std::fs::create_dir(&report).unwrap();
    fifo(&report);
    std::fs::rename(report.join("fifo"), report.join("report.json")).unwrap();
    for (args, code) in [
        ("doctor --log fifo", 3),
        ("doctor --bench fifo", 3),
        ("doctor --severities fifo", 3),
        ("bench fifo", 2),
        ("report x -o r --spec fifo", 2),
        ("report --compare fifo fifo", 6),
        ("report --compare report report", 6),
        ("trace fifo", 1),
        ("replay fifo", 1),
    ] {
        run(directory.path(), args).fails(code, "it is a FIFO, no plain file");
    }
    run(directory.path(), "bench -f x --json fifo").fails(1, "it is a FIFO that nobody reads");
    let done = run(directory.path(), "bench /proc/kmsg");
    assert!(done.code == Some(2), "{done:?}");
}

fn fifo(directory: &Path) -> String {
    let path = directory.join("fifo").display().to_string();
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    path
}

#[test]
fn words_of_help() {
    let directory = tempfile::tempdir().unwrap();
    insta::assert_snapshot!("help_doctor", run(directory.path(), "doctor -h").ok().out);
}

#[test]
fn wrong_arguments_have_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 10);
    std::fs::write(directory.path().join("report.json"), "{\"schema\": \"forebay.report/1\"}").unwrap();
    for (args, word) in [
        ("doctor /no/such/place", "no such file or directory"),
        ("doctor --pid 4294967294", "no such process"),
        ("doctor --log missing", "cannot read file"),
        ("doctor --bench x", "is no report of forebay bench"),
        ("doctor --bench report.json", "is no report of forebay bench: it has no passes"),
        ("doctor --root .", "no root of a machine"),
        ("doctor --ignore nfs-versions", "no finding has the id nfs-versions"),
        ("doctor --severities x", "x:1: no line of severities"),
    ] {
        run(directory.path(), args).fails(3, word);
    }
    // A report that is lost is no warning, and one whose reader has read enough is whole.
    tree(&directory.path().join("saved"));
    for json in [&["--json"][..], &[]] {
        let saved = || {
            let mut command = forebay();
            command.current_dir(directory.path()).args(["doctor", "--root", "saved", "/nfs"]).args(json);
            command.stderr(Stdio::null());
            command
        };
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(saved().stdout(full).status().unwrap().code(), Some(3), "{json:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(saved().stdout(writer).status().unwrap().code(), Some(2), "{json:?}");
    }
    // Monitoring takes 2 for a fault.
    for args in ["doctor --server nfs1", "doctor --no-such-flag", "doctor --pid x"] {
        let done = run(directory.path(), args);
        assert!(done.code == Some(3) && done.err.contains("error: "), "{args}: {done:?}");
    }
}

#[test]
fn a_site_has_its_own_severities() {
    let directory = tempfile::tempdir().unwrap();
    tree(&directory.path().join("saved"));
    std::fs::write(directory.path().join("log"), "[ 1.0] nothing\n").unwrap();
    let look = |more: &str| run(directory.path(), &format!("doctor --root saved --log log {more} /nfs"));
    let severities = |text: &str| std::fs::write(directory.path().join("site"), text).unwrap();
    severities("nfs-not-rdma blocks   # ours\n");
    let done = look("--severities site");
    assert!(done.code == Some(2) && done.out.contains("blocks  nfs-not-rdma: "), "{}", done.out);
    severities("nfs-not-rdma note\n");
    assert_eq!(look("--severities site").code, Some(0));
    severities("nfs-not-rdma blocks\n");
    let done = look("--severities site --ignore nfs-not-rdma --ignore not-in-copy");
    assert!(done.code == Some(0) && done.out.ends_with("0 notes, 1 ok, 2 ignored\n"), "{}", done.out);
    let done = look("--json --ignore nfs-not-rdma");
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(report["ignored"], serde_json::json!(["nfs-not-rdma"]));
}

/// An `ssh` that runs the command on this machine, or does what the script says.
fn with_ssh(directory: &Path, script: &str, args: &str) -> crate::support::Done {
    let ssh = directory.join("bin/ssh");
    std::fs::create_dir_all(ssh.parent().unwrap()).unwrap();
    std::fs::write(
        &ssh,
        format!("#!/bin/sh\necho \"$@\" >{}\n{script}\n", directory.join("asked").display()),
    )
    .unwrap();
    std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.join("bin").display(), std::env::var("PATH").unwrap());
    let mut command = forebay();
    command.current_dir(directory).args(args.split_whitespace()).env("PATH", path);
    finish(command)
}

#[test]
fn a_server_is_looked_at_by_ssh() {
    let directory = tempfile::tempdir().unwrap();
    let here = r#"for command; do :; done; exec sh -c "$command""#;
    let done = with_ssh(directory.path(), here, "doctor --json --server ssh:root@nfs1 .");
    let report: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{done:?}"));
    assert_eq!(report["servers"], serde_json::json!(["root@nfs1"]));
    let asked = std::fs::read_to_string(directory.path().join("asked")).unwrap();
    let options = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ControlMaster=no";
    assert_eq!(asked, format!("{options} -- root@nfs1 sh\n"));
    if !Path::new("/proc/fs/nfsd/portlist").exists() {
        let found = report["findings"].as_array().unwrap();
        let absent = found.iter().find(|finding| finding["id"] == "nfs-server-absent").unwrap();
        assert_eq!(absent["host"], "root@nfs1");
        let text = with_ssh(directory.path(), here, "doctor --server ssh:root@nfs1 .").out;
        assert!(
            text.contains("nfs-server-absent on root@nfs1: ") && text.contains("fix on root@nfs1: "),
            "{text}"
        );
    }
}

#[test]
fn a_server_that_is_not_reached_is_no_fault_of_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let denied = "echo 'root@nfs1: Permission denied (publickey).' >&2; exit 255";
    let done = with_ssh(directory.path(), denied, "doctor --server ssh:root@nfs1 .");
    done.fails(3, "ssh failed: root@nfs1: Permission denied (publickey).");
    let done = with_ssh(directory.path(), "echo '>/etc/exports'", "doctor --server ssh:nfs1 .");
    done.fails(3, "its files were not all printed");
}

#[test]
fn names_with_spaces_and_links_are_one_place() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "da ta ß", 4096);
    std::os::unix::fs::symlink("da ta ß", directory.path().join("link")).unwrap();
    let mut command = forebay();
    command.current_dir(directory.path()).args(["doctor", "da ta ß", "link"]);
    let told = finish(command).out;
    let looked = told.lines().find(|line| line.starts_with("looked at: ")).unwrap();
    assert_eq!(looked.matches("da ta ß").count(), 1, "{told}");
}

#[test]
fn a_saved_benchmark_of_the_cpu_s_path() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 16 << 20);
    run_fake(directory.path(), "bench -f x -d 0 -x 2 -i 1M -T 1 --json two.json").ok();
    let report: Value =
        serde_json::from_str(&run(directory.path(), "doctor --json --bench two.json").out).unwrap();
    let found = report["findings"].as_array().unwrap();
    let kind = found.iter().find(|finding| finding["id"] == "transfer-type").unwrap();
    assert_eq!(kind["evidence"][0], "two.json: -x 2");
    assert!(!found.iter().any(|finding| finding["id"] == "bench-no-gpu"), "{report}");
    run(directory.path(), "bench -f x -d 0 -x 0 -i 1M -T 1 --json host.json").ok();
    let report = run(directory.path(), "doctor --bench host.json").out;
    assert!(report.contains("bench-no-gpu: the benchmark moved bytes to host memory"), "{report}");
}

#[test]
fn a_running_process_is_told_why_its_bytes_go_by_the_cpu() {
    let counters = forebay_stats::Counters::open_in(None).unwrap();
    counters.engine("staged", forebay_stats::Moved::of(forebay_stats::Way::Direct, 1 << 30));
    counters.refused("mapped", "pinning is switched off", Some("unset FOREBAY_PIN_BUDGET"), 1 << 30);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = std::fs::File::open(sample(directory.path(), "data", 4096)).unwrap();
    let told = run(directory.path(), &format!("doctor --pid {}", std::process::id())).out;
    assert!(
        told.contains("1 GiB of 1 GiB took the CPU's path, not mapped: pinning is switched off"),
        "{told}"
    );
    assert!(
        told.contains("fix: unset FOREBAY_PIN_BUDGET") && told.contains("staged: 1 GiB O_DIRECT"),
        "{told}"
    );
    assert!(told.contains("looked at: ") && told.contains("/data"), "its file: {told}");
    drop(open);
}

/// All bytes of a process are staged: each better engine has a reason, and something that can be typed.
#[test]
fn staged_bytes_have_a_reason_and_something_to_type() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    sample(directory.path(), "x", 64 << 20);
    for (engine, fixes) in [
        (
            None,
            &[
                "fix: forebay check ",
                "fix: forebay run --trace calls.trace -- COMMAND; forebay replay calls.trace",
            ][..],
        ),
        (
            Some("staged"),
            &["not mapped: the engine staged was asked for", "fix: leave the choice to forebay"],
        ),
    ] {
        let mut command = forebay();
        command
            .current_dir(directory.path())
            .args("bench -f x -d 0 -i 64K -x 0 -T 60 --drop-cache".split(' '));
        command
            .env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap())
            .envs(engine.map(|name| ("FOREBAY_ENGINE", name)));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        let told = loop {
            let told = run(directory.path(), &format!("doctor --pid {}", child.id())).out;
            if told.contains("cpu-path") || begun.elapsed() > Duration::from_secs(30) {
                break told;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        for fix in fixes {
            assert!(told.contains(fix), "{engine:?}: {told}");
        }
    }
}

#[test]
fn a_hidden_proc_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let script = |args: &str| {
        in_namespace(directory.path(), &format!("mount -t tmpfs none /proc && \"$FOREBAY\" doctor {args}"))
    };
    let Some(done) = script(".") else { return };
    assert!(done.out.contains("proc: /proc does not show this process"), "{}", done.out);
    assert!(
        !done.out.contains("memlock") && !done.out.contains("mount-missing"),
        "a false alarm: {}",
        done.out
    );
    let done = script("--pid 1").unwrap();
    assert!(done.err.contains("hint: mount -t proc proc /proc"), "{}", done.err);
}

#[test]
fn this_machine_is_read_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 4096);
    let mut command = forebay();
    command.current_dir(directory.path()).args(["doctor", "--json", "--fail-on", "blocks", "."]);
    let report: Value = serde_json::from_str(&finish(command).out).unwrap();
    assert_eq!(report["schema"], "forebay.doctor/1");
    assert_eq!(crate::support::names(directory.path()), ["x"]);
}

#[test]
fn the_way_to_an_object() {
    let server = fake_s3::FakeS3::start();
    server.put("weights", "model", "bytes");
    server.set_region("eu-west-9");
    let look = |line: &str| {
        let mut command = forebay();
        command.args(line.split(' ')).envs(server.environment()).env("AWS_REGION", "us-east-1");
        finish(command)
    };
    let done = look("doctor s3://weights/model");
    assert_eq!(done.code, Some(0), "{done:?}");
    for line in [
        "looked at: s3://weights/model\n",
        "note    s3-region: the bucket weights is in the region eu-west-9; requests are signed for us-east-1 first",
        "        fix: export AWS_REGION=eu-west-9\n",
        "0 blocking, 0 slower, 1 note, 2 ok\n",
    ] {
        assert!(done.out.contains(line), "no {line:?} in:\n{}", done.out);
    }
    server.set_region("us-east-1");
    let done = look("doctor --json --all s3://weights/model s3://weights/none");
    let report: Value = serde_json::from_str(&done.out).unwrap();
    let ids: Vec<_> =
        report["findings"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!((done.code, ids), (Some(2), vec!["s3-object", "s3-keys", "s3-object", "s3-keys"]));
    assert!(!done.out.contains(fake_s3::SECRET_KEY));
    assert_eq!(look("doctor --ignore s3-object s3://weights/none").code, Some(0));
    look("doctor s3://weights/model?x").fails(3, "an unknown option");
}
