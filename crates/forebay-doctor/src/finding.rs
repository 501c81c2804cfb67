//! Findings: what is so, how bad it is, where it was read, what to type. `check` and `doctor` share them.

use forebay_config::Config;
use serde::Serialize;

use crate::cufile::{CufileConfig, LibcufileFacts};
use crate::doctor::{ProcessFacts, SavedBench};
use crate::engines::Verdict;
use crate::exercise::{ExerciseTarget, Hinted, LaneFacts, Offered};
use crate::gpu::GpuFacts;
use crate::machine::MachineFacts;
use crate::rules;
use crate::storage::StoragePlace;
use crate::system::System;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Costs nothing now.
    Note,
    /// Works, but slower or with less than it could.
    Slower,
    /// Does not work.
    Blocks,
}

impl Severity {
    /// For people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Slower => "slower",
            Self::Blocks => "blocks",
        }
    }
}

/// Something that was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name of the rule, for programs.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is so.
    pub text: String,
    /// Where it was read, and what stood there: `/proc/cmdline: intel_iommu=on`.
    pub evidence: Vec<String>,
    /// What to type, if anything helps.
    pub fix: Option<String>,
}

impl Finding {
    /// Adds what was read, and where.
    pub(crate) fn seen(&mut self, place: &str, content: impl AsRef<str>) -> &mut Self {
        let content = content.as_ref().trim();
        if !content.is_empty() {
            self.evidence.push(format!("{place}: {content}"));
        }
        self
    }

    /// Adds what is not there.
    pub(crate) fn missing(&mut self, place: &str) -> &mut Self {
        self.seen(place, "not there")
    }
}

/// All that the rules look at.
pub(crate) struct Facts<'a> {
    pub system: &'a dyn System,
    pub machine: &'a MachineFacts,
    pub offered: &'a Offered,
    pub gpus: &'a [GpuFacts],
    pub places: &'a [StoragePlace],
    pub config: &'a Result<Config, Hinted>,
    pub cufile: &'a CufileConfig,
    pub library: Option<&'a LibcufileFacts>,
    /// What was tried; none where nothing was to be tried.
    pub tried: Option<Tried<'a>>,
    /// The process whose view `system` is.
    pub process: Option<&'a ProcessFacts>,
    /// A kernel log in place of the machine's own, and its name.
    pub log: Option<&'a (String, String)>,
    pub benches: &'a [SavedBench],
}

/// What came of the exercise.
#[derive(Clone, Copy)]
pub(crate) struct Tried<'a> {
    pub lanes: &'a [Result<LaneFacts, (ExerciseTarget, Hinted)>],
    pub verdicts: &'a [Verdict],
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

    /// Whether this is a pod of Kubernetes, whose fixes stand in its manifest.
    pub(crate) fn in_pod(&self) -> bool {
        self.machine.container.as_deref() == Some("kubernetes")
    }
}

/// Findings as they are collected.
#[derive(Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn add(
        &mut self,
        id: &'static str,
        severity: Severity,
        text: impl Into<String>,
        fix: Option<&str>,
    ) -> &mut Finding {
        let fix = fix.map(str::to_owned);
        let at = self.0.len();
        self.0.push(Finding { id, severity, text: text.into(), evidence: Vec::new(), fix });
        &mut self.0[at]
    }

    pub(crate) fn hinted(&mut self, id: &'static str, severity: Severity, hinted: &Hinted) -> &mut Finding {
        self.add(id, severity, hinted.text.clone(), hinted.fix.as_deref())
    }

    /// Worst first.
    pub(crate) fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self.0
    }
}

/// All findings, worst first.
pub(crate) fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Findings::default();
    rules::apply(facts, &mut found);
    found.sorted()
}
