//! A benchmark of cuFile libraries: drives any `libcufile.so.0` by its C interface alone, so that two of them run the
//! very same program.
//!
//! `cargo run --release -p forebay-cufile --example cufile_bench -- --lib PATH/libcufile.so.0 --file FILE --api sync`;
//! `--help` tells the rest. On the machine's GPU, or on the one of `FOREBAY_LIBCUDA`. Exit code 1 if anything was
//! wrong.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

mod abi;
mod async_io;
mod batch_io;
mod bench;
mod check;
mod cuda;
mod file;
mod measure;
mod options;
mod plan;
mod step;
mod sync_io;
mod watch;

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};

use abi::Library;
use bench::{Bench, Work};
use cuda::Gpu;
use file::TestFile;
use measure::{Faults, median_of};
use options::{Api, Options};
use watch::Watch;

fn main() -> ExitCode {
    let options = Options::parse();
    if let (true, Some(size)) = (options.make, options.size)
        && let Err(error) = file::make(&options.file, size, options.key)
    {
        eprintln!("error: cannot make the file: {error} (path={})", options.file.display());
        return ExitCode::FAILURE;
    }
    if options.lib.is_none() {
        return ExitCode::SUCCESS;
    }
    let mut report = options.report(0);
    match measure(options, &mut report) {
        Ok(faults) => tell(&mut report, &faults),
        Err(error) => {
            let mut faults = Faults::default();
            faults.error(error);
            tell(&mut report, &faults)
        }
    }
}

/// Everything from loading the library to closing it. The report is filled as far as it goes.
fn measure(options: Options, report: &mut Value) -> Result<Faults, String> {
    let path = options.lib.clone().unwrap_or_default();
    let watch = Watch::start(options.threads, Duration::from_secs(options.hang_limit), report.clone());
    let mut clock = Clock::start();
    let library = Library::open(&path)?;
    report["setup_ms"]["load"] = clock.lap();
    // As a program of the CUDA runtime would: the context is there before the library is used.
    let gpu = Gpu::open(options.device)?;
    let file = TestFile::open(&options)
        .map_err(|error| format!("cannot open file: {error} (path={})", options.file.display()))?;
    report["size"] = json!(file.size);
    report["version"] = json!(library.version()?);
    let bench = Bench { options, library, gpu, file, watch };
    if bench.options.warm {
        bench.watch.phase("warm");
        bench.file.warm(|| bench.watch.tick()).map_err(|error| format!("cannot read the file: {error}"))?;
    }
    if bench.options.api == Api::Open { open(&bench, report) } else { transfers(&bench, report) }
}

/// Opening and the first request, once.
fn open(bench: &Bench, report: &mut Value) -> Result<Faults, String> {
    let mut faults = Faults::default();
    let buffer = bench.gpu.allocate(bench.options.memory, bench.options.io as usize)?;
    bench.watch.phase("open");
    let mut clock = Clock::start();
    let begun = Instant::now();
    bench.library.open_driver()?;
    report["setup_ms"]["driver_open"] = clock.lap();
    let handle = bench.register()?;
    report["setup_ms"]["handle_register"] = clock.lap();
    bench.register_buffer(&buffer)?;
    report["setup_ms"]["buf_register"] = clock.lap();
    let mut work = sync_io::SyncWork::with(bench, handle, buffer);
    bench.watch.phase("first request");
    let request = plan::Request { offset: 0, len: bench.options.io.min(bench.file.size) };
    if let Err(error) = work.transfer(request) {
        faults.error(error);
    }
    report["setup_ms"]["first_io"] = clock.lap();
    report["setup_ms"]["sum"] = json!(begun.elapsed().as_secs_f64() * 1e3);
    bench.watch.known(report.clone());
    bench.watch.phase("close");
    clock.lap();
    work.close()?;
    bench.library.deregister(handle);
    bench.library.close_driver()?;
    report["setup_ms"]["close"] = clock.lap();
    Ok(faults)
}

/// The passes of one kind of request.
fn transfers(bench: &Bench, report: &mut Value) -> Result<Faults, String> {
    bench.watch.phase("open");
    let mut clock = Clock::start();
    bench.library.open_driver()?;
    report["setup_ms"]["driver_open"] = clock.lap();
    let handle = bench.register()?;
    report["setup_ms"]["handle_register"] = clock.lap();
    let mut works = Vec::new();
    for _ in 0..bench.options.threads {
        works.push(work(bench, handle)?);
        bench.watch.tick();
    }
    report["setup_ms"]["workers"] = clock.lap();
    bench.watch.known(report.clone());
    let (passes, mut faults) = beside_work(bench, report, || bench.run(&mut works))?;
    report["first"] = passes.first().cloned().unwrap_or_default();
    report["later"] = median_of(passes.get(1..).unwrap_or_default());
    report["passes"] = json!(passes);
    enter_faults(report, &faults);
    bench.watch.known(report.clone());
    bench.watch.phase("close");
    clock.lap();
    for mut work in works {
        work.close().unwrap_or_else(|error| faults.error(error));
    }
    bench.library.deregister(handle);
    bench.library.close_driver().unwrap_or_else(|error| faults.error(error));
    report["setup_ms"]["close"] = clock.lap();
    Ok(faults)
}

/// Runs something, beside a full default stream or training steps if that was asked for.
fn beside_work<T>(
    bench: &Bench,
    report: &mut Value,
    run: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    if !bench.options.busy && !bench.options.step {
        return run();
    }
    let mut training = None;
    if bench.options.step {
        bench.watch.phase("training steps alone");
        let steps = step::Training::new(&bench.gpu, bench.options.device)?;
        let limit = Duration::from_secs_f64(bench.options.secs.unwrap_or(1.0));
        let end = Instant::now() + limit;
        report["step"]["alone"] = steps.run(|| Instant::now() >= end)?;
        if bench.options.floor {
            report["step"]["floor"] = steps.floors(bench.options.threads, limit)?;
        }
        training = Some(steps);
    }
    let (stop, begun) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| match &training {
            Some(steps) => steps.run(|| stop.load(Ordering::Relaxed)),
            None => bench.gpu.keep_busy(&stop).map(|count| json!(count)),
        });
        let result = run();
        stop.store(true, Ordering::Relaxed);
        let told = beside.join().map_err(|_| "the thread beside the work died".to_owned())??;
        match told.as_u64() {
            Some(count) => report["busy_per_s"] = json!(count as f64 / begun.elapsed().as_secs_f64()),
            None => report["step"]["beside"] = told,
        }
        result
    })
}

fn work(bench: &Bench, handle: usize) -> Result<Box<dyn Work + '_>, String> {
    Ok(match bench.options.api {
        Api::Batch => Box::new(batch_io::BatchWork::new(bench, handle)?),
        Api::Async => Box::new(async_io::AsyncWork::new(bench, handle)?),
        Api::Sync | Api::Open => Box::new(sync_io::SyncWork::new(bench, handle)?),
    })
}

fn enter_faults(report: &mut Value, faults: &Faults) {
    report["checked_bytes"] = json!(faults.checked_bytes);
    report["wrong_bytes"] = json!(faults.wrong_bytes);
    report["first_wrong"] = json!(faults.first_wrong);
    report["error_count"] = json!(faults.error_count);
    report["errors"] = json!(faults.errors);
}

/// The report, as JSON and for people.
fn tell(report: &mut Value, faults: &Faults) -> ExitCode {
    enter_faults(report, faults);
    println!("{report}");
    eprintln!(
        "{} {}: {}",
        report["lib"].as_str().unwrap_or("–"),
        report["api"].as_str().unwrap_or("–"),
        line(report)
    );
    for error in &faults.errors {
        eprintln!("error: {error}");
    }
    if faults.error_count > faults.errors.len() as u64 {
        eprintln!("error: {} errors in all", faults.error_count);
    }
    if faults.wrong_bytes > 0 {
        let first = faults.first_wrong.unwrap_or(0);
        eprintln!("error: {} wrong bytes, the first at {first}", faults.wrong_bytes);
    }
    ExitCode::from(u8::from(faults.any()))
}

fn line(report: &Value) -> String {
    let number = |value: &Value| value.as_f64().map_or_else(|| "–".to_owned(), three_digits);
    let pass = |pass: &Value| {
        let (latency, submit) = (&pass["latency_us"], &pass["submit_us"]);
        format!(
            "{} GB/s, {} IOPS, {} CPU s/GB, p50 {} p99 {} µs, submit p50 {} p99 {} µs",
            number(&pass["gb_per_s"]),
            number(&pass["iops"]),
            number(&pass["cpu_s_per_gb"]),
            number(&latency["p50"]),
            number(&latency["p99"]),
            number(&submit["p50"]),
            number(&submit["p99"]),
        )
    };
    let setup = &report["setup_ms"];
    let mut text = format!(
        "open {} ms, register {} ms",
        number(&setup["driver_open"]),
        number(&setup["handle_register"])
    );
    if setup["sum"].is_number() {
        let _ =
            write!(text, ", first I/O {} ms, sum {} ms", number(&setup["first_io"]), number(&setup["sum"]));
    }
    for name in ["first", "later"] {
        if report[name].is_object() {
            let _ = write!(text, "; {name}: {}", pass(&report[name]));
        }
    }
    if report["checked_bytes"].as_u64().unwrap_or(0) > 0 {
        let _ = write!(text, "; checked {} bytes, {} wrong", report["checked_bytes"], report["wrong_bytes"]);
    }
    text
}

fn three_digits(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).max(0) };
    format!("{value:.*}", digits as usize)
}

/// Laps in milliseconds.
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn lap(&mut self) -> Value {
        let then = std::mem::replace(&mut self.0, Instant::now());
        json!((self.0 - then).as_secs_f64() * 1e3)
    }
}
