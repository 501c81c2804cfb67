//! The resident copy kernel: a way that engines use, not an engine.
//!
//! Pieces of several synchronous callers go through mailboxes that a kernel polls: no driver call for each. A launch of the kernel
//! is short; a thread of ours ([`launcher`]) launches the next while there is work. What it does not carry out in time the caller
//! withdraws ([`mailbox`]) and copies by itself. See `docs/decisions/051-resident-kernel.md`.

mod allowed;
mod demand;
mod launcher;
mod long;
mod mailbox;
#[cfg(test)]
mod model;
mod stream_queries;
mod wait;

/// What `mailbox.rs` is made of; its model has others.
mod atomics {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use forebay_config::Resident as Permission;
use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, Device, Naps};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use self::launcher::Launcher;
use self::long::PieceRoom;
use self::mailbox::{Answer, Mailbox};
use self::stream_queries::StreamQueries;
pub(crate) use self::wait::CallerWait;
use crate::request::copy_order::{CallOrder, CopyOrder};
use crate::runtime::wait::expected;
use crate::tuning::callers::STREAM_SLOTS;
use crate::tuning::machine::LOOK;
use crate::tuning::resident::{MAX_LAUNCH, MAX_PIECE, START_LIMIT};

/// The way of one piece through a mailbox.
#[derive(Clone, Copy)]
pub(crate) struct ResidentWay<'a> {
    pub(crate) wait: CallerWait,
    /// Its bytes come from a disk: it is not worth a launch of its own. See [`Resident::takes_cold`].
    pub(crate) is_cold: bool,
    /// Of a copy that comes after the default streams.
    after: Option<&'a CallOrder<'a>>,
}

/// The resident kernel of one context.
#[derive(Debug)]
pub(crate) struct Resident {
    device: Arc<dyn Device>,
    context: Context,
    permission: Permission,
    /// See [`allowed`]. Found out when it is first needed: it reads files of /proc.
    is_allowed: OnceLock<bool>,
    launcher: Arc<Launcher>,
    /// The launcher's thread was started.
    is_started: AtomicBool,
    queries: StreamQueries,
}

impl Resident {
    pub(crate) fn new(device: Arc<dyn Device>, context: Context, permission: Permission) -> Self {
        Self {
            permission,
            is_allowed: OnceLock::new(),
            launcher: Arc::new(Launcher::new(device.clone(), context)),
            device,
            context,
            is_started: AtomicBool::new(false),
            queries: StreamQueries::default(),
        }
    }

    pub(crate) fn context(&self) -> Context {
        self.context
    }

    /// The way of a piece of this length from a call that begins now; `None` if there is none now. The first call lets it be made
    /// ready, and does not wait for that.
    pub(crate) fn way<'a>(
        &self,
        len: usize,
        order: Option<&'a CallOrder<'a>>,
        (wait, is_cold): (CallerWait, bool),
    ) -> Option<ResidentWay<'a>> {
        if !self.is_allowed() || !(1..=MAX_PIECE).contains(&len) || !self.is_ready() {
            return None;
        }
        Some(ResidentWay { wait, is_cold, after: order })
    }

    fn is_allowed(&self) -> bool {
        *self.is_allowed.get_or_init(|| allowed::is_allowed(self.device.as_ref(), self.permission))
    }

    fn is_ready(&self) -> bool {
        if !self.is_started.load(Ordering::Acquire) && !self.is_started.swap(true, Ordering::AcqRel) {
            self.launcher.start();
        }
        self.launcher.is_ready()
    }

    /// Posts a piece for the kernel. `None` if it cannot be: nothing of it was touched. In both cases what it comes after is done.
    ///
    /// # Safety
    /// Both ends are memory that kernels of the context reach until the piece is finished, and nobody else uses the destination
    /// or this mailbox.
    pub(crate) unsafe fn post(
        &self,
        mailbox: usize,
        piece: CopyPiece,
        way: &mut ResidentWay<'_>,
    ) -> Result<Option<Posted<'_>>> {
        self.come_after(way)?;
        let Some(room) = self.launcher.room(piece.len) else { return Ok(None) };
        let Some(place) = self.launcher.mailbox(mailbox) else { return Ok(None) };
        let number = place.post(piece);
        // Posted before the launcher is looked at: it looks at mailboxes after it says that it sleeps.
        fence(Ordering::SeqCst);
        self.launcher.wake_if_over();
        Ok(Some(Posted {
            resident: self,
            mailbox: place,
            number,
            piece,
            wait: way.wait,
            is_over: false,
            _room: room,
        }))
    }

    /// Whether a cold piece is to be posted in this first mailbox. `is_reached` tells whether kernels reach its memory, and is asked
    /// only if that matters: most cold pieces find no launch.
    pub(crate) fn takes_cold(&self, mailbox: usize, is_reached: impl Fn() -> bool) -> bool {
        self.launcher.takes_cold(mailbox, is_reached)
    }

    /// The order of a call's copies if nothing stands on the default streams, by a question that began after this call did and that
    /// other callers share. `None` if something does, which is not waited for.
    pub(crate) fn find_clear(&self) -> Result<Option<CopyOrder>> {
        let met_capture = self.queries.find_clear(self.device.as_ref(), self.context)?;
        Ok(met_capture.map(|is| if is { CopyOrder::Captured } else { CopyOrder::Free }))
    }

    /// Waits for what copies of this way come after: for the first of them.
    pub(crate) fn come_after(&self, way: &mut ResidentWay<'_>) -> Result<()> {
        if let Some(order) = way.after.take()
            && self.queries.pass(order.began(), way.wait, self.device.as_ref(), self.context)?
        {
            order.met_capture();
        }
        Ok(())
    }

    fn wait(&self, mailbox: &Mailbox, number: u32, len: usize, wait: CallerWait) -> Result<bool> {
        let mut waiting = wait.start();
        loop {
            for _ in 0..waiting.looks() {
                match mailbox.answer(number) {
                    Some(answer) => return Ok(answer == Answer::Done),
                    None => waiting.pause(),
                }
            }
            self.launcher.wake_if_over();
            let elapsed = waiting.elapsed();
            if self.launcher.is_over_for_good() || elapsed > START_LIMIT + expected(len) * STREAM_SLOTS as u32
            {
                return self.give_up(mailbox, number);
            }
            waiting.rest(elapsed);
        }
    }

    /// Withdraws a request that takes too long. Where a block of the kernel serves its mailbox, that one's answer, or end, is waited
    /// for: a launch at most.
    #[cold]
    fn give_up(&self, mailbox: &Mailbox, number: u32) -> Result<bool> {
        mailbox.withdraw(number);
        let naps = Naps::start();
        let mut over: Option<Instant> = None;
        loop {
            match mailbox.outcome(number) {
                Some(Answer::Done) => return Ok(true),
                Some(Answer::Declined) => {
                    self.launcher.report_slow();
                    return Ok(false);
                }
                None => {}
            }
            if let Err(error) = self.launcher.check() {
                // Where the launcher alone ended, a launch that is well may still copy the piece.
                if over.get_or_insert_with(Instant::now).elapsed() > 2 * MAX_LAUNCH {
                    return Err(error);
                }
            }
            naps.sleep(LOOK);
        }
    }
}

/// A piece in a mailbox. Dropped before it is finished, it is waited for.
pub(crate) struct Posted<'a> {
    resident: &'a Resident,
    mailbox: &'a Mailbox,
    number: u32,
    pub(crate) piece: CopyPiece,
    wait: CallerWait,
    is_over: bool,
    _room: PieceRoom<'a>,
}

impl Posted<'_> {
    /// Waits for the piece. Returns whether it was copied: if not, nothing of it was touched.
    pub(crate) fn finish(mut self) -> Result<bool> {
        self.end()
    }

    /// Withdraws the piece; waits only while the kernel looks at its mailbox. Returns whether it was copied.
    pub(crate) fn withdraw(mut self) -> Result<bool> {
        self.is_over = true;
        self.resident.give_up(self.mailbox, self.number)
    }

    fn end(&mut self) -> Result<bool> {
        self.is_over = true;
        self.resident.wait(self.mailbox, self.number, self.piece.len as usize, self.wait)
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.end();
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
    assert!(2 * STREAM_SLOTS <= forebay_gpu::Resident::MAILBOXES);
};
