//! An object as what places its bytes in registered memory.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_error::Result;
use forebay_source::{Answer, Place, PlaceScope, StateToken};
use forebay_verbs::{DeviceRange, Domain, RegisteredMemory};

use super::read::Reading;
use crate::pace::deadline;
use crate::rdma::{MemoryOf, RdmaPeer};

/// An object whose server takes RDMA.
pub(super) struct ObjectPlace {
    pub(super) object: Reading,
    pub(super) domain: Arc<dyn Domain>,
}

impl fmt::Debug for ObjectPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectPlace").field("target", &self.object.target).finish_non_exhaustive()
    }
}

impl Place for ObjectPlace {
    fn way(&self) -> String {
        format!("{}, not compared with a checksum", self.object.peer.way_to_server())
    }

    /// All objects of a server are alike.
    fn scope(&self) -> PlaceScope {
        let peer: Weak<RdmaPeer> = Arc::downgrade(&self.object.peer);
        PlaceScope { server: peer as Weak<dyn Any + Send + Sync>, file_system: (0, 0) }
    }

    fn domain(&self) -> Result<Arc<dyn Domain>> {
        Ok(self.domain.clone())
    }

    unsafe fn place(&self, offset: u64, range: DeviceRange, memory: Arc<RegisteredMemory>, answer: Answer) {
        let len = self.object.target.len.saturating_sub(offset).min(range.len as u64) as usize;
        let memory =
            |at: usize, len| MemoryOf::Kept(memory.clone(), DeviceRange::new(range.start + at as u64, len));
        // SAFETY: passed on.
        unsafe { self.object.start(offset, len, memory, answer) };
    }

    /// By HTTP: a trial compares two ways.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        self.object.read_by_http(bytes, offset)
    }

    fn state(&self) -> Result<StateToken> {
        let head = self.object.fetch.head()?.head;
        let text = format!("{} {:?} {:?} {:?}", head.len, head.etag, head.version, head.modified);
        Ok(StateToken::new(text.as_bytes()))
    }

    fn deadline(&self) -> Duration {
        deadline()
    }
}
