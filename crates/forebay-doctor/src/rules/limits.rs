//! Limits of this process and its cgroup.

use crate::engines::size;
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::machine::{IoUring, memory_limits};

/// What gives a process more locked memory, and the same in a pod.
pub(super) const MEMLOCK: &str = "ulimit -l unlimited; in Docker: --ulimit memlock=-1; for good: echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/memlock.conf, and sign in again";
pub(super) const MEMLOCK_OF_POD: &str = "on the node, for the container runtime: LimitMEMLOCK=infinity in its systemd unit; or securityContext: {capabilities: {add: [IPC_LOCK]}}";

/// Bytes of the slots of one device's lanes: a process usually moves bytes to one device.
fn lane_memory(facts: &Facts<'_>) -> Option<u64> {
    let config = facts.config.as_ref().ok()?;
    Some((config.most_lanes() * config.slots * config.slot_size) as u64)
}

/// RLIMIT_MEMLOCK, if io_uring's buffers do not fit in it.
fn memlock_short(facts: &Facts<'_>) -> Option<u64> {
    let machine = facts.machine;
    // A process that cannot see its own status may have CAP_IPC_LOCK.
    let binds = machine.proc_readable && !machine.ipc_lock && machine.io_uring == IoUring::Works;
    let limit = machine.memlock.filter(|_| binds)?;
    (limit < lane_memory(facts)?).then_some(limit)
}

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    let machine = facts.machine;
    let Some(need) = lane_memory(facts) else { return };
    let slots = size(need);
    match (machine.memlock, memlock_short(facts)) {
        // Without io_uring nothing is registered with the kernel.
        _ if machine.io_uring != IoUring::Works || !machine.proc_readable => {}
        (_, Some(limit)) => {
            let text = format!(
                "RLIMIT_MEMLOCK is {}, the lanes' io_uring buffers are {slots}: some are used without registration",
                size(limit)
            );
            let fix = if facts.in_pod() { MEMLOCK_OF_POD } else { MEMLOCK };
            let finding = found.add("memlock", Severity::Slower, text, Some(fix));
            finding.seen("/proc/self/limits, Max locked memory", format!("{limit} bytes"));
        }
        (Some(limit), None) if !machine.ipc_lock => {
            let text = format!("RLIMIT_MEMLOCK ({}) suffices for the lanes' buffers ({slots})", size(limit));
            found.add("memlock", Severity::Ok, text, None);
        }
        _ => {
            found.add("memlock", Severity::Ok, "RLIMIT_MEMLOCK does not bind this process", None);
        }
    }
    if let Some(limit) = machine.memory_limit.filter(|limit| machine.memory.is_none_or(|all| *limit < all)) {
        // Page cache that this cgroup reads is charged to it too.
        let tight = limit < 4 * need;
        let severity = if tight { Severity::Slower } else { Severity::Note };
        let text = format!(
            "the cgroup's memory limit is {}; page cache and slots ({}) count towards it",
            size(limit),
            size(need)
        );
        let fix = if tight {
            Some("raise the limit (docker run --memory, resources.limits.memory), or lower FOREBAY_SLOTS")
        } else {
            None
        };
        found
            .add("memory-limit", severity, text, fix)
            .seen(&memory_file(facts, limit), format!("{limit} bytes"));
    }
    if let Some(quota) = machine.cpu_quota.filter(|quota| *quota < machine.cpus as f64) {
        let text = format!("the cgroup allows {quota:.1} CPUs at a time, the affinity mask {}", machine.cpus);
        let fix = Some("set FOREBAY_LANES to half of the CPUs allowed");
        found.add("cpu-quota", Severity::Note, text, fix).seen("cgroup cpu.max", format!("{quota:.1} CPUs"));
    }
}

/// The file of the cgroup that has this limit.
fn memory_file(facts: &Facts<'_>, limit: u64) -> String {
    let found = memory_limits(facts.system).into_iter().find(|one| one.limit == limit).map(|one| one.file);
    found.unwrap_or_else(|| "memory.max of the cgroup".to_owned())
}
