//! Guards around what librdmacm makes: event channels and identifiers.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};

use super::errors::{check, last_errno};
use super::load::{Libraries, no_device};
use super::sys;
use crate::fabric::readable_until;
use crate::{Options, Stop, Why};

/// An event channel: a descriptor of its own that tells of the identifiers made with it.
pub(super) struct Channel {
    raw: NonNull<sys::EventChannel>,
    libraries: &'static Libraries,
}

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// An event, copied out.
pub(super) struct Event {
    pub(super) id: *mut sys::CmId,
    pub(super) kind: u32,
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

impl Channel {
    pub(super) fn new(libraries: &'static Libraries) -> Result<Self> {
        // SAFETY: takes nothing.
        let raw = unsafe { libraries.cm.rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(|| no_device(last_errno(), "cannot use rdma_cm"))?;
        let channel = Self { raw, libraries };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(super) const fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as this guard.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    /// The next event, or none until then.
    pub(super) fn next(&self, until: Instant, stop: Stop) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            // SAFETY: the descriptor lives as long as the channel.
            if !readable_until(unsafe { BorrowedFd::borrow_raw(self.fd()) }, until, stop)? {
                return Ok(None);
            }
        }
    }

    /// An event that is there.
    pub(super) fn take(&self) -> Result<Option<Event>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives; `raw` takes a pointer.
        if unsafe { self.libraries.cm.rdma_get_cm_event(self.raw.as_ptr(), &raw mut raw) } != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(Error::from_errno(errno, "cannot read an event of rdma_cm")),
            };
        }
        // SAFETY: an event that the library has just given, and its private data, live until it is acknowledged.
        unsafe {
            let event = &*raw;
            let data = event.conn.private_data.cast::<u8>();
            let private_data = if data.is_null() || !carries_data(event.event) {
                Vec::new()
            } else {
                std::slice::from_raw_parts(data, event.conn.private_data_len.into()).to_vec()
            };
            let copied = Event {
                id: event.id,
                kind: event.event,
                status: event.status,
                private_data,
                responder_resources: event.conn.responder_resources,
                initiator_depth: event.conn.initiator_depth,
            };
            self.libraries.cm.rdma_ack_cm_event(raw);
            Ok(Some(copied))
        }
    }
}

/// Events whose connection parameters are set.
const fn carries_data(event: u32) -> bool {
    matches!(event, sys::EVENT_CONNECT_REQUEST | sys::EVENT_ESTABLISHED | sys::EVENT_REJECTED)
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.libraries.is_own_process() {
            // SAFETY: identifiers hold their channel, so there are none left.
            unsafe { self.libraries.cm.rdma_destroy_event_channel(self.raw.as_ptr()) };
        }
    }
}

/// An identifier with its channel, and with the queue pair once there is one.
pub(super) struct Id {
    raw: NonNull<sys::CmId>,
    libraries: &'static Libraries,
    pub(super) channel: Channel,
}

// SAFETY: librdmacm's functions may be called from any thread; what `&self` methods do, they lock.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    pub(super) fn new(libraries: &'static Libraries) -> Result<Self> {
        let channel = Channel::new(libraries)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives as long as the identifier; `raw` takes a pointer.
        let code = unsafe {
            let cm = &libraries.cm;
            cm.rdma_create_id(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), sys::PORT_SPACE_TCP)
        };
        check(code, "cannot use rdma_cm")?;
        let raw = NonNull::new(raw).ok_or_else(|| no_device(libc::ENODEV, "cannot use rdma_cm"))?;
        Ok(Self { raw, libraries, channel })
    }

    /// Takes over an identifier that a listener's event has brought, onto a channel of its own.
    pub(super) fn adopt(libraries: &'static Libraries, raw: *mut sys::CmId) -> Result<Self> {
        let channel = Channel::new(libraries);
        let raw = NonNull::new(raw).ok_or_else(|| Why::NoDevice.error("rdma_cm gave no identifier"))?;
        let destroy = || {
            // SAFETY: it is ours, has no queue pair and no event that is not acknowledged.
            unsafe { libraries.cm.rdma_destroy_id(raw.as_ptr()) };
        };
        let channel = channel.inspect_err(|_| destroy())?;
        // SAFETY: both are ours.
        let code = unsafe { libraries.cm.rdma_migrate_id(raw.as_ptr(), channel.raw.as_ptr()) };
        check(code, "cannot take over a connection").inspect_err(|_| destroy())?;
        Ok(Self { raw, libraries, channel })
    }

    pub(super) const fn raw(&self) -> *mut sys::CmId {
        self.raw.as_ptr()
    }

    /// The device's context, once an address is bound or resolved.
    pub(super) fn context(&self) -> *mut sys::IbvContext {
        // SAFETY: the identifier lives.
        unsafe { (*self.raw()).verbs }
    }

    pub(super) fn queue_pair(&self) -> *mut sys::IbvQp {
        // SAFETY: as above.
        unsafe { (*self.raw()).qp }
    }

    /// The device's port, once an address is bound or resolved.
    pub(super) const fn port(&self) -> u8 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).port }
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above; the library has filled the address in.
        unsafe { from_storage(&(*self.raw()).source) }
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        unsafe { from_storage(&(*self.raw()).destination) }
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut storage = to_storage(address);
        // SAFETY: the address is a local variable that the library copies.
        let code = unsafe { self.libraries.cm.rdma_bind_addr(self.raw(), (&raw mut storage).cast()) };
        check(code, "cannot use the address").map_err(|error| error.with("address", address))
    }

    /// Finds the device and the route to an address.
    pub(super) fn resolve(
        &self,
        from: Option<IpAddr>,
        to: SocketAddr,
        (timeout, stop): (Duration, Stop),
    ) -> Result<()> {
        let until = Instant::now() + timeout;
        let milliseconds = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        let mut from = from.map(|from| to_storage(SocketAddr::new(from, 0)));
        let mut target = to_storage(to);
        let source = from.as_mut().map_or(ptr::null_mut(), |from| (&raw mut *from).cast());
        let cm = &self.libraries.cm;
        // SAFETY: both addresses are local variables that the library copies.
        let code =
            unsafe { cm.rdma_resolve_addr(self.raw(), source, (&raw mut target).cast(), milliseconds) };
        check(code, "cannot find an RDMA device")
            .and_then(|()| self.expect(sys::EVENT_ADDR_RESOLVED, until, stop).map(drop))
            .and_then(|()| {
                // SAFETY: the identifier lives.
                check(unsafe { cm.rdma_resolve_route(self.raw(), milliseconds) }, "cannot find a route")
            })
            .and_then(|()| self.expect(sys::EVENT_ROUTE_RESOLVED, until, stop).map(drop))
            .map_err(|error| error.with("address", to))
    }

    /// Waits for an event; others that mean failure are errors.
    pub(super) fn expect(&self, kind: u32, until: Instant, stop: Stop) -> Result<Event> {
        loop {
            let Some(event) = self.channel.next(until, stop)? else {
                return Err(Why::Unreachable.error("cannot connect: no answer in time"));
            };
            match event.kind {
                seen if seen == kind => return Ok(event),
                sys::EVENT_REJECTED => {
                    return Err(Why::Rejected.error("cannot connect: rejected").with("reason", event.status));
                }
                sys::EVENT_ADDR_ERROR if event.status == -libc::ENODEV => {
                    return Err(no_device(libc::ENODEV, "cannot find an RDMA device"));
                }
                sys::EVENT_ADDR_ERROR
                | sys::EVENT_ROUTE_ERROR
                | sys::EVENT_UNREACHABLE
                | sys::EVENT_CONNECT_ERROR => return Err(not_reached(&event)),
                sys::EVENT_DEVICE_REMOVAL => return Err(Why::DeviceRemoved.error("cannot connect")),
                sys::EVENT_DISCONNECTED => return Err(Why::Rejected.error("cannot connect: disconnected")),
                _ => {}
            }
        }
    }

    pub(super) fn connect(&self, options: &Options, limits: (u8, u8)) -> Result<Event> {
        let until = Instant::now() + options.timeout;
        let mut parameters = parameters(options, limits);
        // SAFETY: the parameters and their private data live during the call.
        let code = unsafe { self.libraries.cm.rdma_connect(self.raw(), &raw mut parameters) };
        check(code, "cannot connect")?;
        self.expect(sys::EVENT_ESTABLISHED, until, options.stop)
    }

    pub(super) fn accept(&self, options: &Options, limits: (u8, u8)) -> Result<()> {
        let until = Instant::now() + options.timeout;
        let mut parameters = parameters(options, limits);
        // SAFETY: as above.
        let code = unsafe { self.libraries.cm.rdma_accept(self.raw(), &raw mut parameters) };
        check(code, "cannot accept a connection")?;
        self.expect(sys::EVENT_ESTABLISHED, until, options.stop).map(drop)
    }

    /// Tells the peer that there will be no connection.
    pub(super) fn reject(&self) -> Result<()> {
        // SAFETY: no private data.
        check(
            unsafe { self.libraries.cm.rdma_reject(self.raw(), ptr::null(), 0) },
            "cannot reject a connection",
        )
    }

    /// Ends the connection, and makes sure that the queue pair takes nothing more.
    pub(super) fn disconnect(&self) {
        let qp = self.queue_pair();
        if qp.is_null() {
            return;
        }
        // SAFETY: zero is a value of each field.
        let mut attributes: sys::QpAttr = unsafe { std::mem::zeroed() };
        attributes.qp_state = sys::QP_STATE_ERROR;
        // SAFETY: the queue pair lives; both fail harmlessly where the connection is down already.
        unsafe {
            self.libraries.cm.rdma_disconnect(self.raw());
            self.libraries.ibv.ibv_modify_qp(qp, &raw mut attributes, sys::QP_STATE);
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if !self.libraries.is_own_process() {
            return;
        }
        // SAFETY: it is ours; its events are acknowledged as they are taken.
        unsafe {
            if !self.queue_pair().is_null() {
                self.libraries.cm.rdma_destroy_qp(self.raw());
            }
            self.libraries.cm.rdma_destroy_id(self.raw());
        }
    }
}

fn not_reached(event: &Event) -> Error {
    let errno = event.status.saturating_abs();
    Why::Unreachable.mark(Error::from_errno(errno, "cannot connect").with("event", event.kind))
}

fn parameters(options: &Options, (reads_in, reads_out): (u8, u8)) -> sys::ConnParam {
    sys::ConnParam {
        private_data: options.private_data.as_ptr().cast(),
        private_data_len: options.private_data.len() as u8,
        responder_resources: options.reads_in.min(reads_in),
        initiator_depth: options.reads_out.min(reads_out),
        flow_control: 0,
        retry_count: options.retries.min(7),
        rnr_retry_count: options.receiver_retries.min(7),
        srq: 0,
        qp_num: 0,
    }
}

pub(super) fn set_nonblocking(fd: c_int) -> Result<()> {
    // SAFETY: no pointers.
    let code = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
    if code < 0 { Err(Error::last_os("cannot set up an event descriptor")) } else { Ok(()) }
}

fn to_storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: zero is a value of each field; both kinds of addresses fit.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        match address {
            SocketAddr::V4(address) => {
                let to = &mut *(&raw mut storage).cast::<libc::sockaddr_in>();
                to.sin_family = libc::AF_INET as u16;
                to.sin_port = address.port().to_be();
                to.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            }
            SocketAddr::V6(address) => {
                let to = &mut *(&raw mut storage).cast::<libc::sockaddr_in6>();
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_port = address.port().to_be();
                to.sin6_addr.s6_addr = address.ip().octets();
                to.sin6_scope_id = address.scope_id();
            }
        }
        storage
    }
}

fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: the family says which kind of address stands there.
    unsafe {
        match c_int::from(storage.ss_family) {
            libc::AF_INET => {
                let from = &*(&raw const *storage).cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(ip.into(), u16::from_be(from.sin_port)))
            }
            libc::AF_INET6 => {
                let from = &*(&raw const *storage).cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(from.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(from.sin6_port), 0, from.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["10.9.0.1:20049", "[fe80::1%3]:20049", "[2001:db8::7]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_storage(&to_storage(address)), Some(address));
        }
        // SAFETY: zero is a value of each field.
        assert_eq!(from_storage(&unsafe { std::mem::zeroed() }), None);
    }
}
