//! The rows of the table.

use std::fmt;

use forebay_error::plain;
use forebay_stats::{EngineTotals, IoTotals, Rate, Snapshot};
use serde::Serialize;

/// The head of the table.
pub(super) const HEAD: &str = "    PID  READ GB/s WRITE GB/s     IOPS   MEAN us   QUEUE   NFS/s   NFS us  DEVICE    ENGINES             PROGRAM";

/// A process, and what it moved in the last second.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProcessRow {
    pid: u32,
    program: String,
    /// Over the last full second, as all rates of transfers.
    read_bytes_per_s: f64,
    write_bytes_per_s: f64,
    ops_per_s: f64,
    latency_us: f64,
    /// Mean number of transfers in flight: the sum of their latencies in each second.
    in_flight: f64,
    /// Calls to servers that were answered since the last look; null at the first.
    round_trips_per_s: Option<f64>,
    /// Mean time of these; null where there were none.
    round_trip_us: Option<f64>,
    /// GPUs that bytes went to or came from.
    gpus: Vec<u32>,
    /// Whether memory of the host was used.
    host: bool,
    engines: Vec<EngineShare>,
}

/// An engine's part of the bytes since the last look; of all bytes at the first, and where none moved since.
#[derive(Clone, Debug, Serialize)]
struct EngineShare {
    name: String,
    percent: f64,
}

impl ProcessRow {
    /// `then`: the same process `seconds` before.
    pub(super) fn new(now: &Snapshot, then: Option<&Snapshot>, seconds: f64) -> Self {
        let batch = &now.batch;
        let rates = [&now.read, &now.write, &now.readv, &now.writev].map(|io| io.rate);
        let all: Vec<Rate> = rates.into_iter().chain([batch.complete]).collect();
        let ops: f64 = all.iter().map(|rate| rate.ops_per_s).sum();
        let latency: f64 = all.iter().map(|rate| rate.latency_us * rate.ops_per_s).sum();
        let busy: f64 = all.iter().map(|rate| rate.utilization_percent / 100.0).sum();
        let trips = then.filter(|_| seconds > 0.0).map(|then| {
            let (now, then) = (now.round_trips, then.round_trips);
            (now.count.saturating_sub(then.count), now.latency_ns.saturating_sub(then.latency_ns))
        });
        let is_used = |io: &IoTotals| io.all() > 0;
        Self {
            pid: now.pid,
            program: now.program.clone(),
            read_bytes_per_s: rates[0].bytes_per_s + rates[2].bytes_per_s + batch.read_bytes_per_s,
            write_bytes_per_s: rates[1].bytes_per_s + rates[3].bytes_per_s + batch.write_bytes_per_s,
            ops_per_s: ops,
            latency_us: if ops > 0.0 { latency / ops } else { 0.0 },
            in_flight: busy + now.asyncs.in_flight as f64,
            round_trips_per_s: trips.map(|(count, _)| count as f64 / seconds),
            round_trip_us: trips
                .filter(|(count, _)| *count > 0)
                .map(|(count, ns)| ns as f64 / 1e3 / count as f64),
            gpus: now
                .gpus
                .iter()
                .filter(|gpu| is_used(&gpu.device.read) || is_used(&gpu.device.write))
                .map(|gpu| gpu.index)
                .collect(),
            host: is_used(&now.host.read) || is_used(&now.host.write),
            engines: shares(&now.engines, then.map_or(&[], |then| &then.engines)),
        }
    }

    fn bytes_per_s(&self) -> f64 {
        self.read_bytes_per_s + self.write_bytes_per_s
    }

    fn devices(&self) -> String {
        let gpus: Vec<_> = self.gpus.iter().map(u32::to_string).collect();
        match (gpus.is_empty(), self.host) {
            (true, true) => "host".to_owned(),
            (true, false) => "–".to_owned(),
            (false, true) => format!("{},host", gpus.join(",")),
            (false, false) => gpus.join(","),
        }
    }

    fn engines(&self) -> String {
        match &self.engines[..] {
            [] => "–".to_owned(),
            [one] => plain(&one.name).into_owned(),
            several => {
                let each = |one: &EngineShare| format!("{} {:.0}%", plain(&one.name), one.percent);
                several.iter().map(each).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

fn shares(now: &[EngineTotals], then: &[EngineTotals]) -> Vec<EngineShare> {
    let since = |one: &EngineTotals| {
        let before = then.iter().find(|other| other.name == one.name).map_or(0, |other| other.bytes);
        one.bytes.saturating_sub(before)
    };
    let is_idle = now.iter().all(|one| since(one) == 0);
    let bytes = |one: &EngineTotals| if is_idle { one.bytes } else { since(one) };
    let all: u64 = now.iter().map(bytes).sum();
    let mut shares: Vec<_> = now
        .iter()
        .filter(|one| bytes(one) > 0)
        .map(|one| EngineShare { name: one.name.clone(), percent: bytes(one) as f64 * 100.0 / all as f64 })
        .collect();
    shares.sort_by(|one, other| other.percent.total_cmp(&one.percent));
    shares
}

impl fmt::Display for ProcessRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none =
            |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"));
        write!(
            f,
            "{:>7} {:>10.2} {:>10.2} {:>8.0} {:>9.1} {:>7.1} {:>7} {:>8}  {:<9} {:<19} {}",
            self.pid,
            self.read_bytes_per_s / 1e9,
            self.write_bytes_per_s / 1e9,
            self.ops_per_s,
            self.latency_us,
            self.in_flight,
            or_none(self.round_trips_per_s),
            or_none(self.round_trip_us),
            self.devices(),
            self.engines(),
            plain(&self.program)
        )
    }
}

/// What the rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Bytes,
    Iops,
    Latency,
    Queue,
    Nfs,
    Pid,
}

impl Order {
    const ALL: [(u8, Self, &'static str); 6] = [
        (b'b', Self::Bytes, "bytes"),
        (b'i', Self::Iops, "IOPS"),
        (b'l', Self::Latency, "latency"),
        (b'u', Self::Queue, "queue"),
        (b'n', Self::Nfs, "NFS"),
        (b'p', Self::Pid, "PID"),
    ];

    pub(super) fn of_key(key: u8) -> Option<Self> {
        Self::ALL.iter().find(|(of, ..)| *of == key).map(|(_, order, _)| *order)
    }

    /// The greatest first; processes by their number.
    pub(super) fn sort(self, rows: &mut [ProcessRow]) {
        let value = |row: &ProcessRow| match self {
            Self::Bytes => row.bytes_per_s(),
            Self::Iops => row.ops_per_s,
            Self::Latency => row.latency_us,
            Self::Queue => row.in_flight,
            Self::Nfs => row.round_trips_per_s.unwrap_or(0.0),
            Self::Pid => -f64::from(row.pid),
        };
        rows.sort_by(|one, other| value(other).total_cmp(&value(one)).then(one.pid.cmp(&other.pid)));
    }
}

/// The whole screen.
pub(super) fn lines(rows: &[ProcessRow], order: Order) -> Vec<String> {
    let sum = |of: fn(&ProcessRow) -> f64| rows.iter().map(of).sum::<f64>();
    let keys = Order::ALL.map(|(key, other, name)| {
        let mark = if other == order { "*" } else { "" };
        format!("{} {name}{mark}", char::from(key))
    });
    let s = if rows.len() == 1 { "" } else { "es" };
    let mut lines = vec![
        format!(
            "forebay top: {} process{s}, read {:.2} GB/s, write {:.2} GB/s, {:.0} IOPS",
            rows.len(),
            sum(|row| row.read_bytes_per_s) / 1e9,
            sum(|row| row.write_bytes_per_s) / 1e9,
            sum(|row| row.ops_per_s)
        ),
        format!("q quit; sort by {}", keys.join(", ")),
        String::new(),
        HEAD.to_owned(),
    ];
    if rows.is_empty() {
        lines.push("no process of this user has counters: forebay run -- COMMAND starts one".to_owned());
    }
    lines.extend(rows.iter().map(ToString::to_string));
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_stats::{Counters, Io, Moved, Way};

    use super::*;

    fn busy(counters: &Counters) {
        let latency = Duration::from_millis(250);
        let io = Io { bytes: 1 << 30, latency, gpu: Some(3), unaligned: false, posix: false, ok: true };
        for _ in 0..4 {
            counters.read(io);
        }
        counters.write(Io { bytes: 0, gpu: None, ..io });
        counters.engine("mapped", Moved::of(Way::Mapped, 3 << 30));
        counters.engine("staged", Moved::of(Way::Direct, 1 << 30));
    }

    #[test]
    fn a_row_has_rates_the_queue_devices_and_shares_since_the_last_look() {
        let counters = Counters::hidden().unwrap();
        busy(&counters);
        let then = counters.snapshot();
        let first = ProcessRow::new(&then, None, 1.0);
        assert_eq!((first.round_trips_per_s, first.round_trip_us), (None, None));
        assert_eq!(first.engines(), "mapped 75% staged 25%");
        assert_eq!(first.devices(), "3,host");
        counters.engine("staged", Moved::of(Way::Direct, 1 << 30));
        counters.round_trip(Duration::from_micros(200));
        counters.round_trip(Duration::from_micros(400));
        let mut now = counters.snapshot();
        let set = |rate: &mut Rate, [bytes, ops, latency, busy]: [f64; 4]| {
            (rate.bytes_per_s, rate.ops_per_s) = (bytes, ops);
            (rate.latency_us, rate.utilization_percent) = (latency, busy);
        };
        set(&mut now.read.rate, [2e9, 30.0, 100.0, 250.0]);
        set(&mut now.write.rate, [1e9, 10.0, 300.0, 50.0]);
        now.program = "train\u{1b}[2J".into();
        let row = ProcessRow::new(&now, Some(&then), 2.0);
        assert_eq!(row.engines(), "staged");
        assert_eq!((row.round_trips_per_s, row.round_trip_us), (Some(1.0), Some(300.0)));
        let text = row.to_string();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let words: Vec<_> = text.split_whitespace().skip(1).collect();
        assert_eq!(words[..9], ["2.00", "1.00", "40", "150.0", "3.0", "1", "300", "3,host", "staged"]);
        // Nothing since: of all bytes.
        assert_eq!(ProcessRow::new(&now, Some(&now), 1.0).engines(), "mapped 60% staged 40%");
        // Each value stands below its title.
        let ends = |text: &str, word: &str| text.find(word).unwrap() + word.len();
        assert_eq!(ends(HEAD, "READ GB/s"), ends(&text, "2.00"));
        assert_eq!(ends(HEAD, "QUEUE"), ends(&text, " 3.0"));
        assert_eq!(HEAD.find("ENGINES"), text.find("staged"));
        assert_eq!(HEAD.find("PROGRAM"), text.find("train"));
    }

    #[test]
    fn keys_sort() {
        let counters = Counters::hidden().unwrap();
        let mut rows: Vec<_> = (1..=3)
            .map(|pid| {
                let mut row = ProcessRow::new(&counters.snapshot(), None, 1.0);
                (row.pid, row.read_bytes_per_s, row.ops_per_s) = (pid, f64::from(pid), f64::from(pid % 3));
                row
            })
            .collect();
        let mut by = |key: u8| {
            Order::of_key(key).unwrap().sort(&mut rows);
            rows.iter().map(|row| row.pid).collect::<Vec<_>>()
        };
        assert_eq!((by(b'b'), by(b'i'), by(b'p')), (vec![3, 2, 1], vec![2, 1, 3], vec![1, 2, 3]));
        assert_eq!(Order::of_key(b'x'), None);
        assert!(lines(&rows, Order::Iops)[1].contains("i IOPS*,"));
    }
}
