//! The order: what the user wants measured.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::DeviceName;

/// A table, or several, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Transfer types 0 to 7.
    GdsModes,
    /// Random I/O over NFS/RDMA.
    NfsRdma,
    /// Idle and under load.
    Busy,
    /// Sizes by interface.
    Sweep,
    /// 4 KiB by workers.
    Workers,
    /// 16 workers by sizes.
    Sizes,
    /// Latency of 16 workers by size.
    Latency,
    /// Fresh processes by state of the page cache.
    FirstTouch,
    /// Epochs over a cached data set of MONAI's.
    Monai,
    /// Objects of a gateway, and files.
    Objects,
}

/// All presets in the order of `all`.
pub const PRESETS: [(Preset, &str, &str); 10] = [
    (
        Preset::GdsModes,
        "gds-modes",
        "transfer types 0 to 7: one file, 1 MiB, 4 threads; types 0 and 2 with 40",
    ),
    (
        Preset::NfsRdma,
        "nfs-rdma",
        "random 4K and 64K by types 0, 1, 2 on one pinned CPU, 10 s a row; server CPU with --server",
    ),
    (Preset::Busy, "busy", "many threads, idle and beside 80 % of CPU and memory load"),
    (Preset::Sweep, "sweep", "4 KiB to 16 MiB by GPUD, GPUD_BATCH, GPUD_ASYNC and COMPAT"),
    (Preset::Workers, "workers", "4 KiB random reads by 1 to 128 workers, with CPU cores"),
    (Preset::Sizes, "sizes", "16 workers by I/O size"),
    (Preset::Latency, "latency", "latency and throughput of 16 workers by I/O size"),
    (
        Preset::FirstTouch,
        "first-touch",
        "loads and reads in fresh processes, beside peers that are installed",
    ),
    (Preset::Monai, "monai", "an epoch over a cached data set of MONAI's, where MONAI is installed"),
    (
        Preset::Objects,
        "objects",
        "objects of a gateway on this machine, by their files and by HTTP, beside files",
    ),
];

impl Preset {
    /// Its name.
    pub fn name(self) -> &'static str {
        PRESETS.iter().find(|(one, ..)| *one == self).map_or("", |(_, name, _)| name)
    }
}

/// The presets of a list of names; `all` is all of them.
pub fn presets(names: &[String]) -> Result<Vec<Preset>> {
    let mut found = Vec::new();
    for name in names {
        let more: Vec<Preset> = PRESETS
            .iter()
            .filter(|(_, own, _)| own == name || name == "all")
            .map(|(preset, ..)| *preset)
            .filter(|preset| !found.contains(preset))
            .collect();
        if more.is_empty() && !found.iter().any(|one: &Preset| one.name() == name) && name != "all" {
            let names: Vec<&str> = PRESETS.iter().map(|(_, name, _)| *name).collect();
            return Err(Error::new(ErrorKind::InvalidInput, format!("no such preset: {name:?}"))
                .hint(format!("use one of: {}, all", names.join(", "))));
        }
        found.extend(more);
    }
    Ok(found)
}

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// All presets in about four minutes.
    Quick,
    /// Runs of all presets, in less than half an hour: some sizes and thread counts.
    #[default]
    Default,
    /// All rows, in about as much time.
    Full,
}

impl Extent {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Default => "default",
            Self::Full => "full",
        }
    }
}

/// How GPUs and paths are paired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairing {
    /// By their distance on PCI.
    #[default]
    Pci,
    /// In the order in which they are given.
    Given,
}

impl Pairing {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pci => "pci",
            Self::Given => "given",
        }
    }
}

impl FromStr for Pairing {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "pci" => Ok(Self::Pci),
            "given" => Ok(Self::Given),
            _ => Err(Error::new(ErrorKind::InvalidInput, format!("unknown pairing: {text:?}"))
                .hint("use one of: pci, given")),
        }
    }
}

/// A report to be made.
#[derive(Clone, Debug)]
pub struct Order {
    /// The presets.
    pub presets: Vec<Preset>,
    /// A file that describes a table.
    pub spec: Option<PathBuf>,
    /// The devices.
    pub devices: Vec<DeviceName>,
    /// Files, block devices and directories.
    pub paths: Vec<PathBuf>,
    /// The folder of the report.
    pub out: PathBuf,
    /// The heading of the report; empty for the usual one.
    pub title: String,
    /// A line below it: for whom the report is.
    pub note: String,
    /// How much is measured.
    pub extent: Extent,
    /// `ssh:HOST`.
    pub server: Option<String>,
    /// Machines that run each row at the same time, as `forebay bench --hosts` names them; empty for this one.
    pub hosts: Vec<String>,
    /// The size of the file that is made in a directory.
    pub size: Option<u64>,
    /// Runs of a row.
    pub repeat: Option<usize>,
    /// Seconds of a run.
    pub seconds: Option<f64>,
    /// How GPUs and paths are paired.
    pub pairing: Pairing,
    /// Stop after the run that passes this.
    pub limit: Option<Duration>,
    /// Continue on another machine, or with another build.
    pub accept_changes: bool,
    /// Discard the report in the folder.
    pub again: bool,
    /// The `forebay` command, which runs the rows: a program, and its first arguments.
    pub executable: Vec<OsString>,
    /// The interpreter that loads by Python's libraries run in.
    pub python: OsString,
}
