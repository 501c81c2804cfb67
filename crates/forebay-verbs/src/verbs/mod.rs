//! The real fabric: libibverbs and librdmacm.

mod cm;
mod connection;
mod domain;
mod errors;
mod listen;
mod load;
mod memory;
mod pair;
mod port;
mod queue;
mod sys;
mod unpaired;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use forebay_error::Result;

use crate::{Device, Domain, Fabric, Listener, Route};
use domain::describe;
use errors::last_errno;
use load::{Libraries, no_device};

/// The RDMA devices of this machine. Loads libibverbs and librdmacm with the first call of the process.
pub fn verbs() -> Result<Verbs> {
    Libraries::get().map(Verbs)
}

/// This machine's RDMA devices.
#[derive(Clone, Copy)]
pub struct Verbs(&'static Libraries);

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbs")
    }
}

impl Fabric for Verbs {
    fn devices(&self) -> Result<Vec<Device>> {
        let ibv = &Libraries::get()?.ibv;
        let mut count = 0;
        // SAFETY: `count` takes a number.
        let list = unsafe { ibv.ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return match last_errno() {
                libc::ENOSYS => Ok(Vec::new()),
                errno => Err(no_device(errno, "cannot list RDMA devices")),
            };
        }
        let count = usize::try_from(count).unwrap_or_default();
        // SAFETY: the list has that many devices until it is freed.
        let devices = unsafe { std::slice::from_raw_parts(list, count) }.iter().map(|device| {
            // SAFETY: as above.
            unsafe { describe(self.0, *device) }
        });
        let devices = devices.collect();
        // SAFETY: nothing of the list is used any more.
        unsafe { ibv.ibv_free_device_list(list) };
        Ok(devices)
    }

    fn address_of(&self, device: &str) -> Result<IpAddr> {
        port::address_of(Path::new(port::DEVICES), device)
    }

    fn open(&self, route: &Route) -> Result<Arc<dyn Domain>> {
        let anchor = cm::Id::new(Libraries::get()?)?;
        anchor.resolve(route.from, route.to, (route.timeout, route.stop))?;
        Ok(Arc::new(domain::VerbsDomain::new(self.0, anchor, route.from)?))
    }

    fn listen(&self, at: SocketAddr) -> Result<Box<dyn Listener>> {
        Ok(Box::new(listen::VerbsListener::new(Libraries::get()?, at)?))
    }
}
