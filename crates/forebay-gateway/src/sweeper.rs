//! Sweeps what gateways leave that were killed, and uploads that nobody goes on with. Any number of gateways may do it at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::accounts::Accounts;
use crate::warn::warn;

/// What is younger stays: S3's clients go on with an upload within a day.
const AGE: Duration = Duration::from_hours(24);
const EVERY: Duration = Duration::from_hours(1);

/// At once, then every hour.
pub(crate) async fn sweep_for_ever(accounts: Arc<Accounts>) {
    let mut told = Told::default();
    loop {
        for store in accounts.stores() {
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.sweep(AGE)).await {
                told.once(&format!("cannot sweep: {error}"), warn);
            }
        }
        tokio::time::sleep(EVERY + jitter()).await;
    }
}

/// Warnings that were given: a directory that is mounted read-only cannot be swept an hour later either.
#[derive(Default)]
struct Told(HashSet<String>);

/// Warnings that are kept.
const MOST_TOLD: usize = 100;

impl Told {
    fn once(&mut self, text: &str, tell: impl FnOnce(&str)) {
        if self.0.len() < MOST_TOLD && self.0.insert(text.to_owned()) {
            tell(text);
        }
    }
}

/// Up to five minutes, so that gateways that were started together do not read the directories together for ever.
fn jitter() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(u64::from(now.subsec_micros()) % 300_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_given_once() {
        let (mut told, mut lines) = (Told::default(), Vec::new());
        for text in ["a", "b", "a", "a", "b"] {
            told.once(text, |text| lines.push(text.to_owned()));
        }
        assert_eq!(lines, ["a", "b"]);
    }
}
