//! Attacks on forebay and its drop-in libcufile, over the software GPU.
//!
//! Each attack is a program of its own, started again and again with other seeds until the time is over, so that one
//! that crashes or hangs is reported as such, and the others continue. What an attack does follows from its seed; what
//! threads, signals and the machine do meanwhile does not. A failure is printed with the command that runs this attack
//! again.
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
mod options;
mod random;
mod runner;
mod trial;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use options::Options;

fn main() -> ExitCode {
    forebay::nfs::register();
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
    let Some(name) = &options.child else { return runner::run(seed, &options) };
    let Some(attack) = attacks::named(name) else {
        eprintln!("no attack is called {name}");
        return ExitCode::from(2);
    };
    trial::run(attack, seed, &options)
}
