//! The state of both sides: devices, the table of keys, faults, the journal.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use forebay_verbs::{Device, DeviceLimits, Down, Transport};

use crate::faults::{Faults, Journal};
use crate::lock;
use crate::table::Table;

/// Connections' numbers, over all fabrics of the process.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// A device of the fabric.
#[derive(Clone, Debug)]
pub struct FakeDevice {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Whether it has windows.
    pub windows: bool,
    /// Whether it registers dma-bufs.
    pub dma_bufs: bool,
    /// RDMA READs of a peer that it answers at a time.
    pub reads: u8,
    /// Its path below /sys/devices.
    pub path: Option<String>,
    /// What carries it. iWARP is not paired in band, and has no WRITEs with a number.
    pub transport: Transport,
    /// Bytes of its largest packet.
    pub mtu: u32,
}

impl FakeDevice {
    /// A device that can do all.
    pub fn new(name: &str, address: IpAddr) -> Self {
        Self {
            name: name.to_owned(),
            address,
            windows: true,
            dma_bufs: true,
            reads: 16,
            path: None,
            transport: Transport::Infiniband,
            mtu: 4096,
        }
    }

    pub(crate) fn describe(&self) -> Device {
        Device {
            name: self.name.clone(),
            transport: self.transport,
            windows: Some(self.windows),
            reads: Some(self.reads.into()),
            limits: Some(DeviceLimits {
                region_bytes: u64::MAX,
                regions: 1 << 16,
                flags: if self.windows { 1 << 24 } else { 0 },
            }),
            path: self.path.clone(),
        }
    }
}

/// What goes down with a device.
pub(crate) trait Attached: Debug + Send + Sync {
    /// The device's index.
    fn device(&self) -> usize;

    /// Nothing reaches its memory afterwards.
    fn take_down(&self, down: Down);
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) devices: Mutex<Vec<Option<FakeDevice>>>,
    ends: Mutex<Vec<Weak<dyn Attached>>>,
    table: RwLock<Table>,
    pub(crate) faults: Faults,
    pub(crate) journal: Journal,
    pub(crate) cut: Mutex<Vec<IpAddr>>,
    /// Which device leads to an address.
    pub(crate) routes: Mutex<Vec<(IpAddr, String)>>,
    /// Bytes of host memory that those who connect may still register.
    pub(crate) lockable: AtomicU64,
    /// Whether a forked child gets copies of registered memory.
    pub(crate) copies_at_fork: AtomicBool,
    /// How many more of their deregistrations fail.
    pub(crate) kept: AtomicU32,
}

impl Machine {
    pub(crate) fn new(devices: Vec<FakeDevice>) -> Self {
        Self {
            devices: Mutex::new(devices.into_iter().map(Some).collect()),
            ends: Mutex::default(),
            table: RwLock::default(),
            faults: Faults::default(),
            journal: Journal::default(),
            cut: Mutex::default(),
            routes: Mutex::default(),
            lockable: AtomicU64::new(u64::MAX),
            copies_at_fork: AtomicBool::new(true),
            kept: AtomicU32::new(0),
        }
    }

    pub(crate) fn device(&self, index: usize) -> Option<FakeDevice> {
        lock(&self.devices).get(index).cloned().flatten()
    }

    /// The device with this address, or the first that is there.
    pub(crate) fn device_at(&self, address: Option<IpAddr>) -> Option<(usize, FakeDevice)> {
        let devices = lock(&self.devices);
        let mut there = devices.iter().enumerate().filter_map(|(index, one)| Some((index, one.clone()?)));
        there.find(|(_, device)| address.is_none_or(|address| device.address == address))
    }

    /// The name of the device that leads to an address, if one was named.
    pub(crate) fn route(&self, to: IpAddr) -> Option<String> {
        lock(&self.routes).iter().find(|(address, _)| *address == to).map(|(_, name)| name.clone())
    }

    /// The device on the way to an address.
    pub(crate) fn device_to(&self, to: IpAddr, from: Option<IpAddr>) -> Option<(usize, FakeDevice)> {
        let Some(name) = self.route(to).filter(|_| from.is_none()) else { return self.device_at(from) };
        let devices = lock(&self.devices);
        let mut there = devices.iter().enumerate().filter_map(|(index, one)| Some((index, one.clone()?)));
        there.find(|(_, device)| device.name == name)
    }

    pub(crate) fn is_cut(&self, address: IpAddr) -> bool {
        lock(&self.cut).contains(&address)
    }

    pub(crate) fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table, to be changed. Waits for copies: removed memory is not touched afterwards.
    pub(crate) fn change_table(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_end(&self, end: Weak<dyn Attached>) {
        let mut ends = lock(&self.ends);
        ends.retain(|end| end.strong_count() > 0);
        ends.push(end);
    }

    pub(crate) fn remove_device(&self, index: usize) {
        if let Some(device) = lock(&self.devices).get_mut(index) {
            *device = None;
        }
        let ends: Vec<Arc<dyn Attached>> = lock(&self.ends).iter().filter_map(Weak::upgrade).collect();
        for end in ends.iter().filter(|end| end.device() == index) {
            end.take_down(Down::DeviceRemoved);
        }
        self.change_table().remove_device(index);
    }
}
