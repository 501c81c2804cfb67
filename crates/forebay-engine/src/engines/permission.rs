//! Whether an engine may be used for a device.

use crate::request::receipt::{EngineKind, Refusal};

/// Whether the engine may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Never, for this reason.
    Never(Refusal),
    /// Used where it pays.
    Auto,
    /// Only this engine may be used.
    Only,
}

impl Permission {
    /// What the options say of an engine that the device has: which one was asked for, and which ones strict allows (none: all).
    pub(crate) fn of_options(engine: EngineKind, asked: Option<EngineKind>, allowed: &[EngineKind]) -> Self {
        let never = |reason: String, hint: String| Self::Never(Refusal { engine, reason, hint: Some(hint) });
        match asked {
            Some(asked) if asked == engine => return Self::Only,
            Some(other) => {
                let hint = "leave the choice to forebay: no --engine, unset FOREBAY_ENGINE";
                return never(format!("the engine {other} was asked for"), hint.to_owned());
            }
            None => {}
        }
        let may = |engine| allowed.is_empty() || allowed.contains(&engine);
        match (may(engine), may(EngineKind::Staged)) {
            (true, true) => Self::Auto,
            (true, false) => Self::Only,
            (false, _) => never(
                "strict does not allow it".to_owned(),
                format!("allow it: FOREBAY_STRICT={},staged", engine.name()),
            ),
        }
    }
}
