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
        let mut faults = HashSet::new();
        for store in accounts.stores() {
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.sweep(AGE)).await {
                faults.insert(format!("cannot sweep: {error}"));
            }
        }
        told.again(faults, warn);
        tokio::time::sleep(EVERY + jitter()).await;
    }
}

/// The faults of the sweep before: a directory that is mounted read-only cannot be swept an hour later either. One that went and came
/// back is another outage.
#[derive(Default)]
struct Told(HashSet<String>);

impl Told {
    fn again(&mut self, faults: HashSet<String>, mut tell: impl FnMut(&str)) {
        faults.difference(&self.0).for_each(|fault| tell(fault));
        self.0 = faults;
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
    fn each_outage_is_told_once() {
        let mut told = Told::default();
        let mut sweep = |faults: &[&str]| {
            let mut lines = Vec::new();
            told.again(faults.iter().map(ToString::to_string).collect(), |line| lines.push(line.to_owned()));
            lines.sort();
            lines
        };
        assert_eq!(sweep(&["a", "b"]), ["a", "b"]);
        assert_eq!(sweep(&["a"]), [""; 0]);
        assert_eq!(sweep(&["a", "b"]), ["b"]);
        assert_eq!(sweep(&[]), [""; 0]);
        assert_eq!(sweep(&["a"]), ["a"]);
    }
}
