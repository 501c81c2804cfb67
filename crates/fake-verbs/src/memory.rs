//! What is behind registered memory: its key, its mapping, what it counts against the limit of locked memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{Handle, Why};

use crate::machine::Machine;
use crate::table::Refusal;

/// What is behind a region or a window, or of a connection's own.
#[derive(Debug)]
pub(crate) struct FakeMemory {
    machine: Arc<Machine>,
    pub(crate) key: Option<u32>,
    pub(crate) map: Option<Map>,
    locked: u64,
    /// Whether its deregistration fails where [`crate::Fake::refuse_deregistrations`] says so.
    pub(crate) may_be_kept: bool,
}

impl FakeMemory {
    pub(crate) fn new(machine: &Arc<Machine>, key: Option<u32>) -> Self {
        Self { machine: Arc::clone(machine), key, map: None, locked: 0, may_be_kept: false }
    }

    /// Whether this attempt to deregister it is to fail.
    fn is_kept(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.may_be_kept
            && self.key.is_some()
            && self.machine.kept.try_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    pub(crate) fn lock_bytes(&mut self, bytes: u64) -> Result<()> {
        let lockable = &self.machine.lockable;
        let take = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(bytes) };
        match lockable.try_update(Ordering::AcqRel, Ordering::Acquire, take) {
            Ok(u64::MAX) => Ok(()),
            Ok(_) => {
                self.locked = bytes;
                Ok(())
            }
            Err(left) => Err(Why::Memlock
                .error("cannot register memory")
                .with("bytes", bytes)
                .with("lockable", left)
                .hint("ulimit -l unlimited")),
        }
    }
}

impl Handle for FakeMemory {
    fn release(&mut self) -> Result<()> {
        if self.is_kept() {
            return Err(Error::from_errno(libc::EIO, "cannot deregister memory"));
        }
        if let Some(key) = self.key {
            self.machine.change_table().remove(key).map_err(|refusal| {
                let kind = if refusal == Refusal::InUse { ErrorKind::Busy } else { ErrorKind::Internal };
                Error::new(kind, format!("cannot deregister memory: {refusal}"))
            })?;
        }
        self.key = None;
        self.map = None;
        if self.locked > 0 {
            let give = |left: u64| (left != u64::MAX).then(|| left.saturating_add(self.locked));
            // Without a limit nothing is counted.
            let _ = self.machine.lockable.try_update(Ordering::AcqRel, Ordering::Acquire, give);
            self.locked = 0;
        }
        Ok(())
    }
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        // With a window bound to it memory stays registered, as with a device: its pages must stay, too.
        if self.release().is_err() {
            std::mem::forget(self.map.take());
        }
    }
}

/// Whether all of a range is mapped so that no child gets it (MADV_DONTFORK).
pub(crate) fn is_kept_from_children(address: usize, len: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut kept = 0;
    let mut own = 0..0;
    for line in maps.lines() {
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        if let Some((start, end)) = range.and_then(|(start, end)| number(start).zip(number(end))) {
            own = start.max(address)..end.min(address + len);
        } else if line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split(' ').any(|flag| flag == "dc"))
        {
            kept += own.len();
        }
    }
    kept == len
}

pub(crate) const PAGE: u64 = 4096;

/// A dma-buf as this process sees it: the pages stay while it lives, with the descriptor closed too.
#[derive(Debug)]
pub(crate) struct Map {
    /// Where the range begins.
    pub(crate) first: usize,
    start: usize,
    len: usize,
}

impl Map {
    pub(crate) fn new(fd: i32, offset: u64, len: usize) -> Result<Self> {
        let before = (offset % PAGE) as usize;
        let (start, len) = (offset - before as u64, len + before);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice; nothing else knows of it.
        let map = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, start.cast_signed())
        };
        if map == libc::MAP_FAILED {
            return Err(Why::Unsupported.mark(Error::last_os("cannot register a dma-buf")));
        }
        Ok(Self { first: map as usize + before, start: map as usize, len })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, whole; its keys are gone.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }
}
