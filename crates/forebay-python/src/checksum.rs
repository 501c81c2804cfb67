//! Checksums of memory where it lies.

use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::session::{no_gpu, session};

/// The CRC-32C of each (address, bytes), computed on the device where the memory lies. The caller keeps the memory.
///
/// Raises UnsupportedError or DriverMissingError for memory of a GPU that this process cannot use, as in a forked child.
#[pyfunction]
pub(crate) fn checksums(py: Python<'_>, ranges: Vec<(u64, usize)>) -> PyResult<Vec<u32>> {
    let session = session()?;
    // Without a GPU every address counts as the host's. Those of a GPU's memory that a parent process had are not.
    if session.devices().gpus.is_empty() && !ranges.iter().all(|(address, len)| is_readable(*address, *len)) {
        return Err(no_gpu(&session, 0));
    }
    py.detach(|| {
        let located = ranges
            .into_iter()
            .map(|(address, len)| forebay_error::Result::Ok((session.locate(address)?, len)));
        let ranges = located.collect::<forebay_error::Result<Vec<_>>>()?;
        // SAFETY: the Python half holds the arrays during the call.
        unsafe { session.checksums(&ranges) }
    })
    .or_raise()
}

/// Whether the first byte can be read.
fn is_readable(address: u64, len: usize) -> bool {
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: address as *mut _, iov_len: 1 };
    // SAFETY: the kernel writes at most one byte to `byte`, and itself checks the address that it reads.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    // Where the call is forbidden, nothing is known.
    len == 0 || moved == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}
