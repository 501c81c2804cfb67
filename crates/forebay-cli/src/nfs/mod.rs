//! `forebay nfs`: what an NFS server can do for forebay's own client.

mod gpu;

use clap::{Args, Subcommand};
use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::probe::Probe;
use forebay_nfs::{Options, Rdma, Url, probe};

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

/// What the server speaks, what it takes in one call, and how fast a file is read: over 1, 4 and 8 TCP connections, and by RDMA
/// into host memory and into each GPU's. Every byte is compared. Writes nothing to the server.
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
    let found = probe(&url, &Options::default())?;
    say(&found, &url, console);
    // Where no byte comes to host memory by RDMA, the reason is told.
    if let Some(Ok(rate)) = &found.rdma {
        say_devices(console);
        let only = Url { versions: vec![rate.version], ..url };
        match gpu::probe(&only) {
            Ok(gpus) => say_gpus(gpus, console),
            Err(error) => say_no("gpu", &error, console),
        }
    }
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
            Err(error) => say_no(&version, error, console),
        }
    }
    for rate in &probe.rates {
        console.line(format_args!("tcp   {rate}"));
    }
    match &probe.rdma {
        Some(Ok(rate)) => console.line(format_args!("rdma  {rate}")),
        Some(Err(error)) => say_no("rdma", error, console),
        None => {}
    }
}

fn say_no(what: &str, error: &Error, console: &Console<'_>) {
    console.line(format_args!("{what:<5} no: {error}"));
    for hint in error.hints() {
        console.line(format_args!("      hint: {hint}"));
    }
}

/// This machine's RDMA devices, and whether a key can be narrowed to one call by a window.
fn say_devices(console: &Console<'_>) {
    let devices = match Rdma::of_machine().and_then(|rdma| rdma.fabric.devices()) {
        Ok(devices) => devices,
        Err(error) => return say_no("nic", &error, console),
    };
    for device in devices {
        let windows = match device.windows {
            Some(true) => "has memory windows of type 2B",
            Some(false) => "has no memory windows of type 2B",
            None => "was not asked about memory windows",
        };
        console.line(format_args!("nic   {} ({:?}) {windows}", device.name, device.transport));
    }
}

fn say_gpus(gpus: Vec<gpu::Placed>, console: &Console<'_>) {
    if gpus.is_empty() {
        console.line(format_args!("gpu   no GPU is in use"));
    }
    for (index, found) in gpus {
        match found {
            Ok((rate, way)) => console.line(format_args!("gpu {index} {rate}; {way}")),
            Err(error) => say_no(&format!("gpu {index}"), &error, console),
        }
    }
}
