//! A client of the dialect, by hand.
#![allow(unreachable_pub, reason = "a module of a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fake_verbs::Fake;
use forebay_gateway::{AccountEntry, RdmaOptions, ServerOptions};
use forebay_s3_rdma::headers::TOKEN;
use forebay_s3_rdma::rc1::{CONNECT, ConnectAnswer, ConnectAsk, Token};
use forebay_verbs::{Access, Connection, Domain, Fabric, HostRange, Memory, Options, Region, Remote, Route};
use ring::digest;

use crate::served::raw::{Raw, Reply};
use crate::served::{Gateway, KEY, SECRET};

/// A gateway whose NIC is the fabric's first, with the bucket `bkt`.
pub fn gateway(fake: &Fake) -> Gateway {
    gateway_of(fake, |_| {})
}

pub fn gateway_of(fake: &Fake, change: impl FnOnce(&mut ServerOptions)) -> Gateway {
    let gateway = Gateway::with(vec![AccountEntry::new(KEY, SECRET)], |options| {
        options.rdma = Some(rdma(fake));
        change(options);
    });
    assert_eq!(gateway.raw().put("/bkt", b"").status, 200);
    gateway
}

/// With these accounts, which share the bucket.
pub fn gateway_with(
    fake: &Fake,
    entries: Vec<AccountEntry>,
    change: impl FnOnce(&mut RdmaOptions),
) -> Gateway {
    let mut options = rdma(fake);
    change(&mut options);
    let writer = entries.iter().find(|entry| !entry.read_only).unwrap().clone();
    let gateway = Gateway::with(entries, |server| server.rdma = Some(options));
    let raw = Raw::new(gateway.address, &writer.access_key, writer.secret_key.expose());
    assert_eq!(raw.put("/bkt", b"").status, 200);
    gateway
}

fn rdma(fake: &Fake) -> RdmaOptions {
    let mut options = RdmaOptions::new(Arc::new(fake.serving()), Some("10.0.0.1".parse().unwrap()));
    // The connection comes by loopback.
    options.any_client = true;
    options
}

fn options(reads: u8) -> Options {
    Options { receives: 1, receive_size: 64, sends: 8, reads_in: reads.max(1), ..Options::default() }
}

pub fn domain(fake: &Fake) -> Arc<dyn Domain> {
    fake.open(&Route::to("10.0.0.1:0".parse().unwrap())).unwrap()
}

/// The body of a connect whose queue end is gone at once.
pub fn connect_body(fake: &Fake, reads: u8) -> String {
    let end = domain(fake).end(&options(reads)).unwrap();
    ConnectAsk { end: end.own(), reads }.to_json()
}

pub fn sha256(bytes: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, bytes);
    hash.as_ref().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// A POST whose signature covers the body.
pub fn post_signed(raw: &Raw, target: &str, body: &str) -> Reply {
    let head = raw.head("POST", target, &[], body.len(), &sha256(body.as_bytes()));
    raw.send(&head, body.as_bytes(), "POST")
}

/// Memory that the server writes and reads.
pub struct Target {
    // Deregistered before the memory goes.
    pub region: Region,
    bytes: Box<[u8]>,
}

impl Target {
    pub fn bytes(&self) -> &[u8] {
        std::hint::black_box(&self.bytes[..self.bytes.len() - 1])
    }

    /// Its key ends, and the bytes stay.
    pub fn end(self) -> Box<[u8]> {
        let Self { region, bytes } = self;
        region.release().unwrap();
        bytes
    }
}

/// Registered memory with these bytes, and one behind them.
pub fn memory_of(domain: &Arc<dyn Domain>, bytes: &[u8]) -> Target {
    let mut bytes: Box<[u8]> = bytes.iter().copied().chain([0]).collect();
    let memory = Memory::Host(HostRange::new(bytes.as_mut_ptr(), bytes.len()));
    let access = Access::WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    // SAFETY: the bytes go after the region, and are looked at between requests alone.
    let region = unsafe { domain.register(memory, access) }.unwrap();
    Target { region, bytes }
}

/// A session.
pub struct Client {
    pub raw: Raw,
    pub answer: ConnectAnswer,
    domain: Arc<dyn Domain>,
    requests: AtomicU64,
    _connection: Box<dyn Connection>,
}

impl Client {
    pub fn connect(fake: &Fake, raw: &Raw) -> Self {
        Self::connect_with(fake, raw, 4)
    }

    pub fn connect_with(fake: &Fake, raw: &Raw, reads: u8) -> Self {
        let domain = domain(fake);
        let end = domain.end(&options(reads)).unwrap();
        let reply = post_signed(raw, CONNECT, &ConnectAsk { end: end.own(), reads }.to_json());
        let answer = ConnectAnswer::parse(reply.status, &reply.body);
        let answer = answer.unwrap_or_else(|refused| panic!("{refused}: {}", reply.text()));
        let connection = end.pair(&answer.end).unwrap();
        Self { raw: raw.clone(), answer, domain, requests: AtomicU64::new(0), _connection: connection }
    }

    pub fn memory(&self, bytes: &[u8]) -> Target {
        memory_of(&self.domain, bytes)
    }

    pub fn token_of(&self, target: &Target, bytes: u64) -> Token {
        let memory = Remote { key: target.region.remote_key(), address: target.region.memory().start };
        let number = self.requests.fetch_add(1, Relaxed) + 1;
        Token { session: self.answer.session, number, memory, bytes }
    }

    pub fn token(&self, target: &Target, bytes: u64) -> String {
        self.token_of(target, bytes).text()
    }

    pub fn get(&mut self, path: &str, target: &Target, headers: &[(&str, &str)]) -> Reply {
        self.get_of(path, target, target.bytes().len() as u64, headers)
    }

    pub fn put(&mut self, path: &str, target: &Target, headers: &[(&str, &str)]) -> Reply {
        self.put_of(path, target, target.bytes().len() as u64, headers)
    }

    pub fn get_of(&mut self, path: &str, target: &Target, bytes: u64, headers: &[(&str, &str)]) -> Reply {
        self.ask("GET", path, &self.token(target, bytes), headers)
    }

    pub fn put_of(&mut self, path: &str, target: &Target, bytes: u64, headers: &[(&str, &str)]) -> Reply {
        self.ask("PUT", path, &self.token(target, bytes), headers)
    }

    fn ask(&self, method: &str, path: &str, token: &str, headers: &[(&str, &str)]) -> Reply {
        let all: Vec<_> = headers.iter().copied().chain([(TOKEN, token)]).collect();
        self.raw.ask(method, path, &all, b"")
    }
}
