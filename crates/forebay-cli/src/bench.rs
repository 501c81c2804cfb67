//! `forebay bench`, and `gdsio`.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use forebay_bench::{Job, Observer, Pass, Progress, Workload, format, text};
use forebay_error::{Error, ErrorKind};

use crate::console::{Console, Failure, ProgressLine};
use crate::interrupt::Guard;
use crate::json_file::JsonFile;
use crate::load::Load;
use crate::silence;

/// How often the thread checks for a signal.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the command.
pub(crate) fn run(load: &Load, console: &Console<'_>) -> Result<i32, Failure> {
    let (work, per_job) = load.workload().map_err(Failure::usage)?;
    if let Some(json) = load.json.as_deref().filter(|json| is_read(json, load, &work)) {
        let error =
            Error::new(ErrorKind::InvalidInput, "the report would overwrite what the run reads or writes");
        return Err(Failure::usage(error.with("path", json.display()).hint("name another file with --json")));
    }
    // Opens the file before the run, so that an error does not cost the result.
    let json = load.json.as_deref().map(JsonFile::open).transpose()?;
    let medians = work.repeat > 1 || !work.compare.is_empty();
    let last = Mutex::default();
    let watcher = Watcher { console, per_job, live: ProgressLine::new("bench"), quiet: medians, last };
    let report = interruptible(&watcher, || forebay_bench::run(&work, &watcher));
    watcher.live.clear();
    let report = report.map_err(|error| refine(load.retold(error)))?;
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
    for warning in report.warnings.iter().chain(&load.unread_cufile_json()) {
        console.say(format!("note: {warning}\n"));
    }
    if let Some(json) = json {
        json.write(&report)?;
    }
    Ok(0)
}

/// Whether it is a file of the run, or its job file.
fn is_read(json: &Path, load: &Load, work: &Workload) -> bool {
    let Ok(json) = json.canonicalize() else { return false };
    let files = work.jobs.iter().flat_map(Job::paths).chain(load.job_file.clone());
    files.filter_map(|path| path.canonicalize().ok()).any(|path| path == json)
}

/// Runs `work`; a signal ends it at once, wherever it is.
fn interruptible<T>(watcher: &Watcher<'_, '_>, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let _guard = Guard::new();
    let result = thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let watch = move || {
            while ended.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if let Some(signal) = Guard::caught() {
                    watcher.end_by(signal);
                }
            }
        };
        // Without the thread the run goes on to its end.
        let _ = thread::Builder::new().name("forebay-signal".to_owned()).spawn_scoped(scope, watch);
        let result = silence::told(watcher.console, work);
        drop(end);
        result
    });
    if let (Err(_), Some(signal)) = (&result, Guard::caught()) {
        // The signal made a wait for a server fail.
        watcher.end_by(signal);
    }
    result
}

/// Adds a hint to errors of files that have none.
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
    /// Progress of the current pass.
    last: Mutex<Option<Progress>>,
}

impl Watcher<'_, '_> {
    /// Prints the progress, and ends the process by the signal: no cleanup runs, and other threads are not stopped
    /// first.
    fn end_by(&self, signal: libc::c_int) -> ! {
        self.live.clear();
        let Failure { error, code } = self.interrupted(signal);
        self.console.error(&error);
        // SAFETY: no pointers are passed. The guard's first signal has put back what it does by default.
        unsafe {
            libc::raise(signal);
            libc::_exit(code)
        }
    }

    /// The message about an interrupted run.
    fn interrupted(&self, signal: libc::c_int) -> Failure {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let done = last.map_or_else(
            || "no pass was under way".to_owned(),
            |last| {
                let (bytes, seconds) = (text::bytes(last.bytes), last.elapsed.as_secs_f64());
                format!("the pass is not finished, {bytes} in {seconds:.1} s so far")
            },
        );
        Failure::interrupted(signal, &done)
    }

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
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
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
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if !self.quiet {
            self.print(pass);
        }
        self.console.say(text::pass(pass));
    }
}
