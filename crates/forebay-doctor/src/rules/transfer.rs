//! Results of the exercise: engines and lanes.

use crate::engines::{EngineState, Verdict};
use crate::exercise::{ExerciseOutcome, ExerciseTarget, Hinted};
use crate::facts::{ExerciseResults, Facts};
use crate::finding::{Findings, Severity};
use crate::machine::IoUring;

pub(super) fn target_name(target: &ExerciseTarget) -> String {
    match target {
        ExerciseTarget::Bar(name) => name.clone(),
        ExerciseTarget::Gpu(index) => format!("GPU {index}"),
        ExerciseTarget::Host => "host memory".to_owned(),
    }
}

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    let Some(tried) = facts.tried else { return };
    nothing_works(facts, tried, found);
    for verdict in tried.verdicts.iter().filter(|verdict| verdict.exercise.is_some()) {
        verdict_finding(facts, verdict, found);
    }
    let alone = tried.verdicts.iter().filter(|verdict| verdict.exercise.is_none());
    for verdict in alone.filter(|verdict| verdict.state == EngineState::Fails) {
        let Some(why) = verdict.reasons.first() else { continue };
        // Other engines still move the bytes.
        let text = format!("{}: {}", verdict_name(verdict), why.text);
        found.add("engine-fails", Severity::Slower, text, why.fix.as_deref());
    }
    lane_findings(facts, tried, found);
}

fn verdict_name(verdict: &Verdict) -> String {
    format!("{} to {} at {}", verdict.engine, target_name(&verdict.target), verdict.place)
}

/// No engine moved a byte. Where nothing was tried, that is no failure.
fn nothing_works(facts: &Facts<'_>, tried: ExerciseResults<'_>, found: &mut Findings) {
    let exercises = || tried.verdicts.iter().filter_map(|verdict| verdict.exercise.as_ref());
    let mut outcomes = exercises().flat_map(|exercise| exercise.outcomes().map(|(_, outcome)| outcome));
    if tried.file_was_read || outcomes.any(|outcome| matches!(outcome, ExerciseOutcome::Works { .. })) {
        return;
    }
    let fix = Some("forebay check -f FILE reads one of your files");
    if facts.places.is_empty() {
        found.add("nothing-works", Severity::Blocks, "no place to read or write was found", fix);
    } else if exercises().any(|exercise| {
        exercise.outcomes().iter().any(|(_, outcome)| matches!(outcome, ExerciseOutcome::Failed(_)))
    }) {
        found.add("nothing-works", Severity::Blocks, "no engine moved any byte anywhere", fix);
    } else {
        let text =
            "nothing was exercised: this user may write to none of the places, and none has a file to read";
        found.add("not-exercised", Severity::Slower, text, fix);
    }
}

fn verdict_finding(facts: &Facts<'_>, verdict: &Verdict, found: &mut Findings) {
    let name = verdict_name(verdict);
    let asked = facts.places.iter().any(|place| place.path == verdict.place && place.asked);
    let reason =
        verdict.reasons.iter().find(|reason| reason.text.contains("failed")).or(verdict.reasons.first());
    let (why, fix) = reason.map_or(("", None), |reason| (reason.text.as_str(), reason.fix.as_deref()));
    match verdict.state {
        EngineState::Fails if asked => {
            found.add("engine-fails", Severity::Blocks, format!("{name}: {why}"), fix);
        }
        EngineState::Fails | EngineState::Partly => {
            found.add("engine-fails", Severity::Slower, format!("{name}: {why}"), fix);
        }
        EngineState::NotExercised => {
            let severity = if asked { Severity::Slower } else { Severity::Note };
            found.add("not-exercised", severity, format!("{name} not exercised: {why}"), fix);
        }
        EngineState::Works | EngineState::Refused => {}
    }
}

fn lane_findings(facts: &Facts<'_>, tried: ExerciseResults<'_>, found: &mut Findings) {
    for failed in tried.lanes.iter().filter_map(|lanes| lanes.as_ref().err()) {
        let hinted = Hinted {
            text: format!("no lanes for {}: {}", target_name(&failed.0), failed.1.text),
            fix: failed.1.fix.clone(),
        };
        found.hinted("no-lanes", Severity::Blocks, &hinted);
    }
    // Where no ring can be made at all, the finding about io_uring says so with its cause.
    let explained = facts.machine.io_uring != IoUring::Works;
    let mut seen: Vec<&Hinted> = Vec::new();
    for note in facts.lanes().flat_map(|lanes| &lanes.notes) {
        let known = explained && note.text.contains("io_uring");
        if !known && !seen.contains(&note) {
            seen.push(note);
            found.hinted("engine-note", Severity::Slower, note);
        }
    }
}
