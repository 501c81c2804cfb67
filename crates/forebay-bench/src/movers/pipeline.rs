//! Type 3, and bare mode's large I/Os: a ring of pinned slots whose copies overlap the next file calls, where more than
//! one I/O, or chunk of one, may be in flight.

use std::sync::Arc;
use std::time::Instant;

use forebay_error::Result;
use forebay_gpu::{Context, Event, HostRange, Stream, Wait};

use super::mover::{IoFeed, Mover};
use super::worker_memory::WorkerMemory;
use crate::files::open::OpenFile;
use crate::memory::PinnedMemory;
use crate::plan::IoOp;
use crate::workers::measure::WorkerMeter;

/// A chunk between its first and its second step.
struct PipelineChunk {
    file: Arc<OpenFile>,
    op: IoOp,
    offset: u64,
    len: usize,
    started: Instant,
    region: usize,
    last: bool,
}

struct PipelineSlot {
    pinned: PinnedMemory,
    event: Box<dyn Event>,
    busy: Option<PipelineChunk>,
}

/// A ring of slots, one for each I/O in flight: an I/O's latency ends when its slot is taken again (or at the end). An I/O
/// longer than a slot is cut into chunks, and ends before the next one begins.
pub(super) struct PipelineMover {
    slots: Vec<PipelineSlot>,
    stream: Box<dyn Stream>,
    target: WorkerMemory,
    size: usize,
    next: usize,
    /// Each slot has its own part of the memory; otherwise one I/O has all of it.
    regions: bool,
    write: bool,
}

impl PipelineMover {
    /// `io` is the longest I/O: `target` has that many bytes, or, if a slot holds it, one slot's bytes per slot.
    pub(super) fn new(
        target: WorkerMemory,
        slots: usize,
        size: usize,
        io: usize,
        write: bool,
    ) -> Result<Self> {
        let stream = target.device.stream(Context::PRIMARY)?;
        let slots = (0..slots)
            .map(|_| {
                Ok(PipelineSlot {
                    pinned: PinnedMemory::new(&target.device, size)?,
                    event: stream.event()?,
                    busy: None,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { slots, stream, target, size, next: 0, regions: io <= size, write })
    }

    /// Finishes the chunk in the slot.
    fn settle(&mut self, index: usize, meter: &mut WorkerMeter) -> Result<()> {
        let slot = &mut self.slots[index];
        let Some(chunk) = slot.busy.take() else { return Ok(()) };
        slot.event.wait(Wait::Block)?;
        if self.write {
            // SAFETY: the slot holds the chunk, its copy is done, and it is page-aligned.
            unsafe { chunk.file.raw()?.write(slot.pinned.pointer(), chunk.len, chunk.offset)? };
        }
        if chunk.last {
            meter.done(chunk.started, 1, chunk.op.len as u64);
            self.target.after(&chunk.file, chunk.region, chunk.op)?;
        }
        Ok(())
    }

    fn settle_all(&mut self, meter: &mut WorkerMeter) -> Result<()> {
        for step in 0..self.slots.len() {
            self.settle((self.next + step) % self.slots.len(), meter)?;
        }
        Ok(())
    }

    fn one(&mut self, file: &Arc<OpenFile>, op: IoOp, meter: &mut WorkerMeter) -> Result<()> {
        let mut started = None;
        let mut done = 0;
        while done < op.len {
            let index = self.next;
            self.settle(index, meter)?;
            self.next = (index + 1) % self.slots.len();
            let region = if self.regions { index * self.size } else { 0 };
            if done == 0 {
                self.target.before(file, region, op)?;
            }
            let started = *started.get_or_insert_with(Instant::now);
            let len = self.size.min(op.len - done);
            let address = self.target.memory.address() + (region + done) as u64;
            let offset = op.offset + done as u64;
            let slot = &mut self.slots[index];
            // SAFETY: the slot is free (settled above), pinned and page-aligned; the device range lies within our
            // memory; both stay until the slot's event, which `settle` waits for.
            unsafe {
                if self.write {
                    self.stream.copy_out(HostRange::new(slot.pinned.pointer(), len), address)?;
                } else {
                    file.raw()?.read(slot.pinned.pointer(), len, offset)?;
                    self.stream.copy_in(address, HostRange::new(slot.pinned.pointer(), len))?;
                }
            }
            self.stream.record(&*slot.event)?;
            done += len;
            slot.busy = Some(PipelineChunk {
                file: file.clone(),
                op,
                offset,
                len,
                started,
                region,
                last: done == op.len,
            });
        }
        if self.regions { Ok(()) } else { self.settle_all(meter) }
    }
}

impl Mover for PipelineMover {
    fn depth(&self) -> usize {
        if self.regions { self.slots.len() } else { 1 }
    }

    fn run(&mut self, feed: &mut IoFeed, meter: &mut WorkerMeter) -> Result<()> {
        while !meter.stopped() {
            // The wait for the rate is no part of an I/O's latency.
            if feed.is_limited() {
                self.settle_all(meter)?;
            }
            let Some((file, op)) = feed.next(meter.end) else { break };
            self.one(&file, op, meter)?;
        }
        self.settle_all(meter)
    }
}

impl Drop for PipelineMover {
    fn drop(&mut self) {
        // After an error copies may still be running: free nothing that they use.
        let _ = self.stream.synchronize(Wait::Block);
    }
}
