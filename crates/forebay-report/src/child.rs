//! Starts a process, waits for it, stops it, and keeps its output.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::model::Why;

/// Sleep between two looks at a process.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time that an interrupted process gets to clean up before it is killed.
const GRACE_TIME: Duration = Duration::from_secs(5);

/// A process to run.
pub(crate) struct Child {
    command: Command,
    /// The one CPU that it may use.
    pub(crate) cpu: Option<usize>,
    /// When it counts as stuck.
    pub(crate) limit: Duration,
    /// The exit code that means "cannot run here"; the reason is on stderr.
    pub(crate) absent: Option<i32>,
    /// The exit code that means "a part of it is missing": its output counts.
    pub(crate) partial: Option<i32>,
}

/// How it ended.
pub(crate) enum Ended {
    Done { text: String },
    Failed(Why),
    Absent(String),
    Stopped,
}

impl Child {
    /// A program and its arguments.
    pub(crate) fn new(words: impl IntoIterator<Item = OsString>) -> Self {
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for us: we stop it, and say so.
        command.process_group(0);
        Self { command, cpu: None, limit: Duration::from_mins(10), absent: None, partial: None }
    }

    pub(crate) fn env(&mut self, name: &str, value: &str) {
        self.command.env(name, value);
    }

    /// Runs it to its end, unless `stopped` says otherwise.
    pub(crate) fn run(mut self, stopped: &dyn Fn() -> bool) -> Ended {
        let cpu = self.cpu;
        let parent = std::process::id();
        // SAFETY: between fork and exec only system calls are made; the mask is a local.
        unsafe {
            self.command.pre_exec(move || {
                // The child ends when this process does.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                cpu.map_or(Ok(()), pin)
            });
        }
        let started = Instant::now();
        let mut child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) => return self.not_started(&error),
        };
        let out = child.stdout.take().map(reader);
        let err = child.stderr.take().map(reader);
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) if stopped() => break Err(Ended::Stopped),
                Ok(None) if started.elapsed() > self.limit => {
                    let text = format!("no end after {:.0} s: it was stopped", self.limit.as_secs_f64());
                    break Err(Ended::Failed(Why { text, hint: None }));
                }
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Err(error) => break Err(failed(format!("cannot wait for it: {error}"))),
            }
        };
        if status.is_err() {
            end(&mut child);
        }
        // Its own children may hold its pipes open.
        signal_group(&child, libc::SIGKILL);
        let (out, err) = (text(out), text(err));
        match status {
            Err(ended) => ended,
            Ok(status) if status.success() || is_code(status, self.partial) => Ended::Done { text: out },
            Ok(status) if is_code(status, self.absent) => Ended::Absent(last_line(&err)),
            Ok(status) => Ended::Failed(reason(status, &err)),
        }
    }

    fn not_started(&self, error: &std::io::Error) -> Ended {
        let name = self.command.get_program().display();
        if self.absent.is_some() && error.kind() == std::io::ErrorKind::NotFound {
            return Ended::Absent(format!("{name} is not installed"));
        }
        failed(format!("cannot start {name}: {error}"))
    }
}

fn is_code(status: ExitStatus, code: Option<i32>) -> bool {
    code.is_some() && status.code() == code
}

fn failed(text: String) -> Ended {
    Ended::Failed(Why { text, hint: None })
}

/// Lets the calling process run on one CPU.
fn pin(cpu: usize) -> std::io::Result<()> {
    // SAFETY: all-zero bytes are an empty mask; CPU_SET stays within it, as the number came from such a mask.
    let set = unsafe {
        let mut mask: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut mask);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &mask)
    };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The first CPU that this process may use.
pub(crate) fn first_cpu() -> Option<usize> {
    // SAFETY: all-zero bytes are an empty mask; the size passed is the mask's own.
    unsafe {
        let mut mask: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut mask) != 0 {
            return None;
        }
        (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &mask))
    }
}

fn reader(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (said, text) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // After a read error, keep the bytes that came before it.
        let _ = from.read_to_end(&mut bytes);
        let _ = said.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    text
}

/// The output, read to its end; empty while a process outside the group still holds the pipe.
fn text(reader: Option<Receiver<String>>) -> String {
    reader.and_then(|reader| reader.recv_timeout(GRACE_TIME).ok()).unwrap_or_default()
}

/// Interrupts it, so that it cleans up; kills it if it does not end.
fn end(child: &mut std::process::Child) {
    signal_group(child, libc::SIGINT);
    if !ends(child) {
        let _ = child.kill();
        // A process that waits for a silent drive or server ends only when that answers.
        ends(child);
    }
}

/// Whether it ends within [`GRACE_TIME`].
fn ends(child: &mut std::process::Child) -> bool {
    let asked = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if asked.elapsed() > GRACE_TIME {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

/// To the process and all that it started.
fn signal_group(child: &std::process::Child, signal: libc::c_int) {
    // SAFETY: no pointers are passed. The group has the child's number, which the kernel does not reuse while a member
    // lives.
    unsafe { libc::kill(-(child.id() as libc::pid_t), signal) };
}

/// The last output of a failed process, or its exit status.
fn reason(status: ExitStatus, err: &str) -> Why {
    let line = |prefix: &str| err.lines().find_map(|line| line.strip_prefix(prefix)).map(str::to_owned);
    if let Some(text) = line("error: ") {
        return Why { text, hint: line("hint: ") };
    }
    let how = match (status.signal(), status.code()) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, code) => format!("exit code {}", code.unwrap_or(-1)),
    };
    let last = last_line(err);
    Why { text: if last.is_empty() { how } else { format!("{how}: {last}") }, hint: None }
}

fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Child::new(["sh", "-c", script].map(OsString::from))
    }

    #[test]
    fn what_a_process_started_ends_with_it() {
        let began = Instant::now();
        assert!(
            matches!(shell("sleep 50 & echo done").run(&|| false), Ended::Done { text, .. } if text == "done\n")
        );
        assert!(matches!(shell("sleep 50 & exit 3").run(&|| false), Ended::Failed(_)));
        // A child that leaves the process group.
        let script = "echo done; setsid sleep 40 & sleep 0.2; exit 0";
        assert!(matches!(shell(script).run(&|| false), Ended::Done { .. }));
        assert!(began.elapsed() < Duration::from_secs(30), "it was waited for");
        let began = Instant::now();
        let stopped = || began.elapsed() > Duration::from_millis(200);
        assert!(matches!(shell("sleep 50 & wait").run(&stopped), Ended::Stopped));
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
