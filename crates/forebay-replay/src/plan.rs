//! The plan of a replay, from a trace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};
use forebay_trace::{Api, CallFlags, EngineCode, MemoryCode, Record, TraceHeader, TraceReader};
use serde::Serialize;

/// A GPU's ordinal in the recording, or host memory.
pub(crate) type Place = Option<u8>;

/// A transfer of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Nanoseconds since the first transfer.
    pub(crate) start: u64,
    /// Nanoseconds that it took.
    pub(crate) latency: u64,
    /// Its file: a place in [`ReplayPlan::files`].
    pub(crate) file: usize,
    pub(crate) offset: u64,
    /// Bytes to ask for.
    pub(crate) len: u64,
    /// Bytes that it moved.
    pub(crate) moved: u64,
    pub(crate) writes: bool,
    pub(crate) place: Place,
    /// Where its memory began in its page.
    pub(crate) in_page: u16,
    pub(crate) way: CallWay,
}

/// How it was called. The number is the batch's or the stream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallWay {
    Waited,
    Batch(u32),
    Stream(u32),
}

impl Call {
    /// When it was done.
    pub(crate) const fn end(&self) -> u64 {
        self.start.saturating_add(self.latency)
    }
}

/// What one thread calls, one after the other. Entries of one batch are one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) calls: Vec<Call>,
    pub(crate) steps: Vec<Range<usize>>,
}

/// A file of the recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanFile {
    /// Its name, where the trace has it.
    pub(crate) name: Option<PathBuf>,
    /// Its sizes when it was registered, in order.
    pub(crate) sizes: Vec<u64>,
    /// Ranges read and written: merged, whole [`RANGE_GRAIN`]s.
    pub(crate) read: Vec<Range<u64>>,
    pub(crate) written: Vec<Range<u64>>,
    /// Where the last read ended.
    pub(crate) read_end: u64,
}

/// Ranges that were read and written are kept in whole multiples of this.
pub(crate) const RANGE_GRAIN: u64 = 1 << 20;
/// The most callers at once: a replay starts a thread for each, and has memory for each.
const MAX_CALLERS: usize = 4096;
/// A record beyond this offset is damaged: no file is as long.
const MAX_FILE_END: u64 = 1 << 62;
/// A record of more bytes than this is damaged: no call moves as many.
const MAX_CALL_BYTES: u64 = 1 << 40;

impl PlanFile {
    /// The size that a made file has before the replay.
    pub(crate) fn size(&self) -> u64 {
        self.sizes.first().copied().unwrap_or(0).max(self.read_end)
    }
}

/// Calls that are not repeated, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Calls that move no bytes: opening, registering, asking for events.
    pub without_bytes: u64,
    /// Calls that failed when they were recorded, or were cancelled.
    pub failed: u64,
    /// The record contradicts itself: the trace is damaged.
    pub damaged: u64,
    /// Calls that could not be recorded: the disk was full.
    pub lost: u64,
    /// Slots that this release does not know.
    pub unknown: u64,
}

/// Calls that are repeated in another form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedCalls {
    /// Calls of several pieces, repeated as one.
    pub vectored: u64,
    /// Calls of managed memory, repeated with a GPU's own.
    pub managed: u64,
    /// Calls whose size and offsets were only known when the stream came to them: they are known now.
    pub late: u64,
}

/// A trace, ready to be run again.
#[derive(Debug, Default)]
pub struct ReplayPlan {
    pub(crate) header: TraceHeader,
    pub(crate) files: Vec<PlanFile>,
    pub(crate) callers: Vec<Caller>,
    /// Threads that called, which are more than `callers` where one ended before the next began.
    pub(crate) threads: usize,
    /// Bytes by the engines that moved them.
    pub(crate) engines: BTreeMap<EngineCode, u64>,
    pub(crate) left_out: LeftOut,
    pub(crate) changed: ChangedCalls,
}

impl ReplayPlan {
    /// Reads a trace. Fails if there is nothing in it to repeat.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::of(TraceReader::open(path)?).map_err(|error| error.with("path", path.display()))
    }

    /// As [`Self::load`], from a reader.
    pub fn of<R: std::io::Read>(mut reader: TraceReader<R>) -> Result<Self> {
        let mut gathered = PlanBuilder::default();
        for record in reader.by_ref() {
            gathered.add(&record?);
        }
        let mut plan = gathered.finish(&reader);
        plan.header = reader.header().clone();
        plan.left_out.lost = plan.header.lost;
        plan.left_out.unknown = reader.skipped();
        if plan.callers.is_empty() {
            let error =
                Error::new(ErrorKind::InvalidInput, "the trace has no transfer that could be repeated")
                    .with("calls", plan.left_out.without_bytes)
                    .with("failed", plan.left_out.failed)
                    .with("damaged", plan.left_out.damaged);
            return Err(error.hint("forebay run --receipt -- CMD shows why a program moves no bytes"));
        }
        if plan.callers.len() > MAX_CALLERS {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the trace has too many callers at once for a replay",
            )
            .with("callers", plan.callers.len())
            .with("most", MAX_CALLERS)
            .hint("trace a run of the program with fewer threads and streams"));
        }
        Ok(plan)
    }

    /// All transfers.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.callers.iter().flat_map(|caller| &caller.calls)
    }

    /// Files that the recording wrote to and that have a name.
    pub(crate) fn written(&self) -> impl Iterator<Item = &PlanFile> {
        self.files.iter().filter(|file| !file.written.is_empty())
    }
}

/// The callers: threads, and streams, whose records have the thread that completed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CallerId {
    Thread(u32),
    Stream(u32),
}

/// State collected during the pass.
#[derive(Default)]
struct PlanBuilder {
    moves: Vec<Record>,
    /// The threads that submitted batches, by number and time.
    submitters: HashMap<(u32, u64), u32>,
    sizes: HashMap<u32, Vec<u64>>,
    left_out: LeftOut,
    changed: ChangedCalls,
}

impl PlanBuilder {
    fn add(&mut self, record: &Record) {
        match record.api {
            Api::BatchSubmit => {
                self.submitters.insert((record.group, record.start), record.thread);
            }
            Api::HandleRegister if !record.failed() => {
                let sizes = self.sizes.entry(record.file).or_default();
                if sizes.last() != Some(&record.size) {
                    sizes.push(record.size);
                }
            }
            _ => {}
        }
        if !record.api.moves() {
            self.left_out.without_bytes += 1;
        } else if record.failed() {
            self.left_out.failed += 1;
        } else if is_damaged(record) {
            self.left_out.damaged += 1;
        } else {
            self.changed.vectored += u64::from(matches!(record.api, Api::Readv | Api::Writev));
            self.changed.managed += u64::from(record.memory == MemoryCode::Managed);
            self.changed.late += u64::from(record.flags.has(CallFlags::LATE));
            self.moves.push(*record);
        }
    }

    fn who(&self, record: &Record) -> CallerId {
        match way(record) {
            CallWay::Waited => CallerId::Thread(record.thread),
            CallWay::Batch(batch) => CallerId::Thread(
                self.submitters.get(&(batch, record.start)).copied().unwrap_or(record.thread),
            ),
            CallWay::Stream(stream) => CallerId::Stream(stream),
        }
    }

    fn finish<R: std::io::Read>(mut self, reader: &TraceReader<R>) -> ReplayPlan {
        let origin = self.moves.iter().map(|record| record.start).min().unwrap_or(0);
        let (mut files, mut numbers) = (Vec::new(), HashMap::new());
        for record in &self.moves {
            let number = *numbers.entry(record.file).or_insert_with(|| {
                let name = reader.name(record.file).map(Path::to_owned);
                let sizes = self.sizes.remove(&record.file).unwrap_or_default();
                files.push(PlanFile { name, sizes, ..PlanFile::default() });
                files.len() - 1
            });
            learn(&mut files[number], record);
        }
        for file in &mut files {
            merge(&mut file.read);
            merge(&mut file.written);
        }
        let mut by_caller: BTreeMap<CallerId, Vec<Call>> = BTreeMap::new();
        for record in &self.moves {
            let file = numbers[&record.file];
            let call = Call {
                start: record.start - origin,
                latency: record.latency,
                file,
                offset: record.offset as u64,
                len: asked(record, &files[file]),
                moved: record.moved(),
                writes: record.api.writes(),
                place: place(record),
                in_page: (record.address & 4095) as u16,
                way: way(record),
            };
            by_caller.entry(self.who(record)).or_default().push(call);
        }
        let mut engines = BTreeMap::new();
        for record in &self.moves {
            *engines.entry(record.engine).or_default() += record.moved();
        }
        let threads = by_caller.len();
        let callers = in_turn(by_caller.into_values().collect());
        ReplayPlan {
            files,
            callers,
            threads,
            engines,
            left_out: self.left_out,
            changed: self.changed,
            ..ReplayPlan::default()
        }
    }
}

fn is_damaged(record: &Record) -> bool {
    let end = u64::try_from(record.offset).ok().and_then(|offset| offset.checked_add(record.size));
    record.file == 0
        || end.is_none_or(|end| end > MAX_FILE_END)
        || record.size > MAX_CALL_BYTES
        || record.moved() > record.size
}

fn way(record: &Record) -> CallWay {
    match record.api {
        Api::BatchRead | Api::BatchWrite => CallWay::Batch(record.group),
        Api::ReadAsync | Api::WriteAsync => CallWay::Stream(record.group),
        _ => CallWay::Waited,
    }
}

fn place(record: &Record) -> Place {
    match record.memory {
        MemoryCode::Device | MemoryCode::Managed => Some(record.gpu.unwrap_or(0)),
        _ => None,
    }
}

/// The bytes to ask for: what came, unless a read found the end of the file and will find it again.
fn asked(record: &Record, file: &PlanFile) -> u64 {
    let (offset, moved) = (record.offset as u64, record.moved());
    let finds_end = file.written.is_empty() && moved > 0 && offset + moved == file.size();
    if finds_end { record.size } else { moved }
}

fn learn(file: &mut PlanFile, record: &Record) {
    let (offset, moved) = (record.offset as u64, record.moved());
    if moved == 0 {
        return;
    }
    let range = offset / RANGE_GRAIN * RANGE_GRAIN..(offset + moved).next_multiple_of(RANGE_GRAIN);
    let ranges = if record.api.writes() {
        &mut file.written
    } else {
        file.read_end = file.read_end.max(offset + moved);
        &mut file.read
    };
    match ranges.last_mut() {
        Some(last) if last.start <= range.start && range.start <= last.end => {
            last.end = last.end.max(range.end);
        }
        _ => ranges.push(range),
    }
}

/// Sorts ranges and joins those that touch.
pub(crate) fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges.drain(..) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}

/// Lets one caller go on for another that had ended before it began, so that there are no more than at any time of the
/// recording, and finds the steps.
fn in_turn(mut threads: Vec<Vec<Call>>) -> Vec<Caller> {
    for calls in &mut threads {
        calls.sort_by_key(|call| (call.start, call.way));
    }
    threads.sort_by_key(|calls| calls[0].start);
    let mut callers: Vec<Caller> = Vec::new();
    // When each caller is free, the earliest first.
    let mut free = BinaryHeap::new();
    for calls in threads {
        let (begin, end) = (calls[0].start, calls.iter().map(Call::end).max().unwrap_or(0));
        let first = free.peek().filter(|Reverse((busy_until, _))| *busy_until <= begin);
        let caller = first.map_or(callers.len(), |Reverse((_, caller))| *caller);
        if caller == callers.len() {
            callers.push(Caller::default());
        } else {
            free.pop();
        }
        callers[caller].calls.extend(calls);
        free.push(Reverse((end, caller)));
    }
    callers.into_iter().map(with_steps).collect()
}

fn with_steps(mut caller: Caller) -> Caller {
    let same =
        |a: &Call, b: &Call| matches!(a.way, CallWay::Batch(_)) && (a.way, a.start) == (b.way, b.start);
    let mut at = 0;
    for step in caller.calls.chunk_by(same) {
        caller.steps.push(at..at + step.len());
        at += step.len();
    }
    caller
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn call(start: u64, latency: u64) -> Call {
        let (way, place) = (CallWay::Waited, None);
        Call { start, latency, file: 0, offset: 0, len: 1, moved: 1, writes: false, place, in_page: 0, way }
    }

    #[test]
    fn one_caller_goes_on_for_another_that_has_ended() {
        let callers =
            in_turn(vec![vec![call(0, 10)], vec![call(5, 10)], vec![call(10, 1)], vec![call(12, 9)]]);
        let starts = |caller: &Caller| caller.calls.iter().map(|call| call.start).collect::<Vec<_>>();
        assert_eq!(callers.iter().map(starts).collect::<Vec<_>>(), [vec![0, 10, 12], vec![5]]);
    }

    #[test]
    fn time_grows_with_the_number_of_callers() {
        let began = Instant::now();
        let threads = (0..100_000).map(|_| vec![call(0, 10)]).collect();
        assert_eq!(in_turn(threads).len(), 100_000);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
