//! IBM's poster: objects by S3 against POSIX on the same file system, by their size.

use crate::model::ChartKind;
use crate::objects::{ObjectIo, ObjectRow, ObjectWay, ObjectWork};
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity::{CpuPerGb, GbPerS, KiloIops, MeanUs, P50Us, P99Us};
use crate::work::{Program, Work, size};

const MIB: u64 = 1 << 20;
/// Bytes of an object, and what the poster has of this size: GB/s of reads and writes. Operations of 1 and 16 MB are converted.
const SIZES: [(u64, f64, f64); 5] = [
    (MIB, 23.5, 4.6),
    (16 * MIB, 272.0, 73.6),
    (64 * MIB, 308.0, 140.0),
    (128 * MIB, 308.0, 149.0),
    (1024 * MIB, 297.0, 153.0),
];
/// Its POSIX reads and writes, of 1 GB.
const POSIX: (f64, f64) = (320.0, 155.0);
const MANY: usize = 8;
const BASE: &str = "POSIX";

fn label(way: ObjectWay) -> &'static str {
    match way {
        ObjectWay::Posix => BASE,
        ObjectWay::Local => "S3, by its file (local)",
        ObjectWay::Http => "S3 by HTTP, same node",
    }
}

fn name(io: ObjectIo) -> &'static str {
    match io {
        ObjectIo::Warm => "read, warm",
        ObjectIo::Cold => "read, cold",
        ObjectIo::Write => "write, durable",
    }
}

pub(crate) fn table(setup: &Setup) -> Planned {
    let mut plan = Planned::new(
        "objects",
        "Objects of a gateway beside the same bytes as files",
        &["I/O", "object × threads", "way"],
        &[GbPerS, KiloIops, MeanUs, P50Us, P99Us, CpuPerGb],
    )
    .source(
        "IBM",
        "IBM, S3 over RDMA with GPUs (poster)",
        "Storage Scale System 6000, three nodes",
        &["S3 over RDMA reaches 93 % of POSIX reads and 99 % of POSIX writes (1 GB), and 7 % with objects of 1 MB: the requests cost, not the bytes."],
    )
    .called(label(ObjectWay::Local), "S3 over RDMA")
    .meaning("Objects are opened, moved whole and closed. Compare the ratio to POSIX, not GB/s: theirs is a cluster's. Their S3 gives bytes into GPU memory by RDMA; ours hands the file to a program on the gateway's node, or sends bytes by HTTP.")
    .ratio(2, BASE, &[GbPerS, CpuPerGb, P99Us]);
    let Some(pair) = setup.pairs.first() else { return plan };
    let (all, seconds) = ((setup.scale.size / 8).max(MIB), setup.scale.seconds);
    for io in ObjectIo::ALL {
        for (bytes, read, write) in SIZES.into_iter().filter(|(bytes, ..)| is_shown(setup, *bytes)) {
            for threads in [1, MANY] {
                // Eight of the large ones are the drive's rate once more.
                if threads > 1 && (bytes > 16 * MIB || setup.scale.pick(bytes > MIB, false, false)) {
                    continue;
                }
                let total = all.max(bytes);
                for way in ObjectWay::ALL {
                    let work = ObjectWork { way, io, size: bytes, threads, total, seconds };
                    let row = ObjectRow { target: pair.target.clone(), device: pair.device.clone(), work };
                    let labels = [name(io), &format!("{} × {threads}", size(bytes)), label(way)];
                    if let Some(why) = row.absent() {
                        plan.absent(&labels, &why);
                        continue;
                    }
                    let work = Work { run: Program::Objects(row), cpu: None, load: None, server: false };
                    let row = plan.row(&labels, setup.scale.repeat, work);
                    let (theirs, posix) =
                        if io == ObjectIo::Write { (write, POSIX.1) } else { (read, POSIX.0) };
                    match way {
                        ObjectWay::Local => {
                            row.publish(&[(GbPerS, theirs)]);
                            row.published_ratio.insert(GbPerS, theirs / posix);
                        }
                        ObjectWay::Posix if bytes == 1024 * MIB => row.publish(&[(GbPerS, posix)]),
                        _ => {}
                    }
                }
            }
        }
        let only = [(0, name(io))];
        // Theirs is a cluster's: a hundred times a node's.
        plan.chart(&format!("Throughput, {}", name(io)), ChartKind::Bars, (1, 2), &only, GbPerS).log = true;
        plan.chart(&format!("CPU for each GB, {}", name(io)), ChartKind::Bars, (1, 2), &only, CpuPerGb);
        plan.chart(&format!("p99, {}", name(io)), ChartKind::Bars, (1, 2), &only, P99Us).log = true;
    }
    plan.note("A row is one process, with a gateway in it: CPU is of both. Latency is of a whole object, from its opening to its end.");
    plan.note("Written are new objects and new files, both durable (fdatasync, the name, the directory) before the next.");
    plan.note(
        "IBM's ratio is to its POSIX of 1 GB, which is all that the poster has; its sizes are powers of ten.",
    );
    plan
}

/// The quick report has two sizes. Large objects need a large `--size`; those of 1 MiB are always there.
fn is_shown(setup: &Setup, bytes: u64) -> bool {
    setup.scale.pick(bytes <= 16 * MIB, bytes != 128 * MIB, true) && bytes <= (setup.scale.size / 2).max(MIB)
}
