//! From a server's name to a connection. Nothing here waits when waiting is to stop.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::threads;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::silence::SilenceClock;
use crate::stop::{SLICE, is_stopped, stopped};

/// The reason within an error: the server has no address, or takes no connection there.
#[derive(Debug)]
pub struct ServerUnreachable(Option<io::Error>);

impl fmt::Display for ServerUnreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(error) => error.fmt(f),
            None => f.write_str("no address of the server takes a connection"),
        }
    }
}

impl std::error::Error for ServerUnreachable {}

/// The addresses of a name.
pub fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let name = host.to_owned();
    let ask = move || (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    // What is an address needs no asking.
    let found = if host.parse::<IpAddr>().is_ok() { ask() } else { beside(ask, is_stopped)? };
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unknown(host, None)),
        Err(error) => Err(unknown(host, Some(error))),
    }
}

/// Does what may take long, and cannot be ended, on a thread of its own; that is left alone when waiting is to stop.
fn beside<T: Send + 'static>(
    long: impl FnOnce() -> T + Send + Clone + 'static,
    is_stopped: impl Fn() -> bool,
) -> Result<T> {
    let (tell, told) = mpsc::sync_channel(1);
    let body = long.clone();
    if threads::spawn("forebay-lookup", move || drop(tell.send(body()))).is_err() {
        return Ok(long());
    }
    loop {
        match told.recv_timeout(SLICE) {
            Ok(done) => return Ok(done),
            Err(_) if is_stopped() => return Err(stopped()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Internal, "a look-up of a name panicked"));
            }
        }
    }
}

fn unknown(host: &str, why: Option<io::Error>) -> Error {
    Error::new(ErrorKind::NotFound, "cannot find the server: its name has no address")
        .with("server", host)
        .hint(format!("getent hosts {host}"))
        .source(ServerUnreachable(why))
}

/// What `connect` makes of the first address that takes a connection.
pub fn first_of<T>(addresses: &[SocketAddr], mut connect: impl FnMut(SocketAddr) -> Result<T>) -> Result<T> {
    let mut last = None;
    for address in addresses {
        match connect(*address) {
            Ok(connected) => return Ok(connected),
            Err(error) => last = Some(error),
        }
        if is_stopped() {
            break;
        }
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Internal, "a server without an address")))
}

/// A socket for a connection to an address.
pub fn socket(address: SocketAddr) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(family, SocketType::STREAM, flags, None)
        .map_err(|errno| Error::from_errno(errno.raw_os_error(), "cannot make a socket"))
}

/// Connects a socket within `limit`; it does not block. Something waits for the server meanwhile. The error is an errno, for [`refused`].
pub fn connect(
    socket: OwnedFd,
    address: SocketAddr,
    limit: Duration,
    clock: &SilenceClock,
) -> Result<TcpStream, Errno> {
    match net::connect(&socket, &address) {
        Err(Errno::INPROGRESS) => wait_connected(&socket, limit, clock)?,
        done => done?,
    }
    let stream = TcpStream::from(socket);
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

fn wait_connected(socket: &OwnedFd, limit: Duration, clock: &SilenceClock) -> Result<(), Errno> {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now()).min(SLICE).max(Duration::from_millis(1));
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let mut polled = [PollFd::new(socket, PollFlags::OUT)];
        if poll(&mut polled, Some(&left)).is_ok_and(|ready| ready > 0) {
            return sockopt::socket_error(socket)?;
        }
        if is_stopped() {
            return Err(Errno::CANCELED);
        }
        let now = Instant::now();
        if now >= until {
            return Err(Errno::TIMEDOUT);
        }
        clock.waits(now);
    }
}

/// The error where an address takes no connection.
pub fn refused(address: SocketAddr, errno: Errno) -> Error {
    let error = Error::from_errno(errno.raw_os_error(), "cannot connect to the server");
    let error = error.with("address", address).source(ServerUnreachable(None));
    match errno {
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => {
            error.hint(format!("check the route and firewalls: nc -vz {} {}", address.ip(), address.port()))
        }
        _ => error,
    }
}

/// Ends a connection and what it has not sent, also where another process has its descriptor: a forked child.
pub fn abort(stream: &TcpStream) {
    // Where it is not possible, closing does it.
    let _ = net::connect_unspec(stream);
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind::WouldBlock, Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;
    use crate::silence::WaitLimits;

    fn clock() -> Arc<SilenceClock> {
        SilenceClock::new("server".to_owned())
    }

    fn reach(addresses: &[SocketAddr], limit: Duration, clock: &SilenceClock) -> Result<TcpStream> {
        first_of(addresses, |address| {
            connect(socket(address)?, address, limit, clock).map_err(|errno| refused(address, errno))
        })
    }

    /// Takes no connection, and refuses none, while the others are there.
    fn full() -> (TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        net::listen(&listener, 0).unwrap();
        let (at, limit) = ([listener.local_addr().unwrap()], Duration::from_millis(50));
        let waiting = std::iter::from_fn(|| reach(&at, limit, &clock()).ok()).collect();
        (listener, waiting)
    }

    #[test]
    fn a_server_is_waited_for_while_its_addresses_are_tried() {
        let dead: Vec<_> = (0..4).map(|_| full()).collect();
        let addresses: Vec<_> = dead.iter().map(|(listener, _)| listener.local_addr().unwrap()).collect();
        let (clock, began) = (clock(), Instant::now());
        clock.asked(began);
        let error = reach(&addresses, Duration::from_millis(200), &clock).unwrap_err();
        assert_eq!(error.errno(), libc::ETIMEDOUT);
        let now = Instant::now();
        assert!(now - began >= Duration::from_millis(800), "{:?}", now - began);
        // New calls use the clock of earlier ones.
        clock.asked(now);
        let limits = WaitLimits { silence: Duration::from_secs(1), deadline: Duration::from_mins(1) };
        assert!(clock.left(now, now, limits) <= Duration::from_millis(59_200));
    }

    #[test]
    fn no_more_addresses_are_tried_when_waiting_is_to_stop() {
        // It stops all that waits in the process: one that runs this test alone does.
        if !std::env::args().any(|word| word == "--exact") {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let name = "endpoint::tests::no_more_addresses_are_tried_when_waiting_is_to_stop";
            assert!(command.args(["--exact", name]).status().unwrap().success());
            return;
        }
        let (listener, _waiting) = full();
        let addresses = [listener.local_addr().unwrap(); 16];
        crate::stop::stop_waiting(true);
        let began = Instant::now();
        let error = reach(&addresses, Duration::from_secs(5), &clock());
        assert_eq!(error.unwrap_err().errno(), libc::ECANCELED);
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    }

    #[test]
    fn a_name_server_that_does_not_answer_is_left_alone_when_waiting_stops() {
        let began = Instant::now();
        assert_eq!(beside(|| 7, || panic!("it is there")).unwrap(), 7);
        let silent = || std::thread::sleep(Duration::from_secs(3));
        let is_stopped = || began.elapsed() > Duration::from_millis(300);
        assert_eq!(beside(silent, is_stopped).unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }

    /// A descriptor of a forked child's keeps a connection that this process has closed.
    #[test]
    fn what_is_not_sent_ends_with_the_connection_wherever_that_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let limit = Duration::from_secs(5);
        let mut stream = reach(&[listener.local_addr().unwrap()], limit, &clock()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let _elsewhere = stream.try_clone().unwrap();
        let mut sent = 0;
        loop {
            match stream.write(&[7; 1 << 13]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        abort(&stream);
        drop(stream);
        peer.set_read_timeout(Some(limit)).unwrap();
        let mut got = Vec::new();
        let ended = peer.read_to_end(&mut got).unwrap_err();
        assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(got.len() < sent, "{} of {sent}", got.len());
    }
}
