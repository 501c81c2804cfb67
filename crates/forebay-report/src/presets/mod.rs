//! The tables that come with the command: each has the axes, columns and figures of a published one.

mod busy;
mod first_touch;
mod gds_modes;
mod micron;
mod nfs_rdma;
mod sweep;

use crate::order::Preset;
use crate::plan::{Planned, Setup};
use crate::targets::Target;
use crate::work::{Program, Work};

/// The tables of a preset.
pub(crate) fn plan(preset: Preset, setup: &Setup) -> Vec<Planned> {
    let mut tables = match preset {
        Preset::GdsModes => vec![gds_modes::table(setup)],
        Preset::NfsRdma => vec![nfs_rdma::table(setup)],
        Preset::Busy => vec![busy::table(setup)],
        Preset::Sweep => vec![sweep::table(setup)],
        Preset::Workers => vec![micron::planned(micron::workers, setup)],
        Preset::Sizes => vec![micron::planned(micron::sizes, setup)],
        Preset::Latency => vec![micron::planned(micron::latency, setup)],
        Preset::FirstTouch => vec![first_touch::table(setup)],
    };
    for one in &mut tables {
        one.table.notes.extend(setup.note_of_host());
        let memory = one.works.iter().flatten().flat_map(targets).find(|target| !target.can_be_cold);
        if let Some(path) = memory.map(|target| target.given.display().to_string()) {
            one.note(format!("{path} is memory by nature (tmpfs): its rows are never cold."));
        }
    }
    tables
}

/// The files of a row.
fn targets(work: &Work) -> Vec<&Target> {
    match &work.run {
        Program::Bench(bench) => bench.jobs.iter().map(|job| &job.target).collect(),
        Program::Peer(peer) => vec![&peer.file],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Extent, PRESETS};
    use crate::plan::Scale;
    use crate::work::Job;

    fn target(path: &str, can_be_cold: bool) -> Target {
        let given = std::path::PathBuf::from(path);
        let file = given.join("file");
        Target { given, file, made: true, can_be_cold, nfs: None, controller: None }
    }

    /// A path on tmpfs is told where rows are on it.
    #[test]
    fn memory_is_told_where_it_is_measured() {
        let job = |path, can_be_cold| Job { device: "0".to_owned(), target: target(path, can_be_cold) };
        let setup = Setup {
            pairs: vec![job("/data", true), job("/memory", false)],
            devices: 1,
            scale: Scale::of(Extent::Full, 16),
            server: None,
            on_gpu: true,
        };
        for (preset, name, _) in PRESETS {
            let tables = plan(preset, &setup);
            let told = tables.iter().flat_map(|one| &one.table.notes).any(|note| note.contains("never cold"));
            assert_eq!(told, preset == Preset::NfsRdma, "{name}");
        }
    }

    /// Two GPUs on one path are not two mounts.
    #[test]
    fn a_mount_is_a_path() {
        let job = |device: &str, path| Job { device: device.to_owned(), target: target(path, true) };
        for (pairs, wanted) in [
            (vec![job("0", "/a"), job("1", "/a")], 0),
            (vec![job("0", "/a"), job("0", "/b")], 6),
            (vec![job("0", "/a"), job("1", "/a"), job("0", "/b")], 6),
        ] {
            let scale = Scale::of(Extent::Full, 16);
            let setup = Setup { pairs, devices: 1, scale, server: None, on_gpu: true };
            let two = plan(Preset::NfsRdma, &setup).remove(0).works.into_iter().flatten();
            let two = two.filter(|work| targets(work).len() == 2).inspect(|work| {
                assert_eq!(targets(work)[1].given, std::path::Path::new("/b"));
            });
            assert_eq!(two.count(), wanted);
        }
    }

    /// Seconds that all tables take, about, on a machine with one GPU, 16 CPUs and a directory; loads by two libraries.
    fn takes(extent: Extent) -> f64 {
        let target = target("/data", true);
        let scale = Scale::of(extent, 16);
        let setup = Setup {
            pairs: vec![Job { device: "0".to_owned(), target }],
            devices: 1,
            scale,
            server: None,
            on_gpu: true,
        };
        let mut all = 0.0;
        for (preset, name, _) in PRESETS {
            for Planned { table, works } in plan(preset, &setup) {
                let mut sum = 0.0;
                for (row, work) in table.rows.iter().zip(&works) {
                    let Some(work) = work else { continue };
                    assert!(extent == Extent::Quick || row.wanted >= 3, "{}", row.id);
                    let is_here = !matches!(&work.run, Program::Peer(peer) if !["forebay", "safetensors"].contains(&peer.name.as_str()));
                    let runs = (0..row.wanted).map(|run| work.takes(&setup.scale, row.measures_ceiling(run)));
                    sum += if is_here { runs.sum() } else { 0.5 };
                }
                println!("{name}: {} rows, {sum:.0} s", table.rows.len());
                all += sum;
            }
        }
        println!("{all:.0}");
        all
    }

    #[test]
    fn a_full_report_takes_two_parts_of_eight_minutes() {
        assert!(takes(Extent::Full) < 950.0);
        assert!(takes(Extent::Default) < 950.0);
        assert!(takes(Extent::Quick) < 150.0);
    }
}
