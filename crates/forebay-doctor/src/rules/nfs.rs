//! Active NFS mounts: transport, version, counters.

use forebay_error::quoted;

use crate::engines::size;
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::nfs::{CallCounters, MountedNfs};
use crate::rdma::Port;

/// Fewer calls are too few to judge.
const MIN_CALLS: u64 = 100;
/// A server that has the bytes in memory answers within a fraction of this, plus the transfer time at 1 GB/s.
const SLOW_SERVER_MS: f64 = 5.0;
/// Calls wait here for a free slot.
const SLOW_QUEUE_MS: f64 = 1.0;

/// The mounts to examine: those of the places asked for, or all.
pub(super) fn relevant<'a>(facts: &Facts<'_>, mounted: &'a [MountedNfs]) -> Vec<(&'a MountedNfs, bool)> {
    let asked = |mount: &MountedNfs| {
        facts.places.iter().any(|place| place.asked && place.mount_point == mount.line.point)
    };
    let any = facts.places.iter().any(|place| place.asked);
    mounted.iter().map(|mount| (mount, asked(mount))).filter(|(_, asked)| *asked || !any).collect()
}

pub(super) fn find(facts: &Facts<'_>, mounted: &[MountedNfs], ports: &[Port], found: &mut Findings) {
    for (mount, asked) in relevant(facts, mounted) {
        if mount.is_rdma() {
            version(mount, found);
        } else {
            not_rdma(facts, mount, ports, asked, found);
        }
        calls(mount, found);
        reading(facts, mount, asked, found);
    }
}

/// The options that client and server agreed upon, as evidence.
fn options(mount: &MountedNfs) -> String {
    let mut kept: Vec<String> = Vec::new();
    for name in ["vers", "rsize", "wsize", "nconnect", "proto", "port"] {
        kept.extend(mount.option(name).map(|value| format!("{name}={value}")));
    }
    kept.join(",")
}

/// How to mount it again, with these options in place of its own of their names.
fn mount_again(mount: &MountedNfs, changes: &[&str]) -> String {
    let (source, point) = (quoted(&mount.line.source), quoted(&mount.line.point));
    let options = quoted(&with(mount, changes));
    format!("sudo umount {point} && sudo mount -t nfs -o {options} {source} {point}")
}

/// How to mount it over RDMA. Versions 3 and 4.0 are the most reliable there.
fn remount(mount: &MountedNfs, version: &str) -> String {
    let proto = if mount.nfs.transport.ends_with('6') { "proto=rdma6" } else { "proto=rdma" };
    let version = format!("vers={version}");
    let mut changes = vec![version.as_str(), proto, "port=20049"];
    if version == "vers=3" {
        changes.push("mountproto=tcp");
    }
    mount_again(mount, &changes)
}

/// The options of a mount with some in place of its own. Defaults are left out, and what the kernel adds by itself.
pub(super) fn with(mount: &MountedNfs, changes: &[&str]) -> String {
    const DEFAULT_OPTIONS: [&str; 8] =
        ["rw", "relatime", "seclabel", "addr", "clientaddr", "mountaddr", "mountport", "namlen"];
    let name = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
    let mut all: Vec<&str> = changes.to_vec();
    for option in mount.line.options.split(',').chain(mount.line.flags.split(',')) {
        let own = name(option);
        if !DEFAULT_OPTIONS.contains(&own.as_str())
            && !all.contains(&option)
            && changes.iter().all(|change| name(change) != own)
        {
            all.push(option);
        }
    }
    all.join(",")
}

fn not_rdma(facts: &Facts<'_>, mount: &MountedNfs, ports: &[Port], asked: bool, found: &mut Findings) {
    let MountedNfs { line, nfs, .. } = mount;
    let transport = &nfs.transport;
    let version = if nfs.version == "3" { "3" } else { "4.0" };
    if let Some(port) = ports.iter().find(|port| port.is_active()) {
        let text =
            format!("{} is mounted over {transport}, though the RDMA link {} is up", line.point, port.name());
        let severity = if asked { Severity::Slower } else { Severity::Note };
        let finding = found.add("nfs-not-rdma", severity, text, Some(&remount(mount, version)));
        finding.seen("/proc/self/mountinfo", options(mount));
        finding.seen(&format!("{}/state", port.dir()), &port.state);
    } else if asked && facts.machine.rdma.devices.is_empty() {
        let text = format!("{} is mounted over {transport}, and this machine has no RDMA device", line.point);
        let fix = "with a card: sudo modprobe mlx5_ib; without: sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev INTERFACE; then mount with proto=rdma,port=20049";
        let finding = found.add("nfs-not-rdma", Severity::Note, text, Some(fix));
        finding.seen("/proc/self/mountinfo", options(mount)).missing("/sys/class/infiniband/*");
    }
}

fn version(mount: &MountedNfs, found: &mut Findings) {
    let MountedNfs { line, nfs, .. } = mount;
    if matches!(nfs.version.as_str(), "3" | "4.0") {
        return;
    }
    let text = format!(
        "{} is NFS {} over RDMA: several storage servers support only 3 and 4.0 reliably there",
        line.point, nfs.version
    );
    let finding = found.add("nfs-version", Severity::Note, text, Some(&remount(mount, "4.0")));
    finding.seen("/proc/self/mountinfo", options(mount));
}

fn calls(mount: &MountedNfs, found: &mut Findings) {
    let point = &mount.line.point;
    for (name, calls) in [("READ", mount.counted.read), ("WRITE", mount.counted.write)] {
        if calls.count < MIN_CALLS {
            continue;
        }
        let (queue, server) = (calls.mean(calls.queue_ms), calls.mean(calls.server_ms));
        let seen = seen(name, calls);
        // Parallel calls wait for each other.
        let depth = mount.counted.depth.max(1.0);
        let fair = SLOW_SERVER_MS + calls.mean(calls.bytes) / 1e6;
        if server / depth > fair && server > queue {
            let text = format!(
                "{name}s at {point} wait {server:.1} ms each for the server: its disks, or the network, are the limit"
            );
            let fix = "on the server: iostat -x 1 5 (its disks), cat /proc/fs/nfsd/pool_stats (its threads: sudo rpc.nfsd 64); to leave its disks out, export a tmpfs: sudo mount -t tmpfs -o size=8G tmpfs /export/ram && sudo exportfs -o rw,fsid=1 '*:/export/ram'";
            found
                .add("nfs-server-slow", Severity::Slower, text, Some(fix))
                .seen("/proc/self/mountstats", &seen)
                .seen("/proc/self/mountstats", format!("{depth:.1} calls in parallel"));
        }
        if queue > SLOW_QUEUE_MS && queue > server {
            let text = format!(
                "{name}s at {point} wait {queue:.1} ms each in this client for a free slot, {server:.1} ms for the server"
            );
            let fix = format!(
                "{}; or more slots before it: echo 128 | sudo tee /proc/sys/sunrpc/rdma_slot_table_entries",
                mount_again(mount, &["nconnect=8"])
            );
            found
                .add("nfs-client-queue", Severity::Slower, text, Some(&fix))
                .seen("/proc/self/mountstats", &seen);
        }
        let again = calls.sent.saturating_sub(calls.count);
        if again * 100 > calls.count {
            let text = format!(
                "{again} of {} {name}s at {point} were sent again: answers got lost, or came late",
                calls.count
            );
            let fix = "look for lost frames: ethtool -S INTERFACE | grep -E 'discard|drop|pause'; and see the findings about RDMA";
            found
                .add("nfs-sent-again", Severity::Slower, text, Some(fix))
                .seen("/proc/self/mountstats", &seen);
        }
    }
}

fn seen(name: &str, calls: CallCounters) -> String {
    format!(
        "{name}: {} calls, {} sent, queue {} ms, server {} ms, in all {} ms",
        calls.count, calls.sent, calls.queue_ms, calls.server_ms, calls.all_ms
    )
}

fn reading(facts: &Facts<'_>, mount: &MountedNfs, asked: bool, found: &mut Findings) {
    const MIN_CACHED_BYTES: u64 = 64 << 20;
    let MountedNfs { line, nfs, counted } = mount;
    if asked && counted.normal_read >= MIN_CACHED_BYTES && counted.direct_read == 0 {
        let text = format!(
            "all {} read at {} went through the page cache, none by O_DIRECT",
            size(counted.normal_read),
            line.point
        );
        let fix = format!(
            "dd if={}/FILE of=/dev/null bs=1M iflag=direct; fio: --direct=1; cuFile programs: forebay run --receipt -- COMMAND",
            quoted(&line.point)
        );
        let finding = found.add("nfs-buffered", Severity::Note, text, Some(&fix));
        finding.seen("/proc/self/mountstats", format!("bytes: normal {}, direct 0", counted.normal_read));
    }
    let path = format!("/sys/class/bdi/{}/read_ahead_kb", line.device);
    if let Some(kb) = facts.system.number(&path).filter(|&kb| (kb as u64) << 10 < nfs.rsize) {
        let text = format!(
            "{}: read-ahead is {kb} KiB, less than one READ ({}): buffered reads ask for one piece at a time",
            line.point,
            size(nfs.rsize)
        );
        let fix = format!("echo {} | sudo tee {path}", (8 * nfs.rsize) >> 10);
        found.add("nfs-read-ahead", Severity::Note, text, Some(&fix)).seen(&path, kb.to_string());
    }
    if nfs.rsize <= 32 << 10 {
        let text = format!("{}: a READ carries {} at most", line.point, size(nfs.rsize));
        let again = mount_again(mount, &["rsize=1048576", "wsize=1048576"]);
        let fix = format!(
            "{again}; a server that grants less: echo 1048576 | sudo tee /proc/fs/nfsd/max_block_size there, before its threads start"
        );
        found
            .add("nfs-small-reads", Severity::Slower, text, Some(&fix))
            .seen("/proc/self/mountinfo", options(mount));
    }
}
