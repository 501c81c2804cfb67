//! `forebay s3`: objects in buckets.

mod filter;
mod jobs;
mod ls;
mod moves;
mod probe;
mod slots;
mod sync;
mod transfer;
mod tree;

use clap::{Args, Subcommand};

use crate::console::{Console, Failure};
use crate::interrupt::Guard;
use crate::silence;

/// List, copy and remove objects in buckets; look at what their server can do
#[derive(Args, Clone, Debug)]
pub(crate) struct S3Args {
    #[command(subcommand)]
    command: S3Command,
}

#[derive(Clone, Debug, Subcommand)]
enum S3Command {
    Ls(ls::ListArgs),
    Cp(transfer::CopyArgs),
    Rm(transfer::RemoveArgs),
    Sync(sync::SyncArgs),
    Presign(ls::PresignArgs),
    Probe(probe::ProbeArgs),
}

/// Runs the command.
pub(crate) fn run(args: &S3Args, console: &Console<'_>) -> Result<i32, Failure> {
    // A file that goes through this machine guards itself.
    if let S3Command::Cp(args) = &args.command
        && args.is_through_here()
    {
        return transfer::copy(args, console);
    }
    let guard = Guard::new();
    let done = silence::told(console, || match &args.command {
        S3Command::Ls(args) => ls::run(args, console),
        S3Command::Cp(args) => transfer::copy(args, console),
        S3Command::Rm(args) => transfer::remove(args, console),
        S3Command::Sync(args) => sync::run(args, console),
        S3Command::Presign(args) => ls::presign(args, console),
        S3Command::Probe(args) => probe::run(args, console),
    });
    let interrupted = Guard::caught().filter(|_| done.is_err());
    drop(guard);
    match interrupted {
        Some(signal) => Err(Failure {
            code: crate::interrupt::exit_code(signal),
            ..done.err().unwrap_or_else(|| Failure::interrupted(signal, "nothing more is done"))
        }),
        None => done,
    }
}
