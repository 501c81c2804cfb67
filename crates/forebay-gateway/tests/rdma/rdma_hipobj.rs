//! hipobj-rc-v2 over a fabric in the process: a client of the wire by hand.

#[allow(dead_code, reason = "the client of the other dialect is not used here")]
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Target, domain, gateway, gateway_with, memory_of};
use crate::served::pattern;
use crate::served::raw::{Raw, Reply};
use fake_verbs::{Fake, Fault, Side, What};
use forebay_gateway::AccountEntry;
use forebay_s3_rdma::Operation;
use forebay_s3_rdma::hipobj::{
    CANCEL, Finished, MOST_BYTES, PREPARE, Prepare, Prepared, READY, Ready, cancel, header,
};
use forebay_verbs::{Completion, Connection, Domain, Kind, Options, Post, QueueEnd, Remote, UnpairedEnd};

const MIB: usize = 1 << 20;
const COOKIE: u32 = 0x00c0_ffee;
pub type Headers = Vec<(&'static str, String)>;

pub const NOWHERE: Remote = Remote { key: 0, address: 0 };

pub fn ask(raw: &Raw, path: &str, headers: &Headers) -> Reply {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    raw.ask("POST", path, &headers, b"")
}

/// Header of a reply, for the codecs.
fn with<T>(reply: &Reply, parse: impl FnOnce(&dyn Fn(&str) -> Option<&'static str>) -> T) -> T {
    parse(&|name| reply.header(name).map(|value| &*Box::leak(value.into_boxed_str())))
}

/// A queue end that waits for its peer.
pub struct Half {
    pub domain: Arc<dyn Domain>,
    end: Box<dyn UnpairedEnd>,
}

impl Half {
    pub fn new(fake: &Fake) -> Self {
        let domain = domain(fake);
        let options = Options { receives: 1, receive_size: 64, sends: 8, ..Options::default() };
        let end = domain.end(&options).unwrap();
        Self { domain, end }
    }

    fn own(&self) -> QueueEnd {
        self.end.own()
    }

    pub fn prepare(&self, operation: Operation, target: &str, bytes: usize, offset: u64) -> Prepare {
        let (target, bytes) = (target.to_owned(), bytes as u64);
        Prepare { end: self.own(), cookie: COOKIE, operation, target, bytes, offset }
    }
}

/// A transfer that is paired.
pub struct Paired {
    connection: Box<dyn Connection>,
    pub domain: Arc<dyn Domain>,
    answer: Prepared,
    number: u32,
}

fn pair(half: Half, operation: Operation, reply: &Reply) -> Paired {
    let mtu = half.own().mtu;
    let answer = with(reply, |header| Prepared::parse(operation, mtu, reply.status, header));
    let answer = answer.unwrap_or_else(|stopped| panic!("{stopped:?}: {}{}", reply.head, reply.text()));
    let number = half.own().number;
    let connection = half.end.pair(&answer.end).unwrap();
    Paired { connection, domain: half.domain, answer, number }
}

impl Paired {
    pub fn ready(&self, memory: Remote) -> Ready {
        Ready { session: self.answer.session.clone(), cookie: COOKIE, number: self.number, memory }
    }

    /// The immediate that came, if one did.
    fn immediate(&mut self) -> Option<u32> {
        let mut out = Vec::with_capacity(1);
        self.connection.wait(&mut out, Duration::from_millis(200)).unwrap();
        match out.pop() {
            Some(Completion::Received(message)) => message.immediate(),
            _ => None,
        }
    }

    /// Writes to the server's memory, and tells it.
    pub fn write(&mut self, source: &Target, bytes: usize, immediate: u32) {
        let (from, to) = (source.region.range(0, bytes).unwrap(), self.answer.memory);
        self.connection.write_with_immediate(1, from, to, immediate, Post::PLAIN).unwrap();
    }
}

fn first_of(target: &Target) -> Remote {
    Remote { key: target.region.remote_key(), address: target.region.memory().start }
}

fn get(fake: &Fake, raw: &Raw, target: &str, bytes: usize, offset: u64) -> (Reply, Target, Option<u32>) {
    let half = Half::new(fake);
    let reply = ask(raw, PREPARE, &half.prepare(Operation::Get, target, bytes, offset).headers());
    let mut paired = pair(half, Operation::Get, &reply);
    let memory = memory_of(&paired.domain, &vec![0xee; bytes]);
    let reply = ask(raw, READY, &paired.ready(first_of(&memory)).headers());
    let immediate = paired.immediate();
    (reply, memory, immediate)
}

fn put(fake: &Fake, raw: &Raw, target: &str, bytes: &[u8], immediate: u32) -> Reply {
    let half = Half::new(fake);
    let reply = ask(raw, PREPARE, &half.prepare(Operation::Put, target, bytes.len(), 0).headers());
    let mut paired = pair(half, Operation::Put, &reply);
    let source = memory_of(&paired.domain, bytes);
    paired.write(&source, bytes.len(), immediate);
    ask(raw, READY, &paired.ready(NOWHERE).headers())
}

#[track_caller]
fn assert_finished(reply: &Reply, bytes: usize) -> Finished {
    let finished = with(reply, |header| Finished::parse((bytes as u64, COOKIE), reply.status, header));
    finished.unwrap_or_else(|why| panic!("{why}: {}{}", reply.head, reply.text()))
}

#[track_caller]
fn assert_refused(reply: &Reply, status: u16, code: &str) {
    assert_eq!((reply.status, reply.code().as_str()), (status, code), "{}{}", reply.head, reply.text());
    assert_eq!(reply.header("x-amz-rdma-bytes-transferred"), None);
}

#[test]
fn objects_go_both_ways() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    for len in [1, MIB, 8 * MIB, 20 * MIB + 5] {
        let bytes = pattern(len);
        let stored = put(&fake, &raw, "/bkt/a%20key", &bytes, COOKIE);
        let Finished { sum, etag, .. } = assert_finished(&stored, len);
        assert!(std::fs::read(gateway.directory().join("bkt/a key")).unwrap() == bytes);
        let (reply, memory, immediate) = get(&fake, &raw, "/bkt/a%20key?versionId=null", len, 0);
        let finished = assert_finished(&reply, len);
        assert_eq!((finished.sum, finished.etag, immediate), (sum, etag, Some(COOKIE)));
        assert!(sum.is_some() && memory.bytes() == bytes);
    }
    let (reply, memory, immediate) = get(&fake, &raw, "/bkt/a%20key", MIB, 1000);
    assert_eq!((assert_finished(&reply, MIB).sum, immediate), (None, Some(COOKIE)));
    assert!(*memory.bytes() == pattern(20 * MIB + 5)[1000..1000 + MIB]);
}

#[test]
fn an_upload_by_parts() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    let id = raw.ask("POST", "/bkt/big?uploads", &[], b"").between("UploadId");
    let bytes = pattern(5 * MIB);
    let part = put(&fake, &raw, &format!("/bkt/big?partNumber=1&uploadId={id}"), &bytes, COOKIE);
    let etag = assert_finished(&part, bytes.len()).etag.unwrap();
    let document = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let ended = raw.ask("POST", &format!("/bkt/big?uploadId={id}"), &[], document.as_bytes());
    assert_eq!(ended.status, 200, "{}", ended.text());
    assert!(raw.get("/bkt/big").body == bytes);
}

#[test]
fn an_object_that_is_replaced_between_prepare_and_ready() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    raw.put("/bkt/k", b"old");
    let half = Half::new(&fake);
    let mut paired = pair_for(&raw, half, Operation::Get, 3);
    raw.put("/bkt/k", b"new");
    let memory = memory_of(&paired.domain, b"...");
    let reply = ask(&raw, READY, &paired.ready(first_of(&memory)).headers());
    assert_finished(&reply, 3);
    assert_eq!((memory.bytes(), paired.immediate()), (&b"old"[..], Some(COOKIE)));
}

pub fn pair_for(raw: &Raw, half: Half, operation: Operation, bytes: usize) -> Paired {
    let reply = ask(raw, PREPARE, &half.prepare(operation, "/bkt/k", bytes, 0).headers());
    pair(half, operation, &reply)
}

#[test]
fn prepares_that_are_refused() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    raw.put("/bkt/k", b"old");
    let half = Half::new(&fake);
    let prepare = |operation, target: &str, bytes, offset| {
        ask(&raw, PREPARE, &half.prepare(operation, target, bytes, offset).headers())
    };
    assert_refused(&prepare(Operation::Get, "/bkt/none", 3, 0), 404, "NoSuchKey");
    assert_refused(&prepare(Operation::Get, "/bkt/k", 4, 0), 416, "InvalidRange");
    assert_refused(&prepare(Operation::Get, "/bkt/k", 3, u64::MAX), 416, "InvalidRange");
    assert_refused(&prepare(Operation::Put, "/bkt/k", 3, 1), 400, "InvalidRDMAToken");
    assert_refused(&prepare(Operation::Put, "/bkt/k", MOST_BYTES as usize, 0), 413, "EntityTooLarge");
    assert_refused(&prepare(Operation::Put, "/bkt/k", 0, 0), 400, "InvalidRDMAToken");
    for target in ["/bkt", "/bkt/", "//k", "/bkt/k?partNumber=1", "/bkt/k?x=1", "/bkt/%zz"] {
        assert_refused(&prepare(Operation::Put, target, 3, 0), 400, "InvalidRDMAToken");
    }
    let mut headers = half.prepare(Operation::Get, "/bkt/k", 3, 0).headers();
    headers[0].1 = "hipobj-rc-v3".to_owned();
    assert_refused(&ask(&raw, PREPARE, &headers), 400, "InvalidRDMAToken");
    let unsigned: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(raw.unsigned("POST", PREPARE, &unsigned).status, 403);
    assert_eq!(raw.with_unsigned("POST", PREPARE, header::PROTOCOL, "hipobj-rc-v2").status, 403);
}

#[test]
fn sessions_are_used_once_and_by_their_account() {
    let fake = Fake::new();
    let entries = ["ana", "ben"].map(|key| AccountEntry::new(key, format!("secret-{key}"))).to_vec();
    let gateway = gateway_with(&fake, entries, |_| {});
    let raw = |key: &str| Raw::new(gateway.address, key, &format!("secret-{key}"));
    let (ana, ben) = (raw("ana"), raw("ben"));
    ana.put("/bkt/k", b"old");
    let mut paired = pair_for(&ana, Half::new(&fake), Operation::Get, 3);
    let memory = memory_of(&paired.domain, b"...");
    let ready = paired.ready(first_of(&memory));
    assert_refused(&ask(&ben, READY, &ready.headers()), 403, "AccessDenied");
    assert_refused(&ask(&ben, CANCEL, &cancel(&ready.session)), 403, "AccessDenied");
    assert_finished(&ask(&ana, READY, &ready.headers()), 3);
    assert_refused(&ask(&ana, READY, &ready.headers()), 409, "RDMASessionExpired");
    assert_eq!(paired.immediate(), Some(COOKIE));
    // One that is cancelled, again and again, and one that is prepared with another cookie.
    let paired = pair_for(&ana, Half::new(&fake), Operation::Put, 3);
    let ready = paired.ready(NOWHERE);
    assert_eq!([0, 1].map(|_| ask(&ana, CANCEL, &cancel(&ready.session)).status), [200, 200]);
    assert_refused(&ask(&ana, READY, &ready.headers()), 409, "RDMASessionExpired");
    for is_cookie in [true, false] {
        let paired = pair_for(&ana, Half::new(&fake), Operation::Put, 3);
        let mut wrong = paired.ready(NOWHERE);
        *(if is_cookie { &mut wrong.cookie } else { &mut wrong.number }) ^= 1;
        assert_refused(&ask(&ana, READY, &wrong.headers()), 400, "InvalidRDMAToken");
    }
    let unknown = Ready { session: "9".repeat(32), ..ready };
    assert_refused(&ask(&ana, READY, &unknown.headers()), 409, "RDMASessionExpired");
    assert_eq!(ana.get("/bkt/k").body, b"old");
    // More than an account may have between prepare and ready.
    let halves: Vec<_> = (0..16).map(|_| pair_for(&ana, Half::new(&fake), Operation::Get, 3)).collect();
    let half = Half::new(&fake);
    let prepare = half.prepare(Operation::Get, "/bkt/k", 3, 0);
    assert_refused(&ask(&ana, PREPARE, &prepare.headers()), 503, "SlowDown");
    drop(halves);
}

#[test]
fn transfers_that_fail_store_and_answer_nothing() {
    let fake = Fake::new();
    let entry = AccountEntry::new("ana", "secret-ana");
    let gateway = gateway_with(&fake, vec![entry], |rdma| rdma.write_time = Duration::from_secs(1));
    let raw = Raw::new(gateway.address, "ana", "secret-ana");
    raw.put("/bkt/k", b"old");
    // The number of the last write is another one than was said.
    assert_refused(&put(&fake, &raw, "/bkt/k", b"new", COOKIE + 1), 500, "RDMATransferFailed");
    fake.inject(Fault::on(Side::Server, Kind::Write, What::Refuse));
    let (reply, memory, immediate) = get(&fake, &raw, "/bkt/k", 3, 0);
    assert_refused(&reply, 500, "RDMATransferFailed");
    assert_eq!((memory.bytes(), immediate), (&[0xee; 3][..], None));
    // A client that goes before it wrote.
    let paired = pair_for(&raw, Half::new(&fake), Operation::Put, 3);
    let ready = paired.ready(NOWHERE);
    drop(paired);
    let waiting = std::thread::spawn({
        let raw = raw.clone();
        move || ask(&raw, READY, &ready.headers())
    });
    assert_eq!(raw.get("/bkt/k").body, b"old");
    // The server waits for it as long as for one that is slow.
    assert_refused(&waiting.join().unwrap(), 500, "RDMATransferFailed");
    assert_eq!(raw.get("/bkt/k").body, b"old");
}

#[test]
fn the_servers_memory_ends_with_the_transfer() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    let mut paired = pair_for(&raw, Half::new(&fake), Operation::Put, 3);
    let source = memory_of(&paired.domain, b"new");
    paired.write(&source, 3, COOKIE);
    assert_finished(&ask(&raw, READY, &paired.ready(NOWHERE).headers()), 3);
    // Another client, which learned the key, does not reach the memory of one under way.
    let victim = pair_for(&raw, Half::new(&fake), Operation::Put, 3);
    let mut thief = pair_for(&raw, Half::new(&fake), Operation::Put, 3);
    thief.answer.memory = victim.answer.memory;
    let source = memory_of(&thief.domain, b"bad");
    thief.write(&source, 3, COOKIE);
    let mut out = Vec::with_capacity(1);
    thief.connection.wait(&mut out, Duration::from_secs(5)).unwrap();
    assert!(matches!(out[..], [Completion::Failed { .. }]), "{out:?}");
    drop(victim);
}
