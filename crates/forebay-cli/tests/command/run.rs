//! `forebay run` and `forebay trace`: the environment, the exit code, signals, the output at the end.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::support::{Done, finish, forebay};
use forebay_stats::{Counters, Io, Moved, Way};
use forebay_trace::{Api, EngineCode, EngineKind, MemoryCode, Record, Trace};
use tempfile::TempDir;

/// A library with the drop-in's SONAME that does nothing but exist.
fn library() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        compile(
            folder.path(),
            "libcufile.so",
            "int cuFileDriverOpen(void) { return 77; }",
            &["-shared", "-fPIC", "-Wl,-soname,libcufile.so.0"],
        );
        compile(folder.path(), "libother.so", "int x;", &["-shared", "-fPIC", "-Wl,-soname,libother.so.3"]);
        folder
    };
    FOLDER.get_or_init(make).path()
}

fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (file, out) = (folder.join("source.c"), folder.join(name));
    fs::write(&file, source).unwrap();
    let done = Command::new("cc").args(["-o"]).arg(&out).arg(&file).args(flags).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    out
}

/// `forebay run --lib … FLAGS -- COMMAND`.
fn command(flags: &str, words: &[&str]) -> Command {
    let mut command = forebay();
    for name in ["KVIKIO_COMPAT_MODE", "CUFILE_ENV_PATH_JSON", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command.arg("run").arg("--lib").arg(library()).args(flags.split_whitespace()).arg("--").args(words);
    command
}

fn run(flags: &str, words: &[&str]) -> Done {
    finish(command(flags, words))
}

/// This test program, to run one of its `child_…` tests, which do nothing by themselves.
fn this() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

/// Text with what differs from run to run taken out.
fn plain(text: &str, folder: &Path) -> String {
    let text = text.replace(folder.to_str().unwrap(), "DIR").replace(library().to_str().unwrap(), "LIB");
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("process ") {
        let (before, after) = rest.split_at(at + "process ".len());
        let digits = after.chars().take_while(char::is_ascii_digit).count();
        let _ = write!(plain, "{before}{}", if digits > 0 { "PID" } else { "" });
        rest = &after[digits..];
    }
    plain + rest
}

#[test]
fn the_child_finds_the_drop_in_before_all_others() {
    let script = "echo \"$LD_PRELOAD|$LD_LIBRARY_PATH|$KVIKIO_COMPAT_MODE|$CUFILE_ENV_PATH_JSON\"; \
        folder=${LD_LIBRARY_PATH%%:*}; readlink $folder/libcufile.so.0 $folder/libcufile.so; cat $CUFILE_ENV_PATH_JSON; \
        grep -c libcufile.so /proc/self/maps; echo \"${FOREBAY_TRACE-none} ${FOREBAY_COUNTERS_DIR-none}\"";
    let done = run("", &["sh", "-c", script]).ok();
    let lines: Vec<_> = done.out.lines().collect();
    let folder = lines[0].split("/libcufile.so.0").next().unwrap();
    let json =
        if Path::new("/etc/cufile.json").exists() { String::new() } else { format!("{folder}/cufile.json") };
    assert_eq!(lines[0], format!("{folder}/libcufile.so.0|{folder}|OFF|{json}"));
    let real = fs::canonicalize(library().join("libcufile.so")).unwrap();
    assert_eq!(lines[1..3], [real.to_str().unwrap(); 2]);
    if !json.is_empty() {
        assert_eq!(lines[3], "{}");
    }
    let count: u32 = lines[lines.len() - 2].parse().unwrap();
    assert!(count > 0, "it is loaded: {done:?}");
    assert_eq!(*lines.last().unwrap(), "none none");
    assert!(!Path::new(folder).exists(), "the folder goes with the command");
    assert_eq!(done.err, "");
}

#[test]
fn what_the_user_set_stays() {
    let mut command = command(
        "",
        &["sh", "-c", "echo \"$LD_PRELOAD|$LD_LIBRARY_PATH|$KVIKIO_COMPAT_MODE|$CUFILE_ENV_PATH_JSON\""],
    );
    let other = library().join("libother.so");
    command.env("LD_PRELOAD", &other).env("LD_LIBRARY_PATH", "/one:/two");
    command.env("KVIKIO_COMPAT_MODE", "AUTO").env("CUFILE_ENV_PATH_JSON", "/my.json");
    // A colon in TMPDIR would split the loader's lists.
    let temporary = tempfile::Builder::new().prefix("a:b").tempdir().unwrap();
    command.env("TMPDIR", temporary.path());
    let done = finish(command).ok();
    let parts: Vec<_> = done.out.trim_end().split('|').collect();
    assert!(parts[0].ends_with(&format!("/libcufile.so.0:{}", other.display())), "{done:?}");
    assert!(parts[1].ends_with(":/one:/two") && !parts[1].contains("a:b"), "{done:?}");
    assert_eq!(parts[2..], ["AUTO", "/my.json"]);
}

#[test]
fn both_names_open_the_drop_in() {
    let open = "import ctypes,sys\nprint([ctypes.CDLL(n).cuFileDriverOpen() for n in sys.argv[1:]])";
    let done = run("", &["python3", "-c", open, "libcufile.so.0", "libcufile.so"]);
    if done.code == Some(127) {
        eprintln!("skipped: no python3 here");
        return;
    }
    assert_eq!(done.ok().out, "[77, 77]\n");
}

#[test]
fn the_exit_code_is_that_of_the_program() {
    assert_eq!(run("", &["sh", "-c", "exit 42"]).code, Some(42));
    assert_eq!(run("", &["sh", "-c", "kill -9 $$"]).code, Some(128 + 9));
    assert_eq!(run("", &["sh", "-c", "cat; echo done"]).ok().out, "done\n", "standard input is inherited");
}

/// Starts `script`, waits for its first line, sends a signal to `forebay` alone; the rest of the output and the code.
fn signalled(signal: libc::c_int, script: &str) -> (String, Option<i32>) {
    let mut command = command("", &["sh", "-c", script]);
    crate::support::as_in_a_terminal(&mut command);
    let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    // SAFETY: our own child, not yet reaped.
    unsafe { libc::kill(child.id() as libc::pid_t, signal) };
    line.clear();
    out.read_to_string(&mut line).unwrap();
    (line, child.wait().unwrap().code())
}

#[test]
fn signals_reach_the_child_and_only_it_decides() {
    let script = "trap 'echo caught; exit 5' TERM INT USR1; echo ready; n=0; while [ $n -lt 600 ]; do sleep 0.05; n=$((n+1)); done";
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1] {
        assert_eq!(signalled(signal, script), ("caught\n".into(), Some(5)), "{signal}");
    }
    let (_, code) = signalled(libc::SIGTERM, "echo ready; exec sleep 60");
    assert_eq!(code, Some(128 + 15));
}

#[test]
fn child_moves_bytes() {
    if std::env::var_os("FOREBAY_COUNTERS_DIR").is_none() {
        return;
    }
    let counters = Counters::open().unwrap();
    let latency = Duration::from_micros(80);
    counters.read(Io { bytes: 1 << 20, latency, gpu: Some(0), unaligned: false, posix: false, ok: true });
    counters.engine("staged", Moved::of(Way::Cached, 1 << 20));
}

#[test]
fn the_receipt_tells_what_moved() {
    let done = run("--receipt", &[&this(), "run::child_moves_bytes", "--exact"]).ok();
    assert!(done.err.starts_with("receipt of process "), "{done:?}");
    assert!(done.err.contains("staged") && done.err.contains("1.0 MiB"), "{done:?}");
    assert!(!done.err.contains("fastsafetensors"), "what worked needs no hints: {done:?}");
    let stats = run("--stats", &[&this(), "run::child_moves_bytes", "--exact"]).ok();
    assert!(!stats.err.contains("receipt") && stats.err.contains("Read"), "{stats:?}");
}

#[test]
fn the_receipt_says_why_nothing_moved() {
    let folder = tempfile::tempdir().unwrap();
    let source = "int main(void) { return 3; }";
    let dynamic = compile(folder.path(), "dynamic", source, &[]);
    let mut text = String::new();
    let gate = Path::new("/dev/nvidia-fs0").exists();
    for (program, mode) in [(dynamic.as_path(), None), (dynamic.as_path(), Some("ON"))] {
        let mut command = command("--receipt", &[program.to_str().unwrap()]);
        if let Some(mode) = mode {
            command.env("KVIKIO_COMPAT_MODE", mode);
        }
        let done = finish(command);
        assert_eq!(done.code, Some(3));
        let _ = writeln!(text, "KVIKIO_COMPAT_MODE={mode:?}\n{}", plain(&done.err, folder.path()));
    }
    if gate {
        eprintln!("skipped: the words, since /dev/nvidia-fs0 exists here");
    } else {
        insta::assert_snapshot!("unused", text);
    }
    let statically = Command::new("cc")
        .args(["-static", "-o"])
        .arg(folder.path().join("static"))
        .arg(folder.path().join("source.c"))
        .output();
    if statically.is_ok_and(|done| done.status.success()) {
        let done = run("--receipt", &[folder.path().join("static").to_str().unwrap()]);
        assert!(done.err.contains("linked statically"), "{done:?}");
    } else {
        eprintln!("skipped: static programs cannot be linked here");
    }
}

#[test]
fn child_traces() {
    let Some(path) = std::env::var_os("FOREBAY_TRACE") else { return };
    let trace = Trace::create(path).unwrap();
    let file = trace.file("/data/model");
    let call = |index: u64| Record {
        api: if index.is_multiple_of(4) { Api::Write } else { Api::Read },
        memory: MemoryCode::Device,
        engine: if index.is_multiple_of(2) {
            EngineCode::One(EngineKind::Mapped)
        } else {
            EngineCode::One(EngineKind::Staged)
        },
        gpu: Some(0),
        thread: 7,
        start: index * 1_000_000,
        latency: 500_000 + index * 1000,
        file,
        offset: (index << 20) as i64,
        size: 1 << 20,
        result: if index == 5 { -5 } else { 1 << 20 },
        address: 0x7000_0000,
        ..Record::default()
    };
    for index in 0..8 {
        trace.record(&call(index));
    }
    let register = Record {
        api: Api::HandleRegister,
        thread: 7,
        latency: 9000,
        file,
        size: 8 << 20,
        ..Record::default()
    };
    trace.record(&register);
}

#[test]
fn a_trace_is_written_told_and_summed_up() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |mut command: Command| {
        finish({
            command.current_dir(folder.path());
            command
        })
    };
    // Two processes in one run, the shell itself without.
    let script = format!("cd /; {0} run::child_traces --exact && {0} run::child_traces --exact", this());
    let done = in_folder(command("--trace calls", &["sh", "-c", &script])).ok();
    let names = crate::support::names(folder.path());
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[0] == "calls" && names[1].starts_with("calls."), "{names:?}");
    assert_eq!(done.err.lines().filter(|line| line.starts_with("trace: ")).count(), 2, "{done:?}");

    // A second run replaces the first one's.
    let done = in_folder(command("--trace calls", &[&this(), "run::child_traces", "--exact"])).ok();
    let told = plain(&done.err, &fs::canonicalize(folder.path()).unwrap());
    assert!(told.starts_with("trace: DIR/calls (process PID: command-"), "{told}");
    assert_eq!(crate::support::names(folder.path()), names);

    let summary = crate::support::run(folder.path(), "trace calls").ok().out;
    let shown: Vec<_> = summary.lines().skip(2).collect();
    insta::assert_snapshot!("trace", shown.join("\n"));
    let csv = crate::support::run(folder.path(), "trace --csv calls").ok().out;
    insta::assert_snapshot!("trace_csv", csv);
    let json = crate::support::run(folder.path(), "trace --json calls").ok().out;
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 11);
    assert_eq!(lines[0]["type"], "header");
    assert_eq!((&lines[1]["type"], &lines[1]["path"]), (&"call".into(), &"/data/model".into()));
    assert_eq!(lines[10]["summary"]["calls"], 9);
}

#[test]
fn names_in_a_trace_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let trace = Trace::create(folder.path().join("t")).unwrap();
    let file = trace.file("/data/\u{1b}[2J\n\u{9b}31m,\"");
    trace.record(&Record { api: Api::Read, file, size: 4096, result: 4096, latency: 1, ..Record::default() });
    trace.finish();
    for flags in ["", "--csv ", "--json "] {
        let text = crate::support::run(folder.path(), &format!("trace {flags}t")).ok().out;
        assert!(text.contains("/data/\\u"), "{text}");
        let odd = text.chars().find(|&c| c.is_control() && c != '\n');
        assert!(odd.is_none(), "{odd:?} in {text:?}");
    }
}

/// Opening a FIFO waits for its other end.
#[test]
fn fifos_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("fifo")).status().unwrap().success());
    let library = library().to_str().unwrap();
    for (args, why) in [
        (format!("run --lib {library} --trace fifo -- true"), "cannot make the trace: it is a FIFO"),
        ("run --lib fifo -- true".to_owned(), "it is a FIFO"),
    ] {
        crate::support::run(folder.path(), &args).fails(1, why);
    }
}

#[test]
fn refusals() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model"), "weights").unwrap();
    fs::write(folder.path().join("text"), "no program").unwrap();
    let other = library().join("libother.so").to_str().unwrap().to_owned();
    let mut text = String::new();
    for (args, code) in [
        ("run", 2),
        ("run --lib /no/such/folder -- true", 1),
        ("run --lib . -- true", 1),
        (&format!("run --lib {other} -- true"), 1),
        ("run --lib model -- true", 1),
        ("run --lib LIB --trace model -- true", 1),
        ("run --lib LIB --trace no/such -- true", 1),
        ("run --lib LIB --trace . -- true", 1),
        ("run --lib LIB --trace t -- true", 0),
        ("run --lib LIB -- no-such-program", 127),
        ("run --lib LIB -- ./text", 126),
        ("trace missing", 1),
        ("trace model", 1),
    ] {
        let line = args.replace("LIB", library().to_str().unwrap());
        let done = crate::support::run(folder.path(), &line);
        assert_eq!(done.code, Some(code), "{args}: {done:?}");
        let _ =
            write!(text, "$ forebay {}\n{}\n", plain(args, folder.path()), plain(&done.err, folder.path()));
    }
    insta::assert_snapshot!("run_refusals", text);
    assert_eq!(crate::support::names(folder.path()), ["model", "text"]);
}

#[test]
fn the_library_beside_the_executable_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir_all(folder.path().join("lib/forebay")).unwrap();
    fs::create_dir(&bin).unwrap();
    let exe = bin.join("forebay");
    fs::copy(env!("CARGO_BIN_EXE_forebay"), &exe).unwrap();
    let start = || {
        let mut command = crate::support::clean(Command::new(&exe));
        command.args(["run", "--", "sh", "-c", "readlink ${LD_LIBRARY_PATH%%:*}/libcufile.so"]);
        finish(command)
    };
    start().fails(1, "cannot find forebay's libcufile.so.0");
    let library = library().join("libcufile.so");
    for place in ["bin/libcufile.so", "lib/libcufile.so.0", "lib/forebay/libcufile.so.0"] {
        fs::copy(&library, folder.path().join(place)).unwrap();
        let real = fs::canonicalize(folder.path().join(place)).unwrap();
        assert_eq!(start().ok().out.trim_end(), real.to_str().unwrap(), "{place} comes before the others");
    }
}

/// The Python package's part is in tests/python/test_patch.py: here a shell does what it would do.
#[test]
fn the_end_tells_how_many_processes_were_patched() {
    let says = "test \"$FOREBAY_PATCH\" = safetensors && echo 1 >>\"$FOREBAY_PATCH_SEEN\"";
    let done = run("--patch safetensors", &["sh", "-c", &format!("{says} && {says}")]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), "safetensors: patched in 2 processes\n"));
    let done = run("--patch safetensors", &["sh", "-c", says]);
    assert_eq!(done.err, "safetensors: patched in 1 process\n");
    let done = run("--patch safetensors", &["true"]);
    assert!(done.err.starts_with("note: no process of this run was patched"), "{}", done.err);
    let done = run("--patch torch", &["true"]);
    assert_eq!(done.code, Some(2));
    assert!(done.err.contains("safetensors"), "{}", done.err);
}

#[test]
fn help() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!("help_run", crate::support::run(folder.path(), "run --help").ok().out);
    insta::assert_snapshot!("help_trace", crate::support::run(folder.path(), "trace --help").ok().out);
}

/// Where no log was asked for, the library has no place to say it.
#[test]
fn a_broken_or_misread_cufile_json_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cufile.json");
    for (text, wanted) in [
        ("{ \"logging\": ", "note: cannot read cufile.json: not JSON"),
        (r#"{"properties": {"io_batchsize": "many"}}"#, "properties.io_batchsize: must be a whole number"),
        (r#"{"max_io_threads": 3}"#, "max_io_threads: belongs into"),
    ] {
        fs::write(&path, text).unwrap();
        let told = |log: Option<&str>| {
            let mut command = command("", &["true"]);
            command.env("CUFILE_ENV_PATH_JSON", &path);
            log.map(|log| command.env("FOREBAY_CUFILE_LOG", log));
            finish(command).ok().err
        };
        assert_eq!(told(None).matches(wanted).count(), 1, "{text}: {}", told(None));
        assert_eq!(told(Some("stderr")), "", "the library's log has it");
    }
    assert_eq!(run("", &["true"]).err, "");
}
