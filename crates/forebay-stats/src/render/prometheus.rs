//! The text format that Prometheus reads.

use std::fmt::{Display, Write};

use forebay_error::plain;
use forebay_ways::Way;

use crate::ops::Op;
use crate::snapshot::{IoTotals, Snapshot};

/// The counters of these processes, one metric after the other.
pub fn prometheus(snapshots: &[Snapshot]) -> String {
    let mut text = Metrics { text: String::new(), snapshots };
    text.metric("process_info", "gauge", "The process that has the counters.", |put, snapshot| {
        put.line("", &[("program", &snapshot.program)], 1);
    });
    text.metric("io_total", "counter", "Transfers that ended.", |put, snapshot| {
        for (name, io) in directions(snapshot) {
            put.line("", &[("direction", name), ("result", "ok")], io.ok);
            put.line("", &[("direction", name), ("result", "error")], io.err);
        }
    });
    text.metric("io_bytes_total", "counter", "Bytes of transfers that succeeded.", |put, snapshot| {
        for (name, io) in directions(snapshot) {
            put.line("", &[("direction", name)], io.bytes);
        }
    });
    text.metric("io_seconds_total", "counter", "Sum of the latencies of transfers.", |put, snapshot| {
        for (name, io) in directions(snapshot) {
            put.line("", &[("direction", name)], seconds(io.latency_ns));
        }
    });
    text.metric(
        "io_unaligned_total",
        "counter",
        "Transfers that were not aligned to pages.",
        |put, snapshot| {
            for (name, io) in directions(snapshot) {
                put.line("", &[("direction", name)], io.unaligned);
            }
        },
    );
    text.metric(
        "io_size_bytes",
        "histogram",
        "Sizes of reads and writes that succeeded.",
        |put, snapshot| {
            let sizes = [
                ("read", &snapshot.read_sizes, &snapshot.read),
                ("write", &snapshot.write_sizes, &snapshot.write),
            ];
            for (name, sizes, io) in sizes {
                histogram(put, name, sizes, io.bytes);
            }
        },
    );
    text.metric("calls_total", "counter", "Other calls.", |put, snapshot| {
        for op in Op::ALL {
            let count = snapshot.calls.get(*op);
            put.line("", &[("call", op.name()), ("result", "ok")], count.ok);
            put.line("", &[("call", op.name()), ("result", "error")], count.err);
        }
    });
    text.metric("batch_bytes_total", "counter", "Bytes of batches.", |put, snapshot| {
        put.line("", &[("direction", "read")], snapshot.batch.read_bytes);
        put.line("", &[("direction", "write")], snapshot.batch.write_bytes);
    });
    text.metric(
        "batch_submit_seconds_total",
        "counter",
        "Time that submissions of batches took.",
        |put, snapshot| {
            put.line("", &[], seconds(snapshot.batch.submit_ns));
        },
    );
    text.metric(
        "batch_seconds_total",
        "counter",
        "Time from submission to completion of batches.",
        |put, snapshot| {
            put.line("", &[], seconds(snapshot.batch.complete_ns));
        },
    );
    text.metric(
        "async_in_flight",
        "gauge",
        "Asynchronous operations that have not ended.",
        |put, snapshot| {
            put.line("", &[], snapshot.asyncs.in_flight);
        },
    );
    text.metric(
        "server_round_trips_total",
        "counter",
        "Calls to servers that were answered.",
        |put, snapshot| {
            put.line("", &[], snapshot.round_trips.count);
        },
    );
    text.metric(
        "server_round_trip_seconds_total",
        "counter",
        "Sum of the times from call to answer of servers.",
        |put, snapshot| put.line("", &[], seconds(snapshot.round_trips.latency_ns)),
    );
    gpus(&mut text);
    engines(&mut text);
    text.text
}

fn gpus(text: &mut Metrics<'_>) {
    text.metric(
        "gpu_bytes_total",
        "counter",
        "Bytes to (read) and from (write) each GPU.",
        |put, snapshot| {
            for gpu in &snapshot.gpus {
                let (index, uuid) = (gpu.index.to_string(), gpu.uuid_hex());
                for (name, io) in [("read", &gpu.device.read), ("write", &gpu.device.write)] {
                    put.line("", &[("gpu", &index), ("uuid", &uuid), ("direction", name)], io.bytes);
                }
            }
        },
    );
    text.metric(
        "gpu_registered_bytes",
        "gauge",
        "Memory of each GPU that is registered.",
        |put, snapshot| {
            for gpu in &snapshot.gpus {
                let (index, uuid) = (gpu.index.to_string(), gpu.uuid_hex());
                put.line("", &[("gpu", &index), ("uuid", &uuid)], gpu.device.registered_bytes);
            }
        },
    );
}

fn engines(text: &mut Metrics<'_>) {
    text.metric("engine_requests_total", "counter", "Requests by engine.", |put, snapshot| {
        for engine in &snapshot.engines {
            put.line("", &[("engine", &engine.name)], engine.requests);
        }
    });
    text.metric("engine_bytes_total", "counter", "Bytes by engine and way.", |put, snapshot| {
        for engine in &snapshot.engines {
            for way in Way::ALL {
                put.line("", &[("engine", &engine.name), ("way", way.name())], engine.moved[way]);
            }
        }
    });
    text.metric(
        "refused_bytes_total",
        "counter",
        "Bytes for which an engine was refused.",
        |put, snapshot| {
            for refusal in &snapshot.refusals {
                put.line("", &[("engine", &refusal.engine), ("reason", &refusal.reason)], refusal.bytes);
            }
        },
    );
}

fn directions(snapshot: &Snapshot) -> [(&'static str, &IoTotals); 4] {
    [
        ("read", &snapshot.read),
        ("write", &snapshot.write),
        ("readv", &snapshot.readv),
        ("writev", &snapshot.writev),
    ]
}

/// Bounds are one byte below powers of two: 4096 bytes count as "4 to 8 KiB".
fn histogram(put: &mut Lines<'_>, direction: &str, sizes: &[u64], bytes: u64) {
    let mut sum = 0_u64;
    for (bucket, count) in sizes.iter().enumerate().take(20) {
        sum = count.saturating_add(sum);
        let bound = ((4096_u64 << bucket) - 1).to_string();
        put.line("_bucket", &[("direction", direction), ("le", &bound)], sum);
    }
    let all = sizes.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    put.line("_bucket", &[("direction", direction), ("le", "+Inf")], all);
    put.line("_sum", &[("direction", direction)], bytes);
    put.line("_count", &[("direction", direction)], all);
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

struct Metrics<'a> {
    text: String,
    snapshots: &'a [Snapshot],
}

impl Metrics<'_> {
    fn metric(&mut self, name: &str, kind: &str, help: &str, each: impl Fn(&mut Lines<'_>, &Snapshot)) {
        let _ = writeln!(self.text, "# HELP forebay_{name} {help}\n# TYPE forebay_{name} {kind}");
        for snapshot in self.snapshots {
            each(&mut Lines { text: &mut self.text, name, pid: snapshot.pid }, snapshot);
        }
    }
}

struct Lines<'a> {
    text: &'a mut String,
    name: &'a str,
    pid: u32,
}

impl Lines<'_> {
    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "forebay_{}{suffix}{{pid=\"{}\"", self.name, self.pid);
        for (name, text) in labels {
            let _ = write!(self.text, ",{name}=\"{}\"", escaped(text));
        }
        let _ = writeln!(self.text, "}} {value}");
    }
}

fn escaped(text: &str) -> String {
    // What the format has no escape for becomes one that readers show as it is.
    let text: Vec<_> =
        text.split('\n').map(|line| plain(line).replace('\\', "\\\\").replace('"', "\\\"")).collect();
    text.join("\\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn labels_are_escaped() {
        assert_eq!(super::escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        assert_eq!(super::escaped("\u{1b}[2J\r"), "\\\\u{1b}[2J\\\\r");
    }
}
