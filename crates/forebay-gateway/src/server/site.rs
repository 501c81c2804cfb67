//! What all connections of a server share.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderValue;
use s3s::service::S3Service;
use tokio::sync::Mutex;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use crate::accounts::Accounts;
use crate::rdma::Rdma;

use super::access_log::AccessLog;
use super::limits::Limits;
use super::metrics::Metrics;

/// The mount must answer `/healthz` within this time.
const LOOK_TIME: Duration = Duration::from_secs(2);

/// How far a server is from its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Serving,
    /// `/healthz` says no; all else goes on.
    Leaving,
    /// No request begins any more.
    Ending,
    /// Connections are broken off.
    Ended,
}

/// What all connections share.
pub(super) struct Site {
    pub(super) service: S3Service,
    pub(super) metrics: Metrics,
    pub(super) log: Option<AccessLog>,
    /// The socket of this machine, as answers say it.
    pub(super) announced: Option<HeaderValue>,
    pub(super) limits: Limits,
    pub(super) phase: Receiver<Phase>,
    pub(super) ids: AtomicU64,
    pub(super) accounts: Arc<Accounts>,
    /// Held while a thread looks at the mount: one that hangs holds one thread.
    pub(super) look: Arc<Mutex<()>>,
    pub(super) rdma: Option<Arc<Rdma>>,
    /// Figures have a listener of their own.
    pub(super) has_own_metrics: bool,
}

impl Site {
    pub(super) fn is_leaving(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// What `/healthz` answers.
    pub(super) async fn health(&self) -> (StatusCode, String) {
        let why = if self.is_leaving() {
            "leaving"
        } else {
            match timeout(LOOK_TIME, self.look()).await {
                Ok(true) => return (StatusCode::OK, "ok\n".to_owned()),
                Ok(false) => "the directory cannot be read",
                Err(_) => "the file system does not answer",
            }
        };
        (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
    }

    async fn look(&self) -> bool {
        let turn = Arc::clone(&self.look).lock_owned().await;
        let accounts = Arc::clone(&self.accounts);
        let look = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            accounts.look().is_ok()
        });
        look.await.unwrap_or_default()
    }

    pub(super) fn metrics(&self) -> String {
        let mut text = self.metrics.text();
        if let Some(log) = &self.log {
            let name = "forebay_s3_access_log_lost_total";
            let help = "Lines of the access log that were not written.";
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}", log.lost());
        }
        for (name, kind, help, value) in self.rdma.iter().flat_map(|rdma| rdma.figures()) {
            let name = format!("forebay_s3_{name}");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }

    pub(super) fn next_id(&self) -> String {
        format!("{:016X}", self.ids.fetch_add(1, Relaxed))
    }
}
