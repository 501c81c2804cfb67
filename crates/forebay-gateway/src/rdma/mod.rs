//! RDMA to clients: which NICs there are, sessions, and what moves the bytes. Nothing of S3 is here.
//!
//! | file | what it has |
//! |---|---|
//! | `rail` | a NIC, and the registered slots that bytes go through |
//! | `wire` | a connection to a client: writes from slots, reads into slots |
//! | `landing` | memory of an object whole, of transfers that have a connection of their own |
//! | `sessions` | whose connections there are, and when they end |

mod landing;
mod rail;
mod sessions;
mod wire;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use forebay_s3_rdma::Refusal;
use forebay_s3_rdma::rc1::{ConnectAnswer, ConnectAsk, SessionId};
use forebay_verbs::{Domain, Fabric, Options, QueueEnd, Why};

use crate::warn::warn;
pub(crate) use landing::{Landed, Landing};
use rail::Rail;
pub(crate) use rail::Slots;
use sessions::Sessions;
pub(crate) use sessions::{Session, SessionLimits};
pub(crate) use wire::{Broken, Wire};

/// Bytes of the longest operation: S3's bound of an object that is sent at once.
pub(crate) const OPERATION_BYTES: u64 = 5 << 30;
/// How long an address is left alone by which no NIC was found.
const FAILED: Duration = Duration::from_secs(30);
/// How long a NIC stays open without a session.
const UNUSED: Duration = Duration::from_mins(1);
/// RDMA READs that a connection has in flight: as many as there are slots.
const READS: u8 = 2;

/// Where RDMA is spoken.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// The devices.
    pub fabric: Arc<dyn Fabric>,
    /// The address of the NIC. `None`: the one by which a client reached the server.
    pub address: Option<IpAddr>,
    /// The NIC that has to be at that address. Of two with one address the kernel takes either.
    pub device: Option<String>,
    /// Clients name any queue end, also one that is not of the address that they come from: behind a proxy.
    pub any_client: bool,
    /// Whether rc1 is spoken beside hipobj-rc-v2: tests of that one turn it off.
    #[doc(hidden)]
    pub rc1: bool,
    /// A session without a request ends after this time.
    pub idle_time: Duration,
    /// Sessions of an account.
    pub sessions: usize,
    /// A client that is to write does so within this time.
    pub write_time: Duration,
}

impl RdmaOptions {
    /// The same with the NIC of this name.
    pub fn of_device(fabric: Arc<dyn Fabric>, device: &str) -> Result<Self> {
        let address = fabric.address_of(device)?;
        Ok(Self { device: Some(device.to_owned()), ..Self::new(fabric, Some(address)) })
    }

    /// Five minutes, 64 sessions of an account, 30 seconds.
    pub fn new(fabric: Arc<dyn Fabric>, address: Option<IpAddr>) -> Self {
        Self {
            fabric,
            address,
            device: None,
            any_client: false,
            rc1: true,
            idle_time: Duration::from_mins(5),
            sessions: 64,
            write_time: Duration::from_secs(30),
        }
    }
}

/// The addresses of a client's TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// The server's.
    pub(crate) reached: IpAddr,
    /// The client's.
    pub(crate) client: IpAddr,
}

/// Since when a NIC has no session, as far as it was noticed.
type Unused = Option<Instant>;

/// The NIC of an address, or its absence.
enum Known {
    Rail(Arc<Rail>, Unused),
    /// It has no NIC, until it is looked for again.
    Failed(Instant, Error),
}

/// Figures since the server began.
#[derive(Default)]
pub(crate) struct Moved {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) declined: AtomicU64,
}

fn cannot(error: &Error) -> Refusal {
    warn(&format!("RDMA is not spoken with a client: {error}"));
    Refusal::NotSupported
}

/// Whether a queue end is of the address that the client comes from. If not, packets could go to another client's queue pair, for which
/// they would be this server's. InfiniBand's GIDs are no addresses: its ends have a LID.
fn is_of_client(own: &QueueEnd, peer: &QueueEnd, client: IpAddr) -> bool {
    own.lid != 0 || peer.address() == client.to_canonical()
}

/// Why there is no connection to a client.
struct NotPaired {
    refusal: Refusal,
    /// The NIC is to be opened anew. Not so where the client has named a wrong end.
    is_of_nic: bool,
}

/// A queue end that is paired with a client's. `client`: the address that this has to be of.
fn pair(
    domain: &Arc<dyn Domain>,
    peer: &QueueEnd,
    client: Option<IpAddr>,
    reads: u8,
) -> std::result::Result<(QueueEnd, Wire), NotPaired> {
    let options = Options {
        receives: 1,
        receive_size: 64,
        sends: 8,
        send_size: 64,
        inline: 0,
        reads_in: 1,
        reads_out: reads.min(READS),
        ..Options::default()
    };
    let of_nic = |error: &Error| NotPaired { refusal: cannot(error), is_of_nic: true };
    let end = domain.end(&options).map_err(|error| of_nic(&error))?;
    let own = end.own();
    if client.is_some_and(|client| !is_of_client(&own, peer, client)) {
        let refusal = Refusal::Forbidden("the GID is not the address that the connection comes from");
        return Err(NotPaired { refusal, is_of_nic: false });
    }
    let connection = end.pair(peer).map_err(|error| NotPaired {
        is_of_nic: Why::of(&error) == Some(Why::DeviceRemoved),
        ..of_nic(&error)
    })?;
    Ok((own, Wire::new(connection, reads > 0)))
}

/// A new name of a session.
pub(crate) fn random_session() -> std::result::Result<SessionId, Refusal> {
    sessions::random().map(SessionId::new).ok_or(Refusal::Limits)
}

/// RDMA of a server.
pub(crate) struct Rdma {
    options: RdmaOptions,
    rails: Mutex<HashMap<IpAddr, Known>>,
    sessions: Sessions,
    pub(crate) moved: Moved,
}

impl Rdma {
    /// With the NIC that the options name, which must be there.
    pub(crate) fn new(options: RdmaOptions) -> Result<Self> {
        let limits = SessionLimits { idle_time: options.idle_time, each: options.sessions };
        let rdma = Self {
            rails: Mutex::default(),
            sessions: Sessions::new(limits),
            moved: Moved::default(),
            options,
        };
        if let Some(address) = rdma.options.address {
            rdma.rail(address)?;
        }
        Ok(rdma)
    }

    fn check_device(&self, domain: &Arc<dyn Domain>, address: IpAddr) -> Result<()> {
        let found = &domain.device().name;
        match &self.options.device {
            Some(device) if device != found => {
                let error = Why::NoRoute.error("another RDMA device is at the address of the one to use");
                let error = error.with("device", device).with("address", address).with("found", found);
                Err(error.hint("rdma link show; rdma link delete of the other one"))
            }
            _ => Ok(()),
        }
    }

    /// How long a client may take to write.
    pub(crate) const fn write_time(&self) -> Duration {
        self.options.write_time
    }

    /// The device of the NIC that the options name.
    pub(crate) fn device(&self) -> Option<String> {
        let rail = self.rail(self.options.address?).ok()?;
        Some(rail.domain.device().name.clone())
    }

    /// The NIC of an address, opened when it is first asked for.
    fn rail(&self, address: IpAddr) -> Result<Arc<Rail>> {
        let rails = || self.rails.lock().unwrap_or_else(PoisonError::into_inner);
        match rails().get_mut(&address) {
            Some(Known::Rail(rail, unused)) => {
                *unused = None;
                return Ok(Arc::clone(rail));
            }
            Some(Known::Failed(until, error)) if Instant::now() < *until => return Err(error.clone()),
            _ => {}
        }
        // An address without a NIC takes seconds: others do not wait for it.
        let opened = Rail::open(&*self.options.fabric, address)
            .and_then(|rail| self.check_device(&rail.domain, address).map(|()| rail));
        let mut rails = rails();
        match (opened, rails.get(&address)) {
            (_, Some(Known::Rail(rail, _))) => Ok(Arc::clone(rail)),
            (Ok(rail), _) => {
                rails.insert(address, Known::Rail(Arc::clone(&rail), None));
                Ok(rail)
            }
            (Err(error), _) => {
                rails.insert(address, Known::Failed(Instant::now() + FAILED, error.clone()));
                Err(error)
            }
        }
    }

    /// A NIC that broke is opened anew for the next session.
    fn forget(&self, rail: &Arc<Rail>) {
        let mut rails = self.rails.lock().unwrap_or_else(PoisonError::into_inner);
        rails.retain(|_, known| !matches!(known, Known::Rail(known, _) if Arc::ptr_eq(known, rail)));
    }

    /// Pairs a queue end with a client's. Blocks.
    pub(crate) fn connect(
        &self,
        access_key: &str,
        way: Way,
        ask: &ConnectAsk,
    ) -> std::result::Result<ConnectAnswer, Refusal> {
        if !self.options.rc1 {
            return Err(Refusal::NotSupported);
        }
        let seat = self.sessions.reserve(access_key, &ask.end)?;
        let (rail, end, wire) = self.pair(way, &ask.end, ask.reads)?;
        let session = random_session()?;
        seat.fill(Session::new(session, access_key, (rail, wire), ask.end));
        Ok(ConnectAnswer {
            session,
            end,
            operation_bytes: OPERATION_BYTES,
            idle_seconds: self.options.idle_time.as_secs() as u32,
            windows: true,
        })
    }

    fn client_of(&self, way: Way) -> Option<IpAddr> {
        (!self.options.any_client).then_some(way.client)
    }

    /// A connection to a client's queue end, and this side's. `reads`: how many RDMA READs the client answers. Blocks.
    fn pair(
        &self,
        way: Way,
        peer: &QueueEnd,
        reads: u8,
    ) -> std::result::Result<(Arc<Rail>, QueueEnd, Wire), Refusal> {
        let address = self.options.address.unwrap_or(way.reached);
        let rail = self.rail(address).map_err(|error| cannot(&error))?;
        // The device may be gone.
        let paired = pair(&rail.domain, peer, self.client_of(way), reads);
        let (own, wire) = paired.map_err(|why| {
            if why.is_of_nic {
                self.forget(&rail);
            }
            why.refusal
        })?;
        Ok((rail, own, wire))
    }

    /// The same in a domain of its own, with memory for the object whole: no other client's key leads there. `is_for_client`: the client
    /// writes there. Blocks.
    pub(crate) fn pair_apart(
        &self,
        way: Way,
        peer: &QueueEnd,
        bytes: usize,
        is_for_client: bool,
    ) -> std::result::Result<(Landing, QueueEnd, Wire), Refusal> {
        let address = self.options.address.unwrap_or(way.reached);
        // An address without a NIC is known as one.
        let rail = self.rail(address).map_err(|error| cannot(&error))?;
        let domain = rail::open(&*self.options.fabric, address).map_err(|error| {
            self.forget(&rail);
            cannot(&error)
        })?;
        let landing = Landing::new(&domain, bytes, is_for_client).map_err(|error| {
            warn(&format!("no memory for RDMA: {error}"));
            Refusal::Limits
        })?;
        let (own, wire) = pair(&domain, peer, self.client_of(way), 0).map_err(|why| why.refusal)?;
        Ok((landing, own, wire))
    }

    /// An account's session. Another account's is refused; `None`: there is none, or no more.
    pub(crate) fn find(
        &self,
        access_key: &str,
        id: SessionId,
    ) -> std::result::Result<Option<Arc<Session>>, Refusal> {
        self.sessions.find(access_key, id)
    }

    /// Ends a session. A transfer that is under way ends first.
    pub(crate) fn end(&self, id: SessionId) {
        self.sessions.end(id);
    }

    /// Ends sessions that were idle for too long, and those of accounts that are gone.
    pub(crate) fn sweep(&self, is_known: impl Fn(&str) -> bool) {
        self.sessions.sweep(is_known);
        self.close_unused();
    }

    /// Closes NICs that have had no session for some time: an open one cannot be removed from the machine (`rdma link delete`), and its slots
    /// are locked memory. The next session opens it anew.
    fn close_unused(&self) {
        let limit = UNUSED.min(self.options.idle_time);
        let is_over = |known: &mut Known| match known {
            Known::Rail(rail, unused) if Arc::strong_count(rail) == 1 => {
                unused.get_or_insert_with(Instant::now).elapsed() >= limit
            }
            Known::Rail(_, unused) => {
                *unused = None;
                false
            }
            Known::Failed(..) => false,
        };
        let mut rails = self.rails.lock().unwrap_or_else(PoisonError::into_inner);
        let over: Vec<_> = rails.extract_if(|_, known| is_over(known)).collect();
        // A device takes a while to end.
        drop(rails);
        drop(over);
    }

    /// Figures for Prometheus: name, kind, help, value.
    pub(crate) fn figures(&self) -> [(&'static str, &'static str, &'static str, u64); 4] {
        let Moved { sent, received, declined } = &self.moved;
        [
            ("rdma_sent_bytes_total", "counter", "Bytes of objects written by RDMA.", sent.load(Relaxed)),
            (
                "rdma_received_bytes_total",
                "counter",
                "Bytes of objects read by RDMA.",
                received.load(Relaxed),
            ),
            (
                "rdma_declined_total",
                "counter",
                "GETs that asked for RDMA and got a body.",
                declined.load(Relaxed),
            ),
            ("rdma_sessions", "gauge", "RDMA sessions.", self.sessions.count() as u64),
        ]
    }
}

#[cfg(test)]
mod tests {
    use fake_verbs::{Fake, FakeDevice};
    use forebay_verbs::gid_of;

    use super::*;

    fn two() -> Fake {
        let device = |name, last| FakeDevice::new(name, IpAddr::from([10, 0, 0, last]));
        Fake::with(vec![device("fake0", 1), device("fake1", 2)])
    }

    #[test]
    fn a_nic_is_chosen_by_its_name() {
        let of_name = |name| RdmaOptions::of_device(Arc::new(two().serving()), name);
        let rdma = Rdma::new(of_name("fake1").unwrap()).unwrap();
        assert_eq!(rdma.device().as_deref(), Some("fake1"));
        assert_eq!(Why::of(&of_name("fake2").unwrap_err()), Some(Why::NoDevice));
        // Another one has its address.
        let other = RdmaOptions { device: Some("fake0".to_owned()), ..of_name("fake1").unwrap() };
        let error = Rdma::new(other).err().unwrap();
        assert!(error.to_string().contains("found=fake1"), "{error}");
    }

    #[test]
    fn a_nic_without_sessions_is_closed_and_opened_anew() {
        let options = RdmaOptions::new(Arc::new(two().serving()), Some("10.0.0.1".parse().unwrap()));
        let rdma = Rdma::new(RdmaOptions { idle_time: Duration::ZERO, ..options }).unwrap();
        let rail = rdma.rail("10.0.0.1".parse().unwrap()).unwrap();
        let open = Arc::downgrade(&rail);
        rdma.sweep(|_| true);
        assert!(open.strong_count() == 2, "it is in use");
        drop(rail);
        rdma.sweep(|_| true);
        assert!(open.upgrade().is_none(), "it has no session, and is open");
        assert_eq!(rdma.device().as_deref(), Some("fake0"));
    }

    #[test]
    fn a_nic_stays_open_for_a_while() {
        let options = RdmaOptions::new(Arc::new(two().serving()), Some("10.0.0.1".parse().unwrap()));
        let rdma = Rdma::new(options).unwrap();
        let open = Arc::downgrade(&rdma.rail("10.0.0.1".parse().unwrap()).unwrap());
        rdma.sweep(|_| true);
        rdma.sweep(|_| true);
        assert!(open.upgrade().is_some());
    }

    #[test]
    fn ends_of_the_client() {
        let end = |gid, lid| QueueEnd { number: 2, first: 1, gid, lid, port: 1, mtu: 4096 };
        let of = |address: &str| end(gid_of(address.parse().unwrap()), 0);
        let own = of("10.0.0.1");
        for (gid, client, is) in [
            ("10.0.0.2", "10.0.0.2", true),
            ("10.0.0.2", "::ffff:10.0.0.2", true),
            ("::ffff:10.0.0.2", "10.0.0.2", true),
            ("10.0.0.3", "10.0.0.2", false),
            ("2001:db8::2", "2001:db8::2", true),
            ("fe80::2", "fe80::2", true),
            ("fe80::3", "fe80::2", false),
            ("fe80::2", "10.0.0.2", false),
        ] {
            assert_eq!(is_of_client(&own, &of(gid), client.parse().unwrap()), is, "{gid} {client}");
        }
        // A client's LID does not make RoCE InfiniBand.
        let gid = gid_of("fe80::2".parse().unwrap());
        assert!(!is_of_client(&own, &end(gid, 7), "10.0.0.2".parse().unwrap()));
        assert!(is_of_client(&end(gid, 6), &end(gid, 7), "10.0.0.2".parse().unwrap()));
    }
}
