//! `forebay report`.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt::Write;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::DeviceName;
use forebay_report::model::{Row, State, Table};
use forebay_report::{
    Ended, Extent, Finished, MIN_FILE_BYTES, ObjectWork, Order, Outcome, PRESETS, Pairing, Planned, Preset,
    Progress, Watch, figure,
};

use crate::console::{Console, Failure, ProgressLine};
use crate::interrupt::{Guard, exit_code};
use crate::load::{parse, size};
use crate::report_objects;
use crate::report_rdma;
use crate::silence;
use crate::ssh::Host;

/// Measure whole tables and write report.html, report.md, report.csv and report.json.
///
/// Presets are published tables with their axes and columns; the published figures stand beside this machine's. Ctrl-C,
/// a crash or --for end it between two rows: the same command goes on from there.
#[derive(Args, Clone, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Report {
    /// Presets [default: all, without --spec], and paths: a directory (a file is made in it, and removed), a file or block
    /// device (only read); for nfs-rdma a file as nfs://SERVER/EXPORT/PATH, too
    #[arg(value_name = "PRESET|PATH", value_parser = crate::names::source())]
    words: Vec<PathBuf>,
    /// GPUs (0 is host memory on a machine without GPU), or p2pmem:PCI-ADDRESS
    #[arg(short = 'd', value_name = "DEVICE", value_delimiter = ',', default_value = "0", value_parser = parse::<DeviceName>)]
    devices: Vec<DeviceName>,
    /// Folder of the report
    #[arg(short = 'o', value_name = "FOLDER", value_parser = crate::names::target())]
    out: Option<PathBuf>,
    /// Heading of the report
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    title: String,
    /// A line below the heading: for whom the report is, where the machine stands
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    note: String,
    /// Few rows and short runs: all presets in about four minutes (else 29, with one GPU and one directory)
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// All rows: more sizes and numbers of threads
    #[arg(long)]
    full: bool,
    /// A table of your own (docs/reference/report-spec.md)
    #[arg(long, value_name = "FILE", value_parser = crate::names::source())]
    spec: Option<PathBuf>,
    /// The file server, for its CPU; it is tried before the first row
    #[arg(long, value_name = "ssh:HOST")]
    server: Option<String>,
    /// Run each row on these machines at a time, by ssh; the paths are the same on all of them and here
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', value_parser = Host::of_name)]
    hosts: Vec<Host>,
    /// How several GPUs and paths are paired: pci (the nearest), given (in their order)
    #[arg(long, value_name = "HOW", default_value = "pci", value_parser = pairing)]
    pair: Pairing,
    /// Size of the file that is made in a directory [default: 4G, 256M with --quick; a quarter of what is free at most]
    #[arg(long, value_name = "SIZE", value_parser = file_size)]
    size: Option<u64>,
    /// Runs of each row; figures are medians [default: 3; 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1000))]
    repeat: Option<u64>,
    /// Length of a run [default: 10 in nfs-rdma, as its source; else 0.5, 0.2 in tables of many rows; 0.25 with --quick]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Stop after the run that passes this time (8m, 90s); exit code 3 says that rows are left
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    limit: Option<Duration>,
    /// Go on with the report of another machine or build; the report says which runs are whose
    #[arg(long)]
    accept_changes: bool,
    /// Throw away the report that is in the folder
    #[arg(long)]
    again: bool,
    /// Do not ask before all CPUs and memory are loaded (busy, as a part of all)
    #[arg(short = 'y', long)]
    yes: bool,
    /// Compare two reports (report.json, or their folders); with -o also as compare.html, compare.md and compare.json
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["words", "spec"], value_parser = crate::names::source())]
    compare: Vec<PathBuf>,
    /// With s3-rdma: write the counters and facts of the machine into this file, too, to be sent (docs/reference/s3-rdma.md)
    #[arg(long, value_name = "FILE", value_parser = crate::names::target())]
    kit: Option<PathBuf>,
    /// Loads the machine until it is ended: what `busy` starts beside its rows
    #[arg(long, hide = true)]
    load_threads: Option<usize>,
    /// Memory of that load in bytes
    #[arg(long, hide = true, default_value_t = 0)]
    load_memory: u64,
    /// Moves whole objects in a directory, and prints figures: what `objects` starts for each run
    #[arg(long, hide = true, value_name = "WAY,IO,SIZE,THREADS,ALL,SECONDS", value_parser = object_work)]
    objects: Option<ObjectWork>,
}

/// Rows are left: the time limit passed.
const EXIT_ROWS_LEFT: i32 = 3;
/// A report to compare cannot be read, or the comparison cannot be written: 1 means that a figure is worse.
const EXIT_NOT_COMPARED: i32 = 6;

fn after_help() -> String {
    let mut text = "Presets:\n".to_owned();
    for (_, name, about) in PRESETS {
        let _ = writeln!(text, "  {name:<12} {about}");
    }
    text + "  all          all of them\n\nBeside them, without a folder:\n  s3-rdma      objects of s3://BUCKET/PREFIX/ by RDMA, with counters of NICs and TCP; --kit FILE to send it\n\nExit codes: 0 all rows measured, or not possible here; 1 a row failed, or the report could not be made; \
            2 wrong command line or spec; 3 rows are left after --for; 130 interrupted; 143 terminated.\n\
            With --compare: 0 no difference beyond the noise; 1 a figure is worse, or a row fails now; 4 a figure is \
            better, and none is worse; 5 the two have no row in common; 6 a report cannot be read, or the comparison not be written."
}

fn object_work(text: &str) -> Result<ObjectWork, String> {
    text.parse().map_err(|error: Error| format!("{error}\nhint: {}", error.hints().join("; ")))
}

fn pairing(text: &str) -> Result<Pairing, String> {
    text.parse().map_err(|error: Error| format!("{error}\nhint: {}", error.hints().join("; ")))
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.05..=3600.0).contains(value));
    value.ok_or_else(|| {
        format!("not a length of a run: {text:?}\nhint: give seconds from 0.05 on, for example 2")
    })
}

/// Rows would not have the I/Os that they name in a shorter one.
fn file_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        short if short < MIN_FILE_BYTES => {
            Err(format!("too short to be measured: {text:?}\nhint: give 16M or more"))
        }
        size => Ok(size),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = match &text[split..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let value = text[..split].parse().map_or(f64::NAN, |value: f64| value * unit);
    Duration::try_from_secs_f64(value)
        .map_err(|_| format!("not a time: {text:?}\nhint: write it as 90s, 8m or 1h"))
}

/// Runs the command.
pub(crate) fn run(args: &Report, console: &Console<'_>) -> Result<i32, Failure> {
    if let [old, new] = args.compare.as_slice() {
        return compare(old, new, args.out.as_deref(), console);
    }
    if let Some(threads) = args.load_threads {
        forebay_report::load_machine(threads, args.load_memory);
        return Ok(0);
    }
    if let (Some(work), [directory], [device]) = (&args.objects, &args.words[..], &args.devices[..]) {
        console.line(report_objects::run(work, directory, device)?);
        return Ok(0);
    }
    match &args.words[..] {
        [name, prefix] if *name == Path::new("s3-rdma") => {
            if args.out.is_some() || args.spec.is_some() || args.quick || args.full {
                let error =
                    Error::new(ErrorKind::InvalidInput, "s3-rdma has no folder, spec or other length");
                let hint = "forebay report s3-rdma s3://BUCKET/PREFIX/ --kit FILE";
                return Err(Failure::usage(error.hint(hint)));
            }
            let _guard = Guard::new();
            return silence::told(console, || report_rdma::run(prefix, args.kit.as_deref(), console));
        }
        _ if args.kit.is_some() => {
            let error = Error::new(ErrorKind::InvalidInput, "--kit is for s3-rdma alone");
            return Err(Failure::usage(error.hint("forebay report s3-rdma s3://BUCKET/PREFIX/ --kit FILE")));
        }
        _ => {}
    }
    let order = args.order().map_err(Failure::usage)?;
    if !args.agreed(&order, console).map_err(Failure::usage)? {
        console.say("nothing was measured\n");
        return Ok(0);
    }
    let _guard = Guard::new();
    let watcher = Watcher { console, live: RefCell::new(ProgressLine::new("report")) };
    let finished = silence::told(console, || forebay_report::run(&order, &watcher));
    watcher.live.borrow().clear();
    let finished = finished.map_err(|error| Failure { code: if is_usage(&error) { 2 } else { 1 }, error })?;
    Ok(tell(&finished, &order, console))
}

/// A mistake in the command line that only the report can find.
fn is_usage(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidInput
}

fn compare(old: &Path, new: &Path, out: Option<&Path>, console: &Console<'_>) -> Result<i32, Failure> {
    let failed = |error| Failure { error, code: EXIT_NOT_COMPARED };
    let found = forebay_report::compare(old, new).map_err(failed)?;
    console.line(found.text().trim_end());
    if let Some(folder) = out {
        forebay_report::write_comparison(&found, folder).map_err(failed)?;
    }
    Ok(match found.outcome() {
        _ if console.is_lost() => EXIT_NOT_COMPARED,
        Outcome::Noise => 0,
        Outcome::Worse => 1,
        Outcome::Better => 4,
        Outcome::NothingInCommon => 5,
    })
}

/// Says how it ended; gives the exit code.
fn tell(finished: &Finished, order: &Order, console: &Console<'_>) -> i32 {
    let report = &finished.report;
    let (left, failed) = (report.waiting(), report.failed());
    let signal = Guard::caught().filter(|_| finished.ended == Ended::Stopped);
    let absent = report.rows().filter(|row| matches!(row.state, State::Absent { .. })).count();
    let all = report.rows().count();
    let not_here = if absent > 0 { format!(", {absent} not possible here") } else { String::new() };
    let mut text = format!(
        "{} of {all} rows{not_here}, {failed} failed: {}",
        all - left - absent,
        order.out.join("report.html").display()
    );
    if left > 0 {
        text += "\nthe same command goes on with the rest";
    } else if finished.runs == 0 {
        text += "\nnothing was left to run; --again measures all of it anew";
    }
    if !finished.left.is_empty() {
        let names: Vec<_> = finished.left.iter().map(|path| path.display().to_string()).collect();
        let _ = write!(text, "\nleft for it, and can be removed: {}", names.join(", "));
    }
    console.say(format!("{text}\n"));
    match finished.ended {
        Ended::Stopped => signal.map_or(1, exit_code),
        Ended::OutOfTime => EXIT_ROWS_LEFT,
        Ended::Complete => i32::from(failed > 0),
    }
}

impl Report {
    /// Whether all CPUs and memory may be loaded. Who names `busy` knows that it does so; who says `all` is asked.
    fn agreed(&self, order: &Order, console: &Console<'_>) -> Result<bool> {
        let busy = Preset::Busy.name();
        let is_named = self.words.iter().any(|word| word.as_os_str() == busy);
        if self.yes || is_named || !order.presets.contains(&Preset::Busy) {
            return Ok(true);
        }
        let what = match order.extent {
            Extent::Quick => "all CPUs to 80 %",
            Extent::Default | Extent::Full => "all CPUs to 80 %, and fills memory to 80 %",
        };
        if !std::io::stdin().is_terminal() {
            let others = PRESETS.iter().map(|(_, name, _)| *name).filter(|name| *name != busy);
            let message = format!("the table {busy} loads {what}, and nobody is here to be asked");
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .hint(format!("add --yes, or name the others: {}", others.collect::<Vec<_>>().join(" "))));
        }
        console.say(format!("The table {busy} loads {what}: other programs here slow down. Go on? [y/N] "));
        let mut answer = String::new();
        std::io::stdin()
            .read_line(&mut answer)
            .map_err(|error| Error::from_io(&error, "cannot read the answer"))?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    fn order(&self) -> Result<Order> {
        let known = |word: &PathBuf| {
            word.to_str()
                .is_some_and(|word| word == "all" || PRESETS.iter().any(|(_, name, _)| *name == word))
        };
        let (presets, paths): (Vec<_>, Vec<_>) = self.words.iter().cloned().partition(known);
        let mut presets: Vec<String> = presets.iter().map(|word| word.display().to_string()).collect();
        let usage = |message: &str, hint: &str| Err(Error::new(ErrorKind::InvalidInput, message).hint(hint));
        let names: Vec<&str> = PRESETS.iter().map(|(_, name, _)| *name).collect();
        // A word without a slash that does not exist may be a misspelt preset or path.
        let is_word = |path: &&PathBuf| path.components().count() == 1 && path.symlink_metadata().is_err();
        if let Some(word) = paths.iter().find(is_word) {
            let message = format!("neither a preset nor a path that is there: {}", word.display());
            return usage(
                &message,
                &format!("name a directory or file that is there; presets are: {}, all", names.join(", ")),
            );
        }
        if paths.is_empty() {
            let hint = match presets.iter().find(|name| Path::new(name).exists()) {
                Some(name) => format!("if {name} is meant to be the path, write it as ./{name}"),
                None => "name a directory to measure, for example: forebay report gds-modes /data -o report"
                    .to_owned(),
            };
            return usage("no path is named", &hint);
        }
        if presets.is_empty() && self.spec.is_none() {
            presets.push("all".to_owned());
        }
        let Some(out) = self.out.clone() else {
            return usage("no folder for the report is named", "add -o report");
        };
        Ok(Order {
            presets: forebay_report::presets(&presets)?,
            spec: self.spec.clone(),
            devices: self.devices.clone(),
            paths,
            out,
            title: self.title.clone(),
            note: self.note.clone(),
            extent: match (self.quick, self.full) {
                (true, _) => Extent::Quick,
                (_, true) => Extent::Full,
                _ => Extent::Default,
            },
            server: self.server.clone(),
            hosts: self.hosts.iter().map(|host| host.name().to_owned()).collect(),
            size: self.size,
            repeat: self.repeat.map(|one| one as usize),
            seconds: self.seconds,
            pairing: self.pair,
            limit: self.limit,
            accept_changes: self.accept_changes,
            again: self.again,
            python: interpreter().unwrap_or_else(|| "python3".into()),
            executable: own_command()?,
        })
    }
}

/// The command line that runs this command again.
fn own_command() -> Result<Vec<OsString>> {
    if let Some(python) = interpreter() {
        return Ok([python, "-m".into(), "forebay".into()].into());
    }
    let own = std::env::current_exe();
    own.map(|own| vec![own.into()]).map_err(|error| Error::from_io(&error, "cannot find the own executable"))
}

/// The interpreter that this command runs in, if it is in the Python package, as it was called: an environment of its own is
/// found by that name.
fn interpreter() -> Option<OsString> {
    let own = std::env::current_exe().ok()?;
    let called = std::fs::read("/proc/self/cmdline").ok()?;
    interpreter_of(&own, &called)
}

fn interpreter_of(own: &Path, called: &[u8]) -> Option<OsString> {
    if !own.file_name()?.as_encoded_bytes().starts_with(b"python") {
        return None;
    }
    let first = called.split(|byte| *byte == 0).next().filter(|first| !first.is_empty())?;
    Some(OsString::from_vec(first.to_vec()))
}

struct Watcher<'a, 'b> {
    console: &'a Console<'b>,
    live: RefCell<ProgressLine>,
}

impl Watch for Watcher<'_, '_> {
    fn stopped(&self) -> bool {
        Guard::caught().is_some()
    }

    fn planned(&self, planned: &Planned) {
        let Planned { rows, runs, time } = planned;
        self.console.say(format!("{rows} rows, {runs} runs: about {}\n", minutes(*time)));
    }

    fn making(&self, path: &Path, size: u64) {
        let size = forebay_bench::text::bytes(size);
        self.console.say(format!("making {} ({size})\n", path.display()));
    }

    fn begins(&self, progress: &Progress<'_>) {
        let Progress { table, row, run, of, done, all, left } = progress;
        let text = format!("{} left; {table}: {row}, run {run} of {of}", clock(*left));
        self.live.borrow().step(*done as f64 / (*all).max(1) as f64, text);
    }

    fn row(&self, table: &Table, row: &Row) {
        self.live.borrow().clear();
        let result = match &row.state {
            State::Failed { reason, .. } => format!("failed: {reason}"),
            State::Absent { reason } => format!("not here: {reason}"),
            _ => {
                let figures = table.columns.iter().filter_map(|quantity| {
                    Some(format!("{} {}", figure(row.summary(*quantity)?.median), quantity.title()))
                });
                figures.collect::<Vec<_>>().join("; ")
            }
        };
        self.console.line(format!("{}: {}: {result}", table.id, row.id));
    }
}

/// `15 min`, of an estimated time.
fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds >= 60 => format!("{} min", (seconds + 30) / 60),
        seconds => format!("{} s", seconds.max(1)),
    }
}

/// `4 min 10 s`.
fn clock(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds >= 60 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_of_the_package() {
        let of = |own: &str, called: &str| interpreter_of(Path::new(own), called.as_bytes());
        assert_eq!(
            of("/usr/bin/python3.11", "/venv/bin/python\0/venv/bin/forebay\0"),
            Some("/venv/bin/python".into())
        );
        assert_eq!(of("/usr/bin/forebay", "forebay\0report\0"), None);
    }
}
