//! Large cold reads of mounted files that go to the mount's server past the kernel, into the memory of the lanes: a source crate finds the
//! server ([`BesideFile`](forebay_source::BesideFile)). What the server does not give is read by the kernel, and the receipt says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_config::{CachePolicy, Config};
use forebay_error::Error;
use forebay_source::{BesideFile, BesideReads, Requests, Source};

use super::task_thread::{ServerThreads, TaskThread, answer};
use super::{AskedBatch, Known};
use crate::io::plan::CELL;
use crate::request::completion::Completion;
use crate::request::file::File;
use crate::request::receipt::Note;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;

/// Bytes of the shortest transfer for which the server is looked for.
pub(crate) const MIN_TRANSFER: u64 = 1 << 20;

/// Finds servers of mounted files for the lanes of a device.
#[derive(Clone)]
pub(crate) struct MountReads(Arc<Parts>);

struct Parts {
    config: Config,
    /// The preparation of a transfer.
    checks: ServerThreads,
}

/// A transfer of a mounted file.
pub(crate) struct MountRead {
    reads: Arc<dyn BesideReads>,
    /// The kernel reads all that was not asked for yet.
    is_over: AtomicBool,
    is_noted: AtomicBool,
}

impl MountReads {
    pub(crate) fn new(config: &Config) -> Self {
        let checks = ServerThreads::new("forebay-check");
        Self(Arc::new(Parts { config: config.clone(), checks }))
    }

    /// The reader of a transfer of this size past the kernel.
    fn beside(&self, known: &Known<'_>, direction: Direction, bytes: u64) -> Option<Arc<dyn BesideFile>> {
        let may = bytes >= MIN_TRANSFER && direction == Direction::Read && known.file.access().0;
        let beside = known.descriptors.filter(|_| may)?.beside()?;
        beside.takes_reads(&self.0.config).then_some(beside)
    }

    /// Whether a transfer that the caller's thread could do is better left to the lanes.
    pub(crate) fn may_take(&self, known: &Known<'_>, direction: Direction, bytes: u64) -> bool {
        self.beside(known, direction, bytes).is_some()
    }

    /// The reader of a transfer: `Ok(None)` is the kernel, without a note; an error is the kernel, with the reason.
    pub(crate) fn of(&self, asked: &AskedBatch<'_>) -> Result<Option<Arc<MountRead>>, Note> {
        let known = asked.known;
        let Some(beside) = self.beside(known, asked.batch.direction, asked.bytes()) else { return Ok(None) };
        // Small pieces are packed, and the kernel reads packs.
        let is_small = asked.batch.pieces.iter().all(|piece| piece.len <= CELL);
        if is_small || known.policy == CachePolicy::Keep || asked.warmth() == Warmth::Warm {
            return Ok(None);
        }
        let Some(opened) = known.file.opened() else { return Ok(None) };
        let mounted: Arc<dyn Source> = opened.clone();
        let reads = beside.reads(&mounted, &self.0.config).map_err(|error| by_kernel(&error))?;
        let (is_over, is_noted) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Some(Arc::new(MountRead { reads, is_over, is_noted })))
    }

    /// The thread on which transfers of the same server begin.
    pub(crate) fn checks(&self, read: &MountRead) -> TaskThread {
        self.0.checks.of(&read.reads.server())
    }
}

/// Says that the kernel reads a file of a mount, and why.
fn by_kernel(error: &Error) -> Note {
    Note {
        text: format!("by the kernel's mount, not beside it: {error}"),
        hint: error.hints().first().cloned(),
    }
}

impl MountRead {
    /// Comes before the pieces. `is_mixed`: some of the range is in the page cache.
    pub(crate) fn begin(&self, file: &File, is_mixed: bool, completion: &Completion) {
        if completion.is_cancelled() {
            return self.is_over.store(true, Ordering::Relaxed);
        }
        let Some(opened) = file.opened() else { return };
        if let Err(error) = answer(|| self.reads.begin(opened.as_ref(), is_mixed)) {
            self.give_up(&error, completion);
        }
    }

    /// Whether the server, not the kernel, is asked for the next piece.
    pub(crate) fn asks_server(&self, completion: &Completion) -> bool {
        if self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        // Other transfers may have waited for the server meanwhile, without success.
        let Err(error) = self.reads.check() else { return true };
        if !self.is_over.swap(true, Ordering::Relaxed) {
            completion.note(by_kernel(&error));
        }
        false
    }

    /// The kernel reads the rest.
    pub(crate) fn give_up(&self, error: &Error, completion: &Completion) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        self.reads.give_up(error);
        completion.note(by_kernel(error));
    }

    /// How the server is asked for a piece.
    pub(crate) fn requests(&self) -> &dyn Requests {
        self.reads.as_ref()
    }

    /// The server gave a piece: the first one adds a note to the receipt.
    pub(crate) fn note_piece(&self, completion: &Completion) {
        if self.is_noted.swap(true, Ordering::Relaxed) {
            return;
        }
        let facts = self.reads.facts();
        let way = facts.way.unwrap_or_default();
        let text = format!("{way}; this host's writes were on the server before");
        completion.note(Note { text, hint: None });
        for (text, hint) in facts.left_out {
            completion.note(Note { text, hint: Some(hint) });
        }
    }
}
