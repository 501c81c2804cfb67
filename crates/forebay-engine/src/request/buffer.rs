//! Memory that safe code may transfer to and from.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Device, HostRange};

use crate::request::transfer::Memory;
use crate::runtime::fork::Birth;
use crate::runtime::lock;
use crate::runtime::process::PerProcess;

/// Owned memory on a device or the host.
///
/// Its bytes are reached by transfers, and for host memory as a slice. A transfer in flight owns the buffer (see
/// [`Ticket`](crate::Ticket)), so that safe code cannot free it or look at it half-written.
pub struct Buffer {
    device: Arc<dyn Device>,
    address: u64,
    len: usize,
    birth: Birth,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes on {})", self.len, self.device.info().name)
    }
}

impl Buffer {
    /// Allocates `len` bytes on `device`. Host memory is zeroed; device memory is not.
    pub fn new(device: Arc<dyn Device>, len: usize) -> Result<Self> {
        // An empty buffer still has an address, so that it can be freed like any other.
        let address = device.allocate(len.max(1))?;
        Ok(Self { device, address, len, birth: Birth::here() })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that holds it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Its address in the device's memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The same as raw memory.
    pub fn memory(&self) -> Memory {
        Memory::new(self.device.clone(), self.address)
    }

    /// The bytes, if they are in host memory.
    pub fn as_slice(&self) -> Option<&[u8]> {
        let is_host = self.device.info().is_host;
        // SAFETY: host memory of `len` initialised bytes that this buffer owns; a transfer that writes to it borrows
        // the buffer mutably or owns it.
        is_host.then(|| unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len) })
    }

    /// The bytes, if they are in host memory.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let is_host = self.device.info().is_host;
        // SAFETY: as above, and borrowed mutably.
        is_host.then(|| unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.len) })
    }

    /// Copies the bytes to host memory, from wherever they are.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; self.len];
        if self.len > 0 {
            let stream = self.device.stream(forebay_gpu::Context::PRIMARY)?;
            // SAFETY: both ranges are valid and stay until the synchronisation below.
            unsafe { stream.copy_out(HostRange::new(bytes.as_mut_ptr(), self.len), self.address) }?;
            stream.synchronize(forebay_gpu::Wait::Block)?;
        }
        Ok(bytes)
    }

    /// Copies `bytes` into the buffer from its start.
    pub fn copy_from_slice(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.len {
            return Err(Error::new(ErrorKind::InvalidInput, "more bytes than the buffer holds")
                .with("bytes", bytes.len())
                .with("buffer", self.len));
        }
        if !bytes.is_empty() {
            let stream = self.device.stream(forebay_gpu::Context::PRIMARY)?;
            // SAFETY: as in `to_vec`.
            unsafe { stream.copy_in(self.address, HostRange::of(bytes)) }?;
            stream.synchronize(forebay_gpu::Wait::Block)?;
        }
        Ok(())
    }
}

/// Device memory that calls which never came back may still use.
#[derive(Default)]
struct KeptMemory {
    ranges: Mutex<Vec<Range<u64>>>,
    has_any: AtomicBool,
}

// SAFETY: no other kind has the name.
unsafe impl PerProcess for KeptMemory {
    const NAME: &'static str = "kept memory";
}

/// Keeps device memory that buffers own from being freed in this process: a call that never came back may still use it.
pub fn keep_memory(range: Range<u64>) {
    let kept = KeptMemory::of_process();
    lock(&kept.ranges).push(range);
    kept.has_any.store(true, Ordering::Release);
}

fn is_kept(address: u64, len: usize) -> bool {
    let kept = KeptMemory::of_process();
    let end = address + len as u64;
    kept.has_any.load(Ordering::Acquire)
        && lock(&kept.ranges).iter().any(|kept| kept.start < end && address < kept.end)
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (device, address) = (self.device.clone(), self.address);
        if is_kept(address, self.len) {
            return;
        }
        // SAFETY: allocated in `new`, freed once; tickets own the buffers of transfers in flight, and what a call that
        // never came back may still use is kept.
        let free = move || unsafe { device.free(address) };
        if self.device.info().is_host {
            free();
        } else if !self.birth.is_elsewhere() {
            // Freeing waits for all streams. In a forked child there is nothing to free: it has no GPU.
            crate::runtime::traffic::when_clear(free);
        }
    }
}
