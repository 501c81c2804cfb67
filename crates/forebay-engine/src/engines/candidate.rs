//! How an engine comes into the lists of devices.

use std::sync::Arc;

use forebay_config::Config;
use forebay_error::Result;
use forebay_gpu::Device;

use super::engine::Engine;
use super::permission::{DeviceOptions, Permission};
use super::staged::Stage;
use super::staged::sync::Callers;
use crate::request::receipt::EngineKind;

/// An engine that stands for election: whether it may serve a device, and how it is made.
pub trait EngineCandidate: Send + Sync {
    /// The engine.
    fn kind(&self) -> EngineKind;

    /// Whether it may be used for memory of a device. What the options say of an engine that can: [`DeviceOptions::permit`].
    fn permission(&self, options: &DeviceOptions<'_>) -> Permission;

    /// Makes it for a device that it may serve. An error fails all transfers of the device: where the engine cannot serve it,
    /// [`EngineCandidate::permission`] says so.
    fn make(&self, parts: &EngineParts<'_>, permission: Permission) -> Result<Arc<dyn Engine>>;

    /// Whether the engine itself says why it may not be used, of the transfers that it concerns: it is in the list all the
    /// same, and receipts of other transfers do not name it.
    fn tells_refusal(&self) -> bool {
        false
    }

    /// Whether the lanes move what it leaves, where it is the only engine that may be used.
    fn leaves_rest(&self) -> bool {
        true
    }
}

/// What an engine is made of.
pub struct EngineParts<'a> {
    /// The device that it serves.
    pub device: &'a Arc<dyn Device>,
    /// The session's options.
    pub config: &'a Config,
    pub(crate) stage: &'a Stage,
    pub(crate) callers: &'a Arc<Callers>,
    /// The engine `mapped`, which serves maps and pins, too: it is made with the device.
    pub(crate) mapped: &'a Arc<dyn Engine>,
}
