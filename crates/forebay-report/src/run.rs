//! Measures what is missing, and keeps the report up to date.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use crate::folder::{self, Folder};
use crate::made::{Content, Made};
use crate::model::{Command, FileFacts, Report, Row, State, VERSION};
use crate::order::{Extent, Order};
use crate::peers;
use crate::plan::{Planned, Scale, Setup};
use crate::runner::{Outcome, Runner};
use crate::targets::{Data, Target};
use crate::work::{MODEL, Peer, Program, Work};
use crate::{machine, pairing, presets, render, spec};

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

/// Who looks on.
pub trait Watch {
    /// Whether to stop: asked between and during runs.
    fn stopped(&self) -> bool;
    /// A file to measure is being made.
    fn making(&self, path: &Path, size: u64);
    /// A run begins.
    fn begins(&self, progress: &Progress<'_>);
    /// A row has all its runs, failed, or is absent.
    fn row(&self, table: &crate::model::Table, row: &Row);
}

/// A run of the schedule: table, row.
type Place = (usize, usize);

/// Makes a report, or goes on with the one that is in the folder.
pub fn run(order: &Order, watch: &dyn Watch) -> Result<Finished> {
    let targets = order.paths.iter().map(|path| Target::find(path)).collect::<Result<Vec<_>>>()?;
    let paths: Vec<_> = targets.iter().map(|target| target.given.clone()).collect();
    let machine = machine::this(&order.devices, &paths)?;
    let (pairs, how) = pairing::pairs(&machine.devices, &targets, order.pairing);
    let setup = Setup {
        pairs,
        scale: scale(order),
        server: order.server.clone(),
        on_gpu: machine.devices.first().is_some_and(|device| !device.is_host),
    };
    check_server(order.server.as_deref())?;
    let text = order.spec.as_deref().map(spec::read).transpose()?;
    let mut planned: Vec<Planned> =
        order.presets.iter().flat_map(|preset| presets::plan(*preset, &setup)).collect();
    if let Some((path, text)) = order.spec.as_ref().zip(text.as_ref()) {
        planned.push(spec::plan(path, text, &setup)?);
    }
    let command = command(order, &paths, text);
    let folder = Folder::open(&order.out)?;
    let (tables, works) = planned.into_iter().map(|one| (one.table, one.works)).unzip();
    let mut report = Report {
        version: VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        begun: machine::now(),
        updated: machine::now(),
        machine,
        command,
        files: Vec::new(),
        notes: how.into_iter().collect(),
        tables,
    };
    if let Some(old) = folder.load(order.again)? {
        report.files.clone_from(&old.files);
        if !order.again {
            folder::check_same(&old, &report, &order.out)?;
            adopt(&mut report, old);
        }
    }
    folder.save(&report)?;
    let mut maker =
        Maker { order, folder, report, works, watch, held: Vec::new(), runs: 0, started: Instant::now() };
    let ended = maker.run(&targets).and_then(|ended| maker.finish(ended).map(|()| ended));
    let left: Vec<_> = maker.held.iter().map(|made| made.path.clone()).collect();
    match ended {
        Ok(ended) => Ok(Finished { ended, report: maker.report, runs: maker.runs, left }),
        Err(error) => Err(left.iter().fold(error, |error, path| {
            error.hint(format!("{} is left for the same command; it can be removed", path.display()))
        })),
    }
}

fn scale(order: &Order) -> Scale {
    let (seconds, short, repeat) = match order.extent {
        Extent::Quick => (0.25, 0.25, 1),
        Extent::Default | Extent::Full => (1.0, 0.5, 3),
    };
    Scale {
        extent: order.extent,
        seconds: order.seconds.unwrap_or(seconds),
        short: order.seconds.unwrap_or(short),
        repeat: order.repeat.unwrap_or(repeat).max(1),
        cpus: forebay_config::allowed_cpus(),
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
        size: order.size,
        repeat: order.repeat,
        seconds: order.seconds,
        pairing: order.pairing.name().to_owned(),
    }
}

fn check_server(server: Option<&str>) -> Result<()> {
    let Some(name) = server else { return Ok(()) };
    match name.strip_prefix("ssh:") {
        Some(host) if !host.is_empty() && !host.starts_with('-') => Ok(()),
        _ => Err(Error::new(ErrorKind::InvalidInput, format!("not a server: {name:?}"))
            .hint("name it as --server ssh:HOST")),
    }
}

/// Takes over what an earlier call measured. Failed rows, and those whose program was not here, are tried again once no
/// other is left.
fn adopt(report: &mut Report, old: Report) {
    let again = old.waiting() == 0;
    report.begun = old.begun;
    report.updated = old.updated;
    let mut rows: std::collections::HashMap<(String, String), Row> = old
        .tables
        .into_iter()
        .flat_map(|table| table.rows.into_iter().map(move |row| ((table.id.clone(), row.id.clone()), row)))
        .collect();
    for table in &mut report.tables {
        for row in &mut table.rows {
            let Some(old) = rows.remove(&(table.id.clone(), row.id.clone())) else { continue };
            row.runs = old.runs;
            // Rows that the plan leaves out stay so.
            if row.is_waiting() && !(again && old.state != State::Done) {
                row.state = old.state;
            }
        }
    }
}

struct Maker<'a> {
    order: &'a Order,
    folder: Folder,
    report: Report,
    works: Vec<Vec<Option<Work>>>,
    watch: &'a dyn Watch,
    /// Files that were made.
    held: Vec<Made>,
    runs: usize,
    started: Instant,
}

impl Maker<'_> {
    /// Runs what is missing. Rows of a table that are compared take turns, so that what the machine does meanwhile meets all.
    fn run(&mut self, targets: &[Target]) -> Result<Ended> {
        let mut schedule = self.schedule();
        if schedule.is_empty() {
            self.note_sizes();
            return Ok(Ended::Complete);
        }
        if !self.make_files(targets)? {
            return Ok(Ended::Stopped);
        }
        self.note_sizes();
        let all: usize = self.report.rows().map(|row| row.wanted).sum();
        let watch = self.watch;
        let stopped = || watch.stopped();
        let mut runner = Runner::new(self.order, &stopped);
        let mut pace = Pace { expected: 0.0, taken: 0.0 };
        schedule.reverse();
        while let Some(place) = schedule.pop() {
            let Some(work) = self.work(place).filter(|_| self.row(place).is_waiting()).cloned() else {
                continue;
            };
            let rest =
                schedule.iter().filter_map(|place| Some(self.work(*place)?.takes)).sum::<f64>() + work.takes;
            self.begins(place, all, pace.left(rest));
            let began = Instant::now();
            let first = self.row(place).runs.is_empty();
            let outcome = runner.run(&work, first);
            pace.add(work.takes, began.elapsed());
            if !self.keep(place, outcome)? {
                return Ok(Ended::Stopped);
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

    /// The missing runs: within a group of rows that are compared, round by round.
    fn schedule(&self) -> Vec<Place> {
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

    fn work(&self, (table, row): Place) -> Option<&Work> {
        self.works.get(table)?.get(row)?.as_ref()
    }

    fn row(&self, (table, row): Place) -> &Row {
        &self.report.tables[table].rows[row]
    }

    fn begins(&self, place: Place, all: usize, left: Duration) {
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
    fn keep(&mut self, (table, row): Place, outcome: Outcome) -> Result<bool> {
        let one = &mut self.report.tables[table].rows[row];
        match outcome {
            Outcome::Stopped => return Ok(false),
            Outcome::Done(run) => {
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
        let paths: Vec<&PathBuf> = targets.iter().map(|target| &target.file).chain(&models).collect();
        self.report.files.retain(|one| paths.contains(&&PathBuf::from(&one.path)));
        let mut seen = std::collections::BTreeSet::new();
        let mut model_size = None;
        for target in targets.iter().filter(|target| seen.insert(&target.file)) {
            if !target.made {
                self.note_file(&target.file, target.length(), None);
                continue;
            }
            let before = self.file(&target.file).map(|one| one.size);
            let size = target.size(self.order.size, before, self.default_size());
            model_size.get_or_insert(size / 2);
            if !self.make(&target.file, &Data(size))? {
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
        let (watch, size) = (self.watch, content.len());
        let known = self.file(path).and_then(|one| one.inode);
        let making = || watch.making(path, size);
        let Some(made) = Made::new(path, content, known, &making, &|| watch.stopped())? else {
            return Ok(false);
        };
        self.note_file(path, size, made.inode());
        self.held.push(made);
        self.folder.save(&self.report)?;
        Ok(true)
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
        let size = |one: &FileFacts| format!("{} has {}.", one.path, forebay_bench::text::bytes(one.size));
        self.report.notes.extend(self.report.files.iter().map(size));
    }

    fn default_size(&self) -> u64 {
        match self.order.extent {
            Extent::Quick => 256 << 20,
            Extent::Default => 4 << 30,
            Extent::Full => 8 << 30,
        }
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

    /// Writes what people read; removes what was made, if nothing is left to measure.
    fn finish(&mut self, ended: Ended) -> Result<()> {
        if ended == Ended::Complete && !self.held.is_empty() {
            self.held.retain(|made| !made.remove());
            let held = |path: &str| self.held.iter().any(|made| made.path == Path::new(path));
            self.report.files.iter_mut().filter(|one| !held(&one.path)).for_each(|one| one.inode = None);
            self.folder.save(&self.report)?;
        }
        let [markdown, html] = folder::PAGES;
        self.folder.write(markdown, &render::markdown(&self.report))?;
        self.folder.write(html, &render::html(&self.report))
    }
}

/// Rows that are compared with each other: they differ in the label that ratios are of. All others are alone.
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

/// How much longer runs take than was expected.
struct Pace {
    expected: f64,
    taken: f64,
}

impl Pace {
    fn add(&mut self, expected: f64, taken: Duration) {
        self.expected += expected;
        self.taken += taken.as_secs_f64();
    }

    fn left(&self, expected: f64) -> Duration {
        let factor = if self.expected > 0.0 { self.taken / self.expected } else { 1.3 };
        Duration::from_secs_f64(expected * factor)
    }
}
