//! Machines that are connected by ssh, wait for a common start, and run a command.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_error::quoted;
use serde::Serialize;
use serde_json::Value;

use crate::interrupt::Guard;
use crate::ssh::{self, Host};

/// How long all connections together may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Time that machines have to end after a signal.
const GRACE: Duration = Duration::from_secs(15);
/// Sleep between two looks at a signal and at ends.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Printed by a machine that is connected.
const READY: &[u8] = b"forebay: ready";

/// Runs on a machine: says that it is there, waits for the start, ends the command when standard input closes.
const SCRIPT: &str = "exec 3<&0; echo forebay: ready; read -r go || exit 1; COMMAND </dev/null & pid=$!; \
{ cat <&3 >/dev/null; kill $pid; } >/dev/null 2>&1 & watch=$!; wait $pid; code=$?; kill $watch 2>/dev/null; exit $code";

/// The result of one machine.
#[derive(Debug, Serialize)]
pub(super) struct HostRun {
    pub(super) host: String,
    /// The report of its `forebay bench --json`.
    pub(super) report: Option<Value>,
    /// Why it has none.
    pub(super) error: Option<String>,
}

/// Connects all, starts the command on them, and waits for the reports. A signal ends it on all of them.
pub(super) fn together(hosts: &[Host], command: &str) -> Vec<HostRun> {
    let script = format!("exec sh -c {}", quoted(&SCRIPT.replace("COMMAND", command)));
    let mut all: Vec<_> =
        hosts.iter().map(|host| Remote::start(host, &script).map_err(|error| error.to_string())).collect();
    let end = Instant::now() + CONNECT_LIMIT;
    for one in &mut all {
        if let Ok(remote) = one
            && let Err(why) = remote.connect(end)
        {
            remote.kill();
            *one = Err(why);
        }
    }
    // When an input closes, the command on that machine ends.
    let inputs: Vec<ChildStdin> =
        all.iter_mut().filter_map(|one| one.as_mut().ok()?.child.stdin.take()).collect();
    for mut input in &inputs {
        // One that has ended says why on its standard error.
        let _ = input.write_all(b"go\n");
    }
    wait(&mut all, inputs);
    let named = hosts.iter().zip(all).map(|(host, one)| {
        let (report, error) = match one.and_then(Remote::report) {
            Ok(report) => (Some(report), None),
            Err(error) => (None, Some(error)),
        };
        HostRun { host: host.name().to_owned(), report, error }
    });
    named.collect()
}

/// Waits for the ends. After a signal the inputs are closed, and a machine that goes on is left behind.
fn wait(all: &mut [Result<Remote, String>], inputs: Vec<ChildStdin>) {
    let mut inputs = Some(inputs);
    let mut since = None;
    while all.iter_mut().flatten().any(Remote::is_running) {
        if Guard::caught().is_some() {
            drop(inputs.take());
            if since.get_or_insert_with(Instant::now).elapsed() > GRACE {
                all.iter_mut().flatten().for_each(Remote::kill);
                return;
            }
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// A machine that is being connected, or runs.
struct Remote {
    child: Child,
    ready: Receiver<()>,
    out: JoinHandle<Vec<u8>>,
    err: JoinHandle<Vec<u8>>,
}

impl Remote {
    fn start(host: &Host, script: &str) -> forebay_error::Result<Self> {
        let mut child = host.start(script)?;
        let (tell, ready) = channel();
        let out = child.stdout.take();
        let out = thread::spawn(move || out.map_or_else(Vec::new, |out| after_ready(out, &tell)));
        let err = ssh::collect(child.stderr.take());
        Ok(Self { child, ready, out, err })
    }

    /// Waits until it is connected, or has ended.
    fn connect(&self, end: Instant) -> Result<(), String> {
        loop {
            match self.ready.recv_timeout(LOOK_INTERVAL) {
                // The reason of its end is on its standard error.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                _ if Guard::caught().is_some() => return Err("interrupted before the start".to_owned()),
                Ok(()) => return Ok(()),
                Err(RecvTimeoutError::Timeout) if Instant::now() > end => {
                    return Err(format!("not connected in {} seconds", CONNECT_LIMIT.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its report, or why there is none.
    fn report(mut self) -> Result<Value, String> {
        let status = self.child.wait().map_err(|error| format!("cannot wait for ssh: {error}"))?;
        let out = self.out.join().unwrap_or_default();
        let err = ssh::text(self.err);
        match serde_json::from_slice::<Value>(&out) {
            Ok(report) if status.success() || report["interrupted"] == true => Ok(report),
            _ => {
                let error = err.lines().find_map(|line| line.strip_prefix("error: "));
                let last = || err.lines().rfind(|line| !line.trim().is_empty());
                Err(error
                    .or_else(last)
                    .map_or_else(|| format!("no message, {status}"), |line| line.trim().to_owned()))
            }
        }
    }
}

/// Reports when the machine is connected; has what it prints from then on. Before it are the banners of its shell.
fn after_ready(out: ChildStdout, tell: &Sender<()>) -> Vec<u8> {
    let mut out = BufReader::new(out).take(ssh::MAX_OUTPUT_BYTES);
    let (mut line, mut rest) = (Vec::new(), Vec::new());
    while line.trim_ascii() != READY {
        line.clear();
        if !matches!(out.read_until(b'\n', &mut line), Ok(1..)) {
            return rest;
        }
    }
    // Nobody listens where the others took too long.
    let _ = tell.send(());
    // A report that is cut short cannot be parsed: that is its error.
    let _ = out.read_to_end(&mut rest);
    rest
}
