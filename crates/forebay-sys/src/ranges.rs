//! Ranges of memory: an address with its length, as they go from one room to the next.
//!
//! A range owns nothing and promises nothing: what reads or writes the bytes is `unsafe`, and says how long they must be valid.

use std::ops::Range;
use std::slice;

/// Bytes of this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostRange {
    /// The first byte.
    pub start: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: an address and a length; the code that goes to the bytes keeps to their rules.
unsafe impl Send for HostRange {}
// SAFETY: the same.
unsafe impl Sync for HostRange {}

impl HostRange {
    /// No memory.
    pub const NONE: Self = Self { start: std::ptr::null_mut(), len: 0 };

    /// `len` bytes from `start` on. Bytes at a `*const` are only read.
    pub const fn new(start: *const u8, len: usize) -> Self {
        Self { start: start.cast_mut(), len }
    }

    /// Bytes that are only read.
    pub const fn of(bytes: &[u8]) -> Self {
        Self::new(bytes.as_ptr(), bytes.len())
    }

    /// Bytes that may be written.
    pub const fn of_mut(bytes: &mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// The address of the first byte, as a number.
    pub fn address(self) -> u64 {
        self.start as u64
    }

    /// The bytes behind the first `at`; none where there are no more.
    #[must_use]
    pub const fn after(self, at: usize) -> Self {
        Self { start: self.start.wrapping_add(at), len: self.len.saturating_sub(at) }
    }

    /// The first bytes, at most `most`.
    #[must_use]
    pub const fn first(self, most: usize) -> Self {
        Self { start: self.start, len: if self.len < most { self.len } else { most } }
    }

    /// A part of it; `None` if it goes beyond.
    pub fn part(self, part: Range<usize>) -> Option<Self> {
        let is_within = part.start <= part.end && part.end <= self.len;
        is_within.then(|| self.after(part.start).first(part.len()))
    }

    /// The bytes.
    ///
    /// # Safety
    /// They are there, and nobody writes them, as long as the slice lives.
    pub const unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: passed on.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    /// The bytes, to be written.
    ///
    /// # Safety
    /// They are there, and nobody else reads or writes them, as long as the slice lives.
    pub const unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: passed on.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Bytes of a device's memory, which the CPU does not read. Also of host memory where the device's address for it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceRange {
    /// The address of the first byte.
    pub start: u64,
    /// Bytes.
    pub len: usize,
}

impl DeviceRange {
    /// `len` bytes from `start` on.
    pub const fn new(start: u64, len: usize) -> Self {
        Self { start, len }
    }

    /// The same bytes for the CPU, where it has them at the same address: host memory, and memory in a BAR.
    pub fn as_host(self) -> HostRange {
        HostRange::new(self.start as *const u8, self.len)
    }

    /// The address behind the last byte; the greatest number where there is none.
    pub const fn end(self) -> u64 {
        self.start.saturating_add(self.len as u64)
    }

    /// Whether an address lies in it.
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end()
    }

    /// Whether it has bytes of the other range, too.
    pub const fn overlaps(self, other: Self) -> bool {
        self.len > 0 && other.len > 0 && self.start < other.end() && other.start < self.end()
    }

    /// Whether all of the other range lies in it.
    pub fn holds(self, other: Self) -> bool {
        let before = other.start.checked_sub(self.start);
        before
            .and_then(|before| before.checked_add(other.len as u64))
            .is_some_and(|end| end <= self.len as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_within_their_range() {
        let mut bytes = [1, 2, 3, 4, 5];
        let range = HostRange::of_mut(&mut bytes);
        // SAFETY: parts of `bytes`, one after the other.
        unsafe {
            range.after(3).bytes_mut()[1] = 9;
            assert_eq!(range.after(1).first(3).bytes(), [2, 3, 4]);
            assert_eq!(range.after(2).first(9).bytes(), [3, 4, 9]);
            assert!(HostRange::NONE.bytes().is_empty() && HostRange::NONE.bytes_mut().is_empty());
        }
        assert_eq!(range.part(1..4), Some(range.after(1).first(3)));
        assert_eq!((range.part(4..6), range.part(6..6)), (None, None));
        assert_eq!(range.after(6).len, 0);
        assert_eq!(range.after(2).address(), range.address() + 2);
    }

    #[test]
    fn a_range_holds_what_ends_within_it() {
        let range = DeviceRange::new(100, 10);
        for (start, len, is_held) in [
            (100, 10, true),
            (105, 5, true),
            (110, 0, true),
            (99, 2, false),
            (105, 6, false),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(range.holds(DeviceRange::new(start, len)), is_held, "{start} {len}");
        }
        assert!(range.overlaps(DeviceRange::new(109, 5)) && !range.overlaps(DeviceRange::new(110, 5)));
        assert!(!DeviceRange::new(100, usize::MAX).holds(DeviceRange::new(200, usize::MAX)));
        assert_eq!((range.end(), DeviceRange::new(u64::MAX, 2).end()), (110, u64::MAX));
    }
}
