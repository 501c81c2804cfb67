//! Programs in C, linked against the library, over the software GPU: each of `tests/c` is one topic of the interface.
//!
//! They run again under the address sanitizer, and those with threads under the thread sanitizer. Only the programs are
//! built with these (`make asan` builds the library with the first, too). What the first sees of the library then: memory that it frees twice or uses after it freed it (its
//! allocator is the program's), and memcpy and the like outside of an allocation; not what the kernel writes in system
//! calls of its own, so that `read_write` looks at the bytes behind each target. What the second sees: that nothing a
//! program does with results and handles between threads needs a lock of the program's own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod common;

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use common::{MANIFEST, cc, clean, library_folder, run, scratch, text_of, wait};

/// How long a program may take, sanitizers included.
const LIMIT: Duration = Duration::from_mins(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Plain,
    Address,
    Thread,
}

impl Kind {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::Address => &["-fsanitize=address"],
            Self::Thread => &["-fsanitize=thread"],
        }
    }
}

/// A program, and its path or the compiler's text, once it is compiled.
type BuiltPrograms = HashMap<(String, Kind), Arc<OnceLock<Result<PathBuf, String>>>>;

/// `tests/c/NAME.c` as a program, compiled once for all tests.
fn built(name: &str, kind: Kind) -> PathBuf {
    static BUILT: LazyLock<Mutex<BuiltPrograms>> = LazyLock::new(Mutex::default);
    let cell = Arc::clone(BUILT.lock().unwrap().entry((name.to_owned(), kind)).or_default());
    let program = cell.get_or_init(|| compile(name, kind)).clone();
    program.unwrap_or_else(|text| panic!("{name} does not compile:\n{text}"))
}

/// Compiles a program into a folder that is this library's and this kind's.
fn compile(name: &str, kind: Kind) -> Result<PathBuf, String> {
    let folder = library_folder().join(format!("{kind:?}"));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let program = folder.join(name);
    let mut command = cc();
    command.arg("-std=gnu11").args(kind.flags());
    command.arg(format!("{MANIFEST}/tests/c/{name}.c")).arg("-o").arg(&program);
    command.arg("-L").arg(library_folder()).args(["-lcufile", "-lpthread", "-ldl"]);
    let output = command.output().map_err(|error| format!("no C compiler: {error}"))?;
    if output.status.success() { Ok(program) } else { Err(text_of(&output)) }
}

/// Whether the compiler has a sanitizer that works on this machine, found out once; says why not.
fn works(kind: Kind) -> bool {
    static ADDRESS: OnceLock<bool> = OnceLock::new();
    static THREAD: OnceLock<bool> = OnceLock::new();
    let known = if kind == Kind::Address { &ADDRESS } else { &THREAD };
    let works = *known.get_or_init(|| try_out(kind));
    if !works {
        eprintln!("skipped: programs built with {:?} do not run here", kind.flags());
    }
    works
}

fn try_out(kind: Kind) -> bool {
    let folder = scratch();
    let (source, program) = (folder.path().join("probe.c"), folder.path().join("probe"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let built = cc().args(kind.flags()).arg(&source).arg("-o").arg(&program).output();
    let built = built.is_ok_and(|output| output.status.success());
    built && clean(&program).output().is_ok_and(|output| output.status.success())
}

/// Builds and runs a program; its failure is the test's.
fn check(name: &str, kind: Kind, variables: &[(&str, &str)]) {
    if kind == Kind::Plain || works(kind) {
        check_within(LIMIT, name, kind, variables);
    }
}

/// As [`check`], and it must not take longer than this; what it printed.
fn check_within(limit: Duration, name: &str, kind: Kind, variables: &[(&str, &str)]) -> String {
    let folder = scratch();
    let program = built(name, kind);
    let mut command = clean(&program);
    let gpu = fake_cuda::library_path().expect("the software GPU was built with these tests");
    command.arg(folder.path()).current_dir(folder.path()).env("FOREBAY_LIBCUDA", gpu);
    command
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1")
        .env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1 die_after_fork=0");
    command.envs(variables.iter().copied());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = wait(child, limit);
    let text = text_of(&output);
    for line in text.lines().filter(|line| line.starts_with("skipped:")) {
        eprintln!("{line}");
    }
    let status = output.status;
    assert!(status.success(), "{name} ({kind:?}): {status}, signal {:?}\n{text}", status.signal());
    let stray: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !stray.iter().any(|name| Path::new(name).extension().is_some_and(|end| end == "log")),
        "{name} left a log: {stray:?}"
    );
    text
}

macro_rules! programs {
    ($($name:ident: $($kind:ident),+;)+) => {
        $(mod $name {
            $(#[test]
            #[allow(non_snake_case)]
            fn $kind() {
                super::check(stringify!($name), super::programs!(@ $kind), &[]);
            })+
        })+
    };
    (@ plain) => { super::Kind::Plain };
    (@ address_sanitizer) => { super::Kind::Address };
    (@ thread) => { super::Kind::Thread };
}
use programs;

programs! {
    open_close: plain, address_sanitizer;
    before_cuda: plain, address_sanitizer;
    handles: plain, address_sanitizer;
    descriptor: plain;
    swapped: plain;
    close_all: plain;
    buffers: plain, address_sanitizer;
    read_write: plain, address_sanitizer;
    edges: plain, address_sanitizer;
    vectors: plain, address_sanitizer;
    batch: plain, address_sanitizer, thread;
    batch_rules: plain, address_sanitizer, thread;
    batch_two_threads: plain, thread;
    batch_few: plain, address_sanitizer, thread;
    stream: plain, address_sanitizer;
    stream_many: plain, address_sanitizer, thread;
    stream_rules: plain, address_sanitizer;
    capture_first: plain;
    default_stream: plain, address_sanitizer;
    parameters: plain, address_sanitizer;
    stats: plain, address_sanitizer;
    stats_version: plain, address_sanitizer;
    fork: plain;
    warm: plain;
    threads: plain, address_sanitizer, thread;
    cancel: plain, address_sanitizer;
    races: plain, address_sanitizer, thread;
    device_faults: plain, address_sanitizer;
    file_faults: plain;
}

#[test]
fn a_full_file_system() {
    check("file_faults", Kind::Plain, &[("CASE", "full")]);
}

/// The kernel's calls are the program's own: no ring, no mapping of cached pages.
#[test]
fn counts_of_good_prefixes() {
    check("good_prefix", Kind::Plain, &[("FOREBAY_IO", "threads"), ("FOREBAY_CACHE", "bypass")]);
}

/// One lane, which has 4 of 32 pieces in flight.
#[test]
fn cancelled_batches() {
    check("batch_cancel", Kind::Plain, &[("FOREBAY_LANES", "1")]);
}

#[test]
fn cancelled_batches_address_sanitizer() {
    check("batch_cancel", Kind::Address, &[("FOREBAY_LANES", "1")]);
}

#[test]
fn two_gpus() {
    check("two_gpus", Kind::Plain, &[("FAKE_CUDA_DEVICES", "2")]);
}

/// Work on default streams, in each state of the file's pages and without io_uring.
#[test]
fn calls_come_after_the_default_streams() {
    let pinned = [("FOREBAY_PIN_SETTLE", "20"), ("FOREBAY_PIN_PACE", "0")];
    check("default_stream", Kind::Plain, &pinned);
    check("default_stream", Kind::Plain, &[("FOREBAY_IO", "threads"), ("FOREBAY_OBJECTIVE", "cpu")]);
    check("default_stream", Kind::Plain, &[("FAKE_CUDA_CONNECTIONS", "2")]);
    check("default_stream", Kind::Plain, &[("CASE", "none"), ("FOREBAY_ORDER", "none")]);
    check("default_stream", Kind::Plain, &[("CASE", "captured")]);
}

/// Programs that were written without it in mind, over default streams that run late.
#[test]
fn late_default_streams() {
    for name in ["read_write", "batch", "threads"] {
        check(name, Kind::Plain, &[("FAKE_CUDA_DEFAULT_STREAM_DELAY_US", "500")]);
    }
}

/// Pages are pinned soon after a change.
#[test]
fn warm_files_that_settle_quickly() {
    check("warm", Kind::Plain, &[("FOREBAY_PIN_SETTLE", "20")]);
}

/// Without io_uring, as containers have it.
#[test]
fn plain_calls_do_as_well() {
    for name in ["read_write", "edges", "batch", "stream", "threads"] {
        check(name, Kind::Plain, &[("FOREBAY_IO", "threads")]);
    }
}

/// `works` is the case of `config.c`, `json` the text of the file, `variables` what stands beside it.
fn configured(case: &str, json: &str, variables: &[(&str, &str)]) {
    let folder = scratch();
    let path = folder.path().join("cufile.json");
    std::fs::write(&path, json).unwrap();
    let mut all = vec![("CASE", case), ("CUFILE_ENV_PATH_JSON", path.to_str().unwrap())];
    all.extend_from_slice(variables);
    check("config", Kind::Plain, &all);
}

const COMMENTED: &str = r#"{
    // NOTE: comments as the shipped file has them
    "logging": { "level": "ERROR" /* quiet */ },
    "profile": { "nvtx": false, "cufile_stats": 2 },
    "execution": { "max_io_threads": 3, "no_such_key": 7 },
    "properties": {
        "max_direct_io_size_kb": 2048, // a URL in a string is no comment
        "io_batchsize": 77,
        "max_batch_io_timeout_msecs": 9,
        "use_poll_mode": true,
        "poll_mode_max_size_kb": 4,
        "force_odirect_mode": false,
        "rdma_dev_addr_list": [ "http://192.0.2.1" ]
    },
    "no_such_section": { "a": [1, 2, {"b": null}] },
    "fs": { "generic": { "posix_unaligned_writes": false }, "block": { "misplaced": true } }
}
"#;

#[test]
fn cufile_json_holds() {
    configured("values", COMMENTED, &[]);
}

#[test]
fn variables_stand_over_the_file_and_the_program_over_both() {
    let json = r#"{"properties": {"force_compat_mode": false}}"#;
    configured("forced by environment", json, &[("CUFILE_FORCE_COMPAT_MODE", "true")]);
    configured("forced by environment", json, &[("CUFILE_FORCE_COMPAT_MODE", "1")]);
}

const NO_COMPAT: &str = r#"{"properties": {"allow_compat_mode": false}}"#;

#[test]
fn without_compat_mode_it_works_unless_strict() {
    configured("works", NO_COMPAT, &[]);
    configured("works", "{}", &[("CUFILE_ALLOW_COMPAT_MODE", "false")]);
    configured("strict", NO_COMPAT, &[("FOREBAY_CUFILE_STRICT_COMPAT", "1")]);
}

#[test]
fn a_file_that_cannot_be_read_or_understood_is_no_reason_to_stop() {
    configured("works", "{ this is not JSON", &[]);
    check("config", Kind::Plain, &[("CASE", "works"), ("CUFILE_ENV_PATH_JSON", "/nonexistent/cufile.json")]);
}

/// What variables name may be a FIFO without another end, a folder, a device.
#[test]
fn what_is_no_plain_file_is_not_waited_for() {
    let folder = scratch();
    let fifo = folder.path().join("fifo");
    run(std::process::Command::new("mkfifo").arg(&fifo));
    let limit = Duration::from_secs(20);
    let works = |variable: &str, value: &str| {
        let log = if variable.contains("LOG") { variable } else { "FOREBAY_CUFILE_LOG" };
        let variables =
            [("CASE", "works"), ("CUFILE_LOGGING_LEVEL", "WARN"), (log, "stderr"), (variable, value)];
        check_within(limit, "config", Kind::Plain, &variables)
    };
    let fifo = fifo.to_str().unwrap();
    for variable in ["CUFILE_LOGFILE_PATH", "FOREBAY_CUFILE_LOG", "FOREBAY_LIBCUDA"] {
        works(variable, fifo);
    }
    let text = works("FOREBAY_TRACE", fifo);
    assert!(text.contains("the trace's name is no plain file"), "{text}");
    for (path, what) in [(fifo, "a FIFO"), ("/", "a directory"), ("/dev/zero", "a device")] {
        let text = works("CUFILE_ENV_PATH_JSON", path);
        let wanted = format!("cannot read cufile.json: it is {what}, no plain file (path={path})");
        assert!(text.contains(&wanted), "{text}");
    }
    // Standard error is a pipe here.
    let variables = [
        ("CASE", "works"),
        ("CUFILE_LOGGING_LEVEL", "WARN"),
        ("CUFILE_LOGFILE_PATH", "/dev/stderr"),
        ("CUFILE_ENV_PATH_JSON", fifo),
    ];
    let text = check_within(limit, "config", Kind::Plain, &variables);
    assert!(text.contains("it is a FIFO"), "{text}");
}

/// What is wrong with the configuration stands in a log of the default level, once, however often the library is opened.
#[test]
fn a_wrong_configuration_is_said_once() {
    let folder = scratch();
    let json = folder.path().join("cufile.json");
    let json = json.to_str().unwrap();
    let log = ("FOREBAY_CUFILE_LOG", "stderr");
    for (text, wanted) in [
        ("{ this is not JSON", "cannot read cufile.json"),
        (r#"{"properties": {"io_batchsize": "many"}}"#, "properties.io_batchsize: must be a whole number"),
        (
            r#"{"properties": {"max_io_threads": 3}}"#,
            r#"properties.max_io_threads: belongs into "execution""#,
        ),
    ] {
        std::fs::write(json, text).unwrap();
        let said = check_within(LIMIT, "open_close", Kind::Plain, &[log, ("CUFILE_ENV_PATH_JSON", json)]);
        assert_eq!(said.matches("] ERROR  config: ").count(), 1, "{text}: {said}");
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let said = check_within(LIMIT, "open_close", Kind::Plain, &[log, ("FOREBAY_STRCT", "staged")]);
    let wanted =
        "config: FOREBAY_STRCT is no variable of forebay and does nothing; the nearest is FOREBAY_STRICT\n";
    assert_eq!(said.matches(wanted).count(), 1, "{said}");
}

/// The variable of the level alone is enough: the log goes to standard error then.
#[test]
fn the_level_trace_logs_every_call() {
    let said = check_within(LIMIT, "vectors", Kind::Plain, &[("CUFILE_LOGGING_LEVEL", "TRACE")]);
    for wanted in [
        "] TRACE  call: HandleRegister result=0 ",
        "] TRACE  call: Readv result=",
        " engine=mixed ",
        "/data\n",
        " error=\"invalid arguments (5022)\"",
        " error=\"Invalid argument (22)\"",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let quiet = check_within(LIMIT, "vectors", Kind::Plain, &[("FOREBAY_CUFILE_LOG", "stderr")]);
    assert!(!quiet.contains("TRACE"), "{quiet}");
    let quiet = check_within(LIMIT, "vectors", Kind::Plain, &[("CUFILE_LOGGING_LEVEL", "ERROR")]);
    assert_eq!(quiet, "");
}

#[test]
fn statistics_are_as_long_as_the_program_says() {
    check("stats_version", Kind::Address, &[("FOREBAY_CUFILE_VERSION", "1.19")]);
    check("stats", Kind::Plain, &[("FOREBAY_CUFILE_VERSION", "1.15")]);
    // What is no version leaves the shorter ones.
    check("stats_version", Kind::Plain, &[("FOREBAY_CUFILE_VERSION", "1.20")]);
}

/// The receipt of a program whose calls failed says why.
#[test]
fn receipts_tell_why_calls_failed() {
    let folder = scratch();
    let counters = folder.path().to_str().unwrap();
    check("handles", Kind::Plain, &[(forebay_stats::DIRECTORY_VARIABLE, counters)]);
    let receipt = forebay_stats::render::receipt(&forebay_stats::read_directory(folder.path()).unwrap());
    for wanted in [
        "note: a call failed: HandleRegister: unsupported file open flags (5019)",
        "note: a call failed: HandleRegister: file descriptor is already registered (5028)",
    ] {
        assert!(receipt.contains(wanted), "{wanted}: {receipt}");
    }
}

#[test]
fn denied_file_systems_and_mounts_work_all_the_same() {
    configured("denied", r#"{"denylist": {"mounts": ["/"]}}"#, &[]);
}

/// A program linked with the other library's name for it, found by LD_PRELOAD instead of LD_LIBRARY_PATH.
#[test]
fn preloading_does_it_too() {
    let folder = scratch();
    let program = built("open_close", Kind::Plain);
    let mut command = clean(&program);
    command.env_remove("LD_LIBRARY_PATH").env("LD_PRELOAD", library_folder().join("libcufile.so.0"));
    run(command.arg(folder.path()).env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap()));
}

/// No GPU and no driver: host memory works, and nothing else crashes.
#[test]
fn without_a_gpu_host_memory_works() {
    let folder = scratch();
    let program = built("open_close", Kind::Plain);
    run(clean(&program).arg(folder.path()).env("FOREBAY_LIBCUDA", "/nonexistent/libcuda.so.1"));
}

/// The trace and the log have descriptors of their own.
#[test]
fn closing_all_ends_trace_and_log() {
    check("close_all", Kind::Plain, &[("FOREBAY_TRACE", "trace"), ("CUFILE_LOGFILE_PATH", "log.txt")]);
}

/// Without io_uring.
#[test]
fn closing_all_without_io_uring() {
    check("close_all", Kind::Plain, &[("FOREBAY_IO", "threads")]);
}
