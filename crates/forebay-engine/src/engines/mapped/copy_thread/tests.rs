//! Copy threads whose work changes hands, and copy threads that die: over host memory, which they serve like any device's.

use forebay_config::Config;
use forebay_error::ErrorKind;
use forebay_gpu::Access;

use super::super::budget::Reservation;
use super::super::reclaimer::Pin;
use super::super::registrar::{PinPolicy, PinTerms};
use super::super::threads::EngineThreads;
use super::super::window::PinnedFile;
use super::*;
use crate::engines::permission::Permission;
use crate::engines::staged::Stage;
use crate::engines::staged::sync::Callers;
use crate::engines::staged::workers::Lanes;
use crate::request::file::File;
use crate::request::receipt::{CountedPlaces, Election, EngineKind};
use crate::request::transfer::{Batch, Memory, Transfer};
use crate::source::version::FileVersion;

fn copier() -> Box<CopyThread> {
    let (device, config) = (forebay_gpu::host::device(), Config::default());
    let lanes = Arc::new(Lanes::new(device.clone(), config.clone()));
    let callers = Arc::new(Callers::new(device.clone(), &config));
    let state = MappedState::new(device, &config, Permission::Auto, Stage::new(lanes, &config), callers);
    Box::new(CopyThread::new(Arc::new(state)).unwrap())
}

fn subject() -> (File, Arc<PinnedFile>) {
    let file = File::open(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
    let version = FileVersion::of(file.raw_fd().unwrap()).unwrap();
    let pinned = PinnedFile::new(version, Access::ReadOnly, file.opened().unwrap());
    (file, Arc::new(pinned))
}

/// Of one entry of one byte.
fn completion() -> Arc<Completion> {
    let election = Election {
        engine: EngineKind::Host,
        refused: Vec::new(),
        notes: Vec::new(),
        mode: None,
        places: CountedPlaces::default(),
    };
    Completion::new([1].into(), 1, vec![false], Arc::new(election), Arc::default(), None)
}

#[test]
fn a_thread_takes_back_only_the_work_that_it_parked() {
    let (copier, (file, pinned)) = (copier(), subject());
    let state = copier.state.clone();
    let threads = EngineThreads::new(state.clone());
    let reservation = Arc::new(Reservation::take(0, &state.cache.budget()).unwrap());
    let request = PinRequest {
        source: Some(file.opened().unwrap().clone()),
        pinned,
        window: 0,
        terms: PinTerms::of(PinPolicy::Always, 0.0),
        reservation,
        since: Instant::now(),
        pin: Pin::default(),
        was_watched: false,
    };
    let first = threads.park(copier, &request);
    // As if the reclaimer had rescued it, and its new thread were in the driver too.
    let rescued = threads.unpark(first).unwrap();
    std::thread::sleep(Duration::from_millis(1));
    let second = threads.park(rescued, &request);
    assert!(threads.unpark(first).is_none());
    assert!(threads.unpark(second).is_some());
}

#[test]
fn a_copy_thread_that_dies_waits_for_the_lanes_before_it_fails_its_transfers() {
    let (mut copier, (file, pinned)) = (copier(), subject());
    let (part, whole) = (completion(), completion());
    let memory = Memory::new(forebay_gpu::host::device(), 0);
    let direction = Direction::Read;
    let batch = Batch::of(&Transfer { file, offset: 0, memory, len: 1, direction, allow_short: false });
    copier.transfers.push(Some(InPlaceTransfer {
        job: MappedJob { batch: Arc::new(batch), base: 0, completion: whole.clone() },
        version: pinned.version(),
        pinned,
        todo: VecDeque::new(),
        copied: Vec::new(),
        pins: Vec::new(),
        in_flight: 0,
        cover: 0,
        bytes: 0,
        by_resident: false,
        error: None,
        held: Vec::new(),
        rest: vec![part.clone()],
        rest_bytes: 1,
        reason: None,
        cuts: Vec::new(),
        left_out: Vec::new(),
    }));
    let dying = std::thread::spawn(move || drop(copier));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!whole.is_done(), "a lane still writes to its memory");
    part.work_done(Moved::default());
    dying.join().unwrap();
    assert!(whole.is_done());
    assert_eq!(whole.results()[0].as_ref().unwrap_err().kind(), ErrorKind::Internal);
}
