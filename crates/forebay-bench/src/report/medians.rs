//! The figures that have medians: in JSON, in the table for people, and as ratios.

use serde::Serialize;

use super::Pass;
use super::described::{Described, DescribedField};

macro_rules! medians {
    ($($(#[doc = $about:literal])+ $figure:ident: $title:literal, $width:literal, $digits:literal, $of:expr;)+) => {
        /// Medians of a type's timed passes.
        #[derive(Clone, Copy, Debug, Serialize)]
        pub struct Medians { $($(#[doc = $about])+ pub $figure: f64,)+ }

        impl Medians {
            pub(crate) fn of(passes: &[&Pass]) -> Self {
                let middle = |figure: fn(&Pass) -> f64| median(passes.iter().map(|pass| figure(pass)).collect());
                Self { $($figure: middle($of)),+ }
            }

            /// Titles of the table's columns.
            pub(super) fn titles() -> String {
                [$(format!("{:>1$}", $title, $width)),+].concat()
            }

            /// A row of the table.
            pub(super) fn row(&self) -> String {
                [$(format!("{:>1$.2$}", self.$figure, $width, $digits)),+].concat()
            }
        }

        /// Fields beside the others.
        impl Described for Medians {
            fn kind() -> String {
                f64::kind()
            }

            fn describe(at: &str, _: &str, _: &str, to: &mut Vec<DescribedField>) {
                $(f64::describe(at, stringify!($figure), concat!($($about),+), to);)+
            }
        }
    };
}

// To add a figure, add a row: title, width and digits of its column, and where it is in a pass.
medians! {
    /// Median of throughput.
    gb_per_s: "GB/s", 11, 3, |pass| pass.gb_per_s;
    /// Of I/Os per second.
    iops: "IOPS", 13, 0, |pass| pass.iops;
    /// Of mean latencies.
    mean_us: "mean us", 12, 1, |pass| pass.latency_us.mean;
    /// Of user CPU time per GB.
    user_s_per_gb: "user s/GB", 11, 4, |pass| pass.cpu.user_s_per_gb;
    /// Of system CPU time per GB.
    system_s_per_gb: "sys s/GB", 11, 4, |pass| pass.cpu.system_s_per_gb;
}

/// The median of some figures; 0 of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![3.0, 1.0]) - 2.0).abs() < 1e-9);
        assert!(median(vec![]).abs() < 1e-9);
    }
}
