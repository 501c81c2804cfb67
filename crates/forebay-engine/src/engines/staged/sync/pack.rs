//! Small copies of many callers by one kernel: they share the cost of a driver call, and the driver's lock.
//!
//! A caller adds its piece to the pack that forms. Unless enough packs are in flight it leads the pack at once: one kernel,
//! one word, one wait for all. Meanwhile the next pack forms; a member leads it when a pack has ended. No caller waits for a
//! pack to become full.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, CopyPiece, Device, Wait};

use super::signal::MarkedStream;
use crate::request::copy_order::{self, CopyOrder, PriorWork};
use crate::runtime::lock::lock;
use crate::runtime::pinned::PinnedPages;
use crate::runtime::traffic;
use crate::runtime::wait::WaitPolicy;
use crate::tuning::callers::STREAM_SLOTS;
use crate::tuning::packs::{CROWDED_POLL, LEADER_POLL, MEMBER_POLL, PACKS, REST_MILLISECONDS, SLOW};
use crate::tuning::waits::LOOKS;

/// The most pieces of a pack: each has a slot.
const PACK_PIECES: usize = STREAM_SLOTS;
/// Offset of a launcher's list from its word, which has cache lines of its own.
const LIST_AT: usize = 256;

/// How members and leaders wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackWait {
    member: Duration,
    leader: WaitPolicy,
}

impl PackWait {
    /// Sleeps at once.
    pub(super) const ASLEEP: Self = Self { member: Duration::ZERO, leader: WaitPolicy::BLOCK };

    /// Polls, then sleeps.
    pub(super) fn polling(is_crowded: bool, last: Wait) -> Self {
        let member = if is_crowded { CROWDED_POLL } else { MEMBER_POLL };
        Self { member, leader: WaitPolicy { poll: LEADER_POLL, last } }
    }
}

/// States of a [`CopyPack`].
const FORMING: u32 = 0;
/// A pack may go: any member may lead.
const WANTED: u32 = 1;
const LED: u32 = 2;
const DONE: u32 = 3;
const FAILED: u32 = 4;

/// Callers whose pieces one kernel copies. All of them poll one word, or sleep on it.
#[derive(Default)]
#[repr(align(128))]
struct CopyPack {
    state: AtomicU32,
    sleepers: AtomicU32,
    error: OnceLock<Error>,
}

impl CopyPack {
    /// Makes the caller its leader, unless it has one.
    fn claim(&self) -> bool {
        let take = |from| self.state.compare_exchange(from, LED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        take(FORMING) || take(WANTED)
    }

    /// Lets a member lead it.
    fn want(&self) {
        if self.state.compare_exchange(FORMING, WANTED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.wake(1);
        }
    }

    /// Tells all members the result.
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

    /// Sleeps unless the state differs from `seen`. May wake up for no reason.
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

    /// Wakes sleepers after a change of the state. Both sides write first and read the other's word second.
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
pub(super) struct PackLauncher {
    pub(super) marked: MarkedStream,
    list: *mut CopyPiece,
    /// The list's address for the device.
    reach: u64,
}

// SAFETY: the list is memory that only this value uses.
unsafe impl Send for PackLauncher {}

impl PackLauncher {
    /// Bytes of pinned memory that a launcher needs.
    pub(super) const ROOM: usize = LIST_AT + PACK_PIECES * size_of::<CopyPiece>();

    /// # Safety
    /// The pages live as long as this value, and nothing else uses the bytes from `at` on, a multiple of 8.
    pub(super) unsafe fn new(marked: MarkedStream, pages: &PinnedPages, at: usize) -> Self {
        // SAFETY: the word is the first thing in the room.
        let marked = unsafe { marked.with_word(pages, at) };
        #[allow(clippy::cast_ptr_alignment, reason = "the caller promises the alignment")]
        let list = pages.as_ptr().wrapping_add(at + LIST_AT).cast();
        Self { marked, list, reach: pages.reach() + (at + LIST_AT) as u64 }
    }

    /// Loads pieces, at most [`PACK_PIECES`].
    fn load(&self, pieces: &[CopyPiece]) -> LoadedList {
        let count = pieces.len().min(PACK_PIECES);
        // SAFETY: the room has place for as many, and no kernel reads it now.
        unsafe { std::ptr::copy_nonoverlapping(pieces.as_ptr(), self.list, count) };
        LoadedList { count, longest: pieces.iter().map(|piece| piece.len).max().unwrap_or(0) as usize }
    }

    /// Moves what was loaded, and waits.
    ///
    /// # Safety
    /// The pieces' memory is valid until then.
    unsafe fn launch(&self, loaded: LoadedList, pack_wait: PackWait) -> Result<()> {
        // SAFETY: the list was loaded; the caller vouches for what it names.
        unsafe { self.marked.stream().scatter(self.reach, loaded.count, loaded.longest) }
            .and_then(|()| self.marked.poll(pack_wait.leader))
            // A kernel that did start uses the members' memory.
            .inspect_err(|_| drop(self.marked.stream().synchronize(Wait::Block)))
    }
}

/// A list that is loaded.
#[derive(Clone, Copy)]
struct LoadedList {
    count: usize,
    longest: usize,
}

/// The pack that forms. It has a member. Unless enough packs are in flight a member leads it, or is asked to.
#[derive(Default)]
struct FormingPack {
    pack: Option<Arc<CopyPack>>,
    pieces: Vec<CopyPiece>,
    /// A member's copy comes after the default streams.
    is_behind: bool,
    /// Packs that have a leader and have not ended.
    in_flight: usize,
}

/// Whether packs are possible: values of [`Packs::state`].
const UNKNOWN: u8 = 0;
const TRYING: u8 = 1;
const READY: u8 = 2;
const NEVER: u8 = 3;

/// The packs of one context.
pub(super) struct Packs {
    device: Arc<dyn Device>,
    context: Context,
    forming: Mutex<FormingPack>,
    state: AtomicU8,
    clock: Instant,
    /// Milliseconds of the clock until which copies are used instead; 0 if none.
    rests_until: AtomicU64,
}

impl Packs {
    pub(super) fn new(device: Arc<dyn Device>, context: Context) -> Self {
        Self {
            device,
            context,
            forming: Mutex::default(),
            state: AtomicU8::new(UNKNOWN),
            clock: Instant::now(),
            rests_until: AtomicU64::new(0),
        }
    }

    pub(super) fn context(&self) -> Context {
        self.context
    }

    /// Whether packs are possible now. The first caller makes them ready; others do not wait for that.
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
        // Loading kernels waits for all streams: none may wait for a transfer meanwhile.
        if !traffic::is_clear_within(Duration::ZERO) {
            self.state.store(UNKNOWN, Ordering::SeqCst);
            return false;
        }
        let kernels = self.device.kernels(self.context);
        let state = kernels.map_or(NEVER, |()| READY);
        self.state.store(state, Ordering::SeqCst);
        state == READY
    }

    fn forming(&self) -> MutexGuard<'_, FormingPack> {
        lock(&self.forming)
    }

    /// Copies a piece together with those of other callers, and waits. The launcher is used if this caller leads.
    ///
    /// # Safety
    /// Both ends are valid for the device until this returns, and no other piece at the same time has its destination.
    pub(super) unsafe fn copy_with_others(
        &self,
        piece: CopyPiece,
        launcher: &PackLauncher,
        pack_wait: PackWait,
        order: CopyOrder,
    ) -> Result<()> {
        let mut forming = self.forming();
        forming.pieces.push(piece);
        forming.is_behind |= order == CopyOrder::Behind;
        let pack = forming.pack.get_or_insert_default().clone();
        let may_lead = forming.in_flight < PACKS;
        drop(forming);
        if may_lead && pack.claim() {
            self.lead(&pack, launcher, pack_wait)
        } else {
            self.follow(&pack, launcher, pack_wait)
        }
    }

    /// Launches the pack's kernel and waits. Only its leader replaces the pack that forms.
    fn lead(&self, pack: &CopyPack, launcher: &PackLauncher, pack_wait: PackWait) -> Result<()> {
        let mut forming = self.forming();
        forming.in_flight += 1;
        forming.pack = None;
        let loaded = launcher.load(&forming.pieces);
        forming.pieces.clear();
        let is_behind = std::mem::take(&mut forming.is_behind);
        drop(forming);
        let guard = LeaderGuard { packs: self, pack, launcher };
        // All members' calls have begun: one query of the default streams serves them all.
        let is_due = if is_behind { self.wait_for_default_streams() } else { Ok(()) };
        let started = Instant::now();
        // SAFETY: as the members promised in `copy_with_others`, from which they return after this.
        let result = is_due.and_then(|()| unsafe { launcher.launch(loaded, pack_wait) });
        std::mem::forget(guard);
        pack.finish(&result);
        self.leave();
        if started.elapsed() > SLOW {
            let until = self.clock.elapsed().as_millis() as u64 + REST_MILLISECONDS;
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

    /// A pack has ended: the next may be led.
    fn leave(&self) {
        let mut forming = self.forming();
        forming.in_flight -= 1;
        let next = forming.pack.clone();
        drop(forming);
        if let Some(next) = next {
            next.want();
        }
    }

    fn follow(&self, pack: &CopyPack, launcher: &PackLauncher, pack_wait: PackWait) -> Result<()> {
        let started = Instant::now();
        let mut looks = 0u32;
        loop {
            let state = pack.state.load(Ordering::Acquire);
            match state {
                DONE => return Ok(()),
                FAILED => return Err(pack.failure()),
                WANTED if pack.claim() => return self.lead(pack, launcher, pack_wait),
                WANTED => continue,
                _ => {}
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && started.elapsed() >= pack_wait.member {
                pack.sleep(state);
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Tells a pack's members if its leader panics, so that they do not wait forever.
struct LeaderGuard<'a> {
    packs: &'a Packs,
    pack: &'a CopyPack,
    launcher: &'a PackLauncher,
}

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        // A kernel that did start uses the members' memory.
        let _ = self.launcher.marked.stream().synchronize(Wait::Block);
        self.pack.finish(&Err(Error::new(
            ErrorKind::Internal,
            "the thread that moved this piece with others panicked",
        )));
        self.packs.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that move words of their own, in host memory, where a kernel runs at once.
    fn move_words(threads: usize, pack_wait: PackWait) {
        const ROUNDS: u64 = 2000;
        let device = forebay_gpu::host::device();
        let packs = Packs::new(device.clone(), Context::PRIMARY);
        assert!(packs.are_ready() || packs.state.load(Ordering::Relaxed) == READY);
        std::thread::scope(|scope| {
            for thread in 0..threads as u64 {
                let (packs, device) = (&packs, &device);
                scope.spawn(move || {
                    let pages = PinnedPages::new(device, PackLauncher::ROOM).unwrap();
                    let stream = || device.stream(Context::PRIMARY).unwrap();
                    let marked = MarkedStream::new(stream(), stream()).unwrap();
                    // SAFETY: the pages outlive the launcher, and are all its.
                    let launcher = unsafe { PackLauncher::new(marked, &pages, 0) };
                    for round in 0..ROUNDS {
                        let (src, mut dst) = (thread << 32 | round, u64::MAX);
                        let piece =
                            CopyPiece { src: (&raw const src) as u64, dst: (&raw mut dst) as u64, len: 8 };
                        // SAFETY: both words live until it returns.
                        unsafe { packs.copy_with_others(piece, &launcher, pack_wait, CopyOrder::Behind) }
                            .unwrap();
                        // SAFETY: a word on our stack, written behind the compiler's back.
                        assert_eq!(unsafe { (&raw const dst).read_volatile() }, src);
                    }
                });
            }
        });
        let forming = packs.forming();
        assert!(forming.pack.is_none() && forming.pieces.is_empty());
        assert_eq!(forming.in_flight, 0);
    }

    #[test]
    fn every_piece_arrives() {
        move_words(1, PackWait::ASLEEP);
        for threads in [2, 7, 64] {
            move_words(threads, PackWait::ASLEEP);
            move_words(threads, PackWait::polling(true, Wait::Block));
        }
        move_words(3, PackWait::polling(false, Wait::Spin));
    }

    #[test]
    fn what_failed_fails_for_each() {
        let pack = CopyPack::default();
        assert!(pack.claim() && !pack.claim());
        pack.finish(&Err(Error::new(ErrorKind::DeviceLost, "gone")));
        assert_eq!(pack.failure().kind(), ErrorKind::DeviceLost);
        pack.want();
        assert_eq!(pack.state.load(Ordering::Relaxed), FAILED, "a failed pack gets no leader");
    }
}
