//! Running on the CPUs of a NUMA node.

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::kernel_text::cpu_list;

/// Keeps the calling thread on the CPUs of `node`.
pub(crate) fn pin_thread(node: u32) -> Result<()> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let text = std::fs::read_to_string(&path).map_err(|_| {
        Error::new(ErrorKind::NotFound, "no such NUMA node").with("node", node).hint(nodes_hint())
    })?;
    let cpus = cpu_list(&text);
    if cpus.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "the NUMA node has no CPUs")
            .with("node", node)
            .hint(nodes_hint()));
    }
    // SAFETY: all-zero bytes are an empty set; CPU_SET ignores numbers beyond it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus {
            if cpu < libc::CPU_SETSIZE as usize {
                libc::CPU_SET(cpu, &mut set);
            }
        }
        set
    };
    // SAFETY: the set is valid for its size; 0 means the calling thread.
    if unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set) } != 0 {
        return Err(Error::last_os("cannot run on the CPUs of the NUMA node")
            .with("node", node)
            .hint("this process may not use those CPUs (cgroup or taskset); choose another -n"));
    }
    Ok(())
}

fn nodes_hint() -> String {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    if nodes.trim().is_empty() {
        "this machine tells of no NUMA nodes: leave out -n".to_owned()
    } else {
        format!("nodes of this machine: {} (use -n, or leave it out)", nodes.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_is_an_error_with_a_hint() {
        let error = pin_thread(4095).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!error.hints().is_empty());
    }
}
