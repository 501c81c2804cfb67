//! `forebay run`: any program on forebay's libcufile.

mod child;
pub(crate) mod dropin;
mod elf;
mod patch;
mod unused;

use std::ffi::OsString;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use forebay_config::cufile::Settings;
use forebay_config::{env, files};
use forebay_error::{Error, ErrorKind, Result, plain};
use forebay_stats::{Snapshot, read_directory, render};
use forebay_trace::{TraceHeader, TraceReader, is_trace};

use crate::console::{Console, Failure};
use dropin::Folder;
use patch::Patch;

/// Run a program on forebay's libcufile.so.0, whatever copy it was built with.
///
/// The program and all that it starts find forebay's library by LD_PRELOAD and LD_LIBRARY_PATH, and the settings that
/// KvikIO needs before it uses cuFile (KVIKIO_COMPAT_MODE=OFF and a cufile.json), unless you set these yourself.
/// Signals go to the program, and its exit code is the command's: 128 and the number where a signal ended it, 127 where
/// there is no such program, 126 where it cannot be run.
#[derive(Args, Clone, Debug)]
pub(crate) struct Run {
    /// Write every cuFile call to this file; further processes add their number, or %p becomes it (see `forebay trace`)
    #[arg(long, value_name = "FILE", value_parser = crate::names::target())]
    trace: Option<PathBuf>,
    /// At the end, print which engine moved which bytes, and why not a better one
    #[arg(long)]
    receipt: bool,
    /// At the end, print the counters of every process as `forebay stats` does
    #[arg(long)]
    stats: bool,
    /// Replace a library by forebay in the program's Python processes, which need forebay installed
    #[arg(long, value_name = "LIBRARY")]
    patch: Option<Patch>,
    /// The folder of forebay's libcufile.so.0 [default: FOREBAY_LIBCUFILE, or beside this program]
    #[arg(long, value_name = "DIR", value_parser = crate::names::source())]
    lib: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &Run, console: &Console<'_>) -> Result<i32, Failure> {
    let library = dropin::find(args.lib.as_deref())?;
    let trace = args.trace.as_deref().map(trace_path).transpose()?;
    let folder = Folder::of(&library)?;
    if let Some((why, hint)) = forebay_stats::hidden_processes() {
        console.say(format!("note: {why}: programs and `forebay stats` find no counters\n  hint: {hint}\n"));
    }
    for warning in misread() {
        console.say(format!("note: {warning}\n"));
    }
    let id = run_id();
    let code = child::run(command(args, &folder, trace.as_deref(), id)?)?;
    if args.receipt || args.stats {
        // A folder that cannot be read is one without counters.
        let snapshots = read_directory(&folder.counters()).unwrap_or_default();
        if args.stats {
            for snapshot in &snapshots {
                console.say(render::gds_stats(snapshot, 3));
            }
        }
        console.say(receipt(args, &snapshots));
    }
    if let Some(path) = trace {
        console.say(traces(&path, id));
    }
    if let Some(patch) = args.patch {
        console.say(patch.outcome(folder.path()));
    }
    Ok(code)
}

/// The program with its environment.
fn command(args: &Run, folder: &Folder, trace: Option<&Path>, id: u64) -> Result<Command> {
    let mut words = args.command.iter();
    let Some(program) = words.next() else {
        return Err(Error::new(ErrorKind::InvalidInput, "no program").hint("forebay run -- CMD"));
    };
    let mut command = Command::new(program);
    command.args(words).envs(folder.loader_variables()).env("FOREBAY_RUN", format!("{id:x}"));
    let unset = |name: &str| env::value(name).is_none();
    if unset("KVIKIO_COMPAT_MODE") {
        command.env("KVIKIO_COMPAT_MODE", "OFF");
    }
    if unset("CUFILE_ENV_PATH_JSON") && !Path::new("/etc/cufile.json").exists() {
        command.env("CUFILE_ENV_PATH_JSON", folder.config()?);
    }
    if let Some(path) = trace {
        command.env("FOREBAY_TRACE", path);
    }
    if let Some(patch) = args.patch {
        patch.ask(&mut command, folder.path());
    }
    if args.receipt || args.stats {
        command.env(forebay_stats::DIRECTORY_VARIABLE, folder.counters());
    }
    Ok(command)
}

/// Settings of cufile.json and its variables that the library refuses. With a log, the library reports them there.
fn misread() -> Vec<String> {
    let loaded = Settings::from_env();
    let is_logged = loaded.settings.log.place().is_some() || env::filled("FOREBAY_CUFILE_LOG").is_some();
    if is_logged { Vec::new() } else { loaded.warnings }
}

/// A number that the traces of one run share.
fn run_id() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the buffer has that many bytes. Without randomness the process number and the clock make the difference.
    if unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) } != 8 {
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        bytes = (now ^ u64::from(std::process::id()) << 32).to_ne_bytes();
    }
    u64::from_ne_bytes(bytes).max(1)
}

/// The trace's path, good for programs that change their directory; refused before the program starts rather than in
/// its middle.
fn trace_path(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)
        .map_err(|error| Error::from_io(&error, "cannot make the trace").with("path", path.display()))?;
    if !absolute.parent().is_some_and(Path::is_dir) {
        return Err(Error::new(ErrorKind::NotFound, "cannot make the trace: its folder does not exist")
            .with("path", path.display())
            .hint("make the folder, or name another: --trace FILE"));
    }
    if absolute.is_dir() {
        return Err(Error::new(
            ErrorKind::IsDirectory,
            "cannot make the trace: a directory where a file is needed",
        )
        .with("path", path.display())
        .hint("name a file: --trace FILE"));
    }
    if let Some(obstacle) = files::obstacle(&absolute) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("cannot make the trace: {obstacle}"))
            .with("path", path.display())
            .hint("name a file: --trace FILE"));
    }
    let mut start = Vec::new();
    let old = files::open_plain(&absolute).and_then(|file| file.take(8).read_to_end(&mut start));
    if old.is_ok() && !start.is_empty() && !is_trace(&start) {
        return Err(Error::new(ErrorKind::AlreadyExists, "the file exists and is no trace")
            .with("path", path.display())
            .hint("name another file, or remove this one"));
    }
    Ok(absolute)
}

/// Prints what the program did, or why it did nothing.
fn receipt(args: &Run, snapshots: &[Snapshot]) -> String {
    let obstacles = if snapshots.is_empty() {
        let mut found = args.command.first().map(|name| unused::by_program(name)).unwrap_or_default();
        found.extend(unused::by_gates(&args.command));
        found
    } else if snapshots.iter().all(|snapshot| snapshot.engine_bytes() == 0) {
        unused::by_gates(&args.command)
    } else {
        Vec::new()
    };
    let mut text = match (args.receipt, snapshots.is_empty()) {
        (_, true) => "receipt: no process used forebay's libcufile\n".into(),
        (true, false) => render::receipt(snapshots),
        (false, false) => String::new(),
    };
    for obstacle in obstacles {
        let _ = writeln!(text, "  note: {}\n    hint: {}", obstacle.text, obstacle.hint);
    }
    text
}

/// The traces that the run left.
fn traces(path: &Path, run: u64) -> String {
    let mut found = traces_of(path, run);
    found.sort_by_key(|(_, header)| header.clock_start);
    let mut text = String::new();
    for (path, header) in &found {
        let (path, program) = (path.display().to_string(), header.program().display().to_string());
        let _ = writeln!(text, "trace: {} (process {}: {})", plain(&path), header.pid, plain(&program));
    }
    if found.is_empty() {
        text.push_str("note: no trace was written: no process used forebay's libcufile\n");
        text.push_str("hint: forebay run --receipt -- CMD gives the reason\n");
    }
    text
}

fn traces_of(path: &Path, run: u64) -> Vec<(PathBuf, TraceHeader)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let name = name.to_string_lossy();
    let start = name.split("%p").next().unwrap_or_default();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .filter_map(|entry| Some((entry.path(), TraceReader::open(entry.path()).ok()?.header().clone())))
        .filter(|(_, header)| header.run == run)
        .collect()
}
