//! Findings: what is so, how bad it is, where it was read, what to type. `check` and `doctor` share them.

use serde::Serialize;

use crate::exercise::Hinted;

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

/// `1 lane`, `8 lanes`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
