//! RoCE over Ethernet: lost packets, pause frames, DCQCN, MTU.

use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::rdma::Port;
use crate::system::System;

/// Counters of packets that were lost and sent again.
const LOSSES: [&str; 7] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "retry_exceeded_err",
    "completer_retry_err",
];
/// Counters of packets.
const PACKETS: [&str; 4] = ["port_xmit_packets", "port_rcv_packets", "sent_pkts", "rcvd_pkts"];

/// Looks at a link over which something is to go by RoCE.
pub(super) fn find(facts: &Facts<'_>, port: &Port, found: &mut Findings) {
    let Some(interface) = port.interface.as_deref().filter(|_| !port.is_soft) else { return };
    flow_control(facts.system, port, interface, found);
    dcqcn(facts.system, interface, found);
    mtu(facts.system, port, interface, found);
}

/// Where the driver says for which priorities one side of DCQCN is on: `np` marks and notifies, `rp` slows down.
fn ecn_dir(interface: &str, side: &str) -> String {
    format!("/sys/class/net/{interface}/ecn/roce_{side}/enable")
}

/// Priorities, and whether a side of DCQCN is on for them.
fn classes(system: &dyn System, interface: &str, side: &str) -> Vec<(String, bool)> {
    let dir = ecn_dir(interface, side);
    let names = system.list(&dir).into_iter();
    names
        .filter_map(|name| Some((system.number(&format!("{dir}/{name}"))? != 0, name)))
        .map(|(on, name)| (name, on))
        .collect()
}

/// More than one packet of 100,000 was lost, and ten at least; or 100 where packets are not counted.
fn loses(system: &dyn System, port: &Port, lost: &[(String, i64)]) -> bool {
    let all: i64 = port.counters(system, &PACKETS).iter().map(|(_, count)| count).sum();
    let lost: i64 = lost.iter().map(|(_, count)| count).sum();
    if all > 0 { lost >= 10 && lost > all / 100_000 } else { lost >= 100 }
}

/// RoCE needs a lossless network: pause frames, or PFC with ECN.
fn flow_control(system: &dyn System, port: &Port, interface: &str, found: &mut Findings) {
    let lost: Vec<(String, i64)> =
        port.counters(system, &LOSSES).into_iter().filter(|(_, count)| *count > 0).collect();
    let ecn = ecn_dir(interface, "np");
    let ecn_off = !system.list(&ecn).is_empty() && classes(system, interface, "np").iter().all(|(_, on)| !on);
    let pause = system.pause_frames(interface);
    let pause_off = pause.is_some_and(|pause| !pause.rx && !pause.tx);
    let is_lossy = loses(system, port, &lost);
    if !(is_lossy || ecn_off && pause_off) {
        return;
    }
    let (severity, text) = if is_lossy {
        (Severity::Slower, format!("{} lost packets: the network drops RoCE packets", port.name()))
    } else {
        let text = format!(
            "{interface}: pause frames and ECN are off: RoCE loses packets as soon as the network is busy"
        );
        (Severity::Note, text)
    };
    let fix = format!(
        "sudo ethtool -A {interface} rx on tx on, and on the switch; or PFC and ECN: sudo mlnx_qos -i {interface} --pfc 0,0,0,1,0,0,0,0 && echo 1 | sudo tee {ecn}/3 {}/3",
        ecn_dir(interface, "rp")
    );
    let finding = found.add("rdma-flow-control", severity, text, Some(&fix));
    for (path, count) in lost {
        finding.seen(&path, count.to_string());
    }
    if let Some(pause) = pause {
        let word = |on| if on { "on" } else { "off" };
        finding.seen(
            &format!("ethtool -a {interface}"),
            format!("RX {}, TX {}", word(pause.rx), word(pause.tx)),
        );
    }
    if ecn_off {
        finding.seen(&format!("{ecn}/*"), "0");
    }
}

/// DCQCN wants both sides of a link: one tells the sender that the network is busy, the other sends less.
fn dcqcn(system: &dyn System, interface: &str, found: &mut Findings) {
    let [notifies, reacts] = ["np", "rp"].map(|side| classes(system, interface, side));
    for (class, on) in &notifies {
        let Some((_, other)) = reacts.iter().find(|(name, _)| name == class) else { continue };
        if on == other {
            continue;
        }
        let (missing, what) = if *on {
            ("rp", "notifies peers of congestion and does not slow down when they do")
        } else {
            ("np", "slows down when peers notify it of congestion and does not notify them")
        };
        let path = format!("{}/{class}", ecn_dir(interface, missing));
        let text = format!("{interface}: half of DCQCN is on for priority {class}: it {what}");
        let fix = format!("echo 1 | sudo tee {path}");
        found.add("dcqcn", Severity::Note, text, Some(&fix)).seen(&path, "0");
    }
}

/// The bytes that a RoCE packet carries at an interface's MTU: a power of two behind 96 bytes of headers.
fn payload(mtu: i64) -> i64 {
    [4096, 2048, 1024, 512].into_iter().find(|size| mtu - 96 >= *size).unwrap_or(256)
}

/// Packets of a link carry less than they could.
pub(super) fn mtu(system: &dyn System, port: &Port, interface: &str, found: &mut Findings) {
    let path = mtu_file(interface);
    let Some(mtu) = system.number(&path) else { return };
    let carries = payload(mtu);
    if carries >= 4096 {
        return;
    }
    let text = format!(
        "{interface} has an MTU of {mtu}: RoCE packets of {} carry {carries} bytes, with 4200 or more 4096",
        port.name()
    );
    let fix = format!(
        "sudo ip link set {interface} mtu 9000; the same on the switch and on the other side; for good: MTUBytes=9000 in its .network file, or mtu: 9000 in /etc/netplan"
    );
    found.add("mtu", Severity::Note, text, Some(&fix)).seen(&path, mtu.to_string());
}

/// The MTU of an interface, and its file.
pub(super) fn mtu_of(system: &dyn System, interface: &str) -> Option<(String, i64)> {
    let path = mtu_file(interface);
    Some((path.clone(), system.number(&path)?))
}

fn mtu_file(interface: &str) -> String {
    format!("/sys/class/net/{interface}/mtu")
}

/// The MTU of the first RDMA link that is up, and its file.
fn first_mtu(system: &dyn System, ports: &[Port]) -> Option<(String, i64)> {
    let mut up = ports.iter().filter(|port| port.is_active() && port.link_layer == "Ethernet");
    mtu_of(system, up.find_map(|port| port.interface.as_deref())?)
}

/// Two ends of a network with two MTUs.
pub(super) fn two_ends(here: &dyn System, there: &dyn System, host: &str, found: &mut Findings) {
    let [one, other] = [here, there].map(|system| first_mtu(system, &crate::rdma::ports(system)));
    let (Some((path, mtu)), Some((other_path, other_mtu))) = (one, other) else { return };
    if mtu == other_mtu {
        return;
    }
    let text = format!(
        "MTUs differ: {mtu} here, {other_mtu} on {host}: connections between them use the smaller one"
    );
    let fix =
        format!("one MTU on both and on the switch: sudo ip link set INTERFACE mtu {}", mtu.max(other_mtu));
    let finding = found.add("mtu", Severity::Note, text, Some(&fix));
    finding.seen(&path, mtu.to_string()).seen(&format!("{host}: {other_path}"), other_mtu.to_string());
}

#[cfg(test)]
mod tests {
    use super::payload;

    #[test]
    fn packets_carry_powers_of_two() {
        assert_eq!([1500, 4200, 9000, 2200, 576].map(payload), [1024, 4096, 4096, 2048, 256]);
    }
}
