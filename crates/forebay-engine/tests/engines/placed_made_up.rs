//! The engine `placed` over a made-up source: what it does is not one protocol's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Random, allow_dma_bufs, config, pattern, try_placed, turn};
use crate::made_place::{MadePlace, MadeSource};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{EngineKind, File, ReadPiece, Receipt, Session, Way};
use forebay_error::ErrorKind;

const KEY: u64 = 21;
const LEN: usize = 20_000_003;

fn made() -> (Arc<MadePlace>, File, Session) {
    allow_dma_bufs();
    let place = MadePlace::new(pattern(KEY, 0, LEN));
    let file = File::from_source(Arc::new(MadeSource(place.clone()))).unwrap();
    (place, file, Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap())
}

fn read(session: &Session, file: &File, (offset, len): (u64, usize)) -> Receipt {
    let mut buffer = session.buffer(0, len).unwrap();
    buffer.copy_from_slice(&vec![0xA5; len]).unwrap();
    let receipt = session.read(file, offset, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(KEY, offset, len), "wrong bytes: {receipt}");
    receipt
}

#[test]
fn a_peer_places_whole_files_ranges_and_batches() {
    let _turn = turn();
    let (_place, file, session) = made();
    try_placed(&session, &file, 4096);
    let receipt = read(&session, &file, (0, LEN));
    assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Placed, LEN as u64), "{receipt}");
    assert!(receipt.to_string().contains("made up, NIC fake0; keys: per buffer"), "{receipt}");
    let mut random = Random(3);
    for _ in 0..20 {
        let len = 1 + random.below(3_000_000) as usize;
        let offset = random.below((LEN - len) as u64);
        let receipt = read(&session, &file, (offset, len));
        assert_eq!(receipt.moved[Way::Server], len as u64, "{offset}+{len}: {receipt}");
    }
    let piece = |index: usize| ReadPiece {
        offset: (index * 70_001) as u64,
        range: index * 6000..index * 6000 + 5999 - index,
    };
    let pieces: Vec<_> = (0..200).map(piece).collect();
    let outcome = session.read_batch(&file, &pieces, session.buffer(0, 200 * 6000).unwrap()).unwrap().wait();
    assert_eq!(outcome.receipt.moved[Way::Server], outcome.receipt.bytes(), "{}", outcome.receipt);
    let bytes = outcome.buffer.to_vec().unwrap();
    for piece in &pieces {
        assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, piece.range.len()));
    }
    let mut buffer = session.buffer(0, 100).unwrap();
    assert_eq!(session.read(&file, LEN as u64 - 10, &mut buffer).unwrap_err().kind(), ErrorKind::ShortRead);
    assert!(buffer.to_vec().unwrap()[..10] == pattern(KEY, LEN as u64 - 10, 10));
}

#[test]
fn bytes_that_do_not_arrive_are_found_out_before_any_transfer_goes_that_way() {
    let _turn = turn();
    let (place, file, session) = made();
    place.loses.store(true, Ordering::Relaxed);
    try_placed(&session, &file, 4096);
    let receipt = read(&session, &file, (0, LEN));
    assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Staged, 0));
    assert!(receipt.to_string().contains("its bytes did not arrive"), "{receipt}");
}

#[test]
fn what_the_peer_refuses_is_staged_with_the_reason() {
    let _turn = turn();
    let (place, file, session) = made();
    try_placed(&session, &file, 4096);
    assert_eq!(read(&session, &file, (0, LEN)).engine(), EngineKind::Placed);
    place.refuses.store(true, Ordering::Relaxed);
    let receipt = read(&session, &file, (0, LEN));
    assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Staged, 0), "{receipt}");
    assert!(
        receipt.to_string().contains(&format!("the peer refuses ({LEN} bytes were staged)")),
        "{receipt}"
    );
    // It is not asked again at once.
    place.refuses.store(false, Ordering::Relaxed);
    assert_eq!(read(&session, &file, (0, LEN)).engine(), EngineKind::Staged);
    // Writes go through host memory.
    let mut buffer = session.buffer(0, 5000).unwrap();
    buffer.copy_from_slice(&pattern(5, 0, 5000)).unwrap();
    let receipt = session.write(&file, 0, &buffer).unwrap();
    assert_eq!(receipt.moved[Way::Requested], 5000, "{receipt}");
}
