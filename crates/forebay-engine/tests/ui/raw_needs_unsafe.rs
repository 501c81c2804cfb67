//! Transfers of raw memory are the caller's word: they need `unsafe`.
use forebay_engine::{Batch, Session, Transfer};

fn raw(session: &Session, transfer: Transfer, batch: Batch) {
    let _ = session.run(&transfer);
    let _ = session.submit(vec![transfer.clone()]);
    let _ = session.submit_on(0, vec![transfer]);
    let _ = session.submit_batch(batch);
}

fn main() {}
