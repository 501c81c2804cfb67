//! The RDMA devices of this process.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::OfProcess;
use forebay_remote::stop;
use forebay_verbs::{Domain, Fabric, Route, Stop, Why, verbs};

use crate::lock;
use crate::wire::site::Site;

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// In place of the machine's devices, where a test says so.
static NAMED: OfProcess<Mutex<Option<Arc<dyn Fabric>>>> = OfProcess::new();

/// Has servers be reached over this fabric from now on: for tests.
#[doc(hidden)]
pub fn use_fabric(fabric: Arc<dyn Fabric>) {
    *lock(NAMED.get()) = Some(fabric);
}

/// The machine's devices. Libraries are not loaded where there is none.
fn of_machine() -> Result<Arc<dyn Fabric>> {
    let has_device = std::fs::read_dir(DEVICES).is_ok_and(|mut devices| devices.next().is_some());
    if !has_device {
        return Err(Why::NoDevice.error("this machine has no RDMA device"));
    }
    Ok(Arc::new(verbs()?))
}

/// Where an endpoint is reached: the address, and the domain of the NIC that leads there.
pub(super) fn reach(site: &Site) -> Result<(SocketAddr, Arc<dyn Domain>)> {
    if let Some(proxy) = site.proxy_name() {
        let error = Error::new(ErrorKind::Unsupported, "a proxy is before the server");
        return Err(error.with("proxy", proxy));
    }
    let named = lock(NAMED.get()).clone();
    let fabric = named.map_or_else(of_machine, Ok)?;
    let found = (site.host.as_str(), site.port).to_socket_addrs();
    let found = found.map_err(|error| Error::from_io(&error, "cannot find the server's address"))?;
    let mut last = None;
    for to in found {
        let route = Route { stop: Stop::when(stop::is_stopped), ..Route::to(to) };
        match fabric.open(&route) {
            Ok(domain) => return Ok((to, domain)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::NotFound, "the server's name has no address")))
}

/// Whether the error says no more than that this machine, or its way to the server, has no RDMA: there is nothing to say of it.
pub(super) fn is_no_nic(error: &Error) -> bool {
    matches!(Why::of(error), Some(Why::NoDevice | Why::NoLibrary | Why::NoRoute))
}
