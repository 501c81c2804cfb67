//! Counts of a read before any byte is moved: over host memory, in place of a device's.

use super::*;
use crate::engines::mapped::registrar::PinPolicy;
use crate::engines::permission::Permission;
use crate::engines::staged::workers::Lanes;
use crate::request::transfer::Memory;

const MIB: usize = 1 << 20;

/// A file of its own for each test, on a file system whose pages may be pinned.
fn subject(len: usize) -> (tempfile::NamedTempFile, File) {
    let scratch = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    std::fs::write(scratch.path(), vec![1; len]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(60));
    let file = File::open(scratch.path()).unwrap();
    (scratch, file)
}

fn engine() -> Mapped {
    // Its files lie in memory.
    engine_with(&Config { pin_pace: 0, ..Config::default() })
}

fn engine_with(config: &Config) -> Mapped {
    let device = forebay_gpu::host::device();
    let lanes = Arc::new(Lanes::new(device.clone(), config.clone()));
    let stage = Stage::new(lanes, config);
    let callers = Arc::new(Callers::new(device.clone(), config));
    Mapped::new(device, config, Permission::Auto, stage, callers)
}

/// As [`Session::run`](crate::Session::run) asks: the caller's thread first, then the engine that takes batches.
fn ask(engine: &Mapped, file: &File, offset: u64, len: usize) -> bool {
    let mut buffer = vec![0u8; len];
    let memory = Memory::new(forebay_gpu::host::device(), buffer.as_mut_ptr() as u64);
    let direction = Direction::Read;
    let transfer = Transfer { file: file.clone(), offset, memory, len, direction, allow_short: false };
    let known = Known::of(file, CachePolicy::Auto);
    // SAFETY: the buffer lives until the end.
    assert!(unsafe { engine.run_here(&transfer, &known) }.is_none(), "nothing is pinned");
    len > crate::engines::staged::sync::MAX_CALLER_BYTES
        && engine.takes(&Batch::of(&transfer), Warmth::Warm).is_ok()
}

fn demand_of(engine: &Mapped, file: &File) -> (u64, Vec<u64>) {
    let Some(descriptors) = file.descriptors() else { panic!("a file") };
    let (_, known) = engine.state.cache.look_up(descriptors.buffered.as_raw_fd()).unwrap();
    let of =
        |pinned: Arc<PinnedFile>| pinned.windows.iter().map(|w| w.demand.load(Ordering::Relaxed)).collect();
    (descriptors.demand.load(Ordering::Relaxed), known.map(of).unwrap_or_default())
}

#[test]
fn every_read_counts_once() {
    let (_scratch, file) = subject(80 * MIB);
    let engine = engine();
    assert!(!ask(&engine, &file, 0, 3 * MIB));
    assert!(!ask(&engine, &file, 0, MIB));
    assert_eq!(demand_of(&engine, &file), (4 << 20, Vec::new()), "too little for the file to be known");
    assert!(!ask(&engine, &file, 0, 6 * MIB));
    assert_eq!(demand_of(&engine, &file), (10 << 20, vec![6 << 20, 0]));
    assert!(!ask(&engine, &file, 60 << 20, 6 * MIB));
    assert!(!ask(&engine, &file, 70 << 20, MIB));
    assert_eq!(demand_of(&engine, &file), (17 << 20, vec![10 << 20, 3 << 20]));
}

#[test]
fn a_lone_readers_pieces_are_worth_it_from_a_quarter_of_a_window_on() {
    let (_scratch, file) = subject(64 * MIB);
    let engine = engine();
    for piece in 0..8 {
        assert_eq!(ask(&engine, &file, piece * (8 << 20), 8 * MIB), piece > 0, "piece {piece}");
    }
    let (_scratch, other) = subject(64 * MIB);
    assert!(ask(&engine, &other, 16 << 20, 16 * MIB), "a quarter of it at once");
}

#[test]
fn pieces_of_many_are_worth_it_when_they_come_by_again() {
    let (_scratch, file) = subject(64 * MIB);
    let cache = &engine().state.cache;
    let Some(descriptors) = file.descriptors() else { panic!("a file") };
    let (_, pinned) =
        cache.enter(file.opened().unwrap(), descriptors.buffered.as_raw_fd(), Access::ReadOnly).unwrap();
    let reader = Reader { direction: Direction::Read, bytes: 8 << 20, others_copy: true };
    for round in 0..2 {
        for piece in 0..8 {
            let is_worth_it = cache.count_demand(&pinned, reader, &[(0, 8 << 20)]).is_ok();
            assert_eq!(is_worth_it, round == 1, "piece {piece} of round {round}");
        }
    }
}

#[test]
fn large_requests_pay_for_windows_that_they_read_again() {
    const WINDOWS: u64 = 60;
    let scratch = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    scratch.as_file().set_len(WINDOWS * WINDOW).unwrap();
    let file = File::open(scratch.path()).unwrap();
    let cache = &engine_with(&Config::default()).state.cache;
    let Some(descriptors) = file.descriptors() else { panic!("a file") };
    let (_, pinned) =
        cache.enter(file.opened().unwrap(), descriptors.buffered.as_raw_fd(), Access::ReadOnly).unwrap();
    for _ in 0..2 {
        // 30 GB/s, where lanes are taken to bring 50.
        pinned.pace.lock().unwrap().learn(30_000_000, std::time::Duration::from_millis(1));
    }
    let reader = Reader { direction: Direction::Read, bytes: WINDOWS * WINDOW, others_copy: true };
    let demand: Vec<_> = (0..WINDOWS as usize).map(|window| (window, WINDOW)).collect();
    let pass = || {
        let is_asked = cache.count_demand(&pinned, reader, &demand).is_ok();
        let terms: Vec<_> = demand.iter().map(|asked| cache.terms(&pinned, reader, *asked)).collect();
        (is_asked, terms.iter().filter(|terms| terms.policy == PinPolicy::Paid).count())
    };
    assert_eq!(pass(), (false, 0), "it is new");
    // A twentieth of the file is saved, a window costs two thirds of its bytes; none of the promised bytes was
    // registered.
    assert_eq!([pass(), pass()], [(true, 4); 2]);
    pinned.credit.lock().unwrap().cover(20 * WINDOW);
    assert_eq!(pass().1, 34, "as much as the device copies meanwhile, too");
    let small = Reader { bytes: 1 << 20, ..reader };
    assert_eq!(cache.terms(&pinned, small, (0, 1 << 20)).policy, PinPolicy::Background);
}

#[test]
fn what_keeps_the_lanes_busy_waits_for_no_trial() {
    let scratch = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(scratch.path(), vec![1; 64 * MIB]).unwrap();
    let file = File::open(scratch.path()).unwrap();
    let cache = &engine_with(&Config::default()).state.cache;
    let Some(descriptors) = file.descriptors() else { panic!("a file") };
    let (_, pinned) =
        cache.enter(file.opened().unwrap(), descriptors.buffered.as_raw_fd(), Access::ReadOnly).unwrap();
    if pinned.is_memory {
        eprintln!(
            "skipped: temporary files lie in memory, where nothing is registered before it is measured"
        );
        return;
    }
    let policy_of = |bytes| {
        let reader = Reader { direction: Direction::Read, bytes, others_copy: false };
        let _ = cache.count_demand(&pinned, reader, &[(0, 64 << 20)]);
        cache.policy(&pinned, reader, (0, 64 << 20)).policy
    };
    let is_known = cache.pace_of(&pinned).is_known();
    assert_eq!(policy_of(16 << 20), PinPolicy::AtOnce, "a reader that is alone");
    assert!(is_known || policy_of(512 << 20) == PinPolicy::Background, "nothing is known of registering");
    for _ in 0..2 {
        pinned.pace.lock().unwrap().learn(32 << 20, std::time::Duration::from_nanos(1));
    }
    assert_eq!(policy_of(512 << 20), PinPolicy::AtOnce, "it is fast");
}

#[test]
fn a_batch_asks_of_each_window_what_its_pieces_have() {
    let (_scratch, file) = subject(0);
    let piece = |offset: u64, len: usize| crate::source::piece::Piece { offset, address: 0, len };
    let batch = Batch {
        file,
        memory: Memory::new(forebay_gpu::host::device(), 0),
        direction: Direction::Read,
        pieces: vec![
            piece(5 * WINDOW + 1, 10),
            piece(2 * WINDOW - 7, 10),
            piece(5 * WINDOW, 1),
            piece(9 * WINDOW - 4, 100),
            piece(3 * WINDOW, 0),
        ],
        allow_short: false,
    };
    let len = 9 * WINDOW - 2;
    assert_eq!(route::demand(&batch, len), [(1, 7), (2, 3), (5, 11), (8, 2)]);
    let write = Batch { direction: Direction::Write, ..batch };
    assert_eq!(route::demand(&write, len), [(1, 7), (2, 3), (5, 11)], "none beyond the end");
    assert_eq!(route::demand(&Batch { pieces: Vec::new(), ..write }, len), []);
}

#[test]
fn receipts_say_what_is_not_known_of_writers() {
    assert_eq!(writers_note(Writers::Nobody), None);
    for (number, writers) in Writers::ALL.into_iter().enumerate().skip(1) {
        assert_eq!(Writers::numbered(number as u8), Some(writers));
        assert!(writers_note(writers).unwrap().text.contains("checked before each read"));
    }
    assert_eq!(Writers::numbered(u8::MAX), None);
}
