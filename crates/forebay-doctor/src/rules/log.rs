//! The kernel's log: servers that do not answer, mounts that fail, denials.

use forebay_error::quoted;

use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::nfs::{ConfiguredMount, MountedNfs};
use crate::rdma::Port;

/// Words that mark a denial of AppArmor or SELinux as one of transfers.
const TRANSFER_FILES: [&str; 12] = [
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
/// Messages of the kernel and mount.nfs when a mount fails: parts of the line, the meaning, the fix.
const MOUNT_FAILURES: [(&[&str], &str, &str); 4] = [
    (
        &[
            "nfs4_discover_server_trunking unhandled error",
            "mount.nfs: Protocol not supported",
            "mount.nfs: requested NFS version",
        ],
        "an NFS mount failed: the server does not support this version, or not over this transport",
        "ask for 4.0, else 3: sudo mount -t nfs -o vers=4.0,proto=rdma,port=20049 SERVER:/EXPORT POINT (vers=3,mountproto=tcp)",
    ),
    (
        &["NFS: state manager:"],
        "an NFS client and its server do not agree on the open files: a lease expired, or two clients have one name",
        "each client needs its own name: hostname; cat /sys/module/nfs/parameters/nfs4_unique_id; then mount it again",
    ),
    (
        &["mount.nfs: an incorrect mount option", "nfs: Unknown parameter"],
        "an NFS mount failed: an option is misspelt, or not known to this kernel or this mount.nfs",
        "options passed: sudo mount -v POINT; options known: man 5 nfs",
    ),
    (
        &["mount.nfs: access denied by server"],
        "an NFS mount failed: the server does not export this to this client",
        "on the server: sudo exportfs -v; a line for this client in /etc/exports, then sudo exportfs -ra; here: showmount -e SERVER",
    ),
];

/// Programs whose denials are of transfers.
const PROGRAMS: [&str; 6] = ["forebay", "gdsio", "gdscheck", "gds_", "python", "fio"];
/// Older lines are ignored.
const RECENT_S: f64 = 3600.0;

pub(super) fn find(
    facts: &Facts<'_>,
    mounted: &[MountedNfs],
    configured: &[ConfiguredMount],
    ports: &[Port],
    found: &mut Findings,
) {
    let (text, place) = match facts.log() {
        Ok(log) => log,
        Err(error) => {
            if !mounted.is_empty() || !configured.is_empty() || !ports.is_empty() {
                let text = "the kernel's log cannot be read: errors of NFS and RDMA in it are unknown";
                let fix = "sudo dmesg > log.txt && forebay doctor --log log.txt";
                found.add("log-unreadable", Severity::Note, text, Some(fix)).seen("dmesg", error.to_string());
            }
            return;
        }
    };
    let uptime = facts.system.text("/proc/uptime").filter(|_| facts.log.is_none());
    let uptime = uptime.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let log = Log { text, place, uptime };
    let missing =
        |one: &ConfiguredMount| one.at_boot && mounted.iter().all(|mount| mount.line.point != one.point);
    let nfs_lacks = mounted.is_empty() || configured.iter().any(missing);
    not_responding(facts, &log, mounted, found);
    mount_fails(&log, nfs_lacks, found);
    refused(&log, nfs_lacks, found);
    denied(facts, &log, found);
    nvidia_fs(&log, found);
    mismatch(&log, found);
}

struct Log {
    text: String,
    place: String,
    /// Seconds since boot, where the log is this machine's.
    uptime: Option<f64>,
}

impl Log {
    /// The last line that matches, and the same with a count of earlier ones.
    fn last(&self, is: impl Fn(&str) -> bool) -> Option<(&str, String)> {
        let all: Vec<&str> = self.text.lines().filter(|line| is(line)).collect();
        let last = all.last()?;
        let more =
            if all.len() > 1 { format!("{last} (and {} before)", all.len() - 1) } else { (*last).to_owned() };
        Some((last, more))
    }

    /// Within the last hour, where the line has a time: `[  123.456] …` counts seconds since boot.
    fn is_recent(&self, line: &str) -> bool {
        let stamp = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        let seconds = stamp.and_then(|(stamp, _)| stamp.trim().parse::<f64>().ok());
        self.uptime.zip(seconds).is_none_or(|(now, then)| now - then <= RECENT_S)
    }
}

/// `nfs: server NAME not responding, still trying`, until `nfs: server NAME OK`.
fn not_responding(facts: &Facts<'_>, log: &Log, mounted: &[MountedNfs], found: &mut Findings) {
    let server = |line: &str, end: &str| {
        let (_, rest) = line.split_once("nfs: server ")?;
        Some(rest.split_once(end)?.0.to_owned())
    };
    let Some((last, seen)) = log.last(|line| server(line, " not responding").is_some()) else { return };
    let name = server(last, " not responding").unwrap_or_default();
    let after = log.text.rsplit_once(last).map_or("", |(_, after)| after);
    let back = after.lines().any(|line| server(line, " OK").as_deref() == Some(name.as_str()));
    let of_it = |mount: &MountedNfs| {
        mount.option("addr") == Some(name.as_str()) || mount.line.source.starts_with(&format!("{name}:"))
    };
    let points = || mounted.iter().filter(|mount| of_it(mount)).map(|mount| mount.line.point.as_str());
    // A log from elsewhere is not of the mounts here. A mount that failed once and gave up (soft) never says OK.
    let given = facts.log.is_some();
    let answers = || !given && points().any(|point| facts.system.free_space(point).is_some());
    let hangs = || !given && points().any(|point| hangs_at(facts, point));
    let (severity, state) = if back {
        (Severity::Note, "and answered later")
    } else if !given && points().next().is_none() {
        (Severity::Note, "and is not mounted any more")
    } else if answers() {
        (Severity::Note, "and answers now")
    } else if log.is_recent(last) || hangs() {
        (Severity::Blocks, "and has not answered since")
    } else {
        (Severity::Note, "hours ago")
    };
    let text = format!("the NFS server {name} did not respond, {state}");
    let fix = format!(
        "is it up: ping {name}; rpcinfo -t {name} nfs; then congestion: ethtool -S INTERFACE | grep -E 'pause|discard', PFC and ECN on the switch; on the server: iostat -x 1, dmesg"
    );
    found.add("nfs-not-responding", severity, text, Some(&fix)).seen(&log.place, seen);
}

/// Compares the device numbers with the directory above. A saved copy of a machine lacks its mounted file systems.
fn hangs_at(facts: &Facts<'_>, point: &str) -> bool {
    let Some((above, name)) = point.rsplit_once('/') else { return false };
    let above = if above.is_empty() { "/" } else { above };
    facts.system.list(above).iter().any(|known| known == name) && !facts.system.is_dir(point)
}

/// The severity of a failure: a note where everything configured is mounted now.
fn of_mounts(log: &Log, line: &str, nfs_lacks: bool) -> Severity {
    if nfs_lacks && log.is_recent(line) { Severity::Slower } else { Severity::Note }
}

fn mount_fails(log: &Log, nfs_lacks: bool, found: &mut Findings) {
    for (parts, text, fix) in MOUNT_FAILURES {
        let Some((last, seen)) = log.last(|line| parts.iter().any(|part| line.contains(part))) else {
            continue;
        };
        let severity = of_mounts(log, last, nfs_lacks);
        found.add("nfs-mount-failed", severity, text, Some(fix)).seen(&log.place, seen);
    }
}

fn refused(log: &Log, nfs_lacks: bool, found: &mut Findings) {
    let is = |line: &str| {
        line.contains("rpcrdma: connection to")
            && (line.contains("rejected") || line.contains("closed (-") || line.contains("failed"))
    };
    let Some((last, seen)) = log.last(is) else { return };
    let text =
        "an NFS server refused a connection over RDMA: it does not listen on that port, or not on RDMA";
    let fix = "on the server: echo rdma 20049 | sudo tee /proc/fs/nfsd/portlist; here: mount with port=20049";
    let severity = of_mounts(log, last, nfs_lacks);
    found.add("rdma-refused", severity, text, Some(fix)).seen(&log.place, seen);
}

/// Denials of what transfers need. Those of other programs (a browser that looks at the GPU) are a note.
fn denied(facts: &Facts<'_>, log: &Log, found: &mut Findings) {
    let own = facts.process.and_then(|process| process.program.split_whitespace().next()?.rsplit('/').next());
    let program = |line: &str| {
        let (_, rest) = line.split_once("comm=\"").unwrap_or_default();
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    let severity = |line: &str| {
        let program = program(line);
        let ours = PROGRAMS.iter().any(|known| program.starts_with(known)) || own == Some(program.as_str());
        if ours && log.is_recent(line) { Severity::Blocks } else { Severity::Note }
    };
    let is = |mark: &'static str| {
        move |line: &str| line.contains(mark) && TRANSFER_FILES.iter().any(|word| line.contains(word))
    };
    if let Some((last, seen)) = log.last(is("apparmor=\"DENIED\"")) {
        let profile = last.split_once("profile=\"").and_then(|(_, rest)| rest.split('"').next());
        let profile = profile.unwrap_or("PROFILE");
        let text = format!("AppArmor's profile {profile} denies something that transfers need");
        let fix = format!(
            "test whether that is the cause: sudo aa-complain {0}, run it again, and at once back: sudo aa-enforce {0}; for good, a rule in /etc/apparmor.d; in Docker: --security-opt apparmor=unconfined",
            quoted(profile)
        );
        found.add("lsm-denied", severity(last), text, Some(&fix)).seen(&log.place, seen);
    }
    if let Some((last, seen)) = log.last(is("avc:  denied")) {
        let text = "SELinux denies something that transfers need";
        let of = match program(last).as_str() {
            "" => "PROGRAM".to_owned(),
            program => quoted(program),
        };
        let fix = format!(
            "test whether that is the cause: sudo setenforce 0, run it again, and at once back: sudo setenforce 1; for good: sudo ausearch -m avc -c {of} -ts recent | audit2allow -M forebay, read forebay.te: it allows all that is in it; then sudo semodule -i forebay.pp (undo: sudo semodule -r forebay)"
        );
        found.add("lsm-denied", severity(last), text, Some(&fix)).seen(&log.place, seen);
    }
}

/// The module does not load: another kernel, another driver, no signature.
fn nvidia_fs(log: &Log, found: &mut Findings) {
    let words = [
        "Unknown symbol",
        "disagrees about version",
        "version magic",
        "module verification failed",
        "unsigned module is rejected",
    ];
    let is = |line: &str| line.contains("nvidia_fs") && words.iter().any(|word| line.contains(word));
    let Some((_, seen)) = log.last(is) else { return };
    let text = "nvidia-fs did not load: it is built for another kernel or driver, or lacks a signature (forebay needs none)";
    let fix = "sudo apt install --reinstall nvidia-fs-dkms && sudo modprobe nvidia_fs; with Secure Boot sign it: sudo mokutil --import KEY.der";
    found.add("nvidia-fs-load", Severity::Note, text, Some(fix)).seen(&log.place, seen);
}

/// `NVRM: API mismatch: the client has the version X, but this kernel module has the version Y`.
fn mismatch(log: &Log, found: &mut Findings) {
    let Some((last, seen)) = log.last(|line| line.contains("NVRM: API mismatch")) else { return };
    let text = "a program's driver library was of another version than the driver in the kernel";
    let fix = "sudo reboot, or install the driver and its libraries of one version; in a container: recreate it, so that it gets the node's libraries";
    let severity = if log.is_recent(last) { Severity::Slower } else { Severity::Note };
    found.add("driver-mismatch", severity, text, Some(fix)).seen(&log.place, seen);
}
