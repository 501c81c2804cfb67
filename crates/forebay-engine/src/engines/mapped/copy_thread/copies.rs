//! Copies and gathers of the copy thread, one batch after the other.

use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{HostRange, Wait};

use super::{CopyThread, GATHER, IN_FLIGHT, QueuedCopy};
use crate::engines::mapped::eligibility::Reason;
use crate::engines::mapped::gather::CopyList;
use crate::engines::mapped::reclaimer::Pin;
use crate::engines::mapped::region::WINDOW;
use crate::engines::mapped::route::{RouteSpan, bytes_of};
use crate::engines::mapped::transfer::MappedJob;
use crate::engines::mapped::window::WindowAnswer;
use crate::engines::permission::Permission;
use crate::io::plan::Part;
use crate::source::piece::Direction;
use crate::tuning::mapped::{COPIES, COPY_BYTES, COPY_STREAMS, GATHER_LIST};

impl CopyThread {
    /// Starts copies, a batch at a time in turn, as many as may be in flight: registering the next window comes after,
    /// and takes about as long as copying one does. Whether any was started.
    pub(super) fn launch(&mut self) -> bool {
        let mut any = false;
        while self.has_room() && self.launch_one() {
            any = true;
        }
        any
    }

    fn has_room(&self) -> bool {
        let bytes: u64 = self.queued_copies.iter().map(|copy| copy.bytes).sum();
        self.queued_copies.len() < COPIES && bytes < IN_FLIGHT
    }

    fn launch_one(&mut self) -> bool {
        let count = self.transfers.len();
        let turn = (self.next..self.next + count).find(|turn| self.advance(turn % count));
        if let Some(turn) = turn {
            self.next = (turn + 1) % count;
        }
        turn.is_some()
    }

    /// Starts the batch's next copy or gather, if its pages are ready.
    fn advance(&mut self, at: usize) -> bool {
        let Some(Some(transfer)) = self.transfers.get_mut(at) else { return false };
        let Some(span) = transfer.todo.front().copied() else { return false };
        if transfer.job.completion.is_cancelled() {
            transfer.leave_out();
            return true;
        }
        if is_sealed(&transfer.job) {
            return self.give_up(at, Reason::new("the file is sealed against writing"));
        }
        let window = match span {
            RouteSpan::Range { start, .. } => (start / WINDOW) as usize,
            RouteSpan::Entries { waits, .. } => {
                return match transfer.admit(waits) {
                    Ok(true) => self.gather_entries(at),
                    Ok(false) => false,
                    Err(reason) => self.give_up(at, reason),
                };
            }
        };
        match transfer.pinned.answer(window) {
            WindowAnswer::Ready(pin) => self.copy_range(at, pin),
            WindowAnswer::Pending(_) => false,
            WindowAnswer::No(reason) => self.give_up(at, reason),
        }
    }

    /// The next entries cannot be copied in place after all.
    fn give_up(&mut self, at: usize, reason: Reason) -> bool {
        let Some(Some(transfer)) = self.transfers.get_mut(at) else { return false };
        let parts = transfer.take_alike();
        if self.state.permission == Permission::Only {
            transfer.error.get_or_insert(reason.error().with("file", transfer.job.batch.file.name()));
            transfer.copied.extend(parts);
            return true;
        }
        transfer.rest_bytes += bytes_of(&transfer.job.batch, &parts);
        transfer.reason.get_or_insert(reason);
        let job = transfer.job.clone();
        let apart = self.hand_over(&job, &parts);
        if let Some(Some(transfer)) = self.transfers.get_mut(at) {
            transfer.rest.extend(apart);
        }
        true
    }

    fn copy_range(&mut self, at: usize, pin: Arc<Pin>) -> bool {
        let Some(Some(transfer)) = self.transfers.get_mut(at) else { return false };
        let Some(RouteSpan::Range { entry, start, end }) = transfer.todo.front().copied() else {
            return false;
        };
        let Some(page) = transfer.pinned.address(start) else { return false };
        let piece = pin.piece();
        if let Err(reason) = transfer.hold(pin) {
            return self.give_up(at, reason);
        }
        transfer.todo.pop_front();
        let stop = (start + COPY_BYTES).min(start / piece * piece + piece).min(end);
        if stop < end {
            transfer.todo.push_front(RouteSpan::Range { entry, start: stop, end });
        }
        let piece = transfer.job.batch.pieces[entry as usize];
        let memory = piece.address + (start - piece.offset);
        let len = (stop - start) as usize;
        transfer.copied.push(Part::Range { entry, start, end: stop });
        let by = self.copies % COPY_STREAMS;
        self.copies = self.copies.wrapping_add(1);
        // SAFETY: the pin keeps the pages registered and mapped until the copy is done; the submitter vouched for
        // the memory.
        let queued = unsafe {
            match transfer.job.batch.direction {
                Direction::Read => self.streams[by].copy_in(memory, HostRange::new(page as *const u8, len)),
                Direction::Write => self.streams[by].copy_out(HostRange::new(page as *mut u8, len), memory),
            }
        };
        self.note_queued(at, by, queued, stop - start, None)
    }

    /// Starts one kernel for entries that come next. The first of them is ready.
    fn gather_entries(&mut self, at: usize) -> bool {
        let list =
            match self.lists.pop().map_or_else(|| CopyList::new(&self.state.cache.device, GATHER_LIST), Ok) {
                Ok(list) => list,
                Err(error) => return self.give_up(at, Reason::from(&error)),
            };
        let Some(Some(transfer)) = self.transfers.get_mut(at) else { return false };
        let written = transfer.fill(&list, COPY_BYTES);
        // SAFETY: the transfer holds the pins of all windows until its last copy is done; the list is this kernel's
        // alone; the submitter vouched for its memory.
        let queued = unsafe { self.streams[GATHER].scatter(list.reach(), written.count, written.longest) };
        self.note_queued(at, GATHER, queued, written.bytes, Some(list))
    }

    /// Notes the copies queued on a stream, or the error that prevented it. Gathers have a list.
    fn note_queued(
        &mut self,
        at: usize,
        by: usize,
        queued: Result<()>,
        bytes: u64,
        list: Option<CopyList>,
    ) -> bool {
        let stream = &self.streams[by];
        let event = queued.and_then(|()| {
            let event = self.events.pop().map_or_else(|| stream.event(), Ok)?;
            stream.record(event.as_ref())?;
            Ok(event)
        });
        let Some(Some(transfer)) = self.transfers.get_mut(at) else { return false };
        match event {
            Ok(event) => {
                transfer.bytes += bytes;
                transfer.in_flight += 1;
                self.queued_copies.push_back(QueuedCopy { event, transfer: at, bytes, list });
            }
            Err(error) => {
                // The copy may have been queued although the call failed.
                let _ = stream.synchronize(Wait::Block);
                transfer.fail(error);
                self.lists.extend(list);
            }
        }
        true
    }

    /// Ends copies that are done. Whether there were any.
    pub(super) fn end_copies(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.queued_copies.len() {
            let done = match self.queued_copies[at].event.is_done() {
                Ok(false) => {
                    at += 1;
                    continue;
                }
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            any = true;
            let Some(copy) = self.queued_copies.remove(at) else { break };
            self.lists.extend(copy.list);
            if done.is_ok() {
                self.events.push(copy.event);
            }
            if let Some(Some(transfer)) = self.transfers.get_mut(copy.transfer) {
                transfer.in_flight -= 1;
                if let Err(error) = done {
                    transfer.fail(error);
                }
            }
        }
        any
    }
}

/// Whether it is a write that the file's seals forbid.
fn is_sealed(job: &MappedJob) -> bool {
    job.batch.direction == Direction::Write
        && job.batch.file.descriptors().is_some_and(crate::source::Descriptors::is_sealed)
}
