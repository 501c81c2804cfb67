//! Ceilings: what raw calls reach, in the same process, with the same block, depth, direction and threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::Session;
use forebay_error::Result;
use forebay_gpu::{AllocationKind, Context, Device, Wait};

use super::transfers;
use crate::files::open::ReadyJob;
use crate::memory::{DeviceMemory, PinnedMemory};
use crate::movers::TransferWay;
use crate::plan::PassLength;
use crate::report::{Ceiling, CeilingStage, Pass};
use crate::workload::Workload;
use crate::workload::job::{IoSize, Xfer};

/// I/Os larger than this go to the engine's lanes.
const LANES_FROM: u64 = 1 << 20;

/// Measures the ceiling of a pass that is over: the least of the storage's and the copy's. `None` for host memory
/// of raw passes: they are their own ceiling.
pub(crate) fn measure(
    work: &Workload,
    session: &Session,
    ready: &[ReadyJob<'_>],
    way: TransferWay,
    of: &Pass,
    first: bool,
) -> Result<Option<Ceiling>> {
    let mut stages = Vec::new();
    if way.xfer != Xfer::CpuOnly {
        stages.extend(storage(work, session, ready, way, of, first)?);
    }
    if let Some(one) = ready.first()
        && !one.device.info().is_host
        && !one.job.memory.is_host()
        && way.xfer != Xfer::CpuOnly
    {
        // Several devices pull side by side; one is measured.
        let devices =
            ready.iter().map(|one| &one.job.device).collect::<std::collections::BTreeSet<_>>().len() as f64;
        let (block, gb_per_s) = copy(&one.device, of.io_size.max, way.write)?;
        let times = if devices > 1.0 { format!(" × {devices} devices") } else { String::new() };
        stages.push(CeilingStage {
            method: format!("pinned copies of {} KiB back to back on a stream{times}", block >> 10),
            gb_per_s: gb_per_s * devices,
        });
    }
    let least = stages.iter().min_by(|a, b| a.gb_per_s.total_cmp(&b.gb_per_s)).cloned();
    Ok(least.map(|least| Ceiling {
        gb_per_s: least.gb_per_s,
        percent: if least.gb_per_s > 0.0 { of.gb_per_s / least.gb_per_s * 100.0 } else { 0.0 },
        method: least.method,
        stages,
    }))
}

/// The storage's: the same I/Os between file and host memory. What a cold pass read may be in the page cache by now,
/// so that only O_DIRECT tells; where the file has none, there is no figure.
fn storage(
    work: &Workload,
    session: &Session,
    ready: &[ReadyJob<'_>],
    way: TransferWay,
    of: &Pass,
    first: bool,
) -> Result<Option<CeilingStage>> {
    // Raw writes would take the pattern away that the user asked for.
    if way.write && work.verify {
        return Ok(None);
    }
    let moved: u64 = of.engines.iter().map(|one| one.bytes).sum();
    let by_direct: u64 = of.engines.iter().map(|one| one.direct).sum();
    let direct = by_direct * 2 > moved;
    let cached = of.engines.iter().map(|one| one.cached).sum::<u64>() * 2 > moved;
    if !direct && !cached {
        return Ok(None);
    }
    let mut raw = work.clone();
    raw.verify = false;
    raw.bare = true;
    raw.mix = None;
    raw.config.engine = None;
    raw.config.cache =
        if direct { forebay_config::CachePolicy::Bypass } else { forebay_config::CachePolicy::Keep };
    // A batch's entries are in flight together: as many threads stand for them, up to twice the CPUs.
    let limit = forebay_config::allowed_cpus() * 2;
    let mut jobs = Vec::new();
    for one in ready {
        let mut job = one.job.clone();
        job.memory = crate::workload::job::MemoryType::Device;
        if way.xfer.is_batch() && one.files.len() == 1 {
            job.workers = (work.depth(one.job) * work.batches).min(limit).max(1);
        }
        if !way.bare
            && way.xfer.uses_engine()
            && !way.xfer.is_batch()
            && job.io.max > LANES_FROM
            && one.files.len() == 1
        {
            // Lanes share a large I/O, slot by slot: as many threads stand for them.
            let report = session.report(&one.device)?;
            job.workers = job.workers.max(report.lanes);
            job.io = IoSize::fixed(job.io.max.min(report.slot_size as u64));
        }
        jobs.push(job);
    }
    let ready_jobs: Vec<_> =
        ready.iter().zip(&jobs).map(|(one, job)| ReadyJob { job, ..one.clone() }).collect();
    let threads: usize = jobs.iter().map(|job| job.workers).sum();
    let way = TransferWay { xfer: Xfer::CpuOnly, bare: true, write: way.write, verify: false };
    let time = work.runtime.unwrap_or(Duration::from_secs(1)).min(Duration::from_secs(1));
    // A pass that allocated the file's blocks is measured against raw calls that allocate them too.
    let fresh = first && way.write && ready.iter().any(|one| one.fresh);
    if fresh {
        for one in ready {
            for open in &one.files {
                open.file.set_len(one.range.start)?;
                open.file.set_len(one.range.end)?;
            }
        }
    }
    let length = if fresh { PassLength::Once } else { PassLength::For(time) };
    let Ok((pass, _)) = transfers::run(&raw, session, &ready_jobs, way, work.access, &length, None) else {
        return Ok(None);
    };
    let call = match (direct, way.write) {
        (true, false) => "O_DIRECT preads",
        (true, true) => "O_DIRECT pwrites",
        (false, false) => "page-cache preads",
        (false, true) => "page-cache pwrites",
    };
    Ok(Some(CeilingStage {
        method: format!(
            "{call}{} of {} KiB by {threads} thread(s) into host memory",
            if fresh { " to a new file" } else { "" },
            of.io_size.max >> 10
        ),
        gb_per_s: pass.gb_per_s,
    }))
}

/// The copy's: pinned memory and back-to-back copies for a fifth of a second.
fn copy(device: &Arc<dyn Device>, io: u64, out: bool) -> Result<(usize, f64)> {
    let block = if io < 1 << 20 { 16 << 20 } else { io.min(16 << 20) as usize };
    let pinned = PinnedMemory::new(device, block)?;
    let memory = DeviceMemory::new(device, AllocationKind::Device, block)?;
    let stream = device.stream(Context::PRIMARY)?;
    let round = (64 << 20) / block;
    let once = || -> Result<()> {
        for _ in 0..round {
            // SAFETY: both are ours, `block` long, and stay until the wait below.
            unsafe {
                if out {
                    stream.copy_out(pinned.pointer(), memory.address(), block)?;
                } else {
                    stream.copy_in(memory.address(), pinned.pointer(), block)?;
                }
            }
        }
        stream.synchronize(Wait::Block)
    };
    once()?;
    let started = Instant::now();
    let mut bytes = 0_u64;
    while started.elapsed() < Duration::from_millis(200) {
        once()?;
        bytes += (round * block) as u64;
    }
    Ok((block, bytes as f64 / 1e9 / started.elapsed().as_secs_f64()))
}
