//! The pattern that `-V` writes and checks.
//!
//! Every 8-byte word of a file follows from a key and its offset ([`forebay_gpu::pattern_word`]). The key is the
//! FNV-1a hash of the file's name (its last component), mixed with the seed: copies of a file under another name, and
//! data of another seed, do not pass.

use std::path::Path;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{
    Context, Device, DeviceRange, HostRange, Stream, Wait, fill_pattern, first_mismatch, pattern_word,
};

/// The pattern's key for a file and a seed.
///
/// ```
/// use forebay_bench::pattern_key;
/// assert_eq!(pattern_key("/a/x".as_ref(), 1), pattern_key("/b/x".as_ref(), 1));
/// assert_ne!(pattern_key("/a/x".as_ref(), 1), pattern_key("/a/x".as_ref(), 2));
/// ```
pub fn pattern_key(path: &Path, seed: u64) -> u64 {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let hash = name.as_encoded_bytes().iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    pattern_word(hash, seed << 3)
}

/// Fills and checks memory, on the device where that works.
#[derive(Debug)]
pub(crate) struct Verifier {
    stream: Box<dyn Stream>,
    on_device: bool,
    on_host: bool,
    scratch: Vec<u8>,
}

impl Verifier {
    /// For memory of `device`; `on_host` if the CPU can reach it.
    pub(crate) fn new(device: &Arc<dyn Device>, on_host: bool) -> Result<Self> {
        let on_device = !on_host && device.kernels(Context::PRIMARY).is_ok();
        Ok(Self { stream: device.stream(Context::PRIMARY)?, on_device, on_host, scratch: Vec::new() })
    }

    /// Writes the pattern of `offset..offset+len` to memory.
    ///
    /// # Safety
    /// `address..address+len` is valid and not in use.
    pub(crate) unsafe fn fill(&mut self, key: u64, address: u64, len: usize, offset: u64) -> Result<()> {
        if self.on_host {
            // SAFETY: host memory by construction; valid and unused by the caller's promise.
            fill_pattern(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) }, key, offset);
            return Ok(());
        }
        if self.on_device && offset.is_multiple_of(8) {
            // SAFETY: device memory, valid by the caller's promise; waited for below.
            unsafe { self.stream.fill_pattern(DeviceRange::new(address, len), key, offset)? };
        } else {
            self.scratch.resize(len, 0);
            fill_pattern(&mut self.scratch, key, offset);
            // SAFETY: as above; the scratch buffer outlives the wait.
            unsafe { self.stream.copy_in(address, HostRange::new(self.scratch.as_ptr(), len))? };
        }
        self.stream.synchronize(Wait::Block)
    }

    /// Checks memory against the pattern of `offset..offset+len`.
    ///
    /// # Safety
    /// `address..address+len` is valid and nothing writes to it.
    pub(crate) unsafe fn check(&mut self, key: u64, address: u64, len: usize, offset: u64) -> Result<()> {
        if self.on_host {
            // SAFETY: host memory by construction; valid and still by the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
            return first_mismatch(bytes, key, offset).map_or(Ok(()), |at| Err(corrupt(at)));
        }
        if self.on_device && offset.is_multiple_of(8) {
            // SAFETY: device memory, valid and still by the caller's promise.
            let found = unsafe { self.stream.check_pattern(DeviceRange::new(address, len), key, offset)? };
            if found.wrong_bytes == 0 {
                return Ok(());
            }
        }
        self.scratch.resize(len, 0);
        // SAFETY: as above; waited for before the scratch buffer is read.
        unsafe { self.stream.copy_out(HostRange::new(self.scratch.as_mut_ptr(), len), address)? };
        self.stream.synchronize(Wait::Block)?;
        first_mismatch(&self.scratch, key, offset).map_or(Ok(()), |at| Err(corrupt(at)))
    }
}

/// The error for a wrong byte at this offset of the file.
pub(crate) fn corrupt(offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, "the bytes differ from the pattern")
        .with("offset", offset)
        .hint("write the file with -V first, under the same name and with the same -k (random I/O: the same -w, -o, -s and -i too)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_gpu::AllocationKind;

    use crate::memory::DeviceMemory;

    #[test]
    fn a_flipped_byte_is_named_by_its_offset() {
        let device = forebay_gpu::Devices::discover().host;
        let memory = DeviceMemory::new(&device, AllocationKind::Device, 8192).unwrap();
        for on_host in [true, false] {
            for offset in [4096, 4099] {
                let mut verifier = Verifier::new(&device, on_host).unwrap();
                // SAFETY: the memory is ours and large enough.
                unsafe {
                    verifier.fill(5, memory.address(), 8000, offset).unwrap();
                    verifier.check(5, memory.address(), 8000, offset).unwrap();
                    *((memory.address() + 100) as *mut u8) ^= 4;
                    let error = verifier.check(5, memory.address(), 8000, offset).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    assert!(error.to_string().contains(&format!("offset={}", offset + 100)), "{error}");
                }
            }
        }
    }
}
