//! Which ways the bytes of a copy took.

use std::sync::Arc;
use std::time::Duration;

use forebay_bench::text::bytes;
use forebay_engine::{Election, Moved, Receipt};

/// The sum of receipts.
#[derive(Default)]
pub(super) struct ReceiptSum {
    moved: Moved,
    election: Option<Arc<Election>>,
}

impl ReceiptSum {
    pub(super) fn add(&mut self, receipt: &Receipt) {
        self.moved = self.moved.plus(receipt.moved);
        self.election = Some(receipt.election.clone());
    }

    pub(super) fn text(&self) -> String {
        let Some(election) = &self.election else { return "nothing".to_owned() };
        let receipt = Receipt { election: election.clone(), moved: self.moved, elapsed: Duration::ZERO };
        let engines: Vec<_> = receipt.engines().map(|(engine, _)| election.title_of(engine)).collect();
        let ways = self.moved.taken().map(|(way, count)| format!("{} {}", bytes(count), way.words()));
        let ways: Vec<String> = ways.collect();
        format!("{}: {}", engines.join(" and "), ways.join(", "))
    }
}
