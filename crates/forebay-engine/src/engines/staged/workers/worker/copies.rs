//! The device's side of a lane: copies in flight, their streams and events.

use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use forebay_gpu::{Context, CopyPiece, Event, HostRange, Stream, Wait};

use super::super::slots::SlotMemory;
use super::{Lane, LaneUnit, UnitKind};
use crate::io::segment::Segment;
use crate::source::piece::{Direction, Piece};
use crate::tuning::machine::{LONGEST_NAP, LOOK, SHORT_LOOK};

/// Device copies in flight, with the units that they serve.
pub(super) struct CopyFlight {
    pub(super) event: Box<dyn Event>,
    context: Context,
    units: Vec<usize>,
    begun: Instant,
    /// Its bytes are to be written.
    pub(super) is_write: bool,
    /// All of it is small pieces, which take some 10 µs.
    is_small: bool,
}

impl CopyFlight {
    /// How long to leave it alone. Copies of many lanes share the link for a millisecond, and the write that follows takes longer than
    /// a late look.
    pub(super) fn glance(&self) -> Duration {
        glance_after(self.begun.elapsed(), self.is_write, self.is_small)
    }
}

fn glance_after(elapsed: Duration, is_write: bool, is_small: bool) -> Duration {
    match (is_write, is_small) {
        (true, _) => (elapsed / 8).clamp(LOOK, LONGEST_NAP),
        (false, true) => SHORT_LOOK,
        (false, false) => LOOK,
    }
}

/// The lane's stream in a context, with events to reuse.
pub(super) struct LaneStream {
    context: Context,
    stream: Box<dyn Stream>,
    events: Vec<Box<dyn Event>>,
    kernels: bool,
}

impl Lane {
    /// Starts the device copies of all ready units, a flight for each context. Copies that come after the user's
    /// work stay ready until that is done.
    pub(super) fn deliver(&mut self) {
        let ready = std::mem::take(&mut self.ready);
        let (mut due, held): (Vec<_>, Vec<_>) =
            ready.into_iter().partition(|unit| self.job(*unit).completion.may_copy());
        let (cancelled, held) = held.into_iter().partition(|unit| self.job(*unit).completion.is_cancelled());
        self.ready = held;
        self.leave_out(cancelled);
        while let Some(first) = due.first().copied() {
            let context = self.job(first).batch.memory.context;
            let (units, others): (Vec<_>, Vec<_>) =
                due.into_iter().partition(|unit| self.job(*unit).batch.memory.context == context);
            due = others;
            match self.launch(context, &units) {
                Ok(event) => {
                    let is_write = self.job(first).batch.direction == Direction::Write;
                    let is_small = units.iter().all(|unit| self.units[*unit].kind == UnitKind::Cell);
                    let begun = Instant::now();
                    self.flights.push_back(CopyFlight { event, context, units, begun, is_write, is_small });
                }
                Err(error) => {
                    // Some copies may have been queued: their memory is in use until they are done.
                    if let Some(stream) = self.streams.iter().find(|stream| stream.context == context) {
                        let _ = stream.stream.synchronize(Wait::Block);
                    }
                    self.fail_units(&units, &error);
                }
            }
        }
    }

    fn launch(&mut self, context: Context, units: &[usize]) -> Result<Box<dyn Event>> {
        let at = self.stream(context)?;
        let mut cells = Vec::new();
        for unit in units {
            let LaneUnit { segments, memory, kind, .. } = &self.units[*unit];
            let job = self.job(*unit);
            let (direction, entries) = (job.batch.direction, job.batch.pieces.as_slice());
            if *kind == UnitKind::Cell {
                cells.extend(segments.iter().flat_map(|segment| copies(segment, entries, memory, direction)));
            } else {
                let pieces: Vec<_> =
                    segments.iter().flat_map(|segment| copies(segment, entries, memory, direction)).collect();
                self.copy(at, *unit, &pieces, direction)?;
            }
        }
        // Cells of both directions may be ready at once; a list may hold both.
        if let Some(owner) = units.iter().copied().find(|unit| self.units[*unit].kind == UnitKind::Cell) {
            let direction = self.job(owner).batch.direction;
            self.copy(at, owner, &cells, direction)?;
        }
        let LaneStream { stream, events, .. } = &mut self.streams[at];
        let event = match events.pop() {
            Some(event) => event,
            None => stream.event()?,
        };
        stream.record(event.as_ref())?;
        Ok(event)
    }

    /// Copies pieces: one by the copy engine, several by one kernel whose list belongs to `owner`.
    fn copy(&self, at: usize, owner: usize, pieces: &[CopyPiece], direction: Direction) -> Result<()> {
        let LaneStream { stream, kernels, .. } = &self.streams[at];
        let memory = &self.units[owner].memory;
        if pieces.len() > 1 && *kernels && pieces.len() <= memory.list_len {
            let longest = pieces.iter().map(|piece| piece.len as usize).max().unwrap_or(0);
            // SAFETY: the list takes that many pieces, and nothing uses it until this flight has landed.
            unsafe {
                std::ptr::copy_nonoverlapping(pieces.as_ptr(), memory.list, pieces.len());
                return stream.scatter(memory.list_device, pieces.len(), longest);
            }
        }
        let offset = (memory.host as u64).wrapping_sub(memory.device);
        for piece in pieces {
            let inward = if self.is_own_memory(piece.src) { Direction::Read } else { direction };
            // SAFETY: the unit keeps its memory, and the caller its memory, until the flight has landed.
            unsafe {
                match inward {
                    Direction::Read => {
                        stream.copy_in(
                            piece.dst,
                            HostRange::new(piece.src.wrapping_add(offset) as *const u8, piece.len as usize),
                        )?;
                    }
                    Direction::Write => {
                        stream.copy_out(
                            HostRange::new(piece.dst.wrapping_add(offset) as *mut u8, piece.len as usize),
                            piece.src,
                        )?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a device address lies in this lane's memory.
    fn is_own_memory(&self, address: u64) -> bool {
        self.reached.iter().any(|range| range.contains(address))
    }

    pub(super) fn stream(&mut self, context: Context) -> Result<usize> {
        if let Some(at) = self.streams.iter().position(|stream| stream.context == context) {
            return Ok(at);
        }
        let device = &self.shared.device;
        let stream = device.stream(context)?;
        let kernels = device.kernels(context).is_ok();
        self.streams.push(LaneStream { context, stream, events: Vec::new(), kernels });
        Ok(self.streams.len() - 1)
    }

    pub(super) fn fail_units(&mut self, units: &[usize], error: &Error) {
        for unit in units {
            for index in 0..self.units[*unit].segments.len() {
                self.fail(*unit, index, error.clone());
            }
            self.finish(*unit);
        }
    }

    /// Takes in copies that are done.
    pub(super) fn land(&mut self) -> bool {
        let mut any = false;
        while let Some(flight) = self.flights.front() {
            let result = match flight.event.is_done() {
                Ok(false) => break,
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            let Some(flight) = self.flights.pop_front() else { break };
            any = true;
            self.landed(flight, &result);
        }
        any
    }

    fn landed(&mut self, flight: CopyFlight, result: &Result<()>) {
        if let Err(error) = result {
            self.fail_units(&flight.units, error);
        } else {
            for unit in flight.units {
                match self.job(unit).batch.direction {
                    Direction::Read => self.finish(unit),
                    Direction::Write => self.begin_write(unit),
                }
            }
        }
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.context == flight.context) {
            stream.events.push(flight.event);
        }
    }
}

/// The device copies of a segment: from its slot or cell for a read, to it for a write.
fn copies(
    segment: &Segment,
    entries: &[Piece],
    memory: &SlotMemory,
    direction: Direction,
) -> impl Iterator<Item = CopyPiece> {
    let in_room = memory.device + (segment.wanted().address() - memory.host as u64);
    let upto = if direction == Direction::Read { segment.good() } else { segment.len };
    segment.shares(entries, upto).map(move |share| {
        let (ours, theirs, len) = (in_room + share.at as u64, share.address, share.len as u64);
        match direction {
            Direction::Read => CopyPiece { src: ours, dst: theirs, len },
            Direction::Write => CopyPiece { src: theirs, dst: ours, len },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_to_be_written_are_left_alone_longer_and_never_for_long() {
        let after = |micros, is_write| glance_after(Duration::from_micros(micros), is_write, false);
        assert_eq!([after(0, true), after(1 << 30, false)], [LOOK; 2]);
        assert_eq!(after(4000, true), Duration::from_micros(500));
        assert_eq!(after(1 << 30, true), LONGEST_NAP);
        assert_eq!(glance_after(Duration::ZERO, false, true), SHORT_LOOK);
    }
}
