//! How queued work reaches memory: which it may, and where the bytes are.

use std::sync::Arc;

use crate::memory::{MemoryRegion, PinnedFilePages, RegionKind};
use crate::result::{Answer, ILLEGAL_ADDRESS};
use crate::state::{DriverState, state};

/// Copies that cannot be done in one go pass through this much.
const CHUNK: usize = 256 << 10;

/// What work does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteUse {
    Read,
    Write,
}

/// Where bytes are.
#[derive(Debug)]
enum ByteAddress {
    /// At an address.
    Plain(*mut u8),
    /// In pinned pages of a file, from this byte on.
    Pinned(Arc<PinnedFilePages>, usize),
}

impl ByteAddress {
    /// # Safety
    /// `into` has room for `len` bytes, and the place has as many.
    unsafe fn read(&self, into: *mut u8, len: usize) -> Answer {
        match self {
            Self::Plain(address) => {
                // SAFETY: the caller promises both ends.
                unsafe { std::ptr::copy(*address, into, len) };
                Ok(())
            }
            // SAFETY: the caller promises both ends.
            Self::Pinned(pages, at) => unsafe { pages.read(*at, into, len) },
        }
    }

    /// # Safety
    /// `from` has `len` bytes, and the place has room for as many.
    unsafe fn write(&self, from: *const u8, len: usize) -> Answer {
        match self {
            Self::Plain(address) => {
                // SAFETY: the caller promises both ends.
                unsafe { std::ptr::copy(from, *address, len) };
                Ok(())
            }
            // SAFETY: the caller promises both ends.
            Self::Pinned(pages, at) => unsafe { pages.write(*at, from, len) },
        }
    }
}

impl MemoryRegion {
    fn place(&self, skip: u64) -> ByteAddress {
        match self.registration.as_ref().and_then(|registration| registration.pinned.as_ref()) {
            // Pins are of whole pages; the region may begin inside one.
            Some(pages) => ByteAddress::Pinned(pages.clone(), (self.bytes % 4096 + skip) as usize),
            None => ByteAddress::Plain((self.bytes + skip) as *mut u8),
        }
    }
}

impl DriverState {
    /// Whether work of `gpu` may use a region like that.
    fn permits(&self, gpu: usize, region: &MemoryRegion, intent: ByteUse) -> bool {
        let owns = region.gpu == gpu;
        let reaches = match (&region.registration, region.kind) {
            (Some(registration), _) => owns || registration.portable,
            (None, kind) if kind.is_device() => owns || self.peers.contains(&(gpu, region.gpu)),
            _ => true,
        };
        let read_only = region.registration.as_ref().is_some_and(|registration| registration.read_only);
        region.accessible && reaches && !(read_only && intent == ByteUse::Write)
    }

    /// The bytes from `address` on that one region holds, at most `len`.
    fn part(&self, gpu: usize, address: u64, len: usize, intent: ByteUse) -> Answer<(ByteAddress, usize)> {
        let (start, region) = self.region(address).ok_or(ILLEGAL_ADDRESS)?;
        if !self.permits(gpu, region, intent) {
            return Err(ILLEGAL_ADDRESS);
        }
        let skip = address - start;
        Ok((region.place(skip), len.min(region.len - skip as usize)))
    }

    /// An address that the fake may use for a short while, of `len` bytes that `gpu` may read and write. Pages of a
    /// file have none.
    pub(crate) fn reach(&self, gpu: usize, address: u64, len: usize) -> Answer<*mut u8> {
        if len == 0 {
            return Ok(std::ptr::dangling_mut());
        }
        match self.part(gpu, address, len, ByteUse::Write)? {
            (ByteAddress::Plain(bytes), found) if found == len => Ok(bytes),
            _ => Err(ILLEGAL_ADDRESS),
        }
    }
}

/// Both ends of a copy, if each is at one address as a whole.
fn plain(gpu: usize, src: u64, dst: u64, len: usize) -> Answer<Option<(*const u8, *mut u8)>> {
    let state = state();
    let (from, to) = (state.part(gpu, src, len, ByteUse::Read)?, state.part(gpu, dst, len, ByteUse::Write)?);
    Ok(match (from, to) {
        ((ByteAddress::Plain(from), a), (ByteAddress::Plain(to), b)) if a == len && b == len => {
            Some((from, to))
        }
        _ => None,
    })
}

/// Reads as work of `gpu`, across regions that touch.
pub(crate) fn read(gpu: usize, address: u64, into: &mut [u8]) -> Answer {
    let mut done = 0;
    while done < into.len() {
        let rest = into.len() - done;
        let (place, len) = state().part(gpu, address + done as u64, rest, ByteUse::Read)?;
        // SAFETY: the place has `len` bytes, and no more are left to fill.
        unsafe { place.read(into[done..].as_mut_ptr(), len) }?;
        done += len;
    }
    Ok(())
}

/// Writes as work of `gpu`, across regions that touch.
pub(crate) fn write(gpu: usize, address: u64, from: &[u8]) -> Answer {
    let mut done = 0;
    while done < from.len() {
        let rest = from.len() - done;
        let (place, len) = state().part(gpu, address + done as u64, rest, ByteUse::Write)?;
        // SAFETY: the place has room for `len` bytes, and no fewer are left.
        unsafe { place.write(from[done..].as_ptr(), len) }?;
        done += len;
    }
    Ok(())
}

/// Copies as work of `gpu`.
pub(crate) fn transfer(gpu: usize, src: u64, dst: u64, len: usize) -> Answer {
    if len == 0 {
        return Ok(());
    }
    if let Some((from, to)) = plain(gpu, src, dst, len)? {
        // SAFETY: known memory of that length.
        unsafe { std::ptr::copy(from, to, len) };
        return Ok(());
    }
    let mut chunk = vec![0; CHUNK.min(len)];
    for at in (0..len).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(len - at)];
        read(gpu, src + at as u64, part)?;
        write(gpu, dst + at as u64, part)?;
    }
    Ok(())
}

/// Sets memory to one value, as work of `gpu`.
pub(crate) fn set(gpu: usize, address: u64, value: u8, len: usize) -> Answer {
    let chunk = vec![value; CHUNK.min(len)];
    for at in (0..len).step_by(CHUNK) {
        write(gpu, address + at as u64, &chunk[..CHUNK.min(len - at)])?;
    }
    Ok(())
}

/// Reads or changes memory directly. Ignores streams and owners: for tests only.
///
/// # Safety
/// `bytes` has room for `len` bytes.
pub(crate) unsafe fn peek(address: u64, bytes: *mut u8, len: usize, write: bool) -> Option<()> {
    let place = {
        let state = state();
        let (start, region) = state.region(address)?;
        let skip = address - start;
        let inside = skip.checked_add(len as u64).is_some_and(|end| end <= region.len as u64);
        (inside && (region.accessible || region.kind != RegionKind::Virtual)).then(|| region.place(skip))?
    };
    // SAFETY: known memory of that length; the caller promises the other end.
    unsafe { if write { place.write(bytes, len) } else { place.read(bytes, len) } }.ok()
}
