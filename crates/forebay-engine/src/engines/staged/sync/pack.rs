//! Small copies of many callers by one kernel: what a driver call costs is shared, and so is the driver's lock.
//!
//! A caller adds its piece to the pack that forms. Unless enough packs are out already it leads the pack at once: one
//! kernel, one word, one wait for all. Meanwhile the next pack forms, and a member of it leads when one has landed. Nobody
//! waits for a pack to become full.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, CopyPiece, Device, Wait};

use super::signal::{Manner, Marked};
use super::slot::DESKS;
use crate::request::copy_order::{self, CopyOrder, PriorWork};
use crate::runtime::pinned::PinnedPages;
use crate::runtime::traffic;

/// Packs in flight at once. With more of them packs are smaller, and the driver's calls are what holds them up.
const PACKS: usize = 3;
/// The most pieces of a pack: each has a desk.
const PIECES: usize = DESKS;
/// Where a ferry's list lies behind its word, which has cache lines of its own.
const LIST_AT: usize = 256;
/// How long a leader polls before it asks the driver.
const LEADER_POLL: Duration = Duration::from_micros(100);
/// How long a member polls before it sleeps, if every caller has a CPU.
const MEMBER_POLL: Duration = Duration::from_micros(50);
/// The same where callers share CPUs: others can use this one.
const CROWDED_POLL: Duration = Duration::from_micros(2);
/// Polls between looks at the clock.
const LOOKS: u32 = 32;
/// A pack that takes longer waits for room beside somebody's kernels: copies, which need no room, do better.
const SLOW: Duration = Duration::from_millis(2);
/// For how long, in milliseconds.
const REST: u64 = 200;

/// How members and leaders wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    member: Duration,
    leader: Manner<'static>,
}

impl Patience {
    /// Waits asleep only.
    pub(super) const ASLEEP: Self = Self { member: Duration::ZERO, leader: Manner::Block };

    /// Polls a while.
    pub(super) fn polling(is_crowded: bool, last: Wait) -> Self {
        let member = if is_crowded { CROWDED_POLL } else { MEMBER_POLL };
        Self { member, leader: Manner::Poll(LEADER_POLL, last) }
    }
}

/// States of a [`Pack`].
const FORMING: u32 = 0;
/// A pack may go: any member may lead.
const WANTED: u32 = 1;
const LED: u32 = 2;
const DONE: u32 = 3;
const FAILED: u32 = 4;

/// Some callers whose pieces travel together. All of them poll one word, or sleep on it.
#[derive(Default)]
#[repr(align(128))]
struct Pack {
    state: AtomicU32,
    sleepers: AtomicU32,
    error: OnceLock<Error>,
}

impl Pack {
    /// Makes the caller its leader, unless it has one.
    fn claim(&self) -> bool {
        let take = |from| self.state.compare_exchange(from, LED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        take(FORMING) || take(WANTED)
    }

    /// It may go.
    fn want(&self) {
        if self.state.compare_exchange(FORMING, WANTED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.wake(1);
        }
    }

    /// Lets all members go.
    fn finish(&self, result: &Result<()>) {
        let state = match result {
            Ok(()) => DONE,
            Err(error) => {
                let _ = self.error.set(error.clone());
                FAILED
            }
        };
        self.state.store(state, Ordering::SeqCst);
        self.wake(i32::MAX);
    }

    fn failure(&self) -> Error {
        let unknown = || Error::new(ErrorKind::Internal, "a pack failed without an error");
        self.error.get().cloned().unwrap_or_else(unknown)
    }

    /// Sleeps unless the state is another one than `seen` already. May wake up for no reason.
    fn sleep(&self, seen: u32) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: the word lives through the call; the kernel compares it once more before it sleeps.
        unsafe {
            let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, self.state.as_ptr(), flags, seen, none)
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes sleepers after the state was changed. Both sides write first and look at the other's word second.
    fn wake(&self, most: i32) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // SAFETY: the word lives through the call.
            unsafe {
                let flags = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
                libc::syscall(libc::SYS_futex, self.state.as_ptr(), flags, most)
            };
        }
    }
}

/// A stream with pinned room for a list: what a leader needs. Every use waits.
pub(super) struct Ferry {
    pub(super) marked: Marked,
    list: *mut CopyPiece,
    /// The list's address for the device.
    reach: u64,
}

// SAFETY: the list is memory that only this value uses.
unsafe impl Send for Ferry {}

impl Ferry {
    /// Bytes of pinned memory that a ferry needs.
    pub(super) const ROOM: usize = LIST_AT + PIECES * size_of::<CopyPiece>();

    /// # Safety
    /// The pages live as long as this value, and nobody else uses its room from `at` on, a multiple of 8.
    pub(super) unsafe fn new(marked: Marked, pages: &PinnedPages, at: usize) -> Self {
        // SAFETY: the word is the first thing in the room.
        let marked = unsafe { marked.with_word(pages, at) };
        #[allow(clippy::cast_ptr_alignment, reason = "the caller promises the alignment")]
        let list = pages.as_ptr().wrapping_add(at + LIST_AT).cast();
        Self { marked, list, reach: pages.reach() + (at + LIST_AT) as u64 }
    }

    /// Loads pieces, at most [`PIECES`].
    fn load(&self, pieces: &[CopyPiece]) -> Cargo {
        let count = pieces.len().min(PIECES);
        // SAFETY: the room has place for as many, and no kernel reads it now.
        unsafe { std::ptr::copy_nonoverlapping(pieces.as_ptr(), self.list, count) };
        Cargo { count, longest: pieces.iter().map(|piece| piece.len).max().unwrap_or(0) as usize }
    }

    /// Moves what was loaded, and waits.
    ///
    /// # Safety
    /// What the pieces name is valid until then.
    unsafe fn cross(&self, cargo: Cargo, patience: Patience) -> Result<()> {
        // SAFETY: the list was loaded; the caller vouches for what it names.
        unsafe { self.marked.stream().scatter(self.reach, cargo.count, cargo.longest) }
            .and_then(|()| self.marked.wait(patience.leader))
            // What did start uses its members' memory.
            .inspect_err(|_| drop(self.marked.stream().synchronize(Wait::Block)))
    }
}

/// What a ferry was loaded with.
#[derive(Clone, Copy)]
struct Cargo {
    count: usize,
    longest: usize,
}

/// The pack that forms. It has a member; unless all berths are taken a member leads it, or is asked to.
#[derive(Default)]
struct Quay {
    pack: Option<Arc<Pack>>,
    pieces: Vec<CopyPiece>,
    /// A member's copy comes after the default streams.
    is_behind: bool,
    /// Packs that are led, and not landed.
    out: usize,
}

/// Whether packs can be had.
const UNKNOWN: u8 = 0;
const TRYING: u8 = 1;
const READY: u8 = 2;
const NEVER: u8 = 3;

/// The packs of one context.
pub(super) struct Packs {
    device: Arc<dyn Device>,
    context: Context,
    quay: Mutex<Quay>,
    state: AtomicU8,
    clock: Instant,
    /// Milliseconds of the clock until which copies do better; 0 if never.
    rests_until: AtomicU64,
}

impl Packs {
    pub(super) fn new(device: Arc<dyn Device>, context: Context) -> Self {
        Self {
            device,
            context,
            quay: Mutex::default(),
            state: AtomicU8::new(UNKNOWN),
            clock: Instant::now(),
            rests_until: AtomicU64::new(0),
        }
    }

    pub(super) fn context(&self) -> Context {
        self.context
    }

    /// Whether packs can be had now. The first to ask makes them ready; others need not wait for that.
    pub(super) fn are_ready(&self) -> bool {
        match self.state.load(Ordering::Acquire) {
            READY => !self.rest(),
            UNKNOWN => self.make_ready(),
            _ => false,
        }
    }

    fn rest(&self) -> bool {
        let until = self.rests_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let rests = (self.clock.elapsed().as_millis() as u64) < until;
        if !rests {
            self.rests_until.store(0, Ordering::Relaxed);
        }
        rests
    }

    #[cold]
    fn make_ready(&self) -> bool {
        let mine = self.state.compare_exchange(UNKNOWN, TRYING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !mine {
            return false;
        }
        // Loading kernels waits for all streams: not while one waits for a transfer.
        if !traffic::is_clear_within(Duration::ZERO) {
            self.state.store(UNKNOWN, Ordering::SeqCst);
            return false;
        }
        let kernels = self.device.kernels(self.context);
        let state = kernels.map_or(NEVER, |()| READY);
        self.state.store(state, Ordering::SeqCst);
        state == READY
    }

    fn quay(&self) -> MutexGuard<'_, Quay> {
        self.quay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a piece together with those of others, and waits. The ferry serves if this caller leads.
    ///
    /// # Safety
    /// Both ends are valid for the device until this returns, and no other piece at the same time has its destination.
    pub(super) unsafe fn carry(
        &self,
        piece: CopyPiece,
        ferry: &Ferry,
        patience: Patience,
        order: CopyOrder,
    ) -> Result<()> {
        let mut quay = self.quay();
        quay.pieces.push(piece);
        quay.is_behind |= order == CopyOrder::Behind;
        let pack = quay.pack.get_or_insert_default().clone();
        let may_lead = quay.out < PACKS;
        drop(quay);
        if may_lead && pack.claim() {
            self.lead(&pack, ferry, patience)
        } else {
            self.follow(&pack, ferry, patience)
        }
    }

    /// Takes the pack across. Nobody but its leader takes it from the quay.
    fn lead(&self, pack: &Pack, ferry: &Ferry, patience: Patience) -> Result<()> {
        let mut quay = self.quay();
        quay.out += 1;
        quay.pack = None;
        let cargo = ferry.load(&quay.pieces);
        quay.pieces.clear();
        let is_behind = std::mem::take(&mut quay.is_behind);
        drop(quay);
        let crossing = Crossing { packs: self, pack, ferry };
        // All members' calls have begun by now: what stands on the default streams is asked once for all of them.
        let is_due = if is_behind { self.wait_for_default_streams() } else { Ok(()) };
        let started = Instant::now();
        // SAFETY: as the members promised in `carry`, from which they return after this.
        let result = is_due.and_then(|()| unsafe { ferry.cross(cargo, patience) });
        std::mem::forget(crossing);
        pack.finish(&result);
        self.land();
        if started.elapsed() > SLOW {
            let until = self.clock.elapsed().as_millis() as u64 + REST;
            self.rests_until.store(until, Ordering::Relaxed);
        }
        result
    }

    fn wait_for_default_streams(&self) -> Result<()> {
        match PriorWork::of(self.device.as_ref(), self.context)? {
            Some(prior_work) => prior_work.wait(Wait::Nap(copy_order::LOOK)),
            None => Ok(()),
        }
    }

    /// One pack has landed: the next may go.
    fn land(&self) {
        let mut quay = self.quay();
        quay.out -= 1;
        let next = quay.pack.clone();
        drop(quay);
        if let Some(next) = next {
            next.want();
        }
    }

    fn follow(&self, pack: &Pack, ferry: &Ferry, patience: Patience) -> Result<()> {
        let started = Instant::now();
        let mut looks = 0u32;
        loop {
            let state = pack.state.load(Ordering::Acquire);
            match state {
                DONE => return Ok(()),
                FAILED => return Err(pack.failure()),
                WANTED if pack.claim() => return self.lead(pack, ferry, patience),
                WANTED => continue,
                _ => {}
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && started.elapsed() >= patience.member {
                pack.sleep(state);
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// A pack on its way. If its leader panics its members are told, rather than left waiting.
struct Crossing<'a> {
    packs: &'a Packs,
    pack: &'a Pack,
    ferry: &'a Ferry,
}

impl Drop for Crossing<'_> {
    fn drop(&mut self) {
        // What did start uses its members' memory.
        let _ = self.ferry.marked.stream().synchronize(Wait::Block);
        self.pack.finish(&Err(Error::new(
            ErrorKind::Internal,
            "the thread that moved this piece with others panicked",
        )));
        self.packs.land();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that move words of their own, in host memory, where a kernel runs at once.
    fn cross_over(threads: usize, patience: Patience) {
        const ROUNDS: u64 = 2000;
        let device = forebay_gpu::host::device();
        let packs = Packs::new(device.clone(), Context::PRIMARY);
        assert!(packs.are_ready() || packs.state.load(Ordering::Relaxed) == READY);
        std::thread::scope(|scope| {
            for thread in 0..threads as u64 {
                let (packs, device) = (&packs, &device);
                scope.spawn(move || {
                    let pages = PinnedPages::new(device, Ferry::ROOM).unwrap();
                    let stream = || device.stream(Context::PRIMARY).unwrap();
                    let marked = Marked::new(stream(), stream()).unwrap();
                    // SAFETY: the pages outlive the ferry, and are all its.
                    let ferry = unsafe { Ferry::new(marked, &pages, 0) };
                    for round in 0..ROUNDS {
                        let (src, mut dst) = (thread << 32 | round, u64::MAX);
                        let piece =
                            CopyPiece { src: (&raw const src) as u64, dst: (&raw mut dst) as u64, len: 8 };
                        // SAFETY: both words live until it returns.
                        unsafe { packs.carry(piece, &ferry, patience, CopyOrder::Behind) }.unwrap();
                        // SAFETY: a word on our stack, written behind the compiler's back.
                        assert_eq!(unsafe { (&raw const dst).read_volatile() }, src);
                    }
                });
            }
        });
        let quay = packs.quay();
        assert!(quay.pack.is_none() && quay.pieces.is_empty());
        assert_eq!(quay.out, 0);
    }

    #[test]
    fn every_piece_arrives() {
        cross_over(1, Patience::ASLEEP);
        for threads in [2, 7, 64] {
            cross_over(threads, Patience::ASLEEP);
            cross_over(threads, Patience::polling(true, Wait::Block));
        }
        cross_over(3, Patience::polling(false, Wait::Spin));
    }

    #[test]
    fn what_failed_fails_for_each() {
        let pack = Pack::default();
        assert!(pack.claim() && !pack.claim());
        pack.finish(&Err(Error::new(ErrorKind::DeviceLost, "gone")));
        assert_eq!(pack.failure().kind(), ErrorKind::DeviceLost);
        pack.want();
        assert_eq!(pack.state.load(Ordering::Relaxed), FAILED, "nobody leads it any more");
    }
}
