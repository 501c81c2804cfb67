//! Loads and reads in fresh processes, by state of the page cache.

use crate::model::ChartKind;
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity::{CpuPerGb, GbPerS, Seconds};
use crate::targets::Target;
use crate::work::{Bench, Cache, Io, LOADERS, MODEL, Peer, Program, Work};

/// For cold files only: against reads from the page cache it would compare a drive with memory.
const DIRECT: &str = "O_DIRECT, then a copy";
/// Reads of the whole file.
const READS: [(&str, u8); 3] = [("forebay", 0), (DIRECT, 2), ("page cache, then a copy", 4)];
/// The state of the page cache, and which pass of a process counts.
const STATES: [(&str, Cache, usize); 3] =
    [("cold", Cache::Cold, 1), ("warm, first", Cache::Warm, 1), ("warm, third", Cache::Warm, 3)];

pub(crate) fn table(setup: &Setup) -> Planned {
    let mut plan = Planned::new(
        "first-touch",
        "First touch: reads and loads in fresh processes",
        &["what", "page cache, pass", "program"],
        &[GbPerS, Seconds, CpuPerGb],
    )
    .meaning("No document has this table; the peers are the installed libraries. A fresh process has no page registered with the GPU and no lane running: “first” is the cost of a program's first read, “third” that of later ones.")
    .ratio(2, READS[0].0, &[GbPerS, CpuPerGb]);
    plan.note("Reads: 8 threads, 4 MiB, once over the file. Loads: every tensor of a safetensors file in the memory of the device, imports and the start of CUDA not counted.");
    plan.note("forebay's reads use a buffer of 4 MiB for each thread, kvikio's one of the whole file (KVIKIO_NTHREADS=8, KVIKIO_TASK_SIZE=4194304). The clock of reads begins with the file open, that of loads before the library opens it; making the buffer of reads is not in it, the tensors' memory is.");
    plan.note("“Page cache” below is the state measured before the run.");
    plan.note("Loads are compared with forebay's load of the same state, reads with forebay's read.");
    for (state, cache, pass) in STATES {
        for (name, xfer) in READS.into_iter().filter(|(name, _)| cache == Cache::Cold || *name != DIRECT) {
            let mut bench = setup.bench(xfer, Io::Read, 4 << 20, 8);
            (bench.cache, bench.pass, bench.seconds) = (cache, pass, None);
            let work = Work::bench(Bench { more: vec![], ..bench });
            plan.row(&["read", state, name], setup.scale.repeat, work);
        }
        if let Some(pair) = setup.pairs.first() {
            let work = peer(setup, "kvikio", pair.target.clone(), cache, pass);
            plan.row(&["read", state, "kvikio"], setup.scale.repeat, work);
        }
    }
    loads(&mut plan, setup);
    for what in ["read", "load"] {
        plan.chart(&format!("Throughput, {what}"), ChartKind::Bars, (1, 2), &[(0, what)], GbPerS);
    }
    plan
}

fn loads(plan: &mut Planned, setup: &Setup) {
    let Some(target) = setup.pairs.first().map(|pair| &pair.target) else { return };
    let mut model = target.clone();
    model.file = target.given.join(MODEL);
    for (state, cache, load) in setup.scale.pick(&STATES[1..2], &STATES[..], &STATES[..]).iter().copied() {
        for name in LOADERS {
            let labels = ["load", state, name];
            if target.made {
                plan.row(&labels, setup.scale.repeat, peer(setup, name, model.clone(), cache, load));
            } else {
                plan.absent(&labels, "a model is made where a directory is given");
            }
        }
    }
}

/// A load or read by a library of Python.
fn peer(setup: &Setup, name: &str, file: Target, cache: Cache, load: usize) -> Work {
    let device = setup.python_device();
    let peer = Peer { name: name.to_owned(), file, device, cache, load };
    Work { run: Program::Peer(peer), cpu: None, load: None, server: false }
}
