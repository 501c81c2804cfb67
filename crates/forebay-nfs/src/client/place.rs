//! A file of a server as what places its bytes in registered memory.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_error::Result;
use forebay_source::{Answer, Place, PlaceScope, StateToken};
use forebay_verbs::{Device, DeviceRange, Domain, RegisteredMemory};

use crate::client::file::NfsFile;
use crate::client::nfs_client::NfsClient;
use crate::protocol::handle::FileAttributes;

impl NfsClient {
    /// The client as others name it: [`PlaceScope::server`].
    pub(crate) fn as_any(self: &Arc<Self>) -> Weak<dyn Any + Send + Sync> {
        Arc::downgrade(self) as _
    }
}

impl Place for NfsFile {
    fn way(&self) -> String {
        let client = self.client();
        format!("NFS {}, server {}", client.version(), client.server())
    }

    fn scope(&self) -> PlaceScope {
        PlaceScope { server: self.client().as_any(), file_system: self.opened().file_system }
    }

    fn domain(&self) -> Result<Arc<dyn Domain>> {
        self.client().domain()
    }

    fn nics(&self) -> Vec<Device> {
        let nics = if self.client().addresses_in_use() > 1 { self.client().nics() } else { Vec::new() };
        if nics.len() > 1 { nics } else { Vec::new() }
    }

    fn by_nic(&self, nic: &str, waits: bool) -> Option<Result<Arc<dyn Place>>> {
        let found = if waits { Some(Self::by_nic(self, nic)) } else { self.known_by_nic(nic) };
        found.map(|found| found.map(|file| file as Arc<dyn Place>))
    }

    unsafe fn place(&self, offset: u64, range: DeviceRange, memory: Arc<RegisteredMemory>, answer: Answer) {
        // SAFETY: passed on.
        unsafe { Self::place(self, offset, range, memory, answer) };
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        Self::read_at(self, bytes, offset)
    }

    fn state(&self) -> Result<StateToken> {
        Ok(token(&self.attributes()?))
    }

    fn deadline(&self) -> Duration {
        self.client().deadline()
    }
}

/// What the server says changes with the file, its length, and its number there. All of it is the same on all machines, and another
/// file of the same length may have the same change number: so the number tells bytes apart, too.
fn token(told: &FileAttributes) -> StateToken {
    let (major, minor) = told.file_system;
    StateToken::new(&[told.size, told.change, major, minor, told.file_id].map(u64::to_le_bytes).concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::handle::FileKind;

    #[test]
    fn another_file_of_the_same_length_and_change_number_is_another() {
        let (kind, file_system, modified) = (FileKind::Regular, (1, 2), (3, 4));
        let told = FileAttributes { kind, size: 5, file_system, file_id: 7, modified, change: 6 };
        let other = FileAttributes { file_id: 8, ..told };
        assert!(token(&told).is_object_of(&token(&told)));
        assert!(!token(&told).is_object_of(&token(&other)) && !token(&told).has_bytes_of(&token(&other)));
    }
}
