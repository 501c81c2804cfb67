//! The election of the engine.

use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::Access;

use crate::engines::{DeviceOptions, Engine, EngineCandidate, EngineParts, Permission};
use crate::request::receipt::EngineKind;

/// How the engine comes into the lists of devices.
pub(crate) struct MappedCandidate;

impl EngineCandidate for MappedCandidate {
    fn kind(&self) -> EngineKind {
        EngineKind::Mapped
    }

    /// The device must be able to, and no option may forbid it.
    fn permission(&self, options: &DeviceOptions<'_>) -> Permission {
        if options.device.info().is_host {
            let hint = "use memory of a GPU; without one, forebay check says why it is missing";
            return Permission::never(EngineKind::Mapped, "the memory is host memory", Some(hint));
        }
        if let Err(error) = options.device.can_register(Access::ReadOnly) {
            return Permission::refused_by(EngineKind::Mapped, &error);
        }
        if options.config.pin_budget == Some(0) {
            let reason = "pinning is switched off (FOREBAY_PIN_BUDGET=0)";
            return Permission::never(EngineKind::Mapped, reason, Some("unset FOREBAY_PIN_BUDGET"));
        }
        options.permit(EngineKind::Mapped)
    }

    fn make(&self, parts: &EngineParts<'_>, _: Permission) -> Result<Arc<dyn Engine>> {
        Ok(parts.mapped.clone())
    }

    /// It stages the bytes that it cannot read in place.
    fn leaves_rest(&self) -> bool {
        false
    }
}
