//! The engines of a session's devices.

use std::sync::{Arc, OnceLock};

use forebay_config::Config;
use forebay_gpu::{Device, Devices};

use crate::device::DeviceEngines;

/// A device with its engines, once they are made.
struct TableEntry {
    device: Arc<dyn Device>,
    engines: OnceLock<DeviceEngines>,
}

/// The engines of each device, made when it is first used. Most programs use one of a machine's GPUs, and no other.
pub(super) struct DeviceTable {
    config: Config,
    /// The GPUs, then the devices in PCI BARs.
    numbered: Vec<TableEntry>,
    host: TableEntry,
}

impl DeviceTable {
    pub(super) fn new(devices: &Devices, config: &Config) -> Self {
        let entry =
            |device: &Arc<dyn Device>| TableEntry { device: device.clone(), engines: OnceLock::new() };
        let numbered = devices.gpus.iter().chain(&devices.bars).map(entry).collect();
        Self { config: config.clone(), numbered, host: entry(&devices.host) }
    }

    /// The engines of the GPU or device in a PCI BAR with this index. `None`: there is none.
    #[inline]
    pub(super) fn of(&self, index: usize) -> Option<&DeviceEngines> {
        self.numbered.get(index).map(|entry| self.made(entry))
    }

    #[inline]
    pub(super) fn of_host(&self) -> &DeviceEngines {
        self.made(&self.host)
    }

    /// The engines of devices that were used.
    pub(super) fn used(&self) -> impl Iterator<Item = &DeviceEngines> {
        self.numbered.iter().chain([&self.host]).filter_map(|entry| entry.engines.get())
    }

    #[inline]
    fn made<'a>(&'a self, entry: &'a TableEntry) -> &'a DeviceEngines {
        entry.engines.get_or_init(|| DeviceEngines::new(&entry.device, &self.config))
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
