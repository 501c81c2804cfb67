//! NVIDIA's libcufile and its configuration file.

use forebay_ways::EngineKind;

use super::edit::json_line;
use crate::engines::udev_refusal;
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::storage::{DiskKind, Udev};

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    configuration(facts, found);
    if is_used(facts) {
        udev(facts, found);
    }
}

/// NVIDIA's library moves the bytes: of the process that is looked at, or because it was asked for. Where it is only
/// installed, as beside torch, nothing depends on udev.
fn is_used(facts: &Facts<'_>) -> bool {
    let loaded = facts.process.is_some_and(|process| process.libraries.iter().any(|library| !library.own));
    let asked = facts
        .config
        .as_ref()
        .is_ok_and(|config| config.engine.as_deref() == Some(EngineKind::Libcufile.name()));
    loaded || (facts.library.is_some() && asked)
}

/// Settings of the file that libcufile ignores: a process with this file does not get them.
fn configuration(facts: &Facts<'_>, found: &mut Findings) {
    let path = facts.cufile.path.as_deref().unwrap_or("/etc/cufile.json");
    let severity = if facts.process.is_some() { Severity::Slower } else { Severity::Note };
    if let Some(error) = &facts.cufile.error {
        let fix = format!("correct it: forebay check -p shows the settings read from {path}");
        let text = format!("{error}: libcufile's defaults hold");
        found.add("cufile-json", severity, text, Some(&fix)).seen(path, error);
    }
    let file = facts.system.read_plain(path).unwrap_or_default();
    let file = String::from_utf8_lossy(&file);
    for key in &facts.cufile.ignored {
        let (name, why) = key.split_once(": ").unwrap_or((key, "unknown"));
        let text = format!("{path}: libcufile ignores {key}");
        let place = json_line(&file, name).map_or_else(|| path.to_owned(), |line| format!("{path}:{line}"));
        let fix = format!("edit {place}: {why}");
        found.add("cufile-json", severity, text, Some(&fix)).seen(&place, name);
    }
}

fn udev(facts: &Facts<'_>, found: &mut Findings) {
    // Without a database all places fail in the same way: one finding.
    let no_database = facts.places.first().is_some_and(|place| place.udev == Udev::NoDatabase);
    let on_disk =
        facts.places.iter().filter(|place| place.kind != DiskKind::Memory && !place.device.is_empty());
    let refused = on_disk.filter_map(|place| Some((place, udev_refusal(place)?)));
    for (place, why) in refused.take(if no_database { 1 } else { usize::MAX }) {
        let finding = found.hinted("udev", Severity::Note, &why);
        match place.udev {
            Udev::NoDatabase => finding.missing("/run/udev/data"),
            Udev::NoEntry | Udev::Present => finding.missing(&format!("/run/udev/data/b{}", place.device)),
            Udev::Incomplete => finding.seen(&format!("/run/udev/data/b{}", place.device), "no ID_FS_USAGE"),
        };
    }
}
