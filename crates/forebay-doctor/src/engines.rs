//! Verdicts: for each target and place, the engines that work, those that do not, why, and the fix.

use forebay_engine::{EngineKind, Moved};
use serde::Serialize;

use crate::cufile::LibcufileFacts;
use crate::direct::{Blocker, DriveRoute};
use crate::exercise::{ExerciseOutcome, ExerciseResult, ExerciseTarget, Hinted, InPlace};
use crate::gpu::GpuFacts;
use crate::machine::{Iommu, MachineFacts};
use crate::storage::{StoragePlace, Udev};

/// The verdict on an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineState {
    /// It moved bytes, and they were correct.
    Works,
    /// A part of it worked, a part failed.
    Partly,
    /// It was tried and failed.
    Fails,
    /// Device, file system or an option does not allow it.
    Refused,
    /// It could not be tried.
    NotExercised,
}

impl EngineState {
    /// For people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Partly => "partly",
            Self::Fails => "fails",
            Self::Refused => "refused",
            Self::NotExercised => "not exercised",
        }
    }
}

/// One engine for one target at one place.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The engine.
    pub engine: &'static str,
    /// The target.
    pub target: ExerciseTarget,
    /// The place's path.
    pub place: String,
    /// The verdict.
    pub state: EngineState,
    /// Reasons and results, the most important first.
    pub reasons: Vec<Hinted>,
    /// The exercise behind it, for engines that can be tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exercise: Option<ExerciseResult>,
}

/// All verdicts for one target at one place.
pub fn verdicts(
    machine: &MachineFacts,
    library: Option<&LibcufileFacts>,
    gpu: Option<&GpuFacts>,
    place: &StoragePlace,
    exercised: ExerciseResult,
    in_place: Option<InPlace>,
    route: Option<&DriveRoute>,
) -> Vec<Verdict> {
    let target = exercised.target.clone();
    let make = |engine: EngineKind, state, reasons, exercise| Verdict {
        engine: engine.name(),
        target: target.clone(),
        place: place.path.clone(),
        state,
        reasons,
        exercise,
    };
    // Where the user requested NVIDIA's library, that was exercised.
    let by_libcufile = exercised.engine.as_deref() == Some(EngineKind::Libcufile.name());
    let engine = match target {
        ExerciseTarget::Host => EngineKind::Host,
        ExerciseTarget::Gpu(_) if by_libcufile => EngineKind::Libcufile,
        ExerciseTarget::Gpu(_) | ExerciseTarget::Bar(_) => EngineKind::Staged,
    };
    let mut all = vec![make(engine, state(&exercised), summary(engine, &exercised), Some(exercised))];
    if let Some(in_place) = in_place {
        let (state, reason) = mapped(in_place);
        all.push(make(EngineKind::Mapped, state, vec![reason], None));
    }
    if gpu.is_some() {
        all.push(make(EngineKind::P2p, EngineState::Refused, p2p(route), None));
        if !by_libcufile {
            all.push(make(
                EngineKind::Libcufile,
                EngineState::NotExercised,
                libcufile(machine, library, place),
                None,
            ));
        }
    }
    all
}

/// The result of a server's writes into a GPU's memory.
pub(crate) fn by_server(target: ExerciseTarget, place: &StoragePlace, tried: InPlace) -> Verdict {
    let (state, reason) =
        one_engine(tried, |bytes| format!("the server placed {} by RDMA; bytes compared", size(bytes)));
    let (place, reasons) = (place.path.clone(), vec![reason]);
    Verdict { engine: EngineKind::Placed.name(), target, place, state, reasons, exercise: None }
}

/// The result of a drive's own transfers. A missing path is no failure.
pub(crate) fn by_drive(place: &StoragePlace, exercised: ExerciseResult) -> Verdict {
    let found = match state(&exercised) {
        EngineState::NotExercised => EngineState::Refused,
        other => other,
    };
    Verdict {
        engine: EngineKind::P2p.name(),
        target: exercised.target.clone(),
        place: place.path.clone(),
        state: found,
        reasons: summary(EngineKind::P2p, &exercised),
        exercise: Some(exercised),
    }
}

fn mapped(in_place: InPlace) -> (EngineState, Hinted) {
    one_engine(in_place, |bytes| {
        format!("read {} in place, from pages pinned in the page cache; bytes compared", size(bytes))
    })
}

fn one_engine(tried: InPlace, done: impl Fn(u64) -> String) -> (EngineState, Hinted) {
    match tried {
        InPlace::Works { bytes, .. } => (EngineState::Works, Hinted::new(done(bytes))),
        InPlace::Refused(why) => (EngineState::Refused, why),
        InPlace::Failed(why) => (EngineState::Fails, why),
        InPlace::Skipped(why) => (EngineState::NotExercised, why),
    }
}

fn state(exercised: &ExerciseResult) -> EngineState {
    let outcomes = exercised.outcomes();
    let works = outcomes.iter().any(|(_, outcome)| matches!(outcome, ExerciseOutcome::Works { .. }));
    let fails = outcomes.iter().any(|(_, outcome)| matches!(outcome, ExerciseOutcome::Failed(_)));
    match (works, fails) {
        (true, true) => EngineState::Partly,
        (true, false) => EngineState::Works,
        (false, true) => EngineState::Fails,
        (false, false) => EngineState::NotExercised,
    }
}

/// Bytes for people: whole units where they are whole.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let scaled = bytes as f64 / (1u64 << (10 * unit)) as f64;
    if scaled.fract() < 0.05 || scaled >= 100.0 {
        format!("{scaled:.0} {}", UNITS[unit])
    } else {
        format!("{scaled:.1} {}", UNITS[unit])
    }
}

/// Bytes by the way they took, for people.
pub(crate) fn ways(moved: Moved) -> String {
    if moved.total() == 0 {
        return size(0);
    }
    let parts = moved.taken().map(|(way, bytes)| format!("{} {}", size(bytes), way.words()));
    parts.collect::<Vec<_>>().join(" + ")
}

fn summary(expected: EngineKind, exercised: &ExerciseResult) -> Vec<Hinted> {
    let mut done = Vec::new();
    let mut reasons = Vec::new();
    for (name, outcome) in exercised.outcomes() {
        match outcome {
            ExerciseOutcome::Works { moved, .. } => done.push(format!("{name} {}", ways(*moved))),
            ExerciseOutcome::Failed(why) => {
                reasons.push(Hinted { text: format!("{name} failed: {}", why.text), fix: why.fix.clone() });
            }
            ExerciseOutcome::Skipped(why) => {
                let text = format!("{name} not exercised: {}", why.text);
                reasons.push(Hinted { text, fix: why.fix.clone() });
            }
        }
    }
    // A reason that all three share is printed once.
    if let [
        (_, ExerciseOutcome::Skipped(a)),
        (_, ExerciseOutcome::Skipped(b)),
        (_, ExerciseOutcome::Skipped(c)),
    ] = exercised.outcomes()
        && a == b
        && b == c
    {
        reasons = vec![a.clone()];
    }
    if !done.is_empty() {
        reasons.insert(0, Hinted::new(format!("{}; bytes compared", done.join(", "))));
    }
    if let Some(engine) = exercised.engine.as_deref().filter(|engine| *engine != expected.name()) {
        let text = format!("the bytes went through the engine {engine}, not through {expected}");
        reasons.push(Hinted::new(text).fix("unset FOREBAY_ENGINE FOREBAY_STRICT"));
    }
    reasons
}

/// Why the drive cannot reach this GPU's memory here. The engine moves bytes into memory that a driver lets programs map.
fn p2p(route: Option<&DriveRoute>) -> Vec<Hinted> {
    const NO_OFFER: &str = "no driver offers a GPU's memory in a way that this version of forebay has code for \
                            (see direct path)";
    let mut reasons: Vec<Hinted> =
        route.into_iter().flat_map(|route| &route.blockers).map(Blocker::reason).collect();
    reasons.push(if reasons.is_empty() {
        Hinted::new(format!("{NO_OFFER}; no other obstacle was found, and nothing is proven"))
    } else {
        Hinted::new(NO_OFFER)
    });
    reasons
}

/// Whether NVIDIA's own library would work here.
fn libcufile(machine: &MachineFacts, library: Option<&LibcufileFacts>, place: &StoragePlace) -> Vec<Hinted> {
    let Some(library) = library else {
        return vec![
            Hinted::new("NVIDIA's libcufile is not installed")
                .fix("pip install nvidia-cufile (only if you need it)"),
        ];
    };
    let version = library.version.as_deref().unwrap_or("of unknown version");
    let text = format!("only on request; libcufile {version} is at {}", library.path);
    let mut reasons = vec![Hinted::new(text).fix("FOREBAY_ENGINE=libcufile forebay check")];
    if machine.nvidia_fs.is_none() {
        reasons.push(Hinted::new(
            "nvidia-fs is not loaded: libcufile would copy through host memory (its compat mode)",
        ));
    }
    reasons.extend(udev_refusal(place));
    if machine.iommu == Iommu::Translating {
        reasons.push(Hinted::new("the IOMMU translates: NVIDIA does not guarantee that GDS works then"));
    }
    reasons
}

/// Why cuFileHandleRegister would fail for files of this place, and the way around it.
pub(crate) fn udev_refusal(place: &StoragePlace) -> Option<Hinted> {
    let what = match place.udev {
        Udev::Present => return None,
        Udev::NoDatabase => "there is no udev database (/run/udev/data)",
        Udev::NoEntry => "udev's database has no entry for it",
        Udev::Incomplete => "udev's entry for it lacks ID_FS_USAGE",
    };
    let text = format!(
        "libcufile (seen with 1.14 and 1.15) cannot register files of {} (device {}): {what}; cuFileHandleRegister fails \
         with 5027, before 1.15 with 5030",
        place.mount_point, place.device
    );
    if place.device.starts_with("0:") {
        return Some(Hinted::new(text).fix("try libcufile 1.17 or later: pip install -U nvidia-cufile"));
    }
    Some(Hinted::new(text).fix(format!(
        "in a container: add -v /run/udev:/run/udev:ro; or write the entry: mkdir -p /run/udev/data && printf \
         'E:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE={}\\n' > /run/udev/data/b{}",
        place.file_system, place.device
    )))
}

#[cfg(test)]
mod tests {
    use forebay_engine::Way;

    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(size(8 << 20), "8 MiB");
        assert_eq!(size(1), "1 B");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(size(141 << 30), "141 GiB");
    }

    #[test]
    fn ways_for_people() {
        assert_eq!(ways(Moved::of(Way::Direct, 8 << 20)), "8 MiB O_DIRECT");
        let both = Moved::of(Way::Direct, 5).plus(Moved::of(Way::Cached, 1));
        assert_eq!(ways(both), "1 B page cache + 5 B O_DIRECT");
    }
}
