//! forebay's own part of the report, for people.

use std::fmt::Write;

use forebay_error::plain;

use crate::direct::{DriveRoute, PciWay};
use crate::engines::{EngineState, Verdict, size};
use crate::exercise::{ExerciseTarget, Hinted, LaneFacts, PinBudget};
use crate::finding::{Finding, Severity, counted};
use crate::report::{CheckReport, Overall};
use crate::storage::{NfsMount, StoragePlace};

macro_rules! line {
    ($out:expr, $($arg:tt)*) => {{ let _ = writeln!($out, $($arg)*); }};
}

/// Engines per target and place, then the findings.
pub fn text(report: &CheckReport) -> String {
    let mut out = String::new();
    line!(out, "{}", summary(report));
    let mut targets: Vec<ExerciseTarget> = Vec::new();
    for verdict in &report.verdicts {
        if !targets.contains(&verdict.target) {
            targets.push(verdict.target.clone());
        }
    }
    for target in targets {
        line!(out, "\n{}", title(report, &target));
        // A reason that several places share is printed once for the target.
        let shared = shared(report, &target);
        for place in &report.places {
            line!(out, "  {}", place_title(place));
            for verdict in report.verdicts.iter().filter(|v| v.target == target && v.place == place.path) {
                verdict_lines(&mut out, verdict, &shared);
            }
        }
        if !shared.is_empty() {
            line!(out, "  everywhere");
            for (engine, reason) in &shared {
                reason_lines(&mut out, engine, "", reason);
            }
        }
    }
    direct(&mut out, report);
    findings(&mut out, report);
    out
}

/// The memory that drives might reach by themselves, and what prevents it. Reasons already printed for an engine are
/// only named.
fn direct(out: &mut String, report: &CheckReport) {
    line!(out, "\ndirect path: drives into device memory, without a copy through the host");
    if report.memories.is_empty() {
        line!(out, "  no device here has memory for it: there is no GPU, and no PCI device publishes p2pmem");
        if report.machine.kernel_p2pdma == Some(false) {
            line!(out, "  the kernel is built without CONFIG_PCI_P2PDMA, too");
        }
    }
    for memory in &report.memories {
        let bytes = match memory.bytes {
            Some(bytes) => size(bytes),
            None => "no peer-to-peer memory".to_owned(),
        };
        line!(out, "  {} {} ({bytes})", memory.pci, memory.name);
        let gpu = report.gpus.iter().find(|gpu| gpu.pci == memory.pci).and_then(|gpu| gpu.index);
        let mut rest: Vec<String> = Vec::new();
        for route in report.routes.iter().filter(|route| route.memory == memory.pci) {
            line!(out, "    {}: {}", route.place, standing(route));
            for blocker in route.blockers.iter().filter(|_| gpu.is_none()) {
                line!(out, "      {}", blocker.text);
                if let Some(fix) = &blocker.fix {
                    line!(out, "      fix: {fix}");
                }
            }
            let notes = route.notes.iter().map(|note| format!("note: {note}"));
            let unread = route.unread.iter().map(|what| format!("could not be read: {what}"));
            for line in notes.chain(unread) {
                if !rest.contains(&line) {
                    rest.push(line);
                }
            }
        }
        for text in rest {
            line!(out, "    {text}");
        }
    }
}

/// The state of a route, in a line.
fn standing(route: &DriveRoute) -> String {
    let ids: Vec<&str> = route.blockers.iter().map(|blocker| blocker.id).collect();
    let mut text = route.reach.label().to_owned();
    if !ids.is_empty() {
        let _ = write!(text, " ({})", ids.join(", "));
    }
    match &route.way {
        None => {}
        Some(PciWay::SameDevice) => text.push_str("; in the drive itself"),
        Some(PciWay::Switch { bridge }) => {
            let _ = write!(text, "; by bridge {bridge}");
        }
        Some(PciWay::HostBridge { bridges }) => {
            let _ = write!(text, "; through the host bridge {}", bridges.join(", "));
        }
    }
    text
}

fn summary(report: &CheckReport) -> String {
    let machine = &report.machine;
    let mut parts = vec![format!("Linux {}", machine.kernel), format!("{} CPUs", machine.cpus)];
    if let Some(memory) = machine.memory {
        parts.push(format!("{} memory", size(memory)));
    }
    if machine.virtual_machine {
        parts.push("virtual machine".to_owned());
    }
    if let Some(container) = &machine.container {
        parts.push(format!("container ({container})"));
    }
    let verdict = match report.overall {
        Overall::Usable => "all usable",
        Overall::Degraded => "usable, degraded",
        Overall::Unusable => "cannot run",
    };
    let pins = report.pin_budget.as_ref().map_or(String::new(), |budget| {
        let PinBudget { bytes, limited_by, registering } = budget;
        format!("\npinned page cache: at most {} ({limited_by}); registering: {registering}", size(*bytes))
    });
    format!("forebay {}: {verdict}\n{}{pins}", report.version, parts.join(", "))
}

fn title(report: &CheckReport, target: &ExerciseTarget) -> String {
    let name = match target {
        ExerciseTarget::Host => "host memory".to_owned(),
        ExerciseTarget::Bar(name) => format!("memory in a PCI BAR: {name}"),
        ExerciseTarget::Gpu(index) => match report.gpus.iter().find(|gpu| gpu.index == Some(*index)) {
            Some(gpu) => format!("GPU {index}: {}, {}, {}", gpu.name, size(gpu.memory), gpu.pci),
            None => format!("GPU {index}"),
        },
    };
    match report.lanes.iter().find(|lanes| lanes.target == *target) {
        Some(l) => format!(
            "{name} ({} × {} of {}, {})",
            lanes_of(l),
            counted(l.slots, "slot"),
            size(l.slot_size as u64),
            l.backend
        ),
        None => name,
    }
}

/// `8 lanes`, `8 of 16 lanes`.
fn lanes_of(facts: &LaneFacts) -> String {
    match facts.most {
        most if most > facts.lanes => format!("{} of {}", facts.lanes, counted(most, "lane")),
        _ => counted(facts.lanes, "lane"),
    }
}

fn place_title(place: &StoragePlace) -> String {
    let mut parts = vec![place.file_system.clone()];
    match (&place.disk, &place.nfs) {
        (Some(disk), _) => parts.push(format!("{} {disk}", place.kind.label())),
        (None, Some(nfs)) => parts.push(nfs_title(nfs)),
        (None, None) if place.kind.label() != place.file_system => parts.push(place.kind.label().to_owned()),
        (None, None) => {}
    }
    if place.read_only {
        parts.push("read-only".to_owned());
    }
    format!("{} ({})", place.path, parts.join(", "))
}

/// How an NFS mount talks to its server.
fn nfs_title(nfs: &NfsMount) -> String {
    let sizes = format!("rsize {}, wsize {}", size(nfs.rsize), size(nfs.wsize));
    let text = format!("NFS {} over {}, {sizes}", nfs.version, nfs.transport);
    if nfs.connections == 1 { text } else { format!("{text}, {} connections", nfs.connections) }
}

/// (engine, reason) pairs of engines that do not work, common to all of several places.
fn shared(report: &CheckReport, target: &ExerciseTarget) -> Vec<(&'static str, Hinted)> {
    let mut shared = Vec::new();
    if report.places.len() < 2 {
        return shared;
    }
    let mine: Vec<&Verdict> = report.verdicts.iter().filter(|verdict| verdict.target == *target).collect();
    let is_idle = |verdict: &&&Verdict| match verdict.state {
        EngineState::Refused => true,
        EngineState::NotExercised => verdict.exercise.is_none(),
        _ => false,
    };
    for verdict in mine.iter().filter(is_idle) {
        for reason in &verdict.reasons {
            let count =
                mine.iter().filter(|v| v.engine == verdict.engine && v.reasons.contains(reason)).count();
            let pair = (verdict.engine, reason.clone());
            if count == report.places.len() && !shared.contains(&pair) {
                shared.push(pair);
            }
        }
    }
    shared
}

fn verdict_lines(out: &mut String, verdict: &Verdict, shared: &[(&'static str, Hinted)]) {
    let own: Vec<&Hinted> = verdict
        .reasons
        .iter()
        .filter(|reason| !shared.iter().any(|(engine, known)| *engine == verdict.engine && known == *reason))
        .collect();
    let label = verdict.state.label();
    if own.is_empty() {
        line!(out, "    {:<9} {label}", verdict.engine);
    }
    for (index, reason) in own.into_iter().enumerate() {
        if index == 0 {
            reason_lines(out, verdict.engine, label, reason);
        } else {
            reason_lines(out, "", "", reason);
        }
    }
}

fn reason_lines(out: &mut String, engine: &str, label: &str, reason: &Hinted) {
    line!(out, "    {engine:<9} {label:<13} {}", reason.text);
    if let Some(fix) = &reason.fix {
        line!(out, "    {:<9} {:<13} fix: {fix}", "", "");
    }
}

fn findings(out: &mut String, report: &CheckReport) {
    line!(out, "\nfindings");
    for finding in &report.findings {
        finding_lines(out, finding, "  ");
    }
    line!(out, "{}", counts(&report.findings));
}

/// A finding with its evidence and its fix.
pub(crate) fn finding_lines(out: &mut String, finding: &Finding, indent: &str) {
    let host = finding.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    let (severity, text) = (finding.severity.label(), plain(&finding.text));
    line!(out, "{indent}{severity:<6}  {}{}: {text}", finding.id, plain(&host));
    for evidence in &finding.evidence {
        line!(out, "{indent}{:<6}  seen: {}", "", plain(evidence));
    }
    if let Some(fix) = &finding.fix {
        line!(out, "{indent}{:<6}  fix{}: {}", "", plain(&host), plain(fix));
    }
}

/// How many there are of each severity.
pub(crate) fn counts(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let [blocks, slower, notes, ok] =
        [Severity::Blocks, Severity::Slower, Severity::Note, Severity::Ok].map(count);
    format!("{blocks} blocking, {slower} slower, {}, {ok} ok", counted(notes, "note"))
}
