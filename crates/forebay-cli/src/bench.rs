//! `forebay bench`, and `gdsio`.

use std::time::Duration;

use forebay_bench::{Observer, Pass, Progress, format, text};
use forebay_error::{Error, ErrorKind};

use crate::console::{Console, Failure, ProgressLine};
use crate::json_file::JsonFile;
use crate::load::Load;

/// Runs the command.
pub(crate) fn run(load: &Load, console: &Console<'_>) -> Result<i32, Failure> {
    let (work, per_job) = load.workload().map_err(Failure::usage)?;
    // A result that cannot be written is known before the run, not after it.
    let json = load.json.as_deref().map(JsonFile::open).transpose()?;
    let medians = work.repeat > 1 || !work.compare.is_empty();
    let watcher = Watcher { console, per_job, live: ProgressLine::new("bench"), quiet: medians };
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

struct Watcher<'a, 'b> {
    console: &'a Console<'b>,
    per_job: bool,
    live: ProgressLine,
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
