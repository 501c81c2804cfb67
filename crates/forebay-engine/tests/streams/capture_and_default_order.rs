//! Transfers of a session whose copies come after the default streams, while a stream is captured: the receipt says that
//! nothing was ordered, and the capture goes on. The ordered case is tested by the drop-in's `default_stream.c`.

#[allow(dead_code, reason = "the example's main and its candidate")]
#[path = "../../examples/toy_engine.rs"]
mod toy_engine;

use std::sync::Arc;
use std::time::Instant;

use crate::common::{Scratch, disk, pattern, turn};
use forebay_config::{Config, Order};
use forebay_engine::{File, Note, ReadPiece, Receipt, Session};
use forebay_gpu::DefaultStream;

const KEY: u64 = 77;
const LEN: usize = 9 << 20;
const GLOBAL: i32 = 0;
const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;

fn says_so(receipt: &Receipt) -> bool {
    let is_said = |note: &&Note| note.text.contains("not ordered behind the default streams");
    match receipt.election.notes.iter().filter(is_said).count() {
        0 => false,
        1 => true,
        count => panic!("said {count} times"),
    }
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

/// Work on a default stream holds up what comes after it, and nothing else.
#[test]
fn others_find_room_while_copies_wait() {
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    let free = Session::with_config(Config { lanes: 1, slots: 2, ..Config::default() }).unwrap();
    let ordered = free.behind_default_streams();
    let whole = || [ReadPiece { offset: 0, range: 0..LEN }];
    let warm = free.read_batch(&file, &whole(), free.buffer(0, LEN).unwrap()).unwrap();
    warm.wait().into_result().unwrap();
    turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
    turn.fake.set_default_stream_delay_us(700_000);
    let stream = forebay_gpu::cuda::devices().unwrap()[0].clone();
    let legacy = stream.default_stream(forebay_gpu::Context::PRIMARY, DefaultStream::Legacy).unwrap();
    let mark = legacy.event().unwrap();
    legacy.record(mark.as_ref()).unwrap();
    let held = ordered.read_batch(&file, &whole(), free.buffer(0, LEN).unwrap()).unwrap();
    let begun = Instant::now();
    let other = free.read_batch(&file, &whole(), free.buffer(0, LEN).unwrap()).unwrap();
    let (_, bytes) = other.wait().into_result().unwrap();
    assert!(!mark.is_done().unwrap(), "it took {:?}, as long as the stream", begun.elapsed());
    assert!(bytes.to_vec().unwrap() == pattern(KEY, 0, LEN));
    turn.fake.set_default_stream_delay_us(0);
    let (_, bytes) = held.wait().into_result().unwrap();
    assert!(bytes.to_vec().unwrap() == pattern(KEY, 0, LEN));
}

#[test]
fn the_copies_of_a_program_s_engine_wait_too() {
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    forebay_engine::register("toy", |_, _| Ok(Arc::new(toy_engine::ToyEngine))).unwrap();
    let toy = Session::with_config(Config { engine: Some("toy".to_owned()), ..Config::default() }).unwrap();
    let (ordered, buffer) = (toy.behind_default_streams(), toy.buffer(0, LEN).unwrap());
    turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
    turn.fake.set_default_stream_delay_us(300_000);
    let device = forebay_gpu::cuda::devices().unwrap()[0].clone();
    let legacy = device.default_stream(forebay_gpu::Context::PRIMARY, DefaultStream::Legacy).unwrap();
    let mark = legacy.event().unwrap();
    legacy.record(mark.as_ref()).unwrap();
    let read = ordered.read_batch(&file, &[ReadPiece { offset: 0, range: 0..LEN }], buffer).unwrap();
    let (_, bytes) = read.wait().into_result().unwrap();
    assert!(mark.is_done().unwrap(), "copied before what stood on the default stream");
    turn.fake.set_default_stream_delay_us(0);
    assert!(bytes.to_vec().unwrap() == pattern(KEY, 0, LEN));
}
