//! A test double: an NFS server in the process. Versions 3 and 4.0 to 4.2 over TCP, with mountd and the portmapper on the same port.
//! It has its own reading and writing of messages, so that a mistake of the client's is not repeated here. Faults come on demand:
//! see [`Fault`].

mod calling;
mod files;
mod make;
mod rdma;
mod serve;
mod v3;
mod v4;
mod words;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use files::Files;
pub use rdma::{Lie, Placing};
pub use serve::may_vanish;
use v4::Sessions;
use words::Out;

/// A request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// COMMIT.
    Commit,
    /// What leads to a file: MNT, LOOKUP.
    Open,
    /// Anything else.
    Other,
    /// DESTROY_SESSION.
    End,
    /// The portmapper's list.
    List,
    /// READDIR, READDIRPLUS.
    Names,
    /// CREATE, and an OPEN that makes a file.
    Make,
    /// RENAME.
    Rename,
    /// REMOVE.
    Remove,
    /// OPEN_CONFIRM, CLOSE.
    Close,
}

/// A call as faults see it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The request.
    pub asked: Asked,
    /// How many such calls came before it.
    pub before: u64,
    /// The connection, counted from 0.
    pub connection: u64,
    /// The user that it is made as.
    pub user: Option<u32>,
    /// Where in the file.
    pub offset: u64,
    /// Bytes asked for.
    pub count: u32,
}

/// What goes wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with this status.
    Status(u32),
    /// At most this many bytes are read or written.
    Short(u32),
    /// No reply ever comes.
    NoReply,
    /// No reply ever comes, and nothing more is received for so long.
    Unread(Duration),
    /// The connection is forgotten instead of a reply, and the client is not told. Needs CAP_NET_ADMIN: see [`may_vanish`].
    Vanish,
    /// The connection is closed instead of a reply.
    Close,
    /// It is closed behind this many bytes of the reply.
    CloseAfter(usize),
    /// The reply comes this much later; those of other calls wait behind it.
    Late(Duration),
    /// The reply comes byte by byte, one in so long. Those of other calls wait behind it.
    Drip(Duration),
    /// The same with this many bytes at a time.
    Slow(usize, Duration),
    /// Replies to a call that was not made come in its place, one in so long, until the connection is closed.
    Flood(Duration),
    /// The reply comes behind the next one.
    Overtaken,
    /// The reply comes twice.
    Twice,
    /// The reply has another number.
    OtherXid,
    /// The reply comes in fragments of this many bytes.
    Fragments(usize),
    /// The reply's record has this many bytes less than it should.
    Truncated(usize),
    /// The 32-bit word at this byte of the reply is another: what it should be, plus this.
    Word(usize, u32),
    /// The record is these bytes.
    Record(Vec<u8>),
    /// Before the call is carried out, what was not durable is lost, and the verifier is another: a restart that nobody saw.
    Forget,
    /// Before the call is carried out, its file is cut to this many bytes.
    Cut(u64),
    /// Before the call is carried out, all bytes of its file are this one.
    Overwrite(u8),
    /// A listing has these names with their cookies, and more are to come.
    Names(Vec<(&'static str, u64)>),
    /// The server restarts when it has carried out the call, before it answers: what was not durable is lost.
    Restart,
}

/// Decides what goes wrong.
pub type Faults = Box<dyn FnMut(&Seen) -> Option<Fault> + Send>;

/// Servers of the process: each says that it is another one.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A server; it ends when it is dropped.
pub struct Server {
    address: SocketAddr,
    /// Further ones.
    others: Mutex<Vec<(SocketAddr, Arc<AtomicBool>)>>,
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) files: Mutex<Files>,
    pub(crate) sessions: Mutex<Sessions>,
    faults: Mutex<Faults>,
    counts: [AtomicU64; 12],
    pub(crate) connections: Mutex<Vec<TcpStream>>,
    connection_count: AtomicU64,
    /// By the address that they came to.
    connection_counts: Mutex<HashMap<IpAddr, u64>>,
    /// The ports that they came from.
    ports: Mutex<Vec<u16>>,
    is_over: AtomicBool,
    /// READ and WRITE of this many bytes at most.
    limit: AtomicU64,
    /// Slots of a session at most.
    slots: AtomicU64,
    /// Bytes of a call, and of a reply, that sessions grant at most.
    pub(crate) session_bytes: AtomicU64,
    /// The highest minor version of 4, and whether there is version 3.
    versions: Mutex<(bool, Option<u32>)>,
    port: u16,
    wrong_slots: AtomicU64,
    /// Replies to READ do not tell the file's state.
    hides_states: AtomicBool,
    /// How many GETATTRs behind a READ of version 4 ask to wait.
    pub(crate) delayed_states: AtomicU64,
    /// What it says of itself: its owner's major and minor id.
    pub(crate) owner: Mutex<(Vec<u8>, u64)>,
    /// A status that calls in a session fail with, and how many.
    refused_places: Mutex<(u32, u32)>,
    /// The port by which the portmapper lists NFS over RDMA.
    pub(crate) listed_rdma: Mutex<Option<u16>>,
    /// How many bytes of a call are received at a time, and how long it pauses then.
    pub(crate) slow_calls: Mutex<Option<(usize, Duration)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Server {
    fn default() -> Self {
        Self::start()
    }
}

impl Server {
    /// Starts one on a free port of this host.
    ///
    /// # Panics
    /// If there is none.
    pub fn start() -> Self {
        #[allow(clippy::expect_used, reason = "a test double: without a port there is no test")]
        Self::start_on(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    /// Starts one on a listener, whose options its connections have.
    ///
    /// # Panics
    /// If it has no address.
    pub fn start_on(listener: TcpListener) -> Self {
        #[allow(clippy::expect_used, reason = "as above")]
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            files: Mutex::default(),
            sessions: Mutex::default(),
            faults: Mutex::new(Box::new(|_| None)),
            counts: Default::default(),
            connections: Mutex::default(),
            connection_count: AtomicU64::new(0),
            connection_counts: Mutex::default(),
            ports: Mutex::default(),
            is_over: AtomicBool::new(false),
            limit: AtomicU64::new(1 << 20),
            slots: AtomicU64::new(u64::MAX),
            session_bytes: AtomicU64::new(u64::MAX),
            versions: Mutex::new((true, Some(2))),
            port: address.port(),
            wrong_slots: AtomicU64::new(0),
            hides_states: AtomicBool::new(false),
            delayed_states: AtomicU64::new(0),
            owner: Mutex::new((format!("fake {}", NUMBERS.fetch_add(1, Ordering::Relaxed)).into_bytes(), 0)),
            refused_places: Mutex::default(),
            listed_rdma: Mutex::default(),
            slow_calls: Mutex::default(),
        });
        let serving = shared.clone();
        std::thread::spawn(move || serve::accept(&listener, &serving, &AtomicBool::new(false)));
        Self { address, others: Mutex::default(), shared }
    }

    /// Listens on the same port of another address of this host, too.
    ///
    /// # Errors
    /// If the port is taken there.
    pub fn listen_at(&self, address: IpAddr) -> std::io::Result<()> {
        let listener = TcpListener::bind((address, self.address.port()))?;
        let is_over = Arc::<AtomicBool>::default();
        lock(&self.others).push((listener.local_addr()?, is_over.clone()));
        let serving = self.shared.clone();
        std::thread::spawn(move || serve::accept(&listener, &serving, &is_over));
        Ok(())
    }

    /// Leaves an address at which it listens: connections there end, and no more are taken.
    pub fn leave(&self, address: IpAddr) {
        lock(&self.others).retain(|(at, is_over)| {
            if at.ip() != address {
                return true;
            }
            is_over.store(true, Ordering::Relaxed);
            let _ = TcpStream::connect(at);
            false
        });
        lock(&self.shared.connections).retain(|connection| {
            let is_there = connection.local_addr().is_ok_and(|at| at.ip() == address);
            if is_there {
                let _ = connection.shutdown(std::net::Shutdown::Both);
            }
            !is_there
        });
    }

    /// Connections so far that came to an address.
    pub fn connections_to(&self, address: IpAddr) -> u64 {
        lock(&self.shared.connection_counts).get(&address).copied().unwrap_or(0)
    }

    /// Says that it is another server, or another node, from now on.
    pub fn own(&self, major: &str, minor: u64) {
        *lock(&self.shared.owner) = (major.as_bytes().to_vec(), minor);
    }

    /// What it says that it is.
    pub fn owner(&self) -> String {
        String::from_utf8_lossy(&lock(&self.shared.owner).0).into_owned()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path, in a version (`3`, `4.0`, `4.1`).
    pub fn url(&self, path: &str, version: &str) -> String {
        let port = self.address.port();
        let mount = if version == "3" { format!("&mountport={port}") } else { String::new() };
        format!("nfs://127.0.0.1:{port}{path}?version={version}{mount}")
    }

    /// Makes a file, or another one in its place: the old one's handle is stale.
    pub fn put(&self, path: &str, bytes: Vec<u8>) {
        lock(&self.shared.files).put(path, bytes);
    }

    /// Makes a file whose bytes are those of a file of this host, for reading: this host's kernel sees the same file.
    pub fn put_on_disk(&self, path: &str, file: std::fs::File) {
        lock(&self.shared.files).put_on_disk(path, file);
    }

    /// What a file has on stable storage.
    pub fn durable(&self, path: &str) -> Vec<u8> {
        lock(&self.shared.files).durable(path)
    }

    /// Gives a file mode bits, and an owner and a group.
    pub fn set_rights(&self, path: &str, mode: u32, owner: (u32, u32)) {
        lock(&self.shared.files).set_rights(path, mode, owner);
    }

    /// The mode bits of a file.
    pub fn mode(&self, path: &str) -> Option<u32> {
        lock(&self.shared.files).mode(path)
    }

    /// Gives files that are made from now on an access list: of each entry its type, its rights, and whom they are of. One of whom
    /// `refused@` is among is not taken from clients.
    pub fn inherit_acl(&self, entries: &[(u32, u32, &str)]) {
        let out = Out::default().word(entries.len() as u32);
        let acl = entries
            .iter()
            .fold(out, |out, (kind, rights, who)| out.words(&[*kind, 0, *rights]).bytes(who.as_bytes()));
        lock(&self.shared.files).inherited = (!entries.is_empty()).then_some(acl.0);
    }

    /// The access list of a file.
    pub fn acl(&self, path: &str) -> Option<Vec<u8>> {
        lock(&self.shared.files).acl(path)?.clone()
    }

    /// The paths of all files.
    pub fn paths(&self) -> Vec<String> {
        lock(&self.shared.files).paths()
    }

    /// Files that clients have open.
    pub fn opens(&self) -> usize {
        lock(&self.shared.sessions).opens.len()
    }

    /// Removes a file.
    pub fn remove(&self, path: &str) {
        lock(&self.shared.files).remove(path);
    }

    /// Replaces the decision on faults.
    pub fn faults(&self, faults: impl FnMut(&Seen) -> Option<Fault> + Send + 'static) {
        *lock(&self.shared.faults) = Box::new(faults);
    }

    /// Bytes that it takes in one READ or WRITE.
    pub fn limit(&self, bytes: u64) {
        self.shared.limit.store(bytes, Ordering::Relaxed);
    }

    /// Has handles of files put there from now on this many bytes, 20 or more.
    pub fn handles(&self, bytes: usize) {
        lock(&self.shared.files).handle_len = bytes;
    }

    /// Receives calls over TCP as by a slow link: this many bytes at a time, one in so long.
    pub fn receive_slowly(&self, bytes: usize, pause: Duration) {
        *lock(&self.shared.slow_calls) = Some((bytes, pause));
    }

    /// Refuses the place in the session of the next calls of 4.1 and 4.2.
    pub fn refuse_places(&self, status: u32, calls: u32) {
        *lock(&self.shared.refused_places) = (status, calls);
    }

    /// Grants sessions that are made from now on this many slots at most.
    pub fn slots(&self, slots: u64) {
        self.shared.slots.store(slots, Ordering::Relaxed);
    }

    /// Grants sessions that are made from now on calls and replies of this many bytes at most, and refuses larger ones in them.
    pub fn session_bytes(&self, bytes: u64) {
        self.shared.session_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether replies to READ leave out the file's state: version 3 without attributes, version 4 with a GETATTR that fails.
    pub fn hide_states(&self, hides: bool) {
        self.shared.hides_states.store(hides, Ordering::Relaxed);
    }

    /// Has the file's state behind the next READs of version 4 wait: the READ goes well, the GETATTR behind it asks to come again.
    pub fn delay_states(&self, calls: u64) {
        self.shared.delayed_states.store(calls, Ordering::Relaxed);
    }

    /// Whether it speaks version 3, and the highest minor version of 4.
    pub fn versions(&self, three: bool, four: Option<u32>) {
        *lock(&self.shared.versions) = (three, four);
    }

    /// Has the portmapper list NFS over RDMA on a port.
    pub fn list_rdma(&self, port: u16) {
        *lock(&self.shared.listed_rdma) = Some(port);
    }

    /// Calls of a kind so far.
    pub fn count(&self, asked: Asked) -> u64 {
        self.shared.counts[asked as usize].load(Ordering::Relaxed)
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connection_count.load(Ordering::Relaxed)
    }

    /// The ports that they came from, in turn.
    pub fn ports(&self) -> Vec<u16> {
        lock(&self.shared.ports).clone()
    }

    /// Sessions that it has, and clients.
    pub fn sessions(&self) -> (usize, usize) {
        lock(&self.shared.sessions).count()
    }

    /// Calls whose slot or number in it was wrong.
    pub fn wrong_slots(&self) -> u64 {
        self.shared.wrong_slots.load(Ordering::Relaxed)
    }

    /// Carries out a call that came by another way than TCP. Its reply, how many bytes of a READ stand at its end (before their
    /// pad), and what is to go wrong with it.
    pub fn answer(&self, connection: u64, call: &[u8]) -> Option<(Vec<u8>, usize, Option<Fault>)> {
        serve::answer_for(&self.shared, connection, call)
    }

    /// Closes its connections, as servers do with those that nothing uses.
    pub fn close_connections(&self) {
        self.shared.close_connections();
    }

    /// Restarts: connections and sessions are gone, and bytes that were not durable.
    pub fn restart(&self) {
        self.shared.restart();
    }
}

impl Shared {
    pub(crate) fn restart(&self) {
        lock(&self.files).restart();
        lock(&self.sessions).forget();
        self.close_connections();
    }

    fn close_connections(&self) {
        for connection in lock(&self.connections).drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    fn refused_place(&self) -> Option<u32> {
        let mut refused = lock(&self.refused_places);
        refused.1 = refused.1.checked_sub(1)?;
        Some(refused.0)
    }

    fn fault(&self, seen: Seen) -> Option<Fault> {
        let before = self.counts[seen.asked as usize].fetch_add(1, Ordering::Relaxed);
        (lock(&self.faults))(&Seen { before, ..seen })
    }

    pub(crate) fn most(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.restart();
        for address in lock(&self.others).iter().map(|(at, _)| at).chain([&self.address]) {
            let _ = TcpStream::connect(address);
        }
    }
}
