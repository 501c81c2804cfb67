//! `forebay bench` on small files: every transfer type in every direction, verified, over host memory and over the
//! fake driver.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{Done, finish, forebay, names, run, run_fake, sample};

/// The result lines of stdout; anything else there is a failure.
fn lines(done: &Done) -> Vec<String> {
    done.out
        .lines()
        .filter(|line| *line != "Verifying data ")
        .map(|line| {
            assert!(line.starts_with("IoType: ") && line.ends_with(" secs"), "not gdsio's line: {line:?}");
            line.to_owned()
        })
        .collect()
}

fn every_type(run: fn(&Path, &str) -> Done, extra: &str) {
    let directory = tempfile::tempdir().unwrap();
    let words = [
        "GPUD",
        "CPUONLY",
        "CPU_GPU",
        "CPU_ASYNC_GPU",
        "CPU_CACHED_GPU",
        "ASYNC",
        "GPU_BATCH",
        "GPU_BATCH_STREAM",
    ];
    for (number, word) in words.into_iter().enumerate() {
        for (write, read) in [(1, 0), (3, 2)] {
            let common = format!("bench -f x{number}{write} -s 2M -i 64K -w 2 -x {number} -k 5 -V {extra}");
            let written = run(directory.path(), &format!("{common} -I {write}")).ok();
            assert_eq!(lines(&written).len(), 2, "{}", written.out);
            assert!(written.out.contains(&format!("XferType: {word} ")), "{}", written.out);
            let read = run(directory.path(), &format!("{common} -I {read}")).ok();
            assert_eq!(lines(&read).len(), 1, "{}", read.out);
            assert!(read.err.contains("verified"), "{}", read.err);
        }
    }
}

#[test]
fn every_type_round_trips_on_host_memory() {
    every_type(run, "");
}

#[test]
fn every_type_round_trips_on_the_fake_driver() {
    every_type(run_fake, "");
}

#[test]
fn bare_forms_round_trip_too() {
    every_type(run, "--bare");
    every_type(run_fake, "--bare");
}

#[test]
fn odd_sizes_and_offsets_round_trip() {
    let directory = tempfile::tempdir().unwrap();
    for (fake, args) in [
        (false, "-x 0 -s 1000001 -i 99999 -o 13 -w 3"),
        (true, "-x 0 -s 1000001 -i 99999 -o 13 -w 3"),
        (true, "-x 6 -s 300001 -i 4097 -o 7 -w 2 -B 5"),
        (true, "-x 0 -s 4M -i 4K:300K:7K -w 2"),
        (true, "-x 4 -s 777777 -i 10000 -w 2"),
        (true, "-x 0 -s 1M -i 100K -m 3"),
        (true, "-x 0 -s 1M -i 100K -m 1"),
    ] {
        let run = if fake { run_fake } else { run };
        let _ = std::fs::remove_file(directory.path().join("odd"));
        run(directory.path(), &format!("bench -f odd -I 1 -V {args}")).ok();
        run(directory.path(), &format!("bench -f odd -I 0 -V {args}")).ok();
    }
    // Any byte offset, checked against a file that is all pattern.
    run_fake(directory.path(), "bench -f u -I 1 -V -s 1M -i 64K").ok();
    run_fake(directory.path(), "bench -f u -I 2 -V -U -s 1M -i 4K -T 1").ok();
}

#[test]
fn a_flipped_byte_is_found_at_its_offset() {
    let directory = tempfile::tempdir().unwrap();
    for (run, name) in [(run as fn(&Path, &str) -> Done, "host"), (run_fake, "fake")] {
        run(directory.path(), &format!("bench -f {name} -I 1 -V -s 1M -i 64K -w 2")).ok();
        let file = std::fs::File::options().read(true).write(true).open(directory.path().join(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 700_001).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 700_001).unwrap();
        for xfer in 0..8 {
            run(directory.path(), &format!("bench -f {name} -I 0 -V -i 64K -w 2 -x {xfer}"))
                .fails(1, "offset=700001");
        }
        run(directory.path(), &format!("verify -f {name} --pattern 0")).fails(1, "offset=700001");
    }
}

#[test]
fn directories_get_a_file_per_thread() {
    let directory = tempfile::tempdir().unwrap();
    let done = run(directory.path(), "bench -D . -I 1 -s 1M -i 64K -w 3 -J").ok();
    assert_eq!(names(directory.path()), ["gdsio.0", "gdsio.1", "gdsio.2"]);
    assert!(done.out.contains("DataSetSize: 3072/3072(KiB)"), "{}", done.out);
    assert!(done.out.contains("job0: IoType: WRITE"), "{}", done.out);
}

#[test]
fn job_files_and_the_name_gdsio() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[global]\nxfer_type=0\nrw=write\nbs=64K\nsize=1MB\n[a]\nfilename=a\nnum_threads=2\n[b] # second\nfilename=b\n";
    std::fs::write(directory.path().join("w.gdsio"), text).unwrap();
    let link = directory.path().join("gdsio");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), &link).unwrap();
    let mut command = support::clean(std::process::Command::new(&link));
    command.current_dir(directory.path()).arg("w.gdsio");
    let done = finish(command).ok();
    assert_eq!(lines(&done).len(), 1);
    assert!(done.out.contains("Threads: 3 DataSetSize: 2048/2048(KiB)"), "{}", done.out);
}

#[test]
fn runs_that_end_by_time_and_mixed_batches() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let done = run(directory.path(), "bench -f x -x 6 -w 4 -B 8 -I 2 -i 4K -T 1 -M 70 -J").ok();
    assert!(done.out.contains("Threads: 1 IoDepth: 8 "), "{}", done.out);
    let done = run(directory.path(), "bench -f x -x 0 -I 2 -i 4K -T 1 --engine noop").ok();
    assert!(done.err.contains("noop"), "{}", done.err);
}

/// All paths of a JSON value; `true` for those under which something may be missing (an empty list, a null).
fn paths(value: &serde_json::Value, at: &str, found: &mut BTreeSet<String>, open: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                found.insert(path.clone());
                paths(value, &path, found, open);
            }
        }
        serde_json::Value::Array(list) => {
            let path = format!("{at}[]");
            if list.is_empty() {
                open.insert(path.clone());
            }
            for value in list {
                paths(value, &path, found, open);
            }
        }
        serde_json::Value::Null => {
            open.insert(at.to_owned());
        }
        _ => {}
    }
}

#[test]
fn the_json_has_the_documented_fields_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let (mut found, mut open) = (BTreeSet::new(), BTreeSet::new());
    for args in ["--compare 0,2 --repeat 2 --ceiling", "-x 6 -w 4"] {
        run_fake(directory.path(), &format!("bench -f x -i 64K --warm --json r.json {args}")).ok();
        let text = std::fs::read_to_string(directory.path().join("r.json")).unwrap();
        paths(&serde_json::from_str(&text).unwrap(), "", &mut found, &mut open);
    }
    let document = include_str!("../../../docs/reference/bench-json.md");
    let documented: BTreeSet<String> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(path, _)| path.to_owned()))
        .collect();
    let missing: Vec<_> = found.difference(&documented).collect();
    assert!(missing.is_empty(), "not in docs/reference/bench-json.md: {missing:?}");
    let gone: Vec<_> = documented
        .difference(&found)
        .filter(|path| !open.iter().any(|open| path.starts_with(open.as_str())))
        .collect();
    assert!(gone.is_empty(), "documented, but not in the report: {gone:?}");
}

#[test]
fn ceilings_and_medians_are_told() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 4 << 20);
    let done = run(directory.path(), "bench -f x -i 1M --warm --ceiling --compare 0,4 --repeat 3").ok();
    assert_eq!(lines(&done).len(), 2, "{}", done.out);
    assert!(
        done.err.contains("% reached") && done.err.contains("type 0 / type 4: bandwidth"),
        "{}",
        done.err
    );
    assert!(done.err.contains("no GPU in use"), "{}", done.err);
}

#[test]
fn a_dropped_cache_is_shown_or_refused() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    sample(directory.path(), "x", 4 << 20);
    let mut command = forebay();
    command.current_dir(directory.path()).args(["bench", "-f", "x", "--drop-cache"]);
    let done = finish(command);
    if done.code == Some(0) {
        assert!(done.err.contains("state       cold"), "{}", done.err);
    } else {
        done.fails(1, "page cache");
    }
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        sample(memory.path(), "x", 1 << 20);
        run(memory.path(), "bench -f x --drop-cache").fails(1, "page cache");
    }
}

#[test]
fn the_demo_shows_verifies_and_cleans_up() {
    for run in [run as fn(&Path, &str) -> Done, run_fake] {
        let directory = tempfile::tempdir().unwrap();
        let done = run(directory.path(), "demo --size 16M --dir .").ok();
        assert!(
            done.out.contains("verified") && done.out.contains("what would make it faster"),
            "{}",
            done.out
        );
        assert!(names(directory.path()).is_empty());
    }
}
