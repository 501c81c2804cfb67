//! The rules: each looks at the facts and says what is wrong. A file for each part of the machine.

mod bus;
mod gpu;
mod io;
mod libcufile;
mod limits;
mod surroundings;
mod transfer;

use crate::finding::{Facts, Findings, Severity};

/// All rules, in the order in which findings of one severity are shown.
pub(crate) fn apply(facts: &Facts<'_>, found: &mut Findings) {
    if let Err(why) = facts.config {
        found.hinted("config-invalid", Severity::Blocks, why);
    }
    gpu::find(facts, found);
    transfer::find(facts, found);
    io::find(facts, found);
    limits::find(facts, found);
    surroundings::find(facts, found);
    bus::find(facts, found);
    libcufile::find(facts, found);
}
