//! Settings from the environment.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::OnceLock;

/// A number from the environment.
pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(otherwise)
}

/// The CPU that the GPU's work is to run on, by `FAKE_CUDA_CPU`: for measurements, in which a GPU takes no CPU from the program.
pub(crate) fn cpu() -> Option<usize> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    *FOUND.get_or_init(|| std::env::var("FAKE_CUDA_CPU").ok()?.trim().parse().ok())
}

/// Has the calling thread, which does the GPU's work, run there.
pub(crate) fn take_cpu() {
    let Some(cpu) = cpu() else { return };
    if cpu >= libc::CPU_SETSIZE as usize || !run_on(cpu) {
        eprintln!("fake-cuda: there is no CPU {cpu} for the GPU's work");
    }
}

/// Whether the calling thread runs on this CPU alone now. The number is one of a CPU set.
fn run_on(cpu: usize) -> bool {
    // SAFETY: a zeroed CPU set is the empty set, which has room for the number; the call is given its size.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one) == 0
    }
}

/// The attributes that `FAKE_CUDA_ATTRIBUTES` overrides: `name=value,…`. Parts that cannot be parsed are reported and
/// left out.
pub(crate) fn attributes() -> HashMap<c_int, c_int> {
    let text = std::env::var("FAKE_CUDA_ATTRIBUTES").unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let parse = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
    };
    let told = |part: &str| {
        let read = parse(part);
        if read.is_none() {
            eprintln!("fake-cuda: cannot read the attribute `{part}` (name=value)");
        }
        read
    };
    parts.filter_map(told).collect()
}
