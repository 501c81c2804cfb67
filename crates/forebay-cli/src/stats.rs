//! `forebay stats`, also as `gds_stats`: the live counters of running processes.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use clap::Args;
use forebay_error::{Error, ErrorKind, plain, plain_json};
use forebay_stats::{Reader, Snapshot, hidden_processes, list, render};

use crate::console::{Console, Failure};
use crate::interrupt::{Guard, exit_code};

/// What a running process moves through forebay: by which engine, how fast, and why not by a better one.
///
/// Every process that uses forebay has counters; nothing has to be set up before it starts. Without -p, the
/// processes of this user are listed.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Stats {
    /// The process
    #[arg(short = 'p', long, value_name = "PID")]
    pub(crate) pid: Option<u32>,

    /// Detail of gds_stats's part: 1 totals, 2 also sizes, 3 also GPUs
    #[arg(short = 'l', long, value_name = "1..3", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3), requires = "pid", conflicts_with_all = ["json", "prometheus"])]
    pub(crate) level: u32,

    /// Print JSON (docs/reference/stats.md)
    #[arg(long, conflicts_with = "prometheus")]
    pub(crate) json: bool,

    /// Print the text format of Prometheus
    #[arg(long)]
    pub(crate) prometheus: bool,

    /// Print again at this interval until the process ends
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) watch: Option<Duration>,

    /// Serve the metrics of all processes at http://ADDR/metrics until interrupted: 127.0.0.1:9464, [::1]:9464
    #[arg(long, value_name = "ADDR", value_parser = address, conflicts_with_all = ["pid", "json", "prometheus", "watch"])]
    pub(crate) listen: Option<SocketAddr>,
}

/// The flags of NVIDIA's gds_stats.
#[derive(Args, Clone, Debug)]
pub(crate) struct OneProcess {
    /// The process
    #[arg(short = 'p', value_name = "PID")]
    pid: u32,

    /// 1 totals, 2 also sizes, 3 also GPUs
    #[arg(short = 'l', value_name = "1..3", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    level: u32,
}

/// Runs the command.
pub(crate) fn run(args: &Stats, console: &Console<'_>) -> Result<i32, Failure> {
    if let Some(address) = args.listen {
        return listen(address, console);
    }
    let reader = args.pid.map(Reader::attach).transpose()?;
    let Some(every) = args.watch else {
        print(args, reader.as_ref(), console)?;
        return Ok(0);
    };
    let _guard = Guard::new();
    loop {
        print(args, reader.as_ref(), console)?;
        if let Some(signal) = pause(every) {
            return Ok(exit_code(signal));
        }
        if nobody_reads() || console.is_lost() {
            return Ok(0);
        }
        // The counters of a process that ended stay readable through our descriptor: one last look.
        if args.pid.is_some_and(|pid| !is_there(pid)) {
            print(args, reader.as_ref(), console)?;
            return Ok(0);
        }
    }
}

/// Runs the command as gds_stats: its text and nothing else.
pub(crate) fn run_gds_stats(args: &OneProcess, console: &Console<'_>) -> Result<i32, Failure> {
    let snapshot = Reader::attach(args.pid)?.snapshot()?;
    print_text(console, &render::gds_stats(&snapshot, args.level));
    Ok(0)
}

/// Serves the metrics to Prometheus until a signal comes.
fn listen(address: SocketAddr, console: &Console<'_>) -> Result<i32, Failure> {
    let _guard = Guard::new();
    let failed = |error: std::io::Error| {
        let error = Error::from_io(&error, "cannot listen").with("address", address);
        match error.errno() {
            libc::EADDRINUSE => error.hint("another program listens there: choose another port"),
            libc::EADDRNOTAVAIL => error.hint("use an address of this machine (ip -br addr), or 127.0.0.1"),
            libc::EACCES => error.hint("ports below 1024 need root: use 9464, for example"),
            _ => error,
        }
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    console.say(format!("metrics at http://{address}/metrics\n"));
    if let Some((why, hint)) = hidden_processes() {
        console.say(format!("note: processes of others are not seen: {why}\nhint: {hint}\n"));
    }
    forebay_stats::serve(&listener, &|| render::prometheus(&list()), &|| Guard::caught().is_some())?;
    Ok(Guard::caught().map_or(0, exit_code))
}

/// An address and a port. A name would be looked up, and may have several addresses.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "not an address and a port\nhint: 127.0.0.1:9464 for this machine alone, 0.0.0.0:9464 for others, too".to_owned()
    })
}

fn print(args: &Stats, reader: Option<&Reader>, console: &Console<'_>) -> Result<(), Failure> {
    let snapshots = match reader {
        Some(reader) => vec![reader.snapshot()?],
        None => list(),
    };
    if args.prometheus {
        print_text(console, &render::prometheus(&snapshots));
    } else if args.json {
        console.line(json(args, &snapshots)?);
    } else if reader.is_some() {
        for snapshot in &snapshots {
            print_text(console, &render::gds_stats(snapshot, args.level));
            print_text(console, &render::receipt(std::slice::from_ref(snapshot)));
        }
    } else if let (true, Some((why, hint))) = (snapshots.is_empty(), hidden_processes()) {
        console.say(format!("no counters can be found: {why}\nhint: {hint}\n"));
    } else if snapshots.is_empty() {
        console.say("no process of this user has counters\nhint: start a program on forebay: forebay run -- COMMAND\n");
    } else {
        print_text(console, &table(&snapshots));
    }
    Ok(())
}

/// An object for one process, an array for all. While watching, a line each time.
fn json(args: &Stats, snapshots: &[Snapshot]) -> Result<String, Failure> {
    let text = match (args.pid, args.watch) {
        (Some(_), None) => serde_json::to_string_pretty(&snapshots.first()),
        (Some(_), Some(_)) => serde_json::to_string(&snapshots.first()),
        (None, None) => serde_json::to_string_pretty(snapshots),
        (None, Some(_)) => serde_json::to_string(snapshots),
    };
    let text =
        text.map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write JSON: {error}")))?;
    Ok(plain_json(&text))
}

fn table(snapshots: &[Snapshot]) -> String {
    use std::fmt::Write;
    let mut text = format!("{:>8}  {:>10}  {:>10}  {:>9}  PROGRAM\n", "PID", "READ", "WRITTEN", "GB/s NOW");
    for snapshot in snapshots {
        let (read, write, batch) = (&snapshot.read, &snapshot.write, &snapshot.batch);
        let now = read.rate.bytes_per_s
            + write.rate.bytes_per_s
            + snapshot.readv.rate.bytes_per_s
            + snapshot.writev.rate.bytes_per_s
            + batch.read_bytes_per_s
            + batch.write_bytes_per_s;
        let sum = |parts: [u64; 3]| parts.into_iter().fold(0, u64::saturating_add);
        let _ = writeln!(
            text,
            "{:>8}  {:>10}  {:>10}  {:>9.2}  {}",
            snapshot.pid,
            forebay_bench::text::bytes(sum([read.bytes, snapshot.readv.bytes, batch.read_bytes])),
            forebay_bench::text::bytes(sum([write.bytes, snapshot.writev.bytes, batch.write_bytes])),
            now / 1e9,
            plain(&snapshot.program)
        );
    }
    text
}

/// Text that ends its lines itself.
fn print_text(console: &Console<'_>, text: &str) {
    console.line(text.trim_end_matches('\n'));
}

/// Waits; the signal that interrupted it.
pub(crate) fn pause(duration: Duration) -> Option<libc::c_int> {
    let end = Instant::now() + duration;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let caught = Guard::caught();
        if caught.is_some() || left.is_zero() {
            return caught;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Whether standard output is a pipe whose reader is gone.
fn nobody_reads() -> bool {
    let mut ask = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: one local struct is read and written; no waiting.
    unsafe { libc::poll(&raw mut ask, 1, 0) == 1 && ask.revents & libc::POLLERR != 0 }
}

/// Whether the process still runs. One that ended but was not waited for has no descriptors.
fn is_there(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.05..=86_400.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err("use 0.05 to 86400 seconds".into())
}
