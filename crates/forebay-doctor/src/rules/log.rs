//! What the kernel's log says: servers that do not answer, mounts that fail, denials.

use crate::finding::{Facts, Findings, Severity};
use crate::nfs::{Configured, Mounted};
use crate::rdma::Port;

/// What concerns transfers, in a denial of AppArmor or SELinux.
const CONCERNS: [&str; 12] = [
    "nvidia",
    "infiniband",
    "uverbs",
    "rdma",
    "cufile",
    "forebay",
    "gdsio",
    "io_uring",
    "nfs",
    "/dev/nvme",
    "libcuda",
    "/dev/shm",
];
/// What the kernel and mount.nfs say when a version of NFS does not come up.
const MOUNT_FAILS: [&str; 6] = [
    "nfs4_discover_server_trunking unhandled error",
    "NFS: state manager:",
    "mount.nfs: Protocol not supported",
    "mount.nfs: requested NFS version",
    "mount.nfs: an incorrect mount option",
    "mount.nfs: access denied by server",
];

pub(super) fn find(
    facts: &Facts<'_>,
    mounted: &[Mounted],
    configured: &[Configured],
    ports: &[Port],
    found: &mut Findings,
) {
    let (log, place) = match facts.log() {
        Ok(log) => log,
        Err(error) => {
            if !mounted.is_empty() || !configured.is_empty() || !ports.is_empty() {
                let text = "the kernel's log cannot be read: what it says of NFS and RDMA is not known";
                let fix = "sudo dmesg > log.txt && forebay doctor --log log.txt";
                found.add("log-unreadable", Severity::Note, text, Some(fix)).seen("dmesg", error.to_string());
            }
            return;
        }
    };
    not_responding(&log, &place, found);
    mount_fails(&log, &place, found);
    refused(&log, &place, found);
    denied(&log, &place, found);
    nvidia_fs(&log, &place, found);
    mismatch(&log, &place, found);
}

/// Lines that hold a text, with `(N more)` behind the last.
fn lines(log: &str, is: impl Fn(&str) -> bool) -> Option<(&str, String)> {
    let all: Vec<&str> = log.lines().filter(|line| is(line)).collect();
    let last = all.last()?;
    let more =
        if all.len() > 1 { format!("{last} (and {} before)", all.len() - 1) } else { (*last).to_owned() };
    Some((last, more))
}

/// `nfs: server NAME not responding, still trying`, until `nfs: server NAME OK`.
fn not_responding(log: &str, place: &str, found: &mut Findings) {
    let server = |line: &str, end: &str| {
        let (_, rest) = line.split_once("nfs: server ")?;
        Some(rest.split_once(end)?.0.to_owned())
    };
    let Some((last, seen)) = lines(log, |line| server(line, " not responding").is_some()) else { return };
    let name = server(last, " not responding").unwrap_or_default();
    let after = log.rsplit_once(last).map_or("", |(_, after)| after);
    let back = after.lines().any(|line| server(line, " OK").as_deref() == Some(name.as_str()));
    let (severity, state) = if back {
        (Severity::Note, "and answered later")
    } else {
        (Severity::Blocks, "and has not answered since")
    };
    let text = format!("the NFS server {name} did not respond, {state}");
    let fix = format!(
        "is it there: ping {name}; rpcinfo -t {name} nfs; then congestion: ethtool -S INTERFACE | grep -E 'pause|discard', PFC and ECN on the switch; on the server: iostat -x 1, dmesg"
    );
    found.add("nfs-not-responding", severity, text, Some(&fix)).seen(place, seen);
}

fn mount_fails(log: &str, place: &str, found: &mut Findings) {
    let Some((_, seen)) = lines(log, |line| MOUNT_FAILS.iter().any(|words| line.contains(words))) else {
        return;
    };
    let text = "an NFS mount failed: the server does not do this version, or not over this transport";
    let fix = "ask for 4.0, else 3: sudo mount -t nfs -o vers=4.0,proto=rdma,port=20049 SERVER:/EXPORT POINT (vers=3,mountproto=tcp)";
    found.add("nfs-mount-failed", Severity::Slower, text, Some(fix)).seen(place, seen);
}

fn refused(log: &str, place: &str, found: &mut Findings) {
    let is = |line: &str| {
        line.contains("rpcrdma: connection to")
            && (line.contains("rejected") || line.contains("closed (-") || line.contains("failed"))
    };
    let Some((_, seen)) = lines(log, is) else { return };
    let text =
        "an NFS server refused a connection over RDMA: it does not listen on that port, or not on RDMA";
    let fix = "on the server: echo rdma 20049 | sudo tee /proc/fs/nfsd/portlist; here: mount with port=20049";
    found.add("rdma-refused", Severity::Slower, text, Some(fix)).seen(place, seen);
}

fn denied(log: &str, place: &str, found: &mut Findings) {
    let concerns = |line: &str| CONCERNS.iter().any(|word| line.contains(word));
    let apparmor = |line: &str| line.contains("apparmor=\"DENIED\"") && concerns(line);
    if let Some((last, seen)) = lines(log, apparmor) {
        let profile = last
            .split_once("profile=\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .map_or("PROFILE", |p| p.0);
        let text = format!("AppArmor's profile {profile} forbids something that transfers need");
        let fix = format!(
            "see whether it is that: sudo aa-complain {profile}; for good, a rule in /etc/apparmor.d; in Docker: --security-opt apparmor=unconfined"
        );
        found.add("lsm-denied", Severity::Blocks, text, Some(&fix)).seen(place, seen);
    }
    if let Some((_, seen)) = lines(log, |line| line.contains("avc:  denied") && concerns(line)) {
        let text = "SELinux forbids something that transfers need";
        let fix = "see whether it is that: sudo setenforce 0; for good: sudo ausearch -m avc -ts recent | audit2allow -M forebay && sudo semodule -i forebay.pp";
        found.add("lsm-denied", Severity::Blocks, text, Some(fix)).seen(place, seen);
    }
}

/// The module does not load: another kernel, another driver, no signature.
fn nvidia_fs(log: &str, place: &str, found: &mut Findings) {
    let words = [
        "Unknown symbol",
        "disagrees about version",
        "version magic",
        "module verification failed",
        "unsigned module is rejected",
    ];
    let is = |line: &str| line.contains("nvidia_fs") && words.iter().any(|word| line.contains(word));
    let Some((_, seen)) = lines(log, is) else { return };
    let text = "nvidia-fs did not load: it is built for another kernel or driver, or lacks a signature (forebay needs none)";
    let fix = "sudo apt install --reinstall nvidia-fs-dkms && sudo modprobe nvidia_fs; with Secure Boot sign it: sudo mokutil --import KEY.der";
    found.add("nvidia-fs-load", Severity::Note, text, Some(fix)).seen(place, seen);
}

/// `NVRM: API mismatch: the client has the version X, but this kernel module has the version Y`.
fn mismatch(log: &str, place: &str, found: &mut Findings) {
    let Some((_, seen)) = lines(log, |line| line.contains("NVRM: API mismatch")) else { return };
    let text = "a program's driver library was of another version than the driver in the kernel";
    let fix = "sudo reboot, or install the driver and its libraries of one version; in a container: make it again, so that it gets the node's libraries";
    found.add("driver-mismatch", Severity::Slower, text, Some(fix)).seen(place, seen);
}
