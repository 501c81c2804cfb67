//! The lines that gdsio prints, to the byte: scripts parse them.

use std::fmt::Write;

use crate::workload::job::IoSize;

/// The figures of one result line.
#[derive(Clone, Copy, Debug)]
pub struct ResultLine<'a> {
    /// `READ`, `WRITE`, `RANDREAD`, `RANDWRITE`.
    pub io_type: &'a str,
    /// As [`crate::Xfer::name`].
    pub xfer_type: &'a str,
    /// Threads; 1 for batches.
    pub threads: usize,
    /// Entries per batch, for batches only.
    pub io_depth: Option<usize>,
    /// Bytes moved.
    pub bytes: u64,
    /// Bytes of the data set.
    pub data_set: u64,
    /// Bytes per I/O.
    pub io: IoSize,
    /// Mean latency of an I/O (of a batch, for batches) in microseconds.
    pub latency_us: f64,
    /// I/Os done.
    pub ops: u64,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// What gdsio prints before the reading pass of `-V`.
pub const VERIFYING: &str = "Verifying data ";

impl ResultLine<'_> {
    /// GiB per second as gdsio computes it.
    pub fn gib_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / 1024.0 / f64::from(1 << 20) / self.seconds } else { 0.0 }
    }
}

/// The result line, without its line break.
pub fn line(l: &ResultLine<'_>) -> String {
    let mut text = format!("IoType: {} XferType: {} Threads: {} ", l.io_type, l.xfer_type, l.threads);
    if let Some(depth) = l.io_depth {
        let _ = write!(text, "IoDepth: {depth} ");
    }
    let _ = write!(text, "DataSetSize: {}/{}(KiB) ", l.bytes >> 10, l.data_set >> 10);
    if l.io.is_fixed() {
        let _ = write!(text, "IOSize: {}(KiB) ", l.io.min >> 10);
    } else {
        let _ = write!(text, "IOSize: {}-{}-{}(KiB) ", l.io.min >> 10, l.io.max >> 10, l.io.step >> 10);
    }
    // gdsio has no latency for a single I/O and prints 0.
    let latency = if l.ops > 1 { l.latency_us } else { 0.0 };
    let _ = write!(
        text,
        "Throughput: {:.6} GiB/sec, Avg_Latency: {latency:.6} usecs ops: {} total_time {:.6} secs",
        l.gib_per_s(),
        l.ops,
        l.seconds
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Real lines of gdsio (reference/cufile.md §3.1) and the figures behind them.
    #[test]
    fn real_lines() {
        let kib = 1 << 10;
        let cases = [
            (
                ResultLine {
                    io_type: "READ",
                    xfer_type: "GPUD",
                    threads: 1,
                    io_depth: None,
                    bytes: 16_117_760 * kib,
                    data_set: 10_485_760 * kib,
                    io: IoSize::fixed(256 * kib),
                    latency_us: 155.969_457,
                    ops: 62960,
                    seconds: 9.826_353,
                },
                "IoType: READ XferType: GPUD Threads: 1 DataSetSize: 16117760/10485760(KiB) IOSize: 256(KiB) Throughput: 1.564272 GiB/sec, Avg_Latency: 155.969457 usecs ops: 62960 total_time 9.826353 secs",
            ),
            (
                ResultLine {
                    io_type: "RANDWRITE",
                    xfer_type: "GPUD",
                    threads: 32,
                    io_depth: None,
                    bytes: 43_222_136 * kib,
                    data_set: 16_384_000 * kib,
                    io: IoSize::fixed(4 * kib),
                    latency_us: 352.314_946,
                    ops: 10_805_534,
                    seconds: 119.498_576,
                },
                "IoType: RANDWRITE XferType: GPUD Threads: 32 DataSetSize: 43222136/16384000(KiB) IOSize: 4(KiB) Throughput: 0.344940 GiB/sec, Avg_Latency: 352.314946 usecs ops: 10805534 total_time 119.498576 secs",
            ),
            (
                ResultLine {
                    io_type: "WRITE",
                    xfer_type: "GPU_BATCH",
                    threads: 1,
                    io_depth: Some(10),
                    bytes: 80 * kib,
                    data_set: 80 * kib,
                    io: IoSize::fixed(4 * kib),
                    latency_us: 3476.65,
                    ops: 20,
                    seconds: 0.007_250,
                },
                "IoType: WRITE XferType: GPU_BATCH Threads: 1 IoDepth: 10 DataSetSize: 80/80(KiB) IOSize: 4(KiB) Throughput: 0.010523 GiB/sec, Avg_Latency: 3476.650000 usecs ops: 20 total_time 0.007250 secs",
            ),
            (
                ResultLine {
                    io_type: "WRITE",
                    xfer_type: "CPU_GPU",
                    threads: 1,
                    io_depth: None,
                    bytes: 8_388_608 * kib,
                    data_set: 8_388_608 * kib,
                    io: IoSize::fixed(1024 * kib),
                    latency_us: 233.618_286,
                    ops: 8192,
                    seconds: 1.914_172,
                },
                "IoType: WRITE XferType: CPU_GPU Threads: 1 DataSetSize: 8388608/8388608(KiB) IOSize: 1024(KiB) Throughput: 4.179353 GiB/sec, Avg_Latency: 233.618286 usecs ops: 8192 total_time 1.914172 secs",
            ),
            (
                ResultLine {
                    io_type: "WRITE",
                    xfer_type: "GPUD",
                    threads: 1,
                    io_depth: None,
                    bytes: 4 * kib,
                    data_set: 4 * kib,
                    io: IoSize::fixed(4 * kib),
                    latency_us: 1932.0,
                    ops: 1,
                    seconds: 0.001_932,
                },
                "IoType: WRITE XferType: GPUD Threads: 1 DataSetSize: 4/4(KiB) IOSize: 4(KiB) Throughput: 0.001974 GiB/sec, Avg_Latency: 0.000000 usecs ops: 1 total_time 0.001932 secs",
            ),
        ];
        for (figures, expected) in cases {
            let printed = line(&figures);
            // gdsio divides the unrounded time: allow its last digits of the throughput to differ.
            let cut = |text: &str| {
                let (head, rest) = text.split_once("Throughput: ").unwrap();
                let (value, tail) = rest.split_once(' ').unwrap();
                (head.to_owned(), value.parse::<f64>().unwrap(), tail.to_owned())
            };
            let (a, b) = (cut(&printed), cut(expected));
            assert_eq!((a.0, a.2), (b.0, b.2));
            assert!((a.1 - b.1).abs() <= 2e-6, "{printed}\n{expected}");
        }
    }

    #[test]
    fn ranges() {
        let io: IoSize = "16M:32M:4M".parse().unwrap();
        let figures = ResultLine {
            io_type: "READ",
            xfer_type: "GPUD",
            threads: 2,
            io_depth: None,
            bytes: 0,
            data_set: 0,
            io,
            latency_us: 0.0,
            ops: 0,
            seconds: 0.0,
        };
        assert!(line(&figures).contains("IOSize: 16384-32768-4096(KiB) Throughput: 0.000000 GiB/sec"));
    }
}
