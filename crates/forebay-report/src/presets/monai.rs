//! MONAI: an epoch over a cached data set, by what reads it.

use crate::model::ChartKind;
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity::{CpuPerGb, GbPerS, Seconds};
use crate::work::{Cache, Peer, Program, Work};

/// Who reads, and the script's name for it; the first is what the source compares with.
const READERS: [(&str, &str); 3] = [
    ("PersistentDataset", "monai-persistent"),
    ("GDSDataset of MONAI", "monai-gds"),
    ("GDSDataset of forebay", "monai-forebay"),
];
/// Total time of the source's training with PersistentDataset, divided by that with GDSDataset.
const THEIR_SPEEDUP: f64 = 1.1;

pub(crate) fn table(setup: &Setup) -> Planned {
    let mut plan = Planned::new(
        "monai",
        "MONAI: an epoch over a cached data set",
        &["page cache", "data set"],
        &[Seconds, GbPerS, CpuPerGb],
    )
    .source(
        "MONAI",
        "MONAI, GDSDataset in 3-D segmentation (BraTS), 300 epochs",
        "V100, one Gen3 NVMe",
        &["The whole training takes 1.1 times as long with PersistentDataset as with GDSDataset; a mean Dice of 0.75 comes after 28 049 s with the first, 18 159 s with the second (1.54 times)."],
    )
    .meaning("Theirs is a whole training, of which reading is a part; ours is the reading alone: an epoch over a filled cache, which is all that the data set changes. The ratio of a training lies between this one and 1. bench/time_to_dice.py in forebay's source trains to the same Dice.")
    .ratio(1, READERS[0].0, &[Seconds, CpuPerGb]);
    plan.note("8 cases of 160 × 160 × 160: an image of float32 and a label of uint8, 164 MB in all. What makes them is not timed.");
    for (state, cache) in [("cold", Cache::Cold), ("warm", Cache::Warm)] {
        for (label, name) in READERS {
            let labels = [state, label];
            let Some(target) = setup.pairs.first().map(|pair| &pair.target) else { continue };
            if !target.made {
                plan.absent(&labels, "the data set's cache is made where a directory is given");
                continue;
            }
            let mut file = target.clone();
            file.file.clone_from(&file.given);
            let device = setup.python_device();
            let peer = Peer { name: name.to_owned(), file, device, cache, load: 1 };
            let work = Work { run: Program::Peer(peer), cpu: None, load: None, server: false };
            let row = plan.row(&labels, setup.scale.repeat, work);
            if name != READERS[0].1 {
                row.published_ratio.insert(Seconds, 1.0 / THEIR_SPEEDUP);
            }
        }
    }
    plan.chart("Seconds of an epoch", ChartKind::Bars, (0, 1), &[], Seconds);
    plan
}
