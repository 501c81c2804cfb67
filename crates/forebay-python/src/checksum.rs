//! Checksums of memory where it lies.

use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::session::session;
use crate::view::no_memory;

/// The CRC-32C of each (address, bytes), computed on the device where the memory lies. The caller keeps the memory.
///
/// Raises DriverMissingError for memory of a GPU that the process had from which this one was forked.
#[pyfunction]
pub(crate) fn checksums(py: Python<'_>, ranges: Vec<(u64, usize)>) -> PyResult<Vec<u32>> {
    let session = session()?;
    if ranges.iter().any(|(address, len)| *address == 0 && *len > 0) {
        return Err(no_memory());
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
