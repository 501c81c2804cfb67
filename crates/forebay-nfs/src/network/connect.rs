//! Connections over TCP, from a port below 1024 where that is wanted and the process may have one.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::endpoint::{self, ServerUnreachable, first_of, refused};
use forebay_remote::silence::SilenceClock;
use forebay_verbs::Why;
use rustix::io::Errno;
use rustix::net::{self, sockopt};

use crate::network::options::NfsOptions;
use crate::protocol::rpc::random;

/// Whether the server was not reached at all, over TCP or by RDMA, or did not answer.
pub fn is_unreached(error: &Error) -> bool {
    error.is_caused_by::<ServerUnreachable>()
        || Why::of(error).is_some()
        || error.kind() == ErrorKind::Timeout
}

/// A connection to the first address that takes one. Something waits for it meanwhile.
pub(crate) fn connect(
    addresses: &[SocketAddr],
    options: &NfsOptions,
    clock: &SilenceClock,
) -> Result<TcpStream> {
    connect_from(0, addresses, options, clock)
}

/// The same from a port of this side's, if it is free; 0: any. Servers know calls that come again by it.
pub(crate) fn connect_from(
    port: u16,
    addresses: &[SocketAddr],
    options: &NfsOptions,
    clock: &SilenceClock,
) -> Result<TcpStream> {
    first_of(addresses, |address| connect_to(address, port, options, clock))
}

/// This process may have no port below 1024.
static MAY_NOT: AtomicBool = AtomicBool::new(false);

/// How often another port below 1024 is tried where one was used a moment ago for the same server.
const LOW_ATTEMPTS: u32 = 40;

/// The lowest of the ports below 1024 that are taken, and how many there are.
const LOWEST_PORT: u16 = 665;
const LOW_PORTS: u64 = 359;

fn connect_to(
    address: SocketAddr,
    port: u16,
    options: &NfsOptions,
    clock: &SilenceClock,
) -> Result<TcpStream> {
    let began = Instant::now();
    for attempt in 0..=LOW_ATTEMPTS {
        let wants_low = options.low_ports && attempt < LOW_ATTEMPTS && !MAY_NOT.load(Ordering::Relaxed);
        let socket = endpoint::socket(address)?;
        let is_bound = attempt == 0 && port > 0 && bind(&socket, address, port).is_ok();
        if !is_bound
            && wants_low
            && let Err(errno) = bind_low(&socket, address)
        {
            MAY_NOT.fetch_or(errno == Errno::ACCESS, Ordering::Relaxed);
        }
        let limit = options.connect.saturating_sub(began.elapsed());
        match endpoint::connect(socket, address, limit, clock) {
            // The port was used a moment ago for the same server.
            Err(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE) if wants_low || is_bound => {}
            done => return done.map_err(|errno| refused(address, errno)),
        }
    }
    Err(refused(address, Errno::ADDRNOTAVAIL))
}

/// Gives a socket a port from 665 to 1023: one that is free, else one that other connections have or had, to other servers.
fn bind_low(socket: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    let first = random() % LOW_PORTS;
    for shares in [false, true] {
        if shares {
            share_port(socket);
        }
        for step in 0..LOW_PORTS {
            match bind(socket, address, LOWEST_PORT + ((first + step) % LOW_PORTS) as u16) {
                Err(Errno::ADDRINUSE) => {}
                Ok(()) => {
                    share_port(socket);
                    return Ok(());
                }
                other => return other,
            }
        }
    }
    Err(Errno::ADDRINUSE)
}

/// Another socket may have the same port, too, for another server.
fn share_port(socket: &OwnedFd) {
    // Without it the connection works.
    let _ = sockopt::set_socket_reuseaddr(socket, true);
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
fn bind(socket: &OwnedFd, address: SocketAddr, port: u16) -> Result<(), Errno> {
    let own: SocketAddr = if address.is_ipv4() { ([0; 4], port).into() } else { ([0u16; 8], port).into() };
    net::bind(socket, &own)
}

/// From now on closing the connection, also by the end of the process, sends RST and drops unsent bytes (SO_LINGER of 0). Else a
/// WRITE that the kernel sends late could overwrite a newer one. It leaves no TIME_WAIT: the port is free at once.
/// [`end_in_order`] takes it back.
pub(crate) fn end_unsent(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// The connection has nothing to send: its end is to be an orderly one.
pub(crate) fn end_in_order(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, None);
}

/// Has the peer's kernel asked for a sign of life when nothing has come for so long: one that is gone, or has forgotten the
/// connection, is known after three times as long. Without it the connection works.
pub(crate) fn keep_alive(stream: &TcpStream, every: Duration) {
    let every = every.max(Duration::from_secs(1));
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, every);
    let _ = sockopt::set_tcp_keepintvl(stream, every);
    let _ = sockopt::set_tcp_keepcnt(stream, 2);
}
