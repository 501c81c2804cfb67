//! Types 1, 2 and 4: plain calls, one after the other.

use std::time::Instant;

use forebay_error::Result;
use forebay_gpu::{Context, Event, HostRange, Stream, Wait};

use super::mover::{IoFeed, Mover};
use super::worker_memory::WorkerMemory;
use crate::memory::PinnedMemory;
use crate::workers::measure::WorkerMeter;

/// Straight between the file and host memory.
pub(super) struct StraightMover {
    target: WorkerMemory,
}

impl StraightMover {
    pub(super) const fn new(target: WorkerMemory) -> Self {
        Self { target }
    }
}

impl Mover for StraightMover {
    fn run(&mut self, feed: &mut IoFeed, meter: &mut WorkerMeter) -> Result<()> {
        while !meter.stopped()
            && let Some((file, op)) = feed.next(meter.end)
        {
            self.target.before(&file, 0, op)?;
            let pointer = self.target.memory.address() as *mut u8;
            let raw = file.raw()?;
            let started = Instant::now();
            // SAFETY: host memory of this mover, page-aligned and as long as the longest I/O rounded up to a page.
            unsafe {
                if op.write {
                    raw.write(pointer, op.len, op.offset)?;
                } else {
                    raw.read(pointer, op.len, op.offset)?;
                }
            }
            meter.done(started, 1, op.len as u64);
            self.target.after(&file, 0, op)?;
        }
        Ok(())
    }
}

/// Through one pinned buffer, with a copy that is waited for.
pub(super) struct ClassicMover {
    // Dropped in this order: the stream's copies are done whenever `run` returns.
    event: Box<dyn Event>,
    stream: Box<dyn Stream>,
    slot: PinnedMemory,
    target: WorkerMemory,
    wait: Wait,
}

impl ClassicMover {
    pub(super) fn new(target: WorkerMemory, len: usize, wait: Wait) -> Result<Self> {
        let slot = PinnedMemory::new(&target.device, len)?;
        let stream = target.device.stream(Context::PRIMARY)?;
        let event = stream.event()?;
        Ok(Self { event, stream, slot, target, wait })
    }

    fn settle(&self) -> Result<()> {
        self.stream.record(&*self.event)?;
        self.event.wait(self.wait)
    }
}

impl Mover for ClassicMover {
    fn run(&mut self, feed: &mut IoFeed, meter: &mut WorkerMeter) -> Result<()> {
        while !meter.stopped()
            && let Some((file, op)) = feed.next(meter.end)
        {
            self.target.before(&file, 0, op)?;
            let (pointer, address) = (self.slot.pointer(), self.target.memory.address());
            let raw = file.raw()?;
            let started = Instant::now();
            // SAFETY: the slot is pinned, page-aligned and, as the memory, long enough for any I/O rounded up to a
            // page; each copy is waited for before either is used again.
            unsafe {
                if op.write {
                    self.stream.copy_out(HostRange::new(pointer, op.len), address)?;
                    self.settle()?;
                    raw.write(pointer, op.len, op.offset)?;
                } else {
                    raw.read(pointer, op.len, op.offset)?;
                    self.stream.copy_in(address, HostRange::new(pointer, op.len))?;
                    self.settle()?;
                }
            }
            meter.done(started, 1, op.len as u64);
            self.target.after(&file, 0, op)?;
        }
        Ok(())
    }
}
