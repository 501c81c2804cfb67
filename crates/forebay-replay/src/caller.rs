//! One caller of the recording, doing its calls again.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{Batch, Direction, Election, EngineKind, Memory, Piece, Receipt, Ticket, Transfer};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{AllocationKind, Context, Device, Event, HostRange, Stream, Wait};

use crate::flights::Flights;
use crate::memory::{DeviceBlock, MemoryRing};
use crate::plan::{Call, CallWay, Caller, Place};
use crate::turn::{OpenFile, Turn};

/// How often a sleeping caller looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Pinned host memory that plain calls for GPU memory go through.
const PLAIN_BUFFER_BYTES: usize = 16 << 20;
/// Most elections that are kept for the reasons in them.
const MAX_ELECTIONS: usize = 64;

/// The result of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallDone {
    /// Nanoseconds since the turn began.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
}

/// What a caller came to.
#[derive(Debug, Default)]
pub(crate) struct CallerDone {
    pub(crate) calls: Vec<CallDone>,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<Error>,
    pub(crate) engines: HashMap<EngineKind, u64>,
    pub(crate) elections: Vec<Arc<Election>>,
}

impl CallerDone {
    fn fail(&mut self, calls: usize, error: Error) {
        self.errors += calls as u64;
        self.first_error.get_or_insert(error);
    }

    fn receipt(&mut self, receipt: &Receipt) {
        for (engine, bytes) in receipt.engines() {
            *self.engines.entry(engine).or_default() += bytes;
        }
        let known = self.elections.iter().any(|known| Arc::ptr_eq(known, &receipt.election));
        if !known && self.elections.len() < MAX_ELECTIONS {
            self.elections.push(receipt.election.clone());
        }
    }
}

/// Transfers in flight.
struct Flight {
    ticket: Ticket,
    /// When it began in the replay.
    start: u64,
    step: usize,
    writes: bool,
}

/// A caller that is ready to begin.
pub(crate) struct CallerRun<'a> {
    turn: &'a Turn<'a>,
    caller: &'a Caller,
    rings: Vec<MemoryRing>,
    streams: HashMap<(u32, Place), Box<dyn Stream>>,
    plain: HashMap<Place, PlainCopy>,
    flights: Flights<Flight>,
    done: CallerDone,
}

impl<'a> CallerRun<'a> {
    /// Gets its memory and streams.
    pub(crate) fn new(turn: &'a Turn<'a>, caller: &'a Caller) -> Result<Self> {
        let (mut rings, mut streams, mut plain) = (Vec::<MemoryRing>::new(), HashMap::new(), HashMap::new());
        for call in &caller.calls {
            let device = turn.device(call.place);
            if !rings.iter().any(|ring| ring.place == call.place) {
                rings.push(MemoryRing::new(call.place, caller, device)?);
                if turn.session.is_none() && !device.info().is_host {
                    plain.insert(call.place, PlainCopy::new(device)?);
                }
            }
            if let (CallWay::Stream(stream), Some(_)) = (call.way, turn.session)
                && stream != 0
                && !streams.contains_key(&(stream, call.place))
            {
                streams
                    .insert((stream, call.place), turn.stream_device(call.place).stream(Context::PRIMARY)?);
            }
        }
        let done = CallerDone { calls: Vec::with_capacity(caller.calls.len()), ..CallerDone::default() };
        Ok(Self { turn, caller, rings, streams, plain, flights: Flights::new(), done })
    }

    /// Does all calls, at their times or as soon as those are done that were done before them.
    pub(crate) fn run(&mut self) -> CallerDone {
        for (number, step) in self.caller.steps.iter().enumerate() {
            let calls = &self.caller.calls[step.clone()];
            let go_on = if self.turn.is_fast {
                self.wait_as_recorded(calls[0].start)
            } else {
                self.sleep_until(self.turn.begin() + Duration::from_nanos(calls[0].start))
            };
            if go_on.is_break() {
                break;
            }
            self.perform(number, calls);
            self.land_done();
        }
        while !self.flights.is_empty() {
            self.land();
        }
        std::mem::take(&mut self.done)
    }

    fn now(&self) -> u64 {
        self.turn.begin().elapsed().as_nanos() as u64
    }

    fn sleep_until(&mut self, deadline: Instant) -> ControlFlow<()> {
        loop {
            if self.turn.is_stopped() {
                return ControlFlow::Break(());
            }
            let left = deadline.saturating_duration_since(Instant::now()).min(LOOK);
            if left.is_zero() {
                return ControlFlow::Continue(());
            }
            match self.flights.front() {
                Some(flight) if flight.ticket.wait_timeout(left) => self.land(),
                Some(_) => {}
                None => std::thread::sleep(left),
            }
        }
    }

    /// Waits for the requests that had finished in the recording when it began the next step.
    fn wait_as_recorded(&mut self, next: u64) -> ControlFlow<()> {
        while let Some(flight) = self.flights.next_ended(next) {
            flight.ticket.wait_timeout(Duration::MAX);
        }
        if self.turn.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn perform(&mut self, step: usize, calls: &[Call]) {
        for call in calls.iter().filter(|call| call.len == 0) {
            let now = self.now();
            self.done.calls.push(CallDone { start: now, end: now, bytes: 0, writes: call.writes });
        }
        let mut sorted: Vec<&Call> = calls.iter().filter(|call| call.len > 0).collect();
        let Some(first) = sorted.first() else { return };
        match first.way {
            _ if self.turn.session.is_none() => sorted.into_iter().for_each(|call| self.plain(call)),
            CallWay::Waited => self.waited(first),
            CallWay::Stream(stream) => self.in_flight(step, &sorted, Some(stream)),
            CallWay::Batch(_) => {
                let kind = |call: &&Call| (call.place, call.file, call.writes);
                sorted.sort_by_key(kind);
                for alike in sorted.chunk_by(|a, b| kind(a) == kind(b)) {
                    self.in_flight(step, alike, None);
                }
            }
        }
    }

    fn ring(&mut self, place: Place) -> Result<&mut MemoryRing> {
        let found = self.rings.iter_mut().find(|ring| ring.place == place);
        found.ok_or_else(|| Error::new(ErrorKind::Internal, "a caller without memory"))
    }

    fn push(&mut self, start: u64, bytes: u64, writes: bool) {
        let end = self.now();
        self.done.calls.push(CallDone { start, end, bytes, writes });
        self.turn.count(bytes);
    }

    fn plain(&mut self, call: &Call) {
        let start = self.now();
        let moved = self.ring(call.place).map(|ring| ring.here(call)).and_then(|address| {
            let file = self.turn.file(call.file);
            match self.plain.get(&call.place) {
                Some(copy) => copy.run(file, call, address),
                None => plain_host(file, call, address),
            }
        });
        match moved {
            Ok(bytes) => self.push(start, bytes, call.writes),
            Err(error) => self.done.fail(1, error),
        }
    }

    fn waited(&mut self, call: &Call) {
        let start = self.now();
        let memory = self.ring(call.place).map(|ring| ring.memory(ring.here(call)));
        let moved = memory.and_then(|memory| {
            let session = self.turn.session_of(call.place)?;
            // SAFETY: this part of our memory is for calls that are waited for, one at a time.
            unsafe { session.run(&transfer(self.turn.file(call.file), call, memory)) }
        });
        match moved {
            Ok(receipt) => {
                self.push(start, receipt.bytes(), call.writes);
                self.done.receipt(&receipt);
            }
            Err(error) => self.done.fail(1, error),
        }
    }

    fn in_flight(&mut self, step: usize, calls: &[&Call], stream: Option<u32>) {
        let submitted = self.take(step, calls).and_then(|memories| {
            let start = self.now();
            Ok((start, self.submit(calls, memories, stream)?))
        });
        match submitted {
            Ok((start, ticket)) => {
                let recorded_end = calls.iter().map(|call| call.end()).max().unwrap_or(0);
                self.flights.push(Flight { ticket, start, step, writes: calls[0].writes }, recorded_end);
            }
            Err(error) => self.done.fail(calls.len(), error),
        }
    }

    /// Memory for calls of one place, once earlier ones have given back enough.
    fn take(&mut self, step: usize, calls: &[&Call]) -> Result<Vec<Memory>> {
        loop {
            let ring = self.ring(calls[0].place)?;
            if let Some(addresses) = ring.take(step, calls) {
                return Ok(addresses.into_iter().map(|address| ring.memory(address)).collect());
            }
            if self.flights.is_empty() {
                return Err(Error::new(ErrorKind::Internal, "a step does not fit a caller's memory"));
            }
            self.land();
        }
    }

    fn submit(&self, calls: &[&Call], memories: Vec<Memory>, stream: Option<u32>) -> Result<Ticket> {
        let session = self.turn.session_of(calls[0].place)?;
        let file = self.turn.file(calls[0].file);
        if let Some(stream) = stream {
            let handle = self.streams.get(&(stream, calls[0].place)).map_or(0, |stream| stream.handle());
            let transfers = calls.iter().zip(memories).map(|(call, memory)| transfer(file, call, memory));
            // SAFETY: the stream lives as long as this caller, and the memory was taken for these calls until they land.
            return unsafe { session.submit_on(handle, transfers.collect()) };
        }
        let pieces = calls.iter().zip(&memories);
        let batch = Batch {
            file: file.file.clone(),
            memory: memories[0].clone(),
            direction: direction(calls[0]),
            pieces: pieces
                .map(|(call, memory)| Piece {
                    offset: call.offset,
                    address: memory.address,
                    len: call.len as usize,
                })
                .collect(),
            allow_short: true,
        };
        // SAFETY: the memory was taken for these calls until they land.
        unsafe { session.submit_batch(batch) }
    }

    /// Collects finished requests, oldest first.
    fn land_done(&mut self) {
        while self.flights.front().is_some_and(|flight| flight.ticket.is_done()) {
            self.land();
        }
    }

    /// Waits for the oldest transfers in flight.
    fn land(&mut self) {
        let Some(flight) = self.flights.pop() else { return };
        let outcome = flight.ticket.wait();
        let end = flight.start + outcome.receipt.elapsed.as_nanos() as u64;
        for entry in outcome.entries {
            match entry {
                Ok(bytes) => {
                    let (start, writes) = (flight.start, flight.writes);
                    self.done.calls.push(CallDone { start, end, bytes, writes });
                    self.turn.count(bytes);
                }
                Err(error) => self.done.fail(1, error),
            }
        }
        self.done.receipt(&outcome.receipt);
        let before = self.flights.front().map_or(usize::MAX, |flight| flight.step);
        self.rings.iter_mut().for_each(|ring| ring.give_back(before));
    }
}

impl Drop for CallerRun<'_> {
    fn drop(&mut self) {
        // After a panic others may still be under way: their memory stays until they are done.
        while let Some(flight) = self.flights.pop() {
            flight.ticket.wait();
        }
    }
}

fn direction(call: &Call) -> Direction {
    if call.writes { Direction::Write } else { Direction::Read }
}

fn transfer(file: &OpenFile, call: &Call, memory: Memory) -> Transfer {
    Transfer {
        file: file.file.clone(),
        offset: call.offset,
        memory,
        len: call.len as usize,
        direction: direction(call),
        allow_short: true,
    }
}

/// Plain calls for GPU memory: through one pinned buffer, with a copy that is waited for.
struct PlainCopy {
    // Dropped in this order: the stream's copies are done whenever `run` returns.
    event: Box<dyn Event>,
    stream: Box<dyn Stream>,
    slot: DeviceBlock,
}

impl PlainCopy {
    fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let slot = DeviceBlock::new(device, AllocationKind::PinnedHost, PLAIN_BUFFER_BYTES)?;
        let stream = device.stream(Context::PRIMARY)?;
        Ok(Self { event: stream.event()?, stream, slot })
    }

    fn run(&self, file: &OpenFile, call: &Call, address: u64) -> Result<u64> {
        let mut done = 0;
        while done < call.len {
            let len = PLAIN_BUFFER_BYTES.min((call.len - done) as usize);
            // SAFETY: pinned memory of this length that is ours; each copy is waited for before it is used again.
            let slot = unsafe { std::slice::from_raw_parts_mut(self.slot.address() as *mut u8, len) };
            let (pointer, there) = (slot.as_mut_ptr(), address + done);
            if call.writes {
                // SAFETY: the caller's memory has the call's length.
                unsafe { self.stream.copy_out(HostRange::new(pointer, len), there) }?;
                self.settle()?;
                file.write(slot, call.offset + done)?;
            } else {
                let got = file.read(slot, call.offset + done)?;
                // SAFETY: as above.
                unsafe { self.stream.copy_in(there, HostRange::new(pointer, got)) }?;
                self.settle()?;
                if got < len {
                    return Ok(done + got as u64);
                }
            }
            done += len as u64;
        }
        Ok(done)
    }

    fn settle(&self) -> Result<()> {
        self.stream.record(&*self.event)?;
        self.event.wait(Wait::Block)
    }
}

fn plain_host(file: &OpenFile, call: &Call, address: u64) -> Result<u64> {
    // SAFETY: the caller's host memory has the call's length, and nobody else uses it meanwhile.
    let memory = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, call.len as usize) };
    if call.writes {
        file.write(memory, call.offset)?;
        return Ok(call.len);
    }
    Ok(file.read(memory, call.offset)? as u64)
}

impl OpenFile {
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.plain.write_all_at(bytes, offset).map_err(|error| Error::from_io(&error, "cannot write file"))
    }

    /// Reads until the memory is full or the file ends.
    fn read(&self, memory: &mut [u8], offset: u64) -> Result<usize> {
        let mut got = 0;
        while got < memory.len() {
            match self.plain.read_at(&mut memory[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::from_io(&error, "cannot read file")),
            }
        }
        Ok(got)
    }
}
