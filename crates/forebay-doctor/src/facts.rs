//! The input of the rules: the machine, the transfers tried on it, a running process, saved reports.

use forebay_config::Config;
use forebay_stats::Snapshot;
use serde::Serialize;

use crate::cufile::{CufileConfig, LibcufileFacts};
use crate::engines::Verdict;
use crate::exercise::{DriverOffer, ExerciseTarget, Hinted, LaneFacts, ServerAnswers};
use crate::gpu::GpuFacts;
use crate::machine::MachineFacts;
use crate::storage::StoragePlace;
use crate::system::System;

/// A saved report of `forebay bench --json`.
#[derive(Clone, Debug)]
pub struct SavedBench {
    /// Its file.
    pub path: String,
    /// The report.
    pub report: serde_json::Value,
}

/// A libcufile that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MappedLibrary {
    /// Its file.
    pub path: String,
    /// It is forebay's.
    pub own: bool,
}

/// A running process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessFacts {
    /// Its number.
    pub pid: u32,
    /// Its command line.
    pub program: String,
    /// Its copies of libcufile.
    pub libraries: Vec<MappedLibrary>,
    /// Files of data that it has open: descriptor and path.
    pub files: Vec<(String, String)>,
    /// Seconds of CPU since it started, user and system.
    pub cpu_seconds: Option<f64>,
    /// Its counters.
    pub counters: Option<Snapshot>,
}

/// The input of the rules.
pub(crate) struct Facts<'a> {
    pub system: &'a dyn System,
    pub machine: &'a MachineFacts,
    pub offered: &'a DriverOffer,
    pub gpus: &'a [GpuFacts],
    pub places: &'a [StoragePlace],
    pub config: &'a Result<Config, Hinted>,
    pub cufile: &'a CufileConfig,
    pub library: Option<&'a LibcufileFacts>,
    /// The exercise; none for the doctor, which tries nothing.
    pub tried: Option<ExerciseResults<'a>>,
    /// The process whose view `system` is.
    pub process: Option<&'a ProcessFacts>,
    /// A kernel log in place of the machine's own, and its name.
    pub log: Option<&'a (String, String)>,
    pub benches: &'a [SavedBench],
}

/// The results of the exercise.
#[derive(Clone, Copy)]
pub(crate) struct ExerciseResults<'a> {
    pub lanes: &'a [Result<LaneFacts, (ExerciseTarget, Hinted)>],
    pub verdicts: &'a [Verdict],
    pub servers: &'a [ServerAnswers],
    pub file_was_read: bool,
}

impl Facts<'_> {
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &LaneFacts> {
        self.tried.iter().flat_map(|tried| tried.lanes).filter_map(|lanes| lanes.as_ref().ok())
    }

    pub(crate) fn verdicts(&self) -> &[Verdict] {
        self.tried.map_or(&[], |tried| tried.verdicts)
    }

    /// The kernel's log, and where it was read.
    pub(crate) fn log(&self) -> std::io::Result<(String, String)> {
        self.log.map_or_else(|| self.system.kernel_log(), |log| Ok(log.clone()))
    }

    /// Whether this is a pod of Kubernetes, whose fixes belong into its manifest.
    pub(crate) fn in_pod(&self) -> bool {
        self.machine.container.as_deref() == Some("kubernetes")
    }
}
