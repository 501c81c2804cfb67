//! What the environment sets.

use std::collections::HashMap;
use std::ffi::c_int;

/// A number from the environment.
pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(otherwise)
}

/// The attributes that `FAKE_CUDA_ATTRIBUTES` overrides: `name=value,…`. What cannot be read is told and left out.
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
