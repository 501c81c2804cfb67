//! The tables that come with the command: each has the axes, columns and figures of a published one.

mod busy;
mod first_touch;
mod gds_modes;
mod micron;
mod nfs_rdma;
mod sweep;

use crate::order::Preset;
use crate::plan::{Planned, Setup};

/// The tables of a preset.
pub(crate) fn plan(preset: Preset, setup: &Setup) -> Vec<Planned> {
    let mut tables = match preset {
        Preset::GdsModes => vec![gds_modes::table(setup)],
        Preset::NfsRdma => vec![nfs_rdma::table(setup)],
        Preset::Busy => vec![busy::table(setup)],
        Preset::Sweep => vec![sweep::table(setup)],
        Preset::Workers => vec![micron::workers(setup)],
        Preset::Sizes => vec![micron::sizes(setup)],
        Preset::Latency => vec![micron::latency(setup)],
        Preset::FirstTouch => vec![first_touch::table(setup)],
    };
    for one in &mut tables {
        one.table.notes.extend(setup.note_of_host());
        let memory = setup.pairs.iter().find(|pair| !pair.target.can_be_cold);
        if let Some(pair) = memory {
            let path = pair.target.given.display();
            one.note(format!("{path} is memory by nature (tmpfs): its rows are never cold."));
        }
    }
    tables
}
