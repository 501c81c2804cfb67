//! Transfer types 0 to 7 ("Enabling GDS on a GPU host").

use crate::model::ChartKind;
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity::{CpuPerGb, CpuPercent, GbPerS, MeanUs, P50Us, P99Us, P999Us, ResidentMb};
use crate::work::{Io, Work};

const TYPES: [&str; 8] = [
    "type 0: storage → GPU",
    "type 1: storage → CPU",
    "type 2: storage → CPU → GPU",
    "type 3: storage → CPU → GPU, async",
    "type 4: storage → page cache → CPU → GPU",
    "type 5: storage → GPU, async",
    "type 6: storage → GPU, batch",
    "type 7: storage → GPU, batch on a stream",
];
/// GiB/s and mean µs with 4 threads.
const PUBLISHED: [(f64, f64); 8] = [
    (4.443, 879.0),
    (4.414, 868.0),
    (4.313, 905.0),
    (3.319, 1177.0),
    (1.771, 2207.0),
    (3.054, 1272.0),
    (4.423, 873.0),
    (2.437, 1601.0),
];
/// Type, GiB/s, mean µs, CPU and resident MB with 40 threads.
const FORTY: [(u8, f64, f64, f64, f64); 2] =
    [(0, 6.653, 5870.0, 18.8, 753.0), (2, 6.649, 5874.0, 63.7, 153.0)];
/// GB of a GiB.
const GIB: f64 = 1.073_741_824;

pub(crate) fn table(setup: &Setup) -> Planned {
    let mut plan = Planned::new(
        "gds-modes",
        "Transfer types 0 to 7: one file, sequential reads of 1 MiB",
        &["type", "threads"],
        &[GbPerS, MeanUs, P50Us, P99Us, P999Us, CpuPercent, ResidentMb],
    )
    .source(
        "A800 guide",
        "“Enabling GDS on a GPU host” guide, GDS 1.7",
        "8 × A800, local NVMe",
        &["With 40 threads types 0 and 2 move the same 6.65 GiB/s (7.14 GB/s) of a file of 100 GiB; the process takes 18.8 % CPU and 753 MB of memory in type 0, 63.7 % and 153 MB in type 2."],
    )
    .meaning("GB/s depend on the drives more than on the software. Compare the types with each other: type 0 against type 2, in throughput and in CPU, is the gain of the direct path. The source's type 0 is the drive's DMA into GPU memory through nvidia-fs; forebay's is the engine that the row names.")
    .ratio(0, TYPES[2], &[GbPerS, CpuPerGb]);
    plan.note(
        "Types 6 and 7 have one thread and a queue depth of 4, as in the guide, the others an I/O for each thread; latency is of a whole batch.",
    );
    plan.note(
        "Type 4 reads the file once: afterwards it is in the page cache. The others read it over and over.",
    );
    plan.note("Reads start with the file out of the page cache. CPU is of the process: 100 % is one CPU.");
    plan.note("The source's figures are converted from GiB/s. Its 40 threads read 100 GiB; the size of the file measured here is at the top.");
    let repeat = setup.scale.repeat;
    for (xfer, (name, (gib, us))) in TYPES.iter().zip(PUBLISHED).enumerate() {
        let mut bench = setup.bench(xfer as u8, Io::Read, 1 << 20, 4);
        if xfer == 4 {
            // A second pass would read the file from the page cache.
            bench.seconds = None;
        }
        let work = Work::bench(bench);
        plan.row(&[name, "4"], repeat, work).publish(&[(GbPerS, gib * GIB), (MeanUs, us)]);
    }
    for (xfer, gib, us, cpu, resident) in FORTY {
        let work = Work::bench(setup.bench(xfer, Io::Read, 1 << 20, 40));
        plan.row(&[TYPES[xfer as usize], "40"], repeat, work).publish(&[
            (GbPerS, gib * GIB),
            (MeanUs, us),
            (CpuPercent, cpu),
            (ResidentMb, resident),
        ]);
    }
    for threads in ["4", "40"] {
        let only = [(1, threads)];
        for (what, y) in [("Throughput", GbPerS), ("Mean latency", MeanUs)] {
            let title = format!("{what} by transfer type, {threads} threads");
            plan.chart(&title, ChartKind::Bars, (0, 1), &only, y);
        }
    }
    plan.chart("CPU of the process, 40 threads", ChartKind::Bars, (0, 1), &[(1, "40")], CpuPercent);
    plan
}
