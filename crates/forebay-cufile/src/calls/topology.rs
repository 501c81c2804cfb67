//! The interface's facts about GPUs: the window to their memory, their place, direct paths.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt::Write;

use forebay_gpu::DeviceInfo;

use super::{give, guarded};
use crate::abi::{CUfileError, code};
use crate::library::library;
use crate::status::RefusedCall;

/// The size of a GPU's largest PCI memory window in KiB, 0 where the system does not tell.
fn bar_size_kib(info: &DeviceInfo) -> u64 {
    let path = format!("/sys/bus/pci/devices/{}/resource", info.pci);
    std::fs::read_to_string(path).map_or(0, |text| largest_window(&text) >> 10)
}

/// Of the six windows that come first in a `resource` file, a line each: first address, last address, flags.
fn largest_window(text: &str) -> u64 {
    let size = |line: &str| {
        let mut numbers = line
            .split_whitespace()
            .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(0));
        let (first, last) = (numbers.next()?, numbers.next()?);
        (last > first).then(|| last - first + 1)
    };
    text.lines().take(6).filter_map(size).max().unwrap_or(0)
}

/// Tells the size of a GPU's PCI memory window in KiB.
///
/// # Safety
/// `size` is null, which is an error, or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetBARSizeInKB(gpu: c_int, size: *mut usize) -> CUfileError {
    guarded(|| {
        let session = library().session_unopened()?;
        let found = usize::try_from(gpu).ok().and_then(|index| session.devices().gpus.get(index));
        let device = found.ok_or(RefusedCall(code::INVALID_VALUE))?;
        // SAFETY: passed on.
        unsafe { give(size, bar_size_kib(device.info()) as usize) }
    })
}

fn describe(gpus: &[std::sync::Arc<dyn forebay_gpu::Device>]) -> String {
    let mut text = String::from("{\n  \"gpus\": [");
    for (index, gpu) in gpus.iter().enumerate() {
        let info = gpu.info();
        let comma = if index > 0 { "," } else { "" };
        let node = info.numa_node.map_or("null".to_owned(), |node| node.to_string());
        let uuid = u128::from_be_bytes(info.uuid);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{comma}\n    {{ \"index\": {index}, \"uuid\": \"{uuid:032x}\", \"pci\": \"{}\", \"numa_node\": {node}, \
             \"bar_size_kib\": {} }}",
            info.pci,
            bar_size_kib(info)
        );
    }
    text.push_str("\n  ]\n}\n");
    text
}

/// Writes where the GPUs are to a file, as JSON.
///
/// # Safety
/// `path` is null, which is an error, or a string with a final zero.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileExportPCIeTopology(path: *const c_char) -> CUfileError {
    guarded(|| {
        if path.is_null() {
            return Err(RefusedCall(code::INVALID_VALUE));
        }
        // SAFETY: not null, and a string as the caller promises.
        let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| RefusedCall(code::INVALID_VALUE))?;
        let session = library().session_unopened()?;
        std::fs::write(path, describe(&session.devices().gpus))
            .map_err(|_| RefusedCall(code::PERMISSION_DENIED))
    })
}

/// Tells which direct paths are on for a kind of storage: none.
///
/// # Safety
/// `flags` is null, which is an error, or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileDriverGetP2PFlags(_storage: c_uint, flags: *mut c_uint) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe { give(flags, 0) })
}

/// Switches direct paths: only "none" can be set.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileDriverSetP2PFlags(_storage: c_uint, flags: c_uint) -> CUfileError {
    guarded(|| if flags == 0 { Ok(()) } else { Err(RefusedCall(code::IO_NOT_SUPPORTED)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_window_counts() {
        let text = "0x00000000b0000000 0x00000000b0ffffff 0x0000000000040200\n\
                    0x0000038000000000 0x0000039fffffffff 0x000000000014220c\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        assert_eq!(largest_window(text), 128 << 30);
        assert_eq!(largest_window("nonsense\n"), 0);
    }
}
