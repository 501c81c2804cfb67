//! Lanes that poll between jobs, which they do by themselves only on machines with many CPUs.

use std::sync::Arc;
use std::time::Duration;

use forebay_config::{Config, IoBackend};
use forebay_gpu::Device;

use super::Lanes;
use crate::file::File;
use crate::plan::Part;
use crate::receipt::{Election, EngineKind};
use crate::segment::Warmth;
use crate::stage::Stage;
use crate::transfer::{Batch, Direction, Memory, Piece};

const LEN: usize = 3 << 20;
const KEY: u64 = 3;

fn lanes(device: &Arc<dyn Device>, io: IoBackend) -> (Arc<Lanes>, Stage) {
    let config = Config { lanes: 3, slots: 2, slot_size: 256 << 10, io, ..Config::default() };
    let lanes = Arc::new(Lanes::with_polls(device.clone(), config.clone(), true));
    let stage = Stage::new(lanes.clone(), &config);
    (lanes, stage)
}

fn subject() -> (tempfile::NamedTempFile, File) {
    let scratch = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = vec![0; LEN];
    forebay_gpu::fill_pattern(&mut bytes, KEY, 0);
    std::fs::write(scratch.path(), &bytes).unwrap();
    let file = File::open(scratch.path()).unwrap();
    (scratch, file)
}

/// Reads `pieces` of the file, given as offset and length, one after the other; how often the bytes were right.
fn read(stage: &Stage, file: &File, device: &Arc<dyn Device>, pieces: &[(usize, usize)]) -> usize {
    let buffer = crate::Buffer::new(device.clone(), LEN).unwrap();
    let election = Election { engine: EngineKind::Staged, refused: Vec::new(), notes: Vec::new() };
    let batch = Arc::new(Batch {
        file: file.clone(),
        memory: Memory::new(device.clone(), buffer.address()),
        direction: Direction::Read,
        pieces: pieces
            .iter()
            .map(|(offset, len)| Piece {
                offset: *offset as u64,
                address: buffer.address() + *offset as u64,
                len: *len,
            })
            .collect(),
        allow_short: false,
    });
    let parts = [Part::Entries { first: 0, last: pieces.len() as u32 }];
    let done = stage.submit_parts(&batch, Warmth::Warm, &parts, &Arc::new(election), None);
    assert!(done.wait(Some(Duration::from_secs(20))), "a job was lost");
    let bytes = buffer.to_vec().unwrap();
    let is_good = |(offset, len): &&(usize, usize)| {
        let mut wanted = vec![0; *len];
        forebay_gpu::fill_pattern(&mut wanted, KEY, *offset as u64);
        bytes[*offset..*offset + *len] == wanted
    };
    pieces.iter().filter(is_good).count()
}

fn each(body: impl Fn(&Arc<dyn Device>, IoBackend)) {
    fake_cuda::install().expect("the software GPU was built with these tests");
    let devices = forebay_gpu::Devices::discover();
    assert!(!devices.gpus.is_empty(), "{:?}", devices.missing);
    for device in [&devices.gpus[0], &devices.host] {
        for io in [IoBackend::Auto, IoBackend::Threads] {
            body(device, io);
        }
    }
}

/// Soon one after another, so that lanes poll; with pauses in between, in which they go to sleep at any point.
#[test]
fn no_job_is_lost_between_a_poll_and_a_sleep() {
    each(|device, io| {
        let (_lanes, stage) = lanes(device, io);
        let (_scratch, file) = subject();
        for round in 0..90u64 {
            let wide = [(0, LEN)];
            let narrow = [(round as usize * 4096, 300_000)];
            let pieces: &[_] = if round % 3 == 0 { &wide } else { &narrow };
            assert_eq!(read(&stage, &file, device, pieces), 1, "round {round}");
            if round % 5 == 4 {
                std::thread::sleep(Duration::from_micros(round * 4));
            }
        }
    });
}

#[test]
fn several_submitters_find_polling_lanes() {
    each(|device, io| {
        let (_lanes, stage) = lanes(device, io);
        let (_scratch, file) = subject();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (stage, file) = (&stage, &file);
                scope.spawn(move || {
                    for round in 0..40 {
                        let pieces = [(thread * 5000, 700_000), (1 << 20, 10_000 + round)];
                        assert_eq!(read(stage, file, device, &pieces), 2);
                    }
                });
            }
        });
    });
}

#[test]
fn lanes_that_poll_end_with_their_owner() {
    each(|device, io| {
        for _ in 0..10 {
            let (lanes, stage) = lanes(device, io);
            let (_scratch, file) = subject();
            (0..4).for_each(|_| assert_eq!(read(&stage, &file, device, &[(0, LEN)]), 1));
            drop((stage, lanes));
        }
    });
}
