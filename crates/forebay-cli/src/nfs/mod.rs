//! `forebay nfs`: what an NFS server can do for forebay's own client.

mod found;
mod gpu;
mod nic;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use forebay_config::{Config, Nfs, elsewhere};
use forebay_error::{Error, ErrorKind, Result, quoted};
use forebay_nfs::handle::{FileAttributes, FileKind};
use forebay_nfs::probe::{SmallReads, WriteCost};
use forebay_nfs::{LeftOutAddress, NfsOptions, NfsUrl};

use crate::console::{Console, Failure};
use crate::interrupt::Guard;
use crate::json_file::JsonFile;
use crate::silence;
use found::Found;
use gpu::Placed;

/// The error of a command that takes only paths, for a URL or a misspelt one; `None` for a path.
pub(crate) fn not_a_path(command: &str, path: &Path) -> Option<Error> {
    let url = if NfsUrl::is_one(path) {
        // As it can be typed.
        NfsUrl::parse(path).map_or_else(|_| path.display().to_string(), |url| url.to_string())
    } else {
        NfsUrl::meant(path).filter(|_| !path.exists())?
    };
    Some(
        Error::new(
            ErrorKind::InvalidInput,
            format!("forebay {command} takes a path on a mount, not a file of a server"),
        )
        .with("path", path.display())
        .hint(format!("forebay nfs probe {} looks at the server, without a mount", quoted(&url))),
    )
}

/// Look at an NFS server with forebay's own client: no mount, no root
#[derive(Args, Clone, Debug)]
pub(crate) struct NfsArgs {
    #[command(subcommand)]
    command: NfsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum NfsCommand {
    Probe(ProbeArgs),
}

/// What the server speaks, what it takes in one call, and how fast a file is read: over 1, 4 and 8 TCP connections, by reads of 4 KiB, and
/// by RDMA into host memory and into each GPU's. Every byte is compared. Writes nothing to the server without --write.
#[derive(Args, Clone, Debug)]
struct ProbeArgs {
    /// SERVER:/PATH or nfs://SERVER/PATH, of a file or a directory
    #[arg(value_name = "SERVER:/PATH")]
    what: OsString,

    /// Measure writes and commits, too: with a hidden file of 64 MiB beside the named file (in it, for a directory), which is removed
    #[arg(long)]
    write: bool,

    /// Write the result as JSON (docs/reference/nfs-probe-json.md), to send from machines with real network cards; - is
    /// standard output, and the lines go to stderr then
    #[arg(long, value_name = "FILE", value_parser = crate::names::target())]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &NfsArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let NfsCommand::Probe(args) = &args.command;
    let url = url(&args.what).map_err(Failure::usage)?;
    let config = Config::from_env()?;
    if config.nfs == Nfs::Off {
        return Err(Error::new(ErrorKind::Unsupported, "FOREBAY_NFS=off refuses URLs")
            .with("url", &url)
            .hint("unset FOREBAY_NFS")
            .into());
    }
    let json = args.json.as_deref().map(|path| JsonFile::open(path, console)).transpose()?;
    // By 1, 4 and 8 connections, whatever FOREBAY_NFS_CONNECTIONS says.
    let options = NfsOptions { further: config.nfs_servers.of(&[&url.server]), ..NfsOptions::default() };
    let guard = Guard::new();
    let found = silence::told(console, || Found::look(&url, &options, args.write, gpu::session));
    // The signal ended waits for the server; a hidden file that was being written is removed by now.
    if let Some(signal) = Guard::caught() {
        return Err(Failure::interrupted(signal, "the server was not measured to the end"));
    }
    let found = found?;
    drop(guard);
    say(&found, console);
    let named = config.nfs_servers.names();
    if options.further.is_empty() && !named.is_empty() {
        let named = named.join(", ");
        console.say(format!("note: FOREBAY_NFS_SERVERS has no address of {}, only of {named}\n", url.server));
    }
    if let Some(json) = json {
        json.write(&found.json(), console)?;
    }
    Ok(i32::from(found.is_corrupt()))
}

/// A URL, or a source as `mount` takes it.
fn url(what: &OsStr) -> Result<NfsUrl> {
    let path = Path::new(what);
    if NfsUrl::is_one(path) {
        return NfsUrl::parse(what);
    }
    elsewhere::check_read(path).map_err(|error| match NfsUrl::meant(path) {
        Some(url) => error.hint(format!("a server of that name: {}", quoted(&url))),
        None => error,
    })?;
    let text = what.to_string_lossy();
    let is_scheme = text.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("nfs:"));
    match NfsUrl::meant(path) {
        Some(url) if !is_scheme => NfsUrl::parse(&url),
        meant => {
            let error = Error::new(ErrorKind::InvalidInput, format!("not a path of a server: {text:?}"));
            Err(error
                .hint(meant.unwrap_or_else(|| "SERVER:/EXPORT/PATH, or nfs://SERVER/EXPORT/PATH".to_owned())))
        }
    }
}

/// What a path of a server is.
fn described(found: &FileAttributes) -> String {
    match found.kind {
        FileKind::Regular => format!("{} of {} bytes", found.kind, found.size),
        kind => kind.to_string(),
    }
}

fn say(found: &Found, console: &Console<'_>) {
    let probe = &found.probe;
    console.line(format_args!("{}", found.url));
    for (version, found) in &probe.versions {
        let version = version.to_string();
        match found {
            Ok((limits, found)) => console.line(format_args!(
                "{version:<5} yes; reads of {} KiB and writes of {} KiB a call; {}",
                limits.read >> 10,
                limits.write >> 10,
                described(found)
            )),
            Err(error) => say_no(&version, error, console),
        }
    }
    say_addresses(&probe.addresses, console);
    if probe.rates.is_empty() {
        let what = described(&probe.attributes);
        console.line(format_args!("tcp   not measured: {what}: name a file that has bytes"));
    }
    for rate in &probe.rates {
        console.line(format_args!("tcp   {rate}"));
    }
    match &probe.rdma {
        Some(Ok(rate)) => console.line(format_args!("rdma  {rate}")),
        Some(Err(error)) => say_no("rdma", error, console),
        None => {}
    }
    if let Some(small) = &probe.small {
        say_small(small, console);
    }
    match &found.writes {
        Some(Ok(cost)) => say_writes(cost, console),
        Some(Err(error)) => say_no("write", error, console),
        None => {}
    }
    match &found.nics {
        Some(Ok(nics)) => nics.iter().for_each(|nic| console.line(format_args!("nic   {}", nic.line()))),
        Some(Err(error)) => say_no("nic", error, console),
        None => {}
    }
    match &found.gpus {
        Some(Ok(gpus)) => say_gpus(gpus, console),
        Some(Err(error)) => say_no("gpu", error, console),
        None => {}
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn say_small(small: &SmallReads, console: &Console<'_>) {
    let SmallReads { version, alone, connections, in_flight, iops } = small;
    console.line(format_args!(
        "4 KiB {version}, one at a time: p50 {:.0} us, p99 {:.0} us; {in_flight} in flight, {connections} connections: {iops:.0} IOPS",
        micros(alone.p50),
        micros(alone.p99)
    ));
}

fn say_writes(cost: &WriteCost, console: &Console<'_>) {
    let WriteCost { version, connections, bytes, alone, commits, .. } = cost;
    console.line(format_args!(
        "write {version}, {connections} connections: {:.3} GB/s ({bytes} bytes, durable, read again)",
        cost.gb_per_s()
    ));
    console.line(format_args!(
        "write 4 KiB, durable, one at a time: p50 {:.0} us, p99 {:.0} us",
        micros(alone.p50),
        micros(alone.p99)
    ));
    match commits {
        0 => console.line("write no commits: the server makes each write durable at once"),
        _ => console
            .line(format_args!("write a commit takes {:.0} us (mean of {commits})", micros(cost.commit))),
    }
}

/// Lines about the addresses of FOREBAY_NFS_SERVERS; none where it names no other address of the server.
fn say_addresses((used, left_out): &(usize, Vec<LeftOutAddress>), console: &Console<'_>) {
    if *used > 1 {
        console.line(format_args!("addr  {used} addresses are used"));
    }
    for LeftOutAddress { address, reason, hint } in left_out {
        console.line(format_args!("addr  {address} left out: {reason}"));
        console.line(format_args!("      hint: {hint}"));
    }
}

fn say_no(what: &str, error: &Error, console: &Console<'_>) {
    console.line(format_args!("{what:<5} no: {error}"));
    for hint in error.hints() {
        console.line(format_args!("      hint: {hint}"));
    }
}

fn say_gpus(gpus: &[Placed], console: &Console<'_>) {
    if gpus.is_empty() {
        console.line(format_args!("gpu   no GPU is in use"));
    }
    for gpu in gpus {
        match &gpu.result {
            Ok((rate, way)) => console.line(format_args!("gpu {} {rate}; {way}", gpu.index)),
            Err(error) => say_no(&format!("gpu {}", gpu.index), error, console),
        }
    }
}
