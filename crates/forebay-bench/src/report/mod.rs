//! The results as data. A field of these types is a field of the JSON form: its name, type and comment are a row of
//! `docs/reference/bench-json.md`, which a test writes.

#[macro_use]
mod described;
pub mod format;
mod medians;
pub mod text;

use forebay_engine::Moved;
use forebay_gpu::DeviceName;
use forebay_ways::serialize_ways;
use serde::{Deserialize, Serialize};

pub use self::described::{DescribedField, fields};
pub use self::medians::Medians;
pub(crate) use self::medians::median;
use crate::workload::RateLimit;
use crate::workload::job::IoSize;

/// The version of the JSON form. It changes when a field changes its meaning or goes away.
pub const VERSION: u32 = 1;

described! {
    /// Everything about one invocation.
    pub struct BenchReport {
        /// Version of this form.
        pub version: u32,
        /// Release of forebay.
        pub release: &'static str,
        /// Where it ran.
        pub machine: MachineReport,
        /// The devices that were used.
        pub devices: Vec<DeviceReport>,
        /// The passes in the order they ran.
        pub passes: Vec<Pass>,
        /// Medians, one entry per transfer type.
        pub summary: Vec<TypeSummary>,
        /// The cost of opening, mapping, reading and closing one file.
        pub open_cost: Option<OpenCost>,
        /// A signal ended the run: the last pass may be cut short, and others are missing.
        pub interrupted: bool,
        /// Notes on the figures.
        pub warnings: Vec<String>,
    }

    /// The machine.
    pub struct MachineReport {
        /// Kernel release.
        pub kernel: String,
        /// CPUs that the process may use.
        pub cpus: usize,
        /// Model of the CPU.
        pub cpu_model: String,
    }

    /// A device.
    pub struct DeviceReport {
        /// Index as given to `-d`.
        pub index: usize,
        /// Product name; `host memory` where there is no GPU.
        pub name: String,
        /// PCI address; empty for host memory.
        pub pci: String,
        /// UUID as 32 hex digits; zeros for host memory.
        pub uuid: String,
        /// Whether it is host memory.
        pub is_host: bool,
        /// Driver API version as 1000 × major + 10 × minor; 0 for host memory.
        pub driver_version: i32,
    }

    /// One pass over the data.
    pub struct Pass {
        /// `transfers`; `gather` (`--gather`: an I/O is a piece, latencies are of calls); `files` (`--files`: an I/O is
        /// a file, opened, read and closed).
        pub task: &'static str,
        /// `-x`.
        pub xfer_type: usize,
        /// Gdsio's word for it.
        pub xfer_name: &'static str,
        /// `READ`, `WRITE`, `RANDREAD`, `RANDWRITE`.
        pub io: &'static str,
        /// Raw calls in place of the engine (`--bare`).
        pub bare: bool,
        /// The reading pass after a writing one with `-V`.
        pub verify_pass: bool,
        /// Reads were checked byte by byte, writes carried the pattern.
        pub verified: bool,
        /// A signal ended it: the figures are of the time until then.
        pub interrupted: bool,
        /// Seconds before the timed part that were not counted (`--ramp`).
        pub ramp_s: Option<f64>,
        /// How fast I/Os could begin at most (`--rate`).
        pub rate_limit: Option<RateLimitReport>,
        /// The last five seconds of a pass that ran until its rate was steady (`--until-steady`); null for others, and
        /// for one that was shorter.
        pub steady: Option<SteadyReport>,
        /// Threads; for batches one per job.
        pub threads: usize,
        /// I/Os that a thread keeps in flight: entries of a batch, times `--batches`; null where it is one, without
        /// batches; pieces per call of a gather.
        pub io_depth: Option<usize>,
        /// Bytes per I/O (of the first job).
        pub io_size: IoSizeReport,
        /// Bytes of the data set: size × files.
        pub data_set_bytes: u64,
        /// Bytes moved.
        pub bytes: u64,
        /// I/Os done.
        pub ops: u64,
        /// Wall time from the common start to the end of the last I/O.
        pub seconds: f64,
        /// GB per second.
        pub gb_per_s: f64,
        /// GiB per second, as gdsio prints.
        pub gib_per_s: f64,
        /// I/Os per second.
        pub iops: f64,
        /// CPU time.
        pub cpu: CpuReport,
        /// Resident memory of the process: the greatest that was seen in the timed part, looked at every 0.1 s.
        pub resident_bytes: u64,
        /// Latency of an I/O in microseconds; of a whole batch, for batches.
        pub latency_us: Latency,
        /// The same over time.
        pub over_time: OverTime,
        /// Bytes of page cache that the process had pinned for GPUs before the timed part; null without a GPU.
        pub pinned_before: Option<u64>,
        /// The same after it.
        pub pinned_after: Option<u64>,
        /// For gathers: how long mapping the files took, before the timed part; 0 for raw calls, whose pages are
        /// registered earlier.
        pub map_ms: Option<f64>,
        /// For gathers: where the offsets are before a call, `gpu` or `host`.
        pub offsets_in: Option<&'static str>,
        /// Engines that moved the bytes, most bytes first, each with its share.
        pub engines: Vec<EngineReport>,
        /// Better engines that were not used.
        pub refused: Vec<RefusalReport>,
        /// Reasons why the engine was slower.
        pub notes: Vec<NoteReport>,
        /// The files; for `--files` one entry for the directory, whose residency is that of a sample.
        pub files: Vec<FileReport>,
        /// `warm` (≥ 99 % resident before), `cold` (≤ 1 %), `mixed`, `unknown`.
        pub state: &'static str,
        /// Measured with `--ceiling`: the least of the stages that every byte crosses.
        pub ceiling: Option<Ceiling>,
        /// The kernel's counters of the drives and NFS mounts below the files: the timed part, all programs.
        pub storage: Vec<StorageReport>,
        /// The jobs' parts.
        pub jobs: Vec<JobReport>,
    }

    /// A limit of all threads together.
    #[derive(Copy)]
    pub struct RateLimitReport {
        /// Bytes per second.
        pub bytes_per_s: Option<u64>,
        /// I/Os per second.
        pub iops: Option<u64>,
    }

    /// The end of a pass.
    #[derive(Copy)]
    pub struct SteadyReport {
        /// Whether the rate was as steady as was asked for; else the time was over.
        pub is_steady: bool,
        /// The greatest distance of a second's rate from their mean, in percent of it.
        pub spread_percent: f64,
        /// Their mean, GB per second.
        pub gb_per_s: f64,
        /// Their mean, I/Os per second.
        pub iops: f64,
    }

    /// A drive as iostat shows it, or an NFS mount as nfsiostat does.
    #[derive(PartialEq, Deserialize)]
    pub struct StorageReport {
        /// The block device, or where NFS is mounted.
        pub name: String,
        /// Reads.
        pub read: StorageFlow,
        /// Writes.
        pub write: StorageFlow,
        /// I/Os in flight in the mean (iostat's `aqu-sz`); null for NFS.
        pub in_flight: Option<f64>,
        /// Part of the time with an I/O in flight, in percent (iostat's `%util`); null for NFS.
        pub busy_percent: Option<f64>,
    }

    /// One direction of a drive or mount.
    #[derive(Copy, PartialEq, Deserialize)]
    pub struct StorageFlow {
        /// I/Os per second (iostat's `r/s`, nfsiostat's `ops/s`).
        pub ops_per_s: f64,
        /// MB (10⁶ bytes) per second.
        pub mb_per_s: f64,
        /// KiB of an I/O (iostat's `rareq-sz`, nfsiostat's `kB/op`).
        pub kib_per_op: f64,
        /// Milliseconds of an I/O in the mean (iostat's `r_await`, nfsiostat's `avg exe`).
        pub await_ms: f64,
        /// I/Os merged with others per second (iostat's `rrqm/s`); null for NFS.
        pub merged_per_s: Option<f64>,
        /// Milliseconds from request to reply in the mean (nfsiostat's `avg RTT`); null for drives.
        pub rtt_ms: Option<f64>,
        /// Milliseconds before the request was sent in the mean (nfsiostat's `avg queue`); null for drives.
        pub queue_ms: Option<f64>,
        /// Requests that were sent again (nfsiostat's `retrans`); null for drives.
        pub retransmitted: Option<u64>,
    }

    /// Bytes per I/O.
    #[derive(Copy)]
    pub struct IoSizeReport {
        /// The least.
        pub min: u64,
        /// The greatest.
        pub max: u64,
        /// Distance between sizes; 0 for one size.
        pub step: u64,
    }

    /// CPU time of the whole process during the timed part.
    #[derive(Copy)]
    pub struct CpuReport {
        /// Seconds in user mode.
        pub user_s: f64,
        /// Seconds in the kernel.
        pub system_s: f64,
        /// Seconds in user mode per GB.
        pub user_s_per_gb: f64,
        /// Seconds in the kernel per GB.
        pub system_s_per_gb: f64,
        /// Seconds in user mode of the one CPU that the process may use (`taskset`), by all programs: its line of
        /// /proc/stat; null where it may use several.
        pub one_cpu_user_s: Option<f64>,
        /// The same in the kernel, with interrupts.
        pub one_cpu_system_s: Option<f64>,
        /// CPU use of other programs and other guests of the host during the timed part, in percent of all CPUs,
        /// without interrupts (/proc/stat); null if the part is too short.
        pub others_percent: Option<f64>,
    }

    /// Latencies in microseconds.
    #[derive(Copy)]
    pub struct Latency {
        /// The mean.
        pub mean: f64,
        /// The median.
        pub p50: f64,
        /// 90 of 100 are not longer.
        pub p90: f64,
        /// 99 of 100.
        pub p99: f64,
        /// 999 of 1000.
        pub p99_9: f64,
        /// The longest.
        pub max: f64,
    }

    /// Buckets of equal width from the begin of the timed part.
    pub struct OverTime {
        /// Width of a bucket; 100, doubled as often as it takes to stay within 600 buckets.
        pub bucket_ms: u64,
        /// Buckets from the start on.
        pub buckets: Vec<BucketReport>,
    }

    /// I/Os that ended within a bucket.
    #[derive(Copy)]
    pub struct BucketReport {
        /// I/Os that ended in it.
        pub ops: u64,
        /// Their bytes.
        pub bytes: u64,
        /// Their mean latency.
        pub mean_us: f64,
        /// The longest.
        pub max_us: f64,
    }

    /// Bytes that one engine moved, by the way they took.
    pub struct EngineReport {
        /// Name of the engine; `raw` for raw calls.
        pub engine: String,
        /// All bytes.
        pub bytes: u64,
        /// By way, a field for each.
        #[serde(flatten, serialize_with = "serialize_ways")]
        pub moved: Moved,
        /// Of all these, copied to or from the device by the resident kernel.
        pub resident: u64,
    }

    /// An engine that was refused.
    pub struct RefusalReport {
        /// Its name.
        pub engine: String,
        /// Why.
        pub reason: String,
        /// What to change.
        pub hint: Option<String>,
    }

    /// A reason why the engine was slower.
    pub struct NoteReport {
        /// What.
        pub text: String,
        /// What to change.
        pub hint: Option<String>,
    }

    /// A file of the run.
    pub struct FileReport {
        /// Path as given.
        pub path: String,
        /// `ext4`, `xfs`, `tmpfs`, ….
        pub file_system: String,
        /// Residency of the range before the timed part.
        pub before: Option<ResidencyReport>,
        /// Residency after it.
        pub after: Option<ResidencyReport>,
        /// Bytes of the range that no drive holds (holes; allocated, never written), of reading passes; null where the
        /// file system cannot say.
        pub empty: Option<u64>,
    }

    /// How much of the range is in the page cache.
    pub struct ResidencyReport {
        /// Bytes in the page cache.
        pub cached: u64,
        /// Bytes of the range.
        pub total: u64,
        /// `cachestat`, `preadv2(RWF_NOWAIT), sampled`, `mincore`, `memory`, `a sample of the files`.
        pub method: &'static str,
    }

    /// The rate of raw calls without engine code in the same process.
    pub struct Ceiling {
        /// The rate of that stage.
        pub gb_per_s: f64,
        /// The pass's rate in percent of it.
        pub percent: f64,
        /// How that stage was measured.
        pub method: String,
        /// For a pass that was faster than a stage: the reason, found by measuring the stage again.
        pub above: Option<String>,
        /// All stages.
        pub stages: Vec<CeilingStage>,
    }

    /// One stage that every byte crosses.
    pub struct CeilingStage {
        /// How it was measured.
        pub method: String,
        /// Its rate.
        pub gb_per_s: f64,
    }

    /// A job's part of a pass.
    pub struct JobReport {
        /// The job's name.
        pub name: String,
        /// Its `-d`.
        #[serde(serialize_with = "device_name")]
        pub device: DeviceName,
        /// Its threads; 1 for batches.
        pub threads: usize,
        /// Bytes of its data set.
        pub data_set_bytes: u64,
        /// Bytes per I/O.
        pub io_size: IoSizeReport,
        /// I/Os.
        pub ops: u64,
        /// Bytes.
        pub bytes: u64,
        /// Wall time to its last I/O.
        pub seconds: f64,
        /// Mean latency.
        pub mean_us: f64,
    }

    /// Medians of a transfer type's timed passes.
    pub struct TypeSummary {
        /// `-x`.
        pub xfer_type: usize,
        /// Gdsio's word for it.
        pub xfer_name: &'static str,
        /// Passes.
        pub rounds: usize,
        /// A field for each.
        #[serde(flatten)]
        pub medians: Medians,
        /// This type's medians divided by those of the last type of `--compare`.
        pub ratio: Option<Ratio>,
    }

    /// A type's medians divided by those of the last type compared.
    #[derive(Copy)]
    pub struct Ratio {
        /// That last type.
        pub against: usize,
        /// Throughput: more is better.
        pub gb_per_s: f64,
        /// Latency: less is better.
        pub mean_us: f64,
        /// User CPU per GB: less is better.
        pub user_cpu: f64,
        /// All CPU per GB: less is better.
        pub cpu: f64,
        /// One of the two read from the page cache, the other by O_DIRECT: the ratio is not of their ways.
        pub cache_beside_drive: bool,
    }

    /// The medians of all steps.
    pub struct OpenCost {
        /// Path as given.
        pub path: String,
        /// Its bytes.
        pub bytes: u64,
        /// Its file system.
        pub file_system: String,
        /// The device's name.
        pub device: String,
        /// How often all steps were done.
        pub rounds: usize,
        /// Why the device does not read the file in place; the steps that need it are missing then.
        pub refused: Option<RefusalReport>,
        /// The steps in their order.
        pub steps: Vec<OpenStep>,
    }

    /// One step.
    pub struct OpenStep {
        /// `probe` (tried once in a process, then looked up), `open`, `first read of 4 KiB`, `map (register all)`,
        /// `first gather`, `read whole, pinned`, `trim (unregister)`, `close`.
        pub name: &'static str,
        /// Median of all rounds in microseconds.
        pub median_us: f64,
        /// The least.
        pub least_us: f64,
        /// In the first round.
        pub first_us: f64,
        /// Bytes that it moves, registers or releases.
        pub bytes: Option<u64>,
        /// By the median.
        pub gb_per_s: Option<f64>,
        /// The engine that moved them.
        pub engine: Option<&'static str>,
    }
}

impl MachineReport {
    /// This machine.
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let model = read("/proc/cpuinfo");
        let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpus: forebay_config::allowed_cpus(),
            cpu_model: model.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
        }
    }
}

fn device_name<S: serde::Serializer>(name: &DeviceName, to: S) -> std::result::Result<S::Ok, S::Error> {
    match name {
        DeviceName::Index(index) => to.serialize_u64(*index as u64),
        DeviceName::Bar(name) => to.serialize_str(name),
    }
}

impl From<&forebay_gpu::DeviceInfo> for DeviceReport {
    fn from(info: &forebay_gpu::DeviceInfo) -> Self {
        Self {
            index: info.index,
            name: info.name.clone(),
            pci: info.pci.clone(),
            uuid: format!("{:032x}", u128::from_be_bytes(info.uuid)),
            is_host: info.is_host,
            driver_version: info.driver_version,
        }
    }
}

impl From<RateLimit> for RateLimitReport {
    fn from(limit: RateLimit) -> Self {
        match limit {
            RateLimit::Bytes(rate) => Self { bytes_per_s: Some(rate), iops: None },
            RateLimit::Ios(rate) => Self { bytes_per_s: None, iops: Some(rate) },
        }
    }
}

impl From<IoSize> for IoSizeReport {
    fn from(io: IoSize) -> Self {
        Self { min: io.min, max: io.max, step: io.step }
    }
}

impl Pass {
    /// All engines' bytes by way.
    pub(crate) fn moved(&self) -> Moved {
        self.engines.iter().fold(Moved::default(), |sum, engine| sum.plus(engine.moved))
    }

    /// gdsio's result line.
    pub fn line(&self) -> String {
        format::line(&format::ResultLine {
            io_type: self.io,
            xfer_type: self.xfer_name,
            threads: self.threads,
            io_depth: self.io_depth,
            bytes: self.bytes,
            data_set: self.data_set_bytes,
            io: IoSize { min: self.io_size.min, max: self.io_size.max, step: self.io_size.step },
            latency_us: self.latency_us.mean,
            ops: self.ops,
            seconds: self.seconds,
        })
    }

    /// gdsio's result lines of the jobs (`-J`).
    pub fn job_lines(&self) -> Vec<String> {
        let line = |job: &JobReport| {
            format::line(&format::ResultLine {
                io_type: self.io,
                xfer_type: self.xfer_name,
                threads: job.threads,
                io_depth: self.io_depth,
                bytes: job.bytes,
                data_set: job.data_set_bytes,
                io: IoSize { min: job.io_size.min, max: job.io_size.max, step: job.io_size.step },
                latency_us: job.mean_us,
                ops: job.ops,
                seconds: job.seconds,
            })
        };
        self.jobs.iter().map(|job| format!("{}: {}", job.name, line(job))).collect()
    }
}
