//! Whether an engine may be used for a device.

use forebay_config::Config;
use forebay_error::Error;
use forebay_gpu::Device;

use crate::request::receipt::{EngineKind, Refusal};

/// Whether the engine may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Never, for this reason.
    Never(Refusal),
    /// Used where it pays.
    Auto,
    /// Only this engine may be used.
    Only,
}

impl Permission {
    /// Never, because of an error.
    pub fn refused_by(engine: EngineKind, error: &Error) -> Self {
        Self::Never(Refusal {
            engine,
            reason: error.message().to_owned(),
            hint: error.hints().first().cloned(),
        })
    }

    /// Never, for a reason, with what helps.
    pub fn never(engine: EngineKind, reason: &str, hint: Option<&str>) -> Self {
        Self::Never(Refusal { engine, reason: reason.to_owned(), hint: hint.map(str::to_owned) })
    }
}

/// A device, and the options about engines.
pub struct DeviceOptions<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// The session's options.
    pub config: &'a Config,
    /// The engine that was asked for.
    pub asked: Option<EngineKind>,
    /// The engines that strict allows; none: all.
    pub allowed: &'a [EngineKind],
}

impl DeviceOptions<'_> {
    /// The options' verdict on an engine that the device has.
    pub fn permit(&self, engine: EngineKind) -> Permission {
        match self.asked {
            Some(asked) if asked == engine => return Permission::Only,
            Some(other) => {
                let hint = "leave the choice to forebay: no --engine, unset FOREBAY_ENGINE";
                return Permission::never(engine, &format!("the engine {other} was asked for"), Some(hint));
            }
            None => {}
        }
        let may = |engine| self.allowed.is_empty() || self.allowed.contains(&engine);
        match (may(engine), may(EngineKind::Staged)) {
            (true, true) => Permission::Auto,
            (true, false) => Permission::Only,
            (false, _) => {
                let hint = format!("allow it: FOREBAY_STRICT={},staged", engine.name());
                Permission::never(engine, "strict does not allow it", Some(&hint))
            }
        }
    }
}
