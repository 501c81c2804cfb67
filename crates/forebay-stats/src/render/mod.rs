//! Snapshots as text.

mod gds_stats;
mod prometheus;
mod receipt;

pub use gds_stats::gds_stats;
pub use prometheus::prometheus;
pub use receipt::{details, receipt};

/// Bytes in words: `4.0 GiB`.
fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Nanoseconds in words: `1.25 ms`.
fn time(nanos: u64) -> String {
    match nanos {
        0..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", nanos as f64 / 1e6),
        _ => format!("{:.2} s", nanos as f64 / 1e9),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tests::busy;

    #[test]
    fn texts() {
        let snapshot = busy();
        for level in 1..=3 {
            insta::assert_snapshot!(format!("gds_stats_{level}"), gds_stats(&snapshot, level));
        }
        insta::assert_snapshot!("prometheus", prometheus(std::slice::from_ref(&snapshot)));
        insta::assert_snapshot!("receipt", receipt(std::slice::from_ref(&snapshot)));
        insta::assert_snapshot!("json", serde_json::to_string_pretty(&snapshot).unwrap());
    }

    /// docs/reference/stats.md names each metric, and names follow Prometheus's rules.
    #[test]
    fn the_page_names_every_metric() {
        let page = include_str!("../../../../docs/reference/stats.md");
        let text = prometheus(&[busy()]);
        let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE forebay_")?.split_once(' '));
        assert!(kinds.clone().count() > 15);
        for (name, kind) in kinds {
            assert!(page.contains(&format!("`{name}`")), "docs/reference/stats.md does not name {name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        }
    }

    #[test]
    fn receipts_of_several_processes_are_added_up() {
        let mut second = busy();
        (second.pid, second.program) = (4343, "python two.py".into());
        second.engines[0].name = "host".into();
        let mut idle = crate::Counters::hidden().unwrap().snapshot();
        idle.pid = 1;
        insta::assert_snapshot!("receipt_of_two", receipt(&[busy(), idle.clone(), second]));
        insta::assert_snapshot!("receipt_of_none", receipt(&[idle]));
        assert_eq!(receipt(&[]), "receipt: no process moved bytes on forebay\n");
    }

    #[test]
    fn words() {
        assert_eq!([bytes(1023), bytes(1 << 30)], ["1023 B", "1.0 GiB"]);
        assert_eq!([time(1500), time(1_500_000), time(1_500_000_000)], ["1.5 us", "1.50 ms", "1.50 s"]);
    }
}
