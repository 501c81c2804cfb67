//! The file server's CPU, by its /proc/stat.

use std::cell::RefCell;
use std::ffi::OsString;
use std::time::Duration;

use super::load::Ticks;
use crate::child::{Child, Ended};
use crate::model::Why;

/// How long the server's own load is sampled before a run.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// A sample that takes longer has failed: the connection is open, but the server is silent.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// Failures in a row after which the server is not asked again.
const MAX_FAILURES: usize = 3;
/// The kernel tells times to programs in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Where the server is.
pub(super) struct Server {
    host: String,
    /// The command that prints its ticks.
    command: Vec<OsString>,
    /// How long a look may take.
    limit: Duration,
    /// Looks that failed one after the other, and why the last did.
    failed: RefCell<(usize, String)>,
}

/// One sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    ticks: Ticks,
    cpus: usize,
}

/// The two samples before a run.
pub(super) type Before = Result<[Look; 2], String>;

impl Server {
    /// `ssh:HOST`, which was checked.
    pub(super) fn new(name: &str) -> Self {
        let host = name.strip_prefix("ssh:").unwrap_or(name).to_owned();
        // A connection that ssh keeps for later calls (ControlPersist) would hold its output open.
        let options = ["BatchMode=yes", "ConnectTimeout=5", "ControlMaster=no"].map(|option| ["-o", option]);
        let words =
            ["ssh"].into_iter().chain(options.into_iter().flatten()).chain(["--", &host, "cat /proc/stat"]);
        let command = words.map(OsString::from).collect();
        Self { host, command, limit: LOOK_LIMIT, failed: RefCell::default() }
    }

    /// Tries it once: before the first row, since its CPU would be missing in all of them.
    pub(super) fn check(&self, stopped: &dyn Fn() -> bool) -> Result<(), Why> {
        self.ask(stopped).map(drop).map_err(|text| Why {
            text,
            hint: Some(format!("ssh {} cat /proc/stat has to work without a password", self.host)),
        })
    }

    /// A server that does not answer is not asked for each run.
    fn look(&self, stopped: &dyn Fn() -> bool) -> Result<Look, String> {
        let mut failed = self.failed.borrow_mut();
        if failed.0 >= MAX_FAILURES {
            return Err(failed.1.clone());
        }
        let look = self.ask(stopped);
        *failed = look.as_ref().err().map_or((0, String::new()), |why| (failed.0 + 1, why.clone()));
        look
    }

    fn ask(&self, stopped: &dyn Fn() -> bool) -> Result<Look, String> {
        let mut child = Child::new(self.command.clone());
        child.limit = self.limit;
        let said = match child.run(stopped) {
            Ended::Done { text } => match Look::parse(&text) {
                Some(look) => return Ok(look),
                None => "no line of CPUs".to_owned(),
            },
            Ended::Failed(why) => why.text,
            Ended::Absent(reason) => reason,
            Ended::Stopped => "it was stopped".to_owned(),
        };
        Err(format!("ssh {} cat /proc/stat: {said}", self.host))
    }

    /// Looks at it before a run.
    pub(super) fn before(&self, stopped: &dyn Fn() -> bool) -> Before {
        let first = self.look(stopped)?;
        std::thread::sleep(LOOK_TIME);
        Ok([first, self.look(stopped)?])
    }

    /// Busy CPU in percent that a run has brought, of which `timed` seconds were measured.
    pub(super) fn since(&self, before: Before, timed: f64, stopped: &dyn Fn() -> bool) -> Result<f64, Why> {
        let seen = before.and_then(|before| Ok((before, self.look(stopped)?)));
        match seen {
            Ok((before, now)) => Ok(percent(before, now, timed)),
            Err(text) => {
                let hint = format!("ssh {} cat /proc/stat has to work without a password", self.host);
                Err(Why { text: format!("server CPU is not known: {text}"), hint: Some(hint) })
            }
        }
    }
}

impl Look {
    fn parse(text: &str) -> Option<Self> {
        let ticks = Ticks::parse(text)?;
        let is_cpu = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        Some(Self { ticks, cpus: text.lines().filter(is_cpu).count().max(1) })
    }
}

/// Busy ticks from the second look on, less its load without the run, on `timed` seconds of all its CPUs.
fn percent([first, second]: [Look; 2], now: Look, timed: f64) -> f64 {
    let anyway = second.ticks.percent_since(first.ticks) / 100.0;
    let all = now.ticks.all.saturating_sub(second.ticks.all) as f64;
    let busy = now.ticks.busy.saturating_sub(second.ticks.busy) as f64;
    let possible = now.cpus as f64 * TICKS_PER_SECOND * timed.max(1e-3);
    (busy - anyway * all).max(0.0) * 100.0 / possible
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(busy: u64, idle: u64) -> Look {
        let text = format!("cpu  {busy} 0 0 {idle} 0 0 0 0\ncpu0 1 0 0 1\ncpu1 1 0 0 1\nintr 5\n");
        Look::parse(&text).unwrap_or_else(|| unreachable!())
    }

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for() {
        let words = ["sh", "-c", "echo asked >&2; sleep 100"].map(OsString::from).into();
        let server = Server { command: words, limit: Duration::from_millis(100), ..Server::new("ssh:store") };
        let began = std::time::Instant::now();
        for _ in 0..MAX_FAILURES + 50 {
            let why = server.look(&|| false).err().unwrap_or_default();
            assert!(why.starts_with("ssh store cat /proc/stat: no end after"), "{why}");
        }
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_the_server_does_anyway_is_taken_off() {
        // Two CPUs, idle: 40 ticks in a run of 4 s, 2 of them timed.
        let idle = [look(1000, 0), look(1000, 200)];
        assert!((percent(idle, look(1040, 960), 2.0) - 10.0).abs() < 1e-9);
        // The same beside other work, which has a quarter of the CPUs.
        let busy = [look(1000, 0), look(1050, 150)];
        assert!((percent(busy, look(1050 + 200 + 40, 150 + 560), 2.0) - 10.0).abs() < 1e-9);
        // Less than anyway is nothing.
        assert!(percent(busy, look(1060, 940), 2.0).abs() < 1e-9);
    }
}
