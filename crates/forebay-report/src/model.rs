//! The data model of a report: `report.json`, from which the pages are rendered.

use std::collections::BTreeMap;

pub use forebay_bench::report::{StorageFlow, StorageReport};
use forebay_doctor::topology::Topology;
use serde::{Deserialize, Serialize};

use crate::quantity::{Quantity, Summary};

/// The version of the JSON form. It changes when a field changes its meaning or goes away.
pub const VERSION: u32 = 1;

/// A whole report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The release of forebay.
    pub release: String,
    /// Which build of it: a checksum of the program.
    #[serde(default)]
    pub build: String,
    /// Its heading: `--title`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// A line below the heading, for whom it is: `--note`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When it was begun, UTC.
    pub begun: String,
    /// When its last run ended, UTC.
    pub updated: String,
    /// Where it ran last.
    pub machine: Machine,
    /// Where it ran before, oldest first: [`Run::place`] counts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Place>,
    /// The command's arguments. A folder holds one report: another command is refused.
    pub command: Command,
    /// The files that are measured.
    #[serde(default)]
    pub files: Vec<FileFacts>,
    /// Notes on all tables.
    pub notes: Vec<String>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// The machine and build that measured a part of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The machine.
    pub machine: Machine,
    /// The release of forebay.
    pub release: String,
    /// Which build of it.
    pub build: String,
    /// When its last run ended, UTC.
    pub until: String,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's boot id. A different one means another machine, or a reboot.
    #[serde(default)]
    pub boot: String,
    /// Kernel release.
    pub kernel: String,
    /// Model of the CPU.
    pub cpu_model: String,
    /// CPUs that the process may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// The devices that were asked for.
    pub devices: Vec<Device>,
    /// The paths that were given.
    pub paths: Vec<PathFacts>,
    /// Product name of the machine, and whether it is a virtual one or a container.
    #[serde(default)]
    pub product: String,
    /// NVIDIA's kernel module, as `580.159.04 (open)`.
    #[serde(default)]
    pub gpu_driver: String,
    /// How CPUs are clocked: cpufreq's governor.
    #[serde(default)]
    pub governor: String,
    /// CPUs and memory that the cgroup allows this process, or `none`; empty where it was not looked at.
    #[serde(default)]
    pub limits: String,
    /// GPUs, drives and network cards, and the way between them.
    #[serde(default)]
    pub topology: Topology,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// As given to `-d`.
    pub name: String,
    /// Product name.
    pub model: String,
    /// PCI address; empty for host memory.
    pub pci: String,
    /// Whether it is host memory.
    pub is_host: bool,
    /// Driver API version; 0 for host memory.
    pub driver: i32,
}

/// A path and its file system and drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathFacts {
    /// As given, absolute.
    pub path: String,
    /// The file system's type.
    pub file_system: String,
    /// The source of the mount.
    pub source: String,
    /// The model of the drive, if the kernel shows it.
    pub drive: String,
    /// Mount options that change the data path: protocol and version of NFS.
    #[serde(default)]
    pub options: String,
    /// All options of the mount.
    #[serde(default)]
    pub mount: String,
    /// The block device below it, as `nvme0n1`; empty where there is none.
    #[serde(default)]
    pub disk: String,
}

/// A file that is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Where it is.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its inode, while one that a report made is there.
    pub inode: Option<u64>,
}

/// The command's arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// The presets.
    pub presets: Vec<String>,
    /// The text of `--spec`.
    pub spec: Option<String>,
    /// The devices.
    pub devices: Vec<String>,
    /// The paths, absolute.
    pub paths: Vec<String>,
    /// `quick`, `default` or `full`.
    pub extent: String,
    /// `--server`.
    pub server: Option<String>,
    /// `--hosts`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// `--size`.
    pub size: Option<u64>,
    /// `--repeat`.
    pub repeat: Option<usize>,
    /// `--seconds`.
    pub seconds: Option<f64>,
    /// `--pair`.
    pub pairing: String,
}

/// A table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Table {
    /// Its name, unique in a report.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// Where the published figures come from.
    pub source: Option<Source>,
    /// What the comparison means: the source's hardware, this machine's, which engine moved the bytes.
    pub meaning: String,
    /// Notes: values that were scaled, left out or measured differently.
    pub notes: Vec<String>,
    /// The names of the rows' labels.
    pub axes: Vec<String>,
    /// The columns.
    pub columns: Vec<Quantity>,
    /// Which rows are compared with which.
    pub ratio: Option<Compared>,
    /// The rows.
    pub rows: Vec<Row>,
    /// The charts.
    pub charts: Vec<Chart>,
}

/// Where published figures come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Source {
    /// Document and year.
    pub name: String,
    /// A short name of the source for columns and charts.
    #[serde(default)]
    pub short: String,
    /// The source's own names for this table's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
    /// The source's hardware.
    pub hardware: String,
    /// Findings that the source states in its text.
    pub claims: Vec<String>,
}

/// Rows that differ in one label are compared with the one that has this value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compared {
    /// Index of the axis.
    pub axis: usize,
    /// The value that is 1.
    pub base: String,
    /// The compared quantities.
    pub quantities: Vec<Quantity>,
}

/// A row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name, unique in its table: the labels.
    pub id: String,
    /// One for each axis.
    pub labels: Vec<String>,
    /// The command that measures it.
    pub command: String,
    /// Figures of the source, by the table's columns.
    pub published: BTreeMap<Quantity, f64>,
    /// Of these figures the source only says that they are not more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_most: Vec<Quantity>,
    /// The source's best ratios (“up to”) to the row that this one is compared with.
    pub published_ratio: BTreeMap<Quantity, f64>,
    /// Why it is not judged against the row that it is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unjudged: Option<String>,
    /// How many runs it has in the end.
    pub wanted: usize,
    /// Its state.
    pub state: State,
    /// The runs.
    pub runs: Vec<Run>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// The state of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Runs are missing.
    Waiting,
    /// All runs are there.
    Done,
    /// A run failed.
    Failed {
        /// Why.
        reason: String,
        /// What to change.
        hint: Option<String>,
    },
    /// The row does not apply to this machine.
    Absent {
        /// Why.
        reason: String,
    },
}

/// One run, in a process of its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Where it ran: an index of [`Report::earlier`], or one behind them for [`Report::machine`].
    #[serde(default)]
    pub place: usize,
    /// Wall time of the timed part.
    pub seconds: f64,
    /// Bytes moved.
    pub bytes: u64,
    /// I/Os done.
    pub ops: u64,
    /// Mean latency of an I/O in microseconds; of a whole batch, for batches.
    pub mean_us: f64,
    /// Half of them are not longer.
    #[serde(default)]
    pub p50_us: Option<f64>,
    /// 99 of 100 are not longer.
    pub p99_us: f64,
    /// 999 of 1000 are not longer.
    #[serde(default)]
    pub p999_us: Option<f64>,
    /// CPU seconds of the process in user mode.
    pub user_s: f64,
    /// CPU seconds of the process in the kernel.
    pub system_s: f64,
    /// CPU seconds in user mode of the one CPU that the process may use, by all programs.
    pub one_cpu_user_s: Option<f64>,
    /// CPU seconds in the kernel of that CPU, with interrupts.
    pub one_cpu_system_s: Option<f64>,
    /// CPU use of other programs and other guests of the host during the run, in percent of all CPUs.
    #[serde(default)]
    pub others_percent: Option<f64>,
    /// Resident memory of the process in the timed part.
    #[serde(default)]
    pub resident_bytes: Option<u64>,
    /// Busy CPU of the file server in percent of all its CPUs.
    pub server_percent: Option<f64>,
    /// The load beside it.
    pub load: Option<Load>,
    /// `warm`, `cold`, `mixed` or `unknown`: the page cache before the timed part.
    pub cache: String,
    /// The engines that moved the bytes, most bytes first.
    pub engines: Vec<Share>,
    /// Why no better engine was used.
    pub refused: Vec<Why>,
    /// Reasons why the engine was slower.
    pub notes: Vec<Why>,
    /// The rate of raw calls, measured right after the run.
    pub ceiling: Option<Ceiling>,
    /// The parts of several GPU–drive pairs, or of several hosts, that ran at once.
    pub pairs: Vec<PairShare>,
    /// The kernel's counters of the drives and mounts in the timed part.
    #[serde(default)]
    pub storage: Vec<StorageReport>,
}

/// An engine's bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Its name; `raw` for raw calls.
    pub engine: String,
    /// All bytes.
    pub bytes: u64,
    /// Bytes by way: `page cache`, `O_DIRECT`, ….
    pub ways: BTreeMap<String, u64>,
}

/// A reason, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Why {
    /// The reason.
    pub text: String,
    /// What to change.
    pub hint: Option<String>,
}

/// The rate of raw calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ceiling {
    /// Throughput of the slowest stage.
    pub gb_per_s: f64,
    /// How it was measured.
    pub method: String,
    /// Why the run was faster than its first ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<String>,
}

/// The part of a pair or of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PairShare {
    /// `GPU 0 – /mnt/a`, or the name of the host.
    pub name: String,
    /// Its throughput.
    pub gb_per_s: f64,
}

/// [`Load::by`] of a run without a load of the report's.
pub(crate) const NO_LOAD: &str = "no load of the report";

/// The load beside a run, as measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// The program that made it.
    pub by: String,
    /// Busy part of all CPUs before the run, in percent.
    pub alone_percent: f64,
    /// Busy part of all CPUs during the run, with the run itself, in percent.
    pub during_percent: f64,
    /// Memory in use before the run, in percent.
    pub memory_percent: f64,
}

/// A chart of a table's rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chart {
    /// Its heading.
    pub title: String,
    /// How it is drawn.
    pub kind: ChartKind,
    /// Index of the axis that goes along x.
    pub x: usize,
    /// Index of the axis whose values are the series.
    pub series: usize,
    /// Rows with these values of these axes only.
    pub only: Vec<(usize, String)>,
    /// The quantity along y.
    pub y: Quantity,
    /// Divided by the series of this name.
    pub over: Option<String>,
    /// The y axis is logarithmic.
    #[serde(default)]
    pub log: bool,
    /// A value of x that the source names, and what for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<(String, String)>,
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChartKind {
    /// Grouped bars.
    Bars,
    /// Lines over a logarithmic x axis.
    Lines,
}

impl Row {
    /// Median and range of a quantity; `None` if no run has it.
    pub fn summary(&self, quantity: Quantity) -> Option<Summary> {
        Summary::of(self.runs.iter().filter_map(|run| quantity.of(run)).collect())
    }

    /// Whether this run, counted from 0, also measures the ceiling: the first and the last do, since a disk's speed
    /// changes.
    pub fn measures_ceiling(&self, run: usize) -> bool {
        run == 0 || run + 1 == self.wanted
    }

    /// gdsio's `-x` of the command that measures it, if that is `forebay bench`.
    pub fn xfer(&self) -> Option<u8> {
        let (_, rest) = self.command.split_once("forebay bench ")?;
        rest.split(' ').skip_while(|word| *word != "-x").nth(1)?.parse().ok()
    }

    /// Whether it is still to be measured.
    pub fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }
}

/// The rates of raw calls measured with a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowCeiling<'a> {
    /// How they were measured.
    pub method: &'a str,
    /// The greatest: the ceiling.
    pub greatest: f64,
    /// The least.
    pub least: f64,
    /// How often they were measured.
    pub times: usize,
    /// The row's median as a part of the ceiling.
    pub percent: f64,
}

impl Table {
    /// The ceiling of a row: the greatest rate of the same raw calls, over its own runs and those of the rows that it
    /// alternates with.
    pub fn ceiling_of<'a>(&'a self, row: &'a Row) -> Option<RowCeiling<'a>> {
        let is_beside = |other: &Row| {
            let axis = self.ratio.as_ref().map(|ratio| ratio.axis);
            let pairs = other.labels.iter().zip(&row.labels).enumerate();
            other.id == row.id
                || axis.is_some() && pairs.into_iter().all(|(at, (one, own))| Some(at) == axis || one == own)
        };
        let is_here = |run: &&Run| row.runs.iter().any(|own| own.place == run.place);
        let measured = row.runs.iter().filter_map(|run| run.ceiling.as_ref());
        let method = &measured.max_by(|one, other| one.gb_per_s.total_cmp(&other.gb_per_s))?.method;
        let runs =
            self.rows.iter().filter(|other| is_beside(other)).flat_map(|other| &other.runs).filter(is_here);
        let ceilings = runs.filter_map(|run| run.ceiling.as_ref()).filter(|one| one.method == *method);
        let all = Summary::of(ceilings.map(|one| one.gb_per_s).collect())?;
        let median = row.summary(Quantity::GbPerS)?.median;
        (all.max > 0.0).then(|| RowCeiling {
            method,
            greatest: all.max,
            least: all.min,
            times: all.runs,
            percent: median / all.max * 100.0,
        })
    }

    /// The source of the published figures.
    pub fn whose(&self) -> &str {
        let short = self.source.as_ref().map_or("", |source| source.short.as_str());
        if short.is_empty() { "published" } else { short }
    }

    /// The one unit of its throughputs.
    pub fn unit(&self) -> Quantity {
        self.units().next().unwrap_or(Quantity::GbPerS)
    }

    /// The units of throughput that it shows.
    pub(crate) fn units(&self) -> impl Iterator<Item = Quantity> {
        let charts = self.charts.iter().map(|chart| chart.y);
        self.columns.iter().copied().chain(charts).filter(|one| one.per_second().is_some())
    }

    /// The row that `row` is compared with.
    pub fn base_of(&self, row: &Row) -> Option<&Row> {
        let Compared { axis, base, .. } = self.ratio.as_ref()?;
        if row.labels.get(*axis) == Some(base) {
            return None;
        }
        self.rows.iter().find(|other| {
            other.labels.iter().enumerate().all(|(index, label)| {
                if index == *axis { label == base } else { row.labels.get(index) == Some(label) }
            })
        })
    }
}

/// Other programs may use this much of all CPUs during a run, in percent; above it, the report has a note.
const BUSY_PERCENT: f64 = 10.0;

impl Report {
    /// A note on the CPU use of other programs, if it is high.
    pub fn busy(&self) -> Option<String> {
        let alone = self.rows().flat_map(|row| &row.runs).filter(|run| run.load.is_none());
        let others = Summary::of(alone.filter_map(|run| run.others_percent).collect())?;
        (others.max > BUSY_PERCENT).then(|| {
            format!(
                "Busy machine: other programs used up to {:.0} % of all CPUs during a run (median of {} runs {:.0} %). Figures are lower for it, and differ more.",
                others.max, others.runs, others.median
            )
        })
    }

    /// The machine and build of the last run.
    pub fn place(&self) -> Place {
        Place {
            machine: self.machine.clone(),
            release: self.release.clone(),
            build: self.build.clone(),
            until: self.updated.clone(),
        }
    }

    /// Rows of type 0 beside those of type 2 that are alike but for that: the fast path and the traditional one.
    pub fn pairs(&self) -> Vec<(&Table, &Row, &Row)> {
        let is = |row: &Row, xfer| row.state == State::Done && row.xfer() == Some(xfer);
        let mut all = Vec::new();
        for table in &self.tables {
            let Some(axis) = table.ratio.as_ref().map(|ratio| ratio.axis) else { continue };
            let alike = |one: &Row, other: &Row| {
                let mut labels = one.labels.iter().zip(&other.labels).enumerate();
                labels.all(|(at, (one, other))| at == axis || one == other)
            };
            for row in table.rows.iter().filter(|row| is(row, 0)) {
                let partner = table.rows.iter().find(|other| is(other, 2) && alike(row, other));
                all.extend(partner.map(|other| (table, row, other)));
            }
        }
        all
    }

    /// Rows in all tables.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.tables.iter().flat_map(|table| &table.rows)
    }

    /// Rows that failed.
    pub fn failed(&self) -> usize {
        self.rows().filter(|row| matches!(row.state, State::Failed { .. })).count()
    }

    /// Rows that are still to be measured.
    pub fn waiting(&self) -> usize {
        self.rows().filter(|row| row.is_waiting()).count()
    }
}
