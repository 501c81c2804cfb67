//! Measures the cost of counting: `cargo run --release -p forebay-stats --example cost [THREADS]`.

use std::time::{Duration, Instant};

use forebay_stats::{Counters, FileCounter, Io, Moved, Way};

const ROUNDS: u32 = 2_000_000;

fn main() -> forebay_error::Result<()> {
    let threads = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    let counters = Counters::open()?;
    let file = FileCounter::new("/data/model");
    let latency = Duration::from_micros(5);
    let io = Io { bytes: 4096, latency, gpu: Some(0), unaligned: false, posix: false, ok: true };
    let reason = "its pages are not in the page cache";
    let measure = |what: &str, call: &(dyn Fn() + Sync)| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..ROUNDS).for_each(|_| call()));
            }
        });
        println!(
            "{what:<8} {:6.1} ns of wall time a call",
            began.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        );
    };
    measure("read", &|| counters.read(io));
    measure("engine", &|| counters.engine("staged", Moved::of(Way::Cached, 4096)));
    measure("refused", &|| counters.refused("mapped", reason, None, 4096));
    measure("file", &|| counters.file(&file, 4096, latency));
    Ok(())
}
