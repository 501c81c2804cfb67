//! Why the engine does not take a transfer.

use std::sync::Arc;

use forebay_error::Error;

use crate::request::receipt::{EngineKind, Refusal};

pub(super) fn refusal(reason: impl Into<String>, hint: Option<&str>) -> Arc<Refusal> {
    Arc::new(Refusal { engine: EngineKind::Placed, reason: reason.into(), hint: hint.map(str::to_owned) })
}

/// An error as the reason of a refusal.
pub(super) fn error_refusal(error: &Error) -> Arc<Refusal> {
    refusal(error.to_string(), error.hints().first().map(String::as_str))
}
