//! The text of NVIDIA's `gds_stats`, version 8, so that what reads it goes on reading it.

use std::fmt::Write;

use crate::ops::{Count, Op};
use crate::snapshot::{DeviceTotals, IoTotals, Snapshot};

/// The calls that are listed, in this order, after reads and writes.
const CALLS: [Op; 13] = [
    Op::HandleRegister,
    Op::HandleDeregister,
    Op::BufRegister,
    Op::BufDeregister,
    Op::BatchSubmit,
    Op::BatchComplete,
    Op::BatchSetup,
    Op::BatchCancel,
    Op::BatchDestroy,
    Op::BatchEnqueued,
    Op::BatchPosixEnqueued,
    Op::BatchProcessed,
    Op::BatchPosixProcessed,
];

/// The histogram that is printed has 16 lines; the last one takes all that is larger.
const LINES: usize = 16;

/// The counters as `gds_stats -l LEVEL` prints them: 1 totals, 2 with sizes, 3 with GPUs.
pub fn gds_stats(snapshot: &Snapshot, level: u32) -> String {
    let mut text = String::from("cuFile STATS VERSION : 8\nGLOBAL STATS:\n");
    totals(&mut text, snapshot);
    if level >= 2 {
        sizes(&mut text, snapshot);
    }
    if level >= 3 {
        gpus(&mut text, snapshot);
    }
    text
}

fn totals(text: &mut String, snapshot: &Snapshot) {
    let (read, write, batch) = (&snapshot.read, &snapshot.write, &snapshot.batch);
    let mut calls = |name: &str, Count { ok, err }| {
        let _ = writeln!(text, "{name}: ok = {ok} err = {err}");
    };
    calls("Read", Count { ok: read.ok, err: read.err });
    calls("Write", Count { ok: write.ok, err: write.err });
    for op in CALLS {
        calls(op.name(), snapshot.calls.get(op));
    }
    for (name, io) in [("Read", read), ("Write", write)] {
        let _ = writeln!(text, "Total {name} Size (MiB): {}", io.bytes >> 20);
        let _ = writeln!(text, "{name} BandWidth (GiB/s): {}", gib_per_s(io.rate.bytes_per_s));
        let _ = writeln!(text, "Avg {name} Latency (us): {:.0}", io.rate.latency_us);
    }
    let _ = writeln!(text, "Total Batch Read Size (MiB): {}", batch.read_bytes >> 20);
    let _ = writeln!(text, "Total Batch Write Size (MiB): {}", batch.write_bytes >> 20);
    let _ = writeln!(text, "Batch Read BandWidth (GiB/s): {}", gib_per_s(batch.read_bytes_per_s));
    let _ = writeln!(text, "Batch Write BandWidth (GiB/s): {}", gib_per_s(batch.write_bytes_per_s));
    let _ = writeln!(text, "Avg Batch Submit Latency (us): {:.0}", batch.submit.latency_us);
    let _ = writeln!(text, "Avg Batch Completion Latency (us): {:.0}", batch.complete.latency_us);
}

fn sizes(text: &mut String, snapshot: &Snapshot) {
    text.push_str("READ-WRITE SIZE HISTOGRAM : \n");
    for line in 0..LINES {
        let from = if line == 0 { 0 } else { 2_u64 << line };
        let to = if line + 1 == LINES { "...".to_owned() } else { (4_u64 << line).to_string() };
        let of = |sizes: &[u64]| -> u64 {
            let last = if line + 1 == LINES { sizes.len() } else { line + 1 };
            sizes[line..last].iter().fold(0, |sum, count| sum.saturating_add(*count))
        };
        let (reads, writes) = (of(&snapshot.read_sizes), of(&snapshot.write_sizes));
        let _ = writeln!(text, "{from}-{to}(KiB): {reads}  {writes}");
    }
}

/// The pools, RDMA and thread pools of NVIDIA's library have no counterpart: their headings stand alone.
fn gpus(text: &mut String, snapshot: &Snapshot) {
    text.push_str("PER_GPU STATS:\n");
    for gpu in &snapshot.gpus {
        let DeviceTotals { read, write, registered_ok, registered_err, freed, registered_bytes } =
            &gpu.device;
        let _ = writeln!(
            text,
            "GPU {}(UUID: {}) Read: {} Write: {} BufRegister: n={registered_ok} err={registered_err} free={freed} MiB={}",
            gpu.index,
            gpu.uuid_hex(),
            one_gpu(read, " r_sparse=0 r_inline=0"),
            one_gpu(write, ""),
            registered_bytes >> 20
        );
    }
    text.push_str(
        "PER_GPU POOL BUFFER STATS:\n\
         PER_GPU POSIX POOL BUFFER STATS:\n\
         PER_GPU RDMA STATS:\n\
         RDMA MRSTATS:\n\
         peer name   nr_mrs      mr_size(MiB)\n\
         PER GPU THREAD POOL STATS:\n",
    );
}

fn one_gpu(io: &IoTotals, regions: &str) -> String {
    format!(
        "bw={} util(%)={:.0} n={} posix={} unalign={} dr=0{regions} err={} MiB={}",
        gib_per_s(io.rate.bytes_per_s),
        io.rate.utilization_percent,
        io.ok,
        io.posix,
        io.unaligned,
        io.err,
        io.bytes >> 20
    )
}

fn gib_per_s(bytes_per_s: f64) -> String {
    six_digits(bytes_per_s / f64::from(1 << 30))
}

/// As C++ streams print: six significant digits, no zeros at the end.
fn six_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-4..6).contains(&magnitude) {
        let text = format!("{value:.5e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_zeros(digits), exponent.abs());
    }
    without_zeros(&format!("{value:.*}", (5 - magnitude) as usize)).to_owned()
}

fn without_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

#[cfg(test)]
mod tests {
    use super::six_digits;

    #[test]
    fn numbers_look_as_from_cpp() {
        let cases = [
            (0.0, "0"),
            (2.503_432_1, "2.50343"),
            (2.5, "2.5"),
            (50.0, "50"),
            (0.000_123_456_78, "0.000123457"),
            (0.000_012_345_678, "1.23457e-05"),
            (123_456_789.0, "1.23457e+08"),
        ];
        for (value, text) in cases {
            assert_eq!(six_digits(value), text);
        }
    }
}
