//! Live counters of a process that others find without any set-up.
//!
//! [`Counters`] lie in a memfd: a process that may look into `/proc/PID/fd` can read them ([`Reader::attach`]), and a
//! killed process leaves nothing behind. Counting costs a few relaxed additions in a place that belongs to the thread.
//! A [`Snapshot`] is plain data; [`render`] makes text of it: as `gds_stats` prints it, for Prometheus, or as a
//! receipt.
//!
//! ```
//! use std::time::Duration;
//! use forebay_stats::{Counters, Io, Moved, Way};
//!
//! let counters = Counters::open()?;
//! let latency = Duration::from_micros(80);
//! counters.read(Io { bytes: 1 << 20, latency, gpu: Some(0), unaligned: false, posix: false, ok: true });
//! counters.engine("staged", Moved::of(Way::Cached, 1 << 20));
//!
//! let seen = forebay_stats::Reader::attach(std::process::id())?.snapshot()?;
//! assert_eq!((seen.read.ok, seen.read.bytes), (1, 1 << 20));
//! assert_eq!(seen.engines[0].name, "staged");
//! # Ok::<(), forebay_error::Error>(())
//! ```

mod clock;
mod counters;
mod files;
mod layout;
mod list;
mod memory;
mod ops;
mod process;
mod rates;
mod reader;
pub mod render;
mod serve;
mod snapshot;

pub use counters::{Counters, Io, TextPlaces};
pub use files::FileCounter;
pub use forebay_ways::{Moved, Way};
pub use memory::DIRECTORY_VARIABLE;
pub use ops::{CallCounts, Count, Op};
pub use process::hidden_processes;
pub use reader::{Reader, list, read_directory};
pub use serve::serve;
pub use snapshot::{
    AsyncTotals, BatchTotals, DeviceTotals, EngineTotals, FileTotals, GpuTotals, IoTotals, NoteTotals, Rate,
    RefusalTotals, RoundTripTotals, Snapshot,
};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The counters of a process that did a bit of everything, with rates that do not depend on the clock.
    pub(crate) fn busy() -> Snapshot {
        let counters = Counters::hidden().unwrap();
        let latency = Duration::from_micros(100);
        let io = Io { bytes: 1 << 20, latency, gpu: Some(0), unaligned: false, posix: false, ok: true };
        for _ in 0..10 {
            counters.read(io);
        }
        counters.read(Io { bytes: 4096, gpu: None, unaligned: true, posix: true, ..io });
        counters.read(Io { ok: false, ..io });
        counters.write(Io { bytes: 100 << 20, gpu: Some(1), ..io });
        counters.readv(io);
        counters.gpu(0, *b"\x0c\xe4\xdf\xa0\x44\x61\x13\x39\xca\x1e\x22\xbf\x10\xa7\x72\xfe");
        counters.count(Op::HandleRegister, true);
        counters.count(Op::HandleRegister, false);
        counters.buffer_registered(Some(0), 64 << 20, true);
        counters.buffer_registered(Some(0), 32 << 20, true);
        counters.buffer_deregistered(Some(0), 32 << 20, true);
        counters.batch_submitted(Duration::from_micros(5), true);
        counters.batch_completed(8 << 20, 4096, Duration::from_millis(2), true);
        counters.count_many(Op::BatchEnqueued, 128, true);
        counters.async_started(3);
        counters.async_done(2);
        counters.round_trip(Duration::from_millis(3));
        counters.round_trip(Duration::from_millis(1));
        counters.engine("mapped", Moved::of(Way::Mapped, 9 << 20));
        counters.engine("mapped", Moved::of(Way::Mapped, 1 << 20));
        counters.engine("staged", Moved::from_ways([4096, 100 << 20, 0, 0, 0, 0, 0, 0]));
        counters.refused("p2p", "this version of forebay does not have it yet", None, 1 << 20);
        let reason = "its pages are not in the page cache";
        counters.refused("mapped", reason, Some("cat FILE > /dev/null"), 100 << 20);
        counters.refused("mapped", reason, Some("cat FILE > /dev/null"), 4096);
        counters.note("cold reads use threads with preadv", Some("sysctl kernel.io_uring_disabled=0"));
        counters.set_level(2);
        for (name, millis) in [("/data/fast", 1), ("/data/slow", 2000)] {
            let file = FileCounter::new(name);
            counters.file(&file, 1 << 20, Duration::from_millis(millis));
            counters.file(&file, 1 << 20, Duration::from_micros(10));
        }
        let mut snapshot = counters.snapshot();
        (snapshot.pid, snapshot.program) = (4242, "python train.py --data \"/data\"".into());
        (snapshot.started_ticks, snapshot.opened_unix_ns) = (1000, 1_700_000_000_000_000_000);
        steady(&mut snapshot);
        snapshot
    }

    fn steady(snapshot: &mut Snapshot) {
        let full = |bytes_per_s: f64| Rate {
            bytes_per_s,
            ops_per_s: 2563.0,
            latency_us: 390.25,
            utilization_percent: 100.5,
        };
        snapshot.read.rate = full(2_688_040_000.0);
        for io in [&mut snapshot.write, &mut snapshot.readv, &mut snapshot.host.read] {
            io.rate = Rate::default();
        }
        for gpu in &mut snapshot.gpus {
            gpu.device.read.rate = full(2_688_040_000.0);
            gpu.device.write.rate = Rate::default();
        }
        let batch = &mut snapshot.batch;
        (batch.submit, batch.complete) = (Rate::default(), full(0.0));
        (batch.read_bytes_per_s, batch.write_bytes_per_s) = (1e9, 0.0);
    }
}
