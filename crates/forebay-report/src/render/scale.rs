//! Axes: where ticks are and how far they reach.

use forebay_config::parse_size;

use crate::quantity::figure;

/// From values to a length.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// For values: from zero up, or logarithmic.
    pub(super) fn of(values: &[f64], is_log: bool) -> Self {
        let positive = || values.iter().copied().filter(|value| *value > 0.0);
        let (least, most) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
        if most <= 0.0 {
            return Self::linear(1.0);
        }
        if is_log {
            return Self::logarithmic(least, most);
        }
        Self::linear(most)
    }

    fn linear(most: f64) -> Self {
        let rough = most / 5.0;
        let magnitude = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|one| one * magnitude).find(|step| *step >= rough);
        let step = step.unwrap_or(magnitude * 10.0);
        let count = (most / step).ceil().max(1.0) as usize;
        let decimals = usize::from(step < 1.0)
            + usize::from(step < 0.1)
            + usize::from(step < 0.01)
            + usize::from((step / magnitude - 2.5).abs() < 1e-9 && step < 10.0);
        let tick = |index| {
            let value = index as f64 * step;
            (value, if value >= 1000.0 { figure(value) } else { format!("{value:.decimals$}") })
        };
        Self { low: 0.0, high: count as f64 * step, is_log: false, ticks: (0..=count).map(tick).collect() }
    }

    /// From one of 1, 2, 5 times a power of ten to another; ticks are the powers, and both ends.
    fn logarithmic(least: f64, most: f64) -> Self {
        let round = |value: f64| [1.0, 2.0, 5.0, 10.0].map(|one| one * 10_f64.powf(value.log10().floor()));
        let low = round(least).into_iter().rfind(|one| *one <= least).unwrap_or(least);
        let high = round(most).into_iter().find(|one| *one >= most).unwrap_or(most);
        let mut values = vec![low];
        values.extend(
            (-9..=12).map(|power| 10_f64.powi(power)).filter(|one| *one > low * 1.5 && *one < high / 1.5),
        );
        values.push(high);
        let label = |value: f64| {
            if value < 1.0 { format!("{value:.6}").trim_end_matches('0').to_owned() } else { whole(value) }
        };
        let ticks = values.into_iter().map(|value| (value, label(value))).collect();
        Self { low: low.log10(), high: high.log10(), is_log: true, ticks }
    }

    /// Where a value is, from 0 to 1.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(1e-12).log10() } else { value };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

fn whole(value: f64) -> String {
    if value < 100.0 { format!("{value:.0}") } else { figure(value) }
}

/// Where labels are along x, from 0 to 1: by the logarithm of their numbers, or evenly where they are none.
pub(super) fn places(labels: &[&str]) -> Vec<f64> {
    let numbers: Option<Vec<f64>> = labels
        .iter()
        .map(|label| Some((parse_size(label).ok().filter(|size| *size > 0)? as f64).log2()))
        .collect();
    let Some(numbers) = numbers.filter(|all| all.len() > 1) else {
        let last = labels.len().saturating_sub(1).max(1) as f64;
        return (0..labels.len()).map(|index| index as f64 / last).collect();
    };
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    numbers.iter().map(|number| (number - least) / (most - least).max(1e-9)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(&Axis::of(&[4.4], false)), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(labels(&Axis::of(&[0.9, 0.1], false)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&Axis::of(&[12.0], false)), ["0.0", "2.5", "5.0", "7.5", "10.0", "12.5"]);
        assert_eq!(labels(&Axis::of(&[], false)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        let log = Axis::of(&[1.5, 9000.0], true);
        assert_eq!(labels(&log), ["1", "10", "100", "1000", "10\u{202f}000"]);
        assert!((log.at(100.0) - 0.5).abs() < 1e-9);
        assert_eq!(labels(&Axis::of(&[0.006, 4.5], true)), ["0.005", "0.01", "0.1", "1", "5"]);
    }

    #[test]
    fn sizes_are_placed_by_their_logarithm() {
        assert_eq!(places(&["4K", "8K", "16K"]), [0.0, 0.5, 1.0]);
        assert_eq!(places(&["a", "b"]), [0.0, 1.0]);
        assert_eq!(places(&["4K"]), [0.0]);
    }
}
