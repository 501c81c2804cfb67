//! Memory that a server writes to, registered before the calls that name it: device memory, which takes long to register.
//!
//! Its key holds for as long as the registration does, and for all of it: a server that writes more than it was asked, or later,
//! is not stopped by the hardware as it is where each call has a key of its own.

use std::fmt;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{Access, Domain, Memory, Region};

use crate::protocol::rdma::Segment;
use crate::protocol::xdr::Malformed;

/// Registered memory. Requests that name it keep it.
pub struct Registered {
    // Ends before its domain does.
    region: Region,
    domain: Arc<dyn Domain>,
}

impl Registered {
    /// Registers memory in a client's domain, for a server's writes.
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

    /// An error if a range is not within it.
    pub(crate) fn check(&self, address: u64, len: usize) -> Result<()> {
        let start = self.region.address();
        let end = address.checked_sub(start).and_then(|at| at.checked_add(len as u64));
        if end.is_none_or(|end| end > self.region.len() as u64) {
            return Err(Error::new(ErrorKind::InvalidInput, "the range is not within the registered memory")
                .with("bytes", len)
                .with("registered", self.region.len()));
        }
        Ok(())
    }

    /// A range of it, as the server is told.
    pub(crate) fn segment(&self, address: u64, len: u32) -> Result<Segment, Malformed> {
        self.check(address, len as usize).map_err(|_| Malformed("a range beyond what is registered"))?;
        Ok(Segment { key: self.region.remote_key(), len, address })
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)
    }
}
