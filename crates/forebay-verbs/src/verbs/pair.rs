//! A queue pair: made and driven by rdma_cm, or by this side alone where it is paired in band.

use std::ptr::NonNull;

use forebay_error::{Error, ErrorKind, Result};

use super::cm::Id;
use super::errors::{check, last_errno, made};
use super::load::Libraries;
use super::memory::Inner;
use super::sys;
use crate::{Access, Options, QueueEnd, Why};

/// Time to an acknowledgement: 4.096 µs × 2^17 is 0.54 s. With 6 retries a link may be cut for 3 s, and a peer that is gone is found within
/// 4 s; devices may take four times that.
const ACK_TIMEOUT: u8 = 17;
/// How long a peer waits when no receive was posted: 0.64 ms.
const RECEIVER_TIMER: u8 = 12;
/// Routers between two ends.
const HOPS: u8 = 64;

/// Fields are dropped in this order.
pub(super) struct QueuePair {
    /// Where rdma_cm has none: this side's own.
    own: Option<OwnPair>,
    /// rdma_cm's, and in either case what tells of the device's removal.
    id: Id,
}

impl QueuePair {
    /// One that rdma_cm drives, on a resolved identifier.
    pub(super) fn managed(domain: &Inner, id: Id, attributes: &mut sys::QpInitAttr) -> Result<Self> {
        create(domain, attributes, |attributes| {
            // SAFETY: the identifier and the domain live; the attributes are a local variable.
            let code = unsafe {
                domain.libraries.cm.rdma_create_qp(id.raw(), domain.pd.as_ptr(), &raw mut *attributes)
            };
            check(code, "cannot make a queue pair")
        })?;
        Ok(Self { own: None, id })
    }

    /// One that is to be paired in band, on an identifier bound to the device. It takes receives.
    pub(super) fn in_band(
        domain: &Inner,
        id: Id,
        reads_in: u8,
        attributes: &mut sys::QpInitAttr,
    ) -> Result<Self> {
        let raw = create(domain, attributes, |attributes| {
            // SAFETY: as above.
            let raw = unsafe { domain.libraries.ibv.ibv_create_qp(domain.pd.as_ptr(), &raw mut *attributes) };
            made(raw, "cannot make a queue pair")
        })?;
        let pair = Self { own: Some(OwnPair { raw, libraries: domain.libraries }), id };
        let mut first = nothing_set();
        (first.qp_state, first.port) = (sys::QP_STATE_INIT, pair.id.port());
        let reads = if reads_in > 0 { Access::REMOTE_READ } else { Access::READ };
        first.access = (Access::REMOTE_WRITE | reads).bits();
        pair.modify(domain, &mut first, sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS)?;
        Ok(pair)
    }

    pub(super) const fn id(&self) -> &Id {
        &self.id
    }

    pub(super) fn raw(&self) -> *mut sys::IbvQp {
        self.own.as_ref().map_or_else(|| self.id.queue_pair(), |own| own.raw.as_ptr())
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: it lives.
        unsafe { (*self.raw()).number }
    }

    /// Ready to receive, then to send.
    pub(super) fn join(&self, domain: &Inner, path: &Path) -> Result<()> {
        let mut receive = nothing_set();
        receive.qp_state = sys::QP_STATE_READY_TO_RECEIVE;
        receive.address = path.address(self.id.port())?;
        // 256 bytes are 1, and each step doubles them.
        receive.path_mtu = path.own.path_mtu(&path.peer).ilog2() - 7;
        (receive.peer_number, receive.receive_first) = (path.peer.number, path.peer.first);
        (receive.reads_in, receive.receiver_timer) = (path.reads_in, RECEIVER_TIMER);
        let mask = sys::QP_AV | sys::QP_PATH_MTU | sys::QP_DEST_QPN | sys::QP_RQ_PSN;
        self.modify(domain, &mut receive, mask | sys::QP_MAX_DEST_RD_ATOMIC | sys::QP_MIN_RNR_TIMER)?;

        let mut send = nothing_set();
        (send.qp_state, send.send_first) = (sys::QP_STATE_READY_TO_SEND, path.own.first);
        (send.timeout, send.retries) = (ACK_TIMEOUT, path.retries);
        (send.receiver_retries, send.reads_out) = (path.receiver_retries, path.reads_out);
        let mask = sys::QP_TIMEOUT | sys::QP_RETRY_CNT | sys::QP_RNR_RETRY | sys::QP_SQ_PSN;
        self.modify(domain, &mut send, mask | sys::QP_MAX_QP_RD_ATOMIC)
    }

    /// Ends the connection: afterwards nothing of the peer's arrives, and posted operations are flushed.
    pub(super) fn disconnect(&self, domain: &Inner) {
        if self.own.is_none() {
            return self.id.disconnect();
        }
        let mut attributes = nothing_set();
        attributes.qp_state = sys::QP_STATE_ERROR;
        // It fails where the device is gone, and its connections with it.
        let _ = self.modify(domain, &mut attributes, 0);
    }

    fn modify(&self, domain: &Inner, attributes: &mut sys::QpAttr, mask: i32) -> Result<()> {
        // SAFETY: the queue pair lives; the attributes are the caller's variable.
        let code = unsafe {
            domain.libraries.ibv.ibv_modify_qp(self.raw(), &raw mut *attributes, mask | sys::QP_STATE)
        };
        let doing = "cannot pair a queue pair";
        let error = match if code < 0 { last_errno() } else { code } {
            0 => return Ok(()),
            // The kernel asks the network for the peer's Ethernet address.
            errno @ libc::ETIMEDOUT => Why::Unreachable.mark(Error::from_errno(errno, doing)),
            errno @ (libc::ENETUNREACH | libc::EHOSTUNREACH) => {
                Why::NoRoute.mark(Error::from_errno(errno, doing))
            }
            errno @ (libc::ENODEV | libc::EIO) => Why::DeviceRemoved.mark(Error::from_errno(errno, doing)),
            errno => Error::from_errno(errno, doing),
        };
        Err(error.with("device", &domain.device.name))
    }
}

/// A queue pair of libibverbs alone.
struct OwnPair {
    raw: NonNull<sys::IbvQp>,
    libraries: &'static Libraries,
}

// SAFETY: libibverbs locks what several threads use.
unsafe impl Send for OwnPair {}

impl Drop for OwnPair {
    fn drop(&mut self) {
        if self.libraries.is_own_process() {
            // SAFETY: it is ours; its queue and its domain go after it.
            unsafe { self.libraries.ibv.ibv_destroy_qp(self.raw.as_ptr()) };
        }
    }
}

/// Two ends, and how they are to be joined.
pub(super) struct Path {
    pub(super) own: QueueEnd,
    pub(super) peer: QueueEnd,
    /// The own GID in the port's table.
    pub(super) gid_index: u8,
    pub(super) is_ethernet: bool,
    pub(super) reads_in: u8,
    pub(super) reads_out: u8,
    pub(super) retries: u8,
    pub(super) receiver_retries: u8,
}

impl Path {
    pub(super) fn new(domain: &Inner, options: &Options, own: QueueEnd, port: (u8, bool)) -> Self {
        let (gid_index, is_ethernet) = port;
        let (reads_in, reads_out) = domain.limits;
        Self {
            own,
            peer: own,
            gid_index,
            is_ethernet,
            reads_in: options.reads_in.min(reads_in),
            reads_out: options.reads_out.min(reads_out),
            retries: options.retries.min(7),
            receiver_retries: options.receiver_retries.min(7),
        }
    }

    /// Where packets go. Within an InfiniBand subnet the peer's lid says it.
    fn address(&self, port: u8) -> Result<sys::Address> {
        let peer = &self.peer;
        let (field, missing) =
            if self.is_ethernet { ("gid", peer.gid == [0; 16]) } else { ("lid", peer.lid == 0) };
        if missing {
            let message = "cannot pair: the peer has no address on this link";
            return Err(Error::new(ErrorKind::InvalidInput, message).with("missing", field));
        }
        let mut address = nothing_set().address;
        (address.port, address.lid) = (port, peer.lid);
        if self.is_ethernet || peer.gid[..8] != self.own.gid[..8] {
            let [high, low] = [0, 8].map(|at| {
                let mut half = [0; 8];
                half.copy_from_slice(&peer.gid[at..at + 8]);
                u64::from_ne_bytes(half)
            });
            address.is_global = 1;
            (address.route.gid, address.route.index) = ([high, low], self.gid_index);
            address.route.hop_limit = HOPS;
        }
        Ok(address)
    }
}

fn nothing_set() -> sys::QpAttr {
    // SAFETY: zero is a value of each field.
    unsafe { std::mem::zeroed() }
}

fn create<T>(
    domain: &Inner,
    attributes: &mut sys::QpInitAttr,
    create: impl Fn(&mut sys::QpInitAttr) -> Result<T>,
) -> Result<T> {
    let inline = attributes.cap.max_inline_data;
    let created = match create(attributes) {
        // Devices refuse more inline bytes than they have: then all messages are copied.
        Err(error) if inline > 0 && error.errno() != libc::ENOMEM => {
            attributes.cap.max_inline_data = 0;
            create(attributes).map_err(|_| error)
        }
        result => result,
    };
    created.map_err(|error| error.with("device", &domain.device.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid_of;

    fn path(is_ethernet: bool, own: [u8; 2], peer: [u8; 2], lid: u16) -> Path {
        let end = |last: [u8; 2], lid| {
            let gid = gid_of(
                std::net::Ipv6Addr::new(0xfd00 + u16::from(last[0]), 0, 0, 0, 0, 0, 0, last[1].into()).into(),
            );
            QueueEnd { number: 20, first: 7, gid, lid, port: 1, mtu: 4096 }
        };
        Path {
            own: end(own, 9),
            peer: end(peer, lid),
            gid_index: 3,
            is_ethernet,
            reads_in: 1,
            reads_out: 1,
            retries: 6,
            receiver_retries: 0,
        }
    }

    #[test]
    fn packets_find_the_peer() {
        let over_ethernet = path(true, [0, 1], [0, 2], 0).address(1).unwrap();
        assert_eq!(
            (over_ethernet.is_global, over_ethernet.route.index, over_ethernet.route.hop_limit),
            (1, 3, 64)
        );
        let gid: Vec<u8> = over_ethernet.route.gid.iter().flat_map(|half| half.to_ne_bytes()).collect();
        assert_eq!(gid, path(true, [0, 1], [0, 2], 0).peer.gid);
        let in_subnet = path(false, [0, 1], [0, 2], 5).address(2).unwrap();
        assert_eq!((in_subnet.is_global, in_subnet.lid, in_subnet.port), (0, 5, 2));
        let beyond = path(false, [0, 1], [1, 2], 5).address(1).unwrap();
        assert_eq!((beyond.is_global, beyond.lid), (1, 5));
        let error = path(false, [0, 1], [0, 2], 0).address(1).err().unwrap();
        assert!(error.to_string().ends_with("(missing=lid)"), "{error}");
        let mut without = path(true, [0, 1], [0, 2], 5);
        without.peer.gid = [0; 16];
        assert!(without.address(1).err().unwrap().to_string().ends_with("(missing=gid)"));
    }
}
