//! Files one after the other, without a pause: the next one gets the descriptor's number of the last one, and its own bytes.

use crate::common::{Scratch, Target, disk, pattern, session, turn};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{Batch, Buffer, Direction, File, Piece, Session};

const FILES: usize = 300;
const PIECE: usize = 4 << 10;
/// Every second piece of a file, so that each is a call of its own.
const PIECES: usize = 4;
const LEN: usize = 2 * PIECES * PIECE;

/// Moves the pieces of the file whose bytes begin at `at` in the buffer, and closes it.
fn transfer(session: &Session, file: File, buffer: &Buffer, at: usize, direction: Direction) {
    let piece = |index: usize| Piece {
        offset: (2 * index * PIECE) as u64,
        address: buffer.address() + (at + 2 * index * PIECE) as u64,
        len: PIECE,
    };
    let pieces = (0..PIECES).map(piece).collect();
    let batch = Batch { file, memory: buffer.memory(), direction, pieces, allow_short: false };
    // SAFETY: the buffer outlives the wait, and the pieces lie in it side by side.
    let outcome = unsafe { session.submit_batch(batch) }.unwrap().wait();
    assert!(outcome.entries.iter().all(Result::is_ok));
}

/// What the pieces of file `index` hold.
fn content(bytes: &[u8], index: usize) -> Vec<&[u8]> {
    bytes[index * LEN..][..LEN].chunks(PIECE).step_by(2).collect()
}

#[test]
fn each_file_keeps_to_its_own_descriptor() {
    let _turn = turn();
    let session = session(IoBackend::Auto, CachePolicy::Bypass);
    let all = pattern(5, 0, FILES * LEN);
    for target in Target::ALL {
        let scratches: Vec<_> = (0..FILES).map(|_| Scratch::new(&disk())).collect();
        let mut buffer = target.buffer(&session, all.len());
        buffer.copy_from_slice(&all).unwrap();
        for (index, scratch) in scratches.iter().enumerate() {
            let file = File::options().write(true).create(true).open(scratch.path()).unwrap();
            transfer(&session, file, &buffer, index * LEN, Direction::Write);
        }
        for (index, scratch) in scratches.iter().enumerate() {
            let mut written = std::fs::read(scratch.path()).unwrap();
            written.resize(LEN, 0);
            assert!(
                content(&written, 0) == content(&all, index),
                "file {index} was written wrong: {target:?}"
            );
        }
        buffer.copy_from_slice(&vec![0; all.len()]).unwrap();
        for (index, scratch) in scratches.iter().enumerate() {
            transfer(&session, File::open(scratch.path()).unwrap(), &buffer, index * LEN, Direction::Read);
        }
        let found = buffer.to_vec().unwrap();
        for index in 0..FILES {
            assert!(
                content(&found, index) == content(&all, index),
                "file {index} was read wrong: {target:?}"
            );
        }
    }
}
