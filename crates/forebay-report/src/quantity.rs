//! The quantities of a row: names, units, which direction is better, and what counts as noise.

use serde::{Deserialize, Serialize};

use crate::model::Run;

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// GB (10⁹ bytes) per second.
    GbPerS,
    /// GiB per second.
    GibPerS,
    /// MiB per second.
    MibPerS,
    /// Thousand I/Os per second.
    KiloIops,
    /// Mean latency in microseconds.
    MeanUs,
    /// Median of the latency in microseconds.
    P50Us,
    /// 99th percentile of the latency in microseconds.
    P99Us,
    /// 999 of 1000 latencies in microseconds are not longer.
    P999Us,
    /// CPU in user mode, in percent of one CPU.
    UserPercent,
    /// CPU in the kernel, in percent of one CPU.
    SystemPercent,
    /// User mode of the one CPU that the process is pinned to, by all programs, in percent.
    OneCpuUser,
    /// Kernel mode of that CPU, with interrupts, in percent.
    OneCpuSystem,
    /// All CPU, in percent of one CPU.
    CpuPercent,
    /// All CPU, in CPUs.
    CpuCores,
    /// CPU seconds per GB.
    CpuPerGb,
    /// Resident memory of the process in MB (10⁶ bytes).
    ResidentMb,
    /// Busy CPU of the file server, in percent of all its CPUs.
    ServerPercent,
    /// Wall time in seconds.
    Seconds,
}

impl Quantity {
    /// All of them, in the order of their columns.
    pub const ALL: [Self; 18] = [
        Self::GbPerS,
        Self::GibPerS,
        Self::MibPerS,
        Self::KiloIops,
        Self::MeanUs,
        Self::P50Us,
        Self::P99Us,
        Self::P999Us,
        Self::UserPercent,
        Self::SystemPercent,
        Self::OneCpuUser,
        Self::OneCpuSystem,
        Self::CpuPercent,
        Self::CpuCores,
        Self::CpuPerGb,
        Self::ResidentMb,
        Self::ServerPercent,
        Self::Seconds,
    ];

    /// Its name in a spec, in JSON and in CSV.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
    }

    /// Its value in a run.
    pub fn of(self, run: &Run) -> Option<f64> {
        if self == Self::ServerPercent {
            return run.server_percent;
        }
        let seconds = (run.seconds > 0.0).then_some(run.seconds)?;
        let (bytes, cpu) = (run.bytes as f64, run.user_s + run.system_s);
        Some(match self {
            Self::GbPerS => bytes / 1e9 / seconds,
            Self::GibPerS => bytes / f64::from(1 << 30) / seconds,
            Self::MibPerS => bytes / f64::from(1 << 20) / seconds,
            Self::KiloIops => run.ops as f64 / 1e3 / seconds,
            Self::MeanUs => run.mean_us,
            Self::P50Us => run.p50_us?,
            Self::P99Us => run.p99_us,
            Self::P999Us => run.p999_us?,
            Self::UserPercent => run.user_s / seconds * 100.0,
            Self::SystemPercent => run.system_s / seconds * 100.0,
            Self::OneCpuUser => run.one_cpu_user_s? / seconds * 100.0,
            Self::OneCpuSystem => run.one_cpu_system_s? / seconds * 100.0,
            Self::CpuPercent => cpu / seconds * 100.0,
            Self::CpuCores => cpu / seconds,
            Self::CpuPerGb => cpu / (bytes / 1e9).max(1e-12),
            Self::ResidentMb => run.resident_bytes? as f64 / 1e6,
            Self::ServerPercent => return None,
            Self::Seconds => seconds,
        })
    }

    /// Bytes of its unit, if it is a throughput.
    pub(crate) fn per_second(self) -> Option<f64> {
        match self {
            Self::GbPerS => Some(1e9),
            Self::GibPerS => Some(f64::from(1 << 30)),
            Self::MibPerS => Some(f64::from(1 << 20)),
            _ => None,
        }
    }

    /// A rate in GB/s in this unit.
    pub(crate) fn rate(self, gb_per_s: f64) -> String {
        figure(gb_per_s * 1e9 / self.per_second().unwrap_or(1e9))
    }

    /// The heading of its column, with the unit.
    pub fn title(self) -> &'static str {
        match self {
            Self::GbPerS => "GB/s",
            Self::GibPerS => "GiB/s",
            Self::MibPerS => "MiB/s",
            Self::KiloIops => "K IOPS",
            Self::MeanUs => "mean latency, µs",
            Self::P50Us => "p50, µs",
            Self::P99Us => "p99, µs",
            Self::P999Us => "p99.9, µs",
            Self::UserPercent => "user CPU, %",
            Self::SystemPercent => "system CPU, %",
            Self::OneCpuUser => "usr of the CPU, %",
            Self::OneCpuSystem => "sys of the CPU, %",
            Self::CpuPercent => "CPU, % of one",
            Self::CpuCores => "CPU cores",
            Self::CpuPerGb => "CPU s/GB",
            Self::ResidentMb => "resident memory, MB",
            Self::ServerPercent => "server CPU, %",
            Self::Seconds => "seconds",
        }
    }

    /// The quantity in a word, for ratios and compared reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::GbPerS | Self::GibPerS | Self::MibPerS | Self::KiloIops => "throughput",
            Self::MeanUs => "latency",
            Self::P50Us => "p50",
            Self::P99Us => "p99",
            Self::P999Us => "p99.9",
            Self::UserPercent | Self::OneCpuUser => "user CPU",
            Self::SystemPercent | Self::OneCpuSystem => "system CPU",
            Self::CpuPercent | Self::CpuCores => "CPU",
            Self::CpuPerGb => "CPU per byte",
            Self::ResidentMb => "memory",
            Self::ServerPercent => "server CPU",
            Self::Seconds => "time",
        }
    }

    /// Whether more is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::GbPerS | Self::GibPerS | Self::MibPerS | Self::KiloIops)
    }
}

/// Median and range of a row's runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many.
    pub runs: usize,
}

/// Fewer runs than this do not show the noise: only a difference of [`CLEAR_FACTOR`] is judged.
pub(crate) const MIN_RUNS: usize = 3;
/// A factor this large is not noise: the disks of this project's own machines varied by up to this.
pub(crate) const CLEAR_FACTOR: f64 = 2.5;
/// A few runs do not show the whole range: widen it at both ends.
const RANGE_MARGIN: f64 = 0.01;

impl Summary {
    /// Of these values; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max, runs: values.len() })
    }

    /// Where the value may lie.
    fn range(&self) -> (f64, f64) {
        (self.min * (1.0 - RANGE_MARGIN), self.max * (1.0 + RANGE_MARGIN))
    }
}

/// The verdict on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is better.
    Better,
    /// It is worse.
    Worse,
    /// The ranges of the runs overlap.
    Noise,
    /// One run, or two, and no great difference.
    Few,
}

impl Verdict {
    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Noise => "within the noise",
            Self::Few => "too few runs to judge",
        }
    }
}

/// One median divided by another, and whether the ranges of the runs leave a difference: they are taken 1 % wider at both
/// ends. With one run or two, on either side, only a factor of 2.5 is a difference.
pub fn ratio(quantity: Quantity, one: &Summary, base: &Summary) -> Option<(f64, Verdict)> {
    if base.median <= 0.0 {
        return None;
    }
    let ((low, high), (base_low, base_high)) = (one.range(), base.range());
    let (less, more) = (one.median.min(base.median), one.median.max(base.median));
    let is_near = less <= 0.0 || more < less * CLEAR_FACTOR;
    let verdict = if one.runs.min(base.runs) < MIN_RUNS && is_near {
        Verdict::Few
    } else if low <= base_high && high >= base_low {
        Verdict::Noise
    } else if (one.median > base.median) == quantity.more_is_better() {
        Verdict::Better
    } else {
        Verdict::Worse
    };
    Some((one.median / base.median, verdict))
}

/// A figure with as many digits as it deserves.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => group(value.round()),
        v if v >= 10.0 => format!("{value:.1}"),
        v if !(1e-9..0.1).contains(&v) => format!("{value:.2}"),
        v if v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// A whole number with thin spaces between thousands.
fn group(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 && digits.len() > 4 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("−{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_specs_has_all() {
        let page = include_str!("../../../docs/reference/report-spec.md");
        // The error names every quantity: unknown variant `?`, expected one of `gb_per_s`, …
        let error = serde_json::from_str::<Quantity>("\"?\"").unwrap_err().to_string();
        let names: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert!(names.contains(&"gb_per_s"), "{error}");
        assert_eq!(names, Quantity::ALL.map(Quantity::name));
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn medians_and_ranges() {
        assert_eq!(Summary::of(vec![]), None);
        let odd = Summary::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(odd, Some(Summary { median: 2.0, min: 1.0, max: 3.0, runs: 3 }));
        assert_eq!(Summary::of(vec![1.0, 2.0]).map(|one| one.median), Some(1.5));
    }

    #[test]
    fn overlapping_ranges_are_noise() {
        let of = |values: &[f64]| Summary::of(values.to_vec()).unwrap_or_else(|| unreachable!());
        let verdict = |q, a: &[f64], b: &[f64]| ratio(q, &of(a), &of(b)).map(|(_, verdict)| verdict);
        let throughput = Quantity::GbPerS;
        assert_eq!(verdict(throughput, &[1.0, 2.0, 3.0], &[3.0, 4.0, 5.0]), Some(Verdict::Noise));
        assert_eq!(verdict(throughput, &[6.0, 6.5, 7.0], &[3.0, 4.0, 5.0]), Some(Verdict::Better));
        assert_eq!(verdict(Quantity::MeanUs, &[6.0, 6.5, 7.0], &[3.0, 4.0, 5.0]), Some(Verdict::Worse));
        assert_eq!(verdict(throughput, &[1.3], &[0.0]), None);
    }

    #[test]
    fn one_run_or_two_are_judged_only_by_a_great_difference() {
        let of = |values: &[f64]| Summary::of(values.to_vec()).unwrap_or_else(|| unreachable!());
        let verdict =
            |a: &[f64], b: &[f64]| ratio(Quantity::GbPerS, &of(a), &of(b)).map(|(_, verdict)| verdict);
        for (one, base, wanted) in [
            (&[1.3][..], &[1.0][..], Verdict::Few),
            (&[1.0], &[2.4], Verdict::Few),
            (&[0.0], &[1.0], Verdict::Few),
            (&[2.0], &[0.9, 1.0, 1.1], Verdict::Few),
            (&[6.0, 7.0], &[3.0, 4.0, 5.0], Verdict::Few),
            (&[2.6], &[1.0], Verdict::Better),
            (&[1.0], &[2.6], Verdict::Worse),
            (&[0.9, 9.0], &[1.0, 1.1], Verdict::Noise),
        ] {
            assert_eq!(verdict(one, base), Some(wanted), "{one:?} {base:?}");
        }
    }

    #[test]
    fn figures() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.0012, "0.0012"),
            (0.05, "0.050"),
            (4.443, "4.44"),
            (65.11, "65.1"),
            (879.2, "879"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(figure(1_234_567.0), "1\u{202f}234\u{202f}567");
    }
}
