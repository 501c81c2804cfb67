//! The thread that launches the kernel, again and again while there is work.
//!
//! It sleeps on the word `wanted`. A caller that has posted and finds the last launch over sets it and wakes the thread; the thread
//! clears it before it looks whether the launch is over, or whether anything is posted. So nothing posted is overlooked.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, CopyPiece, Device, Event, Naps, Stream};

use super::demand::ColdLaunchDemand;
use super::long::{LongPieces, PieceRoom, life};
use super::mailbox::Mailbox;
use crate::runtime::pinned::PinnedPages;
use crate::runtime::traffic;
use crate::tuning::callers::STREAM_SLOTS;
use crate::tuning::machine::{IDLE, LOOK, PATIENCE};
use crate::tuning::resident::{LAUNCH_LIMIT, MAX_LAUNCH, PAUSES, START_LIMIT};

/// Offset of the first mailbox from the word that a launch writes at its end.
const MAILBOXES_AT: usize = 256;
/// Offset of the trial's bytes, behind the mailboxes.
const TRIAL_AT: usize = MAILBOXES_AT + 2 * STREAM_SLOTS * size_of::<Mailbox>();
/// The trial's piece.
const TRIAL_BYTES: usize = 64;

/// Values of [`Launcher::state`].
const STARTING: u8 = 0;
const READY: u8 = 1;
/// The kernel is launched no more.
const STOPPED: u8 = 2;

/// The stream of all launches, and an event behind one that is late.
struct LaunchStream {
    stream: Box<dyn Stream>,
    mark: Box<dyn Event>,
}

/// What callers and the thread share.
#[derive(Debug)]
pub(super) struct Launcher {
    device: Arc<dyn Device>,
    context: Context,
    state: AtomicU8,
    pages: OnceLock<PinnedPages>,
    /// First mailboxes that were used: launches look at no more, unless second ones are wanted.
    used: AtomicU32,
    /// The same of second ones, and whether any was asked for since the last launch began.
    used_second: AtomicU32,
    wants_second: AtomicBool,
    /// How many mailboxes the present launch looks at.
    seen: AtomicU32,
    /// The number of the last launch.
    launch: AtomicU32,
    long: LongPieces,
    /// When the last launch began, in microseconds of the clock.
    launched: AtomicU64,
    /// A caller wants a launch: a futex.
    wanted: AtomicU32,
    /// Cold pieces that found no launch under way, and whether they want a launch although nothing is posted.
    cold: ColdLaunchDemand,
    is_demanded: AtomicBool,
    is_closing: AtomicBool,
    /// Why no launch will come.
    reason: OnceLock<Error>,
    clock: Instant,
    /// Microseconds of the clock until which callers copy by themselves; 0 where they need not.
    paused_until: AtomicU64,
}

impl Launcher {
    pub(super) fn new(device: Arc<dyn Device>, context: Context) -> Self {
        Self {
            device,
            context,
            state: AtomicU8::new(STARTING),
            pages: OnceLock::new(),
            used: AtomicU32::new(0),
            used_second: AtomicU32::new(0),
            wants_second: AtomicBool::new(false),
            seen: AtomicU32::new(0),
            launch: AtomicU32::new(0),
            long: LongPieces::default(),
            launched: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            cold: ColdLaunchDemand::default(),
            is_demanded: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            reason: OnceLock::new(),
            clock: Instant::now(),
            paused_until: AtomicU64::new(0),
        }
    }

    // ---- for callers ----------------------------------------------------------------------------------------------

    /// Starts the thread.
    pub(super) fn start(self: &Arc<Self>) {
        let launcher = self.clone();
        let body = move || launcher.run(Self::serve);
        if let Err(error) = forebay_sys::threads::spawn("forebay-resident", body) {
            self.end(Error::new(ErrorKind::OutOfMemory, error.to_string()));
        }
    }

    /// No launch will come.
    fn end(&self, reason: Error) {
        let _ = self.reason.set(reason);
        self.state.store(STOPPED, Ordering::SeqCst);
    }

    /// Whether callers may post.
    pub(super) fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) == READY && !self.is_paused()
    }

    fn is_paused(&self) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let is_paused = (self.clock.elapsed().as_micros() as u64) < until;
        if !is_paused {
            // Later calls need no clock.
            let _ = self.paused_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        is_paused
    }

    /// A piece was not begun in time. If its launch is not prompt, callers copy by themselves for a while; it may as well be that
    /// this process's threads had no CPU.
    pub(super) fn report_slow(&self) {
        let launched = Duration::from_micros(self.launched.load(Ordering::Relaxed));
        if !self.is_launch_over() && self.clock.elapsed().saturating_sub(launched) > START_LIMIT {
            self.pause();
        }
    }

    fn pause(&self) {
        self.paused_until.store((self.clock.elapsed() + PAUSES.0).as_micros() as u64, Ordering::Relaxed);
    }

    /// A mailbox, which launches look at from now on. Those from [`STREAM_SLOTS`] on are the second ones of callers; `None` if the
    /// present launch does not look there.
    pub(super) fn mailbox(&self, index: usize) -> Option<&Mailbox> {
        if index >= STREAM_SLOTS {
            self.used_second.fetch_max((index - STREAM_SLOTS) as u32 + 1, Ordering::Relaxed);
            self.wants_second.store(true, Ordering::Relaxed);
            let is_seen = (index as u32) < self.seen.load(Ordering::Relaxed);
            return (is_seen && index < 2 * STREAM_SLOTS).then(|| self.at(index)).flatten();
        }
        if self.used.load(Ordering::Relaxed) <= index as u32 {
            self.used.fetch_max(index as u32 + 1, Ordering::SeqCst);
        }
        self.at(index)
    }

    /// Room for a piece of this length, until it is dropped.
    pub(super) fn room(&self, len: u64) -> Option<PieceRoom<'_>> {
        self.long.room(len)
    }

    /// Wakes the thread if no launch is under way. Many callers look here between two launches: only the first writes.
    pub(super) fn wake_if_over(&self) {
        if self.is_launch_over()
            && self.wanted.load(Ordering::SeqCst) == 0
            && self.wanted.swap(1, Ordering::SeqCst) == 0
        {
            self.wake();
        }
    }

    /// Whether a cold piece is to be posted in this first mailbox: a launch that looks there is under way, or one is about to be. If
    /// not, a copy by the driver is there sooner, and only many of them want a launch for those to come. `is_reached`: kernels reach
    /// its memory.
    pub(super) fn takes_cold(&self, mailbox: usize, is_reached: impl Fn() -> bool) -> bool {
        if !self.is_launch_over() {
            return (mailbox as u32) < self.seen.load(Ordering::Relaxed) && is_reached();
        }
        if self.wanted.load(Ordering::Relaxed) != 0 {
            return is_reached();
        }
        if self.cold.count(self.clock.elapsed().as_micros() as u64) && is_reached() {
            self.is_demanded.store(true, Ordering::SeqCst);
            self.wake_if_over();
        }
        false
    }

    /// Whether no launch will come.
    pub(super) fn is_over_for_good(&self) -> bool {
        self.state.load(Ordering::Acquire) == STOPPED
    }

    /// The reason if no launch will come.
    pub(super) fn check(&self) -> Result<()> {
        match self.reason.get() {
            Some(error) if self.is_over_for_good() => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The thread ends with its present launch.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.wanted.store(1, Ordering::SeqCst);
        self.wake();
    }

    fn at(&self, index: usize) -> Option<&Mailbox> {
        let place = self.pages.get()?.as_ptr().wrapping_add(MAILBOXES_AT + index * size_of::<Mailbox>());
        // SAFETY: zeroed memory that lives as long as this value, aligned as pages are; all of it is atomics.
        #[allow(clippy::cast_ptr_alignment, reason = "pages are aligned by far more")]
        Some(unsafe { &*place.cast::<Mailbox>() })
    }

    fn is_launch_over(&self) -> bool {
        let Some(pages) = self.pages.get() else { return true };
        // SAFETY: the first word of the pages, which the device writes and nobody else.
        #[allow(clippy::cast_ptr_alignment, reason = "as above")]
        let ended = unsafe { &*pages.as_ptr().cast::<AtomicU32>() };
        ended.load(Ordering::SeqCst) == self.launch.load(Ordering::SeqCst)
    }

    // ---- the thread -----------------------------------------------------------------------------------------------

    /// The thread's body. However it fails, callers get an error.
    fn run(self: Arc<Self>, serve: impl FnOnce(&Self) -> Result<()>) {
        let served = catch_unwind(AssertUnwindSafe(|| serve(&self)));
        if let Err(error) = served.unwrap_or_else(|_| Err(broken("the resident kernel's thread died"))) {
            self.end(error);
            // A kernel that does not end may still look at the mailboxes.
            std::mem::forget(self);
        }
    }

    fn serve(&self) -> Result<()> {
        let _naps = Naps::start();
        self.device.adopt_thread();
        // Loading kernels waits for all streams: none may wait for a transfer meanwhile.
        while !traffic::is_clear_within(PATIENCE) {
            if self.is_closing.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
        self.device.kernels(self.context)?;
        let stream = self.device.stream(self.context)?;
        let stream = LaunchStream { mark: stream.event()?, stream };
        let pages = PinnedPages::new(&self.device, TRIAL_AT + 2 * TRIAL_BYTES)?;
        let reach = self.pages.get_or_init(|| pages).reach();
        let result = self.run_launches(&stream, reach);
        if result.is_err() {
            // A launch may still run.
            std::mem::forget(stream);
        }
        result
    }

    /// The trial, then launches the kernel while there is work.
    fn run_launches(&self, stream: &LaunchStream, reach: u64) -> Result<()> {
        self.try_out(stream, reach)?;
        self.state.store(READY, Ordering::SeqCst);
        loop {
            self.wanted.store(0, Ordering::SeqCst);
            // Before mailboxes are looked at: a caller posts before it looks at the word.
            fence(Ordering::SeqCst);
            if self.is_closing.load(Ordering::SeqCst) {
                return Ok(());
            }
            let is_demanded = self.is_demanded.swap(false, Ordering::SeqCst);
            if is_demanded || self.is_anything_posted() {
                let launched = Instant::now();
                self.launch(stream, reach)?;
                self.watch(stream)?;
                // One that ended because nobody came has left room already.
                if launched.elapsed() >= first_look() {
                    std::thread::sleep(LOOK);
                }
            } else {
                self.sleep(None);
            }
        }
    }

    /// Tries the kernel until a launch is as prompt as it has to be.
    fn try_out(&self, stream: &LaunchStream, reach: u64) -> Result<()> {
        let Some(mailbox) = self.mailbox(0) else { return Err(broken("the trial has no mailbox")) };
        let mut pause = PAUSES.0;
        while !self.is_closing.load(Ordering::SeqCst) {
            let src = reach + TRIAL_AT as u64;
            let number =
                mailbox.post(CopyPiece { src, dst: src + TRIAL_BYTES as u64, len: TRIAL_BYTES as u64 });
            let started = Instant::now();
            self.launch(stream, reach)?;
            while started.elapsed() < START_LIMIT && mailbox.answer(number).is_none() {
                std::thread::sleep(LOOK);
            }
            let is_prompt = mailbox.answer(number).is_some();
            self.watch(stream)?;
            if is_prompt {
                return Ok(());
            }
            self.wanted.store(0, Ordering::SeqCst);
            if self.is_closing.load(Ordering::SeqCst) {
                return Ok(());
            }
            self.sleep(Some(pause));
            pause = (2 * pause).min(PAUSES.1);
        }
        Ok(())
    }

    fn is_anything_posted(&self) -> bool {
        self.is_posted(0..self.used.load(Ordering::SeqCst) as usize) || self.is_second_posted()
    }

    fn is_second_posted(&self) -> bool {
        self.is_posted(STREAM_SLOTS..STREAM_SLOTS + self.used_second.load(Ordering::Relaxed) as usize)
    }

    fn is_posted(&self, mut mailboxes: Range<usize>) -> bool {
        mailboxes.any(|index| self.at(index).is_some_and(Mailbox::is_open))
    }

    /// Begins a launch.
    fn launch(&self, stream: &LaunchStream, reach: u64) -> Result<()> {
        self.launched.store(self.clock.elapsed().as_micros() as u64, Ordering::Relaxed);
        let number = self.launch.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let has_second = self.wants_second.swap(false, Ordering::Relaxed) || self.is_second_posted();
        let second = STREAM_SLOTS as u32 + self.used_second.load(Ordering::Relaxed);
        let count = if has_second { second } else { self.used.load(Ordering::SeqCst) };
        self.seen.store(count, Ordering::Relaxed);
        let resident = forebay_gpu::Resident {
            mailboxes: reach + MAILBOXES_AT as u64,
            count,
            idle: IDLE.as_nanos() as u32,
            life: life(self.long.were_posted()),
            ended: reach,
            number,
        };
        // SAFETY: the pages stay until the life has ended: this thread waits, or keeps them for ever. Callers wait for what they
        // post.
        unsafe { stream.stream.resident(&resident) }
    }

    /// Waits until the launch is over. One that is late may have been lost: the driver knows.
    fn watch(&self, stream: &LaunchStream) -> Result<()> {
        let launched = Instant::now();
        let mut is_marked = false;
        let (mut nap, mut late) = (first_look(), IDLE);
        loop {
            self.wanted.store(0, Ordering::SeqCst);
            if self.is_launch_over() {
                return Ok(());
            }
            if launched.elapsed() > LAUNCH_LIMIT {
                // It waits for room beside the user's kernels.
                self.pause();
                if !std::mem::replace(&mut is_marked, true) {
                    stream.stream.record(stream.mark.as_ref())?;
                }
                if stream.mark.is_done()? && !self.is_launch_over() {
                    return Err(broken("the resident kernel ended without a word"));
                }
                nap = late;
                late = (2 * late).min(LAUNCH_LIMIT);
            }
            self.sleep(Some(nap));
            nap = LOOK;
        }
    }

    /// Sleeps until a launch is wanted, at most this long. May wake up for no reason.
    fn sleep(&self, limit: Option<Duration>) {
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs() as _,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word and the time live through the call; the kernel compares the word once more before it sleeps.
        unsafe {
            let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, self.wanted.as_ptr(), flags, 0, limit)
        };
    }

    fn wake(&self) {
        // SAFETY: the word lives through the call.
        unsafe {
            let flags = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, self.wanted.as_ptr(), flags, 1)
        };
    }
}

/// Time from a launch to the first look whether it has ended: one that is at work lasts about as long.
fn first_look() -> Duration {
    MAX_LAUNCH * 9 / 10
}

fn broken(message: &'static str) -> Error {
    Error::new(ErrorKind::Internal, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_is_over_is_forgotten() {
        let launcher = Launcher::new(forebay_gpu::host::device(), Context::PRIMARY);
        assert!(!launcher.is_paused());
        launcher.pause();
        assert!(launcher.is_paused());
        launcher.paused_until.store(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
        assert!(!launcher.is_paused());
        assert_eq!(launcher.paused_until.load(Ordering::Relaxed), 0, "the clock is asked no more");
    }

    #[test]
    fn a_thread_that_dies_ends_it_for_good() {
        let launcher = Arc::new(Launcher::new(forebay_gpu::host::device(), Context::PRIMARY));
        launcher.clone().run(|launcher| {
            launcher.state.store(READY, Ordering::SeqCst);
            assert!(launcher.is_ready() && launcher.check().is_ok());
            panic!("on purpose");
        });
        assert!(!launcher.is_ready() && launcher.is_over_for_good());
        assert_eq!(launcher.check().unwrap_err().kind(), ErrorKind::Internal);
    }
}
