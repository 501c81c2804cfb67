//! Attacks on forebay and its drop-in libcufile, over the software GPU.
//!
//! Each attack is a program of its own, started again and again with other seeds until the time is over, so that one
//! that crashes or hangs is told as such and the others go on. What an attack does follows from its seed; what threads,
//! signals and the machine do meanwhile does not. A failure is printed with the command that runs this attack again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "never shipped: a panic is a failure of the attack"
)]
#![allow(clippy::unnecessary_wraps, reason = "all attacks have one type; some can always run")]
#![allow(unreachable_pub, reason = "modules of a program")]

mod attacks;
mod block;
mod bytes;
mod cufile;
mod gpu;
mod random;
mod runner;
mod trial;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;

/// Attacks forebay for a while; ends with figures, and with 1 if anything was wrong.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// How long, all attacks together
    #[arg(long, default_value_t = 180)]
    seconds: u64,
    /// What the attacks do follows from it [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// Only these attacks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Attacks at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Folder on a disk for their files, beside /dev/shm [default: $TMPDIR, else target/tmp]
    #[arg(long)]
    disk: Option<PathBuf>,
    /// Seconds after which a call hangs, on a busy machine too
    #[arg(long, default_value_t = 30)]
    patience: u64,
    /// A file that gets a line for each attack that cannot run here
    #[arg(long, value_name = "FILE")]
    skips: Option<PathBuf>,
    /// Lists the attacks
    #[arg(long)]
    list: bool,
    /// One attack in this process
    #[arg(long, hide = true)]
    child: Option<String>,
    /// A part of an attack that is a process of its own
    #[arg(long, hide = true, num_args = 1.., value_name = "STEP")]
    step: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        for attack in attacks::ALL {
            println!("{:12} {}", attack.name, attack.what);
        }
        return ExitCode::SUCCESS;
    }
    let now = || {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64 % 1_000_000_000
    };
    let seed = options.seed.unwrap_or_else(now);
    if !options.step.is_empty() {
        return attacks::step(&options.step);
    }
    match &options.child {
        Some(name) => trial::run(name, seed, &options),
        None => runner::run(seed, &options),
    }
}
