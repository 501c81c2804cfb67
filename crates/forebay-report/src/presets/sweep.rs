//! FMS 2023: sizes by interface.

use crate::model::ChartKind;
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity::{CpuCores, CpuPerGb, GbPerS, MeanUs, P50Us, P99Us, P999Us};
use crate::work::{Io, Work, size};

const THREADS: usize = 128;
const BATCH_THREADS: usize = 8;
const BATCH_DEPTH: usize = 16;
/// The base of all ratios.
const SYNC: &str = "type 0 (GPUD)";
const INTERFACES: [(&str, u8); 4] =
    [(SYNC, 0), ("type 6 (GPUD_BATCH)", 6), ("type 5 (GPUD_ASYNC)", 5), ("type 2 (COMPAT)", 2)];
/// Below this size batches win, by the source.
const BREAK_EVEN: &str = "64K";

pub(crate) fn table(setup: &Setup) -> Planned {
    let mut plan = Planned::new(
        "sweep",
        "Sizes by interface: synchronous, batch, stream and compatibility mode",
        &["I/O", "size", "interface"],
        &[GbPerS, MeanUs, P50Us, P99Us, P999Us, CpuCores, CpuPerGb],
    )
    .source(
        "FMS 2023",
        "NVIDIA and Micron, FMS 2023, GDS 1.7",
        "DGX A100 (256 CPUs), 8 × NVMe",
        &[
            "Batches win below 64 KiB.",
            "Synchronous calls for single threads with more than 16 MiB, or many threads from 64 KiB on; batches for many small, scattered pieces; streams where the I/O depends on earlier work of the GPU.",
        ],
    )
    .meaning("The slides have curves, no figures: compare where they cross. A batch/sync ratio above 1 below 64 KiB is their finding. The source's GPUD is the drive's DMA into GPU memory; forebay's is the engine that the row names, and COMPAT here is type 2, O_DIRECT into pinned host memory, then a copy.")
    .ratio(2, SYNC, &[GbPerS, CpuPerGb]);
    plan.note(format!(
        "As in the source, {THREADS} I/Os are in flight: by {THREADS} threads, or for batches by {BATCH_THREADS} with a queue depth of {BATCH_DEPTH}, whose latency is of a whole batch."
    ));
    plan.note("Offsets are random; reads start with the file out of the page cache.");
    for io in [Io::RandRead, Io::RandWrite] {
        // Writes at every second size.
        let sizes =
            setup.scale.sizes().into_iter().filter(|bytes| !io.writes() || bytes.trailing_zeros() % 2 == 0);
        for bytes in sizes {
            for (name, xfer) in INTERFACES {
                let mut bench = setup.bench(xfer, io, bytes, THREADS);
                bench.seconds = Some(setup.scale.short);
                if xfer == 6 {
                    bench.threads = BATCH_DEPTH;
                    bench.jobs = bench.jobs.iter().cycle().take(BATCH_THREADS).cloned().collect();
                }
                plan.row(&[io.name(), &size(bytes), name], setup.scale.repeat, Work::bench(bench));
            }
        }
    }
    for io in [Io::RandRead, Io::RandWrite] {
        let only = [(0, io.name())];
        let name = io.name();
        plan.chart(&format!("Throughput, {name}"), ChartKind::Lines, (1, 2), &only, GbPerS);
        for (what, y) in [("Throughput", GbPerS), ("CPU for each GB", CpuPerGb)] {
            let title = format!("{what}, times that of synchronous calls, {name}");
            let chart = plan.chart(&title, ChartKind::Lines, (1, 2), &only, y);
            chart.over = Some(SYNC.to_owned());
            chart.mark = Some((BREAK_EVEN.to_owned(), "FMS 2023: batches win below".to_owned()));
        }
        plan.chart(&format!("CPU, {name}"), ChartKind::Lines, (1, 2), &only, CpuCores);
        let title = format!("CPU for each GB, {name}");
        // One I/O of 4 KiB costs a thousand times the CPU for each GB of one of 16 MiB.
        plan.chart(&title, ChartKind::Lines, (1, 2), &only, CpuPerGb).log = true;
    }
    plan
}
