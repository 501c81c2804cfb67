//! What to run: workloads, jobs and their limits.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use forebay_config::{CachePolicy, Config, parse_size};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::AllocationKind;

/// A transfer type, gdsio's `-x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Xfer {
    /// 0: the elected best engine, one blocking request per thread.
    Gpud,
    /// 1: storage to host memory by O_DIRECT; no device.
    CpuOnly,
    /// 2: O_DIRECT into a pinned host buffer, then a copy, waiting by a blocking event.
    CpuGpu,
    /// 3: as 2 with two or more buffers: each copy overlaps the next read.
    CpuAsyncGpu,
    /// 4: through the page cache, then a copy.
    CpuCachedGpu,
    /// 5: ordered in a device stream.
    Async,
    /// 6: batches.
    Batch,
    /// 7: batches ordered in a device stream.
    BatchStream,
}

impl Xfer {
    /// All types in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Gpud,
        Self::CpuOnly,
        Self::CpuGpu,
        Self::CpuAsyncGpu,
        Self::CpuCachedGpu,
        Self::Async,
        Self::Batch,
        Self::BatchStream,
    ];

    /// gdsio's number.
    pub fn number(self) -> usize {
        self as usize
    }

    /// The word that gdsio prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpud => "GPUD",
            Self::CpuOnly => "CPUONLY",
            Self::CpuGpu => "CPU_GPU",
            Self::CpuAsyncGpu => "CPU_ASYNC_GPU",
            Self::CpuCachedGpu => "CPU_CACHED_GPU",
            Self::Async => "ASYNC",
            Self::Batch => "GPU_BATCH",
            Self::BatchStream => "GPU_BATCH_STREAM",
        }
    }

    /// Whether one thread submits batches.
    pub const fn is_batch(self) -> bool {
        matches!(self, Self::Batch | Self::BatchStream)
    }

    /// Whether forebay's engine serves it; the others are the raw calls they stand for.
    pub const fn uses_engine(self) -> bool {
        matches!(self, Self::Gpud | Self::Async | Self::Batch | Self::BatchStream)
    }
}

impl fmt::Display for Xfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Xfer {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let number = text.parse::<usize>().ok();
        number.and_then(|number| Self::ALL.get(number).copied()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, format!("unknown transfer type: {text:?}"))
                .hint("use 0 (elected), 1 (host), 2 (classic), 3 (pipelined), 4 (page cache), 5 (stream), 6 (batch) or 7 (batch on a stream)")
        })
    }
}

/// gdsio's `-I`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// 0: from front to back.
    Read,
    /// 1: from front to back.
    Write,
    /// 2: at random offsets.
    RandRead,
    /// 3: at random offsets.
    RandWrite,
}

impl Access {
    /// The word that gdsio prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::RandRead => "RANDREAD",
            Self::RandWrite => "RANDWRITE",
        }
    }

    /// Whether it writes.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandWrite)
    }

    /// Whether offsets are random.
    pub const fn random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite)
    }

    /// The reading that goes over what this one wrote (or itself).
    #[must_use]
    pub const fn reading(self) -> Self {
        if self.random() { Self::RandRead } else { Self::Read }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Access {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "0" | "read" => Self::Read,
            "1" | "write" => Self::Write,
            "2" | "randread" => Self::RandRead,
            "3" | "randwrite" => Self::RandWrite,
            _ => {
                return Err(Error::new(ErrorKind::InvalidInput, format!("unknown I/O type: {text:?}"))
                    .hint("use 0 (read), 1 (write), 2 (randread) or 3 (randwrite)"));
            }
        })
    }
}

/// Bytes per I/O: one size, or `min:max:step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoSize {
    /// The least.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// The distance between sizes; 0 for a single size.
    pub step: u64,
}

impl IoSize {
    /// One size.
    pub const fn fixed(bytes: u64) -> Self {
        Self { min: bytes, max: bytes, step: 0 }
    }

    /// Whether all I/Os have one size.
    pub const fn is_fixed(self) -> bool {
        self.min == self.max
    }

    /// How many sizes there are.
    pub const fn count(self) -> u64 {
        match (self.max - self.min).checked_div(self.step) {
            Some(steps) => steps + 1,
            None => 1,
        }
    }

    /// The size with this number; numbers wrap.
    pub const fn nth(self, index: u64) -> u64 {
        self.min + (index % self.count()) * self.step
    }
}

impl FromStr for IoSize {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(':').map(str::trim).collect();
        let size = match parts[..] {
            [one] => Self::fixed(parse_size(one)?),
            [min, max, step] => {
                Self { min: parse_size(min)?, max: parse_size(max)?, step: parse_size(step)? }
            }
            _ => {
                return Err(Error::new(ErrorKind::InvalidInput, format!("not an I/O size: {text:?}"))
                    .hint("write one size (1M) or min:max:step (64K:1M:64K)"));
            }
        };
        if size.min == 0 {
            return Err(
                Error::new(ErrorKind::InvalidInput, "the I/O size is 0").hint("use -i 1M, for example")
            );
        }
        if size.max < size.min || (size.step == 0 && size.max != size.min) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("an I/O size range without steps: {text:?}"),
            )
            .hint("write min:max:step with min <= max and step > 0, for example 64K:1M:64K"));
        }
        Ok(size)
    }
}

/// gdsio's `-m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryType {
    /// 0: device memory.
    #[default]
    Device,
    /// 1: device memory by the virtual-memory API.
    Virtual,
    /// 2: pinned host memory of the driver.
    PinnedHost,
    /// 3: host memory of the heap.
    Heap,
    /// 4: an anonymous host mapping.
    Map,
}

impl MemoryType {
    /// The kind to allocate.
    pub const fn kind(self) -> AllocationKind {
        match self {
            Self::Device => AllocationKind::Device,
            Self::Virtual => AllocationKind::Virtual,
            Self::PinnedHost => AllocationKind::PinnedHost,
            Self::Heap => AllocationKind::HostHeap,
            Self::Map => AllocationKind::HostMap,
        }
    }

    /// Whether the CPU can reach it.
    pub const fn is_host(self) -> bool {
        matches!(self, Self::PinnedHost | Self::Heap | Self::Map)
    }
}

impl FromStr for MemoryType {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "0" => Self::Device,
            "1" => Self::Virtual,
            "2" => Self::PinnedHost,
            "3" => Self::Heap,
            "4" => Self::Map,
            _ => {
                return Err(Error::new(ErrorKind::InvalidInput, format!("unknown memory type: {text:?}")).hint(
                    "use 0 (device), 1 (device, virtual-memory API), 2 (pinned host), 3 (malloc) or 4 (mmap)",
                ));
            }
        })
    }
}

/// Where the stored bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One file (or block device) that all workers of the job share.
    File(PathBuf),
    /// A directory: worker N has the file `gdsio.N`.
    Directory(PathBuf),
}

/// A group of workers on one target and one device.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name: the section of a job file, or `job0`, `job1`, ….
    pub name: String,
    /// Where the bytes are.
    pub target: Target,
    /// Index of the device.
    pub device: usize,
    /// NUMA node to run on.
    pub numa: Option<u32>,
    /// The memory that transfers end in.
    pub memory: MemoryType,
    /// Threads; for batches, entries.
    pub workers: usize,
    /// Bytes: of the whole file for [`Target::File`], of each file for [`Target::Directory`]. `None`: what is there.
    pub size: Option<u64>,
    /// File offset at which the range begins.
    pub start: u64,
    /// Bytes per I/O.
    pub io: IoSize,
}

impl Job {
    /// One worker, 1 MiB per I/O, device 0.
    pub fn new(target: Target) -> Self {
        Self {
            name: "job0".to_owned(),
            target,
            device: 0,
            numa: None,
            memory: MemoryType::Device,
            workers: 1,
            size: None,
            start: 0,
            io: IoSize::fixed(1 << 20),
        }
    }
}

/// What written buffers hold when nothing is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    #[default]
    Zero,
    /// Random bytes, once (`-R`).
    Random,
    /// Random bytes before every write (`-F`).
    RandomEach,
}

/// Everything about one invocation.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The jobs; all run at once.
    pub jobs: Vec<Job>,
    /// How bytes move.
    pub xfer: Xfer,
    /// Which way, in which order.
    pub access: Access,
    /// Run for this long instead of once over the data.
    pub runtime: Option<Duration>,
    /// Entries per batch (`-B`); the number of workers if not given.
    pub batch: Option<usize>,
    /// Batches (or buffers of the pipelined type) in flight.
    pub batches: usize,
    /// Seed of offsets and patterns (`-k`).
    pub seed: u64,
    /// Random offsets at any byte (`-U`).
    pub unaligned: bool,
    /// Random offsets are multiples of this (`-a`).
    pub align: Option<u64>,
    /// Percent of reads in batches that mix reads and writes (`-M`).
    pub mix: Option<u8>,
    /// Writes carry a pattern, reads check it (`-V`).
    pub verify: bool,
    /// See [`Fill`].
    pub fill: Fill,
    /// Raw calls without the engine.
    pub bare: bool,
    /// Drop the page cache before every timed pass, and insist that it is empty.
    pub drop_cache: bool,
    /// Read the files into the page cache before every timed pass.
    pub warm: bool,
    /// Measure ceilings too.
    pub ceiling: bool,
    /// Passes; medians are of these.
    pub repeat: usize,
    /// Types to run in turn instead of `xfer`.
    pub compare: Vec<Xfer>,
    /// Block devices that may be overwritten.
    pub destroy: Vec<PathBuf>,
    /// Options of the session.
    pub config: Config,
}

impl Workload {
    /// Reads `jobs` once from front to back by the elected engine.
    pub fn new(jobs: Vec<Job>) -> Self {
        Self {
            jobs,
            xfer: Xfer::Gpud,
            access: Access::Read,
            runtime: None,
            batch: None,
            batches: 2,
            seed: 0,
            unaligned: false,
            align: None,
            mix: None,
            verify: false,
            fill: Fill::Zero,
            bare: false,
            drop_cache: false,
            warm: false,
            ceiling: false,
            repeat: 1,
            compare: Vec::new(),
            destroy: Vec::new(),
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

    /// Refuses what makes no sense, before anything is touched.
    pub fn check(&self) -> Result<()> {
        let bad = |message: String, hint: &str| Err(Error::new(ErrorKind::InvalidInput, message).hint(hint));
        if self.jobs.is_empty() {
            return bad(
                "nothing to do: no file and no directory".into(),
                "name one with -f FILE or -D DIRECTORY",
            );
        }
        let types = if self.compare.is_empty() { vec![self.xfer] } else { self.compare.clone() };
        for job in &self.jobs {
            if job.workers == 0 || job.workers > 4096 {
                return bad(format!("{} threads", job.workers), "use -w 1..4096");
            }
            if job.size == Some(0) {
                return bad(
                    "the size is 0".into(),
                    "use -s 1G, for example, or leave -s out to use the whole file",
                );
            }
            if let Some(size) = job.size
                && size < job.io.min
            {
                return bad(
                    format!("the size ({size}) is less than one I/O ({})", job.io.min),
                    "use a smaller -i or a larger -s",
                );
            }
            if job.io.max > 16 << 30 {
                return bad(format!("an I/O of {} bytes", job.io.max), "use -i up to 16G");
            }
            if let Some(other) = types.iter().find(|xfer| !xfer.uses_engine())
                && job.memory != MemoryType::Device
            {
                return bad(
                    format!("-m with transfer type {}", other.number()),
                    "-m goes with -x 0, 5, 6 and 7 only",
                );
            }
        }
        if let Some(batch) = self.batch
            && !(1..=65536).contains(&batch)
        {
            return bad(format!("a batch of {batch}"), "use -B 1..65536");
        }
        if !(1..=64).contains(&self.batches) {
            return bad(format!("{} batches in flight", self.batches), "use --batches 1..64");
        }
        if self.repeat == 0 {
            return bad("0 repetitions".into(), "use --repeat 1 or more");
        }
        if self.runtime.is_some_and(|time| time.is_zero()) {
            return bad(
                "a run of 0 seconds".into(),
                "use -T 1 or more, or leave -T out to go over the data once",
            );
        }
        if self.drop_cache && self.warm {
            return bad("--drop-cache and --warm exclude each other".into(), "choose one");
        }
        if self.align == Some(0) {
            return bad("alignment 0".into(), "use -a 4K, for example");
        }
        if self.unaligned && !self.access.random() {
            return bad("-U without random I/O".into(), "add -I 2 or -I 3");
        }
        if self.unaligned && self.align.is_some() {
            return bad("-U and -a exclude each other".into(), "choose one");
        }
        if let Some(reads) = self.mix {
            if types.iter().any(|xfer| *xfer != Xfer::Batch) {
                return bad("-M without batches".into(), "-M goes with -x 6");
            }
            if reads > 100 {
                return bad(format!("{reads} percent of reads"), "use -M 0..100");
            }
            if self.verify {
                return bad("-V cannot check a mix of reads and writes".into(), "leave out -V or -M");
            }
        }
        self.config.clone().checked()?;
        for name in self.config.strict.iter().chain(&self.config.engine) {
            if name != "all" {
                name.parse::<forebay_engine::EngineKind>()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Workload {
        Workload::new(vec![Job::new(Target::File("x".into()))])
    }

    #[test]
    fn io_sizes() {
        assert_eq!("1M".parse::<IoSize>().unwrap(), IoSize::fixed(1 << 20));
        let range: IoSize = "16M:32M:4M".parse().unwrap();
        assert_eq!(
            (range.count(), range.nth(0), range.nth(4), range.nth(5)),
            (5, 16 << 20, 32 << 20, 16 << 20)
        );
        for bad in ["0", "1M:2M", "2M:1M:4K", "1M:2M:0", "x", "", "1M:2M:4K:4K"] {
            let error = bad.parse::<IoSize>().unwrap_err();
            assert!(!error.hints().is_empty(), "{bad}");
        }
    }

    #[test]
    fn numbers_and_words() {
        assert_eq!("7".parse::<Xfer>().unwrap(), Xfer::BatchStream);
        assert!("8".parse::<Xfer>().is_err());
        assert_eq!("randwrite".parse::<Access>().unwrap(), Access::RandWrite);
        assert!("4".parse::<Access>().is_err());
        assert!("5".parse::<MemoryType>().is_err());
        for (number, xfer) in Xfer::ALL.into_iter().enumerate() {
            assert_eq!(xfer.number(), number);
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_hint() {
        let cases: Vec<(&str, Workload)> = vec![
            ("no job", Workload::new(vec![])),
            ("no size", {
                let mut w = one();
                w.jobs[0].size = Some(0);
                w
            }),
            ("small", {
                let mut w = one();
                w.jobs[0].size = Some(4096);
                w
            }),
            ("no worker", {
                let mut w = one();
                w.jobs[0].workers = 0;
                w
            }),
            ("memory", {
                let mut w = one();
                w.jobs[0].memory = MemoryType::Heap;
                w.xfer = Xfer::CpuGpu;
                w
            }),
            ("mix", {
                let mut w = one();
                w.mix = Some(50);
                w
            }),
            ("time", {
                let mut w = one();
                w.runtime = Some(Duration::ZERO);
                w
            }),
            ("unaligned", {
                let mut w = one();
                w.unaligned = true;
                w
            }),
            ("engine", {
                let mut w = one();
                w.config.engine = Some("fast".into());
                w
            }),
        ];
        assert!(one().check().is_ok());
        for (name, workload) in cases {
            let error = workload.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
            assert!(!error.hints().is_empty(), "{name}");
        }
    }
}
