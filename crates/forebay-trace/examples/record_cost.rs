//! Measures the cost of recording: `cargo run --release -p forebay-trace --example record_cost [FILE]`.
//!
//! One thread records a million calls a second in bursts of a hundred. The CPU time in the bursts is what callers pay;
//! the CPU time of the rest of the process is what growing the file costs beside them.

use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_trace::{Api, Record, Trace, thread_id};

const BURST: u32 = 100;
const BURSTS: u32 = 30_000;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm/record_cost.trace".into());
    let trace = Trace::create(&path)?;
    let (empty, _) = paced(&mut |_| {});
    let report = |what: &str, (spent, beside): (Duration, Duration)| {
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(BURST * BURSTS);
        let (caller, beside) = (each(spent.saturating_sub(empty)), each(beside));
        println!("{what}: {caller:.1} ns a call for its caller, {beside:.1} ns beside it");
    };
    report("record", paced(&mut |burst| (0..BURST).for_each(|index| trace.record(&call(burst + index, 0)))));
    let mut clocked = |burst| {
        for index in 0..BURST {
            let start = trace.now();
            trace.record(&Record { latency: trace.now() - start, ..call(burst + index, start) });
        }
    };
    report("record with two clock readings", paced(&mut clocked));
    drop(trace);
    // Its content was of no use to anybody.
    let _ = std::fs::remove_file(&path);
    Ok(())
}

fn call(index: u32, start: u64) -> Record {
    let (offset, size) = (i64::from(index) * 4096, 4096);
    Record { api: Api::Read, thread: thread_id(), start, offset, size, result: 4096, ..Record::default() }
}

/// Calls `work` every 100 µs; its time, and the CPU time of the other threads meanwhile.
fn paced(work: &mut dyn FnMut(u32)) -> (Duration, Duration) {
    let beside = || cpu(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(cpu(libc::CLOCK_THREAD_CPUTIME_ID));
    let (started, others) = (Instant::now(), beside());
    let mut spent = Duration::ZERO;
    for burst in 0..BURSTS {
        while started.elapsed() < burst * Duration::from_micros(100) {
            std::hint::spin_loop();
        }
        // By CPU time: other programs on the machine do not count.
        let from = cpu(libc::CLOCK_THREAD_CPUTIME_ID);
        work(burst * BURST);
        spent += cpu(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(from);
    }
    (spent, beside().saturating_sub(others))
}

fn cpu(clock: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the answer; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
