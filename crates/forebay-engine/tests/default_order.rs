//! Transfers of a session whose copies come after the default streams, while a stream is captured: the receipt says that
//! nothing was ordered, and the capture goes on. What is ordered is shown by the drop-in's `default_stream.c`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Scratch, disk, turn};
use forebay_config::{Config, Order};
use forebay_engine::{File, ReadPiece, Receipt, Session};

const KEY: u64 = 77;
const LEN: usize = 9 << 20;
const GLOBAL: i32 = 0;
const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;

fn says_so(receipt: &Receipt) -> bool {
    receipt.election.notes.iter().any(|note| note.text.contains("not ordered behind the default streams"))
}

/// The receipts of a small and a large read and of a batch.
fn receipts(session: &Session, file: &File) -> Vec<Receipt> {
    let mut small = session.buffer(0, 4096).unwrap();
    let mut large = session.buffer(0, LEN).unwrap();
    let pieces = [ReadPiece { offset: 3, range: 0..100 }, ReadPiece { offset: 9000, range: 200..4096 }];
    let batch = session.buffer(0, 4096).unwrap();
    vec![
        session.read(file, 5, &mut small).unwrap(),
        session.read(file, 0, &mut large).unwrap(),
        session.read_batch(file, &pieces, batch).unwrap().wait().into_result().unwrap().0,
    ]
}

#[test]
fn a_capture_goes_on_and_the_receipt_says_that_nothing_was_ordered() {
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    let free = Session::with_config(Config::default()).unwrap();
    let ordered = free.behind_default_streams();
    let none = Session::with_config(Config { order: Order::None, ..Config::default() }).unwrap();
    let none = none.behind_default_streams();
    assert!(!receipts(&ordered, &file).iter().any(says_so), "no stream is captured");
    for (flags, is_in_the_way) in [(BLOCKING, true), (NON_BLOCKING, false)] {
        turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
        let stream = turn.fake.create_stream(flags).unwrap();
        turn.fake.begin_capture(stream, GLOBAL).unwrap();
        assert!(receipts(&ordered, &file).iter().all(|receipt| says_so(receipt) == is_in_the_way));
        assert!(!receipts(&free, &file).iter().any(says_so), "nobody asked for an order");
        assert!(!receipts(&none, &file).iter().any(says_so), "it is switched off");
        turn.fake.end_capture(stream).expect("the capture survives");
        turn.fake.destroy_stream(stream).unwrap();
    }
}
