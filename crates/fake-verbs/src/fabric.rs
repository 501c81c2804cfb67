//! The fabric as tests have it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use forebay_error::Result;
use forebay_verbs::{Device, Domain, Fabric, Listener, Route, Why};

use crate::domain::FakeDomain;
use crate::faults::{Counts, Entry, Fault, Side};
use crate::listen::FakeListener;
use crate::lock;
use crate::machine::{FakeDevice, Machine};
use crate::network::{Network, Queues};

/// A separate fabric: only devices opened from it, or from a clone of it, can connect.
#[derive(Clone, Debug)]
pub struct Fake(Arc<Network>, Side);

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// A fabric with one device that can do all, `fake0` at 10.0.0.1.
    pub fn new() -> Self {
        Self::with(vec![FakeDevice::new("fake0", Ipv4Addr::new(10, 0, 0, 1).into())])
    }

    /// A fabric with these devices.
    pub fn with(devices: Vec<FakeDevice>) -> Self {
        let machine = Arc::new(Machine::new(devices));
        Self(
            Arc::new(Network { machine, listeners: Mutex::new(HashMap::new()), queues: Queues::default() }),
            Side::Client,
        )
    }

    /// The same fabric as a server has it that is paired in band: domains opened by it are of [`Side::Server`], for faults and limits.
    #[must_use]
    pub fn serving(&self) -> Self {
        Self(Arc::clone(&self.0), Side::Server)
    }

    /// Has a fault happen.
    pub fn inject(&self, fault: Fault) {
        self.0.machine.faults.add(fault);
    }

    /// Makes an address answer no more to those who connect, or again.
    pub fn cut(&self, address: IpAddr, cut: bool) {
        let mut list = lock(&self.0.machine.cut);
        list.retain(|other| *other != address);
        if cut {
            list.push(address);
        }
    }

    /// Has this device alone lead to an address. Addresses without a route are reached by each.
    pub fn route(&self, to: IpAddr, device: &str) {
        lock(&self.0.machine.routes).push((to, device.to_owned()));
    }

    /// Removes a device: its connections are down, its memory is deregistered.
    pub fn remove_device(&self, name: &str) {
        let index = lock(&self.0.machine.devices)
            .iter()
            .position(|one| one.as_ref().is_some_and(|one| one.name == name));
        if let Some(index) = index {
            self.0.machine.remove_device(index);
        }
    }

    /// Sets how many more bytes of host memory the side that connects may register.
    pub fn limit_locked(&self, bytes: u64) {
        self.0.machine.lockable.store(bytes, Ordering::Release);
    }

    /// Sets whether the kernel copies registered pages at a fork. Where it does not, memory that a child would get too is refused.
    pub fn copy_at_fork(&self, copies: bool) {
        self.0.machine.copies_at_fork.store(copies, Ordering::Release);
    }

    /// Has that many deregistrations of the side that connects fail, attempts of drops too: the keys live on.
    pub fn refuse_deregistrations(&self, times: u32) {
        self.0.machine.kept.store(times, Ordering::Release);
    }

    /// How many of them are still to fail.
    pub fn refusals_left(&self) -> u32 {
        self.0.machine.kept.load(Ordering::Acquire)
    }

    /// Registered regions of both sides.
    pub fn regions(&self) -> usize {
        self.0.machine.table().regions()
    }

    /// Begins the journal anew, or adds nothing more to it.
    pub fn record(&self, on: bool) {
        self.0.machine.journal.record(on);
    }

    /// The operations carried out and refused since [`Fake::record`], in that order.
    pub fn journal(&self) -> Vec<Entry> {
        self.0.machine.journal.entries()
    }

    /// Counts of all operations carried out.
    pub fn counts(&self) -> Counts {
        self.0.machine.journal.counts()
    }
}

impl Fabric for Fake {
    fn devices(&self) -> Result<Vec<Device>> {
        Ok(lock(&self.0.machine.devices).iter().flatten().map(FakeDevice::describe).collect())
    }

    fn address_of(&self, device: &str) -> Result<IpAddr> {
        let devices = lock(&self.0.machine.devices);
        let found = devices.iter().flatten().find(|one| one.name == device).map(|one| one.address);
        found.ok_or_else(|| Why::NoDevice.error("no RDMA device has this name").with("device", device))
    }

    fn open(&self, route: &Route) -> Result<Arc<dyn Domain>> {
        let Some((index, device)) = self.0.machine.device_to(route.to.ip(), route.from) else {
            let why = if self.0.machine.device_at(None).is_some() { Why::NoRoute } else { Why::NoDevice };
            return Err(why.error("cannot open an RDMA device").with("to", route.to));
        };
        Ok(FakeDomain::new(&self.0, self.1, (index, &device)))
    }

    fn listen(&self, at: SocketAddr) -> Result<Box<dyn Listener>> {
        Ok(Box::new(FakeListener::new(&self.0, at)?))
    }
}
