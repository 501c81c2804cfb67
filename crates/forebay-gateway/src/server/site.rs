//! What all connections of a server share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use s3s::service::S3Service;
use tokio::sync::watch::Receiver;

use super::access_log::AccessLog;
use super::limits::Limits;
use super::metrics::Metrics;

/// How far a server is from its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// `/healthz` says no; all else goes on.
    Leaving,
    /// No request begins any more.
    Ending,
}

/// What all connections share.
pub(super) struct Site {
    pub(super) service: S3Service,
    pub(super) metrics: Metrics,
    pub(super) log: Option<AccessLog>,
    pub(super) limits: Limits,
    pub(super) phase: Receiver<Phase>,
    pub(super) ids: AtomicU64,
}

impl Site {
    pub(super) fn is_leaving(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    pub(super) fn next_id(&self) -> String {
        format!("{:016X}", self.ids.fetch_add(1, Relaxed))
    }
}
