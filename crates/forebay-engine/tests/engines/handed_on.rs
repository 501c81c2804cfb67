//! An engine of a program's that takes a part of a batch, and gives a part of that back in flight: the lanes move both.

use std::sync::Arc;

use crate::common::{Scratch, disk, pattern, turn};
use forebay_config::Config;
use forebay_engine::{
    AskedBatch, Batch, CallerPolled, Claim, Engine, EngineKind, File, Moved, Onward, Part, ReadPiece,
    Session, Taken, Work,
};
use forebay_error::{ErrorKind, Result};

const KEY: u64 = 78;
const PIECES: u32 = 40;

/// Takes the entries from 10 on, and moves none of them.
struct Idle;

impl Engine for Idle {
    fn kind(&self) -> EngineKind {
        EngineKind::Registered("idle")
    }

    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim> {
        let left = vec![Part::Entries { first: 0, last: 10 }];
        let work = Box::new(GivesBack(asked.batch.clone()));
        Ok(Claim::Taken(Taken { work, bytes: 0, left, refusal: None }))
    }
}

struct GivesBack(Arc<Batch>);

impl Work for GivesBack {
    fn count(&self) -> usize {
        1
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        std::thread::spawn(move || {
            // SAFETY: of the batch that was taken; nothing moves them here.
            unsafe { onward.hand_on(&self.0, &[Part::Entries { first: 10, last: PIECES }]) };
            onward.completion.work_done(Moved::default());
        });
        None
    }
}

fn session(strict: &[&str]) -> Session {
    forebay_engine::register("idle", |_, _| Ok(Arc::new(Idle))).unwrap();
    let strict = strict.iter().map(|name| (*name).to_owned()).collect();
    Session::with_config(Config { engine: Some("idle".to_owned()), strict, ..Config::default() }).unwrap()
}

fn pieces() -> Vec<ReadPiece> {
    let piece =
        |index: usize| ReadPiece { offset: index as u64 * 50_001, range: index * 9000..(index + 1) * 9000 };
    (0..PIECES as usize).map(piece).collect()
}

#[test]
fn what_an_engine_leaves_or_gives_back_is_moved_by_the_next() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 3_000_000);
    let file = File::open(scratch.path()).unwrap();
    let session = session(&[]);
    let buffer = session.host_buffer(PIECES as usize * 9000).unwrap();
    let outcome = session.read_batch(&file, &pieces(), buffer).unwrap().wait();
    let bytes = outcome.buffer.to_vec().unwrap();
    for (piece, result) in pieces().iter().zip(&outcome.entries) {
        assert_eq!(*result.as_ref().unwrap(), 9000);
        assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, 9000));
    }
    assert_eq!(outcome.receipt.bytes(), u64::from(PIECES) * 9000);
}

#[test]
fn strict_keeps_the_next_engine_away() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 3_000_000);
    let file = File::open(scratch.path()).unwrap();
    let session = session(&["idle"]);
    let buffer = session.host_buffer(PIECES as usize * 9000).unwrap();
    let error = session.read_batch(&file, &pieces(), buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
}
