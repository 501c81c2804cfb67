//! A recorded trace run again: what would each engine have made of it?
//!
//! A [`ReplayPlan`] is what a trace asks to be done: files, threads, and every transfer with its time, range, memory and
//! place in a batch or stream. [`run`] does it again by plain calls and by each engine that this machine has, with the
//! recorded gaps or as fast as it goes, and gives a [`ReplayReport`]; [`text`] prints one.
//!
//! Reads come from the recorded files where these still have their size, and from made ones of the same sizes
//! otherwise. Writes go to made files, unless [`Replay::in_place`] names the file. Made files are removed at the end.
//!
//! ```
//! use forebay_replay::{Replay, ReplayPlan, Silent, run};
//! use forebay_trace::{Api, MemoryCode, Record, Trace};
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("calls.trace");
//! let trace = Trace::create(&path)?;
//! let file = trace.file("/gone");
//! let call = Record { api: Api::Read, memory: MemoryCode::Host, file, size: 4096, result: 4096, ..Record::default() };
//! trace.record(&call);
//! drop(trace);
//!
//! let plan = ReplayPlan::load(&path)?;
//! let report = run(&plan, &Replay { folder: folder.path().into(), ..Replay::default() }, &Silent)?;
//! assert!(report.turns.iter().all(|turn| (turn.calls, turn.bytes) == (1, 4096)));
//! # Ok::<(), forebay_error::Error>(())
//! ```

mod caller;
mod files;
mod flights;
mod made;
mod memory;
mod plan;
mod report;
mod rounds;
mod text;
mod turn;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use forebay_config::Config;
use forebay_doctor::RealSystem;
use forebay_doctor::machine::meminfo;
use forebay_engine::{EngineKind, Session};
use forebay_error::{Error, ErrorKind, Result};

pub use files::{Cache, Overwritten};
pub use plan::{ChangedCalls, LeftOut, ReplayPlan};
pub use report::{
    Answer, BusyRange, EngineBytes, EngineComparison, NotHere, NotUsed, RecordedRun, ReplayFileReport,
    ReplayReport, SpeedVerdict, TurnReport,
};
pub use text::text;

use files::ReplayFiles;
use rounds::{Rounds, RoundsDone};
use turn::Turn;

/// The name of plain calls: `pread` and `pwrite`, and for GPU memory a copy that is waited for.
pub const PLAIN: &str = "plain";
/// The name of forebay's own choice of engines.
pub const ELECTED: &str = "forebay";

/// Turns of each way, where their number is not given.
pub const ROUNDS: usize = 5;
/// A round is begun only if all rounds would have ended by then; the first always is.
pub const BUDGET: Duration = Duration::from_mins(1);

/// How to replay.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Without the recorded gaps.
    pub is_fast: bool,
    /// How often each way has its turn; `None`: up to [`ROUNDS`] times, as long as that takes no more than [`BUDGET`].
    pub rounds: Option<usize>,
    /// What is to have a turn: engines by name, [`PLAIN`], [`ELECTED`]; empty for all that this machine has.
    pub ways: Vec<String>,
    /// Recorded files that writes go to, of those that [`ReplayPlan::overwritten`] names; to made ones otherwise.
    pub in_place: Vec<Overwritten>,
    /// Where made files lie, in a folder of their own.
    pub folder: PathBuf,
    /// What the page cache holds before each turn.
    pub cache: Cache,
    /// Options of the engines.
    pub config: Config,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            is_fast: false,
            rounds: None,
            ways: Vec::new(),
            in_place: Vec::new(),
            folder: std::env::temp_dir(),
            cache: Cache::default(),
            config: Config::default(),
        }
    }
}

/// Looks on, and may stop it.
pub trait Watch: Sync {
    /// Asked now and then: whether to stop.
    fn stopped(&self) -> bool {
        false
    }

    /// Told now and then: what is being done, the bytes so far, which part that is of all, and since when.
    fn progress(&self, _what: &str, _bytes: u64, _part: Option<f64>, _elapsed: Duration) {}
}

/// Looks away.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Watch for Silent {}

/// Runs the trace again, by each engine in turn, round by round. Stopped, it reports the turns that were done, if any was.
pub fn run(plan: &ReplayPlan, replay: &Replay, watch: &dyn Watch) -> Result<ReplayReport> {
    let host = session(replay, None)?;
    check_memory(plan, &host)?;
    let ways = ways(plan, replay, &host)?;
    let mut files = ReplayFiles::prepare(plan, &replay.in_place, &replay.folder, watch)?;
    let mut report = ReplayReport::of(plan, replay, &host, &files);
    let rounds = Rounds::of(replay.rounds);
    let mut turn = |way, label: &str| {
        if let Some(stop) = files::stopped(watch) {
            return Err(stop);
        }
        one(plan, replay, &host, &mut files, (way, label), watch)
    };
    RoundsDone { turns: report.turns, not_here: report.not_here, is_cut: report.is_cut } =
        rounds.run(ways, &mut turn)?;
    if report.turns.is_empty() {
        return Err(Error::new(ErrorKind::Unsupported, "no engine could run the trace").hint(
            report.not_here.first().map_or_else(String::new, |one| format!("{}: {}", one.way, one.reason)),
        ));
    }
    report.judge();
    Ok(report)
}

/// One engine's turn, on a session of its own, as in a fresh process.
fn one(
    plan: &ReplayPlan,
    replay: &Replay,
    host: &Session,
    files: &mut ReplayFiles,
    (way, label): (&'static str, &str),
    watch: &dyn Watch,
) -> Result<TurnReport> {
    let session = match way {
        PLAIN => None,
        ELECTED | "host" => Some(session(replay, None)?),
        engine => Some(session(replay, Some(engine))?),
    };
    if let Some(session) = &session
        && let Some(gpu) = plan.calls().find_map(|call| call.place)
    {
        let devices = session.devices();
        let device = devices.gpus.get(gpu as usize).or(devices.gpus.first()).unwrap_or(&devices.host);
        session.elect(device)?;
        session.report(device)?;
    }
    files.reset(plan, replay.cache, host)?;
    let state = files.state(plan);
    let turn = Turn::new(plan, files, session.as_ref(), host, replay.is_fast)?;
    let done = turn.run(plan, label, watch)?;
    match files::stopped(watch) {
        Some(stop) => Err(stop),
        None => Ok(TurnReport::of(way, state, done)),
    }
}

fn session(replay: &Replay, engine: Option<&str>) -> Result<Session> {
    let engine = engine.map(str::to_owned);
    // What a turn may use is its name.
    Session::with_counters(Config { engine, strict: Vec::new(), ..replay.config.clone() })
}

/// What has a turn, in order. Engines of GPU memory only if the trace has any, and a GPU is here.
fn ways(plan: &ReplayPlan, replay: &Replay, host: &Session) -> Result<Vec<&'static str>> {
    let has_gpu = !host.devices().gpus.is_empty() && plan.calls().any(|call| call.place.is_some());
    let mut of_gpus: Vec<_> = EngineKind::ALL.into_iter().rev().collect();
    of_gpus.retain(|kind| !matches!(kind, EngineKind::Host | EngineKind::Noop));
    of_gpus.sort_by_key(|kind| !kind.is_forebays());
    let all: Vec<&'static str> = if has_gpu {
        [PLAIN, ELECTED].into_iter().chain(of_gpus.into_iter().map(EngineKind::name)).collect()
    } else {
        vec![PLAIN, EngineKind::Host.name()]
    };
    let unknown = |name: &String| {
        Error::new(ErrorKind::InvalidInput, format!("no such engine for this trace: {name:?}"))
            .hint(format!("use some of: {}", all.join(",")))
    };
    if let Some(name) = replay.ways.iter().find(|name| !all.contains(&name.as_str())) {
        return Err(unknown(name));
    }
    let wanted = |way: &&str| replay.ways.is_empty() || replay.ways.iter().any(|name| name == way);
    Ok(all.iter().copied().filter(wanted).collect())
}

/// Fails if the recorded transfers need more host memory than there is.
fn check_memory(plan: &ReplayPlan, host: &Session) -> Result<()> {
    let has_gpu = !host.devices().gpus.is_empty();
    let mut needed = 0_u64;
    for caller in &plan.callers {
        let mut places: Vec<_> = caller.calls.iter().map(|call| call.place).collect();
        places.sort_unstable();
        places.dedup();
        places.retain(|place| place.is_none() || !has_gpu);
        needed = places.iter().fold(needed, |sum, place| sum.saturating_add(memory::needed(*place, caller)));
    }
    let available = meminfo(&RealSystem, "MemAvailable:").unwrap_or(u64::MAX);
    if needed <= available {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfMemory, "the recorded transfers need more memory than there is")
        .with("needed", needed)
        .with("available", available)
        .hint("replay the trace on a machine with as much memory as the program had"))
}
