//! Bare mode's batches of small pieces: file calls into one slot, then one scatter kernel (or the mirror of it).

use std::sync::Arc;
use std::time::Instant;

use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, Event, HostRange, Stream, Wait};

use super::mover::{IoFeed, Mover};
use super::worker_memory::WorkerMemory;
use crate::files::open::OpenFile;
use crate::memory::PinnedMemory;
use crate::plan::IoOp;
use crate::workers::measure::WorkerMeter;

/// The entries of one pack.
type Entries = Vec<(Arc<OpenFile>, IoOp)>;

struct PackSlot {
    pinned: PinnedMemory,
    list: PinnedMemory,
    event: Box<dyn Event>,
    busy: Option<(Instant, Entries)>,
}

/// A ring of packs.
pub(super) struct PackMover {
    slots: Vec<PackSlot>,
    stream: Box<dyn Stream>,
    target: WorkerMemory,
    stride: usize,
    depth: usize,
    write: bool,
    kernels: bool,
}

impl PackMover {
    pub(super) fn new(
        target: WorkerMemory,
        stride: usize,
        depth: usize,
        slots: usize,
        write: bool,
    ) -> Result<Self> {
        let stream = target.device.stream(Context::PRIMARY)?;
        let slots = (0..slots)
            .map(|_| {
                Ok(PackSlot {
                    pinned: PinnedMemory::new(&target.device, stride * depth)?,
                    list: PinnedMemory::new(&target.device, size_of::<CopyPiece>() * depth)?,
                    event: stream.event()?,
                    busy: None,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let kernels = target.device.kernels(Context::PRIMARY).is_ok();
        Ok(Self { slots, stream, target, stride, depth, write, kernels })
    }

    fn region(&self, slot: usize, entry: usize) -> usize {
        (slot * self.depth + entry) * self.stride
    }

    fn settle(&mut self, index: usize, meter: &mut WorkerMeter) -> Result<()> {
        let Some((started, ops)) = self.slots[index].busy.take() else { return Ok(()) };
        self.slots[index].event.wait(Wait::Block)?;
        let mut bytes = 0;
        for (entry, (file, op)) in ops.iter().enumerate() {
            bytes += op.len as u64;
            if self.write {
                // SAFETY: the slot has a stride of whole pages for each entry, and its copies are done.
                unsafe {
                    let from = self.slots[index].pinned.pointer().add(entry * self.stride);
                    file.raw()?.write(from, op.len, op.offset)?;
                }
            }
        }
        meter.done(started, ops.len() as u64, bytes);
        for (entry, (file, op)) in ops.iter().enumerate() {
            let at = self.region(index, entry);
            self.target.after(file, at, *op)?;
        }
        Ok(())
    }

    fn begin(&mut self, index: usize, ops: Entries) -> Result<()> {
        for (entry, (file, op)) in ops.iter().enumerate() {
            let at = self.region(index, entry);
            self.target.before(file, at, *op)?;
        }
        let started = Instant::now();
        let slot = &self.slots[index];
        let mut longest = 0;
        for (entry, (file, op)) in ops.iter().enumerate() {
            longest = longest.max(op.len);
            let staged = entry * self.stride;
            let memory = self.target.memory.address() + self.region(index, entry) as u64;
            // SAFETY: the slot is free (settled by the caller), has a page-aligned stride for each entry and a list
            // as long as the batch; the device ranges lie within our memory; all stay until the slot's event.
            unsafe {
                let host = slot.pinned.pointer().add(staged);
                if !self.write {
                    file.raw()?.read(host, op.len, op.offset)?;
                }
                if self.kernels {
                    let seen = slot.pinned.seen() + staged as u64;
                    let (src, dst) = if self.write { (memory, seen) } else { (seen, memory) };
                    let piece = CopyPiece { src, dst, len: op.len as u64 };
                    slot.list
                        .pointer()
                        .add(entry * size_of::<CopyPiece>())
                        .cast::<CopyPiece>()
                        .write_unaligned(piece);
                } else if self.write {
                    self.stream.copy_out(HostRange::new(host, op.len), memory)?;
                } else {
                    self.stream.copy_in(memory, HostRange::new(host, op.len))?;
                }
            }
        }
        if self.kernels {
            // SAFETY: the list was written above; what it names stays until the slot's event.
            unsafe { self.stream.scatter(slot.list.seen(), ops.len(), longest)? };
        }
        self.stream.record(&*slot.event)?;
        self.slots[index].busy = Some((started, ops));
        Ok(())
    }
}

impl Mover for PackMover {
    fn depth(&self) -> usize {
        self.slots.len() * self.depth
    }

    fn run(&mut self, feed: &mut IoFeed, meter: &mut WorkerMeter) -> Result<()> {
        let count = self.slots.len();
        let mut index = 0;
        while !meter.stopped() {
            self.settle(index, meter)?;
            let now = Instant::now();
            let ops: Vec<_> = std::iter::from_fn(|| feed.next(now)).take(self.depth).collect();
            if ops.is_empty() {
                break;
            }
            self.begin(index, ops)?;
            index = (index + 1) % count;
        }
        for step in 0..count {
            self.settle((index + step) % count, meter)?;
        }
        Ok(())
    }
}

impl Drop for PackMover {
    fn drop(&mut self) {
        // After an error copies may still be running: free nothing that they use.
        let _ = self.stream.synchronize(Wait::Block);
    }
}
