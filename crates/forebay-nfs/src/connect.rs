//! Connections over TCP, from a port below 1024 where the process may have one: many exports ask for that.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use crate::rpc::random;

/// The reason within an error: the server has no address, or takes no connection there.
#[derive(Debug)]
pub(crate) struct Unreached(Option<io::Error>);

impl Unreached {
    /// Whether this is why.
    pub(crate) fn is_why(error: &Error) -> bool {
        let first = std::error::Error::source(error);
        std::iter::successors(first, |cause| cause.source()).any(<dyn std::error::Error>::is::<Self>)
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(error) => error.fmt(f),
            None => f.write_str("no address of the server takes a connection"),
        }
    }
}

impl std::error::Error for Unreached {}

/// The addresses of a name.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unknown(host, None)),
        Err(error) => Err(unknown(host, Some(error))),
    }
}

fn unknown(host: &str, why: Option<io::Error>) -> Error {
    Error::new(ErrorKind::NotFound, "cannot find the server: its name has no address")
        .with("server", host)
        .hint(format!("getent hosts {host}"))
        .source(Unreached(why))
}

/// A connection to the first address that takes one.
pub(crate) fn connect(addresses: &[SocketAddr], limit: Duration) -> Result<TcpStream> {
    let mut last = None;
    for address in addresses {
        match connect_to(*address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Internal, "a server without an address")))
}

fn connect_to(address: SocketAddr, limit: Duration) -> Result<TcpStream> {
    static MAY_NOT: AtomicBool = AtomicBool::new(false);
    let began = Instant::now();
    for attempt in 0..4 {
        let wants_low = attempt < 3 && !MAY_NOT.load(Ordering::Relaxed);
        let socket = socket(address).map_err(|errno| Error::from_errno(errno, "cannot make a socket"))?;
        if wants_low && let Err(errno) = bind_low(&socket, address) {
            MAY_NOT.fetch_or(errno == libc::EACCES, Ordering::Relaxed);
        }
        match finish(&socket, address, limit.saturating_sub(began.elapsed())) {
            Ok(()) => {
                let stream = TcpStream::from(socket);
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            // The port was used a moment ago for the same server.
            Err(libc::EADDRNOTAVAIL | libc::EADDRINUSE) if wants_low => {}
            Err(errno) => return Err(refused(errno, address)),
        }
    }
    Err(refused(libc::EADDRNOTAVAIL, address))
}

fn refused(errno: i32, address: SocketAddr) -> Error {
    let error = Error::from_errno(errno, "cannot connect to the server");
    let error = error.with("address", address).source(Unreached(None));
    match errno {
        libc::ECONNREFUSED => error.hint(format!(
            "nothing listens on port {}: start the server, or name its port: nfs://SERVER:PORT/…",
            address.port()
        )),
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

/// Gives a socket a free port from 665 to 1023.
fn bind_low(socket: &OwnedFd, address: SocketAddr) -> Result<(), i32> {
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let first = random() % 359;
    for step in 0..359 {
        let mut place = any;
        place.set_port(665 + ((first + step) % 359) as u16);
        match with_address(place, |pointer, len| {
            // SAFETY: pointer and length are of an address.
            unsafe { libc::bind(socket.as_raw_fd(), pointer, len) }
        }) {
            Err(libc::EADDRINUSE) => {}
            other => return other,
        }
    }
    Err(libc::EADDRINUSE)
}

fn finish(socket: &OwnedFd, address: SocketAddr, limit: Duration) -> Result<(), i32> {
    let begun = with_address(address, |pointer, len| {
        // SAFETY: pointer and length are of an address.
        unsafe { libc::connect(socket.as_raw_fd(), pointer, len) }
    });
    match begun {
        Err(libc::EINPROGRESS) => {}
        other => return other,
    }
    let mut polled = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    if unsafe { libc::poll(&mut polled, 1, limit.as_millis().max(1) as i32) } <= 0 {
        return Err(libc::ETIMEDOUT);
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
