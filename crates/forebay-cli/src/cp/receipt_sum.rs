//! Which ways the bytes of a copy took.

use std::sync::Arc;
use std::time::Duration;

use forebay_bench::text::bytes;
use forebay_engine::{Election, Moved, Receipt};

/// What receipts add up to.
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
        let ways = [
            (receipt.moved.placed, "by the drive itself"),
            (receipt.moved.rdma, "by RDMA from the server"),
            (receipt.moved.mapped, "in place"),
            (receipt.moved.cached, "page cache"),
            (receipt.moved.direct, "O_DIRECT"),
            (receipt.moved.buffered, "cold through the page cache"),
            (receipt.moved.requested, "by request"),
        ];
        let engines: Vec<_> = receipt.engines().map(|(engine, _)| election.title_of(engine)).collect();
        let ways: Vec<String> = ways
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, way)| format!("{} {way}", bytes(count)))
            .collect();
        format!("{}: {}", engines.join(" and "), ways.join(", "))
    }
}
