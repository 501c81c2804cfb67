//! One operation that its stream has got to.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::CopyPiece;

use super::completion::Landing;
use super::file_work::{self, Letterbox, Office, Task};
use super::operation::{Asked, Numbers, Operation, Route, Told, bind, pieces_of, step_len};
use super::staging_pool::{PIECE, Ring, Room};
use super::stream_state::Track;
use crate::request::file::File;
use crate::request::receipt::Moved;
use crate::request::transfer::Memory;
use crate::runtime::traffic::Queued;
use crate::source::piece::Direction;

/// What a room holds.
#[derive(Default)]
struct Slot {
    /// Where the wanted bytes begin.
    skip: u64,
    /// What came of the chunk in it.
    answer: Option<Result<u64>>,
}

/// A range of an operation that one copy moves.
#[derive(Clone, Copy)]
struct Chunk {
    offset: u64,
    address: u64,
    len: usize,
}

pub(super) struct Run {
    numbers: Numbers,
    route: Route,
    most: usize,
    office: Arc<Office>,
    file: File,
    memory: Memory,
    direction: Direction,
    told: Option<Told>,
    landing: Option<Arc<Landing>>,
    offset: u64,
    address: u64,
    len: usize,
    /// Chunks that have bytes.
    chunks: u32,
    /// Those whose file work was begun.
    asked: u32,
    /// Those that the stream may copy.
    shown: u32,
    /// Those whose answer was taken in.
    taken: u32,
    /// Those whose file work is under way.
    air: u32,
    slots: Vec<Slot>,
    good: u64,
    moved: Moved,
    error: Option<Error>,
    /// No more chunks will be moved: the file has ended, or something failed.
    ended: bool,
    /// The stream may pass the copies that have nothing to do.
    released: bool,
    #[expect(dead_code, reason = "counts as long as it lives")]
    queued: Queued,
}

impl Run {
    pub(super) fn begin(operation: Operation) -> Self {
        let numbers = operation.numbers();
        let Operation { asked, route, queued, .. } = operation;
        let Asked { file, memory, direction, most, bind: call, told, office } = asked;
        let landing = match &told {
            Told::Ticket(landing) => Some(landing.clone()),
            Told::User(_) => None,
        };
        let mut run = Self {
            numbers,
            most,
            office,
            file,
            memory,
            direction,
            told: Some(told),
            landing,
            offset: 0,
            address: 0,
            len: 0,
            chunks: 0,
            asked: 0,
            shown: 0,
            taken: 0,
            air: 0,
            slots: Vec::new(),
            good: 0,
            moved: Moved::default(),
            error: None,
            ended: false,
            released: false,
            route,
            queued,
        };
        match bind(call, most) {
            Ok(bound) => (run.offset, run.address, run.len) = (bound.offset, bound.address, bound.len),
            Err(error) => run.error = Some(error),
        }
        let (chunk, rooms) = match &run.route {
            Route::Ring(ring) => (ring.chunk, ring.rooms.len()),
            Route::Straight => (run.len.max(1), 1),
            Route::Nothing => {
                run.good = run.len as u64;
                run.moved.cached = run.good;
                run.len = 0;
                (1, 1)
            }
        };
        run.chunks = run.len.div_ceil(chunk) as u32;
        run.slots.resize_with(rooms, Slot::default);
        run
    }

    /// Takes in what came of a chunk.
    pub(super) fn answer(&mut self, chunk: u32, result: Result<u64>, moved: Moved) {
        self.air -= 1;
        self.moved = self.moved.plus(moved);
        let slots = self.slots.len();
        self.slots[chunk as usize % slots].answer = Some(result);
    }

    pub(super) fn first(&self) -> u32 {
        self.numbers.first
    }

    /// Does what can be done now; whether that was anything.
    pub(super) fn step(&mut self, track: &Track, letterbox: &Arc<Letterbox>) -> bool {
        match (self.route.clone(), self.direction) {
            (Route::Ring(ring), Direction::Read) => self.read(&ring, track, letterbox),
            (Route::Ring(ring), Direction::Write) => self.write(&ring, track, letterbox),
            (Route::Straight | Route::Nothing, _) => self.straight(track, letterbox),
        }
    }

    /// Whether the stream is through.
    pub(super) fn is_over(&self, track: &Track) -> bool {
        self.told.is_none() && self.air == 0 && track.is_past(self.numbers.last())
    }

    /// Ends it. The stream is through.
    pub(super) fn finish(mut self) {
        let landing = self.landing.take();
        // Whoever sees the ticket resolved finds the file let go.
        drop(self);
        if let Some(landing) = landing {
            landing.landed();
        }
    }

    /// Ends it where the stream did not take all of it. True if it is over.
    pub(super) fn cut_short(&mut self, track: &Track) -> bool {
        if self.air > 0 {
            return false;
        }
        let refused = Error::new(ErrorKind::Io, "the stream did not take the whole transfer");
        if let Some(landing) = &self.landing {
            // Its success may have been told: a ticket is not resolved by that yet.
            landing.refuse(self.error.clone().unwrap_or_else(|| refused.clone()));
        }
        self.error.get_or_insert(refused);
        self.tell(track);
        track.clear_list();
        track.go(self.numbers.last());
        true
    }

    /// Tells the result; false if that was told, or is a success that is none: the stream refused a part of it.
    fn tell(&mut self, track: &Track) -> bool {
        if self.error.is_none() && !track.may_tell(self.numbers.first) {
            return false;
        }
        let Some(told) = self.told.take() else { return false };
        let result = match self.error.take() {
            Some(error) => Err(error.with("file", self.file.name())),
            None => Ok(self.good),
        };
        told.tell(&self.office, result, self.moved);
        true
    }

    /// Lets the stream wait no more at the place before copy number `step`.
    fn go(&self, track: &Track, step: u32) {
        track.go(self.numbers.first.wrapping_add(step));
    }

    /// How many copies the stream has done.
    fn passed(&self, track: &Track) -> u32 {
        track.reached().wrapping_sub(self.numbers.first).min(self.numbers.steps)
    }

    fn chunk(&self, size: usize, index: u32) -> Chunk {
        let at = index as usize * size;
        let (offset, address) = (self.offset + at as u64, self.address + at as u64);
        Chunk { offset, address, len: (self.len - at).min(size) }
    }

    fn slot(&mut self, index: u32) -> &mut Slot {
        let slots = self.slots.len();
        &mut self.slots[index as usize % slots]
    }

    /// A chunk's result in its turn; false if it is not there yet.
    fn take(&mut self, wanted: usize) -> Option<u64> {
        let result = self.slot(self.taken).answer.take()?;
        self.taken += 1;
        let got = result.unwrap_or_else(|error| {
            self.error.get_or_insert(error);
            0
        });
        self.good += got;
        self.ended |= self.error.is_some() || got < wanted as u64;
        Some(got)
    }

    /// When no copy has anything left to do: lets the stream pass those that are left.
    fn release(&mut self, track: &Track, passed: u32) -> bool {
        let is_last = self.ended || self.shown == self.chunks;
        if self.released || !is_last || passed < self.shown || self.shown >= self.numbers.steps {
            return false;
        }
        track.clear_list();
        self.go(track, self.numbers.steps - 1);
        self.released = true;
        true
    }

    // ---- staged reads --------------------------------------------------------------------------------------------

    fn read(&mut self, ring: &Ring, track: &Track, letterbox: &Arc<Letterbox>) -> bool {
        let passed = self.passed(track);
        let mut any = false;
        while !self.ended && self.asked < self.chunks && (self.asked - passed) < ring.rooms.len() as u32 {
            self.ask_read(ring, track, letterbox);
            any = true;
        }
        if self.chunks == 0 {
            any |= self.tell(track);
        }
        // The list is the stream's until it has done the copy before.
        if !self.ended && self.shown < self.chunks && passed == self.shown {
            let chunk = self.chunk(ring.chunk, self.shown);
            if let Some(got) = self.take(chunk.len) {
                let room = ring.rooms[self.shown as usize % ring.rooms.len()];
                let from = room.device + self.slot(self.shown).skip;
                self.fill_list(ring, track, (from, chunk.address, got));
                if self.ended || self.shown + 1 == self.chunks {
                    self.tell(track);
                }
                self.go(track, self.shown);
                self.shown += 1;
                any = true;
            }
        }
        self.release(track, passed) || any
    }

    fn ask_read(&mut self, ring: &Ring, track: &Track, letterbox: &Arc<Letterbox>) {
        let index = self.asked;
        self.asked += 1;
        let chunk = self.chunk(ring.chunk, index);
        let room = ring.rooms[index as usize % ring.rooms.len()];
        let range = (chunk.offset, chunk.len);
        let skip = chunk.address % 16;
        if let Some((result, moved)) = file_work::read_warm(&self.office, &self.file, range, room.host + skip)
        {
            self.moved = self.moved.plus(moved);
            *self.slot(index) = Slot { skip, answer: Some(result) };
            return;
        }
        let batch = file_work::one(&self.file, self.staging(room, 0), Direction::Read, range);
        let task = file_work::read_task(&self.office, batch, room.len, chunk.address);
        *self.slot(index) = Slot { skip: task.skip, answer: None };
        self.start(track, letterbox, task, index);
    }

    fn staging(&self, room: Room, skip: u64) -> Memory {
        Memory::new(self.office.host.clone(), room.host + skip)
    }

    fn start(&mut self, track: &Track, letterbox: &Arc<Letterbox>, task: Task, chunk: u32) {
        self.air += 1;
        file_work::start(&self.office, letterbox, task, (track.id, self.numbers.first, chunk));
    }

    /// Fills the list for the next copy: `len` bytes, fewer than the stream was told there might be, or as many.
    fn fill_list(&self, ring: &Ring, track: &Track, (src, dst, len): (u64, u64, u64)) {
        let pieces = pieces_of(step_len(self.most, ring.chunk, self.shown));
        for index in 0..pieces {
            let at = (index * PIECE) as u64;
            let len = len.saturating_sub(at).min(PIECE as u64);
            track.put_piece(index, CopyPiece { src: src + at, dst: dst + at, len });
        }
    }

    // ---- staged writes -------------------------------------------------------------------------------------------

    fn write(&mut self, ring: &Ring, track: &Track, letterbox: &Arc<Letterbox>) -> bool {
        let passed = self.passed(track);
        let mut any = false;
        while self.taken < self.asked {
            let wanted = self.chunk(ring.chunk, self.taken).len;
            if self.take(wanted).is_none() {
                break;
            }
            any = true;
        }
        // A room is free again when its chunk is in the file.
        let is_free = self.shown - self.taken < ring.rooms.len() as u32;
        if !self.ended && self.shown < self.chunks && passed == self.shown && is_free {
            let chunk = self.chunk(ring.chunk, self.shown);
            let room = ring.rooms[self.shown as usize % ring.rooms.len()];
            let to = room.device + chunk.address % 16;
            self.fill_list(ring, track, (chunk.address, to, chunk.len as u64));
            self.go(track, self.shown);
            self.shown += 1;
            any = true;
        }
        while !self.ended && self.asked < passed.min(self.shown) {
            let index = self.asked;
            self.asked += 1;
            let chunk = self.chunk(ring.chunk, index);
            let room = ring.rooms[index as usize % ring.rooms.len()];
            let memory = self.staging(room, chunk.address % 16);
            let batch = file_work::one(&self.file, memory, Direction::Write, (chunk.offset, chunk.len));
            self.start(track, letterbox, Task { batch, lead: 0, len: chunk.len as u64, skip: 0 }, index);
            any = true;
        }
        any |= self.release(track, passed);
        let all = self.taken == self.chunks || self.ended;
        let is_through = all && self.air == 0 && passed == self.numbers.steps;
        if is_through && self.tell(track) {
            self.go(track, self.numbers.steps);
            any = true;
        }
        any
    }

    // ---- memory that the CPU or another engine reaches by itself ---------------------------------------------------

    fn straight(&mut self, track: &Track, letterbox: &Arc<Letterbox>) -> bool {
        if self.told.is_none() {
            return false;
        }
        if self.asked < self.chunks {
            self.asked = self.chunks;
            let range = (self.offset, self.len);
            if self.memory.device.info().is_host
                && self.direction == Direction::Read
                && let Some((result, moved)) =
                    file_work::read_warm(&self.office, &self.file, range, self.address)
            {
                self.moved = moved;
                self.slots[0].answer = Some(result);
                return true;
            }
            let memory = Memory { address: self.address, ..self.memory.clone() };
            let batch = file_work::one(&self.file, memory, self.direction, range);
            self.start(track, letterbox, Task { batch, lead: 0, len: self.len as u64, skip: 0 }, 0);
            return true;
        }
        if self.taken < self.chunks && self.take(self.len).is_none() {
            return false;
        }
        if !self.tell(track) {
            return false;
        }
        self.go(track, 0);
        true
    }
}
