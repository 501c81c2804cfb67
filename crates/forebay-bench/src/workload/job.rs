//! The parts of a job: transfer types, directions, sizes, targets.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay_config::parse_size;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{AllocationKind, DeviceName};

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
pub enum IoAccess {
    /// 0: from front to back.
    Read,
    /// 1: from front to back.
    Write,
    /// 2: at random offsets.
    RandRead,
    /// 3: at random offsets.
    RandWrite,
}

impl IoAccess {
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

impl fmt::Display for IoAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IoAccess {
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
pub enum JobTarget {
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
    pub target: JobTarget,
    /// The device.
    pub device: DeviceName,
    /// NUMA node to run on.
    pub numa: Option<u32>,
    /// The memory that transfers end in.
    pub memory: MemoryType,
    /// Threads; for batches, entries.
    pub workers: usize,
    /// Bytes: of the whole file for [`JobTarget::File`], of each file for [`JobTarget::Directory`]. `None`: what is there.
    pub size: Option<u64>,
    /// File offset at which the range begins.
    pub start: u64,
    /// Bytes per I/O.
    pub io: IoSize,
}

impl JobTarget {
    /// The file, or the directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Directory(path) => path,
        }
    }
}

impl Job {
    /// Its file, or one for each worker in its directory.
    pub fn paths(&self) -> Vec<PathBuf> {
        match &self.target {
            JobTarget::File(path) => vec![path.clone()],
            JobTarget::Directory(directory) => {
                (0..self.workers).map(|n| directory.join(format!("gdsio.{n}"))).collect()
            }
        }
    }

    /// One worker, 1 MiB per I/O, device 0.
    pub fn new(target: JobTarget) -> Self {
        Self {
            name: "job0".to_owned(),
            target,
            device: DeviceName::default(),
            numa: None,
            memory: MemoryType::Device,
            workers: 1,
            size: None,
            start: 0,
            io: IoSize::fixed(1 << 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!("randwrite".parse::<IoAccess>().unwrap(), IoAccess::RandWrite);
        assert!("4".parse::<IoAccess>().is_err());
        assert!("5".parse::<MemoryType>().is_err());
        for (number, xfer) in Xfer::ALL.into_iter().enumerate() {
            assert_eq!(xfer.number(), number);
        }
    }
}
