//! Containers and pods: devices of the node that the container lacks, and limits of its cgroup.

use crate::engines::size;
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::machine::cgroup_dirs;

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    cgroup(facts, found);
    if facts.machine.container.is_some() {
        verbs(facts, found);
        shared_memory(facts, found);
    }
}

/// Processes killed by the memory limit, or throttled by the CPU limit.
fn cgroup(facts: &Facts<'_>, found: &mut Findings) {
    let system = facts.system;
    let field = |path: &str, name: &str| {
        let text = system.text(path)?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    for dir in cgroup_dirs(system, None).iter().filter(|dir| !dir.ends_with("/cgroup")) {
        let path = format!("{dir}/memory.events");
        if let Some(count) = field(&path, "oom_kill ").filter(|&count| count > 0) {
            let text = format!(
                "the kernel killed {} of this cgroup for memory: page cache and pinned buffers count towards its limit",
                if count == 1 { "a process".to_owned() } else { format!("{count} processes") }
            );
            let fix = if facts.in_pod() {
                "resources: {limits: {memory: …}} larger; or FOREBAY_PIN_BUDGET=0"
            } else {
                "docker run --memory … larger, or FOREBAY_PIN_BUDGET=0"
            };
            found
                .add("oom-kills", Severity::Slower, text, Some(fix))
                .seen(&path, format!("oom_kill {count}"));
        }
        let path = format!("{dir}/cpu.stat");
        let (Some(periods), Some(throttled)) = (field(&path, "nr_periods "), field(&path, "nr_throttled "))
        else {
            continue;
        };
        if periods >= 100 && throttled * 10 > periods {
            let text = format!(
                "the cgroup's CPU limit stopped it in {throttled} of {periods} periods: lanes wait for their turn"
            );
            let fix = if facts.in_pod() {
                "resources: {limits: {cpu: …}} larger, or none; or FOREBAY_LANES=2"
            } else {
                "docker run --cpus … larger; or FOREBAY_LANES=2"
            };
            found
                .add("cpu-throttled", Severity::Slower, text, Some(fix))
                .seen(&path, format!("nr_throttled {throttled}"));
        }
    }
}

/// RDMA cards of the node whose device files the container lacks.
fn verbs(facts: &Facts<'_>, found: &mut Findings) {
    let (Some(device), true) =
        (facts.machine.rdma.devices.first(), facts.system.list("/dev/infiniband").is_empty())
    else {
        return;
    };
    let text = format!(
        "the node has RDMA ({device}), and this container no /dev/infiniband: programs in it cannot use it (NFS mounts of the node can)"
    );
    let fix = if facts.in_pod() {
        "resources: {limits: {rdma/hca_shared_devices: 1}} (the RDMA device plugin's name), securityContext: {capabilities: {add: [IPC_LOCK]}}"
    } else {
        "docker run --device /dev/infiniband --cap-add IPC_LOCK …"
    };
    let finding = found.add("no-verbs", Severity::Note, text, Some(fix));
    finding.seen("/sys/class/infiniband", device).missing("/dev/infiniband/*");
}

/// The 64 MiB that Docker and Kubernetes give.
fn shared_memory(facts: &Facts<'_>, found: &mut Findings) {
    let Some(line) = crate::storage::mounts(facts.system).into_iter().rfind(|line| line.point == "/dev/shm")
    else {
        return;
    };
    let kib = line
        .options
        .split(',')
        .find_map(|option| option.strip_prefix("size=")?.strip_suffix('k')?.parse::<u64>().ok());
    let Some(bytes) = kib.map(|kib| kib << 10).filter(|&bytes| bytes <= 64 << 20) else { return };
    let text = format!("/dev/shm is {}: loaders that hand batches over in it fail", size(bytes));
    let fix = if facts.in_pod() {
        "volumes: [{name: shm, emptyDir: {medium: Memory}}], mounted at /dev/shm"
    } else {
        "docker run --shm-size 8g …"
    };
    found
        .add("small-shm", Severity::Note, text, Some(fix))
        .seen("/proc/self/mountinfo", format!("/dev/shm {}", line.options));
}
