//! Which engines serve a device, in which order, and why others do not.

use std::sync::Arc;

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Access, Device};

use super::Engine;
use super::mapped::Mapped;
use super::noop::Noop;
use super::p2p::{self, P2p};
use super::permission::Permission;
use super::placed::{self, Placed};
use super::staged::ByLanes;
use crate::request::receipt::{EngineKind, Note, Refusal};

/// What was chosen for a device, before anything is known of a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The engine that serves what no better one takes, or the only one.
    pub(crate) engine: EngineKind,
    /// Engines that will not serve this device, with the reason.
    pub(crate) refused: Vec<Refusal>,
    /// Whether warm files may be read in place.
    pub(crate) mapped: Permission,
    /// Whether drives may move bytes to or from the device by themselves.
    pub(crate) p2p: Permission,
    /// Whether servers may write into the device's memory.
    pub(crate) rdma: Permission,
    /// Notes on options.
    pub(crate) notes: Vec<Note>,
}

/// The engines that serve a device, best first. Add a new engine here.
pub(crate) fn list(
    choice: &Choice,
    (device, config): (&Arc<dyn Device>, &Config),
    (p2p, rdma, mapped, by_lanes): (Arc<P2p>, Arc<Placed>, Arc<Mapped>, ByLanes),
) -> Result<Arc<[Arc<dyn Engine>]>> {
    let may = |permission: &Permission| !matches!(permission, Permission::Never(_));
    let mut list: Vec<Arc<dyn Engine>> = Vec::new();
    match choice.engine {
        EngineKind::Noop => list.push(Arc::new(Noop)),
        EngineKind::Libcufile | EngineKind::Registered(_) => {
            let made = super::make(choice.engine.name(), device, config);
            list.push(made.unwrap_or_else(|| Err(not_registered(choice.engine)))?);
            // What a program's engine leaves, or gives back, goes to the lanes, unless strict forbids them.
            let may_stage = config.strict.is_empty() || allowed(config)?.contains(&by_lanes.kind);
            if may_stage && matches!(choice.engine, EngineKind::Registered(_)) {
                list.push(Arc::new(by_lanes));
            }
        }
        EngineKind::P2p | EngineKind::Rdma | EngineKind::Mapped | EngineKind::Staged | EngineKind::Host => {
            if may(&choice.p2p) {
                list.push(p2p);
            }
            // Where it may not be used it says so, of files on servers alone.
            if config.engine.is_none() && !device.info().is_host || may(&choice.rdma) {
                list.push(rdma);
            }
            if may(&choice.mapped) {
                list.push(Arc::new(mapped));
            }
            // The last engine takes all that is left. With `mapped` alone there is none: `mapped` stages what it cannot
            // read in place.
            if choice.mapped != Permission::Only {
                list.push(Arc::new(by_lanes));
            }
        }
    }
    Ok(list.into())
}

/// The kind of an engine that an option names: a built-in one or a registered one.
fn kind(name: &str) -> Result<EngineKind> {
    name.parse().or_else(|error| super::registered(name).map(EngineKind::Registered).ok_or(error))
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
    let mapped = mapped_mode(device, config, asked, &allowed);
    let p2p = p2p::mode(device, asked, &allowed);
    let rdma = placed::mode(device, asked, &allowed);
    let never = |permission: &Permission| match permission {
        Permission::Never(refusal) => Some(refusal.clone()),
        Permission::Auto | Permission::Only => None,
    };
    let refused: Vec<_> =
        [&p2p, &mapped].into_iter().filter_map(never).filter(|_| !device.info().is_host).collect();
    // Receipts tell it of files on servers alone.
    let of_all: Vec<_> = refused.iter().cloned().chain(never(&rdma)).collect();
    let engine = match asked {
        _ if mapped == Permission::Only => EngineKind::Mapped,
        _ if p2p == Permission::Only => EngineKind::P2p,
        _ if rdma == Permission::Only => EngineKind::Rdma,
        Some(engine) => forced(engine, natural, &of_all)?,
        None => natural,
    };
    check_strict(engine, &allowed, config, &of_all)?;
    Ok(Choice { engine, refused, mapped, p2p, rdma, notes: old_name(config).into_iter().collect() })
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

/// Whether pages may be read in place: the device must be able to, and no option may forbid it.
fn mapped_mode(
    device: &dyn Device,
    config: &Config,
    asked: Option<EngineKind>,
    allowed: &[EngineKind],
) -> Permission {
    let never = |reason: String, hint: Option<String>| {
        Permission::Never(Refusal { engine: EngineKind::Mapped, reason, hint })
    };
    if device.info().is_host {
        return never(
            "the memory is host memory".to_owned(),
            Some("use memory of a GPU; without one, forebay check says why it is missing".to_owned()),
        );
    }
    if let Err(error) = device.can_register(Access::ReadOnly) {
        return never(error.message().to_owned(), error.hints().first().cloned());
    }
    if config.pin_budget == Some(0) {
        let hint = "unset FOREBAY_PIN_BUDGET".to_owned();
        return never("pinning is switched off (FOREBAY_PIN_BUDGET=0)".to_owned(), Some(hint));
    }
    Permission::of_options(EngineKind::Mapped, asked, allowed)
}

fn forced(engine: EngineKind, natural: EngineKind, refused: &[Refusal]) -> Result<EngineKind> {
    let may = match engine {
        EngineKind::Noop | EngineKind::Registered(_) => true,
        EngineKind::Libcufile => natural != EngineKind::Host,
        _ => engine == natural,
    };
    if may {
        return Ok(engine);
    }
    let refusal = refused.iter().find(|refusal| refusal.engine == engine);
    let reason = refusal.map_or_else(
        || match engine {
            EngineKind::Host => "the memory is on a device".to_owned(),
            EngineKind::Staged
            | EngineKind::Mapped
            | EngineKind::P2p
            | EngineKind::Rdma
            | EngineKind::Libcufile => "the memory is host memory".to_owned(),
            EngineKind::Noop | EngineKind::Registered(_) => "it was not asked for".to_owned(),
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
        error = error.hint("libcufile only works when it is asked for: FOREBAY_ENGINE=libcufile");
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
        let error = elect(device.as_ref(), &config(None, &["mapped"])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Strict);
        assert!(elect(device.as_ref(), &config(None, &["host", "mapped"])).is_ok());
        assert!(elect(device.as_ref(), &config(None, &["hots"])).is_err());
    }

    #[test]
    fn an_engine_that_is_not_there_says_so() {
        let device = forebay_gpu::host::device();
        for name in ["mapped", "p2p", "libcufile", "vendor", "staged"] {
            let error = elect(device.as_ref(), &config(Some(name), &[])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
            assert!(!error.hints().is_empty());
        }
        assert_eq!(elect(device.as_ref(), &config(Some("noop"), &[])).unwrap().engine, EngineKind::Noop);
    }
}
