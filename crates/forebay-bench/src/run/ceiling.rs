//! Ceilings: what raw calls reach, in the same process, with the same block, depth, direction and threads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{Session, Way};
use forebay_error::Result;
use forebay_gpu::{AllocationKind, Context, Device, HostRange, Wait};

use super::transfers;
use crate::files::open::ReadyJob;
use crate::memory::{DeviceMemory, PinnedMemory};
use crate::movers::TransferWay;
use crate::observer::{Muted, Observer};
use crate::plan::{PassLength, PassTime};
use crate::report::{Ceiling, CeilingStage, Pass};
use crate::workload::Workload;
use crate::workload::job::{IoSize, Job, MemoryType, Xfer};

/// Larger I/Os go to the engine's lanes.
const LANES_FROM: u64 = 1 << 20;
/// Threads of one measurement at most: further ones add none.
const MAX_THREADS: usize = 256;
/// A pass this much faster than its ceiling has a wrong ceiling.
const ABOVE: f64 = 1.05;

/// Measures the ceiling of a pass that is over: the least of the storage's and the copy's. `None` for host memory
/// of raw passes: they are their own ceiling. Where the pass was faster, the storage is measured again.
pub(crate) fn measure(
    work: &Workload,
    session: &Session,
    ready: &[ReadyJob<'_>],
    way: TransferWay,
    of: &Pass,
    first: bool,
    observer: &dyn Observer,
) -> Result<Option<Ceiling>> {
    let storage = |more: usize| match way.xfer {
        Xfer::CpuOnly => Ok(None),
        _ => storage(work, session, ready, way, of, (first, more), observer),
    };
    let copies = |more: usize| if more > 1 { Ok(None) } else { copies(ready, way, of) };
    let (mut stages, mut above) = (Vec::new(), Vec::new());
    for measure in [&storage as Measure<'_>, &copies] {
        let Some(mut stage) = measure(1)? else { continue };
        if of.gb_per_s > stage.gb_per_s * ABOVE {
            above.push(again(&mut stage, of.gb_per_s, &|| file_is(of, way), measure)?);
        }
        stages.push(stage);
    }
    if observer.is_stopped() {
        // It was cut short: no ceiling.
        return Ok(None);
    }
    let least = stages.iter().min_by(|a, b| a.gb_per_s.total_cmp(&b.gb_per_s)).cloned();
    Ok(least.map(|least| Ceiling {
        gb_per_s: least.gb_per_s,
        percent: if least.gb_per_s > 0.0 { of.gb_per_s / least.gb_per_s * 100.0 } else { 0.0 },
        method: least.method,
        above: (!above.is_empty()).then(|| above.join("; ")),
        stages,
    }))
}

/// Measures a stage by a multiple of the threads; `None` where there is none.
type Measure<'a> = &'a dyn Fn(usize) -> Result<Option<CeilingStage>>;

/// The copy's stage, where bytes end in a device.
fn copies(ready: &[ReadyJob<'_>], way: TransferWay, of: &Pass) -> Result<Option<CeilingStage>> {
    let Some(one) = ready.first() else { return Ok(None) };
    if one.device.info().is_host || one.job.memory.is_host() || way.xfer == Xfer::CpuOnly {
        return Ok(None);
    }
    // Several devices pull side by side; one is measured.
    let devices = ready.iter().map(|one| &one.job.device).collect::<BTreeSet<_>>().len() as f64;
    let (block, gb_per_s) = copy(&one.device, of.io_size.max, way.write)?;
    let times = if devices > 1.0 { format!(" × {devices} devices") } else { String::new() };
    Ok(Some(CeilingStage {
        method: format!("pinned copies of {} KiB back to back on a stream{times}", block >> 10),
        gb_per_s: gb_per_s * devices,
    }))
}

/// Measures a stage again that was slower than the pass: with the same threads, then with four times as many. The
/// greatest rate counts. Returns the reason.
fn again(
    stage: &mut CeilingStage,
    rate: f64,
    file_is: &dyn Fn() -> String,
    measure: Measure<'_>,
) -> Result<String> {
    let before = stage.gb_per_s;
    let begin = format!("{rate:.2} GB/s are above the {before:.2} of the first measurement");
    for (more, why) in
        [(1, "the same calls were slower then than the run"), (4, "too few raw calls were in flight")]
    {
        let Some(other) = measure(more)? else { break };
        if other.gb_per_s > stage.gb_per_s {
            *stage = other;
        }
        if rate <= stage.gb_per_s * ABOVE {
            return Ok(format!("{begin}: {why}, {:.2} when measured again", stage.gb_per_s));
        }
    }
    let again = format!("{begin}, and above {:.2} when measured again", stage.gb_per_s);
    Ok(format!("{again}: {}", file_is()))
}

/// Why a file is read faster than its storage.
fn file_is(of: &Pass, way: TransferWay) -> String {
    let empty: u64 = of.files.iter().filter_map(|file| file.empty).sum();
    let cached = of.moved()[Way::Cached] + of.moved()[Way::Mapped];
    let percent = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
    if empty > 0 {
        let all: u64 = of.files.iter().filter_map(|file| Some(file.before.as_ref()?.total)).sum();
        return format!("{:.0} % of the file hold no data", percent(empty, all));
    }
    if cached > 0 && !way.raw() {
        return format!("{:.0} % of the bytes came from the page cache", percent(cached, of.bytes));
    }
    "the storage has a cache of its own (a virtual machine's host, a controller) that the run met and raw calls did \
     not, or it changes from second to second"
        .to_owned()
}

/// The storage's: the same I/Os between file and host memory, by `more` times the threads. A cold pass may have filled
/// the page cache, so only O_DIRECT measures the storage; where the file has no O_DIRECT, there is no figure.
fn storage(
    work: &Workload,
    session: &Session,
    ready: &[ReadyJob<'_>],
    way: TransferWay,
    of: &Pass,
    (first, more): (bool, usize),
    observer: &dyn Observer,
) -> Result<Option<CeilingStage>> {
    // Raw writes would take the pattern away that the user asked for.
    if way.write && work.verify {
        return Ok(None);
    }
    let moved = of.moved();
    let direct = moved[Way::Direct] * 2 > moved.total();
    let cached = moved[Way::Cached] * 2 > moved.total();
    if !direct && !cached {
        return Ok(None);
    }
    let mut raw = work.clone();
    raw.verify = false;
    raw.bare = true;
    raw.mix = None;
    raw.rate = None;
    raw.config.engine = None;
    raw.config.cache =
        if direct { forebay_config::CachePolicy::Bypass } else { forebay_config::CachePolicy::Keep };
    let jobs = raw_jobs(session, ready, way, of.io_depth.unwrap_or(1), more)?;
    let ready_jobs: Vec<_> =
        ready.iter().zip(&jobs).map(|(one, job)| ReadyJob { job, ..one.clone() }).collect();
    let threads: usize = jobs.iter().map(|job| job.workers).sum();
    let way = TransferWay { xfer: Xfer::CpuOnly, bare: true, write: way.write, verify: false };
    let time = work.runtime.unwrap_or(Duration::from_secs(1)).min(Duration::from_secs(1));
    // A pass that allocated the file's blocks is measured against raw calls that allocate them too.
    let fresh = first && way.write && ready.iter().any(|one| one.fresh);
    if fresh {
        free_blocks(ready)?;
    }
    let length = if fresh { PassLength::Once } else { PassLength::For(PassTime::plain(time)) };
    let observer = Muted(observer);
    let run = transfers::run(&raw, session, &ready_jobs, way, work.access, &length, Some(&observer));
    let Ok((pass, _)) = run else {
        return Ok(None);
    };
    let call = raw_call(direct, way.write);
    Ok(Some(CeilingStage {
        method: format!(
            "{call}{} of {} KiB by {threads} thread(s) into host memory",
            if fresh { " to a new file" } else { "" },
            of.io_size.max >> 10
        ),
        gb_per_s: pass.gb_per_s,
    }))
}

/// The jobs with as many threads as raw calls need to keep the storage as busy as the pass did, `more` times.
fn raw_jobs(
    session: &Session,
    ready: &[ReadyJob<'_>],
    way: TransferWay,
    depth: usize,
    more: usize,
) -> Result<Vec<Job>> {
    // A queue depth of N is measured with N threads, up to twice the CPUs.
    let limit = forebay_config::allowed_cpus() * 2;
    ready
        .iter()
        .map(|one| {
            let mut job = one.job.clone();
            job.memory = MemoryType::Device;
            if one.files.len() > 1 {
                return Ok(job);
            }
            if depth > 1 {
                let threads = if way.xfer.is_batch() { 1 } else { job.workers };
                job.workers = (threads * depth).min(limit.max(threads));
            }
            let by_lanes = !way.bare && way.xfer.uses_engine() && !way.xfer.is_batch();
            if by_lanes && job.io.max > LANES_FROM {
                // Lanes share a large I/O, slot by slot: measure with as many threads.
                let report = session.report(&one.device)?;
                job.workers = job.workers.max(report.lanes);
                job.io = IoSize::fixed(job.io.max.min(report.slot_size as u64));
            }
            job.workers = (job.workers * more).min(MAX_THREADS.max(job.workers));
            Ok(job)
        })
        .collect()
}

/// Has the files give their blocks back.
fn free_blocks(ready: &[ReadyJob<'_>]) -> Result<()> {
    for one in ready {
        for open in &one.files {
            open.file.set_len(one.range.start)?;
            open.file.set_len(one.range.end)?;
        }
    }
    Ok(())
}

const fn raw_call(direct: bool, write: bool) -> &'static str {
    match (direct, write) {
        (true, false) => "O_DIRECT preads",
        (true, true) => "O_DIRECT pwrites",
        (false, false) => "page-cache preads",
        (false, true) => "page-cache pwrites",
    }
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
                    stream.copy_out(HostRange::new(pinned.pointer(), block), memory.address())?;
                } else {
                    stream.copy_in(memory.address(), HostRange::new(pinned.pointer(), block))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate above its ceiling: which stages are measured again, and the text. The rate is the same in all.
    #[test]
    fn a_ceiling_below_the_rate_is_measured_again() {
        let stage = |gb_per_s| CeilingStage { method: String::new(), gb_per_s };
        for (answers, ceiling, said) in [
            (
                [Some(2.4), None],
                2.4,
                "2.36 GB/s are above the 1.00 of the first measurement: the same calls were slower then than the run, 2.40 when measured again",
            ),
            ([Some(1.1), Some(2.3)], 2.3, "too few raw calls were in flight, 2.30 when measured again"),
            (
                [Some(1.2), Some(1.1)],
                1.2,
                "and above 1.20 when measured again: 40 % of the file hold no data",
            ),
            ([None, None], 1.0, "and above 1.00 when measured again: 40 % of the file"),
        ] {
            let mut least = stage(1.0);
            let measure = |more: usize| Ok(answers[usize::from(more > 1)].map(stage));
            let text =
                again(&mut least, 2.36, &|| "40 % of the file hold no data".to_owned(), &measure).unwrap();
            assert!((least.gb_per_s - ceiling).abs() < 1e-9 && text.contains(said), "{text}");
        }
    }
}
