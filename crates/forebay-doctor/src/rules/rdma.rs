//! RDMA: devices, links, GIDs, counters, and the port that an NFS server listens on.

use super::{edit, ethernet, modules, nfs};
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::gpu::BUS;
use crate::nfs::{ConfiguredMount, MountedNfs};
use crate::rdma::Port;
use crate::system::System;

/// Counters of traffic.
const TRAFFIC: [&str; 4] = ["port_xmit_data", "port_rcv_data", "sent_pkts", "rcvd_pkts"];

pub(super) fn find(
    facts: &Facts<'_>,
    mounted: &[MountedNfs],
    configured: &[ConfiguredMount],
    ports: &[Port],
    found: &mut Findings,
) {
    let asked = nfs::relevant(facts, mounted).into_iter().map(|(mount, _)| mount);
    let rdma_mounts: Vec<&MountedNfs> = asked.filter(|mount| mount.is_rdma()).collect();
    let wanted = !rdma_mounts.is_empty()
        || configured.iter().any(ConfiguredMount::is_rdma)
        || serves_rdma(facts.system);
    no_device(facts, &rdma_mounts, configured, found);
    links(ports, wanted, found);
    let any_works = ports.iter().any(|port| works(facts, port));
    for port in
        ports.iter().filter(|port| port.is_active() && port.link_layer == "Ethernet" && !port.is_iwarp)
    {
        gids(facts, port, wanted && !any_works, found);
        if wanted {
            ethernet::find(facts, port, found);
        }
    }
    modules::find(facts, ports, wanted, found);
    no_traffic(facts, &rdma_mounts, ports, found);
    portlist(facts, ports, found);
}

/// A mount is configured for RDMA, and there is no RDMA device.
fn no_device(
    facts: &Facts<'_>,
    mounts: &[&MountedNfs],
    configured: &[ConfiguredMount],
    found: &mut Findings,
) {
    if !facts.machine.rdma.devices.is_empty() {
        return;
    }
    let (what, place, line) = match (mounts.first(), configured.iter().find(|one| one.is_rdma())) {
        (Some(mount), _) => (&mount.line.point, "/proc/self/mountinfo", "proto=rdma"),
        (None, Some(one)) => (&one.point, one.place.as_str(), one.text.as_str()),
        (None, None) => return,
    };
    let card = mellanox(facts);
    let text = format!("{what} is configured for RDMA, and this machine has no RDMA device");
    let fix = match &card {
        Some(_) => "sudo modprobe mlx5_ib && rdma link show",
        None => {
            "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev INTERFACE; in a container: --device /dev/infiniband, or an RDMA resource in the pod's limits"
        }
    };
    let finding = found.add("rdma-no-device", Severity::Blocks, text, Some(fix));
    finding.missing("/sys/class/infiniband/*").seen(place, line);
    if let Some(card) = card {
        finding.seen(&format!("{BUS}/{card}/vendor"), "0x15b3 (a Mellanox card)");
    }
}

fn mellanox(facts: &Facts<'_>) -> Option<String> {
    let mut devices = facts.system.list(BUS).into_iter();
    devices.find(|pci| facts.system.number(&format!("{BUS}/{pci}/vendor")) == Some(0x15b3))
}

fn links(ports: &[Port], wanted: bool, found: &mut Findings) {
    let any_up = ports.iter().any(Port::is_active);
    for port in ports.iter().filter(|port| !port.is_active()) {
        // A second port without a cable is normal, and so is a card that no mount uses.
        let severity = if wanted && !any_up { Severity::Blocks } else { Severity::Note };
        let fix = match &port.interface {
            _ if port.link_layer == "InfiniBand" && port.state.contains("INIT") => {
                "no subnet manager answers: sudo systemctl start opensm (on one machine of the fabric)"
                    .to_owned()
            }
            Some(name) => format!(
                "sudo ip link set {name} up; then: rdma link show; if it stays down, its cable or switch port"
            ),
            None => "sudo ip link set INTERFACE up; then: rdma link show".to_owned(),
        };
        let text = format!("the RDMA link {} is down", port.name());
        let finding = found.add("rdma-link-down", severity, text, Some(&fix));
        finding.seen(&format!("{}/state", port.dir()), &port.state);
        finding.seen(&format!("{}/phys_state", port.dir()), &port.physical);
    }
}

/// The link can reach peers: over Ethernet it has an address.
fn works(facts: &Facts<'_>, port: &Port) -> bool {
    let of_address = |(gid, kind): &(String, String)| kind.contains("v2") && !gid.starts_with("fe80");
    let free = port.is_iwarp || port.link_layer != "Ethernet";
    port.is_active() && (free || port.gids(facts.system).iter().any(of_address))
}

fn gids(facts: &Facts<'_>, port: &Port, wanted: bool, found: &mut Findings) {
    let severity = if wanted { Severity::Blocks } else { Severity::Note };
    let interface = port.interface.as_deref().unwrap_or("INTERFACE");
    let gids = port.gids(facts.system);
    let of_v2: Vec<&(String, String)> = gids.iter().filter(|(_, kind)| kind.contains("v2")).collect();
    let place = format!("{}/gids", port.dir());
    if facts.system.list(&place).is_empty() {
        return;
    }
    if of_v2.is_empty() {
        let text =
            format!("{} has no GID for RoCE v2: peers of another subnet cannot be reached", port.name());
        let fix = format!(
            "give the interface an address: sudo ip address add ADDRESS/24 dev {interface}; then: rdma link show; show_gids"
        );
        let finding = found.add("rdma-gid", severity, text, Some(&fix));
        finding.seen(&place, if gids.is_empty() { "all zero".to_owned() } else { gids[0].1.clone() });
    } else if of_v2.iter().all(|(gid, _)| gid.starts_with("fe80")) {
        let text =
            format!("{} has GIDs of link-local addresses only: its interface has no IP address", port.name());
        let fix = format!("sudo ip address add ADDRESS/24 dev {interface}");
        found.add("rdma-gid", severity, text, Some(&fix)).seen(&place, &of_v2[0].0);
    }
    let mode = format!("/sys/kernel/config/rdma_cm/{}/ports/{}/default_roce_mode", port.device, port.number);
    if let Some(text) = facts.system.text(&mode).filter(|text| text.contains("v1")) {
        let said = format!(
            "connections of {} begin with RoCE v1, which no router passes on and most servers no longer answer",
            port.name()
        );
        let fix = format!("sudo cma_roce_mode -d {} -p {} -m 2", port.device, port.number);
        found.add("roce-mode", Severity::Slower, said, Some(&fix)).seen(&mode, text);
    }
}

/// The most bytes that a traffic counter can mean: data counters have words of four bytes, packets at most 4096.
/// None where a 32-bit counter has saturated.
fn counted(counters: &[(String, i64)]) -> Option<u64> {
    let bytes = |(path, count): &(String, i64)| {
        let unit = if path.ends_with("_data") { 4 } else { 4096 };
        Some(u64::try_from(*count).ok().filter(|count| *count != u64::from(u32::MAX))?.saturating_mul(unit))
    };
    counters.iter().map(bytes).try_fold(0, |sum: u64, bytes| Some(sum.saturating_add(bytes?)))
}

/// A mount over RDMA moved bytes, but the ports' counters hardly changed.
fn no_traffic(facts: &Facts<'_>, mounts: &[&MountedNfs], ports: &[Port], found: &mut Findings) {
    const MIN_MOVED_BYTES: u64 = 1 << 20;
    let Some(mount) = mounts.iter().find(|mount| mount.counted.wire > MIN_MOVED_BYTES) else { return };
    let counters: Vec<(String, i64)> =
        ports.iter().flat_map(|port| port.counters(facts.system, &TRAFFIC)).collect();
    if counters.is_empty() || counted(&counters).is_none_or(|bytes| bytes > mount.counted.wire / 8) {
        return;
    }
    let text = format!(
        "{} moved bytes, but the RDMA ports counted hardly any: the bytes take another path",
        mount.line.point
    );
    let fix = "compare before and after a read: rdma statistic show; look at proto= in grep nfs /proc/self/mountinfo; a server on this machine takes a short cut (NFS_LOCALIO)";
    let finding = found.add("rdma-no-traffic", Severity::Slower, text, Some(fix));
    finding.seen("/proc/self/mountstats", format!("{} bytes of READ and WRITE", mount.counted.wire));
    for (path, count) in counters {
        finding.seen(&path, count.to_string());
    }
}

/// Where the kernel's NFS server says what it listens on.
const PORTLIST: &str = "/proc/fs/nfsd/portlist";

/// The kernel of this machine serves NFS.
pub(super) fn serves(system: &dyn System) -> bool {
    system.text(PORTLIST).is_some_and(|list| !list.is_empty())
}

/// The NFS server of this machine listens on RDMA.
fn serves_rdma(system: &dyn System) -> bool {
    system.text(PORTLIST).is_some_and(|list| list.lines().any(|line| line.starts_with("rdma")))
}

/// On a server: whether it listens on RDMA where it could.
fn portlist(facts: &Facts<'_>, ports: &[Port], found: &mut Findings) {
    let Some(list) = facts.system.text(PORTLIST).filter(|list| !list.is_empty()) else { return };
    if serves_rdma(facts.system) {
        return;
    }
    let Some(port) = ports.iter().find(|port| port.is_active()) else { return };
    let text =
        format!("the NFS server of this machine does not listen on RDMA, though {} is up", port.name());
    let for_good = edit::nfs_conf(facts.system, r"rdma=y\nrdma-port=20049");
    let fix = format!("echo rdma 20049 | sudo tee {PORTLIST}; for good: {for_good}");
    let finding = found.add("nfs-server-port", Severity::Slower, text, Some(&fix));
    finding.seen(PORTLIST, list.lines().collect::<Vec<_>>().join(", "));
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn traffic_in_bytes() {
        let of = |counters: &[(&str, i64)]| {
            counted(&counters.iter().map(|(path, count)| ((*path).to_owned(), *count)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[("counters/port_xmit_data", 10), ("hw_counters/sent_pkts", 2)]), Some(40 + 8192));
        assert_eq!(of(&[("counters/port_rcv_data", 4_294_967_295)]), None, "it counts no further");
    }
}
