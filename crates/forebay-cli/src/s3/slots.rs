//! How many long files are moved at a time.

use std::sync::{Condvar, Mutex, PoisonError};

use forebay_sys::lock;

/// All slots.
const SLOTS: u32 = 8;
/// Files up to this size take one slot. A longer one is moved by several requests at a time: it takes half of them.
const MEDIUM: u64 = 16 << 20;

/// Slots of long files.
pub(super) struct Slots {
    free: Mutex<u32>,
    freed: Condvar,
}

/// Slots that a file has until this is dropped.
pub(super) struct Taken<'a> {
    slots: &'a Slots,
    many: u32,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self { free: Mutex::new(SLOTS), freed: Condvar::new() }
    }

    /// Waits for the slots of a file of this length.
    pub(super) fn take(&self, len: u64) -> Taken<'_> {
        let many = if len > MEDIUM { SLOTS / 2 } else { 1 };
        let free = self.freed.wait_while(lock(&self.free), |free| *free < many);
        *free.unwrap_or_else(PoisonError::into_inner) -= many;
        Taken { slots: self, many }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *lock(&self.slots.free) += self.many;
        self.slots.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_files_of_some_megabytes_or_two_long_ones_go_together() {
        let slots = Slots::new();
        let free = || *lock(&slots.free);
        let all: Vec<_> = (0..8).map(|_| slots.take(MEDIUM)).collect();
        assert_eq!(free(), 0);
        drop(all);
        let two = [slots.take(MEDIUM + 1), slots.take(u64::MAX)];
        assert_eq!(free(), 0);
        drop(two);
        assert_eq!(free(), SLOTS);
    }
}
