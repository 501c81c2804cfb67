//! Many files at a time: a few threads take them from a short queue.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Instant;

use forebay_engine::Session;
use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::lock;
use serde_json::{Map, Value, json};

use super::slots::Slots;
use super::sync::How;
use super::tree::{Entry, Item, Tree};
use crate::console::{Console, Failure, ProgressLine};
use crate::cp::BytesBySite;
use crate::interrupt::Guard;

/// Threads: each waits for one small object at a time.
const THREADS: usize = 16;
/// Jobs that wait for a thread.
const QUEUED: usize = 64;
/// Objects that one call removes.
pub(super) const REMOVED_AT_ONCE: usize = 1000;
/// Failures of the server behind each other that end the command: one for each thread, after its call was sent again for a while.
const MOST_FAILURES: u64 = THREADS as u64;

/// Something to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Copies a file of one tree to another.
    Copy(Item),
    /// Copies it if its checksum is another one at the destination; `true`: also if one of both has none.
    Compare(Item, bool),
    /// The same where another file stood in its way, which is removed by now.
    CopyLast(Item),
    /// Removes files of the destination.
    Remove(Vec<String>),
    /// Reports a name that cannot be looked at.
    Report(Error),
}

impl Job {
    /// What copies an entry of a source.
    pub(super) fn of(entry: Entry) -> Self {
        match entry {
            Entry::File(item) => Self::Copy(item),
            Entry::Unread(error) => Self::Report(error),
        }
    }
}

/// A file that was moved.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    /// Those that each site gave.
    pub(super) sites: BytesBySite,
}

impl Moved {
    /// Without a word of sites.
    pub(super) fn of(bytes: u64) -> Self {
        Self { bytes, sites: Vec::new() }
    }
}

/// Where jobs are done.
pub(super) struct Jobs<'a, 'c> {
    /// For copies.
    pub(super) source: Option<Tree>,
    pub(super) destination: Tree,
    /// Files that the source has not are removed.
    pub(super) deletes: bool,
    pub(super) is_dry: bool,
    pub(super) is_json: bool,
    pub(super) console: &'a Console<'c>,
    pub(super) what: &'static str,
}

/// The work, shared by the threads.
pub(super) struct Work<'a, 'c> {
    pub(super) jobs: &'a Jobs<'a, 'c>,
    pub(super) session: OnceLock<Result<Session>>,
    pub(super) slots: Slots,
    /// Whether the destination's folder could be made.
    pub(super) root: OnceLock<Result<()>>,
    /// The folder of the last file, which is there.
    pub(super) folder: Mutex<PathBuf>,
    /// Files that something stands in the way of until it is removed.
    pub(super) blocked: Mutex<Vec<Item>>,
    /// Folders that lost files.
    pub(super) emptied: Mutex<BTreeSet<PathBuf>>,
    live: ProgressLine,
    started: Instant,
    pub(super) files: AtomicU64,
    pub(super) bytes: AtomicU64,
    failed: AtomicU64,
    /// Copies of which a server gave no checksum, and what of the first was not compared.
    pub(super) not_compared: Mutex<(u64, &'static str)>,
    /// Failures of the server since something was done.
    failed_in_row: AtomicU64,
    /// Why the rest is not tried.
    ended: OnceLock<Error>,
}

impl<'a, 'c> Jobs<'a, 'c> {
    /// Copies from one tree to another.
    pub(super) fn of_trees(
        source: Tree,
        destination: Tree,
        how: &How,
        console: &'a Console<'c>,
        what: &'static str,
    ) -> Self {
        let (is_dry, is_json) = (how.dryrun, how.json);
        Self { source: Some(source), destination, deletes: false, is_dry, is_json, console, what }
    }

    /// Does all of them. What fails is reported, and the others are done nevertheless, unless nothing more can be done.
    pub(super) fn run(&self, jobs: impl Iterator<Item = Result<Job>>) -> Result<i32, Failure> {
        let work = Work::new(self);
        let mut given = work.pass(jobs);
        work.remove_emptied();
        let blocked = std::mem::take(&mut *lock(&work.blocked));
        if given.is_ok() {
            given = work.pass(blocked.into_iter().map(|item| Ok(Job::CopyLast(item))));
        }
        work.live.clear();
        if let Some(signal) = Guard::caught() {
            let done = files(work.files.load(Relaxed));
            return Err(Failure::interrupted(signal, &format!("{done} done")));
        }
        self.say(&work);
        let (many, why) = *lock(&work.not_compared);
        if many > 0 {
            self.console.say(format!("note: {}: {why}\n", files(many)));
        }
        given?;
        match work.ended.into_inner() {
            Some(error) => Err(error.into()),
            None => Ok(i32::from(work.failed.load(Relaxed) > 0)),
        }
    }

    fn say(&self, work: &Work<'_, '_>) {
        let [done, bytes, failed] = [&work.files, &work.bytes, &work.failed].map(|count| count.load(Relaxed));
        let seconds = work.started.elapsed().as_secs_f64();
        let dry = if self.is_dry { " would be done" } else { "" };
        let failures = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let rest = if work.ended.get().is_some() { ", the rest was not tried" } else { "" };
        let (done, bytes) = (files(done), forebay_bench::text::bytes(bytes));
        let what = self.what;
        self.console.say(format!("{what}: {done}, {bytes}{dry} in {seconds:.2} s{failures}{rest}\n"));
    }

    /// One line for a file that was done.
    pub(super) fn line(&self, action: &str, source: Option<&str>, destination: &str, moved: Option<&Moved>) {
        if self.is_json {
            let bytes = moved.map(|moved| moved.bytes);
            let line = json!({
                "action": action, "source": source, "destination": destination, "bytes": bytes, "dryrun": self.is_dry
            });
            return self.console.line(with_sites(line, moved.map_or(&[], |moved| &moved.sites)));
        }
        let dry = if self.is_dry { "(dryrun) " } else { "" };
        let from = source.map_or(String::new(), |source| format!("{} to ", forebay_error::plain(source)));
        self.console.line(format!("{dry}{action}: {from}{}", forebay_error::plain(destination)));
    }
}

impl<'a, 'c> Work<'a, 'c> {
    fn new(jobs: &'a Jobs<'a, 'c>) -> Self {
        Self {
            jobs,
            session: OnceLock::new(),
            slots: Slots::new(),
            root: OnceLock::new(),
            folder: Mutex::default(),
            blocked: Mutex::default(),
            emptied: Mutex::default(),
            live: ProgressLine::new(jobs.what),
            started: Instant::now(),
            files: AtomicU64::default(),
            bytes: AtomicU64::default(),
            failed: AtomicU64::default(),
            not_compared: Mutex::default(),
            failed_in_row: AtomicU64::default(),
            ended: OnceLock::new(),
        }
    }

    /// Has the threads do these jobs, and waits for them.
    fn pass(&self, jobs: impl Iterator<Item = Result<Job>>) -> Result<()> {
        let (sender, receiver) = sync_channel::<Job>(QUEUED);
        let receiver = &Mutex::new(receiver);
        thread::scope(|scope| {
            let sender = sender;
            let threads = if self.jobs.is_dry { 1 } else { THREADS };
            for _ in 0..threads {
                scope.spawn(move || self.take(receiver));
            }
            for job in jobs {
                if self.is_over() || sender.send(job?).is_err() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Does jobs until there are no more.
    fn take(&self, receiver: &Mutex<Receiver<Job>>) {
        loop {
            // Its guard is gone before the job is done.
            let job = lock(receiver).recv();
            let Ok(job) = job else { return };
            // The queue is emptied, so that its other end ends.
            if self.is_over() {
                continue;
            }
            let (many, done) = match job {
                Job::Copy(item) => (1, self.copy(&item, false)),
                Job::Compare(item, is_newer) => (1, self.compare(&item, is_newer)),
                Job::CopyLast(item) => (1, self.copy(&item, true)),
                Job::Remove(names) => (names.len() as u64, self.remove(&names)),
                Job::Report(error) => (1, Err(error)),
            };
            match done {
                Ok(()) => self.failed_in_row.store(0, Relaxed),
                Err(_) if Guard::caught().is_some() => {}
                Err(error) => self.fail(many, &error),
            }
            self.live.show(self.bytes.load(Relaxed), None, self.started.elapsed());
        }
    }

    fn is_over(&self) -> bool {
        Guard::caught().is_some() || self.ended.get().is_some()
    }

    /// Nothing more is tried. The error is that of the command.
    pub(super) fn end(&self, error: &Error) {
        let _ = self.ended.set(error.clone());
    }

    /// Counts and reports files that were not done.
    pub(super) fn fail(&self, many: u64, error: &Error) {
        self.failed.fetch_add(many, Relaxed);
        let in_row = if is_of_server(error) { self.failed_in_row.fetch_add(1, Relaxed) + 1 } else { 0 };
        if self.jobs.is_json {
            self.jobs
                .console
                .line(json!({ "action": "fail", "error": error.to_string(), "hints": error.hints() }));
        }
        if in_row >= MOST_FAILURES || matches!(error.errno(), libc::ENOSPC | libc::EDQUOT | libc::EROFS) {
            self.end(error);
        } else {
            self.jobs.console.error(error);
        }
    }
}

/// A line of JSON with the bytes of each site, where sites have names.
pub(super) fn with_sites(mut line: Value, sites: &[(String, u64)]) -> Value {
    if !sites.is_empty() {
        line["sites"] =
            sites.iter().map(|(name, bytes)| (name.clone(), json!(bytes))).collect::<Map<_, _>>().into();
    }
    line
}

/// Whether no reply came, or only such as may pass: the next call will hardly do better.
fn is_of_server(error: &Error) -> bool {
    let has_status = error.context().iter().any(|(name, _)| *name == "status");
    match error.kind() {
        ErrorKind::Io | ErrorKind::Timeout => true,
        ErrorKind::Busy => has_status,
        _ => false,
    }
}

fn files(many: u64) -> String {
    format!("{many} file{}", if many == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_server_in_a_row_end_the_command() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let console = Console::new(&mut out, &mut err);
        let jobs = Jobs {
            source: None,
            destination: Tree::Folder(PathBuf::new()),
            deletes: false,
            is_dry: false,
            is_json: false,
            console: &console,
            what: "sync",
        };
        let error = |kind| Error::new(kind, "cannot");
        let work = Work::new(&jobs);
        for _ in 0..2 * MOST_FAILURES {
            work.fail(1, &error(ErrorKind::PermissionDenied));
        }
        for _ in 1..MOST_FAILURES {
            work.fail(1, &error(ErrorKind::Busy).with("status", 503));
        }
        assert!(!work.is_over());
        work.fail(1, &error(ErrorKind::Timeout));
        assert!(work.is_over());
        assert_eq!(work.failed.load(Relaxed), 3 * MOST_FAILURES);
        let work = Work::new(&jobs);
        work.fail(1, &Error::from_errno(libc::ENOSPC, "cannot write"));
        assert!(work.is_over());
    }
}
