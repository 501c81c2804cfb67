//! Other machines, by the system's ssh with the user's keys and configuration.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

/// The most that a script may print.
pub(crate) const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Sleep between two looks at ssh.
const POLL: Duration = Duration::from_millis(10);

/// A machine that ssh knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host(String);

impl Host {
    /// `ssh:HOST`, `ssh:USER@HOST` or `ssh://USER@HOST:PORT`; HOST may be an alias of ~/.ssh/config.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let rest = text.strip_prefix("ssh:").ok_or("write ssh:HOST, as: ssh:nfs1 or ssh:root@nfs1")?;
        // ssh takes this form of a URL itself.
        let host = if rest.starts_with("//") { text } else { rest };
        let is_odd = |c: char| c.is_whitespace() || c.is_control();
        if rest.trim_start_matches('/').is_empty() || rest.starts_with('-') || host.contains(is_odd) {
            return Err("no name of a host".to_owned());
        }
        Ok(Self(host.to_owned()))
    }

    /// The same, or the name alone, as in a list of hosts.
    pub(crate) fn of_name(text: &str) -> std::result::Result<Self, String> {
        if text.starts_with("ssh:") { Self::parse(text) } else { Self::parse(&format!("ssh:{text}")) }
    }

    /// The name, as the user gave it.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Starts a command there; its standard input is read from here.
    pub(crate) fn start(&self, command: &str) -> Result<Child> {
        let mut ssh = Command::new("ssh");
        // Nobody is there to answer a question. A host that is gone ends the connection after 45 seconds. A connection that ssh
        // keeps for later calls (ControlPersist) would hold standard error open, and the wait for its end would last as long.
        let options = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15", "ControlMaster=no"];
        ssh.args(options.iter().flat_map(|option| ["-o", option])).args(["--", &self.0, command]);
        // Ctrl-C is for this process, which ends what runs there.
        ssh.process_group(0);
        ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ssh.spawn().map_err(|error| {
            let error = Error::new(ErrorKind::NotFound, format!("cannot start ssh: {error}"));
            error.with("host", &self.0).hint("sudo apt install openssh-client")
        })
    }

    /// Runs a script of `sh` there, and has what it printed.
    pub(crate) fn run_script(&self, script: &'static str, limit: Duration) -> Result<String> {
        let mut child = self.start("sh")?;
        if let Some(mut input) = child.stdin.take() {
            // ssh may have ended already; its status says why.
            thread::spawn(move || input.write_all(script.as_bytes()));
        }
        let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let status = wait(&mut child, limit).map_err(|error| error.with("host", &self.0))?;
        let (out, err) = (text(out), text(err));
        if status == Some(0) {
            return Ok(out);
        }
        let why = err.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
        let error = Error::new(ErrorKind::Io, format!("ssh failed: {}", why.trim())).with("host", &self.0);
        Err(error.hint(format!(
            "this must work without a question: ssh {} true (a key in ssh-agent, the host in known_hosts)",
            self.0
        )))
    }
}

/// Waits for the end, and has the exit code; kills what takes longer.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<i32>> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.code()),
            Ok(None) if begun.elapsed() < limit => thread::sleep(POLL),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                let text = format!("ssh did not end in {} seconds", limit.as_secs());
                return Err(Error::new(ErrorKind::Timeout, text).hint("is the host there: ping HOST"));
            }
            Err(error) => return Err(Error::new(ErrorKind::Io, format!("cannot wait for ssh: {error}"))),
        }
    }
}

/// Reads to the end on a thread of its own.
pub(crate) fn collect(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // Bytes before an error are kept: the end of the text shows whether it is whole.
            let _ = stream.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
        }
        bytes
    })
}

/// The bytes that a reader has collected, as text.
pub(crate) fn text(reader: JoinHandle<Vec<u8>>) -> String {
    String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::Host;

    #[test]
    fn hosts_are_named_as_ssh_takes_them() {
        let name = |text: &str| Host::parse(text).map(|host| host.0);
        assert_eq!(name("ssh:root@nfs1").as_deref(), Ok("root@nfs1"));
        assert_eq!(name("ssh://root@nfs1:2222").as_deref(), Ok("ssh://root@nfs1:2222"));
        for wrong in ["nfs1", "ssh:", "ssh://", "ssh:-oProxyCommand=x", "ssh:a b"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
        let listed = |text: &str| Host::of_name(text).map(|host| host.0);
        assert_eq!(listed("root@nfs1").as_deref(), Ok("root@nfs1"));
        assert_eq!(listed("ssh:nfs1").as_deref(), Ok("nfs1"));
        assert!(listed("").is_err() && listed("-x").is_err());
    }
}
