//! Memory of a transfer of its own: an object whole, on its way from the store or to it.

use std::sync::Arc;

use forebay_error::Result;
use forebay_verbs::{Access, Domain, Local, Memory, Pages, Region, Remote};

/// Registered memory in a domain of its own: no other client's connection reaches it.
pub(crate) struct Landing {
    // Deregistered before the memory goes.
    region: Region,
    pages: Pages,
    len: usize,
    _domain: Arc<dyn Domain>,
}

/// The same when no client writes there any more.
pub(crate) struct Landed(Landing);

impl Landing {
    /// `is_for_client`: the client writes there.
    pub(super) fn new(domain: &Arc<dyn Domain>, len: usize, is_for_client: bool) -> Result<Self> {
        let pages = Pages::new(len.max(1))?;
        let access = if is_for_client { Access::WRITE | Access::REMOTE_WRITE } else { Access::READ };
        // SAFETY: the pages live behind the region, are of `Pages`, and are looked at only where no client may write, or none can any more.
        let region = unsafe { domain.register(Memory::Host(pages.range()), access) }?;
        Ok(Self { region, pages, len, _domain: Arc::clone(domain) })
    }

    /// As the client names it.
    pub(crate) fn remote(&self) -> Remote {
        Remote { key: self.region.remote_key(), address: self.region.memory().start }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// A range, for an operation of this side.
    pub(super) fn range(&self, offset: usize, len: usize) -> Result<Local<'_>> {
        self.region.range(offset, len)
    }

    /// The bytes; `None` where a client may write them.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.region.access().has(Access::REMOTE_WRITE) {
            return None;
        }
        // SAFETY: within the pages. The device reads them alone, and only while `Wire::send` has a borrow.
        Some(unsafe { std::slice::from_raw_parts_mut(self.pages.range().start, self.len) })
    }

    /// # Safety
    /// The one connection of the domain has ended.
    pub(super) unsafe fn fenced(self) -> Landed {
        Landed(self)
    }
}

impl Landed {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: within the pages, which nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.0.pages.range().start, self.0.len) }
    }
}
