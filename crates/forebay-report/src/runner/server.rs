//! The file server's CPU, by its /proc/stat.

use std::process::{Command, Stdio};

use super::load::Ticks;
use crate::model::Why;

/// Where the server is.
pub(super) struct Server {
    host: String,
}

/// What a look gave.
pub(super) type Look = Result<Ticks, String>;

impl Server {
    /// `ssh:HOST`, which was checked.
    pub(super) fn new(name: &str) -> Self {
        Self { host: name.strip_prefix("ssh:").unwrap_or(name).to_owned() }
    }

    pub(super) fn look(&self) -> Look {
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--", &self.host, "cat /proc/stat"]);
        let done =
            command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run ssh: {error}"))?;
        let text = String::from_utf8_lossy(&done.stdout);
        Ticks::parse(&text).ok_or_else(|| {
            let said = String::from_utf8_lossy(&done.stderr);
            let said = said.lines().last().unwrap_or("no line of CPUs").trim();
            format!("ssh {} cat /proc/stat: {said}", self.host)
        })
    }

    /// Busy CPU in percent since `before`. The process ran for `wall` seconds, of which `timed` were measured: what
    /// the server did is put on these.
    pub(super) fn since(&self, before: Look, wall: f64, timed: f64) -> Result<f64, Why> {
        let seen = before.and_then(|before| Ok((before, self.look()?)));
        match seen {
            Ok((before, now)) => Ok((now.percent_since(before) * wall / timed.max(1e-3)).min(100.0)),
            Err(text) => {
                let hint = format!("ssh {} cat /proc/stat has to work without a password", self.host);
                Err(Why { text: format!("server CPU is not known: {text}"), hint: Some(hint) })
            }
        }
    }
}
