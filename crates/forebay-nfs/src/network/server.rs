//! A server: its addresses, its clients, and its properties.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::ProcessId;
use forebay_remote::silence::{SilenceClock, WaitLimits};
use forebay_remote::stop;
use forebay_sys::threads;
use forebay_verbs::{Domain, Route, Stop};

use crate::lock;
use crate::network::addresses::FurtherAddresses;
use crate::network::exchange::Exchange;
use crate::network::options::{NfsOptions, RdmaOptions};
use crate::protocol::handle::{CallLimits, NfsVersion};
use crate::protocol::rpc::{Credential, random};
use crate::protocol::v4::{self, GrantedSession};

/// A server in one version, for one user.
#[derive(Debug)]
pub(crate) struct NfsServer {
    pub(crate) name: String,
    /// Where calls without bytes go: the first that takes a connection.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Where bytes may go, too.
    pub(crate) further: FurtherAddresses,
    pub(crate) version: NfsVersion,
    pub(crate) who: Credential,
    pub(crate) options: NfsOptions,
    /// How long it has been silent.
    pub(crate) clock: Arc<SilenceClock>,
    pub(super) control: Arc<Mutex<ControlCalls>>,
    pub(super) session: Mutex<NfsSession>,
    /// What tells its client of version 4.0 apart; locked while that is made known, since two at once take each other's place.
    pub(crate) client40: Mutex<u64>,
    /// What connections over RDMA are of, and memory that is registered for all of them.
    domain: Mutex<Option<Arc<dyn Domain>>>,
    /// The process that made it.
    pub(super) process: ProcessId,
    /// How long each answer is waited for that ends the session, in milliseconds.
    pub(super) patience: AtomicU64,
    pub(super) tries_rdma: OnceLock<TriesRdma>,
    /// Its mountd takes calls from ports below 1024 alone.
    pub(crate) asks_low_port: AtomicBool,
}

/// Whether a further address, by its number, takes RDMA: what connections do.
pub(crate) type TriesRdma = fn(&NfsServer, usize) -> Result<()>;

#[derive(Debug)]
pub(super) struct ControlCalls {
    pub(super) exchange: Exchange,
    /// Number of the last call in slot 0, and the session that it was of.
    pub(super) sequence: (u32, u32),
    pub(super) client: u64,
    /// Its end is that of the thread that ends a connection that nothing uses.
    idle_thread: Option<Sender<()>>,
}

impl ControlCalls {
    /// Starts a thread that ends the connection when nothing has used it for so long, and ends with it, or with the server.
    fn end_when_idle(control: &Arc<Mutex<Self>>, idle: Duration) -> Option<Sender<()>> {
        let (end, ended) = channel();
        let control = Arc::downgrade(control);
        let body = move || {
            let mut left = idle;
            while ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout)
                && let Some(control) = control.upgrade()
            {
                let mut control = lock(&control);
                match control.exchange.end_idle(idle) {
                    Some(more) => left = more,
                    None => return control.idle_thread = None,
                }
            }
        };
        threads::spawn("forebay-control", body).is_ok().then_some(end)
    }
}

/// A session; each has another epoch. The first is 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NfsSession {
    pub(crate) epoch: u32,
    pub(crate) granted: Option<GrantedSession>,
}

impl NfsSession {
    /// Names that one compound looks up: beside them it has SEQUENCE, PUTFH, GETFH and GETATTR.
    pub(crate) fn names_in_call(&self) -> usize {
        let granted = self.granted.map_or(v4::OPERATIONS, |granted| granted.operations);
        granted.min(v4::OPERATIONS).saturating_sub(4).max(1) as usize
    }

    /// What fits into its calls.
    pub(crate) fn limits(&self) -> CallLimits {
        let fits = |room: u32| u64::from(room.saturating_sub(1024));
        let room = self.granted.map_or((u32::MAX, u32::MAX), |granted| (granted.reply, granted.call));
        CallLimits::of_told(fits(room.0), fits(room.1))
    }
}

/// How long its end waits for a connection, and for each reply, where a caller waits meanwhile.
const ENDING_PATIENCE: Duration = Duration::from_millis(250);
impl NfsServer {
    /// Nothing is sent yet.
    pub(crate) fn new(
        name: String,
        addresses: Vec<SocketAddr>,
        version: NfsVersion,
        options: NfsOptions,
    ) -> Self {
        let clock = SilenceClock::new(name.clone());
        let exchange = Exchange::new(addresses.clone(), options.clone(), clock.clone());
        let control = ControlCalls { exchange, sequence: (0, 0), client: 0, idle_thread: None };
        let further = FurtherAddresses::new(&options, &addresses);
        Self {
            name,
            addresses,
            further,
            version,
            who: Credential::of_process(),
            options,
            clock,
            control: Arc::new(Mutex::new(control)),
            session: Mutex::default(),
            client40: Mutex::new(random()),
            domain: Mutex::default(),
            process: ProcessId::current(),
            patience: AtomicU64::new(ENDING_PATIENCE.as_millis() as u64),
            tries_rdma: OnceLock::new(),
            asks_low_port: AtomicBool::new(false),
        }
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// How long it is kept behind its last file. A silent server is not kept, and neither is one with addresses that
    /// were left out: these are looked at when a file is opened anew.
    pub(crate) fn time_to_keep(&self) -> Duration {
        if self.clock.is_answering() && self.further.left_out().is_empty() {
            self.options.keep
        } else {
            Duration::ZERO
        }
    }

    /// How long each answer is waited for that ends the session.
    pub(crate) fn set_patience(&self, patience: Duration) {
        self.patience.store(patience.as_millis() as u64, Ordering::Relaxed);
    }

    /// How long the server may be silent while calls wait, and how long these are sent again.
    pub(crate) fn wait_limits(&self) -> WaitLimits {
        self.clock.limits(self.options.wait_limits())
    }

    /// Records how long a request of several calls took. The server may be silent for that much longer than its options say.
    pub(crate) fn record_duration(&self, duration: Duration) {
        self.clock.record_duration(duration);
    }

    /// Where the server takes RDMA.
    pub(crate) fn rdma_address(&self) -> Result<(&RdmaOptions, SocketAddr)> {
        let nothing = || Error::new(ErrorKind::Unsupported, "bytes of this server do not go by RDMA");
        let rdma = self.options.rdma.as_ref().ok_or_else(nothing)?;
        let own = self.addresses.first().map(SocketAddr::ip);
        let address = rdma.address.or(own).ok_or_else(nothing)?;
        Ok((rdma, SocketAddr::new(address, rdma.port)))
    }

    /// The protection domain of connections to its first address, opened when it is first needed.
    pub(crate) fn domain(&self) -> Result<Arc<dyn Domain>> {
        let mut kept = lock(&self.domain);
        if let Some(domain) = &*kept {
            return Ok(domain.clone());
        }
        let (rdma, to) = self.rdma_address()?;
        self.options.check_network()?;
        let stop = Stop::when(stop::is_stopped);
        let route = Route { timeout: self.options.connect, stop, ..Route::to(to) };
        let domain = rdma.fabric.open(&route)?;
        *kept = Some(domain.clone());
        Ok(domain)
    }

    /// The device is gone: the next connection opens one anew, and nothing that was registered before is of use.
    pub(crate) fn forget_domain(&self, domain: &Arc<dyn Domain>) {
        lock(&self.domain).take_if(|kept| Arc::ptr_eq(kept, domain));
        self.further.forget_domain(domain);
    }

    /// What calls without bytes go by. A thread ends the connection when nothing uses it; where there is none to be had, it stays.
    pub(super) fn control(&self) -> MutexGuard<'_, ControlCalls> {
        let mut control = lock(&self.control);
        if control.idle_thread.is_none() {
            control.idle_thread = ControlCalls::end_when_idle(&self.control, self.options.idle);
        }
        control
    }
}
