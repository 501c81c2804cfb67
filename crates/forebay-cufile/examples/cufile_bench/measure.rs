//! The figures and errors of a pass.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// At most this many errors are printed; the rest is counted.
const TOLD: usize = 16;
/// The histogram's longest latency; longer ones count as this.
const LONGEST_NS: u64 = 600_000_000_000;

/// What one thread did in one pass.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// A request, a batch, or a round of asynchronous requests: from the call to the result.
    pub(crate) latency: Histogram<u64>,
    /// The submitting call alone.
    pub(crate) submit: Histogram<u64>,
    pub(crate) faults: Faults,
}

/// Errors and wrong bytes.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) errors: Vec<String>,
    pub(crate) error_count: u64,
    pub(crate) checked_bytes: u64,
    pub(crate) wrong_bytes: u64,
    pub(crate) first_wrong: Option<u64>,
}

impl Faults {
    pub(crate) fn error(&mut self, text: String) {
        self.error_count += 1;
        if self.errors.len() < TOLD {
            self.errors.push(text);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.error_count += other.error_count;
        let room = TOLD - self.errors.len();
        self.errors.extend(other.errors.into_iter().take(room));
        self.checked_bytes += other.checked_bytes;
        self.wrong_bytes += other.wrong_bytes;
        self.first_wrong = match (self.first_wrong, other.first_wrong) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
    }

    pub(crate) fn any(&self) -> bool {
        self.error_count > 0 || self.wrong_bytes > 0
    }
}

impl Counts {
    pub(crate) fn new() -> Result<Self, String> {
        let histogram = || Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(|error| error.to_string());
        Ok(Self { ops: 0, bytes: 0, latency: histogram()?, submit: histogram()?, faults: Faults::default() })
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        // Both have the same bounds, so that this cannot fail.
        let _ = self.latency.add(&other.latency);
        let _ = self.submit.add(&other.submit);
        self.faults.add(other.faults);
    }
}

/// A moment: the clock and the CPU time of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    clock: Instant,
    user: f64,
    system: f64,
}

impl Mark {
    pub(crate) fn now() -> Self {
        // SAFETY: all zero is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place for the answer.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self { clock: Instant::now(), user: seconds(usage.ru_utime), system: seconds(usage.ru_stime) }
    }
}

/// The figures of a pass.
pub(crate) fn figures(from: Mark, to: Mark, cached_before: Option<u64>, counts: &Counts) -> Value {
    let seconds = (to.clock - from.clock).as_secs_f64();
    let gb = counts.bytes as f64 / 1e9;
    let per_gb = |cpu: f64| if gb > 0.0 { cpu / gb } else { 0.0 };
    let (user, system) = (to.user - from.user, to.system - from.system);
    json!({
        "seconds": seconds,
        "bytes": counts.bytes,
        "ops": counts.ops,
        "gb_per_s": gb / seconds,
        "iops": counts.ops as f64 / seconds,
        "user_s_per_gb": per_gb(user),
        "system_s_per_gb": per_gb(system),
        "cpu_s_per_gb": per_gb(user + system),
        "cached_before": cached_before,
        "latency_us": percentiles(&counts.latency),
        "submit_us": percentiles(&counts.submit),
        "error_count": counts.faults.error_count,
    })
}

fn percentiles(histogram: &Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "mean": histogram.mean() / 1e3, "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p99_9": at(0.999),
        "max": histogram.max() as f64 / 1e3,
    })
}

/// For every number of the passes its median over them, in a value of the same shape.
pub(crate) fn median_of(passes: &[Value]) -> Value {
    match passes.first() {
        None => Value::Null,
        Some(Value::Object(map)) => map
            .keys()
            .map(|key| {
                (key.clone(), median_of(&passes.iter().map(|pass| pass[key].clone()).collect::<Vec<_>>()))
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Some(_) => {
            let mut numbers: Vec<f64> = passes.iter().filter_map(Value::as_f64).collect();
            numbers.sort_by(f64::total_cmp);
            match numbers.len() {
                0 => Value::Null,
                count if count % 2 == 1 => json!(numbers[count / 2]),
                count => json!(f64::midpoint(numbers[count / 2 - 1], numbers[count / 2])),
            }
        }
    }
}

/// Nanoseconds as the histograms take them.
pub(crate) fn nanos(duration: Duration) -> u64 {
    (duration.as_nanos() as u64).clamp(1, LONGEST_NS)
}
