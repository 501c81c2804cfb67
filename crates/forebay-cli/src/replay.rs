//! `forebay replay`: a recorded trace run again, once by each engine.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use forebay_config::Config;
use forebay_error::{Error, ErrorKind, plain};
use forebay_replay::{Cache, Overwritten, ReplayPlan, Watch, text};

use crate::console::{Console, Failure, ProgressLine};
use crate::interrupt::{Guard, exit_code};
use crate::json_file::JsonFile;

/// Run a recorded trace again, by plain calls and by each engine in turn, and compare their times.
///
/// Sizes, offsets, threads, batches, streams and the gaps between calls are those of the recording. Reads come from the
/// recorded files where these still have their size, and from made ones otherwise; writes go to made files. These lie
/// in a temporary folder that is removed at the end. The last sentence says whether the direct path would help.
#[derive(Args, Clone, Debug)]
pub(crate) struct Replay {
    /// A trace that `forebay run --trace FILE` wrote
    #[arg(value_name = "TRACE", value_parser = crate::names::source())]
    file: PathBuf,
    /// Leave the gaps out: as fast as it goes
    #[arg(long)]
    fast: bool,
    /// The engines to compare: plain, forebay (its own choice), staged, mapped, placed, p2p, libcufile; host for host
    /// memory [default: all that is here]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    engine: Vec<String>,
    /// How many turns each has, one after the other, round by round [default: 5, or as many as end within a minute; one at least]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Write to the recorded files: their contents are lost. Names them and asks first
    #[arg(long)]
    in_place: bool,
    /// Do not ask
    #[arg(long, requires = "in_place")]
    yes: bool,
    /// Where the folder of made files is put [default: $TMPDIR, or /tmp]
    #[arg(long, value_name = "DIRECTORY", value_parser = crate::names::target())]
    dir: Option<PathBuf>,
    /// Read all files into the page cache before each turn [default: those that were mostly in it]
    #[arg(long, conflicts_with = "drop_cache")]
    warm: bool,
    /// Drop all files from the page cache before each turn [default: those that were mostly not in it]
    #[arg(long)]
    drop_cache: bool,
    /// Write the report as JSON (docs/guides/replay.md)
    #[arg(long, value_name = "FILE", value_parser = crate::names::target())]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Replay, console: &Console<'_>) -> Result<i32, Failure> {
    let plan = ReplayPlan::load(&args.file)?;
    let config = Config::from_env()?;
    let in_place = if args.in_place { confirm(args, &plan, console)? } else { Vec::new() };
    let is_trace = |path: &Path| path.canonicalize().ok() == args.file.canonicalize().ok();
    if let Some(path) = args.json.as_deref().filter(|path| plan.has(path) || is_trace(path)) {
        let error =
            Error::new(ErrorKind::InvalidInput, "the report would overwrite the trace or a file of it");
        return Err(Failure::usage(error.with("path", path.display()).hint("name another file with --json")));
    }
    let json = args.json.as_deref().map(|path| JsonFile::open(path, console)).transpose()?;
    let replay = forebay_replay::Replay {
        is_fast: args.fast,
        ways: args.engine.clone(),
        rounds: args.rounds.map(usize::from),
        in_place,
        folder: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        cache: match (args.warm, args.drop_cache) {
            (true, _) => Cache::Warm,
            (_, true) => Cache::Cold,
            _ => Cache::AsFound,
        },
        config,
    };
    let guard = Guard::new();
    let watcher = Watcher { live: ProgressLine::new("replay") };
    let report = forebay_replay::run(&plan, &replay, &watcher);
    watcher.live.clear();
    let signal = Guard::caught();
    drop(guard);
    let report = match (report, signal) {
        (Err(error), Some(signal)) if error.kind() == ErrorKind::Cancelled => {
            return Err(Failure::interrupted(signal, "made files are removed"));
        }
        // An engine that the trace has no use for.
        (Err(error), _) if error.kind() == ErrorKind::InvalidInput => return Err(Failure::usage(error)),
        (report, _) => report?,
    };
    console.line(text(&report).trim_end());
    if let Some(json) = json {
        json.write(&report, console)?;
    }
    Ok(signal.filter(|_| report.is_cut).map_or(0, exit_code))
}

/// Names the files that will be overwritten. Fails unless the user wants that.
fn confirm(args: &Replay, plan: &ReplayPlan, console: &Console<'_>) -> Result<Vec<Overwritten>, Failure> {
    let files = plan.overwritten();
    for file in &files {
        console.say(format!("will be overwritten: {}\n", plain(&file.to_string())));
    }
    let others = plan.not_overwritten();
    for (path, why) in &others {
        console.say(format!("will not be overwritten: {}: {why}\n", plain(&path.display().to_string())));
    }
    if files.is_empty() && !others.is_empty() {
        let error = Error::new(ErrorKind::InvalidInput, "no file of the trace can be written in place");
        return Err(Failure::usage(error.hint("leave --in-place out: then writes go to made files")));
    }
    if files.is_empty() || args.yes {
        return Ok(files);
    }
    let refused = || {
        let error = Error::new(ErrorKind::InvalidInput, "the files above would be overwritten");
        Failure::usage(error.hint("add --yes, or leave --in-place out: then writes go to made files"))
    };
    if !std::io::stdin().is_terminal() {
        return Err(refused());
    }
    console.say("their contents will be lost: type yes to go on: ");
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && answer.trim() == "yes" { Ok(files) } else { Err(refused()) }
}

struct Watcher {
    live: ProgressLine,
}

impl Watch for Watcher {
    fn stopped(&self) -> bool {
        Guard::caught().is_some()
    }

    fn progress(&self, what: &str, bytes: u64, part: Option<f64>, elapsed: Duration) {
        self.live.say(what);
        self.live.show(bytes, part, elapsed);
    }
}
