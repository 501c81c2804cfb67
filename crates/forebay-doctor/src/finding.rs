//! Findings: the fact, its severity, its evidence, its fix. `check` and `doctor` share them.

use serde::Serialize;

use crate::exercise::Hinted;

/// Its severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// No cost now.
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

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name of the rule, for programs.
    pub id: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The fact.
    pub text: String,
    /// The evidence, as `path: text`: `/proc/cmdline: intel_iommu=on`.
    pub evidence: Vec<String>,
    /// The fix, if there is one.
    pub fix: Option<String>,
    /// The server that it is of, as it was named; none for this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl Finding {
    /// Adds evidence: the path and the text read there.
    pub(crate) fn seen(&mut self, place: &str, content: impl AsRef<str>) -> &mut Self {
        let content = content.as_ref().trim();
        if !content.is_empty() {
            self.evidence.push(format!("{place}: {content}"));
        }
        self
    }

    /// Adds evidence: a path that does not exist.
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
        self.0.push(Finding { id, severity, text: text.into(), evidence: Vec::new(), fix, host: None });
        &mut self.0[at]
    }

    pub(crate) fn hinted(&mut self, id: &'static str, severity: Severity, hinted: &Hinted) -> &mut Finding {
        self.add(id, severity, hinted.text.clone(), hinted.fix.as_deref())
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&Finding) -> bool) {
        self.0.retain(keep);
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
