//! The memory of a mover.

use std::sync::Arc;
use std::time::Duration;

use forebay_error::Result;
use forebay_gpu::{Context, Device, DeviceRange, Wait};

use super::mover::TransferWay;
use crate::files::open::OpenFile;
use crate::memory::DeviceMemory;
use crate::plan::IoOp;
use crate::verify::Verifier;
use crate::workload::job::{Job, Xfer};
use crate::workload::{Workload, WriteFill};

/// How long a device may take to scrub freed memory, where there is enough of it to matter.
const SCRUB: Duration = Duration::from_millis(100);
const MIN_SCRUBBED: usize = 256 << 20;

/// The memory of a mover with what fills and checks it.
pub(crate) struct WorkerMemory {
    pub(super) device: Arc<dyn Device>,
    pub(super) memory: DeviceMemory,
    verifier: Option<Verifier>,
    pub(super) verify: bool,
    pub(super) refill: Option<u64>,
}

impl WorkerMemory {
    pub(super) fn new(
        work: &Workload,
        job: &Job,
        device: &Arc<dyn Device>,
        way: TransferWay,
        len: usize,
    ) -> Result<Self> {
        let host = forebay_gpu::host::device();
        // Type 1 ends in host memory whatever the device is.
        let device = if way.xfer == Xfer::CpuOnly { &host } else { device };
        let kind = if device.info().is_host && !job.memory.is_host() {
            forebay_gpu::AllocationKind::Device
        } else {
            job.memory.kind()
        };
        let memory = DeviceMemory::new(device, kind, len.next_multiple_of(4096))?;
        let verifier = if way.verify || work.fill != WriteFill::Zero {
            Some(Verifier::new(device, memory.on_host())?)
        } else {
            None
        };
        let refill = (work.fill == WriteFill::RandomEach && way.write && !way.verify).then_some(work.seed);
        let mut target = Self { device: device.clone(), memory, verifier, verify: way.verify, refill };
        if way.write && !way.verify {
            target.initialise(work)?;
        } else if !target.memory.on_host() {
            target.clear()?;
        }
        Ok(target)
    }

    fn initialise(&mut self, work: &Workload) -> Result<()> {
        let (address, len) = (self.memory.address(), self.memory.len());
        if let Some(verifier) = &mut self.verifier {
            // SAFETY: the memory is ours and nothing uses it yet.
            return unsafe { verifier.fill(work.seed ^ address, address, len, 0) };
        }
        self.clear()
    }

    /// Zeroes the memory, and waits.
    fn clear(&mut self) -> Result<()> {
        let (address, len) = (self.memory.address(), self.memory.len());
        if self.memory.on_host() {
            // SAFETY: host memory, ours, `len` long, and nothing uses it yet.
            unsafe { std::ptr::write_bytes(address as *mut u8, 0, len) };
            return Ok(());
        }
        let stream = self.device.stream(Context::PRIMARY)?;
        // SAFETY: device memory, ours, `len` long, and nothing uses it yet.
        unsafe { stream.zero(DeviceRange::new(address, len)) }?;
        stream.synchronize(Wait::Block)?;
        // Wait: the device scrubs memory that the last pass freed, which slows copies (by a tenth, for 4 GiB on an
        // H200).
        if len >= MIN_SCRUBBED {
            std::thread::sleep(SCRUB);
        }
        Ok(())
    }

    /// Prepares `at..at+op.len` for being written to the file.
    pub(super) fn before(&mut self, file: &OpenFile, at: usize, op: IoOp) -> Result<()> {
        if !op.write {
            return Ok(());
        }
        let address = self.memory.address() + at as u64;
        match (&mut self.verifier, &mut self.refill) {
            // SAFETY: within our memory; movers call this while no transfer uses that part.
            (Some(verifier), _) if self.verify => unsafe {
                verifier.fill(file.key, address, op.len, op.offset)
            },
            (Some(verifier), Some(refill)) => {
                *refill = refill.wrapping_add(0x9E37_79B9);
                // SAFETY: as above.
                unsafe { verifier.fill(*refill, address, op.len, 0) }
            }
            _ => Ok(()),
        }
    }

    /// Checks `at..at+op.len` after it was read from the file.
    pub(super) fn after(&mut self, file: &OpenFile, at: usize, op: IoOp) -> Result<()> {
        match &mut self.verifier {
            Some(verifier) if self.verify && !op.write => {
                let address = self.memory.address() + at as u64;
                // SAFETY: within our memory; the transfer into that part is done.
                unsafe { verifier.check(file.key, address, op.len, op.offset) }.map_err(|error| {
                    match file.file.path() {
                        Some(path) => error.with("path", path.display()),
                        None => error,
                    }
                })
            }
            _ => Ok(()),
        }
    }
}
