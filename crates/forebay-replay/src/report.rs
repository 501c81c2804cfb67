//! The report of a replay.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use forebay_engine::{EngineKind, Session};
use forebay_error::Error;
use serde::Serialize;

use crate::caller::CallDone;
use crate::files::ReplayFiles;
use crate::plan::{ChangedCalls, LeftOut, ReplayPlan};
use crate::turn::TurnDone;
use crate::{Replay, verdict};

/// A replay in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// The release of forebay.
    pub release: &'static str,
    /// The recording.
    pub recorded: RecordedRun,
    /// Calls that were not repeated.
    pub left_out: LeftOut,
    /// Calls that were repeated in another form.
    pub changed: ChangedCalls,
    /// Whether the recorded gaps were left out.
    pub is_fast: bool,
    /// Whether the trace has calls of GPU memory, and whether a GPU is here.
    pub has_gpu_calls: bool,
    /// The GPU that stands for the recorded ones; `None`: host memory.
    pub gpu: Option<String>,
    /// The files.
    pub files: Vec<ReplayFileReport>,
    /// The folder of made files, which is gone by now, and its file system.
    pub made_in: Option<(String, String)>,
    /// Each engine's turns: the one of median busy time.
    pub turns: Vec<TurnReport>,
    /// Engines that had none.
    pub not_here: Vec<NotHere>,
    /// Whether it was stopped before all turns were done.
    pub is_cut: bool,
    /// Whether the direct path would help the program.
    pub answer: Answer,
    /// The answer in a sentence, with its figures.
    pub verdict: String,
}

/// Whether the direct path would help the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The direct path's calls are faster.
    Helps,
    /// The direct path's calls are faster, but hardly any of the program's time is in them.
    HelpsLittle,
    /// The direct path's calls are slower.
    Slower,
    /// The turns of both differ as much among themselves.
    Noise,
    /// No direct engine moves these bytes here.
    NotTaken,
    /// The program moves no GPU memory.
    NoGpuMemory,
    /// The turns do not tell.
    #[default]
    Unknown,
}

/// The recording.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedRun {
    /// The command line.
    pub command: String,
    /// The process.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// Whether the trace was closed.
    pub is_closed: bool,
    /// Threads and streams that called.
    pub callers: usize,
    /// What it came to, as a turn. CPU time is not recorded.
    pub turn: TurnReport,
}

/// A file of the recording.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayFileReport {
    /// Its name in the recording.
    pub path: String,
    /// Why a made one stood for it, if one did.
    pub made: Option<String>,
}

/// Busy seconds of all turns of one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BusyRange {
    /// How many turns.
    pub turns: usize,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

/// One way beside the best of another engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineComparison {
    /// The best way of the other engine.
    pub way: String,
    /// Its median busy time divided by this way's: how many times as fast this way is.
    pub ratio: f64,
    /// What that is.
    pub judged: SpeedVerdict,
}

/// What a difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedVerdict {
    /// Less busy time.
    Faster,
    /// More of it.
    Slower,
    /// It may be chance.
    Noise,
}

/// One engine's turn.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TurnReport {
    /// The engine that was asked for; `plain`; `forebay` for its own choice.
    pub way: String,
    /// The engines that moved bytes.
    pub engines: Vec<EngineBytes>,
    /// The part of the read ranges in the page cache.
    pub state: String,
    /// Transfers.
    pub calls: u64,
    /// Transfers that failed.
    pub errors: u64,
    /// Why the first failed.
    pub first_error: Option<String>,
    /// Bytes moved.
    pub bytes: u64,
    /// Those that were read.
    pub read: u64,
    /// Those that were written.
    pub written: u64,
    /// From the first transfer to the end of the last.
    pub seconds: f64,
    /// In which at least one transfer was under way.
    pub busy_seconds: f64,
    /// The range of that over all turns of the way; `None` for the recording.
    pub busy_range: Option<BusyRange>,
    /// Compared with the best of another engine; `None` where there is none like it.
    pub against: Option<EngineComparison>,
    /// Bytes by busy seconds.
    pub gb_per_s: f64,
    /// CPU seconds of the process.
    pub user_cpu: Option<f64>,
    /// As above.
    pub system_cpu: Option<f64>,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// Latency that one transfer in a hundred exceeds.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Why better engines were not used.
    pub not_used: Vec<NotUsed>,
}

/// Bytes that an engine moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineBytes {
    /// The engine.
    pub engine: String,
    /// Bytes.
    pub bytes: u64,
}

/// An engine that moved nothing, or not all, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotUsed {
    /// The engine.
    pub engine: String,
    /// Why.
    pub reason: String,
    /// What to type.
    pub hint: Option<String>,
}

/// An engine that had no turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotHere {
    /// Its name.
    pub way: String,
    /// Why.
    pub reason: String,
    /// What to type.
    pub hint: Option<String>,
}

impl NotHere {
    pub(crate) fn of(way: &str, error: &Error) -> Self {
        Self { way: way.to_owned(), reason: error.to_string(), hint: error.hints().first().cloned() }
    }
}

impl ReplayReport {
    pub(crate) fn of(plan: &ReplayPlan, replay: &Replay, host: &Session, files: &ReplayFiles) -> Self {
        let gpu = plan.calls().find_map(|call| call.place);
        let gpus = &host.devices().gpus;
        let device = gpu.and_then(|gpu| gpus.get(gpu as usize).or(gpus.first()));
        let file = |(index, (about, file)): (usize, (&crate::plan::PlanFile, &crate::files::ReplayFile))| {
            let name = about.name.as_ref().map(|name| name.display().to_string());
            ReplayFileReport {
                path: name.unwrap_or_else(|| format!("file {}", index + 1)),
                made: file.made.clone(),
            }
        };
        Self {
            release: env!("CARGO_PKG_VERSION"),
            recorded: RecordedRun::of(plan),
            left_out: plan.left_out,
            changed: plan.changed,
            is_fast: replay.is_fast,
            has_gpu_calls: gpu.is_some(),
            gpu: device.map(|device| device.info().name.clone()),
            files: plan.files.iter().zip(&files.files).enumerate().map(file).collect(),
            made_in: files.made_in(),
            turns: Vec::new(),
            not_here: Vec::new(),
            is_cut: false,
            answer: Answer::default(),
            verdict: String::new(),
        }
    }

    /// Says whether the direct path would help.
    pub(crate) fn judge(&mut self) {
        verdict::compare(&mut self.turns);
        (self.answer, self.verdict) = verdict::of(self);
    }

    /// The turn with this name.
    pub fn turn(&self, way: &str) -> Option<&TurnReport> {
        self.turns.iter().find(|turn| turn.way == way)
    }
}

impl RecordedRun {
    fn of(plan: &ReplayPlan) -> Self {
        let calls = plan.calls().map(|call| CallDone {
            start: call.start,
            end: call.end(),
            bytes: call.moved,
            writes: call.writes,
        });
        let mut turn = TurnReport::sum("recorded", calls.collect());
        turn.engines = named(plan.engines.iter().map(|(code, bytes)| (code.name(), *bytes)));
        Self {
            command: plan.header.command_line(),
            pid: plan.header.pid,
            host: plan.header.host.clone(),
            is_closed: plan.header.end != 0,
            callers: plan.threads,
            turn,
        }
    }
}

impl TurnReport {
    pub(crate) fn of(way: &str, state: &str, done: TurnDone) -> Self {
        let (mut calls, mut engines) = (Vec::new(), HashMap::<EngineKind, u64>::new());
        let (mut errors, mut first_error, mut elections) = (0, None, Vec::new());
        for caller in done.callers {
            calls.extend(caller.calls);
            errors += caller.errors;
            first_error = first_error.or(caller.first_error);
            for (engine, bytes) in caller.engines {
                *engines.entry(engine).or_default() += bytes;
            }
            elections.extend(caller.elections);
        }
        let mut turn = Self::sum(way, calls);
        turn.calls += errors;
        state.clone_into(&mut turn.state);
        turn.errors = errors;
        turn.first_error = first_error.map(|error| error.to_string());
        (turn.user_cpu, turn.system_cpu) = (Some(done.cpu.0), Some(done.cpu.1));
        turn.engines = named(engines.iter().map(|(engine, bytes)| (engine.name(), *bytes)));
        for refusal in elections.iter().flat_map(|election| &election.refused) {
            let one = NotUsed {
                engine: refusal.engine.to_string(),
                reason: refusal.reason.clone(),
                hint: refusal.hint.clone(),
            };
            if !turn.not_used.contains(&one) {
                turn.not_used.push(one);
            }
        }
        turn
    }

    fn sum(way: &str, mut calls: Vec<CallDone>) -> Self {
        calls.sort_by_key(|call| call.start);
        let mut latencies: Vec<u64> = calls.iter().map(|call| call.end.saturating_sub(call.start)).collect();
        latencies.sort_unstable();
        let quantile = |part: f64| {
            let at = (latencies.len() as f64 * part).ceil() as usize;
            latencies.get(at.saturating_sub(1)).copied().unwrap_or(0) as f64 / 1e3
        };
        let of =
            |writes: bool| calls.iter().filter(|call| call.writes == writes).map(|call| call.bytes).sum();
        let (read, written): (u64, u64) = (of(false), of(true));
        let begin = calls.first().map_or(0, |call| call.start);
        let end = calls.iter().map(|call| call.end).max().unwrap_or(0);
        let busy = busy(&calls) as f64 / 1e9;
        Self {
            way: way.to_owned(),
            state: "–".to_owned(),
            calls: calls.len() as u64,
            bytes: read + written,
            read,
            written,
            seconds: (end - begin) as f64 / 1e9,
            busy_seconds: busy,
            gb_per_s: if busy > 0.0 { (read + written) as f64 / 1e9 / busy } else { 0.0 },
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            max_us: quantile(1.0),
            ..Self::default()
        }
    }

    /// User and system CPU seconds.
    pub fn cpu(&self) -> Option<f64> {
        Some(self.user_cpu? + self.system_cpu?)
    }
}

/// Nanoseconds in which at least one of these was under way; they are in the order of their start.
fn busy(calls: &[CallDone]) -> u64 {
    let (mut sum, mut until) = (0, 0);
    for call in calls {
        sum += call.end.saturating_sub(call.start.max(until));
        until = until.max(call.end);
    }
    sum
}

/// Most bytes first; one row for each name.
fn named<'a>(engines: impl Iterator<Item = (&'a str, u64)>) -> Vec<EngineBytes> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, bytes) in engines.filter(|(_, bytes)| *bytes > 0) {
        *sums.entry(name).or_default() += bytes;
    }
    let mut rows: Vec<_> =
        sums.into_iter().map(|(engine, bytes)| EngineBytes { engine: engine.to_owned(), bytes }).collect();
    rows.sort_by_key(|row| Reverse(row.bytes));
    rows
}
