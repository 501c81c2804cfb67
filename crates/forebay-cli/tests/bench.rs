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

/// The same command under NVIDIA's name.
fn as_gdsio(directory: &Path, args: &str) -> Done {
    as_gdsio_with(directory, args, &[])
}

/// The same with variables.
fn as_gdsio_with(directory: &Path, args: &str, variables: &[(&str, &str)]) -> Done {
    let link = directory.join("gdsio");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), &link).unwrap();
    let mut command = support::clean(std::process::Command::new(&link));
    command.current_dir(directory).args(args.split_whitespace()).envs(variables.iter().copied());
    let done = finish(command);
    std::fs::remove_file(link).unwrap();
    done
}

#[test]
fn data_of_others_are_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let theirs = b"a letter\n".repeat(100_000);
    std::fs::write(path("x"), &theirs).unwrap();
    std::fs::write(path("gdsio.1"), &theirs).unwrap();
    std::fs::write(path("job"), "[global]\nrw=write\nbs=64K\nsize=2M\n[a]\nfilename=x\n").unwrap();
    for args in [
        "-f x -I 1 -s 2M",
        "-f x -I 1 -s 64K -i 64K -V",
        "-f x -I 3 -s 2M -i 4K -T 1",
        "-f x -x 6 -w 4 -i 4K -M 50 -s 64K",
        "-f x -I 1 -s 2M --engine noop",
        "-f new -f x -I 1 -s 2M",
        "-D . -w 2 -I 1 -s 1M",
        "job",
    ] {
        run(directory.path(), &format!("bench {args}")).fails(1, "no run has written");
        assert_eq!(names(directory.path()), ["gdsio.1", "job", "x"], "{args}");
        assert!(std::fs::read(path("x")).unwrap() == theirs, "{args}");
        assert!(std::fs::read(path("gdsio.1")).unwrap() == theirs, "{args}");
    }
    run(directory.path(), "bench -f x -I 0").ok();
    run(directory.path(), "bench job --overwrite").ok();
    assert_eq!(std::fs::read(path("x")).unwrap(), vec![0; 2 << 20]);
    // As gdsio it writes, and says so in one line.
    std::fs::write(path("x"), &theirs).unwrap();
    let done = as_gdsio(directory.path(), "-D . -w 2 -I 1 -s 1M -i 64K").ok();
    assert_eq!(done.err.matches("held data that no run had written").count(), 1, "{}", done.err);
    assert!(done.err.contains("note: ./gdsio.1 held"), "{}", done.err);
    assert_eq!(std::fs::read(path("gdsio.1")).unwrap().len(), 1 << 20);
}

#[test]
fn what_runs_have_written_may_be_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("x"), vec![0; 3_000_000]).unwrap();
    for args in [
        "-I 1 -V -k 7 -s 1000001 -i 99999",
        "-I 1 -V -k 8 -s 1M -i 64K",
        "-I 1 -R -s 3000000 -i 77777 -w 3",
        "-I 3 -R -U -s 2M -i 4097 -T 1",
        "-I 3 -F -s 2M -i 4K -T 1 -w 2",
        "-I 1 -V -s 2M -i 1M",
        "-I 1 -s 2M -i 1M",
    ] {
        let done = run(directory.path(), &format!("bench -f x {args}")).ok();
        assert!(!done.err.contains("no run had written"), "{}", done.err);
    }
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

/// Each batch of a stream takes some 50 ms, and 64 are in flight when the time is over.
#[test]
fn a_run_by_time_that_takes_longer_says_why() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let note = |args: &str| {
        let mut command = forebay();
        command.current_dir(directory.path()).env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap());
        command.env("FAKE_CUDA_DELAY_US", "100000");
        command.args(format!("bench -f x -x 7 -I 2 -i 16K {args}").split_whitespace());
        finish(command).ok().err.contains(": what was in flight at its end was waited for")
    };
    assert!(note("-T 0.1 --batches 64"));
    // Said from 4 s on: a busy machine's delays are shorter.
    assert!(!note("-T 2"));
}

/// Each thread has a stream: on one for all, their transfers would run one after the other. Each transfer waits 50 ms on its stream
/// and takes hardly any CPU, so that the counts are those of a busy machine too.
#[test]
fn threads_of_stream_ordered_types_do_not_wait_for_each_other() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    let count = |xfer: u8, threads: &str| {
        let mut command = forebay();
        command.current_dir(directory.path()).env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap());
        command.env("FAKE_CUDA_DELAY_US", "100000");
        command.args(format!("bench -f x -x {xfer} -I 2 -i 16K -T 1 {threads}").split_whitespace());
        let done = finish(command).ok();
        let after = done.out.split("ops: ").nth(1).unwrap();
        after.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let (alone, eight) = (count(5, "-w 1"), count(5, "-w 8"));
    assert!(eight > 2 * alone, "{alone} and {eight} transfers in a second");
    let (alone, four) = (count(7, "-w 2"), count(7, "-w 2 -f x -f x -f x"));
    assert!(2 * four > 3 * alone, "{alone} and {four} transfers in a second");
}

/// By Little's law: what was in flight is rate × latency.
#[test]
fn no_more_is_in_flight_than_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    for (args, asked, word) in [
        ("-x 3 -w 2", 2, None),
        ("-x 5 -w 2", 2, None),
        ("-x 6 -w 4", 4, Some(4)),
        ("-x 7 -w 4", 4, Some(4)),
        ("-x 7 -w 2 -B 8", 8, Some(8)),
        ("-x 0 -w 2 --bare -i 128K", 2, None),
        ("-x 6 -w 4 --bare -i 128K", 4, Some(4)),
        ("-x 5 -w 1 --batches 3", 3, Some(3)),
        ("-x 3 -w 1 --batches 3", 3, Some(3)),
        ("-x 6 -w 4 --batches 2", 8, Some(8)),
    ] {
        let done = run_fake(directory.path(), &format!("bench -f x -I 2 -T 0.2 --json r.json {args}")).ok();
        let depth = word.map_or("Threads: ".to_owned(), |word| format!(" IoDepth: {word} "));
        let is_said = done.out.contains(&depth) && (word.is_some() || !done.out.contains("IoDepth"));
        assert!(is_said, "{args}: {}", done.out);
        let text = std::fs::read(directory.path().join("r.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let pass = &report["passes"][0];
        let of = |name: &str| pass[name].as_f64().unwrap();
        let in_flight = of("ops") * pass["latency_us"]["mean"].as_f64().unwrap() / 1e6 / of("seconds");
        assert!(in_flight <= f64::from(asked) * 1.02, "{args}: {in_flight:.2} in flight");
    }
}

/// The report of `bench ARGS --json` on the fake driver.
fn report(directory: &Path, args: &str) -> serde_json::Value {
    run_fake(directory, &format!("bench {args} --json report.json")).ok();
    serde_json::from_str(&std::fs::read_to_string(directory.join("report.json")).unwrap()).unwrap()
}

/// A directory whose file `x` has the pattern, is in the page cache and may be pinned.
fn rested(len: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    run_fake(directory.path(), &format!("bench -f x -I 1 -V -s {len} -i 1M -O 1")).ok();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    directory
}

/// The bytes that an engine moved in a pass, and of them those that were read in place.
fn moved(pass: &serde_json::Value, engine: &str) -> (u64, u64) {
    let all = pass["engines"].as_array().unwrap();
    let one = all.iter().find(|one| one["engine"] == engine);
    one.map_or((0, 0), |one| (one["bytes"].as_u64().unwrap(), one["mapped"].as_u64().unwrap()))
}

#[test]
fn later_passes_read_pinned_pages_and_trim_makes_each_the_first() {
    let directory = rested("24M");
    let len = 24 << 20;
    let all = report(directory.path(), "-f x -i 24M --repeat 3 -V");
    let pinned = |pass: &serde_json::Value, when: &str| pass[format!("pinned_{when}")].as_u64().unwrap();
    let passes = all["passes"].as_array().unwrap();
    assert_eq!((pinned(&passes[0], "before"), pinned(&passes[0], "after")), (0, len), "{all}");
    assert_eq!(pinned(&passes[2], "before"), len);
    assert_eq!(moved(&passes[2], "mapped"), (len, len), "{}", passes[2]["engines"]);
    let all = report(directory.path(), "-f x -i 24M --repeat 2 --trim");
    for pass in all["passes"].as_array().unwrap() {
        assert_eq!((pinned(pass, "before"), pinned(pass, "after")), (0, len), "{pass}");
    }
}

#[test]
fn mapped_alone_reads_by_every_type_of_the_engine() {
    let directory = rested("12M");
    for xfer in [0, 5, 6, 7] {
        let all = report(directory.path(), &format!("-f x -i 1M -w 2 -V --engine mapped -x {xfer}"));
        assert_eq!(moved(&all["passes"][0], "mapped"), (12 << 20, 12 << 20), "type {xfer}: {all}");
    }
}

#[test]
fn mapped_alone_refuses_what_it_cannot_write_before_a_file_is_made() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    sample(directory.path(), "x", 1 << 20);
    let before = std::fs::read(directory.path().join("x")).unwrap();
    let probe = run_fake(directory.path(), "bench -f x -I 1 -i 64K --engine mapped");
    if probe.code == Some(0) {
        eprintln!("skipped: the build folder is on a tmpfs");
        return;
    }
    probe.fails(1, "only tmpfs files");
    run_fake(directory.path(), "bench -f new -I 1 -s 1M --engine mapped").fails(1, "only tmpfs files");
    assert_eq!(names(directory.path()), ["x"]);
    assert_eq!(std::fs::read(directory.path().join("x")).unwrap(), before);
}

#[test]
fn mapped_alone_writes_memory_files() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    run_fake(directory.path(), "bench -f x -I 1 -V -s 4M -i 1M --engine mapped").ok();
}

#[test]
fn raw_calls_of_mapped_read_in_place() {
    let directory = rested("9M");
    for (args, before) in [("", 9 << 20), ("--trim", 0)] {
        let all = report(directory.path(), &format!("-f x -i 300K -w 3 -V --bare --engine mapped {args}"));
        let pass = &all["passes"][0];
        assert_eq!(moved(pass, "raw"), (9 << 20, 9 << 20), "{pass}");
        assert_eq!(pass["pinned_before"], before, "{args}");
        assert_eq!(pass["pinned_after"], 9 << 20);
    }
    run_fake(directory.path(), "bench -f x --bare --engine mapped -x 6").fails(2, "-x 0 only");
}

#[test]
fn gathers_bring_the_right_pieces() {
    let directory = rested("6M");
    for args in ["", "=host", " --bare", "=host --bare"] {
        for size in ["-i 4K -B 100", "-i 512 -B 5000 -w 2", "-i 1000 -U -B 999 -k 0"] {
            let all = report(directory.path(), &format!("-f x {size} -V --gather{args}"));
            let pass = &all["passes"][0];
            let engine = if args.contains("bare") { "raw" } else { "mapped" };
            let (bytes, mapped) = moved(pass, engine);
            assert!(bytes == mapped && bytes > (5 << 20), "{args} {size}: {pass}");
            assert_eq!(pass["task"], "gather");
            assert_eq!(pass["offsets_in"], if args.contains("host") { "host" } else { "gpu" });
            assert_eq!(pass["io"], "RANDREAD");
        }
    }
    // A wrong byte is found by any of them.
    let file = std::fs::File::options().write(true).open(directory.path().join("x")).unwrap();
    for page in 0..6 * 256 {
        file.write_all_at(&[0xA5; 8], page * 4096 + 3).unwrap();
    }
    for args in ["", " --bare"] {
        run_fake(directory.path(), &format!("bench -f x -i 4K -B 100 -V --gather{args}")).fails(1, "pattern");
    }
}

#[test]
fn gathers_say_what_they_cannot_do() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path(), "x", 1 << 20);
    run_fake(directory.path(), "bench -f x --gather -i 2M").fails(1, "shorter than one piece");
    run_fake(directory.path(), "bench -f x --gather -x 6").fails(2, "--gather");
    run_fake(directory.path(), "bench -D . --gather").fails(2, "-f FILE");
    // Host memory refuses: nothing to be registered with.
    for args in ["", "--bare"] {
        let done = run(directory.path(), &format!("bench -f x --gather {args}"));
        assert_eq!(done.code, Some(1), "{}", done.err);
    }
}

#[test]
fn many_files_are_made_once_and_read() {
    let directory = tempfile::tempdir().unwrap();
    for engine in ["", "--engine staged"] {
        let args = format!("--files d --make-files 300 -i 10K -w 3 --repeat 2 {engine}");
        let all = report(directory.path(), &args);
        for pass in all["passes"].as_array().unwrap() {
            assert_eq!(
                (pass["ops"].as_u64(), pass["bytes"].as_u64()),
                (Some(300), Some(300 * 10240)),
                "{pass}"
            );
            assert_eq!((&pass["task"], &pass["state"]), (&"files".into(), &"warm".into()));
        }
    }
    assert_eq!(names(&directory.path().join("d")).len(), 256);
    run(directory.path(), "bench --files d -w 2").ok();
    std::fs::create_dir(directory.path().join("empty")).unwrap();
    run(directory.path(), "bench --files empty").fails(1, "no files below");
    run(directory.path(), "bench --files d -V").fails(2, "unverified");
}

#[test]
fn the_cost_of_opening_has_all_steps() {
    let directory = rested("3M");
    let done = run_fake(directory.path(), "bench -f x --open-cost --repeat 3").ok();
    for step in ["open", "probe", "map (register all)", "first gather", "read whole, pinned", "trim", "close"]
    {
        assert!(done.out.contains(step), "{step}: {}", done.out);
    }
    let done = run(directory.path(), "bench -f x --open-cost --repeat 2").ok();
    assert!(done.out.contains("not mapped: ") && done.out.contains("close"), "{}", done.out);
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
    for args in [
        "-f x -i 64K --warm --compare 0,2 --repeat 2 --ceiling",
        "-f x -i 64K --warm -x 6 -w 4",
        "-f x --gather -i 4K -B 64 -T 1",
        "-f x --open-cost --repeat 2",
        "--files .",
    ] {
        run_fake(directory.path(), &format!("bench --json r.json {args}")).ok();
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
    assert!(done.err.contains("(no GPU: no verdict)"), "{}", done.err);
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
        // A repeated read is worth a line where there is a GPU to pin pages for.
        let again = done.out.lines().find(|line| line.starts_with("read again, file to GPU"));
        assert_eq!(again.is_some(), done.out.starts_with("GPU 0"), "{}", done.out);
    }
}

/// Routing over NVLink in the job file, a seed in hex, reads and writes mixed in batches on a stream, a cufile.json.
#[test]
fn what_users_of_gdsio_have_runs() {
    let directory = tempfile::tempdir().unwrap();
    as_gdsio(directory.path(), "-f x -s 2M -i 64K -I 1").ok();
    let text = "[global]\nxfer_type=7\nrw=read\nbs=64K\nsize=2M\nrandom_seed=0xBEEF\nenable_nvlinks=1\n\
                [job0]\nfilename=x\nnum_threads=4\n";
    std::fs::write(directory.path().join("job.gdsio"), text).unwrap();
    std::fs::write(directory.path().join("cufile.json"), "{}").unwrap();
    let file = [("CUFILE_ENV_PATH_JSON", "cufile.json")];
    let done = as_gdsio_with(directory.path(), "job.gdsio -M 50", &file).ok();
    assert!(done.out.contains("XferType: GPU_BATCH_STREAM ") && lines(&done).len() == 1, "{}", done.out);
    for note in
        ["note: -p (enable_nvlinks) changed nothing", "note: gdsio reads no cufile.json: cufile.json changed"]
    {
        assert!(done.err.contains(note), "{note}: {}", done.err);
    }
    let done = as_gdsio(directory.path(), "-f x -s 2M -i 64K -I 0 -p").ok();
    assert!(done.err.contains("NVLink") && !done.err.contains("cufile.json"), "{}", done.err);
}

#[test]
fn gdsio_and_its_like_tell_their_version() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["gdsio", "gdsio_verify", "gds_stats"] {
        let link = directory.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), &link).unwrap();
        let mut command = support::clean(std::process::Command::new(&link));
        command.arg("--version");
        let done = support::finish(command).ok();
        assert_eq!(done.out, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
    }
}

/// Where the file is warm, forebay's types read from the page cache, and the peers by O_DIRECT.
#[test]
fn the_page_cache_beside_o_direct_is_said() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    sample(directory.path(), "x", 8 << 20);
    let alone = "note: the file was warm and read from the page cache, where gdsio reads by O_DIRECT: \
        --drop-cache or --cache bypass has all read from the drive\n";
    let beside = "note: type 0 read from the page cache, type 2 by O_DIRECT: --drop-cache or --cache bypass has all \
        read from the drive\n";
    let mark = "  (page cache beside O_DIRECT)\n";
    for (args, note, is_marked) in [
        ("-x 0", Some(alone), false),
        ("-x 0 --cache bypass", None, false),
        ("-x 0 --drop-cache", None, false),
        ("-x 0 --warm", None, false),
        ("-x 4", None, false),
        ("-x 5", Some(alone), false),
        ("-x 6", Some(alone), false),
        ("-x 7", Some(alone), false),
        ("-x 6 -O 0", None, false),
        ("-x 0 --bare", Some(alone), false),
        ("--compare 0,2 --repeat 1", Some(beside), true),
        ("--compare 0,2 --repeat 1 --cache bypass", None, false),
        ("--compare 0,4 --repeat 1", None, false),
    ] {
        let mut warm = std::fs::File::open(directory.path().join("x")).unwrap();
        std::io::copy(&mut warm, &mut std::io::sink()).unwrap();
        let done = run_fake(directory.path(), &format!("bench -f x -i 1M {args} --json r.json")).ok();
        if done.err.contains("has no O_DIRECT") {
            eprintln!("skipped: the build folder's file system has no O_DIRECT");
            return;
        }
        let said =
            done.err.lines().find(|line| line.contains("--drop-cache")).map(|line| format!("{line}\n"));
        assert_eq!(said.as_deref(), note, "{args}: {}", done.err);
        assert_eq!(done.err.contains(mark), is_marked, "{args}: {}", done.err);
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(directory.path().join("r.json")).unwrap()).unwrap();
        let ratio = &report["summary"][0]["ratio"];
        assert!(ratio.is_null() || ratio["cache_beside_drive"] == is_marked, "{args}: {ratio}");
        std::fs::remove_file(directory.path().join("r.json")).unwrap();
    }
}

/// The same binary as `gdsio`: all of its types but the fourth go by O_DIRECT, as NVIDIA's do, unless something else is asked for.
#[test]
fn gdsio_reads_a_warm_file_by_o_direct() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    sample(directory.path(), "x", 4 << 20);
    for xfer in 0..8 {
        for (args, is_asked) in
            [("", false), ("-O 0", false), ("-O 1", true), ("--warm", true), ("--cache keep", true)]
        {
            if xfer % 4 != 0 && !args.is_empty() {
                continue;
            }
            let mut warm = std::fs::File::open(directory.path().join("x")).unwrap();
            std::io::copy(&mut warm, &mut std::io::sink()).unwrap();
            let done = as_gdsio(directory.path(), &format!("-f x -i 1M -w 2 -x {xfer} --json r.json {args}"));
            if done.err.contains("has no O_DIRECT") {
                eprintln!("skipped: the build folder's file system has no O_DIRECT");
                return;
            }
            let text = std::fs::read(directory.path().join("r.json")).unwrap();
            let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let bytes = |way: &str| {
                let engines = report["passes"][0]["engines"].as_array().unwrap();
                engines.iter().map(|one| one[way].as_u64().unwrap()).sum::<u64>()
            };
            let cached = if is_asked || xfer == 4 { 4 << 20 } else { 0 };
            assert_eq!(
                (bytes("cached"), bytes("bytes")),
                (cached, 4 << 20),
                "-x {xfer} {args}: {}",
                done.err
            );
            assert!(!done.err.contains("where gdsio reads"), "-x {xfer} {args}: {}", done.err);
        }
    }
}

/// Holes, and blocks that were allocated and never written, are no file on a drive.
#[test]
fn files_without_data_are_said() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    sample(directory.path(), "whole", 4 << 20);
    let file = |name: &str| std::fs::File::create(directory.path().join(name)).unwrap();
    file("hole").set_len(4 << 20).unwrap();
    let half = file("half");
    half.set_len(4 << 20).unwrap();
    half.write_all_at(&vec![7; 2 << 20], 1 << 20).unwrap();
    let allocated = file("allocated");
    // SAFETY: no pointers are passed.
    let is_allocated =
        unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&allocated), 0, 0, 4 << 20) } == 0;
    for (name, said) in [
        ("whole", None),
        ("hole", Some("4.0 MiB")),
        ("half", Some("2.0 MiB")),
        ("allocated", Some("4.0 MiB")),
    ] {
        if name == "allocated" && !is_allocated {
            continue;
        }
        for xfer in [0, 1, 6] {
            let done = run(directory.path(), &format!("bench -f {name} -i 64K -x {xfer}")).ok();
            let note = said.map(|said| {
                format!("note: {name}: {said} of 4.0 MiB are holes, or were allocated and never written")
            });
            match note {
                Some(note) => assert!(done.err.contains(&note), "{name} -x {xfer}: {}", done.err),
                None => assert!(!done.err.contains("never written"), "{name}: {}", done.err),
            }
        }
        let opened = run(directory.path(), &format!("bench -f {name} --open-cost --repeat 2")).ok();
        assert_eq!(opened.err.contains("never written"), said.is_some(), "{name}: {}", opened.err);
        // Written ranges have their blocks then.
        run(directory.path(), &format!("bench -f {name} -i 64K -I 1 --overwrite")).ok();
        let done = run(directory.path(), &format!("bench -f {name} -i 64K")).ok();
        assert!(!done.err.contains("never written"), "{name}: {}", done.err);
    }
}
