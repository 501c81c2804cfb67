//! `forebay nfs`: what an NFS server can do for forebay's own client.

use clap::{Args, Subcommand};
use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::probe::Probe;
use forebay_nfs::{Options, Url, probe};

use crate::console::{Console, Failure};

/// Look at an NFS server with forebay's own client: no mount, no root
#[derive(Args, Clone, Debug)]
pub(crate) struct Nfs {
    #[command(subcommand)]
    command: NfsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum NfsCommand {
    Probe(ProbeArgs),
}

/// What the server speaks, what it takes in one call, and how fast a file is read by 1, 4 and 8 connections, with every
/// byte compared. Writes nothing.
#[derive(Args, Clone, Debug)]
struct ProbeArgs {
    /// SERVER:/PATH or nfs://SERVER/PATH, of a file or a directory
    #[arg(value_name = "SERVER:/PATH")]
    what: String,
}

/// Runs the command.
pub(crate) fn run(args: &Nfs, console: &Console<'_>) -> Result<i32, Failure> {
    let NfsCommand::Probe(args) = &args.command;
    let url = url(&args.what).map_err(Failure::usage)?;
    // By 1, 4 and 8 connections, whatever FOREBAY_NFS_CONNECTIONS says.
    say(&probe(&url, &Options::default())?, &url, console);
    Ok(0)
}

/// A URL, or what `mount` would take.
fn url(text: &str) -> Result<Url> {
    if text.starts_with(forebay_nfs::url::SCHEME) {
        return Url::parse(text);
    }
    let (server, path) = text.split_once(":/").ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, format!("not a path of a server: {text:?}"))
            .hint("SERVER:/EXPORT/PATH, or nfs://SERVER/EXPORT/PATH")
    })?;
    Url::parse(&format!("nfs://{server}/{path}"))
}

fn say(probe: &Probe, url: &Url, console: &Console<'_>) {
    console.line(format_args!("{url}"));
    for (version, found) in &probe.versions {
        let version = version.to_string();
        match found {
            Ok((limits, found)) => console.line(format_args!(
                "{version:<5} yes; reads of {} KiB and writes of {} KiB a call; {:?} of {} bytes",
                limits.read >> 10,
                limits.write >> 10,
                found.kind,
                found.size
            )),
            Err(error) => {
                console.line(format_args!("{version:<5} no: {error}"));
                for hint in error.hints() {
                    console.line(format_args!("      hint: {hint}"));
                }
            }
        }
    }
    for rate in &probe.rates {
        console.line(format_args!("tcp   {rate}"));
    }
    match &probe.rdma {
        Some(Ok(rate)) => console.line(format_args!("rdma  {rate}")),
        Some(Err(error)) => {
            console.line(format_args!("rdma  no: {error}"));
            for hint in error.hints() {
                console.line(format_args!("      hint: {hint}"));
            }
        }
        None => {}
    }
}
