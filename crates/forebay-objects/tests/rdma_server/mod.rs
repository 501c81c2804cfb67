//! A server that speaks rc1, or hipobj-rc-v2 on demand, before one that speaks S3: written by the description of the wire (docs/reference/s3-rdma.md), with codecs of
//! its own. It does what is right, or lies on demand.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a helper of tests; not each has need of all"
)]

mod hipobj;
mod http;
mod named;

use std::collections::HashMap;
use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fake_s3::{FakeS3, SECRET_KEY, verify_head};
use fake_verbs::Fake;
use forebay_verbs::{
    Access, Completion, Connection, Domain, Fabric, HostRange, Memory, Options, Post, QueueEnd, Region,
    Remote, Route,
};
use http::{Call, Reply};
pub use named::Named;

/// What the server does wrong, or otherwise than by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It says that a byte less moved.
    Fewer,
    /// It says that a byte more moved.
    More,
    /// It moves half, and says half.
    Half,
    /// It sends the body, without a word of RDMA.
    NoHeader,
    /// It sends the body, and says that it does.
    Declines,
    /// Its status is 501.
    Status501,
    /// It has no session any more, once.
    Forgets,
    /// It answers later.
    Late(Duration),
    /// It closes the connection in place of an answer; the bytes are there.
    Silent,
    /// It closes the connection in place of an answer, and writes the bytes after that.
    WritesLater,
    /// It says 200 to a PUT, and stores nothing.
    StoresNothing,
    /// It says that all moved, and moved nothing.
    MovesNothing,
    /// It writes a byte beside the window first.
    Beside,
    /// It moves the bytes of the object before.
    OtherEtag,
    /// It moves another range.
    OtherRange,
    /// It answers twice.
    Twice,
    /// It is overloaded.
    SlowDown,
    /// It passes a range over: it moves the first bytes of the object, and says so.
    FirstBytes,
    /// It has no word of the range.
    NoRange,
    /// It has no word of the ETag.
    NoEtag,
    /// It moves other bytes than the object's.
    OtherBytes,
    /// It has no checksum of what it stored.
    NoSum,
    /// The checksum of what it stored is another one.
    OtherSum,
    /// It stores all bytes, and has no word of RDMA.
    NoWord,
    /// It stores half of the bytes, and has no word of RDMA.
    Truncates,
    /// The same, and it says that it has read all.
    TruncatesWithWords,
    /// It writes to the memory of its first transfer as well.
    Replays,
    /// It is killed before a byte moves: see [`RdmaServer::revive`].
    DiesBefore,
    /// It is killed when the bytes have moved.
    DiesBehind,
    /// It does not find the object.
    NotFound,
    /// It sends the body: the object has another size.
    OtherSize,
    /// The number behind the bytes is another one. (hipobj-rc-v2 alone, as those below.)
    OtherNumber,
    /// No number comes behind the bytes.
    NoNumber,
    /// The cookie of its answer is another one.
    OtherCookie,
    /// Its end begins with another number than it says: nothing arrives.
    OtherPsn,
}

/// A session.
struct Session {
    connection: Box<dyn Connection>,
}

struct Shared {
    s3: FakeS3,
    domain: Arc<dyn Domain>,
    sessions: Mutex<HashMap<String, Arc<Mutex<Session>>>>,
    /// The number of each session's last request.
    seen: Mutex<HashMap<String, u64>>,
    lie: Mutex<Option<(Lie, u64)>>,
    /// The last object, by its ETag: it is not copied for each range.
    object: Mutex<(String, Arc<Vec<u8>>)>,
    connect_status: AtomicU64,
    connects: AtomicU64,
    transfers: AtomicU64,
    numbers: AtomicU64,
    /// Bytes of objects in bodies.
    body_bytes: AtomicU64,
    /// Writes that were refused by the fabric.
    refused: AtomicU64,
    is_over: AtomicBool,
    most: AtomicU64,
    most_sessions: AtomicU64,
    idle_seconds: AtomicU64,
    /// Sessions that the client ended.
    disconnects: AtomicU64,
    /// Sessions have no end of the server's behind the answer.
    is_down: AtomicBool,
    /// It speaks hipobj-rc-v2 in place of rc1.
    is_hipobj: AtomicBool,
    prepares: AtomicU64,
    exchanges: Mutex<HashMap<String, hipobj::Exchange>>,
    /// It lies in answers to PREPARE, else in those to READY.
    lies_at_prepare: AtomicBool,
    /// A transfer is late now.
    is_late: AtomicBool,
    /// Its process is not there.
    is_dead: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
    /// The memory of its first transfer.
    first: Mutex<Option<Remote>>,
}

/// The server; it ends when it is dropped.
pub struct RdmaServer {
    address: SocketAddr,
    pub fabric: Fake,
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RdmaServer {
    pub fn start(fabric: Fake) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let domain = fabric.serving().open(&Route::to(address)).unwrap();
        let shared = Arc::new(Shared {
            s3: FakeS3::start(),
            domain,
            sessions: Mutex::default(),
            seen: Mutex::default(),
            lie: Mutex::default(),
            object: Mutex::default(),
            connect_status: AtomicU64::new(200),
            connects: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            most: AtomicU64::new(1 << 30),
            most_sessions: AtomicU64::new(64),
            idle_seconds: AtomicU64::new(300),
            disconnects: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            is_hipobj: AtomicBool::new(false),
            prepares: AtomicU64::new(0),
            exchanges: Mutex::default(),
            lies_at_prepare: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            streams: Mutex::default(),
            first: Mutex::default(),
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.is_over.load(SeqCst) {
                    return;
                }
                if serving.is_dead.load(SeqCst) {
                    continue;
                }
                let serving = serving.clone();
                lock(&serving.streams).push(stream.try_clone().unwrap());
                std::thread::spawn(move || {
                    serving.serve(&stream);
                    // Others have it too.
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Self { address, fabric, shared }
    }

    pub fn s3(&self) -> &FakeS3 {
        &self.shared.s3
    }

    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut all = self.shared.s3.environment();
        all[0].1 = format!("http://{}", self.address);
        all
    }

    /// Has it lie in the next answers by RDMA.
    pub fn lie(&self, lie: Lie, times: u64) {
        *lock(&self.shared.lie) = Some((lie, times));
    }

    /// The status of its answers to connect.
    pub fn answer_connect(&self, status: u64) {
        self.shared.connect_status.store(status, SeqCst);
    }

    /// Bytes of an operation at most.
    pub fn limit(&self, bytes: u64) {
        self.shared.most.store(bytes, SeqCst);
    }

    /// Sessions at most.
    pub fn limit_sessions(&self, most: u64) {
        self.shared.most_sessions.store(most, SeqCst);
    }

    /// How long it keeps a session, as it says.
    pub fn say_idle(&self, seconds: u64) {
        self.shared.idle_seconds.store(seconds, SeqCst);
    }

    /// It ends each session when it has given it.
    pub fn end_sessions(&self, ends: bool) {
        self.shared.is_down.store(ends, SeqCst);
    }

    pub fn disconnects(&self) -> u64 {
        self.shared.disconnects.load(SeqCst)
    }

    pub fn connects(&self) -> u64 {
        self.shared.connects.load(SeqCst)
    }

    /// Requests with a token that were answered.
    pub fn transfers(&self) -> u64 {
        self.shared.transfers.load(SeqCst)
    }

    pub fn body_bytes(&self) -> u64 {
        self.shared.body_bytes.load(SeqCst)
    }

    pub fn refused(&self) -> u64 {
        self.shared.refused.load(SeqCst)
    }

    pub fn sessions(&self) -> usize {
        lock(&self.shared.sessions).len()
    }

    /// From now on it speaks hipobj-rc-v2, and answers 404 to connect.
    pub fn speak_hipobj(&self) {
        self.answer_connect(404);
        self.shared.is_hipobj.store(true, SeqCst);
    }

    /// Has it lie in the next answers to PREPARE.
    pub fn lie_at_prepare(&self, lie: Lie, times: u64) {
        self.shared.lies_at_prepare.store(true, SeqCst);
        self.lie(lie, times);
    }

    pub fn prepares(&self) -> u64 {
        self.shared.prepares.load(SeqCst)
    }

    /// Transfers that wait for READY.
    pub fn exchanges(&self) -> usize {
        lock(&self.shared.exchanges).len()
    }

    pub fn is_late(&self) -> bool {
        self.shared.is_late.load(SeqCst)
    }

    pub fn is_dead(&self) -> bool {
        self.shared.is_dead.load(SeqCst)
    }

    /// A new process of a server that was killed.
    pub fn revive(&self) {
        self.shared.is_dead.store(false, SeqCst);
    }

    /// It begins anew: no session is left.
    pub fn restart(&self) {
        lock(&self.shared.sessions).clear();
    }
}

impl Drop for RdmaServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// Memory of a server for one transfer.
struct Slot {
    bytes: Vec<u8>,
    region: Region,
}

impl Shared {
    fn slot(&self, mut bytes: Vec<u8>) -> Slot {
        let memory = Memory::Host(HostRange::of_mut(&mut bytes));
        // SAFETY: the bytes live as long as the region, and do not move.
        let region = unsafe { self.domain.register(memory, Access::WRITE) }.unwrap();
        Slot { bytes, region }
    }

    fn serve(&self, stream: &TcpStream) {
        let mut buffered = BufReader::new(stream);
        while let Some(call) = Call::read(&mut buffered) {
            let reply = self.answer(&call);
            let Some(reply) = reply.filter(|_| !self.is_dead.load(SeqCst)) else { return };
            if !reply.write(stream, &call.method) {
                return;
            }
        }
    }

    /// `None`: the connection is closed.
    fn answer(&self, call: &Call) -> Option<Reply> {
        if call.path.starts_with("/.forebay/rdma/v1/") {
            return Some(match verify_head(&call.head, SECRET_KEY) {
                Ok(()) if call.path.ends_with("/connect") => self.connect(call),
                Ok(()) if call.path.ends_with("/disconnect") => {
                    let session = call.header("x-amz-rdma-session").unwrap_or_default();
                    assert!(call.is_signed("x-amz-rdma-session"));
                    self.disconnects.fetch_add(1, SeqCst);
                    lock(&self.sessions).remove(session);
                    Reply::new(204)
                }
                _ => Reply::new(403),
            });
        }
        if call.path.starts_with("/.hipobj-rc/") {
            return if self.is_hipobj.load(SeqCst) { self.hipobj(call) } else { Some(self.forward(call)) };
        }
        let token = call.header("x-amz-rdma-token").map(str::to_owned);
        match token {
            Some(token) => {
                let reply = self.transfer(call, &token);
                self.transfers.fetch_add(1, SeqCst);
                reply
            }
            None => Some(self.forward(call)),
        }
    }

    fn sleep(&self, time: Duration) {
        self.is_late.store(true, SeqCst);
        std::thread::sleep(time);
        self.is_late.store(false, SeqCst);
    }

    /// All that its process has is gone.
    fn die(&self) {
        self.is_dead.store(true, SeqCst);
        lock(&self.sessions).clear();
        lock(&self.exchanges).clear();
        for stream in lock(&self.streams).drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Does it with this lie. A server that is killed does it before, or not at all.
    fn dying(&self, lie: Option<Lie>, act: impl FnOnce(Option<Lie>) -> Option<Reply>) -> Option<Reply> {
        match lie {
            Some(Lie::DiesBefore) => self.die(),
            Some(Lie::DiesBehind) => {
                act(None);
                self.die();
            }
            lie => return act(lie),
        }
        None
    }

    fn forward(&self, call: &Call) -> Reply {
        let reply = http::forward(self.s3.address(), call);
        if call.method == "GET" && reply.status < 300 && call.key().is_some() {
            self.body_bytes.fetch_add(reply.body.len() as u64, SeqCst);
        }
        if call.method == "PUT" {
            self.body_bytes.fetch_add(call.body.len() as u64, SeqCst);
        }
        reply
    }

    fn connect(&self, call: &Call) -> Reply {
        self.connects.fetch_add(1, SeqCst);
        if lock(&self.sessions).len() as u64 >= self.most_sessions.load(SeqCst) {
            return Reply::new(503);
        }
        let status = self.connect_status.load(SeqCst) as u16;
        if status != 200 {
            return Reply::new(status);
        }
        let number = |text: &str| http::number_of(&call.body, text);
        assert_eq!(number("version"), 1);
        let gid = http::text_of(&call.body, "gid");
        let gid: Vec<u8> =
            (0..16).map(|at| u8::from_str_radix(&gid[2 * at..2 * at + 2], 16).unwrap()).collect();
        let peer = QueueEnd {
            number: number("qpn") as u32,
            first: number("psn") as u32,
            gid: gid.try_into().unwrap(),
            lid: number("lid") as u16,
            port: number("port") as u8,
            mtu: number("mtu") as u32,
        };
        let options = Options { reads_out: number("reads") as u8, ..Options::default() };
        let end = self.domain.end(&options).unwrap();
        let QueueEnd { number, first, gid, lid, port, mtu } = end.own();
        let mut session = Session { connection: end.pair(&peer).unwrap() };
        if self.is_down.load(SeqCst) {
            session.connection.disconnect();
        }
        let name = format!("{:032x}", 0xfeed_0000_u64 + self.numbers.fetch_add(1, SeqCst));
        lock(&self.sessions).insert(name.clone(), Arc::new(Mutex::new(session)));
        let gid = format!("{:032x}", u128::from_be_bytes(gid));
        let (most, idle) = (self.most.load(SeqCst), self.idle_seconds.load(SeqCst));
        let body = format!(
            r#"{{"version":1,"session":"{name}","end":{{"qpn":{number},"psn":{first},"gid":"{gid}","lid":{lid},"port":{port},"mtu":{mtu}}},"operation_bytes":{most},"idle_seconds":{idle},"keys":["region"]}}"#
        );
        Reply::new(200).body(body.into_bytes())
    }

    fn lie_of_now(&self) -> Option<Lie> {
        let mut lie = lock(&self.lie);
        let (found, left) = (*lie)?;
        *lie = if left > 1 { Some((found, left - 1)) } else { None };
        Some(found)
    }

    fn transfer(&self, call: &Call, token: &str) -> Option<Reply> {
        let is_signed = verify_head(&call.head, SECRET_KEY).is_ok() && call.is_signed("x-amz-rdma-token");
        if !is_signed {
            return Some(Reply::new(403));
        }
        self.dying(self.lie_of_now(), |lie| self.transfer_lying(call, token, lie))
    }

    fn transfer_lying(&self, call: &Call, token: &str, lie: Option<Lie>) -> Option<Reply> {
        let fields: Vec<_> = token.split(':').collect();
        let ["rc", name, number, address, size, key] = fields[..] else { return Some(Reply::new(400)) };
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let (to, size) = (Remote { address: hex(address), key: hex(key) as u32 }, hex(size) as usize);
        let before = lock(&self.seen).insert(name.to_owned(), hex(number));
        assert!(before.unwrap_or(0) < hex(number), "a request of the session came twice, or late");
        let declined = |reason: &str, header: bool| {
            let mut reply = self.forward(call);
            if header {
                reply = reply.with("x-amz-rdma-reply", "501").with("x-amz-rdma-reason", reason);
            }
            Some(reply)
        };
        match lie {
            Some(Lie::NoHeader) => return declined("", false),
            Some(Lie::Declines) => return declined("dialect", true),
            Some(Lie::Status501) => return Some(Reply::new(501)),
            Some(Lie::NotFound) => return Some(Reply::new(404)),
            Some(Lie::OtherSize) => return declined("size", true),
            Some(Lie::SlowDown) => return Some(Reply::new(503)),
            Some(Lie::StoresNothing) => return Some(Reply::new(200).with("etag", "\"0\"")),
            Some(Lie::Forgets) => _ = lock(&self.sessions).remove(name),
            Some(Lie::Late(time)) => self.sleep(time),
            _ => {}
        }
        let Some(session) = lock(&self.sessions).get(name).cloned() else {
            let put = Reply::new(409).with("x-amz-rdma-reason", "session");
            return if call.method == "GET" { declined("session", true) } else { Some(put) };
        };
        let mut session = lock(&session);
        let moved = match call.method.as_str() {
            "GET" => self.get(call, &mut session, (to, size), lie),
            _ => self.put(call, &mut session, (to, size), lie),
        };
        drop(session);
        moved.unwrap_or_else(|()| {
            lock(&self.sessions).remove(name);
            let put = Reply::new(500).with("x-amz-rdma-reason", "transfer");
            if call.method == "GET" { declined("transfer", true) } else { Some(put) }
        })
    }

    fn get(
        &self,
        call: &Call,
        session: &mut Session,
        (to, size): (Remote, usize),
        lie: Option<Lie>,
    ) -> Result<Option<Reply>, ()> {
        let (bucket, key) = call.key().unwrap();
        let Some(etag) = self.s3.etag(bucket, key) else { return Ok(Some(Reply::new(404))) };
        let bytes = self.object(bucket, key, &etag);
        let etag = format!("\"{etag}\"");
        if call.header("if-match").is_some_and(|asked| asked != etag) {
            return Ok(Some(Reply::new(412)));
        }
        let len = bytes.len();
        let range = call.header("range").map(|range| {
            let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            start.parse::<usize>().unwrap()..end.parse::<usize>().unwrap() + 1
        });
        let (start, end) = range.as_ref().map_or((0, len), |range| (range.start, range.end));
        if end - start != size {
            let reply = self.forward(call);
            return Ok(Some(reply.with("x-amz-rdma-reply", "501").with("x-amz-rdma-reason", "size")));
        }
        let mut part = bytes[start..end].to_vec();
        let range = if lie == Some(Lie::FirstBytes) {
            part = bytes[..size].to_vec();
            None
        } else {
            range
        };
        if lie == Some(Lie::OtherBytes) {
            part[size / 2] ^= 1;
        }
        match lie {
            Some(Lie::MovesNothing) => {}
            Some(Lie::Half) => self.write(session, part[..size / 2].to_vec(), to)?,
            Some(Lie::Beside) => {
                let beside = Remote { address: to.address + size as u64, ..to };
                self.write(session, vec![0xEE; 1], beside)?;
            }
            Some(Lie::Silent) => {
                self.write(session, part, to)?;
                return Ok(None);
            }
            Some(Lie::WritesLater) => {
                // The client ends its connection when this one is closed.
                let slot = self.slot(part);
                call.close();
                std::thread::sleep(Duration::from_millis(300));
                let _ = self.post(session, &slot, to);
                return Ok(None);
            }
            Some(Lie::Replays) => {
                let first = *lock(&self.first).get_or_insert(to);
                self.write(session, part, to)?;
                self.write(session, vec![0xEE; 1], first)?;
            }
            _ => {
                lock(&self.first).get_or_insert(to);
                self.write(session, part, to)?;
            }
        }
        let status = if range.is_some() { 206 } else { 200 };
        let said = match lie {
            Some(Lie::Fewer) => size - 1,
            Some(Lie::More) => size + 1,
            Some(Lie::Half) => size / 2,
            _ => size,
        };
        let etag = if lie == Some(Lie::OtherEtag) { "\"other\"".to_owned() } else { etag };
        let mut reply = Reply::new(status);
        if lie != Some(Lie::NoEtag) {
            reply = reply.with("etag", &etag);
        }
        if call.header("x-amz-checksum-mode").is_some() {
            reply = reply.with("x-amz-checksum-crc64nvme", &http::sum_of(&bytes));
        }
        if range.is_some() && lie != Some(Lie::NoRange) {
            let from = if lie == Some(Lie::OtherRange) { start + 1 } else { start };
            reply = reply.with("content-range", &format!("bytes {from}-{}/{len}", end - 1));
        }
        let reply = reply
            .with("x-amz-rdma-reply", &status.to_string())
            .with("x-amz-rdma-bytes-transferred", &said.to_string());
        if lie == Some(Lie::Twice) {
            return Ok(Some(reply.twice()));
        }
        Ok(Some(reply))
    }

    fn object(&self, bucket: &str, key: &str, etag: &str) -> Arc<Vec<u8>> {
        let mut known = lock(&self.object);
        if known.0 != etag {
            *known = (etag.to_owned(), Arc::new(self.s3.get(bucket, key).unwrap()));
        }
        known.1.clone()
    }

    fn put(
        &self,
        call: &Call,
        session: &mut Session,
        (from, size): (Remote, usize),
        lie: Option<Lie>,
    ) -> Result<Option<Reply>, ()> {
        assert_eq!(call.header("x-amz-content-sha256"), Some("UNSIGNED-PAYLOAD"));
        let slot = self.slot(vec![0; size]);
        let into = slot.region.range(0, size).map_err(drop)?;
        session.connection.read(1, into, from, Post::PLAIN).map_err(drop)?;
        self.ended(session)?;
        let bytes = slot.bytes.clone();
        if matches!(lie, Some(Lie::Truncates | Lie::TruncatesWithWords)) {
            let target = format!("{}?{}", call.path, call.query);
            let reply = http::put(&self.s3, target.trim_end_matches('?'), &bytes[..size / 2]);
            let reply = Reply::new(200).with("etag", reply.header("etag").unwrap());
            let said =
                reply.with("x-amz-rdma-reply", "200").with("x-amz-rdma-bytes-transferred", &size.to_string());
            return Ok(Some(if lie == Some(Lie::Truncates) { said.wordless() } else { said }));
        }
        // As if the bytes had come in the body.
        let mut reply = http::forward_put(&self.s3, call, &bytes);
        if reply.status >= 300 {
            return Ok(Some(reply));
        }
        if lie == Some(Lie::Silent) {
            return Ok(None);
        }
        let said = if lie == Some(Lie::Fewer) { size - 1 } else { size };
        const SUM: &str = "x-amz-checksum-crc64nvme";
        reply = match lie {
            Some(Lie::NoSum) => reply.without(SUM),
            Some(Lie::OtherSum) => reply.without(SUM).with(SUM, &http::sum_of(b"other")),
            _ => reply,
        };
        reply = reply.with("x-amz-rdma-reply", "200").with("x-amz-rdma-bytes-transferred", &said.to_string());
        Ok(Some(if lie == Some(Lie::NoWord) { reply.wordless() } else { reply }))
    }

    fn write(&self, session: &mut Session, bytes: Vec<u8>, to: Remote) -> Result<(), ()> {
        let slot = self.slot(bytes);
        self.post(session, &slot, to)
    }

    fn post(&self, session: &mut Session, slot: &Slot, to: Remote) -> Result<(), ()> {
        let from = slot.region.range(0, slot.bytes.len()).map_err(drop)?;
        session.connection.write(1, from, to, Post::PLAIN).map_err(drop)?;
        self.ended(session)
    }

    fn ended(&self, session: &mut Session) -> Result<(), ()> {
        self.has_ended(&mut *session.connection).then_some(()).ok_or(())
    }

    /// Whether an operation has ended well.
    fn has_ended(&self, connection: &mut dyn Connection) -> bool {
        let mut out = Vec::new();
        let waited = connection.wait(&mut out, Duration::from_secs(20));
        let is_done = waited.is_ok() && out.iter().any(|one| matches!(one, Completion::Done { .. }));
        if !is_done {
            self.refused.fetch_add(1, SeqCst);
        }
        is_done
    }
}
