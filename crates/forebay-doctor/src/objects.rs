//! Objects of S3: what keeps them from this machine, and from RDMA.

use forebay_error::{Error, ErrorKind};
use forebay_objects::{ObjectUrl, Weight, examine, rdma_of};

use crate::doctor::DoctorOptions;
use crate::finding::{Finding, Severity};
use crate::machine::MachineFacts;
use crate::rules::of_rdma;
use crate::system::System;

/// Asks the servers of objects, as this process's environment reaches them. Leaves out findings that are there.
pub(crate) fn look(system: &dyn System, options: &DoctorOptions, known: &[Finding]) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut seen = options.rdma.clone();
    for url in &options.objects {
        let found = by_http(url);
        let is_reached = found.iter().all(|finding| finding.severity < Severity::Blocks);
        all.extend(found);
        if is_reached {
            match rdma_of(url) {
                Ok(rdma) => seen.extend(rdma),
                Err(error) => all.push(unasked(&error)),
            }
        }
    }
    let machine = MachineFacts::probe(system);
    for finding in seen.iter().flat_map(|rdma| of_rdma(system, &machine, rdma)) {
        if !known.contains(&finding) && !all.contains(&finding) {
            all.push(finding);
        }
    }
    all
}

fn by_http(url: &ObjectUrl) -> Vec<Finding> {
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

/// A setting is wrong, or the object's head cannot be read.
fn unasked(error: &Error) -> Finding {
    Finding {
        id: "s3-rdma",
        severity: if error.kind() == ErrorKind::InvalidInput { Severity::Blocks } else { Severity::Note },
        text: error.to_string(),
        evidence: Vec::new(),
        fix: error.hints().first().cloned(),
        host: None,
    }
}
