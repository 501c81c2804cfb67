//! The plan: tables with empty rows, and the work of each row.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};

use crate::model::{Chart, ChartKind, Compared, Row, Source, State, Table};
use crate::order::Extent;
use crate::peers;
use crate::quantity::Quantity;
use crate::work::{Bench, Cache, Io, Job, Program, Work, typed};

/// How much is measured.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    pub(crate) extent: Extent,
    /// Seconds of a run.
    pub(crate) seconds: f64,
    /// Seconds of a run in tables of many rows.
    pub(crate) short: f64,
    /// Runs of a row.
    pub(crate) repeat: usize,
    /// Seconds of a run, where the command says so.
    pub(crate) asked: Option<f64>,
    /// CPUs of this machine.
    pub(crate) cpus: usize,
    /// Bytes of the file that is made.
    pub(crate) size: u64,
}

impl Scale {
    /// The defaults of an extent.
    pub(crate) fn of(extent: Extent, cpus: usize) -> Self {
        let (seconds, short, repeat, size) = match extent {
            Extent::Quick => (0.25, 0.25, 1, 256 << 20),
            Extent::Default | Extent::Full => (0.5, 0.2, 3, 4 << 30),
        };
        Self { extent, seconds, short, repeat, asked: None, cpus, size }
    }

    /// One of three values.
    pub(crate) fn pick<T>(&self, quick: T, middle: T, full: T) -> T {
        match self.extent {
            Extent::Quick => quick,
            Extent::Default => middle,
            Extent::Full => full,
        }
    }

    /// 4 KiB to 16 MiB: every power of two up to 256 KiB, where curves bend, then every second; or some of them.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let some = vec![12, 14, 16, 18, 20, 22, 24];
        let shifts: Vec<u32> =
            self.pick(vec![12, 16, 20], some, vec![12, 13, 14, 15, 16, 17, 18, 20, 22, 24]);
        shifts.into_iter().map(|shift| 1 << shift).collect()
    }
}

/// The inputs of presets.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// GPU–drive pairs; most presets use the first.
    pub(crate) pairs: Vec<Job>,
    /// Devices that were named.
    pub(crate) devices: usize,
    pub(crate) scale: Scale,
    pub(crate) server: Option<String>,
    /// Whether the first device is a GPU.
    pub(crate) on_gpu: bool,
}

/// A table with its work.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) table: Table,
    /// One for each row; `None` where the row is absent.
    pub(crate) works: Vec<Option<Work>>,
}

impl Scale {
    /// About how long it takes to make the file and a model of half its size, in seconds.
    pub(crate) fn making(&self) -> f64 {
        self.size as f64 * 1.5 / DRIVE_RATE
    }

    /// About how long it takes to fill the memory beside busy rows, in seconds.
    pub(crate) fn filling(&self) -> f64 {
        self.pick(0.0, FILL_SECONDS, FILL_SECONDS)
    }
}

impl Setup {
    /// `forebay bench` on the first pair.
    pub(crate) fn bench(&self, xfer: u8, io: Io, size: u64, threads: usize) -> Bench {
        Bench {
            jobs: self.pairs.first().cloned().into_iter().collect(),
            xfer,
            io,
            size,
            threads,
            cache: Cache::Cold,
            seconds: Some(self.scale.seconds),
            pass: 1,
            each: None,
            more: Vec::new(),
        }
    }

    /// The first pair's device, as torch names it.
    pub(crate) fn python_device(&self) -> String {
        match self.pairs.first() {
            Some(pair) if self.on_gpu => format!("cuda:{}", pair.device),
            _ => "cpu".to_owned(),
        }
    }

    /// A sentence on the device, where there is no GPU.
    pub(crate) fn note_of_host(&self) -> Option<String> {
        let note = "Device 0 is host memory here, since no GPU is in use: file and engine are real, the copy to a GPU is not there.";
        (!self.on_gpu).then(|| note.to_owned())
    }
}

/// Seconds of a `forebay bench` process outside its timed part: starting CUDA, allocating, dropping the cache.
const START_SECONDS: f64 = 0.7;
/// Bytes per second that a drive is taken to move, until a run has measured it.
const DRIVE_RATE: f64 = 2e9;
/// Seconds of a process that imports torch and starts CUDA.
const IMPORT_SECONDS: f64 = 6.0;
/// Seconds that filling the memory beside busy rows takes.
const FILL_SECONDS: f64 = 30.0;

impl Work {
    /// This, alone on the machine.
    pub(crate) fn bench(bench: Bench) -> Self {
        Self { run: Program::Bench(Box::new(bench)), cpu: None, load: None, server: false }
    }

    /// About how long a run takes, in seconds, with its ceiling if `ceiling`.
    pub(crate) fn takes(&self, scale: &Scale, ceiling: bool) -> f64 {
        let size = scale.size as f64;
        let (bench, pass) = match &self.run {
            Program::Peer(peer) => return IMPORT_SECONDS + size / 2.0 / DRIVE_RATE + peer.load as f64 * 0.2,
            // What is cold was written before.
            Program::Objects(row) => {
                let writes = 2.0 * row.work.total as f64 / DRIVE_RATE;
                return row.work.seconds + writes + START_SECONDS;
            }
            Program::Bench(bench) => (bench, bench.pass as f64),
        };
        let threads = (bench.threads * bench.jobs.len()) as f64;
        // Every thread finishes the I/O that it has begun.
        let timed = bench
            .seconds
            .map_or(size / DRIVE_RATE, |seconds| seconds.max(threads * bench.size as f64 / DRIVE_RATE));
        let ceiling = if ceiling && bench.has_ceiling(scale.extent) { timed.min(1.0) + 0.3 } else { 0.0 };
        let look = if self.load.is_some() { 0.5 } else { 0.0 };
        timed * pass + ceiling + look + START_SECONDS
    }
}

/// An estimated time; an estimate that overflows becomes the longest duration.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Rates of two tables can be compared only in one unit.
pub(crate) fn check_units(planned: &[Planned]) -> Result<()> {
    let mut units = planned.iter().flat_map(|one| one.table.units());
    let Some(first) = units.next() else { return Ok(()) };
    let Some(other) = units.find(|unit| *unit != first) else { return Ok(()) };
    let message = format!("two units of throughput in one report: {} and {}", first.title(), other.title());
    Err(Error::new(ErrorKind::InvalidInput, message).hint(
        "write gb_per_s for gib_per_s and mib_per_s in the spec, or measure it without presets, in one unit",
    ))
}

impl Planned {
    pub(crate) fn new(id: &str, title: &str, axes: &[&str], columns: &[Quantity]) -> Self {
        let table = Table {
            id: id.to_owned(),
            title: title.to_owned(),
            source: None,
            meaning: String::new(),
            notes: Vec::new(),
            axes: axes.iter().map(|axis| (*axis).to_owned()).collect(),
            columns: columns.to_vec(),
            ratio: None,
            rows: Vec::new(),
            charts: Vec::new(),
        };
        Self { table, works: Vec::new() }
    }

    pub(crate) fn source(mut self, short: &str, name: &str, hardware: &str, claims: &[&str]) -> Self {
        self.table.source = Some(Source {
            name: name.to_owned(),
            short: short.to_owned(),
            names: BTreeMap::new(),
            hardware: hardware.to_owned(),
            claims: claims.iter().map(|claim| (*claim).to_owned()).collect(),
        });
        self
    }

    /// The source's own name for one of this table's labels.
    pub(crate) fn called(mut self, label: &str, theirs: &str) -> Self {
        if let Some(source) = &mut self.table.source {
            source.names.insert(label.to_owned(), theirs.to_owned());
        }
        self
    }

    /// Adds a note with the length of runs, for sources that do not state theirs.
    pub(crate) fn note_lengths(&mut self) {
        let mut lengths: Vec<String> = Vec::new();
        for work in self.works.iter().flatten() {
            let Program::Bench(bench) = &work.run else { continue };
            let Some(seconds) = bench.seconds else { continue };
            if !lengths.contains(&format!("{seconds} s")) {
                lengths.push(format!("{seconds} s"));
            }
        }
        if !lengths.is_empty() {
            self.note(format!(
                "Runs take {}; the source does not state the length of its runs.",
                lengths.join(" or ")
            ));
        }
    }

    /// Types differ by copies to the GPU and by streams, which do not exist without a GPU. Only 0 and 6 remain
    /// different there: single calls and batches.
    pub(crate) fn leave_unjudged(&mut self) {
        let xfer = |row: usize| match self.works[row].as_ref().map(|work| &work.run) {
            Some(Program::Bench(bench)) => Some(bench.xfer),
            _ => None,
        };
        let of = |row: &Row| {
            let base = self.table.base_of(row)?;
            let at = |one: &Row| self.table.rows.iter().position(|other| other.id == one.id);
            let (own, base) = (xfer(at(row)?)?, xfer(at(base)?)?);
            let is_judged = own == base || [own, base].iter().all(|xfer| matches!(xfer, 0 | 6));
            (!is_judged).then(|| "no GPU".to_owned())
        };
        let whys: Vec<_> = self.table.rows.iter().map(of).collect();
        for (row, why) in self.table.rows.iter_mut().zip(whys) {
            row.unjudged = why;
        }
    }

    /// Runs each row on these machines at the same time, by ssh.
    pub(crate) fn run_on(&mut self, hosts: &[String]) {
        for (row, work) in self.table.rows.iter_mut().zip(&mut self.works) {
            let Some(one) = work else { continue };
            match &mut one.run {
                Program::Bench(bench) if one.load.is_none() => {
                    one.cpu = None;
                    bench.more.extend(["--hosts".to_owned(), hosts.join(",")]);
                    row.command = one.typed();
                }
                _ => {
                    let reason =
                        "measured on one machine only: make a report there without --hosts".to_owned();
                    (row.state, row.wanted, *work) = (State::Absent { reason }, 0, None);
                }
            }
        }
    }

    pub(crate) fn meaning(mut self, text: &str) -> Self {
        text.clone_into(&mut self.table.meaning);
        self
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.table.notes.push(text.into());
    }

    pub(crate) fn ratio(mut self, axis: usize, base: &str, quantities: &[Quantity]) -> Self {
        self.table.ratio = Some(Compared { axis, base: base.to_owned(), quantities: quantities.to_vec() });
        self
    }

    /// A chart; `only` names axes and values that it is of.
    pub(crate) fn chart(
        &mut self,
        title: &str,
        kind: ChartKind,
        (x, series): (usize, usize),
        only: &[(usize, &str)],
        y: Quantity,
    ) -> &mut Chart {
        let only = only.iter().map(|(axis, value)| (*axis, (*value).to_owned())).collect();
        let chart =
            Chart { title: title.to_owned(), kind, x, series, only, y, over: None, log: false, mark: None };
        self.table.charts.push(chart);
        let last = self.table.charts.len() - 1;
        &mut self.table.charts[last]
    }

    /// A row that runs `work`.
    pub(crate) fn row(&mut self, labels: &[&str], repeat: usize, work: Work) -> &mut Row {
        let state = match &work.run {
            Program::Bench(bench) => bench.absent().map(|reason| State::Absent { reason }),
            Program::Peer(_) | Program::Objects(_) => None,
        };
        let command = work.typed();
        self.works.push(state.is_none().then_some(work));
        let wanted = if state.is_none() { repeat } else { 0 };
        self.push(labels, command, wanted, state.unwrap_or(State::Waiting))
    }

    /// A row that does not apply to this machine.
    pub(crate) fn absent(&mut self, labels: &[&str], reason: &str) -> &mut Row {
        self.works.push(None);
        self.push(labels, String::new(), 0, State::Absent { reason: reason.to_owned() })
    }

    fn push(&mut self, labels: &[&str], command: String, wanted: usize, state: State) -> &mut Row {
        self.table.rows.push(Row {
            id: labels.join(" · "),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            command,
            published: BTreeMap::new(),
            at_most: Vec::new(),
            published_ratio: BTreeMap::new(),
            unjudged: None,
            wanted,
            state,
            runs: Vec::new(),
            notes: Vec::new(),
        });
        let last = self.table.rows.len() - 1;
        &mut self.table.rows[last]
    }
}

impl Work {
    /// The command line that repeats it.
    fn typed(&self) -> String {
        let own = match &self.run {
            Program::Bench(bench) => format!("forebay {}", typed(&bench.args())),
            Program::Peer(peer) => peers::command(peer),
            Program::Objects(row) => format!("forebay {}", typed(&row.args())),
        };
        match self.cpu {
            Some(cpu) => format!("taskset -c {cpu} {own}"),
            None => own,
        }
    }
}

impl Row {
    /// With the source's figures.
    pub(crate) fn publish(&mut self, figures: &[(Quantity, f64)]) {
        self.published.extend(figures.iter().copied());
    }
}
