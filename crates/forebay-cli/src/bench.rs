//! `forebay bench`, and `gdsio`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use forebay_bench::{BenchReport, Observer, Pass, Progress, format, text};
use forebay_error::{Error, ErrorKind};
use forebay_models::Pending;

use crate::console::{Console, Failure, Live};
use crate::load::Load;

/// Runs the command.
pub(crate) fn run(load: &Load, console: &Console<'_>) -> Result<i32, Failure> {
    let (work, per_job) = load.workload().map_err(Failure::usage)?;
    // A result that cannot be written is known before the run, not after it.
    let json = load.json.as_deref().map(Json::open).transpose()?;
    let medians = work.repeat > 1 || !work.compare.is_empty();
    let watcher = Watcher { console, per_job, live: Live::new("bench"), quiet: medians };
    let report = forebay_bench::run(&work, &watcher);
    watcher.live.clear();
    let report = report.map_err(refine)?;
    if medians {
        for one in &report.summary {
            if let Some(pass) = report.middle(one.xfer_type) {
                watcher.print(pass);
            }
        }
    }
    if let Some(cost) = &report.open_cost {
        console.line(text::open_cost(cost).trim_end());
    }
    console.say(text::summary(&report));
    for warning in &report.warnings {
        console.say(format!("note: {warning}\n"));
    }
    if let Some(json) = json {
        json.write(&report)?;
    }
    Ok(0)
}

/// Errors of files that say nothing about what to do get a hint.
fn refine(error: Error) -> Error {
    if !error.hints().is_empty() {
        return error;
    }
    match error.kind() {
        ErrorKind::NoSpace => error.hint("free some space (df -h), or use a smaller -s"),
        ErrorKind::OutOfMemory => {
            error.hint("use fewer threads (-w) or a smaller I/O size (-i); `ulimit -l` bounds locked memory")
        }
        ErrorKind::ShortRead => error.hint("something truncated the file during the run"),
        _ => error,
    }
}

/// Where the report goes. A run that is ended leaves no part of one, and an old one as it was.
enum Json {
    /// It gets its name when it is whole.
    New(Pending),
    /// What is there stays what it is: a pipe, or what a shell has opened.
    Old(File),
}

impl Json {
    fn open(path: &Path) -> Result<Self, Error> {
        let explain = |error: Error| match error.hints() {
            [] => error.hint("name another file with --json"),
            _ => error,
        };
        if !path.exists() {
            return Pending::create(path).map(Self::New).map_err(explain);
        }
        let opened = OpenOptions::new().write(true).open(path);
        opened.map(Self::Old).map_err(|error| {
            explain(Error::from_io(&error, "cannot create the report").with("path", path.display()))
        })
    }

    fn write(self, report: &BenchReport) -> Result<(), Error> {
        let mut text = serde_json::to_string_pretty(report)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write the report: {error}")))?;
        text.push('\n');
        let failed = |error: &std::io::Error| Error::from_io(error, "cannot write the report");
        let put = |mut file: File| -> std::io::Result<()> {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(text.as_bytes())
        };
        match self {
            Self::Old(file) => put(file).map_err(|error| failed(&error)),
            Self::New(pending) => {
                let file = OpenOptions::new().write(true).open(pending.temporary());
                file.and_then(put).map_err(|error| failed(&error))?;
                pending.commit(false).map(drop)
            }
        }
    }
}

struct Watcher<'a, 'b> {
    console: &'a Console<'b>,
    per_job: bool,
    live: Live,
    quiet: bool,
}

impl Watcher<'_, '_> {
    fn print(&self, pass: &Pass) {
        if self.per_job {
            for line in pass.job_lines() {
                self.console.line(line);
            }
        }
        self.console.line(pass.line());
    }
}

impl Observer for Watcher<'_, '_> {
    fn progress(&self, progress: Progress) {
        let by_time = progress
            .runtime
            .map(|time| progress.elapsed.div_duration_f64(time.max(Duration::from_millis(1))));
        let by_bytes = progress.total.map(|total| progress.bytes as f64 / total.max(1) as f64);
        self.live.show(progress.bytes, by_time.or(by_bytes), progress.elapsed);
    }

    fn verifying(&self) {
        if !self.quiet {
            self.console.line(format::VERIFYING);
        }
    }

    fn pass(&self, pass: &Pass) {
        self.live.clear();
        if !self.quiet {
            self.print(pass);
        }
        self.console.say(text::pass(pass));
    }
}
