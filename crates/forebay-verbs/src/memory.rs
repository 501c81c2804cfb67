//! Registered memory: regions, windows over them, and ranges that name them.

use std::any::Any;
use std::fmt;
use std::ops::BitOr;
use std::os::fd::BorrowedFd;

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::{DeviceRange, HostRange};

/// What may be done to memory. The local device may always read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// The local device reads it, and no more.
    pub const READ: Self = Self(0);
    /// The local device writes it: receives, RDMA READs.
    pub const WRITE: Self = Self(1);
    /// The peer writes it. Needs [`Access::WRITE`].
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// The peer reads it.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Windows may be bound to it.
    pub const BIND: Self = Self(1 << 4);

    /// Whether all of `other` is granted.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits, as verbs have them.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Memory to register.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// Host memory; it counts against the limit of locked memory. Its remote address is its own.
    Host(HostRange),
    /// A range of a dma-buf: device memory. No window can be bound to it.
    DmaBuf {
        /// The dma-buf. The registration holds it: the descriptor may be closed afterwards.
        fd: BorrowedFd<'a>,
        /// Where the range begins in the dma-buf.
        offset: u64,
        /// The remote address that the range gets, the same offset in its page as `offset`; and its bytes.
        range: DeviceRange,
    },
}

impl Memory<'_> {
    /// Its remote address, and its bytes.
    pub fn range(&self) -> DeviceRange {
        match self {
            Self::Host(memory) => DeviceRange::new(memory.address(), memory.len),
            Self::DmaBuf { range, .. } => *range,
        }
    }
}

/// What a fabric keeps behind a [`Region`] or a [`Window`]. Dropped without `release`, it releases itself.
pub trait Handle: Any + Send + Sync {
    /// Deregisters or frees; harmless when repeated.
    fn release(&mut self) -> Result<()>;
}

/// Registered memory. Its keys work until it is dropped or released; afterwards nothing of the peer's reaches it.
pub struct Region {
    local_key: u32,
    remote_key: u32,
    memory: DeviceRange,
    access: Access,
    handle: Box<dyn Handle>,
}

impl Region {
    /// A region with its keys, for those who make a fabric.
    pub fn new(keys: (u32, u32), memory: &Memory<'_>, access: Access, handle: Box<dyn Handle>) -> Self {
        let (local_key, remote_key) = keys;
        Self { local_key, remote_key, memory: memory.range(), access, handle }
    }

    /// The key that this side names it by.
    pub const fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key that a peer names it by, while the region lives.
    pub const fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// Its remote address, and its bytes.
    pub const fn memory(&self) -> DeviceRange {
        self.memory
    }

    /// The grant.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// A range, for this side's operations.
    pub fn range(&self, offset: usize, len: usize) -> Result<Local<'_>> {
        if offset.checked_add(len).is_none_or(|end| end > self.memory.len) || u32::try_from(len).is_err() {
            return Err(Error::new(ErrorKind::InvalidInput, "the range is not within the registered memory")
                .with("offset", offset)
                .with("len", len)
                .with("registered", self.memory.len));
        }
        Ok(Local { region: self, address: self.memory.start + offset as u64, len: len as u32 })
    }

    /// The handle as the fabric's own type.
    pub fn handle<T: Handle>(&self) -> Option<&T> {
        (&*self.handle as &dyn Any).downcast_ref()
    }

    /// Deregisters, and says whether that worked: it does not while a window is bound to it.
    pub fn release(mut self) -> Result<()> {
        self.try_release()
    }

    /// The same in place. Where it fails the keys still work, and the drop tries it once more.
    pub fn try_release(&mut self) -> Result<()> {
        self.handle.release()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("address", &format_args!("{:#x}", self.memory.start))
            .field("len", &self.memory.len)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// A range of a region, for this side's operations.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    /// The region.
    pub region: &'a Region,
    /// The first byte, as the region counts.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// The peer's memory, as the peer has named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The key.
    pub key: u32,
    /// The first byte.
    pub address: u64,
}

/// A memory window (type 2B): a key of its own for a range of a region, for one connection, until it is invalidated.
pub struct Window {
    key: u32,
    bound: bool,
    handle: Box<dyn Handle>,
}

impl Window {
    /// A window that is bound to nothing, for those who make a fabric.
    pub fn new(key: u32, handle: Box<dyn Handle>) -> Self {
        Self { key, bound: false, handle }
    }

    /// The key that a peer names the range by, while it is bound.
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// Whether a binding was posted and no invalidation after it.
    pub const fn is_bound(&self) -> bool {
        self.bound
    }

    /// The key of the next binding: the last eight bits count bindings.
    pub const fn next_key(&self) -> u32 {
        (self.key & !0xff) | (self.key.wrapping_add(1) & 0xff)
    }

    /// Notes a binding under this key, for those who make a fabric.
    pub fn set_bound(&mut self, key: u32) {
        (self.key, self.bound) = (key, true);
    }

    /// Notes that the key is gone: a posted invalidation, or the peer's ([`crate::Message::invalidated`]).
    pub fn set_invalid(&mut self) {
        self.bound = false;
    }

    /// The handle as the fabric's own type.
    pub fn handle<T: Handle>(&self) -> Option<&T> {
        (&*self.handle as &dyn Any).downcast_ref()
    }

    /// Frees it, and says whether that worked.
    pub fn release(mut self) -> Result<()> {
        self.handle.release()
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("bound", &self.bound).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Handle for Nothing {
        fn release(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn ranges_stay_within_the_region() {
        let memory = Memory::Host(HostRange::new(std::ptr::without_provenance(4096), 100));
        let region = Region::new((1, 2), &memory, Access::WRITE, Box::new(Nothing));
        let range = region.range(10, 90).unwrap();
        assert_eq!((range.address, range.len), (4106, 90));
        assert!(region.range(100, 0).is_ok());
        for (offset, len) in [(11, 90), (101, 0), (usize::MAX, 2)] {
            assert_eq!(region.range(offset, len).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_windows_key_counts_in_its_last_byte() {
        let mut window = Window::new(0x12_34_ff, Box::new(Nothing));
        assert_eq!(window.next_key(), 0x12_34_00);
        window.set_bound(window.next_key());
        assert!(window.is_bound() && window.next_key() == 0x12_34_01);
    }
}
