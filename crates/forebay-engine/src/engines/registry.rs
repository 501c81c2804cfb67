//! Engines that programs register.

use std::sync::{Arc, Mutex};

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

use super::candidate::EngineCandidate;
use super::engine::Engine;
use crate::request::receipt::EngineKind;
use crate::runtime::lock;

/// Makes a registered engine for a device.
type Make = Arc<dyn Fn(&Arc<dyn Device>, &Config) -> Result<Arc<dyn Engine>> + Send + Sync>;

/// How a registered engine comes to serve a device.
#[derive(Clone)]
enum Registration {
    /// It is asked for by name.
    Asked(Make),
    /// It is elected, before this engine of forebay's.
    Elected(EngineKind, &'static dyn EngineCandidate),
}

static REGISTERED: Mutex<Vec<(&str, Registration)>> = Mutex::new(Vec::new());

/// Registers an engine for sessions that are opened later. It serves a device only if `FOREBAY_ENGINE` or
/// [`Config::engine`] names it; one that is elected: [`register_candidate`]. The first registration of a name stays. Fails for
/// the name of a built-in engine ([`ErrorKind::InvalidInput`]).
pub fn register(
    name: &'static str,
    make: impl Fn(&Arc<dyn Device>, &Config) -> Result<Arc<dyn Engine>> + Send + Sync + 'static,
) -> Result<()> {
    add(name, || Registration::Asked(Arc::new(make)))
}

/// Registers an engine that stands for election in sessions that are opened later: offered transfers before the engine `before` of
/// forebay's, behind all that are better; before the lanes, the last, for any other. Its kind is [`EngineKind::Registered`]. The
/// first registration of a name stays. Fails for the name of a built-in engine ([`ErrorKind::InvalidInput`]).
pub fn register_candidate(before: EngineKind, candidate: impl EngineCandidate + 'static) -> Result<()> {
    let name = candidate.kind().name();
    // Registrations last as long as the process.
    add(name, || Registration::Elected(before, Box::leak(Box::new(candidate))))
}

fn add(name: &'static str, registration: impl FnOnce() -> Registration) -> Result<()> {
    // The crate forebay-libcufile registers the engine of that name.
    if name != EngineKind::Libcufile.name() && name.parse::<EngineKind>().is_ok() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "cannot register engine: a built-in engine has the name",
        )
        .with("name", name)
        .hint("give it another name"));
    }
    let mut all = lock(&REGISTERED);
    if all.iter().all(|(other, _)| *other != name) {
        all.push((name, registration()));
    }
    Ok(())
}

/// The registered name, as a static string; `None` if nothing has it.
pub(crate) fn registered(name: &str) -> Option<&'static str> {
    lock(&REGISTERED).iter().find(|(other, _)| *other == name).map(|(other, _)| *other)
}

/// The candidates of the program put among those of forebay, best first.
pub(crate) fn with_registered(own: &[&'static dyn EngineCandidate]) -> Vec<&'static dyn EngineCandidate> {
    let mut all = own.to_vec();
    for (_, registration) in lock(&REGISTERED).iter() {
        if let Registration::Elected(before, candidate) = registration {
            let place = all.iter().position(|other| other.kind() == *before).unwrap_or(all.len());
            all.insert(place, *candidate);
        }
    }
    all
}

/// An engine that is asked for, for a device; `None` if nobody registered that name.
pub(crate) fn make(name: &str, device: &Arc<dyn Device>, config: &Config) -> Option<Result<Arc<dyn Engine>>> {
    let found = lock(&REGISTERED).iter().find(|(other, _)| *other == name).map(|(_, how)| how.clone());
    // Not under the lock: it may open a session, or register another.
    match found? {
        Registration::Asked(make) => Some(make(device, config)),
        Registration::Elected(..) => None,
    }
}
