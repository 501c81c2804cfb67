//! `forebay serve`: what this machine has, for others.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gateway::{
    AccountEntry, Accounts, Limits, RdmaOptions, Server, ServerOptions, TlsFiles, in_directory, read_accounts,
};

use crate::console::{Console, Failure};

/// Serve a directory to other machines
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    command: ServeCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ServeCommand {
    S3(S3Args),
}

/// Serve a directory by S3: buckets are its directories, objects are files
///
/// Accounts come from a file, which SIGHUP has read again; without one, the keys of `AWS_ACCESS_KEY_ID` and
/// `AWS_SECRET_ACCESS_KEY` may do all. On SIGTERM `/healthz` answers 503 for `--leave-time`, then requests end, then the
/// server does.
#[derive(Args, Clone, Debug)]
struct S3Args {
    /// Its directories are the buckets
    #[arg(value_name = "DIR", value_parser = crate::names::target())]
    directory: PathBuf,
    /// Where it listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Who may ask: [[account]] with access_key, secret_key, directory, uid, gid, read_only, connections
    #[arg(long, value_name = "FILE")]
    accounts: Option<PathBuf>,
    /// Speak TLS with this certificate, and those between it and a root (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Where the socket lies by which programs on this machine get files in place of bytes: /run/forebay, or the user's runtime directory
    #[arg(long, value_name = "DIR", conflicts_with = "no_local")]
    local_directory: Option<PathBuf>,
    /// Give no files to programs on this machine
    #[arg(long)]
    no_local: bool,
    /// Write objects into clients' memory by RDMA, from the NIC of this name or address; without one, of the address that a client came by
    #[arg(long, value_name = "DEVICE|ADDRESS", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "a flag with or without a value")]
    rdma: Option<Option<String>>,
    /// Answer before objects are on the drive: a power cut may lose those of the last seconds
    #[arg(long)]
    no_sync: bool,
    /// Serve figures there, not where objects are
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Append one line a request to this file; `-`: standard output
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    max_connections: usize,
    /// Seconds between a signal to end and the end of the listener
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    leave_time: u64,
}

/// Runs the command.
pub(crate) fn run(args: &ServeArgs, console: &Console<'_>) -> std::result::Result<i32, Failure> {
    let ServeCommand::S3(args) = &args.command;
    let accounts = Arc::new(Accounts::new(entries(args)?, in_directory(&args.directory, !args.no_sync))?);
    let server = Server::bind(options(args)?, &accounts)?;
    let local = local_line(args, &server)?;
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    console.say(format!("serving {} at {scheme}://{}\n", args.directory.display(), server.address()));
    console.say(local);
    console.say(rdma_line(args, &server));
    let args = args.clone();
    server.run(move || reread(&args, &accounts))?;
    Ok(0)
}

fn options(args: &S3Args) -> Result<ServerOptions> {
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    Ok(ServerOptions {
        tls: files.map(|(certificate, key)| TlsFiles { certificate, key }),
        limits: Limits { connections: args.max_connections, ..Limits::default() },
        metrics: args.metrics,
        local: local_directory(args),
        rdma: args.rdma.as_ref().map(|nic| rdma(nic.as_deref())).transpose()?,
        access_log: args.access_log.clone(),
        leave_time: Duration::from_secs(args.leave_time),
        ..ServerOptions::new(args.listen)
    })
}

/// RDMA by the NIC of a name or an address.
fn rdma(nic: Option<&str>) -> Result<RdmaOptions> {
    let fabric = Arc::new(forebay_verbs::verbs()?);
    let address = nic.map(str::parse::<IpAddr>);
    match (nic, address) {
        (Some(device), Some(Err(_))) => RdmaOptions::of_device(fabric, device),
        (_, address) => Ok(RdmaOptions::new(fabric, address.and_then(std::result::Result::ok))),
    }
}

/// Where the socket for programs on this machine goes.
fn local_directory(args: &S3Args) -> Option<PathBuf> {
    if args.no_local {
        return None;
    }
    let set = |name| forebay_config::env::filled(name).map(PathBuf::from);
    // A service of systemd may have directories of its own: the first one is taken.
    let of_service = || set("RUNTIME_DIRECTORY").and_then(|list| first_of(list.as_os_str()));
    let of_user = || set("XDG_RUNTIME_DIR").map(|path| path.join("forebay"));
    let of_root = || rustix::process::geteuid().is_root().then(|| PathBuf::from("/run/forebay"));
    args.local_directory.clone().or_else(of_service).or_else(of_root).or_else(of_user)
}

/// The first absolute path of a list with colons.
fn first_of(list: &OsStr) -> Option<PathBuf> {
    let mut paths =
        list.as_bytes().split(|byte| *byte == b':').map(|path| Path::new(OsStr::from_bytes(path)));
    paths.find(|path| path.is_absolute()).map(Path::to_owned)
}

/// The line about the socket. One that the command names and that cannot be made is an error.
fn local_line(args: &S3Args, server: &Server) -> Result<String> {
    match server.local() {
        Some(Ok(path)) => Ok(format!("programs on this machine get files: {}\n", path.display())),
        Some(Err(error)) if args.local_directory.is_some() => Err(error.clone()),
        Some(Err(error)) => Ok(format!("programs on this machine get bytes, no files: {error}\n")),
        None => Ok(String::new()),
    }
}

/// The line about RDMA.
fn rdma_line(args: &S3Args, server: &Server) -> String {
    match (&args.rdma, server.rdma_device()) {
        (Some(Some(name)), Some(device)) if *name == device => format!("RDMA by {device}\n"),
        (Some(Some(address)), Some(device)) => format!("RDMA by {device} at {address}\n"),
        (Some(_), _) => "RDMA by the NIC that a client reaches\n".to_owned(),
        (None, _) => String::new(),
    }
}

fn entries(args: &S3Args) -> Result<Vec<AccountEntry>> {
    if let Some(path) = &args.accounts {
        return read_accounts(path);
    }
    let set = |name| forebay_config::env::text(name).filter(|value| !value.is_empty());
    let keys = set("AWS_ACCESS_KEY_ID").zip(set("AWS_SECRET_ACCESS_KEY"));
    let (access_key, secret_key) = keys.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "no account is given")
            .hint("forebay serve s3 DIR --accounts FILE")
            .hint("export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…")
    })?;
    Ok(vec![AccountEntry::new(access_key, secret_key)])
}

/// A file that is wrong leaves the accounts as they were, but for keys that it no longer names. Without a file there is nothing to read.
fn reread(args: &S3Args, accounts: &Accounts) {
    let Some(path) = &args.accounts else { return };
    match accounts.reread(path) {
        Ok(()) => eprintln!("forebay: accounts were read again"),
        Err(error) => eprintln!("forebay: accounts stay as they were, but for those removed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_services_directories_the_first_is_taken() {
        for (list, first) in [
            ("/run/forebay", Some("/run/forebay")),
            ("/run/forebay:/run/other", Some("/run/forebay")),
            (":forebay:/run/other", Some("/run/other")),
            ("forebay", None),
            ("", None),
        ] {
            assert_eq!(first_of(OsStr::new(list)), first.map(PathBuf::from), "{list}");
        }
    }
}
