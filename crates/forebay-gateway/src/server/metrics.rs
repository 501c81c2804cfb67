//! Figures of the server, as Prometheus reads them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, Default)]
struct Count {
    requests: u64,
    seconds: f64,
}

/// Since the server began.
#[derive(Default)]
pub(super) struct Metrics {
    by_operation: Mutex<BTreeMap<(&'static str, u16), Count>>,
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) turned_away: AtomicU64,
    pub(super) overdue: AtomicU64,
    pub(super) under_way: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

impl Metrics {
    pub(super) fn count(
        &self,
        operation: &'static str,
        status: u16,
        time: Duration,
        bytes_in: u64,
        bytes_out: u64,
    ) {
        self.bytes_in.fetch_add(bytes_in, Relaxed);
        self.bytes_out.fetch_add(bytes_out, Relaxed);
        let mut counts = self.by_operation.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry((operation, status)).or_default();
        count.requests += 1;
        count.seconds += time.as_secs_f64();
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let counts = self.by_operation.lock().unwrap_or_else(PoisonError::into_inner).clone();
        text.push_str("# HELP forebay_s3_requests_total Requests that were answered.\n");
        text.push_str("# TYPE forebay_s3_requests_total counter\n");
        for ((operation, status), count) in &counts {
            let labels = labels(operation, *status);
            let _ = writeln!(text, "forebay_s3_requests_total{labels} {}", count.requests);
        }
        text.push_str(
            "# HELP forebay_s3_request_seconds_total Time from a head to the last byte of its answer.\n",
        );
        text.push_str("# TYPE forebay_s3_request_seconds_total counter\n");
        for ((operation, status), count) in &counts {
            let labels = labels(operation, *status);
            let _ = writeln!(text, "forebay_s3_request_seconds_total{labels} {:.6}", count.seconds);
        }
        for (name, kind, help, value) in [
            ("received_bytes_total", "counter", "Bytes of bodies that came.", &self.bytes_in),
            ("sent_bytes_total", "counter", "Bytes of bodies that were sent.", &self.bytes_out),
            ("connections", "gauge", "Open connections.", &self.connections),
            ("connections_total", "counter", "Connections that were taken.", &self.accepted),
            ("connections_refused_total", "counter", "Connections over the limit.", &self.turned_away),
            ("connections_overdue_total", "counter", "Connections closed after a time limit.", &self.overdue),
            ("requests_in_flight", "gauge", "Requests under way.", &self.under_way),
        ] {
            let value = value.load(Relaxed);
            let _ = writeln!(
                text,
                "# HELP forebay_s3_{name} {help}\n# TYPE forebay_s3_{name} {kind}\nforebay_s3_{name} {value}"
            );
        }
        text
    }
}

fn labels(operation: &str, status: u16) -> String {
    let operation = if operation.is_empty() { "Refused" } else { operation };
    format!("{{operation=\"{operation}\",status=\"{status}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_operation_and_status() {
        let metrics = Metrics::default();
        metrics.count("GetObject", 200, Duration::from_millis(500), 0, 10);
        metrics.count("GetObject", 200, Duration::from_millis(250), 0, 5);
        metrics.count("", 403, Duration::ZERO, 0, 1);
        let text = metrics.text();
        for line in [
            "forebay_s3_requests_total{operation=\"GetObject\",status=\"200\"} 2",
            "forebay_s3_request_seconds_total{operation=\"GetObject\",status=\"200\"} 0.750000",
            "forebay_s3_requests_total{operation=\"Refused\",status=\"403\"} 1",
            "forebay_s3_sent_bytes_total 16",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
