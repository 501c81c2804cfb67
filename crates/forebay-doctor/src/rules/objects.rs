//! RDMA to servers of objects: whether bytes come, and the faults of this machine on the way.

use forebay_error::Error;
use forebay_objects::{ArrivedBytes, ObjectRdma};
use forebay_verbs::Why;

use super::{ethernet, limits, modules};
use crate::engines::size;
use crate::finding::{Finding, Findings, Severity};
use crate::gpu::BUS;
use crate::machine::MachineFacts;
use crate::rdma::{CLASS, Port};
use crate::system::System;

/// The device file of the kernel's connection manager.
const MANAGER: &str = "/sys/class/misc/rdma_cm";
/// Device files that programs open.
const NODES: &str = "/dev/infiniband";
/// Bytes that reads and writes of a process register at a time: 8 operations of 8 MiB.
const REGISTERED: u64 = 64 << 20;

/// The machine, and one object's server.
struct Look<'a> {
    system: &'a dyn System,
    machine: &'a MachineFacts,
    ports: Vec<Port>,
    rdma: &'a ObjectRdma,
}

/// Findings of an object's server.
pub(crate) fn of_rdma(system: &dyn System, machine: &MachineFacts, rdma: &ObjectRdma) -> Vec<Finding> {
    let mut found = Findings::default();
    let look = Look { system, machine, ports: crate::rdma::ports(system), rdma };
    match &rdma.arrived {
        Ok(arrived) => look.arrived(arrived, &mut found),
        Err(error) => look.failed(error, &mut found),
    }
    found.sorted()
}

impl Look<'_> {
    fn url(&self) -> String {
        self.rdma.url.to_string()
    }

    /// Objects come by HTTP where RDMA fails, unless that is forbidden.
    fn severity(&self, else_: Severity) -> Severity {
        if self.rdma.is_required { Severity::Blocks } else { else_ }
    }

    fn arrived(&self, arrived: &ArrivedBytes, found: &mut Findings) {
        let ArrivedBytes { dialect, bytes, nic } = arrived;
        let text =
            format!("{}: {bytes} bytes came by RDMA ({dialect}, NIC {nic}), the same as by HTTP", self.url());
        self.said(found.add("s3-rdma", Severity::Ok, text, None));
        if let Some(port) = self.ports.iter().find(|port| port.device == *nic) {
            self.mtu(port, found);
            self.gpu(port, found);
        }
        self.locked(found);
    }

    fn failed(&self, error: &Error, found: &mut Findings) {
        match Why::of(error) {
            Some(Why::NoDevice) if self.ports.is_empty() && !self.rdma.is_required => {}
            Some(Why::NoRoute) => self.no_route(error, found),
            Some(Why::NoDevice | Why::NoLibrary | Why::OldLibrary | Why::Permission | Why::Fork) => {
                self.no_device(error, found);
            }
            Some(Why::Memlock) => self.memlock(&error.to_string(), error.hints().first(), found),
            _ if !self.rdma.dialects.iter().any(|(_, spoken)| spoken.is_ok()) => self.unspoken(error, found),
            _ => self.lost(error, found),
        }
    }

    /// What the server said to each dialect.
    fn said(&self, finding: &mut Finding) {
        for (name, spoken) in &self.rdma.dialects {
            let said = spoken.as_ref().map_or_else(ToString::to_string, |()| "spoken".to_owned());
            finding.seen(&format!("{}, {name}", self.rdma.server), said);
        }
    }

    /// Devices cannot be opened.
    fn no_device(&self, error: &Error, found: &mut Findings) {
        let severity = self.severity(Severity::Slower);
        let text = format!("{}: nothing comes by RDMA: ", self.url());
        let has_manager = self.system.exists(MANAGER);
        let has_nodes = !self.system.list(NODES).is_empty();
        let (why, fix) = match self.ports.first() {
            None => ("this machine has no RDMA device".to_owned(), self.make_device()),
            Some(_) if !has_manager && Why::of(error) == Some(Why::NoDevice) => {
                ("rdma_ucm is not loaded: programs cannot find a NIC".to_owned(), modules::load("rdma_ucm"))
            }
            Some(port) if !has_nodes => (
                format!("{} is there, and this container has no {NODES}", port.name()),
                "docker run --device /dev/infiniband --ulimit memlock=-1; in a pod: the RDMA device plugin's resource in its limits".to_owned(),
            ),
            Some(_) => (error.to_string(), error.hints().first().cloned().unwrap_or_else(off)),
        };
        let finding = found.add("s3-rdma-device", severity, text + &why, Some(&fix));
        match self.ports.first() {
            None => finding.missing(&format!("{CLASS}/*")),
            Some(_) if !has_manager => finding.missing(MANAGER),
            Some(_) if !has_nodes => finding.missing(&format!("{NODES}/*")),
            Some(port) => finding.seen(&format!("{}/state", port.dir()), &port.state),
        };
    }

    fn make_device(&self) -> String {
        let vendor = |pci: &String| self.system.number(&format!("{BUS}/{pci}/vendor")) == Some(0x15b3);
        if self.system.list(BUS).iter().any(vendor) {
            return "sudo modprobe mlx5_ib && rdma link show".to_owned();
        }
        "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev INTERFACE; by HTTP: export FOREBAY_S3_RDMA=prefer".to_owned()
    }

    /// There are NICs, and the way to the server leads by none.
    fn no_route(&self, error: &Error, found: &mut Findings) {
        let server = &self.rdma.server;
        let host = server.rsplit_once(':').map_or(server.as_str(), |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        let text = format!("{}: no RDMA NIC leads to its server {server}", self.url());
        let fix = self.ports.iter().find_map(|port| self.no_address(port)).unwrap_or_else(|| {
            format!("ip route get {host}: its interface has to be a NIC's (rdma link show); or name the server's address in the NIC's network in AWS_ENDPOINT_URL")
        });
        let finding = found.add("s3-rdma-route", self.severity(Severity::Note), text, Some(&fix));
        finding.seen("asked", error.to_string());
        for port in &self.ports {
            let gids: Vec<String> = port.gids(self.system).into_iter().map(|(gid, _)| gid).collect();
            let gids = if gids.is_empty() { "none".to_owned() } else { gids.join(" ") };
            let interface = port.interface.as_deref().unwrap_or("none");
            finding.seen(&port.dir(), format!("state {}, interface {interface}, GIDs {gids}", port.state));
        }
        if self.ports.is_empty() {
            finding.missing(&format!("{CLASS}/*"));
        }
    }

    /// How a port gets up, or gets an address.
    fn no_address(&self, port: &Port) -> Option<String> {
        let interface = port.interface.as_deref().unwrap_or("INTERFACE");
        if !port.is_active() {
            return Some(format!("sudo ip link set {interface} up; then: rdma link show"));
        }
        let of_address = |(gid, kind): &(String, String)| kind.contains("v2") && !gid.starts_with("fe80");
        let has_one = port.is_iwarp || port.gids(self.system).iter().any(of_address);
        (!has_one).then(|| {
            format!("sudo ip address add ADDRESS/24 dev {interface}; then: rdma link show; show_gids")
        })
    }

    /// No dialect is answered: the server does not know the headers.
    fn unspoken(&self, error: &Error, found: &mut Findings) {
        let (url, server) = (self.url(), &self.rdma.server);
        let text = if self.rdma.dialects.is_empty() {
            format!("{url}: its server {server} was not asked for RDMA: objects come by HTTP")
        } else {
            format!("{url}: its server {server} takes no RDMA: objects come by HTTP")
        };
        let fix = error.hints().first().cloned().unwrap_or_else(|| {
            format!("forebay's gateway: forebay serve s3 DIR --rdma; versitygw from 1.8.0 on: vgwrdma; to not ask: {}", off())
        });
        let severity = self.severity(Severity::Note);
        let finding = found.add("s3-rdma-server", severity, text, Some(&fix));
        self.said(finding);
        if self.rdma.dialects.is_empty() {
            finding.seen(server, error.to_string());
        }
    }

    /// The server speaks a dialect, and no bytes come.
    fn lost(&self, error: &Error, found: &mut Findings) {
        let text = format!("{}: its server takes RDMA, and bytes do not come: {error}", self.url());
        let mtu =
            self.ports.iter().find_map(|port| ethernet::mtu_of(self.system, port.interface.as_deref()?));
        let own = mtu.as_ref().map_or(String::new(), |(_, mtu)| format!(" (here {mtu})"));
        let fix = format!(
            "one MTU at both ends{own}: ip link show; counters of both NICs before and after: rdma statistic show; by HTTP until then: {}",
            off()
        );
        let finding = found.add("s3-rdma", self.severity(Severity::Slower), text, Some(&fix));
        self.said(finding);
        if let Some((path, mtu)) = mtu {
            finding.seen(&path, mtu.to_string());
        }
    }

    /// The limit of locked memory holds few operations, or none.
    fn locked(&self, found: &mut Findings) {
        let binds = self.machine.proc_readable && !self.machine.ipc_lock;
        if let Some(limit) = self.machine.memlock.filter(|limit| binds && *limit < REGISTERED) {
            let need = size(REGISTERED);
            let text = format!(
                "RLIMIT_MEMLOCK is {}, and {need} are registered at a time: larger reads fail, or go by HTTP",
                size(limit)
            );
            self.memlock(&text, None, found);
        }
    }

    fn memlock(&self, why: &str, hint: Option<&String>, found: &mut Findings) {
        let in_pod = self.machine.container.as_deref() == Some("kubernetes");
        let fix = if in_pod { limits::MEMLOCK_OF_POD } else { limits::MEMLOCK };
        let text = format!("{}: {why}", self.url());
        let fix = hint.map_or(fix, String::as_str);
        let finding = found.add("s3-rdma-memlock", self.severity(Severity::Slower), text, Some(fix));
        let limit = self.machine.memlock.map_or("unlimited".to_owned(), |limit| format!("{limit} bytes"));
        finding.seen("/proc/self/limits, Max locked memory", limit);
    }

    fn mtu(&self, port: &Port, found: &mut Findings) {
        if let Some(interface) = port.interface.as_deref().filter(|_| !port.is_soft) {
            ethernet::mtu(self.system, port, interface, found);
        }
    }

    /// A GPU's memory takes the server's bytes by dma-buf.
    fn gpu(&self, port: &Port, found: &mut Findings) {
        let Some(driver) = &self.machine.driver else { return };
        if driver.open && port.is_soft {
            let text = format!(
                "{}: {} is a soft device, which takes no dma-buf: bytes for GPU memory go through host memory",
                self.url(),
                port.device
            );
            let finding = found.add("s3-rdma-gpu", Severity::Note, text, None);
            finding.missing(&port.device_link());
        }
        modules::peermem(self.system, self.machine, std::slice::from_ref(port), found);
    }
}

/// How servers are not asked.
fn off() -> String {
    "export FOREBAY_S3_RDMA=off".to_owned()
}
