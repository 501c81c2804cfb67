//! The operation that a stream has reached.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind};
use forebay_gpu::CopyPiece;

use super::completion::OperationEnd;
use super::file_work::{self, ChunkEnd, FileTask, ServerInbox, StreamEngines};
use super::operation::{
    Operation, OperationNumbers, OperationRoute, ResultTarget, StreamRequest, bind, pieces_of, step_len,
};
use super::staging_pool::{StagingBuffer, StagingRing};
use super::stream_state::StreamState;
use crate::request::file::File;
use crate::request::receipt::{Moved, Way};
use crate::request::transfer::Memory;
use crate::runtime::traffic::QueuedOperation;
use crate::source::piece::Direction;
use crate::tuning::plan::CELL;

/// The chunk in a buffer.
#[derive(Default)]
struct ChunkSlot {
    /// Where the wanted bytes begin.
    skip: u64,
    answer: Option<ChunkEnd>,
}

/// A range of an operation that one copy moves.
#[derive(Clone, Copy)]
struct ChunkRange {
    offset: u64,
    address: u64,
    len: usize,
}

pub(super) struct RunningOperation {
    numbers: OperationNumbers,
    route: OperationRoute,
    most: usize,
    engines: Arc<StreamEngines>,
    file: File,
    memory: Memory,
    direction: Direction,
    target: Option<ResultTarget>,
    end: Option<Arc<OperationEnd>>,
    offset: u64,
    address: u64,
    len: usize,
    /// Chunks that have bytes.
    chunks: u32,
    /// Chunks whose file work has begun.
    requested: u32,
    /// Chunks that the stream may copy.
    shown: u32,
    /// Chunks whose answer was taken in.
    taken: u32,
    /// Chunks whose file work is under way.
    air: u32,
    slots: Vec<ChunkSlot>,
    good: u64,
    moved: Moved,
    error: Option<Error>,
    /// No more chunks are moved: the file has ended, or a chunk failed.
    ended: bool,
    /// A write that makes the file longer: a chunk comes after all before it, so that no gap is left where there is no room.
    grows: bool,
    /// The stream may pass the copies that have nothing to do.
    released: bool,
    #[expect(dead_code, reason = "counts as long as it lives")]
    queued: QueuedOperation,
}

impl RunningOperation {
    pub(super) fn begin(operation: Operation) -> Self {
        let numbers = operation.numbers();
        let Operation { request, route, queued, .. } = operation;
        let StreamRequest { file, memory, direction, most, bind: call, target, engines } = request;
        let end = match &target {
            ResultTarget::Ticket(end) => Some(end.clone()),
            ResultTarget::User(_) => None,
        };
        let mut run = Self {
            numbers,
            most,
            engines,
            file,
            memory,
            direction,
            target: Some(target),
            end,
            offset: 0,
            address: 0,
            len: 0,
            chunks: 0,
            requested: 0,
            shown: 0,
            taken: 0,
            air: 0,
            slots: Vec::new(),
            good: 0,
            moved: Moved::default(),
            error: None,
            ended: false,
            grows: false,
            released: false,
            route,
            queued,
        };
        match bind(call, most) {
            Ok(bound) => (run.offset, run.address, run.len) = (bound.offset, bound.address, bound.len),
            Err(error) => run.error = Some(error),
        }
        let end = run.offset + run.len as u64;
        run.grows = direction == Direction::Write && run.file.len_lately().is_ok_and(|len| len < end);
        let (chunk, buffers) = match &run.route {
            OperationRoute::StagingRing(ring) => (ring.chunk, ring.buffers.len()),
            OperationRoute::Straight => (run.len.max(1), 1),
            OperationRoute::Nothing => {
                run.good = run.len as u64;
                run.moved[Way::Cached] = run.good;
                run.len = 0;
                (1, 1)
            }
        };
        run.chunks = run.len.div_ceil(chunk) as u32;
        run.slots.resize_with(buffers, ChunkSlot::default);
        run
    }

    /// Takes in the result of a chunk.
    pub(super) fn answer(&mut self, chunk: u32, end: ChunkEnd, moved: Moved) {
        self.air -= 1;
        self.moved = self.moved.plus(moved);
        let slots = self.slots.len();
        self.slots[chunk as usize % slots].answer = Some(end);
    }

    pub(super) fn first(&self) -> u32 {
        self.numbers.first
    }

    /// Does all that can be done now. Returns whether there was anything.
    pub(super) fn step(&mut self, stream: &StreamState, inbox: &Arc<ServerInbox>) -> bool {
        match (self.route.clone(), self.direction) {
            (OperationRoute::StagingRing(ring), Direction::Read) => self.read(&ring, stream, inbox),
            (OperationRoute::StagingRing(ring), Direction::Write) => self.write(&ring, stream, inbox),
            (OperationRoute::Straight | OperationRoute::Nothing, _) => self.straight(stream, inbox),
        }
    }

    /// Whether nothing but an answer of file work leads on: the stream has done all that it may.
    pub(super) fn waits_for_files(&self, stream: &StreamState) -> bool {
        self.air > 0 && self.target.is_some() && self.passed(stream) == self.shown
    }

    /// Whether the stream has passed the operation.
    pub(super) fn is_over(&self, stream: &StreamState) -> bool {
        self.target.is_none() && self.air == 0 && stream.is_past(self.numbers.last())
    }

    /// Ends the operation, which the stream has passed.
    pub(super) fn finish(mut self) {
        let end = self.end.take();
        // The file is released before the ticket resolves.
        drop(self);
        if let Some(end) = end {
            end.stream_done();
        }
    }

    /// Ends an operation that the stream did not take as a whole. True if it is over.
    pub(super) fn cut_short(&mut self, stream: &StreamState) -> bool {
        if self.air > 0 {
            return false;
        }
        let refused = Error::new(ErrorKind::Io, "the stream did not take the whole transfer");
        if let Some(end) = &self.end {
            // Success may have been reported, but the ticket is not resolved by that yet.
            end.refuse(self.error.clone().unwrap_or_else(|| refused.clone()));
        }
        self.error.get_or_insert(refused);
        self.report(stream);
        stream.clear_list();
        stream.go(self.numbers.last());
        true
    }

    /// Reports the result. False if it was reported before, or if the stream refused a part, so that success may not be.
    fn report(&mut self, stream: &StreamState) -> bool {
        if self.error.is_none() && !stream.may_report(self.numbers.first) {
            return false;
        }
        let Some(target) = self.target.take() else { return false };
        let error = self.error.take().map(|error| error.with("file", self.file.name()));
        // Chunks behind the end may have been moved.
        target.report(&self.engines, (self.good, error), self.moved.up_to(self.good));
        true
    }

    /// Lets the stream pass the place before copy number `step`.
    fn go(&self, stream: &StreamState, step: u32) {
        stream.go(self.numbers.first.wrapping_add(step));
    }

    /// How many copies the stream has done.
    fn passed(&self, stream: &StreamState) -> u32 {
        stream.reached().wrapping_sub(self.numbers.first).min(self.numbers.steps)
    }

    fn chunk(&self, size: usize, index: u32) -> ChunkRange {
        let at = index as usize * size;
        let (offset, address) = (self.offset + at as u64, self.address + at as u64);
        ChunkRange { offset, address, len: (self.len - at).min(size) }
    }

    fn slot(&mut self, index: u32) -> &mut ChunkSlot {
        let slots = self.slots.len();
        &mut self.slots[index as usize % slots]
    }

    /// Takes the next chunk's result, in order. `None` if it is not there yet.
    fn take(&mut self, wanted: usize) -> Option<u64> {
        let (got, error) = self.slot(self.taken).answer.take()?;
        self.taken += 1;
        if self.ended {
            // Results of chunks behind the end do not count.
            return Some(0);
        }
        self.error = self.error.take().or(error);
        self.good += got;
        self.ended |= self.error.is_some() || got < wanted as u64;
        Some(got)
    }

    /// Lets the stream pass the remaining copies when they have nothing to do.
    fn release(&mut self, stream: &StreamState, passed: u32) -> bool {
        let is_last = self.ended || self.shown == self.chunks;
        if self.released || !is_last || passed < self.shown || self.shown >= self.numbers.steps {
            return false;
        }
        stream.clear_list();
        self.go(stream, self.numbers.steps - 1);
        self.released = true;
        true
    }

    // ---- staged reads --------------------------------------------------------------------------------------------

    fn read(&mut self, ring: &StagingRing, stream: &StreamState, inbox: &Arc<ServerInbox>) -> bool {
        let passed = self.passed(stream);
        let mut any = false;
        while !self.ended
            && self.requested < self.chunks
            && (self.requested - passed) < ring.buffers.len() as u32
        {
            self.ask_read(ring, stream, inbox);
            any = true;
        }
        if self.chunks == 0 {
            any |= self.report(stream);
        }
        // The stream uses the list until it has done the copy before.
        if !self.ended && self.shown < self.chunks && passed == self.shown {
            let chunk = self.chunk(ring.chunk, self.shown);
            if let Some(got) = self.take(chunk.len) {
                let buffer = ring.buffers[self.shown as usize % ring.buffers.len()];
                let from = buffer.device + self.slot(self.shown).skip;
                self.fill_list(ring, stream, (from, chunk.address, got));
                if self.ended || self.shown + 1 == self.chunks {
                    self.report(stream);
                }
                self.go(stream, self.shown);
                self.shown += 1;
                any = true;
            }
        }
        self.release(stream, passed) || any
    }

    fn ask_read(&mut self, ring: &StagingRing, stream: &StreamState, inbox: &Arc<ServerInbox>) {
        let index = self.requested;
        self.requested += 1;
        let chunk = self.chunk(ring.chunk, index);
        let buffer = ring.buffers[index as usize % ring.buffers.len()];
        let range = (chunk.offset, chunk.len);
        let skip = chunk.address % 16;
        if let Some((end, moved)) = file_work::read_warm(&self.engines, &self.file, range, buffer.host + skip)
        {
            self.moved = self.moved.plus(moved);
            *self.slot(index) = ChunkSlot { skip, answer: Some(end) };
            return;
        }
        let batch = file_work::one(&self.file, self.staging(buffer, 0), Direction::Read, range);
        let task = file_work::read_task(&self.engines, batch, buffer.len, chunk.address);
        *self.slot(index) = ChunkSlot { skip: task.skip, answer: None };
        self.start(stream, inbox, task, index);
    }

    fn staging(&self, buffer: StagingBuffer, skip: u64) -> Memory {
        Memory::new(self.engines.host.clone(), buffer.host + skip)
    }

    fn start(&mut self, stream: &StreamState, inbox: &Arc<ServerInbox>, task: FileTask, chunk: u32) {
        self.air += 1;
        file_work::start(&self.engines, inbox, task, (stream.id, self.numbers.first, chunk));
    }

    /// Fills the list for the next copy: `len` bytes, at most the bytes that the stream was queued for.
    fn fill_list(&self, ring: &StagingRing, stream: &StreamState, (src, dst, len): (u64, u64, u64)) {
        let pieces = pieces_of(step_len(self.most, ring.chunk, self.shown));
        for index in 0..pieces {
            let at = (index * CELL) as u64;
            let len = len.saturating_sub(at).min(CELL as u64);
            stream.put_piece(index, CopyPiece { src: src + at, dst: dst + at, len });
        }
    }

    // ---- staged writes -------------------------------------------------------------------------------------------

    fn write(&mut self, ring: &StagingRing, stream: &StreamState, inbox: &Arc<ServerInbox>) -> bool {
        let passed = self.passed(stream);
        let mut any = false;
        while self.taken < self.requested {
            let wanted = self.chunk(ring.chunk, self.taken).len;
            if self.take(wanted).is_none() {
                break;
            }
            any = true;
        }
        // A buffer is free when its chunk is in the file.
        let is_free = self.shown - self.taken < ring.buffers.len() as u32;
        if !self.ended && self.shown < self.chunks && passed == self.shown && is_free {
            let chunk = self.chunk(ring.chunk, self.shown);
            let buffer = ring.buffers[self.shown as usize % ring.buffers.len()];
            let to = buffer.device + chunk.address % 16;
            self.fill_list(ring, stream, (chunk.address, to, chunk.len as u64));
            self.go(stream, self.shown);
            self.shown += 1;
            any = true;
        }
        while !self.ended && self.requested < passed.min(self.shown) && !(self.grows && self.air > 0) {
            let index = self.requested;
            self.requested += 1;
            let chunk = self.chunk(ring.chunk, index);
            let buffer = ring.buffers[index as usize % ring.buffers.len()];
            let memory = self.staging(buffer, chunk.address % 16);
            let batch = file_work::one(&self.file, memory, Direction::Write, (chunk.offset, chunk.len));
            self.start(stream, inbox, FileTask { batch, lead: 0, len: chunk.len as u64, skip: 0 }, index);
            any = true;
        }
        any |= self.release(stream, passed);
        let all = self.taken == self.chunks || self.ended;
        let is_through = all && self.air == 0 && passed == self.numbers.steps;
        if is_through && self.report(stream) {
            self.go(stream, self.numbers.steps);
            any = true;
        }
        any
    }

    // ---- memory that the CPU or another engine reaches by itself ---------------------------------------------------

    fn straight(&mut self, stream: &StreamState, inbox: &Arc<ServerInbox>) -> bool {
        if self.target.is_none() {
            return false;
        }
        if self.requested < self.chunks {
            self.requested = self.chunks;
            let range = (self.offset, self.len);
            if self.memory.device.info().is_host
                && self.direction == Direction::Read
                && let Some((end, moved)) =
                    file_work::read_warm(&self.engines, &self.file, range, self.address)
            {
                self.moved = moved;
                self.slots[0].answer = Some(end);
                return true;
            }
            let memory = Memory { address: self.address, ..self.memory.clone() };
            let batch = file_work::one(&self.file, memory, self.direction, range);
            self.start(stream, inbox, FileTask { batch, lead: 0, len: self.len as u64, skip: 0 }, 0);
            return true;
        }
        if self.taken < self.chunks && self.take(self.len).is_none() {
            return false;
        }
        if !self.report(stream) {
            return false;
        }
        self.go(stream, 0);
        true
    }
}
