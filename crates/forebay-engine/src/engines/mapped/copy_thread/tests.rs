//! Pullers that change hands, and pullers that die: over host memory, which they serve like any device's.

use forebay_config::Config;
use forebay_error::ErrorKind;
use forebay_gpu::Access;

use super::super::budget::Reservation;
use super::super::pin_cache::Want;
use super::super::window::Pinned;
use super::*;
use crate::engines::permission::Permission;
use crate::engines::staged::Stage;
use crate::engines::staged::workers::Lanes;
use crate::request::file::File;
use crate::request::receipt::{Election, EngineKind};
use crate::request::transfer::{Batch, Memory, Transfer};
use crate::source::version::FileVersion;

fn puller() -> Box<Puller> {
    let (device, config) = (forebay_gpu::host::device(), Config::default());
    let lanes = Arc::new(Lanes::new(device.clone(), config.clone()));
    let shared = Shared::new(device, &config, Permission::Auto, Stage::new(lanes, &config));
    Box::new(Puller::new(Arc::new(shared)).unwrap())
}

fn subject() -> (File, Arc<Pinned>) {
    let file = File::open(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
    let version = FileVersion::of(file.raw_fd().unwrap()).unwrap();
    let pinned = Pinned::new(version, Access::ReadOnly, file.source());
    (file, Arc::new(pinned))
}

/// Of one entry of one byte.
fn completion() -> Arc<Completion> {
    let election = Election { engine: EngineKind::Host, refused: Vec::new(), notes: Vec::new(), mode: None };
    Completion::new([1].into(), 1, vec![false], Arc::new(election), Arc::default(), None)
}

#[test]
fn a_thread_takes_back_only_the_puller_that_it_parked() {
    let (puller, (file, pinned)) = (puller(), subject());
    let shared = puller.shared.clone();
    let reservation = Reservation::take(0, &shared.shelf.budget()).unwrap();
    let request =
        Request { source: file.source().clone(), pinned, window: 0, want: Want::Surely, reservation };
    let first = shared.park(puller, &request);
    // As if the keeper had rescued it, and its new thread were in the driver too.
    let rescued = shared.unpark(first).unwrap();
    std::thread::sleep(Duration::from_millis(1));
    let second = shared.park(rescued, &request);
    assert!(shared.unpark(first).is_none());
    assert!(shared.unpark(second).is_some());
}

#[test]
fn a_puller_that_dies_waits_for_the_lanes_before_it_fails_its_transfers() {
    let (mut puller, (file, pinned)) = (puller(), subject());
    let (part, whole) = (completion(), completion());
    let memory = Memory::new(forebay_gpu::host::device(), 0);
    let direction = Direction::Read;
    let batch = Batch::of(&Transfer { file, offset: 0, memory, len: 1, direction, allow_short: false });
    puller.pulls.push(Some(Pull {
        job: PullJob { batch: Arc::new(batch), base: 0, completion: whole.clone() },
        version: pinned.version(),
        pinned,
        todo: VecDeque::new(),
        pulled: Vec::new(),
        pins: Vec::new(),
        in_flight: 0,
        bytes: 0,
        error: None,
        rest: vec![part.clone()],
        rest_bytes: 1,
        reason: None,
        cuts: Vec::new(),
        left_out: Vec::new(),
    }));
    let dying = std::thread::spawn(move || drop(puller));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!whole.is_done(), "a lane still writes to its memory");
    part.work_done(Moved::default());
    dying.join().unwrap();
    assert!(whole.is_done());
    assert_eq!(whole.results()[0].as_ref().unwrap_err().kind(), ErrorKind::Internal);
}
