//! Micron, July 2020: figures 3 to 5, for one GPU–drive pair or several.

use crate::model::ChartKind;
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity::{self, CpuCores, CpuPerGb, GbPerS, KiloIops, MeanUs, P50Us, P99Us, P999Us};
use crate::work::{Io, Job, Work, size};

const SHORT: &str = "Micron";
const NAME: &str = "Micron, July 2020";
const HARDWARE: &str = "8 × V100, 8 × 9300 Pro NVMe, one drive per GPU";
const MEANING: &str = "The source has eight pairs of GPU and drive, and the drive's DMA into GPU memory; here it is the pairs given, and the engine that the row names. Compare the shape: where a curve bends, and what CPU it takes. Legacy is type 2: O_DIRECT into pinned host memory, then a copy.";
const PATHS: [(&str, u8); 2] = [("type 0 (forebay)", 0), ("type 2 (legacy)", 2)];

/// GPU–drive pairs of the source, whose figures are of all pairs together.
const THEIR_PAIRS: f64 = 8.0;

/// One for each GPU named, as in the source: a further path is the second mount of other tables.
fn pairs(setup: &Setup) -> &[Job] {
    &setup.pairs[..setup.pairs.len().min(setup.devices)]
}

/// Sets of pairs that run at the same time, each with a name: each pair, then all.
fn groups(setup: &Setup) -> Vec<(String, Vec<Job>)> {
    let pairs = pairs(setup);
    let mut groups: Vec<_> = pairs.iter().map(|pair| (pair.name(), vec![pair.clone()])).collect();
    if pairs.len() > 1 {
        groups.push(("all at once".to_owned(), pairs.to_vec()));
    }
    groups
}

/// One of the presets below, with a note of the paths that have no GPU of their own.
pub(crate) fn planned(preset: fn(&Setup) -> Planned, setup: &Setup) -> Planned {
    let mut plan = preset(setup);
    let left = &setup.pairs[pairs(setup).len()..];
    if !left.is_empty() {
        let paths: Vec<_> = left.iter().map(|pair| pair.target.given.display().to_string()).collect();
        let devices: Vec<_> = setup.pairs.iter().map(|pair| pair.device.as_str()).collect();
        plan.note(format!(
            "{} has no row: a pair is a GPU and a path, and fewer GPUs are named than paths. -d {} makes a pair of each path.",
            paths.join(", "),
            devices.join(",")
        ));
    }
    plan
}

fn plan(
    id: &str,
    title: &str,
    axis: &str,
    columns: &[Quantity],
    claims: &[&str],
    ratio: &[Quantity],
) -> Planned {
    Planned::new(id, title, &["pair", axis, "path"], columns)
        .source(SHORT, NAME, HARDWARE, claims)
        .called(PATHS[0].0, "GDS")
        .called(PATHS[1].0, "legacy")
        .meaning(MEANING)
        .ratio(2, PATHS[1].0, ratio)
}

/// A chart for each pair and for all at once.
fn charts(plan: &mut Planned, setup: &Setup, title: &str, y: Quantity) {
    let groups = groups(setup);
    for (pair, _) in &groups {
        let title = if groups.len() > 1 { format!("{title}: {pair}") } else { title.to_owned() };
        plan.chart(&title, ChartKind::Lines, (1, 2), &[(0, pair)], y);
    }
}

pub(crate) fn workers(setup: &Setup) -> Planned {
    let mut plan = plan(
        "workers",
        "Random reads of 4 KiB by workers",
        "workers",
        &[GbPerS, KiloIops, MeanUs, P50Us, P99Us, P999Us, CpuCores],
        &[
            "Eight pairs together: GDS peaks at 8.8 GB/s with 64 workers per pair on less than 6 CPU cores; the legacy path at 2.24 GB/s with 12 workers, and falls after; with 96 it takes 52 cores.",
        ],
        &[GbPerS, CpuPerGb],
    );
    let counts = setup.scale.pick(
        // The peaks of both paths, and where the legacy path takes most CPU.
        vec![1, 4, 12, 64, 96],
        vec![1, 4, 12, 16, 64, 96, 128],
        vec![1, 2, 4, 8, 12, 16, 32, 64, 96, 128],
    );
    for (pair, jobs) in groups(setup) {
        for count in &counts {
            for (path, xfer) in PATHS {
                let mut bench = setup.bench(xfer, Io::RandRead, 4 << 10, *count);
                bench.jobs.clone_from(&jobs);
                let row =
                    plan.row(&[&pair, &count.to_string(), path], setup.scale.repeat, Work::bench(bench));
                let part = jobs.len() as f64 / THEIR_PAIRS;
                match (xfer, count) {
                    (0, 64) => {
                        row.publish(&[(GbPerS, 8.8 * part), (CpuCores, 6.0 * part)]);
                        row.at_most.push(CpuCores);
                    }
                    (2, 12) => row.publish(&[(GbPerS, 2.24 * part)]),
                    (2, 96) => row.publish(&[(CpuCores, 52.0 * part)]),
                    _ => {}
                }
            }
        }
    }
    plan.note("Their 8.8 and 2.24 GB/s, 52 and “less than 6” cores are of eight pairs together, each with as many workers: beside a row stands the part of as many pairs as it has, an eighth for one.");
    charts(&mut plan, setup, "Throughput by workers, 4 KiB", GbPerS);
    charts(&mut plan, setup, "CPU by workers, 4 KiB", CpuCores);
    plan
}

/// Workers of each pair in figures 4 and 5.
const WORKERS: usize = 16;

/// Figure 4: throughput and CPU.
pub(crate) fn sizes(setup: &Setup) -> Planned {
    let mut plan = plan(
        "sizes",
        "Random reads of 16 workers by size",
        "size",
        &[GbPerS, MeanUs, P50Us, P99Us, P999Us, CpuCores],
        &["Throughput is equal at large sizes; the figure has no numbers."],
        &[GbPerS, CpuPerGb],
    );
    by_size(&mut plan, setup, &with_published(setup.scale.sizes()));
    charts(&mut plan, setup, "Throughput by size, 16 workers", GbPerS);
    charts(&mut plan, setup, "CPU by size, 16 workers", CpuCores);
    plan
}

/// Figure 5: latency and throughput, of the same workers.
pub(crate) fn latency(setup: &Setup) -> Planned {
    let mut plan = plan(
        "latency",
        "Latency and throughput of random reads of 16 workers by size",
        "size",
        &[GbPerS, MeanUs, P50Us, P99Us, P999Us, CpuCores],
        &["16 workers for each pair. GDS: 116 µs at 4 KiB, 203 µs at 32 KiB."],
        &[MeanUs],
    );
    by_size(&mut plan, setup, &with_published(setup.scale.sizes()));
    charts(&mut plan, setup, "Mean latency by size, 16 workers", MeanUs);
    // Linear, latencies of small sizes would be one line at the bottom.
    plan.table.charts.iter_mut().for_each(|chart| chart.log = true);
    charts(&mut plan, setup, "Throughput beside it, 16 workers", GbPerS);
    plan
}

/// With the sizes whose figures are published.
fn with_published(mut sizes: Vec<u64>) -> Vec<u64> {
    sizes.extend([4 << 10, 32 << 10]);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A row for each pair, size and path, beside the latencies that are published.
fn by_size(plan: &mut Planned, setup: &Setup, sizes: &[u64]) {
    for (pair, jobs) in groups(setup) {
        for bytes in sizes.iter().copied() {
            for (path, xfer) in PATHS {
                let mut bench = setup.bench(xfer, Io::RandRead, bytes, WORKERS);
                (bench.jobs, bench.seconds) = (jobs.clone(), Some(setup.scale.short));
                let row = plan.row(&[&pair, &size(bytes), path], setup.scale.repeat, Work::bench(bench));
                match (xfer, bytes) {
                    (0, 4096) => row.publish(&[(MeanUs, 116.0)]),
                    (0, 32768) => row.publish(&[(MeanUs, 203.0)]),
                    _ => {}
                }
            }
        }
    }
}
