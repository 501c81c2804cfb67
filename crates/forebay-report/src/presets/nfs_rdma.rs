//! QSAN's application note on GDS over NFS/RDMA: tables 2-1 and 2-2.

use crate::child;
use crate::model::ChartKind;
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity::{
    self, CpuPerGb, GbPerS, MeanUs, P50Us, P99Us, P999Us, ServerPercent, SystemPercent, UserPercent,
};
use crate::work::{Io, Job, Work, size};

/// Bytes of each worker's file, and seconds of a row.
const THEIR_FILE: u64 = 128 << 20;
const THEIR_SECONDS: f64 = 10.0;
/// GB of a MiB.
const MIB: f64 = 0.001_048_576;
/// Label, bytes per I/O, threads of each mount, mounts.
const WORKS: [(&str, u64, usize, usize); 4] = [
    ("4K × 4", 4 << 10, 4, 1),
    ("64K × 4", 64 << 10, 4, 1),
    ("64K × 8", 64 << 10, 8, 1),
    ("64K × 4+4, two mounts", 64 << 10, 4, 2),
];
const TYPES: [&str; 3] = ["type 0: storage → GPU", "type 1: storage → CPU", "type 2: storage → CPU → GPU"];
/// MiB/s, µs, user, system and server CPU of the works: types 0 and 2.
type Figures = [[f64; 5]; 4];
const READS: [Figures; 2] = [
    [
        [130.0, 117.0, 5.0, 25.0, 8.0],
        [1060.0, 230.0, 3.0, 22.0, 5.0],
        [1067.0, 457.0, 3.0, 21.0, 5.0],
        [2121.0, 230.0, 10.0, 45.0, 12.0],
    ],
    [
        [135.0, 112.0, 25.0, 25.0, 8.0],
        [1058.0, 230.0, 15.0, 20.0, 8.0],
        [1068.0, 457.0, 13.0, 20.0, 10.0],
        [2110.0, 230.0, 39.0, 39.0, 12.0],
    ],
];
const WRITES: [Figures; 2] = [
    [
        [113.0, 137.0, 5.0, 20.0, 12.0],
        [938.0, 260.0, 3.0, 23.0, 7.0],
        [1048.0, 465.0, 3.0, 23.0, 10.0],
        [1850.0, 263.0, 7.0, 45.0, 20.0],
    ],
    [
        [112.0, 135.0, 20.0, 20.0, 12.0],
        [863.0, 282.0, 15.0, 17.0, 8.0],
        [1038.0, 470.0, 18.0, 20.0, 10.0],
        [1866.0, 260.0, 38.0, 40.0, 22.0],
    ],
];

/// What the source's tables have.
const THEIRS: [Quantity; 5] = [GbPerS, MeanUs, UserPercent, SystemPercent, ServerPercent];

pub(crate) fn table(setup: &Setup) -> Planned {
    let columns = [GbPerS, MeanUs, P50Us, P99Us, P999Us, UserPercent, SystemPercent, ServerPercent];
    let mut plan = Planned::new(
        "nfs-rdma",
        "Random I/O over NFS/RDMA, on one pinned CPU",
        &["I/O", "block × workers", "type"],
        &columns,
    )
    .source(
        "QSAN",
        "QSAN application note, June 2025: tables 2-1 and 2-2",
        "16 cores, RTX A2000, ConnectX-4 Lx RoCE; server XN5112, tmpfs export, NFS v4.0 over RDMA",
        &["A file of 128 MiB for each worker, 10 s a row. User CPU falls by 80 to 85 % from type 2 to type 0, at equal or better bandwidth."],
    )
    .meaning("With 64K the source's types reach about the same bandwidth, with two ports twice that. Compare CPU at equal bandwidth, type 0 against type 2. The source's type 0 is RDMA into GPU memory; forebay's is the engine that the row names: on NFS bytes are staged through host memory, or the server writes them into GPU memory (rdma).")
    .ratio(2, TYPES[2], &[GbPerS, UserPercent, CpuPerGb]);
    about(&mut plan, setup);
    let (cpu, paths) = (child::first_cpu(), paths(setup));
    let (each, seconds) = (each(setup, &paths), seconds(setup));
    for (io, published) in [(Io::RandRead, &READS), (Io::RandWrite, &WRITES)] {
        for (index, (name, bytes, threads, mounts)) in WORKS.into_iter().enumerate() {
            // The quick report keeps 8 workers: the source's greatest rates with one port are theirs.
            if setup.scale.pick(index == 1, false, false) {
                continue;
            }
            for (xfer, label) in TYPES.into_iter().enumerate() {
                let labels = [io.name(), name, label];
                let row = if mounts > paths.len() {
                    plan.absent(&labels, "one path is given: two mounts are two paths")
                } else {
                    let mut bench = setup.bench(xfer as u8, io, bytes, threads);
                    bench.jobs = paths[..mounts].to_vec();
                    (bench.each, bench.seconds) = (each, Some(seconds));
                    let mut work = Work::bench(bench);
                    (work.cpu, work.server) = (cpu, true);
                    plan.row(&labels, setup.scale.repeat, work)
                };
                if xfer != 1 {
                    let mut figures = published[xfer / 2][index];
                    figures[0] *= MIB;
                    row.publish(&THEIRS.into_iter().zip(figures).collect::<Vec<_>>());
                }
            }
        }
    }
    for io in [Io::RandRead, Io::RandWrite] {
        let only = [(0, io.name())];
        plan.chart(&format!("Throughput, {}", io.name()), ChartKind::Bars, (1, 2), &only, GbPerS);
        plan.chart(&format!("User CPU, {}", io.name()), ChartKind::Bars, (1, 2), &only, UserPercent);
    }
    plan
}

/// Bytes of each worker's own file: theirs, or as many as are asked for. A file or URL that is given is shared.
fn each(setup: &Setup, paths: &[Job]) -> Option<u64> {
    paths.iter().all(|path| path.target.made).then(|| THEIR_FILE.min(setup.scale.size))
}

/// How long a row runs: as long as theirs, or as asked for.
fn seconds(setup: &Setup) -> f64 {
    setup.scale.asked.unwrap_or(THEIR_SECONDS)
}

/// Each path once: a second GPU, or the same path again, is no second mount.
fn paths(setup: &Setup) -> Vec<Job> {
    let mut paths: Vec<Job> = Vec::new();
    for pair in &setup.pairs {
        if paths.iter().all(|known| known.target.file != pair.target.file) {
            paths.push(pair.clone());
        }
    }
    paths
}

fn about(plan: &mut Planned, setup: &Setup) {
    match setup.pairs.first().map(|pair| (&pair.target.nfs, pair.target.given.display())) {
        Some((Some(_), path)) if setup.pairs[0].target.is_url() => plan.note(format!(
            "{path} is a file of an NFS server, read without a mount by forebay's own client."
        )),
        Some((Some(proto), path)) => plan.note(format!("{path} is an NFS mount (proto={proto}).")),
        Some((None, path)) => {
            plan.note(format!("{path} is not an NFS mount: these rows do not measure NFS."));
        }
        None => {}
    }
    match child::first_cpu() {
        Some(cpu) => plan.note(format!("The process is pinned to CPU {cpu}; its CPU in the timed part is the kernel's count of its threads (getrusage): the sum is exact; the split into user and system is sampled, and 10 s are enough samples. QSAN's figure is of everything that ran on its pinned CPU, interrupts included.")),
        None => plan.note("The process could not be pinned: this machine does not show its CPUs. Its CPU time is below, under “How the bytes went”."),
    }
    match each(setup, &paths(setup)) {
        Some(THEIR_FILE) => plan.note("Each worker has its own file of 128 MiB, as QSAN's."),
        Some(bytes) => plan.note(format!("Unlike QSAN's: a file of {} for each worker (--size); QSAN's had 128M.", size(bytes))),
        None => plan.note("Unlike QSAN's: all workers share the file given; QSAN's had one of 128 MiB each. Give a directory to have one made for each worker."),
    }
    if seconds(setup) < THEIR_SECONDS {
        plan.note(format!(
            "Unlike QSAN's: rows run for {} s (--seconds); QSAN's ran for 10 s.",
            seconds(setup)
        ));
    }
    plan.note("Theirs are converted from MiB/s.");
    if setup.server.is_none() {
        plan.note("Server CPU is – because no server is named: --server ssh:HOST reads its /proc/stat.");
    } else {
        plan.note("Server CPU is of all its CPUs in the timed part: its load without the run (measured for a second before each run) is subtracted. These rows have no ceiling: measuring it would load the server, too.");
    }
    plan.note("Two mounts: the source's figure is the sum of both; latency and CPU are as printed.");
}
