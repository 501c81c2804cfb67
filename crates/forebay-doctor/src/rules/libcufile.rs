//! NVIDIA's libcufile and its configuration file.

use crate::engines::udev_refusal;
use crate::finding::{Facts, Findings, Severity};
use crate::storage::{DiskKind, Udev};

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    if facts.library.is_none() {
        return;
    }
    // Without a database all places fail alike: one finding.
    let no_database = facts.places.first().is_some_and(|place| place.udev == Udev::NoDatabase);
    let refused = facts.places.iter().filter(|place| place.kind != DiskKind::Memory).filter_map(udev_refusal);
    for why in refused.take(if no_database { 1 } else { usize::MAX }) {
        found.hinted("udev", Severity::Note, &why);
    }
}
