//! Everything about one invocation, and its limits.

mod check;
pub(crate) mod job;
pub mod jobfile;
mod rate;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use forebay_config::{CachePolicy, Config};
use forebay_error::{Error, ErrorKind, Result};

use job::{IoAccess, Job, Xfer};
pub use rate::RateLimit;

/// The most threads of all jobs together.
const MOST_WORKERS: usize = 4096;
/// The most pieces of one gather.
const MOST_PIECES: usize = 1 << 28;
/// The most bytes that one gather brings: its buffer in device memory.
pub(crate) const MOST_GATHERED: u64 = 4 << 30;

/// Contents of written buffers when nothing is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteFill {
    /// Zeros.
    #[default]
    Zero,
    /// Random bytes, once (`-R`).
    Random,
    /// Random bytes before every write (`-F`).
    RandomEach,
}

/// How to treat files that hold somebody's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Foreign {
    /// They are refused, and nothing is written.
    #[default]
    Refuse,
    /// They are overwritten, and the report says so.
    Warn,
    /// They are overwritten.
    Overwrite,
}

/// Where the offsets of a gather are before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetsIn {
    /// In device memory.
    Gpu,
    /// In host memory: each call copies them to the device.
    Host,
}

impl FromStr for OffsetsIn {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "gpu" => Ok(Self::Gpu),
            "host" => Ok(Self::Host),
            _ => bad(format!("unknown place of offsets: {text:?}"), "use gpu or host"),
        }
    }
}

/// What to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BenchTask {
    /// Transfers between files and memory.
    #[default]
    Transfers,
    /// Many pieces of a mapped file by one kernel (`--gather`).
    Gather(OffsetsIn),
    /// Every file below a directory, once (`--files`).
    Files {
        /// Number of files to make if the directory has none (`--make-files`).
        make: Option<u64>,
    },
    /// What opening, mapping and closing a file costs (`--open-cost`).
    OpenCost,
}

/// Everything about one invocation.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The jobs; all run at once.
    pub jobs: Vec<Job>,
    /// What to measure.
    pub task: BenchTask,
    /// How bytes move.
    pub xfer: Xfer,
    /// Which way, in which order.
    pub access: IoAccess,
    /// Run for this long instead of once over the data.
    pub runtime: Option<Duration>,
    /// Run for this long before `runtime` begins, uncounted.
    pub ramp: Duration,
    /// End the run when each of the last five seconds is within this many percent of their mean rate; `runtime`, or a minute, is the
    /// bound.
    pub steady_percent: Option<f64>,
    /// How fast I/Os begin at most.
    pub rate: Option<RateLimit>,
    /// Remove the files that the run has made.
    pub unlink: bool,
    /// Entries per batch (`-B`), the number of workers if not given; pieces per gather.
    pub batch: Option<usize>,
    /// Batches (or I/Os of types 3 and 5) that a thread keeps in flight. More than 1 is more than `-w` and `-B` ask for.
    pub batches: usize,
    /// Seed of offsets and patterns (`-k`).
    pub seed: u64,
    /// Random offsets at any byte (`-U`).
    pub unaligned: bool,
    /// Random offsets are multiples of this (`-a`).
    pub align: Option<u64>,
    /// Percent of reads in batches that mix reads and writes (`-M`).
    pub mix: Option<u8>,
    /// Routing over NVLink was requested (`-p`); forebay has none.
    pub nvlinks: bool,
    /// Writes carry a pattern, reads check it (`-V`).
    pub verify: bool,
    /// See [`WriteFill`].
    pub fill: WriteFill,
    /// Raw calls without the engine.
    pub bare: bool,
    /// Drop the page cache before every timed pass, and insist that it is empty.
    pub drop_cache: bool,
    /// Read the files into the page cache before every timed pass.
    pub warm: bool,
    /// Unpin all pages before every timed pass: each is a first read.
    pub trim: bool,
    /// Measure ceilings too.
    pub ceiling: bool,
    /// Passes; medians are of these.
    pub repeat: usize,
    /// Types to run in turn instead of `xfer`.
    pub compare: Vec<Xfer>,
    /// Block devices that may be overwritten.
    pub destroy: Vec<PathBuf>,
    /// How to treat files with data that no run has written.
    pub foreign: Foreign,
    /// Options of the session.
    pub config: Config,
}

impl Workload {
    /// Reads `jobs` once from front to back by the elected engine.
    pub fn new(jobs: Vec<Job>) -> Self {
        Self {
            jobs,
            task: BenchTask::Transfers,
            xfer: Xfer::Gpud,
            access: IoAccess::Read,
            runtime: None,
            ramp: Duration::ZERO,
            steady_percent: None,
            rate: None,
            unlink: false,
            batch: None,
            batches: 1,
            seed: 0,
            unaligned: false,
            align: None,
            mix: None,
            nvlinks: false,
            verify: false,
            fill: WriteFill::Zero,
            bare: false,
            drop_cache: false,
            warm: false,
            trim: false,
            ceiling: false,
            repeat: 1,
            compare: Vec::new(),
            destroy: Vec::new(),
            foreign: Foreign::default(),
            config: Config::default(),
        }
    }

    /// Whether files are opened for writing.
    pub fn writes(&self) -> bool {
        self.access.writes() || self.mix.is_some_and(|reads| reads < 100)
    }

    /// Whether the page cache is asked for (`-O 1`, `--cache keep`).
    pub fn keeps_cache(&self) -> bool {
        self.config.cache == CachePolicy::Keep
    }

    /// Entries per batch of a job.
    pub fn depth(&self, job: &Job) -> usize {
        self.batch.unwrap_or(job.workers).max(1)
    }

    /// The device reads the files' pages in place, and nothing else moves bytes.
    pub(crate) fn only_mapped(&self) -> bool {
        self.config.engine.as_deref() == Some("mapped")
    }

    /// Everything is written in place, or not at all.
    pub(crate) fn only_writes_in_place(&self) -> bool {
        self.writes()
            && self.only_mapped()
            && !self.bare
            && self.types().iter().any(|xfer| xfer.uses_engine())
    }

    /// Whether raw calls of this type read mapped pages in place.
    pub(crate) fn reads_raw_maps(&self, xfer: Xfer) -> bool {
        self.bare && xfer == Xfer::Gpud && (self.only_mapped() || matches!(self.task, BenchTask::Gather(_)))
    }

    /// The transfer types, in the order that they run.
    pub fn types(&self) -> Vec<Xfer> {
        if self.compare.is_empty() { vec![self.xfer] } else { self.compare.clone() }
    }
}

fn bad<T>(message: impl Into<String>, hint: &str) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, message.into()).hint(hint))
}
