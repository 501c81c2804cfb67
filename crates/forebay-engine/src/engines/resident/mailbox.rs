//! The protocol of a mailbox, alone: what the host writes and reads. A test includes this file once more, over atomics that try
//! out all orders (`model.rs`).
//!
//! Each word has one writer. Numbers count up and may wrap. The kernel's side is in `resident.cuh`, and in words in
//! [`forebay_gpu::Resident`].

use forebay_gpu::CopyPiece;

use super::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// The host's line.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct HostLine {
    pub(super) posted: AtomicU32,
    pub(super) withdrawn: AtomicU32,
    pub(super) len: AtomicU64,
    pub(super) src: AtomicU64,
    pub(super) dst: AtomicU64,
}

/// The device's line.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct DeviceLine {
    pub(super) claimed: AtomicU32,
    pub(super) done: AtomicU32,
    pub(super) declined: AtomicU32,
    /// 1 while a block looks at the mailbox.
    pub(super) serving: AtomicU32,
}

/// A place for one request at a time.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Mailbox {
    pub(super) host: HostLine,
    pub(super) device: DeviceLine,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Carried out: who sees this sees the bytes.
    Done,
    /// Never carried out.
    Declined,
}

impl Mailbox {
    /// Posts a request and returns its number. The one before has an answer, or was withdrawn in time.
    pub(super) fn post(&self, piece: CopyPiece) -> u32 {
        let number = self.host.posted.load(Ordering::Relaxed).wrapping_add(1);
        // What was withdrawn stays so. A number from long ago would look like one to come.
        self.host.withdrawn.store(number.wrapping_sub(1), Ordering::Relaxed);
        self.host.len.store(piece.len, Ordering::Relaxed);
        self.host.src.store(piece.src, Ordering::Relaxed);
        self.host.dst.store(piece.dst, Ordering::Relaxed);
        self.host.posted.store(number, Ordering::Release);
        number
    }

    /// The answer to the request, if that is known.
    pub(super) fn answer(&self, number: u32) -> Option<Answer> {
        if self.device.done.load(Ordering::Acquire) == number {
            return Some(Answer::Done);
        }
        (self.device.declined.load(Ordering::Acquire) == number).then_some(Answer::Declined)
    }

    /// Withdraws the request: no launch that begins from now on carries it out. See [`Mailbox::outcome`].
    pub(super) fn withdraw(&self, number: u32) {
        self.host.withdrawn.store(number, Ordering::Relaxed);
        // A block says that it serves, fences and looks at `withdrawn`: one of the two sees the other.
        fence(Ordering::SeqCst);
    }

    /// The outcome of a withdrawn request: a block that serves may still carry it out. `None`: not known yet.
    pub(super) fn outcome(&self, number: u32) -> Option<Answer> {
        // First: a block answers before it ends.
        let is_served = self.device.serving.load(Ordering::Acquire) != 0;
        self.answer(number).or_else(|| (!is_served).then_some(Answer::Declined))
    }

    /// Whether there is a request for a kernel. For a thread other than the caller: may be out of date.
    pub(super) fn is_open(&self) -> bool {
        let number = self.host.posted.load(Ordering::Acquire);
        self.host.withdrawn.load(Ordering::Relaxed) != number && self.answer(number).is_none()
    }
}
