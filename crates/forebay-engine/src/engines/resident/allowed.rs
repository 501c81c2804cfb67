//! Where a kernel that stays would be in the way.

use forebay_config::Resident as Permission;
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
        && !is_watched(std::env::vars_os())
        && !is_traced()
}

/// Whether the environment is one of a tool, or makes launches wait for their kernels.
fn is_watched(variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> bool {
    variables.into_iter().any(|(name, value)| {
        let Some(name) = name.to_str() else { return false };
        let is_blocking = name == "CUDA_LAUNCH_BLOCKING" && !value.is_empty() && value != "0";
        is_blocking || TOOLS.iter().any(|tool| name.starts_with(tool))
    })
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
    fn tools_and_blocking_launches_are_noticed() {
        let watched = |name: &str, value: &str| is_watched([(name.into(), value.into())].into_iter());
        assert!(watched("CUDA_LAUNCH_BLOCKING", "1"));
        assert!(!watched("CUDA_LAUNCH_BLOCKING", "0"));
        assert!(!watched("CUDA_LAUNCH_BLOCKING", ""));
        assert!(watched("CUDA_INJECTION64_PATH", "/opt/tool.so"));
        assert!(watched("NV_SANITIZER_INJECTION_PORT_BASE", "1"));
        assert!(watched("NSYS_PROFILING_SESSION_ID", "7"));
        assert!(!watched("CUDA_VISIBLE_DEVICES", "0"));
    }
}
