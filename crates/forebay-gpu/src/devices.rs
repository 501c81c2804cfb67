//! The devices of a machine.

use std::sync::Arc;

use crate::{Device, DeviceName, Error, ErrorKind, Result, bar, cuda, host};

/// All devices of this machine: the GPUs, or host memory alone where there is none.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The GPUs in the driver's order.
    pub gpus: Vec<Arc<dyn Device>>,
    /// Memory in PCI BARs that drives reach by themselves, numbered after the GPUs. Named, not counted: see
    /// [`Devices::named`].
    pub bars: Vec<Arc<dyn Device>>,
    /// Host memory as a device.
    pub host: Arc<dyn Device>,
    /// Why there is no GPU, if there is none.
    pub missing: Option<Error>,
}

impl Devices {
    /// Finds the devices. Never fails: `missing` has the reason if there is no driver.
    pub fn discover() -> Self {
        let (gpus, missing) = match cuda::devices() {
            Ok(gpus) if gpus.is_empty() => {
                let none = Error::new(ErrorKind::NotFound, "the GPU driver reports no device")
                    .hint("check CUDA_VISIBLE_DEVICES and nvidia-smi");
                (gpus, Some(none))
            }
            Ok(gpus) => (gpus, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let bars = bar::discover(gpus.len());
        Self { gpus, bars, host: host::device(), missing }
    }

    /// Host memory alone: no GPU's driver starts.
    pub fn host_only() -> Self {
        let missing = Error::new(ErrorKind::Unsupported, "only host memory was asked for");
        Self { gpus: Vec::new(), bars: Vec::new(), host: host::device(), missing: Some(missing) }
    }

    /// The device with this name.
    pub fn named(&self, name: &DeviceName) -> Result<Arc<dyn Device>> {
        let name = match name {
            DeviceName::Index(index) => return self.get(*index),
            DeviceName::Bar(name) => name,
        };
        let found = self.bars.iter().find(|bar| bar.info().name == *name);
        found.cloned().ok_or_else(|| {
            let names: Vec<_> = self.bars.iter().map(|bar| bar.info().name.as_str()).collect();
            let error = bar::missing(name);
            if names.is_empty() { error } else { error.hint(format!("use one of: {}", names.join(", "))) }
        })
    }

    /// The device with this index at the surface: a GPU, or host memory as device 0 of a machine without a GPU.
    pub fn get(&self, index: usize) -> Result<Arc<dyn Device>> {
        if let Some(device) = self.gpus.get(index) {
            return Ok(device.clone());
        }
        if self.gpus.is_empty() && index == 0 {
            return Ok(self.host.clone());
        }
        let message = if self.gpus.is_empty() {
            "no such device: this machine has no usable GPU, only device 0 (host memory)".to_owned()
        } else {
            format!("no such device: this machine has {} GPU(s)", self.gpus.len())
        };
        let error = Error::new(ErrorKind::NotFound, message).with("device", index);
        let usable =
            || (0..self.gpus.len()).map(|index| format!("-d {index}")).collect::<Vec<_>>().join(", ");
        Err(error.hint(match &self.missing {
            Some(reason) => format!("no GPU because: {reason}"),
            None => format!("use one of: {}", usable()),
        }))
    }
}
