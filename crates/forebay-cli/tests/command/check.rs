//! `forebay check` on the machine that runs the tests, as a program.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The program, away from the caller's environment.
fn check(arguments: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("check").args(arguments).current_dir(dir);
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_") || name.starts_with("CUFILE_"))
    {
        command.env_remove(name);
    }
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn sample(dir: &Path) -> PathBuf {
    let path = dir.join("sample");
    std::fs::write(&path, vec![7u8; 100_001]).unwrap();
    path
}

#[test]
fn the_report_has_gdscheck_s_sections_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let output = check(&["-p", "."], dir.path());
    let text = stdout(&output);
    let titles = [
        "ENVIRONMENT:",
        "DRIVER CONFIGURATION:",
        "CUFILE CONFIGURATION:",
        "GPU INFO:",
        "PLATFORM INFO:",
        "findings",
    ];
    let places: Vec<usize> =
        titles.iter().map(|title| text.find(title).unwrap_or_else(|| panic!("{title}\n{text}"))).collect();
    assert!(places.is_sorted(), "{text}");
    assert!(text.contains(" NVMe P2PDMA        : Unsupported\n"));
}

#[test]
fn a_probe_moves_bytes_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let report = json(&check(&["--json", "."], dir.path()));
    let places = report["places"].as_array().unwrap();
    assert_eq!(places.len(), 1);
    let host =
        report["verdicts"].as_array().unwrap().iter().find(|verdict| verdict["engine"] == "host").unwrap();
    assert_eq!(host["state"], "works", "{host}");
    assert_eq!(host["exercise"]["warm"]["bytes"], 8 << 20);
    assert_eq!(host["exercise"]["write"]["state"], "works");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(report["schema"], "forebay.check/3");
}

#[test]
fn without_a_gpu_it_says_so_and_is_degraded() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["check", "."]).current_dir(dir.path()).env("FOREBAY_LIBCUDA", "/nonexistent/libcuda.so.1");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = stdout(&output);
    assert!(text.contains(" no GPU: the CUDA driver is missing or offers none\n"), "{text}");
    assert!(text.contains("host      works"), "{text}");
    assert!(!text.contains("succeeded"));
}

#[test]
fn a_file_is_registered_only_by_reading_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = sample(dir.path());
    let output = check(&["-f", file.to_str().unwrap()], dir.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    assert!(text.starts_with(" GDS register success\n"), "{text}");
    assert!(text.contains("read 100001 bytes"), "{text}");
}

#[test]
fn files_that_cannot_be_read_fail() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("empty"), "").unwrap();
    for name in ["missing", ".", "empty", "/dev/null"] {
        let output = check(&["-f", name], dir.path());
        assert_eq!(output.status.code(), Some(2), "{name}: {output:?}");
        let text = stdout(&output);
        assert!(text.starts_with(" GDS register error: ") && text.contains("\n hint: "), "{name}: {text}");
    }
}

#[test]
fn wrong_arguments_fail_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [["-d", "99"], ["-d99", "-fsample"], ["--json", "/no/such/place"]] {
        let output = check(&arguments, dir.path());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains("hint: "), "{output:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_file_as_a_place_is_only_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = sample(dir.path());
    let report = json(&check(&["--json", file.to_str().unwrap()], dir.path()));
    let host =
        report["verdicts"].as_array().unwrap().iter().find(|verdict| verdict["engine"] == "host").unwrap();
    assert_eq!(host["exercise"]["warm"]["bytes"], 100_001, "{host}");
    assert_eq!(host["exercise"]["write"]["state"], "skipped");
    assert_eq!(std::fs::read(file).unwrap(), vec![7u8; 100_001]);
}

#[test]
fn a_wrong_option_is_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let output =
        command.args(["check", "."]).current_dir(dir.path()).env("FOREBAY_SLOTS", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).contains("fix: use FOREBAY_SLOTS=2..64"), "{output:?}");
}

#[test]
fn where_nothing_may_be_written_a_file_that_is_there_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = sample(dir.path());
    let path = dir.path().to_str().unwrap();
    let script = format!(
        "mount --bind {path} {path} && mount -o remount,bind,ro {path} && exec \"$0\" check --json {path}"
    );
    let output =
        Command::new("unshare").args(["-rm", "sh", "-c", &script, env!("CARGO_BIN_EXE_forebay")]).output();
    let output = output.unwrap();
    if stderr(&output).contains("unshare") {
        eprintln!("skipped: no user and mount namespaces here: {}", stderr(&output));
        return;
    }
    let report = json(&output);
    let host = report["verdicts"].as_array().unwrap().iter().find(|one| one["engine"] == "host").unwrap();
    assert_eq!(
        (&host["state"], &host["exercise"]["write"]["state"]),
        (&"works".into(), &"skipped".into()),
        "{host}"
    );
    assert_eq!(host["exercise"]["warm"]["bytes"], 100_001, "{host}");
    assert_eq!(report["overall"], "degraded");
    assert_eq!(std::fs::read(file).unwrap().len(), 100_001);
}

#[test]
fn where_nothing_can_be_read_either_it_is_not_exercised() {
    let output = check(&["--json", "/proc/self/fdinfo"], Path::new("/tmp"));
    let report = json(&output);
    assert_ne!(report["overall"], "unusable", "{output:?}");
    let found =
        report["findings"].as_array().unwrap().iter().find(|one| one["id"] == "not-exercised").unwrap();
    assert!(found["text"].as_str().unwrap().starts_with("nothing was exercised"), "{found}");
}

#[test]
fn only_what_blocks_fails_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    for (variable, code) in [("FOREBAY_LIBCUDA=/nonexistent", 0), ("FOREBAY_SLOTS=1", 2)] {
        let (name, value) = variable.split_once('=').unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["check", "--fail-on", "blocks", "."]).current_dir(dir.path()).env(name, value);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
}

/// Of another machine's files: nothing is tried there.
#[test]
fn the_topology_alone() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("sys/devices/pci0000:00/0000:00:03.0");
    std::fs::create_dir_all(device.join("virtio1/block/vda")).unwrap();
    std::fs::write(device.join("virtio1/block/vda/size"), "8").unwrap();
    for (link, to) in [
        ("sys/bus/pci/devices/0000:00:03.0", "/sys/devices/pci0000:00/0000:00:03.0"),
        ("sys/class/block/vda", "/sys/devices/pci0000:00/0000:00:03.0/virtio1/block/vda"),
    ] {
        let link = dir.path().join(link);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, link).unwrap();
    }
    let root = dir.path().display().to_string();
    let output = check(&["-t", "--root", &root], dir.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = [
        "name  PCI address   link  NUMA node  firmware  model",
        "vda   0000:00:03.0  -     -          -         virtio disk",
        "",
        "     vda",
        "vda  X",
    ];
    assert_eq!(stdout(&output).lines().take(5).collect::<Vec<_>>(), lines);
    let json: Value = serde_json::from_str(&stdout(&check(&["-t", "--json"], dir.path()))).unwrap();
    assert!(
        json["matrix"].as_array().unwrap().iter().all(|row| !row.as_array().unwrap().is_empty()),
        "{json}"
    );
    let wrong = check(&["-t", "--root", "/nowhere"], dir.path());
    assert_eq!(wrong.status.code(), Some(2));
}

/// gdscheck's `-V`: the modes of each kind of target, and no more.
#[test]
fn the_targets_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let said = stdout(&command.args(["check", "-V", "."]).current_dir(dir.path()).output().unwrap());
    assert!(said.starts_with(" =====================\n DRIVER CONFIGURATION:\n"), "{said}");
    assert!(said.contains(": compat\n") && !said.contains("GPU INFO"), "{said}");
}

#[test]
fn gdscheck_py_is_a_name_too_and_the_own_library_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (program, lib) = (dir.path().join("gdscheck.py"), dir.path().join("lib"));
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
    std::fs::create_dir(&lib).unwrap();
    let version =
        || stdout(&Command::new(&program).arg("-v").env_remove("FOREBAY_LIBCUFILE").output().unwrap());
    let help = stdout(&Command::new(&program).arg("-h").output().unwrap());
    assert!(help.contains("Writes probes of 8 MiB"), "{help}");
    let without = version();
    assert!(!without.contains("libcufile version: forebay"), "{without}");
    let drop_in = fake_drop_in(&dir.path().join("libcufile.so.0"));
    if !drop_in {
        eprintln!("skipped the second half: no C compiler here");
        return;
    }
    let with = version();
    let line = format!("libcufile version: forebay {} (", env!("CARGO_PKG_VERSION"));
    assert!(with.contains(&line) && with.contains("libcufile.so.0)"), "{with}");
}

/// A library with the drop-in's SONAME.
fn fake_drop_in(path: &Path) -> bool {
    let source = path.with_extension("c");
    std::fs::write(&source, "int forebay;\n").unwrap();
    let mut command = Command::new("cc");
    command.args(["-shared", "-Wl,-soname,libcufile.so.0", "-o"]).arg(path).arg(&source);
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn versions() {
    let dir = tempfile::tempdir().unwrap();
    let output = check(&["-v"], dir.path());
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    assert!(
        text.starts_with(" GDS release version: forebay ") && text.contains(" nvidia_fs version:  "),
        "{text}"
    );
}

#[test]
fn what_forbids_reading_in_place_is_said_with_its_fix() {
    let dir = tempfile::tempdir().unwrap();
    for (name, value, reason, fix) in [
        ("FOREBAY_PIN_BUDGET", "0", "switched off", "unset FOREBAY_PIN_BUDGET"),
        ("FOREBAY_ENGINE", "staged", "staged was asked for", "unset FOREBAY_ENGINE"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["check", "--json", "."]).current_dir(dir.path());
        command.env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap()).env(name, value);
        let report = json(&command.output().unwrap());
        let verdicts = report["verdicts"].as_array().unwrap();
        let mapped = verdicts.iter().find(|verdict| verdict["engine"] == "mapped").unwrap();
        assert_eq!(mapped["state"], "refused", "{mapped}");
        let why = &mapped["reasons"][0];
        assert!(why["text"].as_str().unwrap().contains(reason), "{mapped}");
        assert!(why["fix"].as_str().unwrap().contains(fix), "{mapped}");
        let staged = verdicts.iter().find(|verdict| verdict["engine"] == "staged").unwrap();
        assert_eq!(staged["state"], "works", "{staged}");
    }
}

#[test]
fn a_directory_for_a_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let (served, other) = (dir.path().join("served"), dir.path().join("other"));
    std::fs::create_dir(&served).unwrap();
    std::os::unix::fs::symlink(&served, &other).unwrap();
    let output = check(&["served", "--gateway", "other", "--json"], dir.path());
    let report = json(&output);
    let facts = report["facts"].as_array().unwrap();
    let found = |id: &str| facts.iter().find(|fact| fact["id"] == id).unwrap();
    for id in ["link-refuses", "locks"] {
        assert_eq!((&found(id)["found"], &found(id)["state"]), (&"yes".into(), &"ok".into()), "{report}");
    }
    assert!(found("replaced")["found"].as_str().unwrap().starts_with("keeps the old one"), "{report}");
    assert_eq!(report["operations"].as_array().unwrap().len(), 8, "{report}");
    let text = stdout(&check(&["served", "--gateway"], dir.path()));
    assert!(
        text.contains("one mount: what another one sees was not tried") && text.contains("If-None-Match"),
        "{text}"
    );
    // Nothing of the trial is left.
    let left: Vec<_> = std::fs::read_dir(served.join(".forebay")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let output = check(&["--gateway"], dir.path());
    assert!(output.status.code() == Some(2) && stderr(&output).contains("one directory"), "{output:?}");
    let output = check(&["nowhere", "--gateway"], dir.path());
    assert!(output.status.code() == Some(2) && stderr(&output).contains("path=nowhere"), "{output:?}");
    let output = check(&["served", "--gateway", "missing"], dir.path());
    assert!(output.status.code() == Some(2) && stderr(&output).contains("path=missing"), "{output:?}");
}
