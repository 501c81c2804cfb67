//! The budget of pinned pages: never exceeded, not thrashed, given back; and what many small files cost: nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{self, Random, Stop, Turn, disk, soon, test_name, turn};
use crate::pages::{
    MIB, blank, check_staged, config, fetch, gpu, memory, only, open, pin, pins, subject, why,
};
use fake_cuda::Fake;
use forebay_config::Config;
use forebay_engine::{EngineKind, File, Limiter, Session, Way};
use forebay_error::ErrorKind;

const REGISTER: &str = "cuMemHostRegister_v2";
const LEN: usize = 60 * MIB;

/// Registrations that were undone again: lanes and callers keep what they pin when they are first used.
fn undone(turn: &Turn) -> u64 {
    turn.fake.calls(REGISTER) - turn.fake.leaks().registrations
}

fn limited(bytes: usize) -> Session {
    open(Config { pin_budget: Some(bytes as u64), ..config() })
}

/// Looks at the pins all the time, as long as `body` runs; the most that there were.
fn peak(fake: &Fake, session: &Session, body: impl FnOnce()) -> u64 {
    let (done, most) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _done = Stop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let found = fake.registered_bytes().max(pins(session).process_bytes);
                most.fetch_max(found, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        body();
    });
    most.into_inner()
}

#[track_caller]
fn check_over(receipt: &forebay_engine::Receipt) {
    check_staged(receipt, "budget");
    let refusal = why(receipt);
    assert!(refusal.reason.contains("FOREBAY_PIN_BUDGET"), "which budget: {receipt}");
    assert!(refusal.hint.unwrap().contains("trim()"), "{receipt}");
}

#[test]
fn two_files_that_do_not_fit_together_keep_one_pinned() {
    let turn = turn();
    let session = limited(64 * MIB);
    let files = [blank(&memory(), LEN), blank(&memory(), LEN)];
    assert_eq!(pins(&session).budget.limiter, Limiter::Option);
    assert_eq!(pins(&session).budget.bytes, 64 << 20);
    let most = peak(turn.fake, &session, || {
        pin(&session, &files[0].1, LEN);
        check_over(&fetch(&session, &files[1].1, 0, LEN).unwrap().1);
        let before = undone(&turn);
        for _ in 0..4 {
            pin(&session, &files[0].1, LEN);
            check_over(&fetch(&session, &files[1].1, 0, LEN).unwrap().1);
        }
        assert_eq!(undone(&turn), before, "pins come and go while files are read in turn");
    });
    assert_eq!(most, LEN as u64);
    assert_eq!((pins(&session).bytes, pins(&session).files), (LEN as u64, 1));
}

#[test]
fn reading_more_than_the_budget_in_turns_keeps_a_part_pinned() {
    const WINDOW: usize = 64 * MIB;
    let turn = turn();
    let session = limited(2 * WINDOW);
    let (_scratch, file) = blank(&memory(), 3 * WINDOW);
    let mut buffer = session.buffer(0, 3 * WINDOW).unwrap();
    let most = peak(turn.fake, &session, || {
        session.read(&file, 0, &mut buffer).unwrap();
        let before = undone(&turn);
        for _ in 0..5 {
            let receipt = session.read(&file, 0, &mut buffer).unwrap();
            assert_eq!(receipt.moved[Way::Mapped], 2 * WINDOW as u64, "{receipt}");
            assert!(
                why(&receipt).reason.contains(&format!("({WINDOW} of {} bytes)", 3 * WINDOW)),
                "{receipt}"
            );
            assert_eq!(
                receipt.engines().collect::<Vec<_>>(),
                [(EngineKind::Mapped, 2 * WINDOW as u64), (EngineKind::Staged, WINDOW as u64)]
            );
        }
        assert_eq!(undone(&turn), before, "windows come and go");
    });
    assert_eq!(most, 2 * WINDOW as u64);
}

#[test]
fn a_file_that_nobody_has_open_gives_way() {
    let turn = turn();
    let session = limited(64 * MIB);
    let (_first, file) = blank(&memory(), LEN);
    let (_second, other) = blank(&memory(), LEN);
    let most = peak(turn.fake, &session, || {
        pin(&session, &file, LEN);
        drop(file);
        // The first read finds no room, and makes it.
        assert!(soon(|| fetch(&session, &other, 0, LEN).unwrap().1.engine() == EngineKind::Mapped));
    });
    assert_eq!(most, LEN as u64);
    assert_eq!((pins(&session).bytes, pins(&session).files), (LEN as u64, 1));
    // A program that asks for a map gets the room of what is merely kept.
    let (_third, third) = blank(&memory(), LEN);
    let map = session.map(&third, &gpu(&session)).unwrap();
    assert_eq!((map.pinned_bytes(), turn.fake.registered_bytes()), (LEN as u64, LEN as u64));
}

#[test]
fn a_map_over_the_budget_is_refused_and_leaves_nothing_behind() {
    let turn = turn();
    let session = limited(64 * MIB);
    let files = [blank(&memory(), LEN), blank(&memory(), LEN), blank(&memory(), 100 * MIB)];
    let map = session.map(&files[0].1, &gpu(&session)).unwrap();
    let most = peak(turn.fake, &session, || {
        for (_, file) in &files[1..] {
            for _ in 0..3 {
                let error = session.map(file, &gpu(&session)).unwrap_err();
                assert!(
                    error.kind() == ErrorKind::Unsupported && error.message().contains("budget"),
                    "{error:?}"
                );
                assert!(common::has_hint(&error, "trim()"), "{error:?}");
            }
            check_over(&fetch(&session, file, 0, 50 * MIB).unwrap().1);
        }
    });
    assert_eq!(most, LEN as u64);
    assert_eq!(session.trim(), 0, "maps keep theirs");
    map.check().unwrap();
    drop(map);
    session.trim();
    assert_eq!((turn.fake.registered_bytes(), pins(&session).process_bytes), (0, 0));
    drop(session.map(&files[1].1, &gpu(&session)).unwrap());
}

/// The first window fits, the second does not.
#[test]
fn a_map_that_fits_half_way_lets_go_of_the_half() {
    let turn = turn();
    let session = limited(70 * MIB);
    let (_scratch, file) = blank(&memory(), 100 * MIB);
    let error = session.map(&file, &gpu(&session)).unwrap_err();
    assert!(error.message().contains("budget"), "{error:?}");
    // Windows requested already may still be registered, and are released then.
    std::thread::sleep(Duration::from_millis(500));
    let tidy = || (turn.fake.registered_bytes(), pins(&session).process_bytes) == (0, 0);
    assert!(soon(tidy), "a map that was refused keeps {} bytes pinned", turn.fake.registered_bytes());
}

#[test]
fn trim_lets_go_of_all_or_of_one_file() {
    let turn = turn();
    let session = open(config());
    let files = [subject(&memory(), 1, 10 * MIB), subject(&disk(), 2, 12 * MIB)];
    for (index, len) in [(0, 10 * MIB), (1, 12 * MIB)] {
        pin(&session, &files[index].1, len);
    }
    assert_eq!((pins(&session).bytes, pins(&session).files), (22 << 20, 2));
    assert_eq!(session.trim_file(&files[0].1), 10 << 20);
    assert_eq!((pins(&session).bytes, turn.fake.registered_bytes()), (12 << 20, 12 << 20));
    assert_eq!(session.trim_file(&files[0].1), 0);
    pin(&session, &files[0].1, 10 * MIB);
    assert_eq!(session.trim(), 22 << 20);
    assert_eq!((pins(&session).bytes, pins(&session).process_bytes, turn.fake.registered_bytes()), (0, 0, 0));
    assert_eq!(session.trim(), 0);
    pin(&session, &files[1].1, 12 * MIB);
}

#[test]
fn two_sessions_share_one_budget() {
    let turn = turn();
    let sessions = [limited(64 * MIB), limited(64 * MIB)];
    let files = [blank(&memory(), LEN), blank(&memory(), LEN)];
    let most = peak(turn.fake, &sessions[0], || {
        pin(&sessions[0], &files[0].1, LEN);
        check_over(&fetch(&sessions[1], &files[1].1, 0, LEN).unwrap().1);
        drop(sessions[0].clone());
        sessions[0].trim();
        std::thread::sleep(Duration::from_millis(150));
        pin(&sessions[1], &files[1].1, LEN);
    });
    assert_eq!(most, LEN as u64);
}

#[test]
fn many_threads_never_exceed_the_budget() {
    const BUDGET: usize = 40 * MIB;
    let turn = turn();
    let session = limited(BUDGET);
    let files: Vec<_> = (0..6).map(|at| blank(&memory(), (10 + at) * MIB)).collect();
    let mapped = AtomicU64::new(0);
    let most = peak(turn.fake, &session, || {
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (session, files, mapped) = (&session, &files, &mapped);
                scope.spawn(move || use_files(session, files, &mut Random(thread), mapped));
            }
        });
    });
    assert!(most <= BUDGET as u64 && mapped.into_inner() > 0, "{most} of {BUDGET}");
    drop(session);
    assert!(soon(|| turn.fake.registered_bytes() == 0));
}

/// Reads, maps and trims at random.
fn use_files(session: &Session, files: &[(common::Scratch, File)], random: &mut Random, mapped: &AtomicU64) {
    for _ in 0..25 {
        let file = &files[random.below(files.len() as u64) as usize].1;
        match random.below(8) {
            0 => drop(session.trim_file(file)),
            1 | 2 => drop(session.map(file, &gpu(session))),
            _ => {
                let (bytes, receipt) = fetch(session, file, 0, 10 * MIB).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0));
                mapped.fetch_add(receipt.moved[Way::Mapped], Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn thousands_of_small_files_cause_no_registration() {
    const FILES: usize = 3000;
    const SMALL: usize = 64 << 10;
    let turn = turn();
    let directory = tempfile::tempdir_in(memory()).unwrap();
    let path = |index: usize| directory.path().join(index.to_string());
    let bytes = vec![7; SMALL];
    (0..FILES).for_each(|index| std::fs::write(path(index), &bytes).unwrap());
    let session = open(config());
    let mut buffer = session.buffer(0, SMALL).unwrap();
    session.read(&File::open(path(0)).unwrap(), 0, &mut buffer).unwrap();
    let calls = turn.fake.calls(REGISTER);
    let threads = threads();
    for index in 0..FILES {
        let file = File::open(path(index)).unwrap();
        let receipt = session.read(&file, 0, &mut buffer).unwrap();
        assert_eq!(receipt.engine(), EngineKind::Staged);
        if index % 100 == 0 {
            // And as a submission.
            let ticket = session.submit_read(&file, 0, session.buffer(0, SMALL).unwrap()).unwrap();
            assert!(ticket.wait().into_result().unwrap().1.to_vec().unwrap() == bytes);
        }
    }
    let lanes = session.config().lanes as u64;
    let more = turn.fake.calls(REGISTER) - calls;
    assert!(more <= lanes, "{more} registrations, of which the lanes need {lanes}");
    assert_eq!((turn.fake.registered_bytes(), pins(&session).files), (0, 0));
    assert!(
        self::threads() <= threads + 2 * lanes as usize + 1,
        "threads of the engine were started for nothing"
    );
}

// ---- when a window is worth it ------------------------------------------------------------------------------------

const WINDOW: usize = 64 * MIB;

/// Reads all of a file in pieces, one after the other, on each of `threads`; the bytes that were read in place. No thread is
/// further than a piece ahead: one that runs before the others have begun would be a reader that is alone.
fn pass(session: &Session, file: &File, threads: usize, piece: usize) -> u64 {
    let len = file.len().unwrap() as usize;
    let mapped = AtomicU64::new(0);
    let together = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (mapped, together) = (&mapped, &together);
            scope.spawn(move || {
                let mut buffer = session.buffer(0, piece).unwrap();
                for round in (0..len).step_by(threads * piece) {
                    together.wait();
                    let offset = round + thread * piece;
                    if offset >= len {
                        continue;
                    }
                    let size = piece.min(len - offset);
                    let receipt = session.read_into(file, offset as u64, &mut buffer, 0..size).unwrap();
                    mapped.fetch_add(receipt.moved[Way::Mapped], Ordering::Relaxed);
                }
            });
        }
    });
    mapped.into_inner()
}

#[test]
fn a_first_pass_of_small_reads_or_several_threads_registers_nothing_and_later_ones_are_in_place() {
    let turn = turn();
    let len = 2 * WINDOW;
    for (threads, piece) in [(3, 2 * MIB), (1, MIB), (4, MIB)] {
        // A read that a caller's thread passes on to a lane, since no slot is free, is counted twice, and the window may seem
        // full before the pass ends. That is rare: a rule that registers in first passes does it for every file.
        let first_pass = || {
            let session = open(config());
            let (scratch, file) = blank(&memory(), len);
            let mapped = pass(&session, &file, threads, piece);
            (mapped == 0 && turn.fake.registered_bytes() == 0).then_some((session, scratch, file))
        };
        let found = (0..3).find_map(|_| first_pass());
        let Some((session, _scratch, file)) = found else {
            panic!("{threads} threads, {piece} bytes: registered")
        };
        // Small reads have their windows registered meanwhile; on a busy machine it takes more than one visit.
        let is_pinned = || {
            pass(&session, &file, threads, piece);
            pins(&session).bytes == len as u64
        };
        assert!(soon(is_pinned), "{threads} threads, {piece} bytes: {:?}", pins(&session));
        assert_eq!(pass(&session, &file, threads, piece), len as u64, "{threads} threads, {piece} bytes");
    }
}

#[test]
fn a_lone_reader_waits_for_its_windows_from_a_quarter_of_each_on() {
    let _turn = turn();
    // Of the first bytes of a file, less than 8 MiB, none are counted.
    for (piece, uncounted) in [(8 * MIB, 0), (4 * MIB, 4 * MIB)] {
        let session = open(config());
        let (_scratch, file) = blank(&memory(), 2 * WINDOW);
        let staged = 2 * (WINDOW / 4 - piece) + uncounted;
        assert_eq!(pass(&session, &file, 1, piece), (2 * WINDOW - staged) as u64, "{piece} bytes");
        assert_eq!(pass(&session, &file, 1, piece), 2 * WINDOW as u64, "{piece} bytes");
    }
}

#[test]
fn one_large_request_is_in_place_at_once() {
    let _turn = turn();
    let len = 2 * WINDOW + 3 * MIB;
    let (_scratch, file) = blank(&memory(), len);
    for (offset, wanted) in [(0, len), (MIB, WINDOW / 2), (WINDOW / 2, WINDOW), (10 * MIB, len - 10 * MIB)] {
        let session = open(config());
        let receipt = fetch(&session, &file, offset as u64, wanted).unwrap().1;
        assert_eq!(receipt.moved[Way::Mapped], wanted as u64, "{offset}+{wanted}: {receipt}");
    }
    // In many pieces too.
    let session = open(config());
    let pieces: Vec<_> = (0..40)
        .map(|at| forebay_engine::ReadPiece { offset: (at * MIB) as u64, range: at * MIB..(at + 1) * MIB })
        .collect();
    let buffer = session.buffer(0, 40 * MIB).unwrap();
    let receipt = session.read_batch(&file, &pieces, buffer).unwrap().wait().into_result().unwrap().0;
    assert_eq!(receipt.moved[Way::Mapped], 40 * MIB as u64, "{receipt}");
}

#[test]
fn where_registering_is_slow_it_begins_with_the_third_visit() {
    let turn = turn();
    // No machine registers at such a pace.
    let session = open(Config { pin_pace: 1_000_000, ..config() });
    let (_scratch, file) = blank(&memory(), 4 * WINDOW);
    let mut buffer = session.buffer(0, 4 * WINDOW).unwrap();
    let mut pinned = Vec::new();
    let is_pinned = |windows: usize| turn.fake.registered_bytes() as usize == windows * WINDOW;
    for visit in 1..=4 {
        let receipt = session.read(&file, 0, &mut buffer).unwrap();
        if visit < 3 {
            pinned.push(turn.fake.registered_bytes());
        }
        if visit == 4 {
            assert_eq!(receipt.moved[Way::Mapped], 4 * WINDOW as u64, "{receipt}");
            break;
        }
        let word = if visit < 3 { "third time" } else { "beside other copies" };
        assert!(why(&receipt).reason.contains(word), "visit {visit}: {receipt}");
        assert!(why(&receipt).hint.unwrap().contains("FOREBAY_PIN_PACE"), "{receipt}");
        assert!(visit < 3 || soon(|| is_pinned(4)), "never registered");
    }
    assert_eq!(pinned, [0, 0]);
    // A file that comes later is not touched at all.
    let (_scratch, other) = blank(&memory(), 2 * WINDOW);
    let mut buffer = session.buffer(0, 2 * WINDOW).unwrap();
    check_staged(&session.read(&other, 0, &mut buffer).unwrap(), "third time");
    check_staged(&session.read(&other, 0, &mut buffer).unwrap(), "third time");
    assert_eq!(turn.fake.registered_bytes() as usize, 4 * WINDOW);
    check_staged(&session.read(&other, 0, &mut buffer).unwrap(), "beside other copies");
    assert!(soon(|| is_pinned(6)), "never registered");
    let receipt = session.read(&other, 0, &mut buffer).unwrap();
    assert_eq!(receipt.moved[Way::Mapped], 2 * WINDOW as u64, "{receipt}");
    // A map need not wait.
    let (_scratch, third) = blank(&memory(), WINDOW);
    assert_eq!(session.map(&third, &gpu(&session)).unwrap().pinned_bytes(), WINDOW as u64);
}

#[test]
fn random_small_reads_register_a_window_only_after_as_many_bytes_as_it_has() {
    const SMALL: usize = 16 << 10;
    let turn = turn();
    let session = open(config());
    let (_scratch, file) = blank(&memory(), WINDOW);
    let mut random = Random(7);
    let mut read = |bytes: usize| {
        let mut buffer = session.buffer(0, SMALL).unwrap();
        for _ in 0..bytes / SMALL {
            let offset = random.below(((WINDOW - SMALL) / 4096) as u64) * 4096;
            session.read(&file, offset, &mut buffer).unwrap();
        }
    };
    read(WINDOW - 2 * MIB);
    assert_eq!(turn.fake.registered_bytes(), 0);
    read(16 * MIB);
    assert!(soon(|| turn.fake.registered_bytes() == WINDOW as u64), "never registered");
}

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("forebay-")).count()
}

// ---- memory cgroups -----------------------------------------------------------------------------------------------

/// A memory cgroup with a limit, removed on drop.
struct Group(PathBuf);

impl Group {
    fn new(limit: usize) -> Result<Self, String> {
        let name = format!("forebay-test-{}", std::process::id());
        let roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let mut why = String::new();
        for (root, file) in roots {
            let group = Self(Path::new(root).join(&name));
            let made = std::fs::create_dir(&group.0)
                .and_then(|()| std::fs::write(group.0.join(file), limit.to_string()));
            match made {
                Ok(()) => return Ok(group),
                Err(error) => why = format!("{}: {error}", group.0.display()),
            }
        }
        Err(why)
    }

    fn number(&self, name: &str) -> Option<u64> {
        std::fs::read_to_string(self.0.join(name)).ok()?.trim().parse().ok()
    }

    /// How often the kernel ended a process of it.
    fn kills(&self) -> u64 {
        let files = ["memory.oom_control", "memory.events"];
        let texts = files.iter().filter_map(|file| std::fs::read_to_string(self.0.join(file)).ok());
        let count = |text: String| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
        };
        texts.filter_map(count).sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Page cache that is still charged to it moves to its parent.
        let _ = soon(|| std::fs::remove_dir(&self.0).is_ok());
    }
}

const GROUP: &str = "FOREBAY_TEST_GROUP";
const GROUP_LIMIT: usize = 320 * MIB;

/// The child's part, inside of the group: reads three times as much as it may keep.
fn read_within_limits(turn: &Turn, group: &Path) {
    let session = open(config());
    let budget = pins(&session).budget;
    println!("{budget:?}");
    assert_eq!(budget.limiter, Limiter::Cgroup(group.to_owned()), "{budget:?}");
    assert!(budget.bytes <= GROUP_LIMIT as u64 / 2, "{budget:?}");
    let files: Vec<_> = (0..10).map(|_| blank(&disk(), LEN)).collect();
    // What was just written must go to the disk before its pages can be given back.
    for (_, file) in &files {
        file.sync().unwrap();
    }
    let (mut mapped, mut buffer) = (0, session.buffer(0, LEN).unwrap());
    let most = peak(turn.fake, &session, || {
        for _ in 0..3 {
            for (scratch, file) in &files {
                std::io::copy(&mut std::fs::File::open(scratch.path()).unwrap(), &mut std::io::sink())
                    .unwrap();
                mapped += session.read(file, 0, &mut buffer).unwrap().moved[Way::Mapped];
            }
        }
        // As much memory as is left, for the program itself.
        let room = vec![1u8; 60 * MIB];
        assert_eq!(std::hint::black_box(&room)[MIB], 1);
        // A file that is wanted surely is no way around it.
        let strict = open(only());
        let maps: Vec<_> =
            files.iter().filter_map(|(_, file)| strict.map(file, &gpu(&strict)).ok()).collect();
        println!("{} maps", maps.len());
        assert!(maps.len() < 4);
    });
    println!("most pinned: {most}; read in place: {mapped}");
    assert!(most <= GROUP_LIMIT as u64 / 2 && mapped > 0, "{most} {mapped}");
}

#[test]
fn a_cgroup_bounds_the_budget_and_nobody_is_killed() {
    if let Some(group) = std::env::var_os(GROUP) {
        let turn = turn();
        return read_within_limits(&turn, Path::new(&group));
    }
    let group = match Group::new(GROUP_LIMIT) {
        Ok(group) => group,
        Err(why) => return println!("skipped: no memory cgroup can be made here: {why}"),
    };
    // The shell enters the group and becomes the child: all that it allocates counts.
    let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    let output = Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &test_name(), "--nocapture"])
        .env(GROUP, &group.0)
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(group.kills(), 0, "the kernel killed a process because memory ran out");
    let used = group.number("memory.max_usage_in_bytes").or_else(|| group.number("memory.peak"));
    println!("most used: {used:?} of {GROUP_LIMIT}");
}
