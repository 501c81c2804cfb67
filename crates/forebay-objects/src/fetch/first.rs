//! The first bytes of an object, which came when it was opened: a read of them asks the server for nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use forebay_remote::process::OfProcess;
use forebay_source::Request;

use crate::lock;

/// Bytes that are asked for when an object is opened.
pub(crate) const FIRST: u64 = 256 << 10;
/// Objects whose first bytes are kept: 16 MiB at most. Where more are opened, those of the oldest go.
const MOST_KEPT: usize = 64;

static KEPT: OfProcess<Mutex<VecDeque<Weak<FirstBytes>>>> = OfProcess::new();

/// First bytes of an object. They are kept until as many bytes were read of them, or others were read: later reads of them come from
/// the server, which says if the object was replaced.
#[derive(Debug)]
pub(super) struct FirstBytes(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    /// Bytes that were not read yet.
    left: usize,
}

impl FirstBytes {
    /// These bytes, which may be none.
    pub(super) fn keep(bytes: Vec<u8>) -> Arc<Self> {
        let (left, is_empty) = (bytes.len(), bytes.is_empty());
        let first = Arc::new(Self(Mutex::new(Kept { bytes, left })));
        if !is_empty {
            let mut all = lock(KEPT.get());
            all.push_back(Arc::downgrade(&first));
            let oldest = if all.len() > MOST_KEPT { all.pop_front() } else { None };
            drop(all);
            if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
                oldest.forget();
            }
        }
        first
    }

    /// Fills a request that lies within them: the number of its bytes.
    ///
    /// # Safety
    /// The request's memory is valid, and nobody else uses it.
    pub(super) unsafe fn fill(&self, request: &Request, len: u64) -> Option<usize> {
        let mut kept = lock(&self.0);
        if kept.bytes.is_empty() || request.offset >= len {
            return None;
        }
        let wanted = (request.memory.len as u64).min(len - request.offset) as usize;
        let found =
            usize::try_from(request.offset).ok().and_then(|start| kept.bytes.get(start..)?.get(..wanted));
        if let Some(found) = found {
            // SAFETY: passed on; the memory is none of this object's.
            unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), request.memory.start, wanted) };
        }
        let is_filled = found.is_some();
        kept.left = if is_filled { kept.left.saturating_sub(wanted) } else { 0 };
        if kept.left == 0 {
            kept.bytes = Vec::new();
        }
        is_filled.then_some(wanted)
    }

    fn forget(&self) {
        lock(&self.0).bytes = Vec::new();
    }
}
