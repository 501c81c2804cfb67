//! Which engines serve a device, in which order, and why others do not.

use std::sync::Arc;

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

use super::candidate::{EngineCandidate, EngineParts};
use super::engine::Engine;
use super::noop::Noop;
use super::permission::{DeviceOptions, Permission};
use super::staged::ByLanes;
use super::{ELECTED, registry};
use crate::request::receipt::{EngineKind, Note, Refusal};

/// What was chosen for a device, before anything is known of a transfer.
#[derive(Clone)]
pub(crate) struct Choice {
    /// The engine that serves what no better one takes, or the only one.
    pub(crate) engine: EngineKind,
    /// Engines that will not serve this device, with the reason.
    pub(crate) refused: Vec<Refusal>,
    /// Engines that stand for election, best first, and whether they may be used.
    candidates: Vec<(&'static dyn EngineCandidate, Permission)>,
    /// Notes on options.
    pub(crate) notes: Vec<Note>,
}

impl Choice {
    /// Whether an engine that stands for election may be used.
    pub(crate) fn permission(&self, engine: EngineKind) -> Option<&Permission> {
        self.candidates.iter().find(|(one, _)| one.kind() == engine).map(|(_, permission)| permission)
    }

    fn is_elected(&self, engine: EngineKind) -> bool {
        self.permission(engine).is_some()
    }
}

/// The engines that serve a device, best first.
pub(crate) fn list(
    choice: &Choice,
    parts: &EngineParts<'_>,
    by_lanes: ByLanes,
) -> Result<Arc<[Arc<dyn Engine>]>> {
    let config = parts.config;
    let mut list: Vec<Arc<dyn Engine>> = Vec::new();
    // What a program's engine leaves, or gives back, goes to the lanes, unless strict forbids them.
    let mut may_stage = match choice.engine {
        EngineKind::Noop | EngineKind::Libcufile => false,
        EngineKind::Registered(_) => config.strict.is_empty() || allowed(config)?.contains(&by_lanes.kind),
        _ => true,
    };
    match choice.engine {
        EngineKind::Noop => list.push(Arc::new(Noop)),
        EngineKind::Libcufile | EngineKind::Registered(_) if !choice.is_elected(choice.engine) => {
            let made = registry::make(choice.engine.name(), parts.device, config);
            list.push(made.unwrap_or_else(|| Err(not_registered(choice.engine)))?);
        }
        _ => {
            let is_offered = config.engine.is_none() && !parts.device.info().is_host;
            for (candidate, permission) in &choice.candidates {
                if !matches!(permission, Permission::Never(_)) || is_offered && candidate.tells_refusal() {
                    list.push(candidate.make(parts, permission.clone())?);
                }
                may_stage &= *permission != Permission::Only || candidate.leaves_rest();
            }
        }
    }
    // The last engine takes all that is left.
    if may_stage {
        list.push(Arc::new(by_lanes));
    }
    Ok(list.into())
}

/// The kind of an engine that an option names: a built-in one or a registered one.
fn kind(name: &str) -> Result<EngineKind> {
    name.parse().or_else(|error| registry::registered(name).map(EngineKind::Registered).ok_or(error))
}

fn not_registered(kind: EngineKind) -> Error {
    Error::new(ErrorKind::Unsupported, format!("engine {kind} cannot do this: the program does not have it"))
        .hint("call forebay::libcufile::register() before the session is opened")
}

/// Chooses the engines for memory of `device`. Fails if the options ask for an engine that cannot serve it.
pub(crate) fn elect(device: &dyn Device, config: &Config) -> Result<Choice> {
    let natural = if device.info().is_host { EngineKind::Host } else { EngineKind::Staged };
    let asked = config.engine.as_deref().map(kind).transpose()?;
    let allowed = allowed(config)?;
    let options = DeviceOptions { device, config, asked, allowed: &allowed };
    let candidates: Vec<_> = registry::with_registered(&ELECTED)
        .into_iter()
        .map(|candidate| (candidate, candidate.permission(&options)))
        .collect();
    let (mut refused, mut of_all) = (Vec::new(), Vec::new());
    for (candidate, permission) in &candidates {
        let Permission::Never(refusal) = permission else { continue };
        if !device.info().is_host && !candidate.tells_refusal() {
            refused.push(refusal.clone());
        }
        of_all.push(refusal.clone());
    }
    let engine = match (alone(&candidates), asked) {
        (Some(only), _) => only,
        (None, Some(engine)) => forced(engine, natural, &of_all)?,
        (None, None) => natural,
    };
    check_strict(engine, &allowed, config, &of_all)?;
    Ok(Choice { engine, refused, candidates, notes: old_name(config).into_iter().collect() })
}

/// The engine that alone may be used; of several the one that takes most of what the others leave.
fn alone(candidates: &[(&'static dyn EngineCandidate, Permission)]) -> Option<EngineKind> {
    const TAKE_MOST: [EngineKind; 3] = [EngineKind::Mapped, EngineKind::P2p, EngineKind::Placed];
    let kinds = candidates.iter().filter(|(_, permission)| *permission == Permission::Only);
    let rank = |kind: &EngineKind| TAKE_MOST.iter().position(|one| one == kind).unwrap_or(TAKE_MOST.len());
    kinds.map(|(candidate, _)| candidate.kind()).min_by_key(rank)
}

/// A note if an option uses an engine's old name.
fn old_name(config: &Config) -> Option<Note> {
    let mut named = config.strict.iter().chain(&config.engine);
    named.find_map(|name| {
        let engine = EngineKind::of_old_name(name)?;
        Some(Note {
            text: format!("the engine `{name}` is called `{engine}` now"),
            hint: Some(format!("write {engine} in FOREBAY_ENGINE, FOREBAY_STRICT and --engine")),
        })
    })
}

/// The engines that strict allows; none if it allows all.
fn allowed(config: &Config) -> Result<Vec<EngineKind>> {
    // "all" names no engine. It makes unaligned heads and tails count too, which they always do.
    config.strict.iter().filter(|name| *name != "all").map(|name| kind(name)).collect()
}

fn forced(engine: EngineKind, natural: EngineKind, refused: &[Refusal]) -> Result<EngineKind> {
    let refusal = refused.iter().find(|refusal| refusal.engine == engine);
    let may = match engine {
        EngineKind::Noop | EngineKind::Registered(_) => refusal.is_none(),
        EngineKind::Libcufile => natural != EngineKind::Host,
        _ => engine == natural,
    };
    if may {
        return Ok(engine);
    }
    let reason = refusal.map_or_else(
        || match engine {
            EngineKind::Host => "the memory is on a device".to_owned(),
            _ => "the memory is host memory".to_owned(),
        },
        |refusal| refusal.reason.clone(),
    );
    let error = Error::new(ErrorKind::Unsupported, format!("engine {engine} cannot do this: {reason}"));
    let error = match refusal.and_then(|refusal| refusal.hint.clone()) {
        Some(hint) => error.hint(hint),
        None => error,
    };
    Err(error.hint(format!("use engine {natural}, or leave the choice to forebay")))
}

fn check_strict(
    engine: EngineKind,
    allowed: &[EngineKind],
    config: &Config,
    refused: &[Refusal],
) -> Result<()> {
    if allowed.is_empty() || allowed.contains(&engine) {
        return Ok(());
    }
    let mut error = Error::new(
        ErrorKind::Strict,
        format!("strict allows {} only, but this transfer would use {engine}", config.strict.join(", ")),
    );
    for refusal in refused.iter().filter(|refusal| allowed.contains(&refusal.engine)) {
        error = error.hint(format!("{} is refused: {}", refusal.engine, refusal.reason));
    }
    if allowed.contains(&EngineKind::Libcufile) {
        error = error.hint("libcufile runs only on request: FOREBAY_ENGINE=libcufile");
    }
    Err(error.hint(format!("allow it: FOREBAY_STRICT={engine}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(engine: Option<&str>, strict: &[&str]) -> Config {
        Config {
            engine: engine.map(str::to_owned),
            strict: strict.iter().map(|name| (*name).to_owned()).collect(),
            ..Config::default()
        }
    }

    #[test]
    fn host_memory_elects_host() {
        let device = forebay_gpu::host::device();
        let choice = elect(device.as_ref(), &config(None, &[])).unwrap();
        assert_eq!((choice.engine, choice.refused.len()), (EngineKind::Host, 0));
    }

    #[test]
    fn strict_fails_before_the_first_byte() {
        let device = forebay_gpu::host::device();
        let error = elect(device.as_ref(), &config(None, &["mapped"])).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Strict);
        assert!(elect(device.as_ref(), &config(None, &["host", "mapped"])).is_ok());
        assert!(elect(device.as_ref(), &config(None, &["hots"])).is_err());
    }

    #[test]
    fn of_several_that_alone_may_be_used_one_is_named() {
        let alone = |kinds: &[EngineKind]| {
            let permission = |kind| if kinds.contains(&kind) { Permission::Only } else { Permission::Auto };
            alone(&ELECTED.map(|candidate| (candidate, permission(candidate.kind()))))
        };
        let (mapped, p2p, placed) = (EngineKind::Mapped, EngineKind::P2p, EngineKind::Placed);
        assert_eq!(alone(&[]), None);
        assert_eq!(alone(&[placed]), Some(placed));
        assert_eq!(alone(&[p2p, placed]), Some(p2p));
        assert_eq!(alone(&[p2p, placed, mapped]), Some(mapped));
    }

    #[test]
    fn an_engine_that_is_not_there_says_so() {
        let device = forebay_gpu::host::device();
        for name in ["mapped", "p2p", "libcufile", "vendor", "staged"] {
            let error = elect(device.as_ref(), &config(Some(name), &[])).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
            assert!(!error.hints().is_empty());
        }
        assert_eq!(elect(device.as_ref(), &config(Some("noop"), &[])).unwrap().engine, EngineKind::Noop);
    }
}
