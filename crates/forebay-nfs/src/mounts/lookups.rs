//! The process's state of mounts' servers: those that could not be reached, and files whose look-up is in progress.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use forebay_error::Error;
use forebay_remote::process::OfProcess;
use forebay_sys::threads;

use super::mounted_file::MountTransport;
use crate::lock;

/// Files that wait to be looked for, each with its descriptor. Chosen.
const MOST_LOOKS: usize = 16;
/// A server that could not be reached is not called again before this has passed, nor asked for a file that it does not give.
const SERVER_PAUSE: Duration = Duration::from_mins(1);

/// A server, and how it is reached.
type MountServer = (SocketAddr, MountTransport);

type Look = Box<dyn FnOnce() + Send>;

static LOOKUPS: OfProcess<Lookups> = OfProcess::new();

#[derive(Default)]
struct Lookups {
    /// Servers that could not be reached, until when they are left alone, and why.
    unreached: Mutex<Vec<(MountServer, Instant, Error)>>,
    queue: Mutex<LookQueue>,
}

/// One file is looked for after the other: the first of a server makes the client that the others share.
#[derive(Default)]
struct LookQueue {
    waiting: VecDeque<Look>,
    has_thread: bool,
}

/// Leaves a server alone for a while.
pub(super) fn leave_alone(address: SocketAddr, transport: MountTransport, why: &Error) {
    let mut all = lock(&LOOKUPS.get().unreached);
    all.retain(|(other, until, _)| *other != (address, transport) && Instant::now() < *until);
    all.push(((address, transport), Instant::now() + SERVER_PAUSE, why.clone()));
}

/// Why a server is left alone, if it is.
pub(super) fn unreached(address: SocketAddr, transport: MountTransport) -> Option<Error> {
    let all = lock(&LOOKUPS.get().unreached);
    let found =
        all.iter().find(|(other, until, _)| *other == (address, transport) && Instant::now() < *until);
    found.map(|(_, _, why)| why.clone())
}

/// Looks for a file soon, on the process's one thread for it. False: too many wait, or no thread is to be had. A look does not panic.
pub(super) fn look_soon(look: impl FnOnce() + Send + 'static) -> bool {
    let lookups = LOOKUPS.get();
    let mut queue = lock(&lookups.queue);
    if queue.waiting.len() >= MOST_LOOKS {
        return false;
    }
    if !queue.has_thread {
        queue.has_thread = threads::spawn("forebay-look", || lookups.work()).is_ok();
    }
    if queue.has_thread {
        queue.waiting.push_back(Box::new(look));
    }
    queue.has_thread
}

impl Lookups {
    /// Until nothing waits.
    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let Some(look) = queue.waiting.pop_front() else {
                queue.has_thread = false;
                return;
            };
            drop(queue);
            look();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn one_file_is_looked_for_after_the_other_and_few_wait() {
        let (go, may_go) = channel::<()>();
        let (tell, told) = channel();
        let first = tell.clone();
        assert!(look_soon(move || {
            first.send(0).unwrap();
            may_go.recv().unwrap();
        }));
        assert_eq!(told.recv().unwrap(), 0);
        let offer = |number: usize| {
            let tell = tell.clone();
            look_soon(move || tell.send(number).unwrap())
        };
        let taken: Vec<_> = (1..=MOST_LOOKS + 2).filter(|number| offer(*number)).collect();
        assert_eq!(taken, (1..=MOST_LOOKS).collect::<Vec<_>>());
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "two were looked for at once");
        go.send(()).unwrap();
        let limit = Duration::from_secs(10);
        let done: Vec<_> = taken.iter().map(|_| told.recv_timeout(limit).unwrap()).collect();
        assert_eq!(done, taken);
    }
}
