//! Measures what is missing, and keeps the report up to date.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use crate::folder::{self, Folder};
use crate::made::{Content, Made};
use crate::model::{Command, FileFacts, Report, Row, State, VERSION, Why};
use crate::order::{Order, Preset};
use crate::peers;
use crate::plan::{self, Scale, Setup};
use crate::runner::{Outcome, Runner};
use crate::targets::{Data, FOLDER_NAME, Target};
use crate::work::{MODEL, Peer, Program, Work, typed};
use crate::{machine, made, pairing, presets, render, resume, spec};

/// How a report ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every row is done, failed or absent.
    Complete,
    /// It was stopped; rows are left.
    Stopped,
    /// The time limit passed; rows are left.
    OutOfTime,
}

/// What [`run`] did.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub ended: Ended,
    /// The report.
    pub report: Report,
    /// Runs that this call made.
    pub runs: usize,
    /// Files that were made and are still there, for the same command to go on with.
    pub left: Vec<PathBuf>,
}

/// Where a report is.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// The table.
    pub table: &'a str,
    /// The row.
    pub row: &'a str,
    /// Which of its runs, from 1 on.
    pub run: usize,
    /// How many it has.
    pub of: usize,
    /// Runs of the report that are done.
    pub done: usize,
    /// Runs of the report.
    pub all: usize,
    /// How long the rest takes, about.
    pub left: Duration,
}

/// The work that a call is going to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Rows that are to be measured.
    pub rows: usize,
    /// Runs of these rows.
    pub runs: usize,
    /// How long that takes, about.
    pub time: Duration,
}

/// Observes a report.
pub trait Watch {
    /// Whether to stop: asked between and during runs.
    fn stopped(&self) -> bool;
    /// The work ahead.
    fn planned(&self, planned: &Planned);
    /// A file to measure is being made.
    fn making(&self, path: &Path, size: u64);
    /// A run begins.
    fn begins(&self, progress: &Progress<'_>);
    /// A row has all its runs, failed, or is absent.
    fn row(&self, table: &crate::model::Table, row: &Row);
}

/// How long a run may go on after the time limit: a 24th of the limit, and at least five seconds.
const MAX_OVERTIME: (u32, Duration) = (24, Duration::from_secs(5));

/// Shortest time limit that the hint names where a file could not be made in time.
const MIN_TIME_LIMIT: Duration = Duration::from_mins(1);

/// A run of the schedule: table, row.
type Turn = (usize, usize);

/// Makes a report, or continues the one in the folder.
pub fn run(order: &Order, watch: &dyn Watch) -> Result<Finished> {
    let targets = order.paths.iter().map(|path| Target::look_for(path)).collect::<Result<Vec<_>>>()?;
    check_urls(order, &targets)?;
    let paths: Vec<_> = targets.iter().map(|target| target.given.clone()).collect();
    let machine = machine::this(&order.devices, &paths)?;
    let virtual_disks = machine::virtual_disks(&machine);
    let (pairs, how) = pairing::pairs(&machine.devices, &targets, order.pairing);
    let setup = Setup {
        pairs,
        devices: order.devices.len(),
        scale: scale(order, &targets),
        server: order.server.clone(),
        on_gpu: machine.devices.first().is_some_and(|device| !device.is_host),
    };
    check_server(order.server.as_deref())?;
    let text = order.spec.as_deref().map(spec::read).transpose()?;
    let mut planned: Vec<plan::Planned> =
        order.presets.iter().flat_map(|preset| presets::plan(*preset, &setup)).collect();
    if let Some((path, text)) = order.spec.as_ref().zip(text.as_ref()) {
        planned.push(spec::plan(path, text, &setup)?);
    }
    if !order.hosts.is_empty() {
        for one in &mut planned {
            one.run_on(&order.hosts);
        }
    }
    if !setup.on_gpu {
        planned.iter_mut().for_each(plan::Planned::leave_unjudged);
    }
    plan::check_units(&planned)?;
    let command = command(order, &paths, text);
    let scale = setup.scale;
    let folder = Folder::open(&order.out)?;
    let (tables, works) = planned.into_iter().map(|one| (one.table, one.works)).unzip();
    let mut report = Report {
        version: VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        build: machine::build(),
        title: order.title.clone(),
        note: order.note.clone(),
        begun: machine::now(),
        updated: machine::now(),
        machine,
        earlier: Vec::new(),
        command,
        files: Vec::new(),
        notes: how.into_iter().chain(virtual_disks).chain(on_hosts(&order.hosts)).collect(),
        tables,
    };
    if let Some(old) = folder.load(order.again)? {
        report.files.clone_from(&old.files);
        if !order.again {
            folder::check_same(&old, &report, order.accept_changes, &order.out)?;
            resume::adopt(&mut report, old);
        }
    }
    folder.save(&report)?;
    let mut maker = ReportRun {
        order,
        scale,
        folder,
        report,
        works,
        watch,
        held: Vec::new(),
        made: Cell::new(0),
        runs: 0,
        started: Instant::now(),
    };
    let ended = maker.run(&targets).and_then(|ended| maker.finish(ended).map(|()| ended));
    let left: Vec<_> = maker.held.iter().map(|made| made.path.clone()).collect();
    match ended {
        Ok(ended) => Ok(Finished { ended, report: maker.report, runs: maker.runs, left }),
        Err(error) => Err(left.iter().fold(error, |error, path| {
            error.hint(format!("{} is left for the same command; it can be removed", path.display()))
        })),
    }
}

/// Other presets compare with raw calls, or load models from a directory.
fn check_urls(order: &Order, targets: &[Target]) -> Result<()> {
    let Some(target) = targets.iter().find(|target| target.is_url()) else { return Ok(()) };
    if order.presets.iter().all(|preset| *preset == Preset::NfsRdma) {
        return Ok(());
    }
    let url = target.given.display().to_string();
    let out = order.out.display().to_string();
    let words = ["forebay", "report", "nfs-rdma", &url, "-o", &out].map(str::to_owned);
    Err(Error::new(ErrorKind::InvalidInput, "files by URL are measured by the preset nfs-rdma alone")
        .with("url", &url)
        .hint(typed(&words)))
}

fn scale(order: &Order, targets: &[Target]) -> Scale {
    let usual = Scale::of(order.extent, forebay_config::allowed_cpus());
    let given = targets.first().filter(|target| !target.made).map(Target::length);
    Scale {
        seconds: order.seconds.unwrap_or(usual.seconds),
        short: order.seconds.unwrap_or(usual.short),
        repeat: order.repeat.unwrap_or(usual.repeat).max(1),
        asked: order.seconds,
        size: given.or(order.size).unwrap_or(usual.size),
        ..usual
    }
}

fn command(order: &Order, paths: &[std::path::PathBuf], spec: Option<String>) -> Command {
    Command {
        presets: order.presets.iter().map(|preset| preset.name().to_owned()).collect(),
        spec,
        devices: order.devices.iter().map(ToString::to_string).collect(),
        paths: paths.iter().map(|path| path.display().to_string()).collect(),
        extent: order.extent.name().to_owned(),
        server: order.server.clone(),
        hosts: order.hosts.clone(),
        size: order.size,
        repeat: order.repeat,
        seconds: order.seconds,
        pairing: order.pairing.name().to_owned(),
    }
}

/// A note on the machines that rows run on.
fn on_hosts(hosts: &[String]) -> Option<String> {
    (!hosts.is_empty()).then(|| {
        format!(
            "Each row runs on {} at the same time. Bytes, I/Os and CPU are sums, times and percentiles those of the slowest \
             host; no run is pinned to one CPU. The page describes the machine that made the files and started the runs.",
            hosts.join(", ")
        )
    })
}

fn check_server(server: Option<&str>) -> Result<()> {
    let Some(name) = server else { return Ok(()) };
    match name.strip_prefix("ssh:") {
        Some(host) if !host.is_empty() && !host.starts_with('-') => Ok(()),
        _ => Err(Error::new(ErrorKind::InvalidInput, format!("not a server: {name:?}"))
            .hint("name it as --server ssh:HOST")),
    }
}

fn no_server(why: Why) -> Error {
    let error = Error::new(ErrorKind::Io, format!("cannot read the server's CPU: {}", why.text));
    why.hint.into_iter().fold(error, Error::hint)
}

struct ReportRun<'a> {
    order: &'a Order,
    scale: Scale,
    folder: Folder,
    report: Report,
    works: Vec<Vec<Option<Work>>>,
    watch: &'a dyn Watch,
    /// Files that were made.
    held: Vec<Made>,
    /// How many were begun.
    made: Cell<usize>,
    runs: usize,
    started: Instant,
}

impl ReportRun<'_> {
    /// Runs what is missing. Rows of a table that are compared take turns, so that changes of the machine affect all of
    /// them.
    fn run(&mut self, targets: &[Target]) -> Result<Ended> {
        let mut schedule = self.schedule();
        if schedule.is_empty() {
            self.note_sizes();
            return Ok(Ended::Complete);
        }
        self.watch.planned(&self.planned(&schedule));
        let (watch, is_late) = (self.watch, self.is_late());
        let stopped = || watch.stopped() || is_late();
        let mut runner = Runner::new(self.order, &stopped);
        if schedule.iter().any(|place| self.work(*place).is_some_and(|work| work.server)) {
            runner.check_server().map_err(no_server)?;
        }
        if !self.make_files(targets)? {
            return Ok(self.ended());
        }
        self.note_sizes();
        let all: usize = self.report.rows().map(|row| row.wanted).sum();
        let mut pace = PaceEstimate { expected: 0.0, taken: 0.0 };
        schedule.reverse();
        while let Some(place) = schedule.pop() {
            let Some(work) = self.work(place).filter(|_| self.row(place).is_waiting()).cloned() else {
                continue;
            };
            let ceiling = self.row(place).measures_ceiling(self.row(place).runs.len());
            let takes = work.takes(&self.scale, ceiling);
            self.begins(place, all, pace.left(takes + self.reckon(&schedule)));
            let began = Instant::now();
            let outcome = runner.run(&work, ceiling, takes);
            pace.add(takes, began.elapsed());
            if !self.keep(place, outcome)? {
                return Ok(self.ended());
            }
            if self.watch.stopped() && !schedule.is_empty() {
                return Ok(Ended::Stopped);
            }
            if self.order.limit.is_some_and(|limit| self.started.elapsed() >= limit)
                && self.report.waiting() > 0
            {
                return Ok(Ended::OutOfTime);
            }
        }
        Ok(Ended::Complete)
    }

    /// Why it was ended before its end.
    fn ended(&self) -> Ended {
        if self.watch.stopped() { Ended::Stopped } else { Ended::OutOfTime }
    }

    /// Whether a run, or the making of a file, has gone on for too long behind the time limit.
    fn is_late(&self) -> impl Fn() -> bool + use<> {
        let (started, limit) = (self.started, self.order.limit);
        let end = |limit: Duration| limit + (limit / MAX_OVERTIME.0).max(MAX_OVERTIME.1);
        move || limit.is_some_and(|limit| started.elapsed() > end(limit))
    }

    fn planned(&self, schedule: &[Turn]) -> Planned {
        let rows: std::collections::BTreeSet<_> = schedule.iter().collect();
        let is_busy = |place: &Turn| self.work(*place).is_some_and(|work| work.load == Some(true));
        let filling = if schedule.iter().any(is_busy) { self.scale.filling() } else { 0.0 };
        let seconds = self.reckon(schedule) + self.scale.making() + filling;
        Planned { rows: rows.len(), runs: schedule.len(), time: plan::duration(seconds) }
    }

    /// About how many seconds these runs take.
    fn reckon(&self, schedule: &[Turn]) -> f64 {
        let mut before = std::collections::HashMap::new();
        let takes = schedule.iter().filter_map(|place| {
            let row = self.row(*place);
            let run = before.entry(*place).or_insert(row.runs.len());
            *run += 1;
            Some(self.work(*place)?.takes(&self.scale, row.measures_ceiling(*run - 1)))
        });
        takes.sum()
    }

    /// The missing runs: within a group of rows that are compared, round by round.
    fn schedule(&self) -> Vec<Turn> {
        let mut places = Vec::new();
        for (index, table) in self.report.tables.iter().enumerate() {
            let groups = groups(table);
            for group in groups {
                let rounds = group.iter().map(|row| table.rows[*row].wanted).max().unwrap_or(0);
                for round in 0..rounds {
                    let missing = group.iter().filter(|row| {
                        let row = &table.rows[**row];
                        row.is_waiting() && round >= row.runs.len() && round < row.wanted
                    });
                    places.extend(missing.map(|row| (index, *row)));
                }
            }
        }
        places
    }

    fn work(&self, (table, row): Turn) -> Option<&Work> {
        self.works.get(table)?.get(row)?.as_ref()
    }

    fn row(&self, (table, row): Turn) -> &Row {
        &self.report.tables[table].rows[row]
    }

    fn begins(&self, place: Turn, all: usize, left: Duration) {
        let row = self.row(place);
        self.watch.begins(&Progress {
            table: &self.report.tables[place.0].id,
            row: &row.id,
            run: row.runs.len() + 1,
            of: row.wanted,
            done: self.report.rows().map(|row| row.runs.len()).sum(),
            all,
            left,
        });
    }

    /// Puts the outcome of a run into the report; `false` if it was stopped.
    fn keep(&mut self, (table, row): Turn, outcome: Outcome) -> Result<bool> {
        let one = &mut self.report.tables[table].rows[row];
        match outcome {
            Outcome::Stopped => return Ok(false),
            Outcome::Done(mut run) => {
                run.place = self.report.earlier.len();
                one.runs.push(*run);
                if one.runs.len() >= one.wanted {
                    one.state = State::Done;
                }
            }
            Outcome::Failed(why) => one.state = State::Failed { reason: why.text, hint: why.hint },
            Outcome::Absent(reason) => one.state = State::Absent { reason },
        }
        self.runs += 1;
        self.report.updated = machine::now();
        self.folder.save(&self.report)?;
        let table = &self.report.tables[table];
        if !table.rows[row].is_waiting() {
            self.watch.row(table, &table.rows[row]);
        }
        Ok(true)
    }

    /// Makes what rows read, and holds it; `false` if it was stopped.
    fn make_files(&mut self, targets: &[Target]) -> Result<bool> {
        let models = self.models();
        let own = self.files_of_workers();
        let of_workers = own.iter().map(|(_, path, _)| path);
        let paths: Vec<&PathBuf> =
            targets.iter().map(|target| &target.file).chain(&models).chain(of_workers).collect();
        self.report.files.retain(|one| paths.contains(&&PathBuf::from(&one.path)));
        let mut seen = std::collections::BTreeSet::new();
        let mut model_size = None;
        for target in targets.iter().filter(|target| seen.insert(&target.file)) {
            if !target.made {
                self.note_file(&target.file, target.length(), None);
                continue;
            }
            let before = self.file(&target.file).map(|one| one.size);
            let size = target.size(self.order.size, before, self.scale.size);
            model_size.get_or_insert(size / 2);
            if self.is_shared(&target.file) && !self.make(&target.file, &Data(size))? {
                return Ok(false);
            }
        }
        for (folder, path, bytes) in own {
            made::folder(&folder)?;
            if !self.make(&path, &Data(bytes))? {
                return Ok(false);
            }
        }
        for path in &models {
            if !self.make(path, &peers::Model::new(model_size.unwrap_or(0)))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a file, and writes down which it is; `false` if it was stopped.
    fn make(&mut self, path: &Path, content: &dyn Content) -> Result<bool> {
        let (watch, size, is_late) = (self.watch, content.len(), self.is_late());
        let known = self.file(path).and_then(|one| one.inode);
        let making = || {
            self.made.set(self.made.get() + 1);
            watch.making(path, size);
        };
        let Some(made) = Made::new(path, content, known, &making, &|| watch.stopped() || is_late())? else {
            // Had another file been made before, the same command would get further.
            return if watch.stopped() || self.made.get() > 1 {
                Ok(false)
            } else {
                Err(self.too_short(path))
            };
        };
        self.note_file(path, size, made.inode());
        self.held.push(made);
        self.folder.save(&self.report)?;
        Ok(true)
    }

    /// The time limit passed while the first file was made: the same command would end there again.
    fn too_short(&self, path: &Path) -> Error {
        let limit = self.order.limit.unwrap_or_default();
        let more = (4 * limit).max(MIN_TIME_LIMIT).as_secs();
        Error::new(ErrorKind::Timeout, "cannot make the file within the time limit")
            .with("path", path.display())
            .with("limit", format!("{} s", limit.as_secs_f64()))
            .hint(format!("give it more time (--for {more}s), a smaller --size, or a file that is there"))
    }

    fn file(&self, path: &Path) -> Option<&FileFacts> {
        self.report.files.iter().find(|one| Path::new(&one.path) == path)
    }

    fn note_file(&mut self, path: &Path, size: u64, inode: Option<u64>) {
        let facts = FileFacts { path: path.display().to_string(), size, inode };
        match self.report.files.iter_mut().find(|one| one.path == facts.path) {
            Some(one) => *one = facts,
            None => self.report.files.push(facts),
        }
    }

    /// Says how large the files are.
    fn note_sizes(&mut self) {
        let folder = |path: &str| {
            Path::new(path).parent().filter(|one| one.ends_with(FOLDER_NAME)).map(Path::to_owned)
        };
        let mut sizes = std::collections::BTreeMap::new();
        for one in &self.report.files {
            let path = folder(&one.path).unwrap_or_else(|| one.path.clone().into());
            sizes.entry((path, one.size)).and_modify(|count| *count += 1).or_insert(1);
        }
        let sentence = |((path, size), count): ((PathBuf, u64), i32)| {
            let files = if count > 1 { format!("{count} files of ") } else { String::new() };
            format!("{} has {files}{}.", path.display(), forebay_bench::text::bytes(size))
        };
        self.report.notes.extend(sizes.into_iter().map(sentence));
    }

    /// Whether rows read a target's one file.
    fn is_shared(&self, file: &Path) -> bool {
        self.works.iter().flatten().flatten().any(|work| match &work.run {
            Program::Bench(bench) => {
                bench.each.is_none() && bench.jobs.iter().any(|job| job.target.file == file)
            }
            Program::Peer(peer) => peer.file.file == file,
            Program::Objects(_) => false,
        })
    }

    /// Files that workers have of their own: the folder, the file, its bytes.
    fn files_of_workers(&self) -> std::collections::BTreeSet<(PathBuf, PathBuf, u64)> {
        let mut all = std::collections::BTreeSet::new();
        for work in self.works.iter().flatten().flatten() {
            let Program::Bench(bench) = &work.run else { continue };
            let Some(bytes) = bench.each else { continue };
            for target in bench.jobs.iter().map(|job| &job.target) {
                all.extend((0..bench.threads).map(|worker| (target.folder(), target.file_of(worker), bytes)));
            }
        }
        all
    }

    /// Models that rows load, in the directories that were given.
    fn models(&self) -> std::collections::BTreeSet<PathBuf> {
        let works = self.works.iter().flatten().flatten();
        let models = works.filter_map(|work| match &work.run {
            Program::Peer(Peer { file, .. }) if file.made && file.file == file.given.join(MODEL) => {
                Some(file.file.clone())
            }
            _ => None,
        });
        models.collect()
    }

    /// Renders the report; removes the files that were made, if nothing is left to measure.
    fn finish(&mut self, ended: Ended) -> Result<()> {
        if ended == Ended::Complete && !self.held.is_empty() {
            self.held.retain(|made| !made.remove());
            // A folder that is not empty has files of others.
            self.files_of_workers().iter().for_each(|(folder, ..)| drop(std::fs::remove_dir(folder)));
            let held = |path: &str| self.held.iter().any(|made| made.path == Path::new(path));
            self.report.files.iter_mut().filter(|one| !held(&one.path)).for_each(|one| one.inode = None);
            self.folder.save(&self.report)?;
        }
        let [markdown, html, csv] = folder::PAGE_FILES;
        self.folder.write(csv, &render::csv(&self.report))?;
        self.folder.write(markdown, &render::markdown(&self.report))?;
        self.folder.write(html, &render::html(&self.report))
    }
}

/// Groups of rows that are compared with each other: they differ only in the label that ratios are of.
fn groups(table: &crate::model::Table) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Vec<&String>, Vec<usize>)> = Vec::new();
    let axis = table.ratio.as_ref().map(|ratio| ratio.axis);
    for (index, row) in table.rows.iter().enumerate() {
        let key: Vec<_> = row
            .labels
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != axis)
            .map(|(_, label)| label)
            .collect();
        match groups.iter_mut().find(|(known, _)| axis.is_some() && *known == key) {
            Some((_, rows)) => rows.push(index),
            None => groups.push((key, vec![index])),
        }
    }
    groups.into_iter().map(|(_, rows)| rows).collect()
}

/// Estimates the time left, from how much longer than expected the runs so far took.
struct PaceEstimate {
    expected: f64,
    taken: f64,
}

impl PaceEstimate {
    fn add(&mut self, expected: f64, taken: Duration) {
        self.expected += expected;
        self.taken += taken.as_secs_f64();
    }

    fn left(&self, expected: f64) -> Duration {
        let factor = if self.expected > 0.0 { self.taken / self.expected } else { 1.0 };
        plan::duration(expected * factor)
    }
}
