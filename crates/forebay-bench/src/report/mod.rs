//! What was measured, as data; `docs/reference/bench-json.md` documents the JSON form field by field.

pub mod format;
pub mod text;

use forebay_engine::Moved;
use forebay_gpu::DeviceName;
use forebay_ways::serialize_ways;
use serde::Serialize;

use crate::workload::job::IoSize;

/// The version of the JSON form. It changes when a field changes its meaning or goes away.
pub const VERSION: u32 = 1;

/// Everything about one invocation.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// [`VERSION`].
    pub version: u32,
    /// The release of forebay.
    pub release: &'static str,
    /// Where it ran.
    pub machine: MachineReport,
    /// The devices that were used.
    pub devices: Vec<DeviceReport>,
    /// Passes in the order they ran.
    pub passes: Vec<Pass>,
    /// Medians per transfer type over the timed passes.
    pub summary: Vec<TypeSummary>,
    /// What opening, mapping and closing the file costs (`--open-cost`).
    pub open_cost: Option<OpenCost>,
    /// What the user should know about the run.
    pub warnings: Vec<String>,
}

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachineReport {
    /// Kernel release.
    pub kernel: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Model of the CPU.
    pub cpu_model: String,
}

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Index at the surface.
    pub index: usize,
    /// Product name.
    pub name: String,
    /// PCI address; empty for host memory.
    pub pci: String,
    /// UUID in hex; zeros for host memory.
    pub uuid: String,
    /// True if this "device" is host memory.
    pub is_host: bool,
    /// Driver API version; 0 for host memory.
    pub driver_version: i32,
}

/// One pass over the data.
#[derive(Clone, Debug, Serialize)]
pub struct Pass {
    /// `transfers`, `gather` or `files`.
    pub task: &'static str,
    /// gdsio's number of the transfer type.
    pub xfer_type: usize,
    /// gdsio's word for it.
    pub xfer_name: &'static str,
    /// `READ`, `WRITE`, `RANDREAD`, `RANDWRITE`.
    pub io: &'static str,
    /// Raw calls in place of the engine.
    pub bare: bool,
    /// True for the reading pass that follows a writing one with `-V`.
    pub verify_pass: bool,
    /// Whether every byte was checked (reads) or carried the pattern (writes). Checking takes time.
    pub verified: bool,
    /// Threads; 1 per job for batches.
    pub threads: usize,
    /// I/Os that a thread keeps in flight, if they are more than one or a batch; pieces of a gather.
    pub io_depth: Option<usize>,
    /// Bytes per I/O.
    pub io_size: IoSizeReport,
    /// Bytes of the data set.
    pub data_set_bytes: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// I/Os done.
    pub ops: u64,
    /// Wall time.
    pub seconds: f64,
    /// Gigabytes (10⁹) per second.
    pub gb_per_s: f64,
    /// Gibibytes per second, as gdsio prints.
    pub gib_per_s: f64,
    /// I/Os per second.
    pub iops: f64,
    /// CPU time of the process.
    pub cpu: CpuReport,
    /// Latency of an I/O (of a batch, for batches).
    pub latency_us: Latency,
    /// The same over time.
    pub over_time: OverTime,
    /// Bytes of page cache that the process had pinned before the timed part.
    pub pinned_before: Option<u64>,
    /// The same after it.
    pub pinned_after: Option<u64>,
    /// For gathers: how long mapping the files took, before the timed part.
    pub map_ms: Option<f64>,
    /// For gathers: where the offsets were, `gpu` or `host`.
    pub offsets_in: Option<&'static str>,
    /// What moved the bytes.
    pub engines: Vec<EngineReport>,
    /// Better engines that were refused.
    pub refused: Vec<RefusalReport>,
    /// What held the engine back.
    pub notes: Vec<NoteReport>,
    /// The files.
    pub files: Vec<FileReport>,
    /// `warm`, `cold`, `mixed` or `unknown`, by the residency before.
    pub state: &'static str,
    /// The least of the stages' ceilings, if they were measured.
    pub ceiling: Option<Ceiling>,
    /// Per job.
    pub jobs: Vec<JobReport>,
}

/// Bytes per I/O.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct IoSizeReport {
    /// The least.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// The distance between sizes; 0 for a single one.
    pub step: u64,
}

/// CPU time of the whole process during the timed part.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuReport {
    /// In user mode.
    pub user_s: f64,
    /// In the kernel.
    pub system_s: f64,
    /// In user mode, per gigabyte.
    pub user_s_per_gb: f64,
    /// In the kernel, per gigabyte.
    pub system_s_per_gb: f64,
    /// In user mode on the one CPU that the process may use, by all programs.
    pub one_cpu_user_s: Option<f64>,
    /// The same in the kernel, with interrupts.
    pub one_cpu_system_s: Option<f64>,
    /// What other programs, and other guests of the host, used of all CPUs meanwhile, in percent.
    pub others_percent: Option<f64>,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
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
#[derive(Clone, Debug, Serialize)]
pub struct OverTime {
    /// Width of a bucket.
    pub bucket_ms: u64,
    /// The buckets.
    pub buckets: Vec<BucketReport>,
}

/// I/Os that ended within a bucket.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BucketReport {
    /// How many.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their mean latency (of batches, for batches).
    pub mean_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// Bytes that one engine moved, by the way they took.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Its name; `raw` for raw calls.
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
#[derive(Clone, Debug, Serialize)]
pub struct RefusalReport {
    /// Its name.
    pub engine: String,
    /// Why.
    pub reason: String,
    /// What to change.
    pub hint: Option<String>,
}

/// Something that held the engine back.
#[derive(Clone, Debug, Serialize)]
pub struct NoteReport {
    /// What.
    pub text: String,
    /// What to change.
    pub hint: Option<String>,
}

/// A file of the run.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Its path.
    pub path: String,
    /// Its file system.
    pub file_system: String,
    /// Residency before the timed part.
    pub before: Option<ResidencyReport>,
    /// Residency after it.
    pub after: Option<ResidencyReport>,
    /// Bytes of the range that no drive holds: holes, and what was allocated and never written. Of reading passes.
    pub empty: Option<u64>,
}

/// How much of the range is in the page cache.
#[derive(Clone, Debug, Serialize)]
pub struct ResidencyReport {
    /// Bytes that are.
    pub cached: u64,
    /// Bytes of the range.
    pub total: u64,
    /// How it was found.
    pub method: &'static str,
}

/// What raw calls without engine code reach in the same process.
#[derive(Clone, Debug, Serialize)]
pub struct Ceiling {
    /// The least of the stages.
    pub gb_per_s: f64,
    /// What part of it the pass reached, in percent.
    pub percent: f64,
    /// Which stage is the least.
    pub method: String,
    /// Why the pass was faster than the ceiling as it was measured first, and what was measured again.
    pub above: Option<String>,
    /// All stages.
    pub stages: Vec<CeilingStage>,
}

/// One stage that every byte crosses.
#[derive(Clone, Debug, Serialize)]
pub struct CeilingStage {
    /// How it was measured.
    pub method: String,
    /// What it reached.
    pub gb_per_s: f64,
}

/// A job's part of a pass.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    /// Its name.
    pub name: String,
    /// Its device: an index, or the name of memory in a PCI BAR.
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
    /// Wall time.
    pub seconds: f64,
    /// Mean latency.
    pub mean_us: f64,
}

/// Medians of a transfer type's timed passes.
#[derive(Clone, Debug, Serialize)]
pub struct TypeSummary {
    /// gdsio's number.
    pub xfer_type: usize,
    /// gdsio's word.
    pub xfer_name: &'static str,
    /// Passes.
    pub rounds: usize,
    /// Throughput.
    pub gb_per_s: f64,
    /// I/Os per second.
    pub iops: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// User CPU time per gigabyte.
    pub user_s_per_gb: f64,
    /// System CPU time per gigabyte.
    pub system_s_per_gb: f64,
    /// Against the last type of `--compare`; null where there is nothing to compare.
    pub ratio: Option<Ratio>,
}

/// A type's medians divided by those of the last type compared.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    /// The type that is 1.
    pub against: usize,
    /// Of throughput: more is better.
    pub gb_per_s: f64,
    /// Of mean latency: less is better.
    pub mean_us: f64,
    /// Of user CPU per gigabyte: less is better.
    pub user_cpu: f64,
    /// Of all CPU per gigabyte: less is better.
    pub cpu: f64,
    /// One of the two read from the page cache, the other from the drive: the ratio is not of their ways.
    pub cache_beside_drive: bool,
}

/// The medians of all steps.
#[derive(Clone, Debug, Serialize)]
pub struct OpenCost {
    /// The file.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its file system.
    pub file_system: String,
    /// The device's name.
    pub device: String,
    /// How often all steps were done.
    pub rounds: usize,
    /// Why the device does not read the file in place, if it does not; the steps that need it are missing then.
    pub refused: Option<RefusalReport>,
    /// The steps in their order.
    pub steps: Vec<OpenStep>,
}

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct OpenStep {
    /// What is done.
    pub name: &'static str,
    /// Median of all rounds in microseconds.
    pub median_us: f64,
    /// The least.
    pub least_us: f64,
    /// In the first round.
    pub first_us: f64,
    /// Bytes that it moves, registers or lets go of.
    pub bytes: Option<u64>,
    /// GB per second by the median.
    pub gb_per_s: Option<f64>,
    /// The engine that moved them.
    pub engine: Option<&'static str>,
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
