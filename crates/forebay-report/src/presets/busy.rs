//! FMS 2023: many threads on an idle and on a busy system.

use crate::model::ChartKind;
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity::{CpuCores, GbPerS, MeanUs, P50Us, P99Us, P999Us};
use crate::work::{Io, Work, size};

/// Bytes per I/O, threads there; under load up to how many times the bandwidth, and how many times less response time.
const WORKS: [(u64, usize, f64, f64); 3] =
    [(4 << 10, 2048, 6.0, 3.8), (128 << 10, 1024, 1.5, 3.0), (1 << 20, 512, 1.4, 1.5)];
const FILLED: &str = "Memory is filled until 80 % of it is in use; at least 4 GiB stay free.";
/// CPUs of a DGX A100, hyperthreads counted.
const THEIR_CPUS: usize = 256;

pub(crate) fn table(setup: &Setup) -> Planned {
    let mut plan = Planned::new(
        "busy",
        "Random reads by many threads, idle and under load",
        &["block × threads", "machine", "path"],
        &[GbPerS, MeanUs, P50Us, P99Us, P999Us, CpuCores],
    )
    .source(
        "FMS 2023",
        "NVIDIA and Micron, FMS 2023, GDS 1.7",
        "DGX A100 (256 CPUs), 8 × NVMe, 5 GB file; stressapptest at 80 % of CPU and memory",
        &["Under load GDS has up to 6 times the bandwidth of the traditional path and a response time up to 3.8 times better at 4 KiB × 2048 threads, 1.5 and 3 at 128 KiB × 1024, 1.4 and 1.5 at 1 MiB × 512."],
    )
    .meaning("Only the ratio of the two paths on the same machine can be compared: how much the load slows the path through the CPU, and how much forebay's. Their direct path is the drive's DMA into GPU memory; forebay's is the engine that the row names. Traditional is type 2: O_DIRECT into pinned host memory, then a copy.")
    .called("type 0 (forebay)", "GDS")
    .ratio(2, "type 2 (traditional)", &[GbPerS, MeanUs]);
    plan.note(format!(
        "Unlike the source: threads are scaled to this machine, the source's (2048, 1024 and 512) × {} of {THEIR_CPUS} CPUs (a DGX A100's by its data sheet), at least 4 and at most the source's number. The source's file has 5 GB; the size of this one is at the top.",
        setup.scale.cpus
    ));
    plan.note("The load is shown as measured: busy CPU before a run and during it, and memory in use.");
    plan.note(setup.scale.pick(
        "Memory is copied beside busy runs, not filled: without --quick 80 % of it is in use.",
        FILLED,
        FILLED,
    ));
    for (machine, load) in [("idle", false), ("busy", true)] {
        for (bytes, theirs, bandwidth, response) in WORKS {
            let threads = (theirs * setup.scale.cpus / THEIR_CPUS).clamp(4, theirs);
            let name = format!("{} × {threads}", size(bytes));
            for (path, xfer) in [("type 2 (traditional)", 2), ("type 0 (forebay)", 0)] {
                let mut work = Work::bench(setup.bench(xfer, Io::RandRead, bytes, threads));
                work.load = Some(load);
                let row = plan.row(&[&name, machine, path], setup.scale.repeat, work);
                if load && xfer == 0 {
                    row.published_ratio.extend([(GbPerS, bandwidth), (MeanUs, 1.0 / response)]);
                }
            }
        }
    }
    for machine in ["idle", "busy"] {
        let only = [(1, machine)];
        plan.chart(&format!("Throughput, {machine}"), ChartKind::Bars, (0, 2), &only, GbPerS);
        plan.chart(&format!("Mean latency, {machine}"), ChartKind::Bars, (0, 2), &only, MeanUs);
    }
    plan
}
