//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Attacks forebay for a while; ends with figures, and with 1 if anything was wrong.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// How long, all attacks together
    #[arg(long, default_value_t = 180)]
    pub seconds: u64,
    /// What the attacks do follows from it [default: the time]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Only these attacks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Attacks at a time
    #[arg(long, default_value_t = 2)]
    pub jobs: usize,
    /// Folder on a disk for their files, beside /dev/shm [default: $TMPDIR, else target/tmp]
    #[arg(long)]
    pub disk: Option<PathBuf>,
    /// Seconds after which a call hangs, on a busy machine too
    #[arg(long, default_value_t = 30)]
    pub patience: u64,
    /// A file that gets a line for each attack that cannot run here
    #[arg(long, value_name = "FILE")]
    pub skips: Option<PathBuf>,
    /// Lists the attacks
    #[arg(long)]
    pub list: bool,
    /// One attack in this process
    #[arg(long, hide = true)]
    pub child: Option<String>,
    /// A part of an attack that is a process of its own
    #[arg(long, hide = true, num_args = 1.., value_name = "STEP")]
    pub step: Vec<String>,
}
