//! The kernel that stays: it polls mailboxes, copies the posted requests, and ends by itself.
//!
//! Blocks do not run at once here: one thread looks at all mailboxes in turn. Written down once more, so that it and the engine
//! can disagree.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crate::access;
use crate::environment;
use crate::result::{Answer, ILLEGAL_ADDRESS};
use crate::state::state;

/// Bytes of a mailbox, and where the device's line begins.
const MAILBOX: u64 = 256;
const DEVICE_LINE: u64 = 128;
/// What a piece takes at most, as the kernel reckons: nanoseconds, and bytes in one.
const PIECE_NS: u64 = 5000;
const PIECE_BYTES_PER_NS: u64 = 4;
/// Between two rounds of looks at mailboxes without a request.
const PAUSE: Duration = Duration::from_micros(5);

/// What the kernel takes, in its order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidentArguments {
    pub(crate) mailboxes: u64,
    pub(crate) count: u32,
    pub(crate) idle: u32,
    pub(crate) life: u32,
    pub(crate) ended: u64,
    pub(crate) number: u32,
    pub(crate) stream: u32,
}

/// A mailbox's words.
#[derive(Clone, Copy)]
struct FakeMailbox {
    gpu: usize,
    words: u64,
}

impl FakeMailbox {
    /// Pinned memory of our own stays where it is.
    fn at(gpu: usize, address: u64) -> Answer<Self> {
        let words = state().reach(gpu, address, MAILBOX as usize)? as u64;
        if words.is_multiple_of(MAILBOX) { Ok(Self { gpu, words }) } else { Err(ILLEGAL_ADDRESS) }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: known memory, aligned as a mailbox is; the program that launched the kernel keeps it.
        unsafe { AtomicU32::from_ptr((self.words + at) as *mut u32) }
    }

    fn long(&self, at: u64) -> u64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr((self.words + at) as *mut u64) }.load(Ordering::Relaxed)
    }

    /// Whether the kernel is reading these. A caller that withdraws a request meanwhile waits.
    fn say_serving(mailboxes: &[Self], serving: u32) {
        for mailbox in mailboxes {
            mailbox.word(DEVICE_LINE + 12).store(serving, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// The request after `seen`, if there is one, and its length; none of one that is withdrawn.
    fn request(&self, seen: u32) -> Option<(u32, u64)> {
        let posted = self.word(0).load(Ordering::Acquire);
        let is_withdrawn = (self.word(4).load(Ordering::Relaxed).wrapping_sub(posted) as i32) >= 0;
        (posted != seen).then(|| (posted, if is_withdrawn { 0 } else { self.long(8) }))
    }

    /// Carries a request out, unless it was withdrawn.
    fn serve(&self, number: u32) -> Answer {
        self.word(DEVICE_LINE).store(number, Ordering::Relaxed);
        if (self.word(4).load(Ordering::Relaxed).wrapping_sub(number) as i32) >= 0 {
            self.word(DEVICE_LINE + 8).store(number, Ordering::Release);
            return Ok(());
        }
        access::transfer(self.gpu, self.long(16), self.long(24), self.long(8) as usize)?;
        self.word(DEVICE_LINE + 4).store(number, Ordering::Release);
        Ok(())
    }
}

impl ResidentArguments {
    /// Whether the context was destroyed, or its GPU broke: a kernel is stopped wherever it is.
    fn is_stopped(gpu: usize, context: u64) -> bool {
        let state = state();
        !state.contexts.contains_key(&context) || state.gpus[gpu].error.is_some()
    }

    pub(crate) fn run(self, gpu: usize, context: u64) -> Answer {
        // What the blocks of two lives shared would be nonsense.
        if !state().lives.insert((context, self.stream)) {
            return Err(ILLEGAL_ADDRESS);
        }
        let result = self.live(gpu, context);
        state().lives.remove(&(context, self.stream));
        result
    }

    fn live(self, gpu: usize, context: u64) -> Answer {
        let at = |index: u32| FakeMailbox::at(gpu, self.mailboxes + u64::from(index) * MAILBOX);
        let mailboxes = (0..self.count).map(at).collect::<Answer<Vec<_>>>()?;
        FakeMailbox::say_serving(&mailboxes, 1);
        let mut seen: Vec<_> =
            mailboxes.iter().map(|mailbox| mailbox.word(DEVICE_LINE).load(Ordering::Relaxed)).collect();
        let began = Instant::now();
        let mut active = began;
        let life = Duration::from_nanos(self.life.into());
        'life: while began.elapsed() < life && active.elapsed() < Duration::from_nanos(self.idle.into()) {
            if Self::is_stopped(gpu, context) {
                return Ok(());
            }
            for (mailbox, seen) in mailboxes.iter().zip(&mut seen) {
                let Some((number, len)) = mailbox.request(*seen) else { continue };
                let takes = Duration::from_nanos(PIECE_NS + len / PIECE_BYTES_PER_NS);
                if began.elapsed() + takes > life {
                    break 'life;
                }
                *seen = number;
                mailbox.serve(number)?;
                active = Instant::now();
            }
            if environment::cpu().is_none() {
                std::thread::sleep(PAUSE);
            }
        }
        if Self::is_stopped(gpu, context) {
            return Ok(());
        }
        FakeMailbox::say_serving(&mailboxes, 0);
        let word = state().reach(gpu, self.ended, 4)? as u64;
        // SAFETY: known memory, as the program that launched the kernel promises until it has ended.
        unsafe { AtomicU32::from_ptr(word as *mut u32) }.store(self.number, Ordering::Release);
        Ok(())
    }
}
