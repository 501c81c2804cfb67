//! Type 0 of bare mode over registered pages: copies straight out of the page cache.

use std::sync::Arc;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Event, HostRange, Stream, Wait};

use super::mover::{IoFeed, Mover};
use super::worker_memory::WorkerMemory;
use crate::files::open::OpenFile;
use crate::plan::IoOp;
use crate::raw::{RawMap, WINDOW};
use crate::workers::measure::WorkerMeter;

struct MappedSlot {
    event: Box<dyn Event>,
    busy: Option<(Instant, Arc<OpenFile>, IoOp)>,
}

/// A ring of copies. Within an I/O, windows are registered while earlier copies are still running.
pub(super) struct MappedMover {
    slots: Vec<MappedSlot>,
    stream: Box<dyn Stream>,
    target: WorkerMemory,
    stride: usize,
}

impl MappedMover {
    /// `target` has `stride` bytes for each slot.
    pub(super) fn new(target: WorkerMemory, slots: usize, stride: usize) -> Result<Self> {
        let stream = target.device.stream(Context::PRIMARY)?;
        let slots = (0..slots).map(|_| Ok(MappedSlot { event: stream.event()?, busy: None }));
        Ok(Self { slots: slots.collect::<Result<_>>()?, stream, target, stride })
    }

    fn settle(&mut self, index: usize, meter: &mut WorkerMeter) -> Result<()> {
        let Some((started, file, op)) = self.slots[index].busy.take() else { return Ok(()) };
        self.slots[index].event.wait(Wait::Block)?;
        meter.done(started, 1, op.len as u64);
        self.target.after(&file, index * self.stride, op)
    }

    fn begin(&mut self, index: usize, file: Arc<OpenFile>, op: IoOp) -> Result<()> {
        let started = Instant::now();
        let map = map_of(&file)?;
        let place = self.target.memory.address() + (index * self.stride) as u64;
        let mut done = 0;
        while done < op.len {
            let at = op.offset + done as u64;
            let window_end = (at / WINDOW as u64 + 1) * WINDOW as u64;
            let len = (op.len - done).min((window_end - at) as usize);
            map.register_until(at + len as u64)?;
            let pages = HostRange::new(map.address(at) as *const u8, len);
            // SAFETY: the pages are registered until the file is dropped, after the last `settle`; the place is this
            // slot's own part of our memory.
            unsafe { self.stream.copy_in(place + done as u64, pages)? };
            done += len;
        }
        let slot = &mut self.slots[index];
        self.stream.record(&*slot.event)?;
        slot.busy = Some((started, file, op));
        Ok(())
    }
}

fn map_of(file: &OpenFile) -> Result<&Arc<RawMap>> {
    file.map
        .as_ref()
        .ok_or_else(|| Error::new(ErrorKind::Internal, "a raw read in place of a file without a map"))
}

impl Mover for MappedMover {
    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn run(&mut self, feed: &mut IoFeed, meter: &mut WorkerMeter) -> Result<()> {
        let count = self.slots.len();
        let mut index = 0;
        while !meter.stopped() {
            self.settle(index, meter)?;
            let Some((file, op)) = feed.next(meter.end) else { break };
            self.begin(index, file, op)?;
            index = (index + 1) % count;
        }
        (0..count).try_for_each(|step| self.settle((index + step) % count, meter))
    }
}

impl Drop for MappedMover {
    fn drop(&mut self) {
        // After an error copies may still be running: free nothing that they use.
        let _ = self.stream.synchronize(Wait::Block);
    }
}
