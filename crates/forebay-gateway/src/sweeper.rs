//! Sweeps what gateways leave that were killed, and uploads that nobody goes on with. Any number of gateways may do it at once.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::accounts::Accounts;
use crate::warn::warn;

/// What is younger stays: S3's clients go on with an upload within a day.
const AGE: Duration = Duration::from_hours(24);
const EVERY: Duration = Duration::from_hours(1);

/// At once, then every hour.
pub(crate) async fn sweep_for_ever(accounts: Arc<Accounts>) {
    loop {
        for store in accounts.stores() {
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.sweep(AGE)).await {
                warn(&format!("cannot sweep: {error}"));
            }
        }
        tokio::time::sleep(EVERY + jitter()).await;
    }
}

/// Up to five minutes, so that gateways that were started together do not read the directories together for ever.
fn jitter() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(u64::from(now.subsec_micros()) % 300_000)
}
