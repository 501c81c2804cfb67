//! Readers, writers and little memory at once, for as long as you like: no byte may be wrong, no budget exceeded,
//! nothing may grow.
//!
//! `cargo run --release -p forebay-engine --example soak -- --seconds 600 [--readers N] [--writers N] [--settle MS]
//! [--budget MIB] [--pressure MIB] [DIRECTORY…]`. Without directories: `/dev/shm` and the current one. On the machine's
//! GPU, or on the one of `FOREBAY_LIBCUDA`. Exit code 1 if anything was wrong.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

#[path = "../tests/soak/mod.rs"]
mod soak;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use soak::{Options, Summary};

fn options() -> Result<Options, String> {
    let mut options = Options { report: Some(Duration::from_secs(10)), ..Options::new(60, Vec::new()) };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if !word.starts_with("--") {
            options.directories.push(PathBuf::from(word));
            continue;
        }
        let value = words.next().and_then(|value| value.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("{word} needs a number"))?;
        match word.as_str() {
            "--seconds" => options.seconds = value,
            "--readers" => options.readers = value as usize,
            "--writers" => options.writers = value as usize,
            "--settle" => options.settle = Duration::from_millis(value),
            "--budget" => options.budget = value << 20,
            "--pressure" => options.pressure = (value as usize) << 20,
            _ => return Err(format!("unknown option: {word}")),
        }
    }
    if options.directories.is_empty() {
        options.directories = vec![PathBuf::from("/dev/shm"), PathBuf::from(".")];
    }
    Ok(options)
}

fn tell(summary: &Summary) {
    println!("{}", summary.counts);
    if let Some((first, last)) = summary.held {
        println!(
            "resident {} -> {} MiB, descriptors {} -> {}, threads {} -> {}",
            first.resident >> 20,
            last.resident >> 20,
            first.descriptors,
            last.descriptors,
            first.threads,
            last.threads
        );
    }
    println!("violations: {}", summary.violations.len());
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    println!("{options:?}");
    let summary = soak::run(options);
    tell(&summary);
    ExitCode::from(u8::from(!summary.violations.is_empty()))
}
