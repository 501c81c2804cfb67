//! Connections over TCP, from a port below 1024 where that is wanted and the process may have one.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::threads;
use forebay_verbs::Why;

use crate::network::options::Options;
use crate::network::outage::{Outage, SLICE, is_stopped, stopped};
use crate::protocol::rpc::random;

/// The reason within an error: the server has no address, or takes no connection there.
#[derive(Debug)]
pub(crate) struct ServerUnreachable(Option<io::Error>);

impl ServerUnreachable {
    /// Whether this is why.
    pub(crate) fn is_why(error: &Error) -> bool {
        let first = std::error::Error::source(error);
        std::iter::successors(first, |cause| cause.source()).any(<dyn std::error::Error>::is::<Self>)
    }
}

impl fmt::Display for ServerUnreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(error) => error.fmt(f),
            None => f.write_str("no address of the server takes a connection"),
        }
    }
}

impl std::error::Error for ServerUnreachable {}

/// Whether the server was not reached at all, over TCP or by RDMA, or did not answer.
pub fn is_unreached(error: &Error) -> bool {
    ServerUnreachable::is_why(error) || Why::of(error).is_some() || error.kind() == ErrorKind::Timeout
}

/// The addresses of a name.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
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

/// A connection to the first address that takes one. Something waits for it meanwhile.
pub(crate) fn connect(addresses: &[SocketAddr], options: &Options, outage: &Outage) -> Result<TcpStream> {
    connect_from(0, addresses, options, outage)
}

/// The same from a port of this side's, if it is free; 0: any. Servers know calls that come again by it.
pub(crate) fn connect_from(
    port: u16,
    addresses: &[SocketAddr],
    options: &Options,
    outage: &Outage,
) -> Result<TcpStream> {
    let mut last = None;
    for address in addresses {
        match connect_to(*address, port, options, outage) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
        if is_stopped() {
            break;
        }
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Internal, "a server without an address")))
}

/// This process may have no port below 1024.
static MAY_NOT: AtomicBool = AtomicBool::new(false);

/// How often another port below 1024 is tried where one was used a moment ago for the same server.
const LOW_ATTEMPTS: u32 = 40;

/// The lowest of the ports below 1024 that are taken, and how many there are.
const LOWEST_PORT: u16 = 665;
const LOW_PORTS: u64 = 359;

fn connect_to(address: SocketAddr, port: u16, options: &Options, outage: &Outage) -> Result<TcpStream> {
    let began = Instant::now();
    for attempt in 0..=LOW_ATTEMPTS {
        let wants_low = options.low_ports && attempt < LOW_ATTEMPTS && !MAY_NOT.load(Ordering::Relaxed);
        let socket = socket(address).map_err(|errno| Error::from_errno(errno, "cannot make a socket"))?;
        let is_bound = attempt == 0 && port > 0 && bind(&socket, address, port).is_ok();
        if !is_bound
            && wants_low
            && let Err(errno) = bind_low(&socket, address)
        {
            MAY_NOT.fetch_or(errno == libc::EACCES, Ordering::Relaxed);
        }
        match finish(&socket, address, options.connect.saturating_sub(began.elapsed()), outage) {
            Ok(()) => {
                let stream = TcpStream::from(socket);
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            // The port was used a moment ago for the same server.
            Err(libc::EADDRNOTAVAIL | libc::EADDRINUSE) if wants_low || is_bound => {}
            Err(errno) => return Err(refused(errno, address)),
        }
    }
    Err(refused(libc::EADDRNOTAVAIL, address))
}

fn refused(errno: i32, address: SocketAddr) -> Error {
    let error = Error::from_errno(errno, "cannot connect to the server");
    let error = error.with("address", address).source(ServerUnreachable(None));
    match errno {
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            error.hint(format!("check the route and firewalls: nc -vz {} {}", address.ip(), address.port()))
        }
        _ => error,
    }
}

fn socket(address: SocketAddr) -> Result<OwnedFd, i32> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Gives a socket a port from 665 to 1023: one that is free, else one that other connections have or had, to other servers.
fn bind_low(socket: &OwnedFd, address: SocketAddr) -> Result<(), i32> {
    let first = random() % LOW_PORTS;
    for shares in [false, true] {
        if shares {
            share_port(socket);
        }
        for step in 0..LOW_PORTS {
            match bind(socket, address, LOWEST_PORT + ((first + step) % LOW_PORTS) as u16) {
                Err(libc::EADDRINUSE) => {}
                Ok(()) => {
                    share_port(socket);
                    return Ok(());
                }
                other => return other,
            }
        }
    }
    Err(libc::EADDRINUSE)
}

/// Another socket may have the same port, too, for another server.
fn share_port(socket: &OwnedFd) {
    set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32);
}

/// Whether a connection has a port below 1024.
pub(crate) fn has_low_port(stream: &TcpStream) -> bool {
    stream.local_addr().is_ok_and(|own| own.port() < 1024)
}

/// Whether a connection that was to have a port below 1024 has none, though this process may: none was free.
pub(crate) fn lacks_low_port(stream: &TcpStream) -> bool {
    !MAY_NOT.load(Ordering::Relaxed) && !has_low_port(stream)
}

/// Gives a socket that is to be connected to an address a port of this side's.
fn bind(socket: &OwnedFd, address: SocketAddr, port: u16) -> Result<(), i32> {
    let place = if address.is_ipv4() { ([0; 4], port).into() } else { ([0u16; 8], port).into() };
    with_address(place, |pointer, len| {
        // SAFETY: pointer and length are of an address.
        unsafe { libc::bind(socket.as_raw_fd(), pointer, len) }
    })
}

/// From now on the end of a connection, that of the process too, ends what it has not sent: sent later, calls to write would
/// be carried out behind those that were made after them. [`end_in_order`] takes it back. Nothing rests of such a connection either: its port is free at once.
pub(crate) fn end_unsent(stream: &TcpStream) {
    set(stream, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// The connection has nothing to send: its end is to be an orderly one.
pub(crate) fn end_in_order(stream: &TcpStream) {
    set(stream, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 0, l_linger: 0 });
}

/// Ends a connection and what it has not sent, also where another process has its descriptor: a forked child.
pub(crate) fn abort(stream: &TcpStream) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: pointer and length are of an address. Where it is not possible, closing does it.
    unsafe { libc::connect(stream.as_raw_fd(), &raw const nowhere, size_of_val(&nowhere) as u32) };
}

/// Has the peer's kernel asked for a sign of life when nothing has come for so long: one that is gone, or has forgotten the
/// connection, is known after three times as long.
pub(crate) fn keep_alive(stream: &TcpStream, every: Duration) {
    let seconds = every.as_secs().max(1) as i32;
    set(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32);
    set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &seconds);
    set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &seconds);
    set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &2i32);
}

/// Sets an option. Without it the connection works.
fn set<T>(stream: &impl AsRawFd, level: i32, option: i32, value: &T) {
    let (pointer, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as u32);
    // SAFETY: pointer and length are of the value.
    unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, pointer, len) };
}

fn finish(socket: &OwnedFd, address: SocketAddr, limit: Duration, outage: &Outage) -> Result<(), i32> {
    let begun = with_address(address, |pointer, len| {
        // SAFETY: pointer and length are of an address.
        unsafe { libc::connect(socket.as_raw_fd(), pointer, len) }
    });
    match begun {
        Err(libc::EINPROGRESS) => {}
        other => return other,
    }
    let mut polled = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now()).min(SLICE);
        // SAFETY: one entry.
        let ready = unsafe { libc::poll(&mut polled, 1, left.as_millis().max(1) as i32) };
        if ready > 0 {
            break;
        }
        if is_stopped() {
            return Err(libc::ECANCELED);
        }
        let now = Instant::now();
        if now >= until {
            return Err(libc::ETIMEDOUT);
        }
        outage.waits(now);
    }
    let (mut error, mut len) = (0i32, 4u32);
    // SAFETY: the place has 4 bytes.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &mut len,
        )
    };
    match (got, error) {
        (0, 0) => Ok(()),
        (0, error) => Err(error),
        _ => Err(errno()),
    }
}

fn with_address(
    address: SocketAddr,
    call: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> i32,
) -> Result<(), i32> {
    let result = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            call((&raw const raw).cast(), size_of_val(&raw) as u32)
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            call((&raw const raw).cast(), size_of_val(&raw) as u32)
        }
    };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind::WouldBlock, Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn reached(listener: &TcpListener, options: &Options) -> Result<TcpStream> {
        connect(&[listener.local_addr().unwrap()], options, &Outage::new("server".to_owned()))
    }

    /// Takes no connection, and refuses none, while the others are there.
    fn full() -> (TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let options = Options { connect: Duration::from_millis(50), ..Options::default() };
        let waiting = std::iter::from_fn(|| reached(&listener, &options).ok()).collect();
        (listener, waiting)
    }

    #[test]
    fn a_server_is_waited_for_while_its_addresses_are_tried() {
        let dead: Vec<_> = (0..4).map(|_| full()).collect();
        let addresses: Vec<_> = dead.iter().map(|(listener, _)| listener.local_addr().unwrap()).collect();
        let options = Options { connect: Duration::from_millis(200), ..Options::default() };
        let (outage, began) = (Outage::new("server".to_owned()), Instant::now());
        outage.asked(began);
        assert_eq!(connect(&addresses, &options, &outage).unwrap_err().errno(), libc::ETIMEDOUT);
        let now = Instant::now();
        assert!(now - began >= Duration::from_millis(800), "{:?}", now - began);
        // What is asked for now has the clock of what was asked for before.
        outage.asked(now);
        let limits = (Duration::from_secs(1), Duration::from_mins(1));
        assert!(outage.left(now, now, limits) <= Duration::from_millis(59_200));
    }

    #[test]
    fn no_more_addresses_are_tried_when_waiting_is_to_stop() {
        // It stops all that waits in the process: one that runs this test alone does.
        if !std::env::args().any(|word| word == "--exact") {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let name = "network::connect::tests::no_more_addresses_are_tried_when_waiting_is_to_stop";
            assert!(command.args(["--exact", name]).status().unwrap().success());
            return;
        }
        let (listener, _waiting) = full();
        let addresses = [listener.local_addr().unwrap(); 16];
        crate::stop_waiting(true);
        let began = Instant::now();
        let error = connect(&addresses, &Options::default(), &Outage::new("server".to_owned()));
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
        let mut stream = reached(&listener, &Options::default()).unwrap();
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
