//! The engines of a session's devices.

use std::sync::{Arc, OnceLock};

use forebay_config::Config;
use forebay_gpu::{Device, Devices};

use crate::device::DeviceEngines;

/// The engines of each GPU, of each device in a PCI BAR, then of the host: made when the device is first used. Most programs use one
/// of a machine's GPUs, and no other.
pub(super) struct DeviceTable {
    config: Config,
    entries: Vec<(Arc<dyn Device>, OnceLock<DeviceEngines>)>,
}

impl DeviceTable {
    pub(super) fn new(devices: &Devices, config: &Config) -> Self {
        let all = devices.gpus.iter().chain(&devices.bars).chain([&devices.host]);
        let entries = all.map(|device| (device.clone(), OnceLock::new())).collect();
        Self { config: config.clone(), entries }
    }

    /// The engines of the device with this index, which is not the host. `None`: there is no such device.
    #[inline]
    pub(super) fn of(&self, index: usize) -> Option<&DeviceEngines> {
        let (_, others) = self.entries.split_last()?;
        others.get(index).map(|entry| self.made(entry))
    }

    /// The engines of the host, which is always there.
    #[inline]
    pub(super) fn of_host(&self) -> &DeviceEngines {
        self.made(&self.entries[self.entries.len() - 1])
    }

    /// The engines of devices that were used.
    pub(super) fn used(&self) -> impl Iterator<Item = &DeviceEngines> {
        self.entries.iter().filter_map(|(_, engines)| engines.get())
    }

    #[inline]
    fn made<'a>(
        &'a self,
        (device, engines): &'a (Arc<dyn Device>, OnceLock<DeviceEngines>),
    ) -> &'a DeviceEngines {
        engines.get_or_init(|| DeviceEngines::new(device, &self.config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_made_when_their_device_is_used() {
        let host = forebay_gpu::host::device();
        let devices = Devices { gpus: Vec::new(), bars: Vec::new(), host, missing: None };
        let table = DeviceTable::new(&devices, &Config::default());
        assert_eq!(table.used().count(), 0);
        let first = std::ptr::from_ref(table.of_host());
        assert!(std::ptr::eq(first, table.of_host()) && table.used().count() == 1);
        assert!(table.of(0).is_none(), "the host has no number");
    }
}
