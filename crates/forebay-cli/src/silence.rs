//! Messages of a command that waits for a silent NFS server.

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_remote::silence::SilentServer;

use crate::console::Console;

/// How often servers are checked.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs `work`, and reports servers that it waits for for long, and their return.
pub(crate) fn told<T>(console: &Console<'_>, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        // Without the thread there are no messages.
        let _ = thread::Builder::new()
            .name("forebay-silence".to_owned())
            .spawn_scoped(scope, move || tell(console, &ended));
        let result = work();
        drop(end);
        result
    })
}

fn tell(console: &Console<'_>, ended: &Receiver<()>) {
    let mut known: Vec<SilentServer> = Vec::new();
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let now = forebay_remote::silence::silent();
        for line in changes(&known, &now, Instant::now(), SilentServer::has_answered) {
            // A terminal may have a live line there, which is drawn again.
            let start = if std::io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
            console.say(format!("{start}note: {line}\n"));
        }
        known = now;
    }
}

/// Messages about servers that are silent now, and were silent before. A server that nothing waits for any more has not
/// answered yet.
fn changes(
    before: &[SilentServer],
    now: &[SilentServer],
    at: Instant,
    has_answered: impl Fn(&SilentServer) -> bool,
) -> Vec<String> {
    let of = |all: &[SilentServer], server: &str| all.iter().any(|one| one.server == server);
    let seconds = |since: Instant| at.saturating_duration_since(since).as_secs();
    let begins = now.iter().filter(|one| !of(before, &one.server)).map(|one| {
        format!("server {} has not answered for {} s: still trying", one.server, seconds(one.since))
    });
    let ends = before
        .iter()
        .filter(|one| !of(now, &one.server) && has_answered(one))
        .map(|one| format!("server {} answers again, after {} s", one.server, seconds(one.since)));
    begins.chain(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_told_once_and_so_is_its_end() {
        let began = Instant::now();
        let silent = |server: &str| SilentServer { server: server.to_owned(), since: began, seen: began };
        let (one, two) = ([silent("a")], [silent("a"), silent("b")]);
        let told = |before: &[SilentServer], now: &[SilentServer], after| {
            changes(before, now, began + Duration::from_secs(after), |one| one.server == "b")
        };
        assert_eq!(told(&[], &one, 10), ["server a has not answered for 10 s: still trying"]);
        assert!(told(&one, &one, 11).is_empty());
        assert_eq!(told(&one, &two, 12), ["server b has not answered for 12 s: still trying"]);
        assert_eq!(told(&two, &one, 42), ["server b answers again, after 42 s"]);
        // All that waited for it was given up.
        assert!(told(&one, &[], 300).is_empty());
    }
}
