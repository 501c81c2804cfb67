//! The tables that come with the command: each has the axes, columns and figures of a published one.

mod busy;
mod first_touch;
mod gds_modes;
mod micron;
mod monai;
mod nfs_rdma;
mod objects;
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
        Preset::Monai => vec![monai::table(setup)],
        Preset::Objects => vec![objects::table(setup)],
    };
    for one in &mut tables {
        if one.table.source.is_some() && preset != Preset::NfsRdma {
            one.note_lengths();
        }
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
        Program::Objects(row) => vec![&row.target],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Row;
    use crate::order::{Extent, PRESETS};
    use crate::plan::Scale;
    use crate::quantity::Quantity;
    use crate::work::{Bench, Cache, Job};

    fn target(path: &str, can_be_cold: bool) -> Target {
        let given = std::path::PathBuf::from(path);
        let file = given.join("file");
        Target { given, file, made: true, can_be_cold, nfs: None, controller: None }
    }

    /// Rows on tmpfs get a note.
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

    /// Of which nfs-rdma takes ten, since its rows are as long as those of the source. A few seconds more go to rows whose
    /// program is missing.
    #[test]
    fn a_full_report_takes_four_parts_of_eight_minutes() {
        assert!(takes(Extent::Full) < 1800.0);
        assert!(takes(Extent::Default) < 1800.0);
        assert!(takes(Extent::Quick) < 300.0);
    }

    /// All rows that run `forebay bench` in a directory.
    fn rows(preset: Preset, extent: Extent, cpus: usize, on_gpu: bool) -> Vec<(Row, Box<Bench>)> {
        let pairs = vec![Job { device: "0".to_owned(), target: target("/data", true) }];
        let setup = Setup { pairs, devices: 1, scale: Scale::of(extent, cpus), server: None, on_gpu };
        let mut planned = plan(preset, &setup);
        if !on_gpu {
            planned.iter_mut().for_each(Planned::leave_unjudged);
        }
        let rows = planned.into_iter().flat_map(|one| one.table.rows.into_iter().zip(one.works));
        let bench = |(row, work): (Row, Option<Work>)| match work?.run {
            Program::Bench(bench) => Some((row, bench)),
            Program::Peer(_) | Program::Objects(_) => None,
        };
        rows.filter_map(bench).collect()
    }

    /// Workers, depth, files and length of the rows are those of the sources, whatever the extent and the machine.
    #[test]
    fn rows_are_measured_like_those_of_their_sources() {
        for (extent, cpus) in [(Extent::Quick, 2), (Extent::Default, 16), (Extent::Full, 64)] {
            for (preset, workers) in [(Preset::Latency, 16), (Preset::Sizes, 16), (Preset::Sweep, 128)] {
                for (row, bench) in rows(preset, extent, cpus, true) {
                    let in_flight = bench.threads * bench.jobs.len();
                    assert_eq!(in_flight, workers, "{preset:?}: {}", row.command);
                }
            }
            for (row, bench) in rows(Preset::NfsRdma, extent, cpus, true) {
                assert_eq!((bench.each, bench.seconds), (Some(128 << 20), Some(10.0)));
                let files = " -D /data/forebay-report.files -d 0 -s 128M -x ";
                assert!(row.command.contains(files) && row.command.contains(" -T 10"), "{}", row.command);
            }
            for (row, bench) in rows(Preset::GdsModes, extent, cpus, true) {
                assert_eq!((bench.size, bench.threads.to_string()), (1 << 20, row.labels[1].clone()));
            }
        }
    }

    /// A host, a thin-provisioned or a compressing device may not store zeros.
    #[test]
    fn rows_that_write_leave_data() {
        let rows = PRESETS.iter().flat_map(|(preset, ..)| rows(*preset, Extent::Full, 16, true));
        let written: Vec<_> = rows.filter(|(_, bench)| bench.io.writes()).collect();
        assert!(!written.is_empty() && written.iter().all(|(row, _)| row.command.contains(" -R ")));
    }

    /// A warm file read by O_DIRECT would compare a drive with memory.
    #[test]
    fn warm_rows_are_of_the_page_cache() {
        for (row, bench) in rows(Preset::FirstTouch, Extent::Full, 16, true) {
            assert!(bench.cache == Cache::Cold || bench.xfer != 2, "{}", row.id);
        }
    }

    /// Types 0 and 2 differ by the copy to a GPU, 0 and 5 by its streams.
    #[test]
    fn without_a_gpu_types_are_not_judged_that_differ_by_what_it_does() {
        for (preset, ..) in PRESETS {
            assert!(rows(preset, Extent::Quick, 2, true).iter().all(|(row, _)| row.unjudged.is_none()));
        }
        let unjudged = |preset| {
            let rows = rows(preset, Extent::Quick, 2, false);
            rows.into_iter().filter(|(row, _)| row.unjudged.is_some()).map(|(_, bench)| bench.xfer)
        };
        assert_eq!(unjudged(Preset::GdsModes).collect::<Vec<_>>(), [0, 1, 3, 4, 5, 6, 7, 0]);
        assert!(
            unjudged(Preset::Sweep).all(|xfer| xfer == 2 || xfer == 5),
            "batches are judged beside type 0"
        );
        assert_eq!(
            unjudged(Preset::Latency).count(),
            rows(Preset::Latency, Extent::Quick, 2, false).len() / 2
        );
    }

    #[test]
    fn all_presets_have_one_unit() {
        for (preset, name, _) in PRESETS {
            let pairs = vec![Job { device: "0".to_owned(), target: target("/data", true) }];
            let scale = Scale::of(Extent::Quick, 16);
            let setup = Setup { pairs, devices: 1, scale, server: None, on_gpu: true };
            for one in plan(preset, &setup) {
                assert!(one.table.units().all(|unit| unit == Quantity::GbPerS), "{name}");
                assert_eq!(one.table.source.is_some(), name != "first-touch");
                assert!(one.table.source.is_none_or(|source| !source.short.is_empty()), "{name}");
            }
        }
    }
}
