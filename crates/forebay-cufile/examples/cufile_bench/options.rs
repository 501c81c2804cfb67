//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Drives any libcufile.so.0 by its C interface and measures it.
///
/// One JSON line goes to standard output, one line for people to standard error. Exit code 1 if anything was wrong:
/// a refused call, a short result, a wrong byte, a hang.
#[derive(Parser, Clone, Debug)]
#[command(name = "cufile_bench")]
pub(crate) struct Options {
    /// The library to measure, e.g. target/release/libcufile.so
    #[arg(long, required_unless_present = "make")]
    pub(crate) lib: Option<PathBuf>,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Api::Sync)]
    pub(crate) api: Api,
    /// The file to read or write
    #[arg(long)]
    pub(crate) file: PathBuf,
    /// Bytes of the file to use, from its start (K, M, G are powers of 1024) [default: all]
    #[arg(long, value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// Bytes of one request
    #[arg(long, value_parser = parse_size, default_value = "1M")]
    pub(crate) io: u64,
    /// Threads, each with a part of the file, a buffer and, where they apply, batches and streams of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) threads: u64,
    /// Direction
    #[arg(long, value_enum, default_value_t = Direction::Read)]
    pub(crate) rw: Direction,
    /// Random offsets (multiples of --io) in the whole part of the file instead of one after the other
    #[arg(long)]
    pub(crate) random: bool,
    /// Hand over a descriptor with `O_DIRECT`
    #[arg(long)]
    pub(crate) direct: bool,
    /// Passes, each timed by itself [default: 3, or 1 with --secs]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) passes: Option<u64>,
    /// Let each pass last this long instead of once over the file
    #[arg(long)]
    pub(crate) secs: Option<f64>,
    /// Drop the file from the page cache before each pass
    #[arg(long)]
    pub(crate) drop: bool,
    /// Read the file into the page cache before the first pass
    #[arg(long)]
    pub(crate) warm: bool,
    /// Register the buffers (cuFileBufRegister)
    #[arg(long)]
    pub(crate) register_buffer: bool,
    /// Entries of a batch
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..65536))]
    pub(crate) batch: u64,
    /// Batches, or asynchronous requests, that a thread keeps in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) inflight: u64,
    /// CUDA streams of a thread, for --api async
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) streams: u64,
    /// Register the streams (cuFileStreamRegister) with these flags, 0..15
    #[arg(long)]
    pub(crate) stream_flags: Option<u32>,
    /// A further pass, not timed, in which every byte is compared with the pattern
    #[arg(long)]
    pub(crate) verify: bool,
    /// Seconds after which that pass is cut off
    #[arg(long, default_value_t = 10.0)]
    pub(crate) verify_secs: f64,
    /// First write the pattern to the file, unless it stands there; needs --size. Without --lib that is all
    #[arg(long, requires = "size")]
    pub(crate) make: bool,
    /// Beside the work a thread keeps the legacy default stream full
    #[arg(long)]
    pub(crate) busy: bool,
    /// Beside the work a thread runs training steps, for --secs before it and then throughout
    #[arg(long, requires = "secs", conflicts_with = "busy")]
    pub(crate) step: bool,
    /// Let the steps run beside a kernel that only sleeps, and beside threads that only spin, too
    #[arg(long, requires = "step")]
    pub(crate) floor: bool,
    /// The key of the pattern
    #[arg(long, default_value_t = 1)]
    pub(crate) key: u64,
    /// The kind of memory
    #[arg(long, value_enum, default_value_t = Memory::Device)]
    pub(crate) memory: Memory,
    /// The GPU
    #[arg(long, default_value_t = 0)]
    pub(crate) device: i32,
    /// Seconds without progress after which the run counts as hung
    #[arg(long, default_value_t = 20)]
    pub(crate) hang_limit: u64,
}

/// Which part of the interface is measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// cuFileRead, cuFileWrite
    Sync,
    /// cuFileBatchIO…
    Batch,
    /// cuFileReadAsync, cuFileWriteAsync
    Async,
    /// cuFileDriverOpen, cuFileHandleRegister and the first read, once
    Open,
}

/// Which way the bytes go.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the file
    Read,
    /// To the file
    Write,
}

/// Where the buffers are.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Memory of the GPU
    Device,
    /// Plain host memory
    Host,
    /// Managed memory
    Managed,
}

impl Options {
    pub(crate) fn passes(&self) -> u64 {
        self.passes.unwrap_or(if self.secs.is_some() { 1 } else { 3 })
    }

    pub(crate) fn writes(&self) -> bool {
        self.rw == Direction::Write
    }

    /// The options that describe the work, for the report.
    pub(crate) fn report(&self, size: u64) -> Value {
        let name = |text: String| text.to_lowercase();
        json!({
            "lib": self.lib,
            "api": name(format!("{:?}", self.api)),
            "rw": name(format!("{:?}", self.rw)),
            "memory": name(format!("{:?}", self.memory)),
            "file": self.file,
            "size": size,
            "io": self.io,
            "threads": self.threads,
            "random": self.random,
            "busy": self.busy,
            "direct": self.direct,
            "drop": self.drop,
            "secs": self.secs,
            "register_buffer": self.register_buffer,
            "batch": (self.api == Api::Batch).then_some(self.batch),
            "inflight": matches!(self.api, Api::Batch | Api::Async).then_some(self.inflight),
            "streams": (self.api == Api::Async).then_some(self.streams),
            "stream_flags": self.stream_flags,
        })
    }
}

/// `4K`, `16M`, `1G` or plain bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)) {
        Some(0) | None => Err("not a size such as 4K, 16M or 1G".to_owned()),
        Some(size) => Ok(size),
    }
}
