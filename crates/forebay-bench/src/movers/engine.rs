//! Types 0, 5, 6 and 7: the engine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use forebay_engine::{Batch, Direction, Piece, Session, Ticket, Transfer};
use forebay_error::Result;
use forebay_gpu::Stream;

use super::mover::{IoFeed, Mover};
use super::worker_memory::WorkerMemory;
use crate::files::open::OpenFile;
use crate::plan::IoOp;
use crate::workers::measure::WorkerMeter;

fn transfer(file: &OpenFile, target: &WorkerMemory, at: usize, op: IoOp) -> Transfer {
    Transfer {
        file: file.file.clone(),
        offset: op.offset,
        memory: target.memory.at(at),
        len: op.len,
        direction: if op.write { Direction::Write } else { Direction::Read },
        allow_short: false,
    }
}

/// One blocking request after the other.
pub(super) struct BlockingMover {
    session: Session,
    target: WorkerMemory,
}

impl BlockingMover {
    pub(super) const fn new(session: Session, target: WorkerMemory) -> Self {
        Self { session, target }
    }
}

impl Mover for BlockingMover {
    fn run(&mut self, feed: &mut IoFeed, meter: &mut WorkerMeter) -> Result<()> {
        let mut request: Option<(Arc<OpenFile>, Transfer)> = None;
        while !meter.stopped()
            && let Some((file, op)) = feed.next(meter.end)
        {
            self.target.before(&file, 0, op)?;
            let request = match &mut request {
                Some((of, request)) if Arc::ptr_eq(of, &file) => {
                    request.offset = op.offset;
                    request.len = op.len;
                    request
                }
                slot => &mut slot.insert((file.clone(), transfer(&file, &self.target, 0, op))).1,
            };
            let started = Instant::now();
            // SAFETY: the memory is ours, large enough for any I/O, and this thread waits here.
            let receipt = unsafe { self.session.run_since(request, started)? };
            meter.done_at(started + receipt.elapsed, started, 1, op.len as u64);
            meter.receipt(&receipt);
            self.target.after(&file, 0, op)?;
        }
        Ok(())
    }
}

struct BatchFlight {
    ticket: Ticket<()>,
    started: Instant,
    slot: usize,
    ops: Vec<(Arc<OpenFile>, IoOp)>,
}

/// Several requests a submission, several submissions in flight.
pub(super) struct SubmittingMover {
    session: Session,
    target: WorkerMemory,
    stride: usize,
    entries: usize,
    flights: usize,
    /// The thread's own: on one that all threads share their transfers would run one after the other.
    stream: Option<Box<dyn Stream>>,
}

impl SubmittingMover {
    pub(super) const fn new(
        session: Session,
        target: WorkerMemory,
        stride: usize,
        entries: usize,
        flights: usize,
        stream: Option<Box<dyn Stream>>,
    ) -> Self {
        Self { session, target, stride, entries, flights, stream }
    }

    fn at(&self, slot: usize, entry: usize) -> usize {
        (slot * self.entries + entry) * self.stride
    }

    fn submit(&mut self, slot: usize, ops: Vec<(Arc<OpenFile>, IoOp)>) -> Result<BatchFlight> {
        for (entry, (file, op)) in ops.iter().enumerate() {
            let at = self.at(slot, entry);
            self.target.before(file, at, *op)?;
        }
        let started = Instant::now();
        // SAFETY: each entry has its own part of our memory, untouched until its ticket was waited for; so is the stream.
        let ticket = unsafe {
            match alike(&ops) {
                Some((file, write)) if self.stream.is_none() => {
                    let base = self.target.memory.address();
                    let piece = |(entry, (_, op)): (usize, &(_, IoOp))| Piece {
                        offset: op.offset,
                        address: base + self.at(slot, entry) as u64,
                        len: op.len,
                    };
                    self.session.submit_batch(Batch {
                        file: file.file.clone(),
                        memory: self.target.memory.at(0),
                        direction: if write { Direction::Write } else { Direction::Read },
                        pieces: ops.iter().enumerate().map(piece).collect(),
                        allow_short: false,
                    })?
                }
                _ => {
                    let transfers = ops.iter().enumerate();
                    let transfers = transfers
                        .map(|(entry, (file, op))| transfer(file, &self.target, self.at(slot, entry), *op));
                    let transfers = transfers.collect();
                    match &self.stream {
                        Some(stream) => self.session.submit_on(stream.handle(), transfers)?,
                        None => self.session.submit(transfers)?,
                    }
                }
            }
        };
        Ok(BatchFlight { ticket, started, slot, ops })
    }

    fn finish(&mut self, flight: BatchFlight, meter: &mut WorkerMeter) -> Result<()> {
        let outcome = flight.ticket.wait();
        let mut bytes = 0;
        for entry in &outcome.entries {
            bytes += entry.clone()?;
        }
        meter.done(flight.started, flight.ops.len() as u64, bytes);
        meter.receipt(&outcome.receipt);
        for (entry, (file, op)) in flight.ops.iter().enumerate() {
            let at = self.at(flight.slot, entry);
            self.target.after(file, at, *op)?;
        }
        Ok(())
    }
}

/// The file and direction of a batch whose entries all have the same.
fn alike(ops: &[(Arc<OpenFile>, IoOp)]) -> Option<(&Arc<OpenFile>, bool)> {
    let (first, rest) = ops.split_first()?;
    let same = rest.iter().all(|(file, op)| Arc::ptr_eq(file, &first.0) && op.write == first.1.write);
    same.then_some((&first.0, first.1.write))
}

impl Mover for SubmittingMover {
    fn depth(&self) -> usize {
        self.entries * self.flights
    }

    fn run(&mut self, feed: &mut IoFeed, meter: &mut WorkerMeter) -> Result<()> {
        let mut flying: VecDeque<BatchFlight> = VecDeque::with_capacity(self.flights);
        let result = self.fly(feed, meter, &mut flying);
        // After an error other transfers may still be running: keep the memory until they end.
        for flight in flying {
            flight.ticket.wait();
        }
        result
    }
}

impl SubmittingMover {
    fn fly(
        &mut self,
        feed: &mut IoFeed,
        meter: &mut WorkerMeter,
        flying: &mut VecDeque<BatchFlight>,
    ) -> Result<()> {
        for slot in (0..self.flights).cycle() {
            if flying.len() == self.flights
                && let Some(oldest) = flying.pop_front()
            {
                self.finish(oldest, meter)?;
            }
            if meter.stopped() {
                break;
            }
            // Use the clock, not the end of the last finished I/O: starting a full queue may take longer than the run.
            let now = Instant::now();
            let ops: Vec<_> = std::iter::from_fn(|| feed.next(now)).take(self.entries).collect();
            if ops.is_empty() {
                break;
            }
            let flight = self.submit(slot, ops)?;
            flying.push_back(flight);
        }
        while let Some(oldest) = flying.pop_front() {
            self.finish(oldest, meter)?;
        }
        Ok(())
    }
}
