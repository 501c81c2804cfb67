//! Choosing an engine, with reasons.

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

use crate::receipt::{EngineKind, Refusal};

/// Engines that could serve memory of `device`, refused with a reason; the last one is what is left.
pub(crate) fn elect(device: &dyn Device, config: &Config) -> Result<(EngineKind, Vec<Refusal>)> {
    let natural = if device.info().is_host { EngineKind::Host } else { EngineKind::Staged };
    let refused = refusals(natural);
    let engine = match &config.engine {
        None => natural,
        Some(name) => forced(name.parse()?, natural, &refused)?,
    };
    check_strict(engine, config, &refused)?;
    Ok((engine, refused))
}

/// Why the engines above `natural` cannot be used. Their rooms are in the house; their code is not yet.
fn refusals(natural: EngineKind) -> Vec<Refusal> {
    if natural == EngineKind::Host {
        return Vec::new();
    }
    let refusal = |engine, reason: &str| Refusal { engine, reason: reason.to_owned(), hint: None };
    vec![
        refusal(EngineKind::P2p, "this version of forebay does not have it yet"),
        refusal(EngineKind::Mapped, "this version of forebay does not have it yet"),
    ]
}

fn forced(engine: EngineKind, natural: EngineKind, refused: &[Refusal]) -> Result<EngineKind> {
    if engine == natural || engine == EngineKind::Noop {
        return Ok(engine);
    }
    let reason = refused.iter().find(|refusal| refusal.engine == engine).map_or_else(
        || match engine {
            EngineKind::Host => "the memory is on a device".to_owned(),
            EngineKind::Staged => "the memory is host memory".to_owned(),
            _ => "this version of forebay does not have it yet".to_owned(),
        },
        |refusal| refusal.reason.clone(),
    );
    Err(Error::new(ErrorKind::Unsupported, format!("engine {engine} cannot do this: {reason}"))
        .hint(format!("use engine {natural}, or leave the choice to forebay")))
}

fn check_strict(engine: EngineKind, config: &Config, refused: &[Refusal]) -> Result<()> {
    let mut allowed = Vec::new();
    // "all" asks that heads and tails count too: with the engines of today they always do.
    for name in config.strict.iter().filter(|name| *name != "all") {
        allowed.push(name.parse::<EngineKind>()?);
    }
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
    Err(error.hint(format!("allow it: strict = {engine}")))
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
        let (engine, refused) = elect(device.as_ref(), &config(None, &[])).unwrap();
        assert_eq!((engine, refused.len()), (EngineKind::Host, 0));
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
        for name in ["mapped", "p2p", "vendor", "staged"] {
            let error = elect(device.as_ref(), &config(Some(name), &[])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
            assert!(!error.hints().is_empty());
        }
        assert_eq!(elect(device.as_ref(), &config(Some("noop"), &[])).unwrap().0, EngineKind::Noop);
    }
}
