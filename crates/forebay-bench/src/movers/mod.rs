//! Movers: one worker's way to move bytes. One file per way.

mod classic;
mod engine;
mod mapped;
mod mover;
mod pack;
mod pipeline;
mod worker_memory;

use std::sync::Arc;

use forebay_config::Objective;
use forebay_engine::Session;
use forebay_error::Result;
use forebay_gpu::{Context, Device, Wait};

pub(crate) use mover::{IoFeed, Mover, TransferWay};
use worker_memory::WorkerMemory;

use crate::raw;
use crate::workload::Workload;
use crate::workload::job::{Job, Xfer};

/// I/Os up to this size are pieces: bare mode moves them one by one, or packs them.
const PIECE: u64 = 64 << 10;
/// Slots that bare mode cuts a longer I/O into, and their size.
const RING: (usize, u64) = (4, 4 << 20);

/// Builds a worker's mover; called on the worker's thread.
pub(crate) fn build(
    work: &Workload,
    job: &Job,
    session: &Session,
    device: &Arc<dyn Device>,
    way: TransferWay,
) -> Result<Box<dyn Mover>> {
    let io = job.io.max.next_multiple_of(4096) as usize;
    let depth = work.depth(job);
    let target = |len: usize| WorkerMemory::new(work, job, device, way, len);
    let wait = if way.bare && work.config.objective == Objective::Latency { Wait::Spin } else { Wait::Block };
    if !way.raw() {
        return Ok(match way.xfer {
            Xfer::Gpud => Box::new(engine::BlockingMover::new(session.clone(), target(io)?)),
            xfer => {
                let entries = if xfer.is_batch() { depth } else { 1 };
                let on_stream = matches!(xfer, Xfer::Async | Xfer::BatchStream);
                let target = target(io * entries * work.batches)?;
                let stream = on_stream.then(|| target.device.stream(Context::PRIMARY)).transpose()?;
                Box::new(engine::SubmittingMover::new(
                    session.clone(),
                    target,
                    io,
                    entries,
                    work.batches,
                    stream,
                ))
            }
        });
    }
    if work.reads_raw_maps(way.xfer) {
        // One region where an I/O is long: two of a whole file may not fit.
        let slots = if io > raw::WINDOW { 1 } else { work.batches };
        return Ok(Box::new(mapped::MappedMover::new(target(io * slots)?, slots, io)?));
    }
    if way.xfer == Xfer::CpuOnly
        || ((device.info().is_host || job.memory.is_host()) && way.xfer.uses_engine())
    {
        return Ok(Box::new(classic::StraightMover::new(target(io)?)));
    }
    Ok(match way.xfer {
        Xfer::CpuGpu | Xfer::CpuCachedGpu => Box::new(classic::ClassicMover::new(target(io)?, io, wait)?),
        Xfer::CpuAsyncGpu => {
            let slots = work.batches;
            Box::new(pipeline::PipelineMover::new(target(io * slots)?, slots, io, io, way.write)?)
        }
        xfer if xfer.is_batch() && job.io.max <= PIECE => {
            let target = target(io * depth * work.batches)?;
            Box::new(pack::PackMover::new(target, io, depth, work.batches, way.write)?)
        }
        _ if job.io.max <= PIECE => Box::new(classic::ClassicMover::new(target(io)?, io, wait)?),
        _ => {
            let (chunks, size) = RING;
            let slot = io.min(size as usize);
            let entries = if way.xfer.is_batch() { depth } else { 1 };
            let (slots, len) =
                if io > slot { (chunks, io) } else { (entries * work.batches, io * entries * work.batches) };
            Box::new(pipeline::PipelineMover::new(target(len)?, slots, slot, io, way.write)?)
        }
    })
}
