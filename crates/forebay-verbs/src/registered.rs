//! Memory that is registered before the requests that name it: device memory, which takes long to register.
//!
//! Its key holds for as long as the registration does, and for all of it: a peer that writes more than it was asked, or later,
//! is not stopped by the hardware as it is where each call has a key of its own.

use std::fmt;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::DeviceRange;

use crate::{Access, Domain, Memory, Region, Remote};

/// A region that a peer writes to, with its domain. Requests that name it keep it.
pub struct RegisteredMemory {
    // Ends before its domain does.
    region: Region,
    domain: Arc<dyn Domain>,
}

impl RegisteredMemory {
    /// Registers memory in a domain, for a peer's writes.
    ///
    /// # Safety
    /// As [`Domain::register`].
    pub unsafe fn new(domain: &Arc<dyn Domain>, memory: Memory<'_>) -> Result<Arc<Self>> {
        // SAFETY: passed on.
        let region = unsafe { domain.register(memory, Access::WRITE | Access::REMOTE_WRITE) }?;
        Ok(Arc::new(Self { region, domain: domain.clone() }))
    }

    /// Whether it is of this domain.
    pub fn is_of(&self, domain: &Arc<dyn Domain>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.domain), Arc::as_ptr(domain))
    }

    /// The device that has registered it.
    pub fn device(&self) -> &str {
        &self.domain.device().name
    }

    /// How a peer names a range; an error if the range is not within it.
    pub fn remote(&self, range: DeviceRange) -> Result<Remote> {
        let all = self.region.memory();
        if !all.holds(range) {
            return Err(Error::new(ErrorKind::InvalidInput, "the range is not within the registered memory")
                .with("bytes", range.len)
                .with("registered", all.len));
        }
        Ok(Remote { key: self.region.remote_key(), address: range.start })
    }
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)
    }
}
