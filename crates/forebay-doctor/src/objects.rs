//! Objects of S3: what keeps them from this machine.

use forebay_objects::{ObjectUrl, Weight, examine};

use crate::finding::{Finding, Severity};

/// Asks the server of a URL, as this process's environment reaches it.
pub(crate) fn look(url: &ObjectUrl) -> Vec<Finding> {
    let severity = |weight| match weight {
        Weight::Good => Severity::Ok,
        Weight::Note => Severity::Note,
        Weight::Bad => Severity::Blocks,
    };
    let found = examine(url).into_iter().map(|one| Finding {
        id: one.id,
        severity: severity(one.weight),
        text: one.text,
        evidence: one.seen.into_iter().map(|(place, content)| format!("{place}: {content}")).collect(),
        fix: one.fix,
        host: None,
    });
    found.collect()
}
