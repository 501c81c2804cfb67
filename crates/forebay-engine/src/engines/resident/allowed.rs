//! Where a kernel that stays would be in the way.

use forebay_config::{Resident as Permission, env};
use forebay_gpu::Device;

/// How the names of variables begin that debuggers, sanitizers and profilers leave in the programs that they start.
const TOOLS: [&str; 10] = [
    "CUDA_INJECTION",
    "CUDA_DEBUGGER",
    "CUDBG_",
    "NVTX_INJECTION",
    "NV_SANITIZER",
    "NV_COMPUTE_SANITIZER",
    "NV_NSIGHT",
    "NV_TPS_",
    "NSYS_",
    "QUADD_",
];

/// Whether the kernel may be used in this process.
pub(super) fn is_allowed(device: &dyn Device, permission: Permission) -> bool {
    let info = device.info();
    permission == Permission::Auto
        && !info.is_host
        && !info.is_bar
        && !is_blocking()
        && !is_watched(env::names().into_iter())
        && !is_traced()
}

/// Whether the environment is one of a tool.
fn is_watched(mut names: impl Iterator<Item = String>) -> bool {
    names.any(|name| TOOLS.iter().any(|tool| name.starts_with(tool)))
}

/// Whether launches wait for their kernels.
fn is_blocking() -> bool {
    env::text("CUDA_LAUNCH_BLOCKING").is_some_and(|value| !["", "0"].contains(&value.as_str()))
}

/// Whether a debugger has hold of this process.
fn is_traced() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_noticed() {
        let watched = |name: &str| is_watched(std::iter::once(name.to_owned()));
        assert!(watched("CUDA_INJECTION64_PATH"));
        assert!(watched("NV_SANITIZER_INJECTION_PORT_BASE"));
        assert!(watched("NSYS_PROFILING_SESSION_ID"));
        assert!(!watched("CUDA_VISIBLE_DEVICES"));
    }
}
