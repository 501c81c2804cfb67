//! The server: connections, their limits, and its end.

mod access_log;
mod bodies;
mod file_connection;
mod files;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod limits;
mod local;
mod metrics;
mod passing;
mod request;
mod service;
mod site;
mod tls;
mod watch;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_error::{Error, Result};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::{Sender, channel};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::accounts::Accounts;
use crate::front::{Belongs, Front, Gate, LocalPeer, RdmaRoute};
use crate::rdma::{Rdma, RdmaOptions, Way};
use crate::threads::THREADS;
use crate::warn::warn;
use access_log::AccessLog;
use files::Socket;
pub use limits::Limits;
use limits::READ_BYTES;
use local::LocalSocket;
use metrics::Metrics;
use request::Connection;
use site::{Phase, Site};
pub use tls::TlsFiles;
use watch::{Watch, Watched};

/// S3's bound of an object that is sent at once.
const PUT_BYTES: u64 = 5 << 30;
/// A signed chunk is held whole until its signature is compared. Clients send 64 KiB to 1 MiB.
const CHUNK_BYTES: usize = 2 << 20;
/// Between two looks at RDMA sessions.
const SESSION_PAUSE: Duration = Duration::from_secs(1);

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens.
    pub listen: SocketAddr,
    /// TLS, and nothing else.
    pub tls: Option<TlsFiles>,
    /// A directory for the socket by which processes of this machine get files in place of bytes.
    pub local: Option<PathBuf>,
    /// RDMA to clients.
    pub rdma: Option<RdmaOptions>,
    /// What it bears.
    pub limits: Limits,
    /// Where figures are served instead of on the listener of objects.
    pub metrics: Option<SocketAddr>,
    /// Where the access log goes; `-`: standard output.
    pub access_log: Option<PathBuf>,
    /// How long `/healthz` says 503 before the listener closes: a load balancer must have asked meanwhile.
    pub leave_time: Duration,
    /// How long requests may go on after that.
    pub grace_time: Duration,
}

impl ServerOptions {
    /// Plain HTTP, usual limits.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            tls: None,
            local: None,
            rdma: None,
            limits: Limits::default(),
            metrics: None,
            access_log: None,
            leave_time: Duration::ZERO,
            grace_time: Duration::from_secs(30),
        }
    }
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    metrics: Option<TcpListener>,
    tls: Option<TlsAcceptor>,
    local: Option<Result<LocalSocket>>,
    options: ServerOptions,
    site: Arc<Site>,
    phase: Arc<Sender<Phase>>,
}

/// Stops a server from another thread.
#[derive(Clone)]
pub struct Stop(Arc<Sender<Phase>>);

impl Stop {
    /// `/healthz` says no from now on, then the listener closes, then requests end.
    pub fn leave(&self) {
        self.0.send_if_modified(|phase| {
            let is_new = *phase == Phase::Serving;
            if is_new {
                *phase = Phase::Leaving;
            }
            is_new
        });
    }
}

impl Server {
    /// Listens; connections are taken by [`Server::run`].
    pub fn bind(options: ServerOptions, accounts: &Arc<Accounts>) -> Result<Self> {
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let log = options.access_log.as_deref().map(AccessLog::open).transpose()?;
        let listener = listen(options.listen)?;
        let metrics = options.metrics.map(listen).transpose()?;
        let port = listener.local_addr().map_or(0, |address| address.port());
        let local = options.local.as_deref().map(|directory| LocalSocket::open(directory, port));
        let rdma = options.rdma.clone().map(Rdma::new).transpose()?.map(Arc::new);
        let (sender, phase) = channel(Phase::Serving);
        let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let site = Arc::new(Site {
            service: service(accounts, rdma.as_ref(), &options.limits),
            metrics: Metrics::default(),
            log,
            announced: local.as_ref().and_then(|local| local.as_ref().ok()?.announced()),
            limits: options.limits,
            phase,
            ids: AtomicU64::new(begin << 8),
            accounts: Arc::clone(accounts),
            look: Arc::default(),
            rdma,
            has_own_metrics: options.metrics.is_some(),
        });
        Ok(Self { listener, metrics, tls, local, options, site, phase: Arc::new(sender) })
    }

    /// Where figures are served, if they have a listener of their own.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.local_addr().ok()
    }

    /// Where it listens: the port, where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.options.listen)
    }

    /// The socket for processes of this machine, or why there is none; `None`: it was not asked for.
    pub fn local(&self) -> Option<std::result::Result<&Path, &Error>> {
        self.local.as_ref().map(|local| local.as_ref().map(LocalSocket::path))
    }

    /// The RDMA device that was asked for by its address.
    pub fn rdma_device(&self) -> Option<String> {
        self.site.rdma.as_ref()?.device()
    }

    /// Stops it.
    pub fn stop(&self) -> Stop {
        Stop(Arc::clone(&self.phase))
    }

    /// Serves until it is stopped: by [`Stop`], SIGTERM or SIGINT. `reread` is called on SIGHUP.
    pub fn run(self, reread: impl Fn() + Send + Sync + 'static) -> Result<()> {
        self.options.limits.raise_open_files();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .max_blocking_threads(THREADS)
            .thread_name("forebay-s3")
            .build()
            .map_err(|error| Error::from_io(&error, "cannot start threads"))?;
        let ended = runtime.block_on(self.serve(reread));
        runtime.shutdown_timeout(Duration::from_secs(1));
        ended
    }

    async fn serve(self, reread: impl Fn() + Send + Sync + 'static) -> Result<()> {
        let cannot = |error: &std::io::Error| Error::from_io(error, "cannot serve");
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(|error| cannot(&error))?;
        tokio::spawn(signals(Stop(Arc::clone(&self.phase))));
        tokio::spawn(hangups(reread));
        tokio::spawn(crate::sweeper::sweep_for_ever(Arc::clone(&self.site.accounts)));
        if let Some(rdma) = &self.site.rdma {
            tokio::spawn(end_sessions(Arc::clone(rdma), Arc::clone(&self.site.accounts)));
        }
        if let Some(metrics) = self.metrics {
            let metrics = tokio::net::TcpListener::from_std(metrics).map_err(|error| cannot(&error))?;
            tokio::spawn(show_metrics(metrics, Arc::clone(&self.site)));
        }
        let mut phase = self.site.phase.clone();
        let leaving = async {
            let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
            sleep(self.options.leave_time).await;
        };
        let local = self.local.and_then(Result::ok);
        tokio::select! {
            () = accept(&listener, self.tls, &self.site) => {}
            () = local::accept(local.as_ref(), &self.site) => {}
            () = leaving => {}
        }
        drop((listener, local));
        self.phase.send_replace(Phase::Ending);
        let ended = async {
            while self.site.metrics.connections.load(Relaxed) > 0 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(self.options.grace_time, ended).await.is_err() {
            warn("requests were broken off: they did not end in time");
        }
        self.phase.send_replace(Phase::Ended);
        Ok(())
    }
}

/// Ends RDMA sessions that are idle, or whose account is gone.
async fn end_sessions(rdma: Arc<Rdma>, accounts: Arc<Accounts>) {
    loop {
        sleep(SESSION_PAUSE).await;
        let (rdma, accounts) = (Arc::clone(&rdma), Arc::clone(&accounts));
        // A device may take a while to end a queue pair.
        let swept = tokio::task::spawn_blocking(move || rdma.sweep(|key| accounts.find(key).is_some()));
        let _ = swept.await;
    }
}

fn service(accounts: &Arc<Accounts>, rdma: Option<&Arc<Rdma>>, limits: &Limits) -> S3Service {
    let mut config = S3Config::default();
    config.xml_max_body_size = limits.xml_bytes;
    config.put_object_max_size = Some(PUT_BYTES);
    // For forms alone: the front refuses it elsewhere.
    config.enable_sig_v2 = true;
    config.post_object_max_file_size = PUT_BYTES;
    config.form_max_fields_size = limits.xml_bytes;
    config.aws_chunked_stream_max_chunk_size = CHUNK_BYTES;
    let mut builder = S3ServiceBuilder::new(Front::new(Arc::clone(accounts), rdma.cloned()));
    builder.set_route(RdmaRoute::new(accounts, rdma));
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder.set_auth(Gate::new(accounts));
    builder.set_access(Gate::new(accounts));
    builder.build()
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| Error::from_io(&error, "cannot listen").with("address", address))
}

/// Serves figures, one connection after the other, until the server ends.
async fn show_metrics(listener: tokio::net::TcpListener, site: Arc<Site>) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let theirs = Arc::clone(&site);
        let serve = service_fn(move |head| service::serve_metrics(Arc::clone(&theirs), head));
        let served = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(socket), serve);
        // One that asks nothing is left.
        let _ = timeout(site.limits.head_time, served).await;
    }
}

/// Takes connections for ever.
async fn accept(listener: &tokio::net::TcpListener, tls: Option<TlsAcceptor>, site: &Arc<Site>) {
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(taken) => taken,
            Err(error) => {
                // Descriptors are used up, most often: some will be free soon.
                warn(&format!("cannot take a connection: {error}"));
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(open) = Open::within_limit(site) else { continue };
        let _ = socket.set_nodelay(true);
        let (site, tls) = (Arc::clone(site), tls.clone());
        tokio::spawn(async move {
            let _open = open;
            greet(site, tls, socket, peer).await;
        });
    }
}

/// A connection that counts.
struct Open(Arc<Site>);

impl Open {
    /// `None`: there are as many as may be.
    fn within_limit(site: &Arc<Site>) -> Option<Self> {
        site.metrics.accepted.fetch_add(1, Relaxed);
        let before = site.metrics.connections.fetch_add(1, Relaxed);
        let open = Self(Arc::clone(site));
        if before < site.limits.connections as u64 {
            return Some(open);
        }
        site.metrics.turned_away.fetch_add(1, Relaxed);
        None
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Relaxed);
    }
}

/// TLS first, where it is spoken.
async fn greet(site: Arc<Site>, tls: Option<TlsAcceptor>, socket: TcpStream, peer: SocketAddr) {
    let way =
        |reached: SocketAddr| Way { reached: reached.ip().to_canonical(), client: peer.ip().to_canonical() };
    let way = socket.local_addr().ok().map(way);
    let (watch, from) = (Watch::new(site.limits), Origin { peer: None, from: peer.to_string(), way });
    let Some(tls) = tls else {
        return hold(site, Arc::clone(&watch), Watched::new(socket, watch), from).await;
    };
    match timeout(site.limits.head_time, tls.accept(socket)).await {
        Ok(Ok(secured)) => hold(site, Arc::clone(&watch), Watched::new(secured, watch), from).await,
        Ok(Err(_)) => {}
        Err(_) => {
            site.metrics.overdue.fetch_add(1, Relaxed);
        }
    }
}

/// Where a connection comes from.
struct Origin {
    peer: Option<Arc<LocalPeer>>,
    from: String,
    way: Option<Way>,
}

/// Serves a connection until it ends, is overdue, or the server ends.
async fn hold<T: Socket>(site: Arc<Site>, watch: Arc<Watch>, socket: Watched<T>, origin: Origin) {
    let (mut phase, peer) = (site.phase.clone(), origin.peer.clone());
    let connection = Arc::new(Connection {
        site: Arc::clone(&site),
        watch: Arc::clone(&watch),
        belongs: Arc::<Belongs>::default(),
        lane: socket.lane(),
        peer: origin.peer,
        from: origin.from,
        way: origin.way,
    });
    let serve = service_fn(move |head| service::serve(Arc::clone(&connection), head));
    let served = http1::Builder::new()
        .max_buf_size(READ_BYTES)
        .max_header_size(site.limits.head_bytes)
        .serve_connection(TokioIo::new(socket), serve)
        .with_upgrades();
    let mut served = std::pin::pin!(served);
    let (mut is_ending, mut is_shut) = (false, false);
    loop {
        // The file of a new object goes with its connection.
        if is_ending && !is_shut && !has_draft(peer.as_ref()) {
            served.as_mut().graceful_shutdown();
            is_shut = true;
        }
        let is_look = tokio::select! {
            _ = served.as_mut() => return,
            () = sleep(watch.pause()) => true,
            _ = phase.wait_for(|phase| *phase >= Phase::Ending), if !is_ending => {
                is_ending = true;
                false
            }
        };
        if is_look && is_over(&site, &watch, peer.as_ref()).await {
            site.metrics.overdue.fetch_add(1, Relaxed);
            return;
        }
    }
}

fn has_draft(peer: Option<&Arc<LocalPeer>>) -> bool {
    peer.is_some_and(|peer| peer.has_draft())
}

/// Whether a connection did nothing for too long. One that has the file of a new object is quiet as long as the file changes, and its
/// account may write it.
async fn is_over(site: &Site, watch: &Watch, peer: Option<&Arc<LocalPeer>>) -> bool {
    let is_late = watch.left().is_zero();
    let Some(peer) = peer.filter(|peer| peer.has_draft()) else { return is_late };
    // Before the look at the file, which keeps the draft to itself while a file system hangs.
    if !peer.may_write(&site.accounts) || (is_late && !watch.is_quiet()) {
        return true;
    }
    if !is_late {
        return false;
    }
    watch.restart();
    let (theirs, limit) = (Arc::clone(peer), site.limits.draft_time);
    !tokio::task::spawn_blocking(move || theirs.is_active(limit)).await.unwrap_or_default()
}

async fn signals(stop: Stop) {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return warn("signals are not heard: SIGTERM ends the server at once");
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => stop.leave(),
            _ = interrupt.recv() => stop.leave(),
        }
    }
}

/// Calls on SIGHUP, one call after the other, on a thread that may wait.
async fn hangups(reread: impl Fn() + Send + Sync + 'static) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        return warn("signals are not heard: SIGHUP ends the server");
    };
    let reread = Arc::new(reread);
    while hangup.recv().await.is_some() {
        let reread = Arc::clone(&reread);
        if tokio::task::spawn_blocking(move || reread()).await.is_err() {
            warn("accounts stay as they were: reading them failed");
        }
    }
}
