//! `forebay bench`, and `gdsio`.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_bench::{Job, Observer, Pass, Progress, Workload, format, text};
use forebay_error::{Error, ErrorKind};

use crate::console::{Console, Failure, ProgressLine};
use crate::interrupt::Guard;
use crate::json_file::JsonFile;
use crate::load::Load;
use crate::silence;

/// How often the thread checks for a signal.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long an interrupted run may take to end where it has figures to keep or files to remove, and elsewhere. Then the process
/// ends at once.
const GRACE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(1));

/// Runs the command.
pub(crate) fn run(load: &Load, console: &Console<'_>) -> Result<i32, Failure> {
    let (work, per_job) = load.workload().map_err(Failure::usage)?;
    if let Some(json) = load.json.as_deref().filter(|json| is_read(json, load, &work)) {
        let error =
            Error::new(ErrorKind::InvalidInput, "the report would overwrite what the run reads or writes");
        return Err(Failure::usage(error.with("path", json.display()).hint("name another file with --json")));
    }
    // Opens the file before the run, so that an error does not cost the result.
    let json = load.json.as_deref().map(|path| JsonFile::open(path, console)).transpose()?;
    let medians = work.repeat > 1 || !work.compare.is_empty();
    let live = ProgressLine::new("bench");
    let (last, pass_end) = Default::default();
    let watcher = Watcher { console, per_job, live, quiet: medians, unlink: work.unlink, last, pass_end };
    let report = interruptible(&watcher, || forebay_bench::run(&work, &watcher));
    watcher.live.clear();
    let signal = Guard::caught();
    let report = match (report, signal) {
        // A wait for a server that the signal ended.
        (Err(_), Some(signal)) => return Err(watcher.interrupted(signal)),
        (report, _) => report.map_err(|error| refine(load.retold(error)))?,
    };
    let cut = signal.filter(|_| report.interrupted);
    if let (Some(signal), true) = (cut, report.passes.is_empty()) {
        return Err(watcher.interrupted(signal));
    }
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
        json.write(&report, console)?;
    }
    match cut {
        Some(signal) => Err(Failure::interrupted(signal, "the figures are of the time until then")),
        None => Ok(0),
    }
}

/// Whether it is a file of the run, or its job file.
fn is_read(json: &Path, load: &Load, work: &Workload) -> bool {
    let Ok(json) = json.canonicalize() else { return false };
    let files = work.jobs.iter().flat_map(Job::paths).chain(load.job_file.clone());
    files.filter_map(|path| path.canonicalize().ok()).any(|path| path == json)
}

/// Runs `work`, which ends soon after a signal: it asks the observer. If it does not, the signal ends the process.
fn interruptible<T>(watcher: &Watcher<'_, '_>, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let _guard = Guard::new();
    thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let watch = move || {
            let mut since = None;
            while ended.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let Some(signal) = Guard::caught() else { continue };
                let since = *since.get_or_insert_with(Instant::now);
                if since.max(watcher.pass_end().unwrap_or(since)).elapsed() > watcher.grace() {
                    watcher.end_by(signal);
                }
            }
        };
        // Without the thread the run goes on to its end.
        let _ = thread::Builder::new().name("forebay-signal".to_owned()).spawn_scoped(scope, watch);
        let result = silence::told(watcher.console, work);
        drop(end);
        result
    })
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
    /// Whether the run removes its files at its end.
    unlink: bool,
    /// Progress of the current pass.
    last: Mutex<Option<Progress>>,
    /// When the last pass ended.
    pass_end: Mutex<Option<Instant>>,
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

    fn last(&self) -> Option<Progress> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_end(&self) -> Option<Instant> {
        *self.pass_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the run may take to end, from the signal or the end of a pass on.
    fn grace(&self) -> Duration {
        let has_more = self.unlink || self.last().is_some() || self.pass_end().is_some();
        if has_more { GRACE.0 } else { GRACE.1 }
    }

    /// The message about an interrupted run.
    fn interrupted(&self, signal: libc::c_int) -> Failure {
        let done = self.last().map_or_else(
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
        if progress.elapsed >= Duration::from_secs(1) {
            self.live.say(if progress.is_ramp { "ramp " } else { "bench" });
            self.live.step(part(&progress), live(&progress));
        }
    }

    fn is_stopped(&self) -> bool {
        Guard::caught().is_some()
    }

    fn verifying(&self) {
        if !self.quiet {
            self.console.line(format::VERIFYING);
        }
    }

    fn pass(&self, pass: &Pass) {
        self.live.clear();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.pass_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if !self.quiet {
            self.print(pass);
        }
        self.console.say(text::pass(pass));
    }
}

/// How much of the pass is done, 0 to 1.
fn part(progress: &Progress) -> f64 {
    let by_time = |time: Duration| progress.elapsed.div_duration_f64(time.max(Duration::from_millis(1)));
    let by_bytes = |total: u64| progress.bytes as f64 / total.max(1) as f64;
    progress.runtime.map(by_time).or(progress.total.map(by_bytes)).unwrap_or(0.0)
}

/// The live line: rates and p99 of the last second, and the time left.
fn live(progress: &Progress) -> String {
    let left = match (progress.runtime, progress.total) {
        (Some(time), _) => Some(time.saturating_sub(progress.elapsed).as_secs_f64()),
        (None, Some(total)) if progress.bytes_per_s > 0.0 => {
            Some(total.saturating_sub(progress.bytes) as f64 / progress.bytes_per_s)
        }
        _ => None,
    };
    let left = left.map_or_else(String::new, |left| format!("  {left:.0} s left"));
    let Progress { bytes_per_s, iops, p99_us, .. } = progress;
    format!("{:.2} GB/s  {iops:.0} IOPS  p99 {p99_us:.0} us{left}", bytes_per_s / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_line_has_rates_and_the_time_left() {
        let mut progress = Progress {
            bytes: 6 << 30,
            total: Some(10 << 30),
            elapsed: Duration::from_secs(3),
            runtime: None,
            is_ramp: false,
            bytes_per_s: (2_u64 << 30) as f64,
            iops: 2048.4,
            p99_us: 811.7,
        };
        assert_eq!(live(&progress), "2.15 GB/s  2048 IOPS  p99 812 us  2 s left");
        assert!((part(&progress) - 0.6).abs() < 1e-9);
        progress.runtime = Some(Duration::from_secs(30));
        assert!(live(&progress).ends_with("  27 s left") && (part(&progress) - 0.1).abs() < 1e-9);
        (progress.runtime, progress.total) = (None, None);
        assert!(live(&progress).ends_with(" us") && part(&progress).abs() < 1e-9);
    }
}
