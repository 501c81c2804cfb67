//! Whether an engine may be used for a device.

use crate::request::receipt::Refusal;

/// Whether the engine may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Never, for this reason.
    Never(Refusal),
    /// Where it pays.
    Auto,
    /// It and nothing else.
    Only,
}
