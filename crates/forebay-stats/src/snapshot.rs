//! The counters as plain data.

use std::fmt::Write;

use forebay_ways::{Moved, serialize_ways};
use serde::{Serialize, Serializer};

use crate::layout::{BUCKETS, CounterRegion, GPUS, HOST, IoSums, Shard};
use crate::ops::{CallCounts, Op};
use crate::rates::{RateWindow, window};

/// The counters of one process at one moment.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The process: as seen from here if a running one was asked, else as it saw itself.
    pub pid: u32,
    /// Its command line.
    pub program: String,
    /// When the process started: field 22 of `/proc/PID/stat`.
    pub started_ticks: u64,
    /// When the counters were made: nanoseconds since 1970.
    pub opened_unix_ns: u64,
    /// The level that the program set for cuFile's statistics.
    pub level: u32,
    /// Calls by kind.
    pub calls: CallCounts,
    /// Reads, all devices.
    pub read: IoTotals,
    /// Writes, all devices.
    pub write: IoTotals,
    /// Vectored reads.
    pub readv: IoTotals,
    /// Vectored writes.
    pub writev: IoTotals,
    /// Batches.
    pub batch: BatchTotals,
    /// Good reads by size: under 4 KiB, under 8 KiB, and so on in powers of two.
    pub read_sizes: [u64; BUCKETS],
    /// Good writes by size.
    pub write_sizes: [u64; BUCKETS],
    /// GPUs that were named or used.
    pub gpus: Vec<GpuTotals>,
    /// Memory of the host, and of GPUs beyond the 16th.
    pub host: DeviceTotals,
    /// Asynchronous operations.
    pub asyncs: AsyncTotals,
    /// Calls to servers (NFS) that were answered.
    pub round_trips: RoundTripTotals,
    /// Engines that moved bytes, the most first.
    pub engines: Vec<EngineTotals>,
    /// Engines that were refused, for the most bytes first.
    pub refusals: Vec<RefusalTotals>,
    /// Refused requests whose reason found no room in the list.
    pub refusals_left_out: u64,
    /// The files that took the longest, slowest first.
    pub files: Vec<FileTotals>,
    /// There were files that are not listed.
    pub files_left_out: bool,
    /// Notes.
    pub notes: Vec<NoteTotals>,
}

/// Transfers of one direction.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct IoTotals {
    /// Transfers that succeeded.
    pub ok: u64,
    /// Transfers that failed.
    pub err: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Sum of all latencies in nanoseconds.
    pub latency_ns: u64,
    /// Transfers with an unaligned offset, size or address.
    pub unaligned: u64,
    /// Transfers through host memory and plain file calls.
    pub posix: u64,
    /// Over the last full second.
    pub rate: Rate,
}

/// Averages over the last full second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rate {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Transfers per second, failed ones too.
    pub ops_per_s: f64,
    /// Mean latency in microseconds.
    pub latency_us: f64,
    /// Sum of the latencies, in percent of the time: above 100 where transfers overlap.
    pub utilization_percent: f64,
}

/// Batches.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct BatchTotals {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes that the last completed batch read.
    pub last_read_bytes: u64,
    /// Bytes that the last completed batch wrote.
    pub last_write_bytes: u64,
    /// Sum of the times that submissions took.
    pub submit_ns: u64,
    /// Sum of the times from submission to completion.
    pub complete_ns: u64,
    /// Bytes read per second, over the last full second.
    pub read_bytes_per_s: f64,
    /// Bytes written per second, over the last full second.
    pub write_bytes_per_s: f64,
    /// Submissions, over the last full second.
    pub submit: Rate,
    /// Completions, over the last full second.
    pub complete: Rate,
}

/// Transfers to and from the memory of one device.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct DeviceTotals {
    /// Reads.
    pub read: IoTotals,
    /// Writes.
    pub write: IoTotals,
    /// Memory registered: good calls.
    pub registered_ok: u64,
    /// Memory registered: failed calls.
    pub registered_err: u64,
    /// Registrations undone.
    pub freed: u64,
    /// Bytes that are registered now.
    pub registered_bytes: u64,
}

/// A GPU.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct GpuTotals {
    /// Its number in the process.
    pub index: u32,
    /// Its UUID; zero if it was not named.
    #[serde(serialize_with = "as_hex")]
    pub uuid: [u8; 16],
    /// What it did.
    #[serde(flatten)]
    pub device: DeviceTotals,
}

impl GpuTotals {
    /// The UUID as 32 hexadecimal digits.
    pub fn uuid_hex(&self) -> String {
        hex(&self.uuid)
    }
}

/// Asynchronous operations.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct AsyncTotals {
    /// Begun.
    pub started: u64,
    /// Ended.
    pub done: u64,
    /// Neither of both.
    pub in_flight: u64,
}

/// Calls to servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RoundTripTotals {
    /// Those that were answered.
    pub count: u64,
    /// Sum of the times from call to answer in nanoseconds.
    pub latency_ns: u64,
}

/// An engine's work.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct EngineTotals {
    /// The engine.
    pub name: String,
    /// Requests that it carried out.
    pub requests: u64,
    /// All bytes.
    pub bytes: u64,
    /// Bytes by the way they took.
    #[serde(flatten, serialize_with = "serialize_ways")]
    pub moved: Moved,
}

impl EngineTotals {
    /// The ways of its bytes, through `size`: `4.0 GiB O_DIRECT, 1.0 GiB page cache`.
    pub fn ways(&self, size: impl Fn(u64) -> String) -> String {
        let ways = self.moved.taken().map(|(way, bytes)| format!("{} {}", size(bytes), way.words()));
        ways.collect::<Vec<_>>().join(", ")
    }
}

/// An engine that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RefusalTotals {
    /// The engine.
    pub engine: String,
    /// Why.
    pub reason: String,
    /// What to type or to change.
    pub hint: Option<String>,
    /// Requests concerned.
    pub requests: u64,
    /// Bytes concerned.
    pub bytes: u64,
}

/// A file's transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileTotals {
    /// The file.
    pub name: String,
    /// Transfers.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
    /// Sum of all latencies.
    pub latency_ns: u64,
    /// The longest.
    pub max_latency_ns: u64,
}

/// Something worth knowing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NoteTotals {
    /// What is so.
    pub text: String,
    /// What to type to change it.
    pub hint: Option<String>,
    /// How often it was said.
    pub times: u64,
}

impl Snapshot {
    /// Decodes a copy of the counters; `sums` replaces the ones that are in it.
    pub(crate) fn of(region: &CounterRegion<u64>, now: u64, sums: Option<&Shard<u64>>) -> Self {
        let live = region.sums();
        let sums = sums.unwrap_or(&live);
        let window = window(region, &live, now);
        let header = &region.header;
        Self {
            pid: header.pid as u32,
            program: region.program.read().unwrap_or_default(),
            started_ticks: header.started,
            opened_unix_ns: header.opened,
            level: header.level.min(3) as u32,
            calls: CallCounts::from_words(&sums.ops),
            read: all_devices(sums, &window, 0),
            write: all_devices(sums, &window, 1),
            readv: IoTotals::of(&sums.vector[0], window.rate(&window.sums.vector[0])),
            writev: IoTotals::of(&sums.vector[1], window.rate(&window.sums.vector[1])),
            batch: batch(sums, &window, region.rare.last_batch),
            read_sizes: sums.sizes[0],
            write_sizes: sums.sizes[1],
            gpus: (0..GPUS).filter_map(|index| gpu(region, sums, &window, index)).collect(),
            host: device(sums, &window, HOST),
            asyncs: AsyncTotals {
                started: sums.asyncs[0],
                done: sums.asyncs[1],
                in_flight: live.asyncs[0].saturating_sub(live.asyncs[1]),
            },
            round_trips: RoundTripTotals {
                count: region.rare.round_trips[0],
                latency_ns: region.rare.round_trips[1],
            },
            engines: engines(region, sums),
            refusals: refusals(region, sums),
            refusals_left_out: region.rare.refusals_left_out,
            files: files(region),
            files_left_out: region.rare.files_left_out != 0,
            notes: notes(region, sums),
        }
    }

    /// Bytes that any engine moved.
    pub fn engine_bytes(&self) -> u64 {
        self.engines.iter().fold(0, |sum, engine| sum.saturating_add(engine.bytes))
    }
}

impl IoTotals {
    /// Transfers, good and failed.
    pub const fn all(&self) -> u64 {
        self.ok.saturating_add(self.err)
    }

    fn of(sums: &IoSums<u64>, rate: Rate) -> Self {
        Self {
            ok: sums.ok,
            err: sums.err,
            bytes: sums.bytes,
            latency_ns: sums.nanos,
            unaligned: sums.unaligned,
            posix: sums.posix,
            rate,
        }
    }
}

fn all_devices(sums: &Shard<u64>, window: &RateWindow, direction: usize) -> IoTotals {
    let total = |sums: &Shard<u64>| {
        let add = |a: u64, b: u64| a.wrapping_add(b);
        sums.io[direction].iter().fold(IoSums::default(), |a, b| IoSums {
            ok: add(a.ok, b.ok),
            err: add(a.err, b.err),
            bytes: add(a.bytes, b.bytes),
            nanos: add(a.nanos, b.nanos),
            unaligned: add(a.unaligned, b.unaligned),
            posix: add(a.posix, b.posix),
        })
    };
    IoTotals::of(&total(sums), window.rate(&total(&window.sums)))
}

fn device(sums: &Shard<u64>, window: &RateWindow, index: usize) -> DeviceTotals {
    let io = |direction: usize| {
        IoTotals::of(&sums.io[direction][index], window.rate(&window.sums.io[direction][index]))
    };
    let registered = &sums.registered[index];
    DeviceTotals {
        read: io(0),
        write: io(1),
        registered_ok: registered.ok,
        registered_err: registered.err,
        freed: registered.freed,
        // Memory registered before a reset and freed after it would give a negative count.
        registered_bytes: if (registered.bytes as i64) < 0 { 0 } else { registered.bytes },
    }
}

fn gpu(
    region: &CounterRegion<u64>,
    sums: &Shard<u64>,
    window: &RateWindow,
    index: usize,
) -> Option<GpuTotals> {
    let device = device(sums, window, index);
    let used = [device.read, device.write].iter().any(|io| io.all() > 0)
        || device.registered_ok > 0
        || device.registered_err > 0;
    let named = region.gpus[index].known != 0;
    let mut uuid = [0; 16];
    if named {
        for (bytes, word) in uuid.chunks_mut(8).zip(region.gpus[index].uuid) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    (named || used).then_some(GpuTotals { index: index as u32, uuid, device })
}

fn batch(sums: &Shard<u64>, window: &RateWindow, last: [u64; 2]) -> BatchTotals {
    let (all, recent) = (&sums.batch, &window.sums.batch);
    let calls = |op: Op, nanos: u64| {
        let [ok, err] = window.sums.ops[op as usize];
        window.rate(&IoSums { ok, err, nanos, ..IoSums::default() })
    };
    BatchTotals {
        read_bytes: all.bytes[0],
        write_bytes: all.bytes[1],
        last_read_bytes: last[0],
        last_write_bytes: last[1],
        submit_ns: all.submit_nanos,
        complete_ns: all.complete_nanos,
        read_bytes_per_s: window.per_second(recent.bytes[0]),
        write_bytes_per_s: window.per_second(recent.bytes[1]),
        submit: calls(Op::BatchSubmit, recent.submit_nanos),
        complete: calls(Op::BatchComplete, recent.complete_nanos),
    }
}

fn engines(region: &CounterRegion<u64>, sums: &Shard<u64>) -> Vec<EngineTotals> {
    let named =
        region.engines.iter().zip(&sums.engines).filter_map(|(name, sums)| Some((name.read()?, sums)));
    let engines = named.map(|(name, sums)| {
        let &[ref ways @ .., requests] = sums;
        let bytes = ways.iter().copied().fold(0, u64::saturating_add);
        EngineTotals { name, requests, bytes, moved: Moved::from_ways(*ways) }
    });
    let mut engines: Vec<_> = engines.filter(|engine| engine.requests > 0 || engine.bytes > 0).collect();
    engines.sort_by_key(|engine| std::cmp::Reverse(engine.bytes));
    engines
}

fn refusals(region: &CounterRegion<u64>, sums: &Shard<u64>) -> Vec<RefusalTotals> {
    let mut refusals: Vec<RefusalTotals> = Vec::new();
    for (text, &[requests, bytes]) in region.refusals.iter().zip(&sums.refusals) {
        let Some(text) = text.read().filter(|_| requests > 0) else { continue };
        let mut parts = text.split('\0').map(str::to_owned);
        let (engine, reason) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let hint = parts.next().filter(|hint| !hint.is_empty());
        refusals.push(RefusalTotals { engine, reason, hint, requests, bytes });
    }
    refusals.sort_by_key(|refusal| std::cmp::Reverse(refusal.bytes));
    refusals
}

fn notes(region: &CounterRegion<u64>, sums: &Shard<u64>) -> Vec<NoteTotals> {
    let mut notes = Vec::new();
    for (text, &times) in region.notes.iter().zip(&sums.notes) {
        let Some(text) = text.read().filter(|_| times > 0) else { continue };
        let (text, hint) = text.split_once('\0').unwrap_or((&text, ""));
        notes.push(NoteTotals {
            text: text.to_owned(),
            hint: (!hint.is_empty()).then(|| hint.to_owned()),
            times,
        });
    }
    notes
}

fn files(region: &CounterRegion<u64>) -> Vec<FileTotals> {
    let mut files = Vec::new();
    for (slot, name) in region.files.iter().enumerate() {
        let Some(name) = name.read() else { continue };
        let mut file = FileTotals { name, ..FileTotals::default() };
        for sums in region.file_sums.iter().map(|sums| &sums[slot]) {
            file.ops = file.ops.wrapping_add(sums.ops);
            file.bytes = file.bytes.wrapping_add(sums.bytes);
            file.latency_ns = file.latency_ns.wrapping_add(sums.nanos);
            file.max_latency_ns = file.max_latency_ns.max(sums.max_nanos);
        }
        files.push(file);
    }
    files.sort_by_key(|file| std::cmp::Reverse(file.latency_ns));
    files
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn as_hex<S: Serializer>(uuid: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&hex(uuid))
}
