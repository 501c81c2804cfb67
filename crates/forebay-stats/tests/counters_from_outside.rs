//! Counters seen from outside, by forked children, by many threads, and after a process died.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_error::ErrorKind;
use forebay_stats::{
    Counters, DIRECTORY_VARIABLE, FileCounter, Io, Moved, Op, Reader, Way, list, read_directory,
};

const READ: Io = Io {
    bytes: 4096,
    latency: Duration::from_micros(10),
    gpu: Some(1),
    unaligned: false,
    posix: true,
    ok: true,
};

/// Not a test: what other tests start as a process of its own.
#[test]
fn fixture() {
    let Ok(what) = std::env::var("FIXTURE") else { return };
    if what == "closed" {
        // SAFETY: nobody uses standard input here.
        unsafe { libc::close(0) };
    }
    let counters = (what != "none").then(|| Counters::open().unwrap());
    if let Some(counters) = &counters {
        counters.read(READ);
        counters.engine("staged", Moved::of(Way::Direct, 4096));
    }
    // SAFETY: asks about a descriptor number.
    let standard_input = if unsafe { libc::fcntl(0, libc::F_GETFD) } < 0 { "closed" } else { "open" };
    println!("\nready {standard_input}");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// The fixture as a process, killed at the end.
struct Process {
    child: Child,
    standard_input: String,
}

impl Process {
    fn start(what: &str, directory: Option<&std::path::Path>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["fixture", "--exact", "--nocapture"]).env("FIXTURE", what);
        command.env_remove(DIRECTORY_VARIABLE).stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(directory) = directory {
            command.env(DIRECTORY_VARIABLE, directory);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let standard_input =
            lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("ready ")?.to_owned()));
        Self { child, standard_input: standard_input.unwrap() }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_running_process_is_found_without_set_up() {
    let mut process = Process::start("counts", None);
    let pid = process.child.id();
    let reader = Reader::attach(pid).unwrap();
    let seen = reader.snapshot().unwrap();
    assert_eq!((seen.pid, seen.read.ok, seen.gpus[0].index, seen.gpus[0].device.read.posix), (pid, 1, 1, 1));
    assert_eq!((seen.engines[0].name.as_str(), seen.engines[0].moved[Way::Direct]), ("staged", 4096));
    assert!(seen.program.contains("fixture --exact"), "{}", seen.program);
    assert!(list().iter().any(|snapshot| snapshot.pid == pid));
    process.kill();
    // Opened counters stay readable; the process is not found any more.
    assert_eq!(reader.snapshot().unwrap().read.ok, 1);
    assert_eq!(Reader::attach(pid).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_file_outlives_a_killed_process() {
    let directory = tempfile::tempdir().unwrap();
    let mut process = Process::start("counts", Some(directory.path()));
    let pid = process.child.id();
    assert_eq!(Reader::attach(pid).unwrap().snapshot().unwrap().read.bytes, 4096);
    process.kill();
    let file = directory.path().join(format!("{pid}.counters"));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Reader::open_file(&file).unwrap().snapshot().unwrap().pid, pid);
    std::fs::write(directory.path().join("1.counters"), "").unwrap();
    let all = read_directory(directory.path()).unwrap();
    assert_eq!(all.iter().map(|snapshot| snapshot.read.ok).collect::<Vec<_>>(), [1]);
}

#[test]
fn two_programs_of_one_process_have_a_file_each() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Counters::open_in(Some(directory.path().as_os_str())).unwrap();
    let (first, second) = (open(), open());
    first.read(READ);
    second.write(READ);
    let all = read_directory(directory.path()).unwrap();
    assert_eq!(all.iter().map(|one| (one.read.ok, one.write.ok)).collect::<Vec<_>>(), [(1, 0), (0, 1)]);
}

#[test]
fn the_standard_descriptors_stay_the_programs() {
    let process = Process::start("closed", None);
    assert_eq!(process.standard_input, "closed");
    assert_eq!(Reader::attach(process.child.id()).unwrap().snapshot().unwrap().read.ok, 1);
}

#[test]
fn who_has_no_counters_is_told_so() {
    let process = Process::start("none", None);
    let error = Reader::attach(process.child.id()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("does not use forebay"), "{error}");
    assert!(!error.hints().is_empty());
    let error = Reader::attach(u32::MAX / 2).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::NotFound, "cannot read counters: no such process")
    );
}

#[test]
fn a_forked_child_does_not_count_for_its_parent() {
    let counters = Counters::open().unwrap();
    counters.read(READ);
    let mut pipe = [0; 2];
    // SAFETY: fills in two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child only adds to atomics, reads a pipe and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for _ in 0..1000 {
            counters.read(READ);
        }
        let mut byte = 0_u8;
        // SAFETY: the pipe is open; the byte is ours.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    assert!(child > 0);
    let found = Reader::attach(child as u32).map_err(|error| error.message().to_owned());
    // SAFETY: lets the child end, and waits for it.
    unsafe {
        libc::close(pipe[1]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        libc::close(pipe[0]);
    }
    assert_eq!(counters.snapshot().read.ok, 1);
    assert!(found.unwrap_err().contains("forked child"));
}

#[test]
fn threads_lose_nothing_while_others_read() {
    let directory = tempfile::tempdir().unwrap();
    let counters = Counters::open_in(Some(directory.path().as_os_str())).unwrap();
    let reader =
        Reader::open_file(&directory.path().join(format!("{}.counters", std::process::id()))).unwrap();
    let file = FileCounter::new("/data/x");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let now = reader.snapshot().unwrap();
                assert!(now.read.ok >= last, "{} < {last}", now.read.ok);
                last = now.read.ok;
                for refusal in &now.refusals {
                    assert!(refusal.reason.starts_with("reason "), "{refusal:?}");
                }
            }
        });
        let workers: Vec<_> = (0..16)
            .map(|worker| {
                let (counters, file) = (&counters, &file);
                scope.spawn(move || {
                    for round in 0..5000 {
                        counters.read(READ);
                        counters.engine("mapped", Moved::of(Way::Mapped, 4096));
                        counters.refused("p2p", &format!("reason {}", (worker + round) % 20), None, 1);
                        counters.file(file, 4096, READ.latency);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    let seen = reader.snapshot().unwrap();
    assert_eq!((seen.read.ok, seen.read.bytes, seen.read_sizes[1]), (80_000, 80_000 * 4096, 80_000));
    assert_eq!((seen.engines[0].requests, seen.engines[0].moved[Way::Mapped]), (80_000, 80_000 * 4096));
    assert_eq!(seen.refusals.iter().map(|refusal| refusal.requests).sum::<u64>(), 80_000);
    assert_eq!(seen.refusals.len(), 20);
    // The first requests may have met while one of them found the file a place; they are added with the next ones.
    assert!((79_900..=80_000).contains(&seen.files[0].ops), "{}", seen.files[0].ops);
}

#[test]
fn the_view_of_cufile_can_be_reset_and_stopped() {
    let counters = Counters::hidden().unwrap();
    let reads = |counters: &Counters| counters.collected().read.ok;
    counters.read(READ);
    assert_eq!(reads(&counters), 1);
    counters.reset();
    assert_eq!(reads(&counters), 0);
    counters.read(READ);
    counters.stop();
    counters.read(READ);
    counters.stop();
    assert_eq!(reads(&counters), 1);
    counters.start();
    counters.start();
    assert_eq!(reads(&counters), 1);
    counters.read(READ);
    counters.stop();
    counters.reset();
    assert_eq!(reads(&counters), 0);
    counters.read(READ);
    counters.start();
    counters.read(READ);
    assert_eq!((reads(&counters), counters.snapshot().read.ok), (1, 6));
}

#[test]
fn rates_are_there_in_the_first_second() {
    let counters = Counters::hidden().unwrap();
    assert!(counters.snapshot().read.rate.bytes_per_s == 0.0);
    for _ in 0..100 {
        counters.read(READ);
    }
    let rate = counters.snapshot().read.rate;
    assert!(rate.bytes_per_s > 0.0 && rate.ops_per_s > 0.0, "{rate:?}");
    assert!((rate.latency_us - 10.0).abs() < 0.5, "{rate:?}");
}

#[test]
fn a_slow_file_takes_the_place_of_a_fast_one() {
    let counters = Counters::hidden().unwrap();
    for index in 0..64 {
        counters.file(&FileCounter::new(&format!("/fast/{index}")), 1, Duration::from_micros(100 + index));
    }
    let (slow, again) = (FileCounter::new("/slow"), FileCounter::new("/slow"));
    for _ in 0..16 {
        counters.file(&slow, 10, Duration::from_millis(1));
    }
    counters.file(&again, 10, Duration::from_millis(2));
    counters.file(&FileCounter::new("/faster"), 1, Duration::from_micros(1));
    let seen = counters.snapshot();
    assert_eq!((seen.files.len(), seen.files_left_out), (64, true));
    let first = &seen.files[0];
    assert_eq!((first.name.as_str(), first.ops, first.bytes), ("/slow", 17, 170));
    assert_eq!((first.latency_ns, first.max_latency_ns), (18_000_000, 2_000_000));
    assert!(!seen.files.iter().any(|file| file.name == "/fast/0" || file.name == "/faster"));
}

#[test]
fn what_has_no_room_is_counted() {
    let counters = Counters::hidden().unwrap();
    for index in 0..40 {
        counters.refused("mapped", &format!("{index} {}", "x".repeat(300)), Some(&"y".repeat(300)), 1);
        counters.engine(&format!("engine {index}"), Moved::of(Way::Cached, 1));
        counters.note(&format!("note {index}"), None);
        counters.read(Io { gpu: Some(index), ..READ });
    }
    let seen = counters.snapshot();
    assert_eq!((seen.refusals.len(), seen.refusals_left_out), (32, 8));
    assert!(
        seen.refusals.iter().all(|refusal| refusal.reason.len() == 200
            && refusal.hint.as_ref().is_some_and(|hint| hint.len() == 200))
    );
    assert_eq!((seen.engines.len(), seen.notes.len(), seen.gpus.len()), (8, 16, 16));
    assert_eq!((seen.read.ok, seen.host.read.ok), (40, 24));
}

#[test]
fn damaged_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let counters = Counters::open_in(Some(directory.path().as_os_str())).unwrap();
    counters.count(Op::HandleRegister, true);
    let path = directory.path().join(format!("{}.counters", std::process::id()));
    let whole = std::fs::read(&path).unwrap();
    let damaged = directory.path().join("damaged");
    let kind = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).unwrap();
        Reader::open_file(&damaged).and_then(|reader| reader.snapshot()).map_err(|error| error.kind())
    };
    assert!(kind(&whole).is_ok());
    let changed = |offset: usize| {
        let mut bytes = whole.clone();
        bytes[offset] ^= 0x40;
        bytes
    };
    assert_eq!(kind(&changed(0)).unwrap_err(), ErrorKind::InvalidInput);
    assert_eq!(kind(&changed(8)).unwrap_err(), ErrorKind::Unsupported);
    assert_eq!(kind(&changed(16)).unwrap_err(), ErrorKind::Unsupported);
    assert_eq!(kind(&whole[..100]).unwrap_err(), ErrorKind::InvalidInput);
    assert_eq!(kind(&whole[..whole.len() - 1]).unwrap_err(), ErrorKind::InvalidInput);
    // Whatever stands behind the header is numbers and text: odd, but readable, and printable.
    let mut noise = whole.clone();
    for (index, byte) in noise.iter_mut().enumerate().skip(128) {
        *byte = (index.wrapping_mul(2_654_435_761) >> 7) as u8;
    }
    noise[whole.len() - 64 * 33 * 8..].fill(1);
    let seen = kind(&noise).unwrap();
    for level in 1..=3 {
        assert!(!forebay_stats::render::gds_stats(&seen, level).is_empty());
    }
    assert!(!forebay_stats::render::prometheus(std::slice::from_ref(&seen)).is_empty());
    assert!(!forebay_stats::render::receipt(&[seen]).contains('\u{1}'));
}

/// A FIFO of a fitting name, which nobody writes.
#[test]
fn what_is_no_plain_file_has_no_counters() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("7.counters");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let error = Reader::open_file(&fifo).unwrap_err();
    assert!(error.to_string().contains("it is a FIFO"), "{error}");
    assert!(read_directory(folder.path()).unwrap().is_empty());
}
