//! `forebay top`: what all processes move through forebay, live.

mod rows;
mod screen;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_error::{Error, ErrorKind, plain_json};
use forebay_stats::{Snapshot, hidden_processes, list};

use crate::console::{Console, Failure};
use crate::interrupt::{Guard, exit_code};
use crate::stats::{pause, seconds};
use rows::{Order, ProcessRow};
use screen::Screen;

/// The processes of this user that move bytes through forebay, live (as root: of all users). Keys: q quits; b bytes, i IOPS, l latency,
/// u queue, n NFS, p PID sort.
///
/// Without a terminal, or with --once or --json, it prints what came in one interval.
#[derive(Args, Clone, Debug)]
pub(crate) struct Top {
    /// Print the table once
    #[arg(long)]
    once: bool,

    /// Print the rows once, as JSON (docs/reference/stats.md)
    #[arg(long)]
    json: bool,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    interval: Duration,
}

/// Runs the command.
pub(crate) fn run(args: &Top, console: &Console<'_>) -> Result<i32, Failure> {
    let _guard = Guard::new();
    if let Some((why, hint)) = hidden_processes() {
        return Err(Error::new(ErrorKind::Unsupported, why).hint(hint).into());
    }
    if args.once || args.json || !std::io::stdout().is_terminal() {
        once(args, console)
    } else {
        live(args, console)
    }
}

/// The counters of all processes at one moment.
struct Look {
    at: Instant,
    snapshots: Vec<Snapshot>,
}

impl Look {
    fn now() -> Self {
        Self { at: Instant::now(), snapshots: list() }
    }

    /// A row for each process, with what came since `earlier`.
    fn rows(&self, earlier: &Self) -> Vec<ProcessRow> {
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        let of = |now: &Snapshot| {
            // A number may have gone to another process.
            let is_same = |then: &&Snapshot| (then.pid, then.opened_unix_ns) == (now.pid, now.opened_unix_ns);
            ProcessRow::new(now, earlier.snapshots.iter().find(is_same), seconds)
        };
        self.snapshots.iter().map(of).collect()
    }
}

/// What came within one interval.
fn once(args: &Top, console: &Console<'_>) -> Result<i32, Failure> {
    let earlier = Look::now();
    if let Some(signal) = pause(args.interval) {
        return Ok(exit_code(signal));
    }
    let mut rows = Look::now().rows(&earlier);
    Order::Bytes.sort(&mut rows);
    if args.json {
        let text = serde_json::to_string_pretty(&rows)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write JSON: {error}")))?;
        console.line(plain_json(&text));
    } else if rows.is_empty() {
        console.say("no process of this user has counters\nhint: start a program on forebay: forebay run -- COMMAND\n");
    } else {
        console.line(rows::HEAD);
        for row in &rows {
            console.line(row);
        }
    }
    Ok(0)
}

/// Redraws the table until `q` or a signal comes.
fn live(args: &Top, console: &Console<'_>) -> Result<i32, Failure> {
    let screen = Screen::open(console)?;
    let mut order = Order::Bytes;
    let mut earlier = Look::now();
    let mut rows = earlier.rows(&earlier);
    let mut due = Instant::now() + args.interval;
    loop {
        order.sort(&mut rows);
        screen.draw(&rows::lines(&rows, order));
        let key = screen.key(due);
        if let Some(signal) = Guard::caught() {
            return Ok(exit_code(signal));
        }
        if key == Some(b'q') || console.is_lost() {
            return Ok(0);
        }
        if let Some(other) = key.and_then(Order::of_key) {
            order = other;
        }
        if Instant::now() >= due {
            let look = Look::now();
            rows = look.rows(&earlier);
            (earlier, due) = (look, Instant::now() + args.interval);
        }
    }
}
