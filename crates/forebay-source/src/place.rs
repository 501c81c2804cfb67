//! The capability to put a source's bytes into registered memory: a server writes them there by RDMA.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_error::Result;
use forebay_sys::DeviceRange;
use forebay_verbs::{Device, Domain, RegisteredMemory};

use crate::{Answer, StateToken};

/// Puts bytes of one source into registered memory. No byte crosses this host's memory. After an error that is caused by
/// [`FileReplaced`], other files of the server are still placed.
pub trait Place: Send + Sync + fmt::Debug {
    /// How the bytes travel, for receipts: "NFS v4.1, server nas1".
    fn way(&self) -> String;

    /// What a trial of it holds for.
    fn scope(&self) -> PlaceScope;

    /// The domain that memory is to be registered in.
    fn domain(&self) -> Result<Arc<dyn Domain>>;

    /// The NICs to choose from; empty where there is no choice.
    fn nics(&self) -> Vec<Device> {
        Vec::new()
    }

    /// The same by one of these NICs alone. `None`: not known yet, and to find out takes longer than a caller has that does not wait
    /// (`waits` is false).
    fn by_nic(&self, _nic: &str, _waits: bool) -> Option<Result<Arc<dyn Place>>> {
        None
    }

    /// Has bytes from `offset` on put to `range` of `memory`. `answer` is called once, when nothing can arrive in the
    /// range any more, with the bytes that came: fewer where the source ends. This process does not touch the range.
    ///
    /// # Safety
    /// Nobody else uses the range until the answer.
    unsafe fn place(&self, offset: u64, range: DeviceRange, memory: Arc<RegisteredMemory>, answer: Answer);

    /// Reads into host memory by the same server, and waits: a trial compares with it. Fewer bytes: the source ends there.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize>;

    /// The state of the bytes now, as the server says it.
    fn state(&self) -> Result<StateToken>;

    /// How long a request may take, before it counts as failed.
    fn deadline(&self) -> Duration;
}

/// The reason within an error: the file was removed or replaced on its server.
#[derive(Debug)]
pub struct FileReplaced;

impl fmt::Display for FileReplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the file was removed or replaced on its server")
    }
}

impl std::error::Error for FileReplaced {}

/// What a trial of a [`Place`] holds for: the files of one file system, by one client of a server.
#[derive(Clone, Debug)]
pub struct PlaceScope {
    /// The client: compared by its address.
    pub server: Weak<dyn Any + Send + Sync>,
    /// The file system on the server.
    pub file_system: (u64, u64),
}

impl PartialEq for PlaceScope {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self.server.as_ptr(), other.server.as_ptr())
            && self.file_system == other.file_system
    }
}
