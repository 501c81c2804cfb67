//! The summary of a trace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use forebay_error::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::read::TraceReader;
use crate::record::{Api, EngineCode, MemoryCode, Record};

/// Number of slowest calls and files listed.
const MAX_LISTED: usize = 10;
/// Most intervals of the time line.
const MAX_BUCKETS: usize = 20;
/// The histogram's longest latency: an hour.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

/// A trace in numbers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TraceSummary {
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// Its host.
    pub host: String,
    /// The release of forebay that wrote the trace.
    pub release: String,
    /// When the trace began, in seconds since 1970.
    pub began: f64,
    /// Seconds from its start to the end of its last call.
    pub seconds: f64,
    /// Calls, entries of batches counted one by one.
    pub calls: u64,
    /// Those that failed.
    pub failed: u64,
    /// Calls that the writer could not record (the disk was full).
    pub lost: u64,
    /// Slots that this release does not know.
    pub skipped: u64,
    /// Whether the writer closed the trace; false for a process that was killed or still runs.
    pub closed: bool,
    /// Threads that called.
    pub threads: usize,
    /// By function.
    pub apis: Vec<ApiRow>,
    /// By the engine that moved the bytes and the kind of memory.
    pub engines: Vec<EngineRow>,
    /// By bytes asked for.
    pub sizes: Vec<SizeRow>,
    /// The slowest calls, slowest first.
    pub slowest_calls: Vec<SlowCall>,
    /// The files that took the most time, most first.
    pub slowest_files: Vec<FileRow>,
    /// Files that were named.
    pub files: usize,
    /// Bytes over time.
    pub timeline: Vec<TimeBucket>,
}

/// Calls of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ApiRow {
    /// Its name.
    pub api: &'static str,
    /// Calls.
    pub calls: u64,
    /// Those that failed.
    pub failed: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Seconds in all calls together.
    pub seconds: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// Latency that one call in a hundred exceeds.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// Bytes that an engine moved to or from one kind of memory.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EngineRow {
    /// The engine.
    pub engine: &'static str,
    /// The memory.
    pub memory: &'static str,
    /// Calls.
    pub calls: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// Calls that asked for less than twice `from` bytes, and not less than `from`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SizeRow {
    /// A power of two, or 0.
    pub from: u64,
    /// Calls.
    pub calls: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// One slow call.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SlowCall {
    /// The function.
    pub api: &'static str,
    /// When, in seconds since the trace's start.
    pub at: f64,
    /// How long it took.
    pub us: f64,
    /// The file; empty if none.
    pub path: String,
    /// Offset in the file.
    pub offset: i64,
    /// Bytes asked for.
    pub size: u64,
    /// Bytes moved, or a negative error.
    pub result: i64,
    /// The engine.
    pub engine: &'static str,
}

/// What one file took.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FileRow {
    /// Its name; `file N` if the trace does not have it.
    pub path: String,
    /// Calls that moved bytes.
    pub calls: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Seconds in these calls together.
    pub seconds: f64,
}

/// A stretch of time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TimeBucket {
    /// When it begins, in seconds since the trace's start.
    pub from: f64,
    /// How long it is.
    pub seconds: f64,
    /// Bytes read in it.
    pub read: u64,
    /// Bytes written in it.
    pub written: u64,
}

impl TraceSummary {
    /// Reads a trace to its end.
    pub fn of<R: Read>(mut reader: TraceReader<R>) -> Result<Self> {
        let mut sums = Sums::default();
        for record in reader.by_ref() {
            sums.add(&record?);
        }
        Ok(sums.finish(&reader))
    }
}

/// State collected during the pass.
#[derive(Default)]
struct Sums {
    calls: u64,
    failed: u64,
    end: u64,
    threads: HashSet<u32>,
    apis: BTreeMap<Api, Latencies>,
    engines: BTreeMap<(EngineCode, MemoryCode), EngineRow>,
    sizes: BTreeMap<u64, SizeRow>,
    slowest: Vec<Record>,
    files: HashMap<u32, FileRow>,
    timeline: TraceTimeline,
}

struct Latencies {
    row: ApiRow,
    of: Option<Histogram<u64>>,
}

impl Sums {
    fn add(&mut self, record: &Record) {
        self.calls += 1;
        self.failed += u64::from(record.failed());
        self.end = self.end.max(record.start.saturating_add(record.latency));
        self.threads.insert(record.thread);
        self.apis.entry(record.api).or_insert_with(|| Latencies::of(record.api)).add(record);
        self.keep_slow(record);
        if !record.api.moves() {
            return;
        }
        let (bytes, reads) = (record.moved(), record.api.reads());
        let engine = self.engines.entry((record.engine, record.memory)).or_default();
        (engine.engine, engine.memory) = (record.engine.name(), record.memory.name());
        engine.calls += 1;
        let way = if reads { &mut engine.read } else { &mut engine.written };
        *way = way.saturating_add(bytes);

        let from = if record.size == 0 { 0 } else { 1 << record.size.ilog2() };
        let size = self.sizes.entry(from).or_insert(SizeRow { from, ..SizeRow::default() });
        size.calls += 1;
        size.bytes = size.bytes.saturating_add(bytes);

        let file = self.files.entry(record.file).or_default();
        file.calls += 1;
        file.bytes = file.bytes.saturating_add(bytes);
        file.seconds += record.latency as f64 / 1e9;
        self.timeline.add(record.start, record.latency, bytes, reads);
    }

    fn keep_slow(&mut self, record: &Record) {
        // Waiting for a batch is the program's wish, not a slow call.
        if record.api == Api::BatchGetStatus {
            return;
        }
        self.slowest.push(*record);
        if self.slowest.len() >= 64 * MAX_LISTED {
            self.cut_slow();
        }
    }

    fn cut_slow(&mut self) {
        self.slowest.sort_by_key(|record| (Reverse(record.latency), record.start));
        self.slowest.truncate(MAX_LISTED);
    }

    fn finish<R: Read>(mut self, reader: &TraceReader<R>) -> TraceSummary {
        self.cut_slow();
        let header = reader.header();
        let path = |file: u32| reader.name(file).map(|path| path.to_string_lossy().into_owned());
        let mut files: Vec<_> = self.files.into_iter().collect();
        let count = files.iter().filter(|(file, _)| *file != 0).count();
        files.sort_by(|(a, left), (b, right)| right.seconds.total_cmp(&left.seconds).then(a.cmp(b)));
        files.truncate(MAX_LISTED);
        TraceSummary {
            pid: header.pid,
            command: header.command_line(),
            host: header.host.clone(),
            release: header.release.clone(),
            began: header.wall_start as f64 / 1e9,
            seconds: self.end as f64 / 1e9,
            calls: self.calls,
            failed: self.failed,
            lost: header.lost,
            skipped: reader.skipped(),
            closed: header.end != 0,
            threads: self.threads.len(),
            apis: self.apis.into_values().map(Latencies::row).collect(),
            engines: self.engines.into_values().collect(),
            sizes: self.sizes.into_values().collect(),
            slowest_calls: self
                .slowest
                .iter()
                .map(|record| SlowCall {
                    api: record.api.name(),
                    at: record.start as f64 / 1e9,
                    us: record.latency as f64 / 1e3,
                    path: path(record.file).unwrap_or_default(),
                    offset: record.offset,
                    size: record.size,
                    result: record.result,
                    engine: record.engine.name(),
                })
                .collect(),
            slowest_files: files
                .into_iter()
                .map(|(file, row)| FileRow {
                    path: path(file).unwrap_or_else(|| format!("file {file}")),
                    ..row
                })
                .collect(),
            files: count,
            timeline: self.timeline.buckets(),
        }
    }
}

impl Latencies {
    fn of(api: Api) -> Self {
        let row = ApiRow { api: api.name(), ..ApiRow::default() };
        Self { row, of: Histogram::new_with_max(MAX_LATENCY_NS, 3).ok() }
    }

    fn add(&mut self, record: &Record) {
        self.row.calls += 1;
        self.row.failed += u64::from(record.failed());
        self.row.bytes = self.row.bytes.saturating_add(record.moved());
        self.row.seconds += record.latency as f64 / 1e9;
        self.row.max_us = self.row.max_us.max(record.latency as f64 / 1e3);
        if let Some(latencies) = &mut self.of {
            latencies.saturating_record(record.latency);
        }
    }

    fn row(self) -> ApiRow {
        let at = |quantile| {
            let of = self.of.as_ref();
            // The histogram's steps may lie above the longest.
            of.map_or(0.0, |of| of.value_at_quantile(quantile) as f64 / 1e3).min(self.row.max_us)
        };
        ApiRow { p50_us: at(0.5), p99_us: at(0.99), ..self.row.clone() }
    }
}

/// Bytes over time, in stretches that get longer as the trace does.
struct TraceTimeline {
    /// Nanoseconds of a stretch.
    width: u64,
    of: Vec<[f64; 2]>,
}

impl Default for TraceTimeline {
    fn default() -> Self {
        Self { width: 100_000, of: vec![[0.0; 2]; MAX_BUCKETS] }
    }
}

impl TraceTimeline {
    /// Adds bytes, spread evenly over the time that they took.
    fn add(&mut self, start: u64, latency: u64, bytes: u64, read: bool) {
        let end = start.saturating_add(latency);
        while end / self.width >= MAX_BUCKETS as u64 {
            self.widen();
        }
        let (first, last) = (start / self.width, end / self.width);
        for index in first..=last {
            let (from, to) = (index * self.width, index.saturating_add(1).saturating_mul(self.width));
            let part = to.min(end).saturating_sub(from.max(start)) as f64 / latency.max(1) as f64;
            let part = if latency == 0 || first == last { 1.0 } else { part };
            if let Some(bucket) = self.of.get_mut(index as usize) {
                bucket[usize::from(!read)] += bytes as f64 * part;
            }
        }
    }

    fn widen(&mut self) {
        for index in 0..MAX_BUCKETS {
            let pair = |at: usize| self.of.get(at).copied().unwrap_or_default();
            let (one, two) = (pair(2 * index), pair(2 * index + 1));
            self.of[index] = [one[0] + two[0], one[1] + two[1]];
        }
        self.width = self.width.saturating_mul(2);
    }

    fn buckets(self) -> Vec<TimeBucket> {
        let used = self.of.iter().rposition(|of| of[0] + of[1] > 0.0).map_or(0, |last| last + 1);
        let seconds = self.width as f64 / 1e9;
        self.of[..used]
            .iter()
            .enumerate()
            .map(|(index, of)| TimeBucket {
                from: index as f64 * seconds,
                seconds,
                read: of[0].round() as u64,
                written: of[1].round() as u64,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spread_over_their_time() {
        let mut timeline = TraceTimeline::default();
        timeline.add(0, 1_000_000_000, 1_000_000, true);
        timeline.add(0, 0, 500, false);
        let buckets = timeline.buckets();
        assert!(buckets.len() > MAX_BUCKETS / 4 && buckets.len() <= MAX_BUCKETS, "{}", buckets.len());
        let read: u64 = buckets.iter().map(|bucket| bucket.read).sum();
        assert!((999_900..=1_000_100).contains(&read), "{read}");
        assert_eq!(buckets[0].written, 500);
        assert!(buckets[0].read.abs_diff(buckets[1].read) < 2, "even");
    }

    #[test]
    fn any_time_fits() {
        let mut timeline = TraceTimeline::default();
        timeline.add(u64::MAX, u64::MAX, u64::MAX, true);
        timeline.add(0, u64::MAX, u64::MAX, false);
        assert!(timeline.buckets().len() <= MAX_BUCKETS);
    }
}
