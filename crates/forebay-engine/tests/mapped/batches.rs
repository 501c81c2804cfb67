//! Batches of many pieces, as of those who load a model: in place from the first time on, by few calls to the driver.

use crate::common::{Random, disk, pattern, soon, turn};
use crate::pages::{MIB, memory, only, open, pins, subject};
use forebay_engine::{EngineKind, ReadPiece, Way};

const KEY: u64 = 0xBA7C;
const LAUNCH: &str = "cuLaunchKernel";
const COPY: &str = "cuMemcpyHtoDAsync_v2";

/// Pieces of these lengths one beside the other in the file, and 512 bytes aligned in memory; what both need.
fn layout(lengths: impl Iterator<Item = usize>) -> (Vec<ReadPiece>, usize, usize) {
    let (mut offset, mut at, mut pieces) = (1003, 0, Vec::new());
    for len in lengths {
        pieces.push(ReadPiece { offset: offset as u64, range: at..at + len });
        offset += len;
        at += len.next_multiple_of(512);
    }
    (pieces, offset, at)
}

#[test]
fn many_pieces_are_gathered_in_place_from_the_first_time_on() {
    let mut random = Random(5);
    // Up to a mebibyte, some of nothing, and one that is copied. Windows end within pieces.
    let lengths = (0..600).map(|at| match at % 50 {
        0 => 0,
        1 => MIB,
        2 => 100,
        _ => random.below(350 << 10) as usize,
    });
    let (mut pieces, end, room) = layout(lengths.chain([3 * MIB]));
    for (directory, in_order) in [(disk(), true), (memory(), true), (memory(), false)] {
        let turn = turn();
        // By itself it pins nothing where other programs make memory short.
        let session = open(only());
        let budget = pins(&session).budget;
        if budget.bytes < (end + 64 * MIB) as u64 {
            return eprintln!("skipped: {} MiB may be pinned ({})", budget.bytes >> 20, budget.limiter);
        }
        if !in_order {
            for at in (1..pieces.len()).rev() {
                pieces.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
        let (_scratch, file) = subject(&directory, KEY, end + 17);
        let bytes: usize = pieces.iter().map(|piece| piece.range.len()).sum();
        for round in 0..2 {
            let calls = || (turn.fake.calls(LAUNCH), turn.fake.calls(COPY));
            let before = calls();
            let buffer = session.buffer(0, room).unwrap();
            let ticket = session.read_batch(&file, &pieces, buffer).unwrap();
            let (receipt, buffer) = ticket.wait().into_result().unwrap();
            assert_eq!(
                (receipt.engine(), receipt.moved[Way::Mapped]),
                (EngineKind::Mapped, bytes as u64),
                "round {round}: {receipt}"
            );
            let (kernels, copies) = (calls().0 - before.0, calls().1 - before.1);
            assert!(kernels <= 12, "{kernels} kernels for {} MiB", bytes >> 20);
            assert!(copies <= 4, "{copies} copies for the large piece (and the trial page)");
            let got = buffer.to_vec().unwrap();
            let all = pattern(KEY, 0, end);
            for ReadPiece { offset, range } in &pieces {
                let start = *offset as usize;
                assert!(got[range.clone()] == all[start..start + range.len()], "round {round}, {offset}");
            }
        }
        // A window may have been asked for at the last moment.
        assert!(soon(|| session.trim() == 0 && pins(&session).process_bytes == 0), "{:?}", pins(&session));
    }
}
