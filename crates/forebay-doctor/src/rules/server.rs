//! Servers of NFS mounts: their answers, and whether their files show all.

use super::rdma;
use crate::exercise::{Answer, ServerAnswers};
use crate::facts::Facts;
use crate::finding::{Finding, Findings, Severity};

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    for one in facts.tried.iter().flat_map(|tried| tried.servers) {
        let text = |answer: &Answer| format!("{}: {}", one.mount_point, answer.said().text);
        let fix = |answer: &Answer| answer.said().fix.clone();
        let (handle, any_port, rdma) = (&one.handle, &one.any_port, &one.rdma);
        found
            .add("nfs-handle", severity(handle), text(handle), fix(handle).as_deref())
            .seen("name_to_handle_at", if matches!(handle, Answer::Yes(_)) { "told" } else { "not told" });
        asked(found.add("nfs-any-port", severity(any_port), text(any_port), fix(any_port).as_deref()), one);
        asked(found.add("nfs-rdma-port", severity(rdma), text(rdma), fix(rdma).as_deref()), one);
    }
}

fn asked(finding: &mut Finding, one: &ServerAnswers) {
    finding.seen("asked", one.server.as_deref().unwrap_or_default());
}

const fn severity(answer: &Answer) -> Severity {
    match answer {
        Answer::Yes(_) => Severity::Ok,
        Answer::No(_) | Answer::Unknown(_) => Severity::Note,
    }
}

/// A machine whose files were collected as those of a server.
pub(super) fn of_copy(facts: &Facts<'_>, found: &mut Findings) {
    if !rdma::serves(facts.system) {
        let text = "no NFS server of the kernel runs there";
        let fix = "sudo systemctl enable --now nfs-server (nfs-kernel-server); another server than the kernel's has its own tools";
        found.add("nfs-server-absent", Severity::Note, text, Some(fix)).missing("/proc/fs/nfsd/portlist");
    }
}
