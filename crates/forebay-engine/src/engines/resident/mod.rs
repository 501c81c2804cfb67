//! The resident copy kernel: a way that engines use, not an engine.
//!
//! Pieces of several synchronous callers go through mailboxes that a kernel polls: no driver call for each. A life of the kernel
//! is short; a thread of ours ([`launcher`]) launches the next while there is work. What it does not carry out in time the caller
//! withdraws ([`mailbox`]) and copies by itself. See `docs/decisions/051-resident-kernel.md`.

mod allowed;
mod launcher;
mod long;
mod mailbox;
#[cfg(test)]
mod model;
mod round;

/// What `mailbox.rs` is made of; its model has others.
mod atomics {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use forebay_config::{Objective, Resident as Permission};
use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, Device, Naps};

use self::launcher::Launcher;
use self::mailbox::{Answer, Mailbox};
pub(crate) use self::round::RoundMark;
use self::round::Rounds;
use crate::request::copy_order::CopyOrder;
use crate::runtime::wait;
use crate::tuning::resident::{
    CALLER_NAP, CALLER_POLL, CALLER_YIELD, CROWDED_POLL, LIFE_LONG_NS, LIFE_NS, LONE_YIELD, LONG_BYTES,
    MAILBOXES, MOST, PROMISED_NS, SHARED_LINK, SHORT_PIECE, SLOW,
};
use crate::tuning::waits::{LINK_BYTES_PER_NS, LOOKS};

/// How a caller waits for its piece: polls, then lets others run, then sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerWait {
    poll: Duration,
    yields: Duration,
}

impl CallerWait {
    /// The wait of one of some callers on some CPUs.
    pub(crate) fn new(objective: Objective, callers: usize, cpus: usize) -> Self {
        let (poll, yields) = match objective {
            // Who has to do something needs the CPU.
            _ if cpus == 1 => (Duration::ZERO, LONE_YIELD),
            Objective::Latency if callers > cpus => (CALLER_POLL, Duration::MAX),
            Objective::Latency => (Duration::MAX, Duration::ZERO),
            Objective::Throughput if callers > cpus => (CROWDED_POLL, CALLER_YIELD),
            Objective::Throughput => (CALLER_POLL, Duration::ZERO),
            Objective::Cpu => (Duration::ZERO, Duration::ZERO),
        };
        Self { poll, yields }
    }
}

/// The way of one piece through a mailbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidentWay {
    pub(crate) wait: CallerWait,
    /// Of a copy that comes after the default streams.
    after: Option<RoundMark>,
}

/// The resident kernel of one context.
#[derive(Debug)]
pub(crate) struct Resident {
    device: Arc<dyn Device>,
    context: Context,
    is_allowed: bool,
    launcher: Arc<Launcher>,
    /// The launcher's thread was started.
    is_started: AtomicBool,
    rounds: Rounds,
}

impl Resident {
    pub(crate) fn new(device: Arc<dyn Device>, context: Context, permission: Permission) -> Self {
        Self {
            is_allowed: allowed::is_allowed(device.as_ref(), permission),
            launcher: Arc::new(Launcher::new(device.clone(), context)),
            device,
            context,
            is_started: AtomicBool::new(false),
            rounds: Rounds::default(),
        }
    }

    pub(crate) fn context(&self) -> Context {
        self.context
    }

    /// The way of a piece of this length from a call that begins now; `None` if there is none now. The first call lets it be made
    /// ready, and does not wait for that.
    pub(crate) fn way(&self, len: usize, order: CopyOrder, wait: CallerWait) -> Option<ResidentWay> {
        if !self.is_allowed || !(1..=MOST).contains(&len) || !self.is_ready() {
            return None;
        }
        Some(ResidentWay { wait, after: (order == CopyOrder::Behind).then(|| self.rounds.mark()) })
    }

    fn is_ready(&self) -> bool {
        if !self.is_started.load(Ordering::Acquire) && !self.is_started.swap(true, Ordering::AcqRel) {
            self.launcher.start();
        }
        self.launcher.is_ready()
    }

    /// Copies a piece and waits. Returns whether it was copied: if not, nothing of it was touched, and what it comes after is
    /// done.
    ///
    /// # Safety
    /// Both ends are memory that kernels of the context reach until this returns, and nobody else uses the destination or this
    /// mailbox.
    pub(crate) unsafe fn copy(&self, mailbox: usize, piece: CopyPiece, way: ResidentWay) -> Result<bool> {
        if let Some(mark) = way.after {
            self.rounds.pass(mark, way.wait.poll, self.device.as_ref(), self.context)?;
        }
        let Some(_room) = self.launcher.room(piece.len) else { return Ok(false) };
        let Some(place) = self.launcher.mailbox(mailbox) else { return Ok(false) };
        let number = place.post(piece);
        // Posted before the launcher is looked at: it looks at mailboxes after it says that it sleeps.
        fence(Ordering::SeqCst);
        self.launcher.wake_if_over();
        self.wait(place, number, piece.len as usize, way.wait)
    }

    fn wait(&self, mailbox: &Mailbox, number: u32, len: usize, wait: CallerWait) -> Result<bool> {
        let mut started = None;
        let mut naps = None;
        loop {
            for _ in 0..LOOKS {
                match mailbox.answer(number) {
                    Some(answer) => return Ok(answer == Answer::Done),
                    None => std::hint::spin_loop(),
                }
            }
            self.launcher.wake_if_over();
            let elapsed = started.get_or_insert_with(Instant::now).elapsed();
            if self.launcher.is_over_for_good() || elapsed > SLOW + wait::expected(len) * SHARED_LINK {
                return self.give_up(mailbox, number);
            }
            if elapsed < wait.poll {
                continue;
            }
            if elapsed < wait.poll.saturating_add(wait.yields) {
                std::thread::yield_now();
            } else {
                naps.get_or_insert_with(Naps::start).sleep((elapsed / 8).max(CALLER_NAP));
            }
        }
    }

    /// Withdraws a request that takes too long. One that the kernel has begun is waited for.
    #[cold]
    fn give_up(&self, mailbox: &Mailbox, number: u32) -> Result<bool> {
        if mailbox.withdraw(number) {
            self.launcher.report_slow();
            return Ok(false);
        }
        let naps = Naps::start();
        loop {
            if let Some(answer) = mailbox.answer(number) {
                return Ok(answer == Answer::Done);
            }
            self.launcher.check()?;
            naps.sleep(CALLER_NAP);
        }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.launcher.close();
    }
}

const _: () = {
    assert!(size_of::<Mailbox>() == forebay_gpu::Resident::MAILBOX);
    assert!(MAILBOXES <= forebay_gpu::Resident::MAILBOXES);
    assert!(forebay_gpu::Resident::takes(MOST) < LIFE_LONG_NS as u64);
    let short = forebay_gpu::Resident::BLOCKS as u64 * SHORT_PIECE;
    assert!(LIFE_NS as u64 + forebay_gpu::Resident::late(short, LINK_BYTES_PER_NS) <= PROMISED_NS);
    assert!(
        LIFE_LONG_NS as u64 + forebay_gpu::Resident::late(short + LONG_BYTES, LINK_BYTES_PER_NS)
            <= PROMISED_NS
    );
};
