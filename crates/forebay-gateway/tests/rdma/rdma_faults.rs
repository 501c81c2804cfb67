//! What goes wrong with a client, its account, the link or the NIC: nothing wrong is stored, and nothing of it stays.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use fake_verbs::{Fake, Fault, Side, What};
use forebay_gateway::{AccountEntry, RdmaOptions};
use forebay_s3_rdma::Operation;
use forebay_s3_rdma::headers::TOKEN;
use forebay_s3_rdma::hipobj::{PREPARE, READY};
use forebay_s3_rdma::rc1::CONNECT;
use forebay_verbs::{Device, Domain, Fabric, Kind, Listener, Route};

use crate::client::{Client, connect_body, gateway, gateway_with, memory_of, post_signed};
use crate::rdma::{assert_declined, assert_moved, assert_refused, said};
use crate::rdma_hipobj::{Half, NOWHERE, ask, pair_for};
use crate::served::raw::Raw;
use crate::served::{Gateway, KEY, SECRET, pattern};

const MIB: usize = 1 << 20;

/// Waits until it is so.
#[track_caller]
fn wait(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Counts how often a device was opened.
#[derive(Debug)]
struct Counted {
    fake: Fake,
    opened: AtomicUsize,
}

impl Fabric for Counted {
    fn devices(&self) -> forebay_error::Result<Vec<Device>> {
        self.fake.devices()
    }

    fn open(&self, route: &Route) -> forebay_error::Result<Arc<dyn Domain>> {
        self.opened.fetch_add(1, SeqCst);
        self.fake.open(route)
    }

    fn listen(&self, at: SocketAddr) -> forebay_error::Result<Box<dyn Listener>> {
        self.fake.listen(at)
    }
}

fn counted(fake: &Fake, address: Option<&str>) -> (Arc<Counted>, Gateway) {
    let fabric = Arc::new(Counted { fake: fake.serving(), opened: AtomicUsize::new(0) });
    let mut rdma = RdmaOptions::new(fabric.clone(), address.map(|address| address.parse().unwrap()));
    rdma.any_client = true;
    let entries = vec![AccountEntry::new(KEY, SECRET)];
    (fabric, Gateway::with(entries, |options| options.rdma = Some(rdma)))
}

#[test]
fn an_address_without_a_nic_is_looked_for_once() {
    let fake = Fake::new();
    let (fabric, gateway) = counted(&Fake::with(Vec::new()), None);
    let raw = gateway.raw();
    let half = Half::new(&fake);
    let prepare = half.prepare(Operation::Put, "/bkt/k", 3, 0).headers();
    for _ in 0..3 {
        assert_refused(&post_signed(&raw, CONNECT, &connect_body(&fake, 4)), 501, "RDMANotSupported");
        assert_refused(&ask(&raw, PREPARE, &prepare), 501, "RDMANotSupported");
    }
    assert_eq!(fabric.opened.load(SeqCst), 1);
}

#[test]
fn a_queue_end_that_is_not_there_does_not_have_the_nic_opened_anew() {
    let fake = Fake::new();
    let (fabric, gateway) = counted(&fake, Some("10.0.0.1"));
    let raw = gateway.raw();
    assert_eq!(post_signed(&raw, CONNECT, &connect_body(&fake, 4)).status, 200);
    let (opened, regions) = (fabric.opened.load(SeqCst), fake.regions());
    fake.cut("10.0.0.9".parse().unwrap(), true);
    let wrong = connect_body(&fake, 4).replace("0a000001", "0a000009");
    for _ in 0..3 {
        assert_refused(&post_signed(&raw, CONNECT, &wrong), 501, "RDMANotSupported");
    }
    assert_eq!(post_signed(&raw, CONNECT, &connect_body(&fake, 4)).status, 200);
    assert_eq!((fabric.opened.load(SeqCst), fake.regions()), (opened, regions));
}

#[test]
fn transfers_under_way_have_memory_too_and_count() {
    let fake = Fake::new();
    let entries = vec![AccountEntry::new("ana", "secret-ana")];
    let gateway = gateway_with(&fake, entries, |rdma| rdma.write_time = Duration::from_secs(2));
    let raw = Raw::new(gateway.address, "ana", "secret-ana");
    raw.put("/bkt/k", b"old");
    let before = fake.regions();
    let prepare = |half: &Half| ask(&raw, PREPARE, &half.prepare(Operation::Put, "/bkt/k", 3, 0).headers());
    thread::scope(|scope| {
        let begun: Vec<_> = (0..16).map(|_| pair_for(&raw, Half::new(&fake), Operation::Put, 3)).collect();
        let waiting: Vec<_> = begun
            .iter()
            .map(|paired| {
                let (raw, ready) = (raw.clone(), paired.ready(NOWHERE));
                scope.spawn(move || ask(&raw, READY, &ready.headers()).status)
            })
            .collect();
        // They wait for writes that do not come.
        thread::sleep(Duration::from_millis(300));
        assert_refused(&prepare(&Half::new(&fake)), 503, "SlowDown");
        assert!(waiting.into_iter().all(|one| one.join().unwrap() == 500));
    });
    wait("memory stays", || fake.regions() <= before + 1);
    assert_eq!(prepare(&Half::new(&fake)).status, 200);
    assert_eq!(raw.get("/bkt/k").body, b"old");
}

fn ana_and_ben() -> [AccountEntry; 2] {
    ["ana", "ben"].map(|key| AccountEntry::new(key, format!("secret-{key}")))
}

#[test]
fn an_account_that_is_removed_stores_nothing_more() {
    let fake = Fake::new();
    let [ana, ben] = ana_and_ben();
    let gateway = gateway_with(&fake, vec![ana, ben.clone()], |_| {});
    let raw = |key: &str| Raw::new(gateway.address, key, &format!("secret-{key}"));
    let (ana, ben_raw) = (raw("ana"), raw("ben"));
    ana.put("/bkt/k", b"old");
    let len = 12 * MIB;
    let mut client = Client::connect(&fake, &ana);
    let source = client.memory(&pattern(len));
    // One that is prepared, one that waits for its client's writes, and one that reads.
    let prepared = pair_for(&ana, Half::new(&fake), Operation::Put, 3);
    let paired = pair_for(&ana, Half::new(&fake), Operation::Put, 3);
    let ready = paired.ready(NOWHERE);
    let slow = What::Delay(Duration::from_millis(300));
    fake.inject(Fault::on(Side::Server, Kind::Read, slow).times(1000));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&ana, READY, &ready.headers()));
        let reading = scope.spawn(|| client.put("/bkt/new", &source, &[]));
        wait("nothing is read", || fake.counts().read > 0);
        gateway.accounts.replace(vec![ben]).unwrap();
        assert_refused(&reading.join().unwrap(), 403, "AccessDenied");
        assert_refused(&waiting.join().unwrap(), 403, "AccessDenied");
    });
    assert!(fake.counts().read < len as u64);
    assert_eq!(ask(&ana, READY, &prepared.ready(NOWHERE).headers()).status, 403);
    // The slots of the NIC, and the client's memory.
    wait("memory of the account stays", || fake.regions() <= 2);
    assert_eq!((ben_raw.get("/bkt/k").body, ben_raw.get("/bkt/new").status), (b"old".to_vec(), 404));
}

#[test]
fn a_client_that_is_gone_with_a_window_open() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    let len = 8 * MIB;
    raw.put("/bkt/k", &pattern(len));
    let slow = What::Delay(Duration::from_millis(100));
    for is_get in [true, false] {
        let client = Client::connect(&fake, &raw);
        let memory = client.memory(&vec![0; len]);
        let token = client.token(&memory, len as u64);
        let kind = if is_get { Kind::Write } else { Kind::Read };
        fake.inject(Fault::on(Side::Server, kind, slow).times(1000));
        let before = fake.counts();
        thread::scope(|scope| {
            let (method, path) = if is_get { ("GET", "/bkt/k") } else { ("PUT", "/bkt/new") };
            let asked = scope.spawn(|| raw.ask(method, path, &[(TOKEN, &token)], b""));
            wait("nothing moves", || fake.counts() != before);
            // The process ends: its queue pair, then its memory.
            drop(client);
            drop(memory);
            let reply = asked.join().unwrap();
            if is_get {
                assert_declined(&reply, "transfer", &pattern(len));
            } else {
                assert_refused(&reply, 500, "RDMATransferFailed");
                assert_eq!(raw.get("/bkt/new").status, 404);
            }
        });
    }
    wait("memory stays", || fake.regions() == 1);
}

#[test]
fn a_link_that_is_cut_for_two_seconds_is_waited_for() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let len = 3 * MIB;
    gateway.raw().put("/bkt/k", &pattern(len));
    // The NIC repeats lost packets.
    let cut = What::Delay(Duration::from_secs(2));
    fake.inject(Fault::on(Side::Server, Kind::Write, cut).after(1));
    fake.inject(Fault::on(Side::Server, Kind::Read, cut).after(1));
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::connect(&fake, &gateway.raw());
            let target = client.memory(&vec![0; len]);
            assert_moved(&client.get("/bkt/k", &target, &[]), 200, len);
            assert!(target.bytes() == pattern(len));
        });
        scope.spawn(|| {
            let mut client = Client::connect(&fake, &gateway.raw());
            let source = client.memory(&pattern(len));
            assert_moved(&client.put("/bkt/new", &source, &[]), 200, len);
        });
    });
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert!(gateway.raw().get("/bkt/new").body == pattern(len));
}

/// Its NIC gives up, at the server's side or at both, and the link is there again.
#[test]
fn behind_a_link_that_is_cut_for_longer_all_goes_on() {
    let len = 3 * MIB;
    for kind in [Kind::Write, Kind::Read] {
        let fake = Fake::new();
        let gateway = gateway(&fake);
        let raw = gateway.raw();
        raw.put("/bkt/k", &pattern(len));
        let mut client = Client::connect(&fake, &raw);
        let memory = client.memory(&pattern(len));
        fake.inject(Fault::on(Side::Server, kind, What::Unreachable).after(1));
        match kind {
            Kind::Write => assert_declined(&client.get("/bkt/k", &memory, &[]), "transfer", &pattern(len)),
            _ => assert_refused(&client.put("/bkt/new", &memory, &[]), 500, "RDMATransferFailed"),
        }
        assert_eq!(raw.get("/bkt/new").status, 404);
        let mut again = Client::connect(&fake, &raw);
        assert_moved(&again.put("/bkt/new", &again.memory(&pattern(len)), &[]), 200, len);
        let target = again.memory(&vec![0; len]);
        assert_moved(&again.get("/bkt/new", &target, &[]), 200, len);
        assert!(target.bytes() == pattern(len));
    }
}

/// Sizes that are one byte in 32 bits.
#[test]
fn four_gibibytes_and_a_byte() {
    const SIZE: u64 = (1 << 32) + 1;
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    client.raw.put("/bkt/k", b"1");
    let target = client.memory(&[0xee; 2]);
    assert_declined(&client.get_of("/bkt/k", &target, SIZE, &[]), "size", b"1");
    assert_refused(&client.put_of("/bkt/k", &target, (5 << 30) + 1, &[]), 400, "EntityTooLarge");
    assert_eq!((target.bytes(), client.raw.get("/bkt/k").body), (&[0xee; 2][..], b"1".to_vec()));
    // The last bytes of an object of that size.
    let file = File::create(gateway.directory().join("bkt/big")).unwrap();
    file.write_all_at(b"xy", SIZE - 2).unwrap();
    let range = [("range", "bytes=4294967295-4294967296")];
    let reply = client.get("/bkt/big", &target, &range);
    assert_moved(&reply, 206, 2);
    assert_eq!(said(&reply, "content-range"), "bytes 4294967295-4294967296/4294967297");
    assert_eq!(target.bytes(), b"xy");
    // Memory of two bytes has not as many: nothing is stored.
    assert_refused(&client.put_of("/bkt/new", &target, SIZE, &[]), 500, "RDMATransferFailed");
    assert_eq!(client.raw.get("/bkt/new").status, 404);
    // No transfer of hipobj-rc-v2 is as long.
    let half = Half::new(&fake);
    for operation in [Operation::Get, Operation::Put] {
        let prepare = half.prepare(operation, "/bkt/big", SIZE as usize, 0).headers();
        assert_refused(&ask(&client.raw, PREPARE, &prepare), 400, "InvalidRDMAToken");
    }
}

/// A key is the memory's for as long as that is registered.
#[test]
fn a_key_that_has_ended_reaches_nothing() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    raw.put("/bkt/k", b"new");
    for is_get in [true, false] {
        let client = Client::connect(&fake, &raw);
        let ended = client.memory(b"old");
        let token = client.token(&ended, 3);
        let bytes = ended.end();
        // Other memory of the session is there.
        let other = client.memory(b"...");
        let refused = fake.counts().refused;
        if is_get {
            assert_declined(&raw.ask("GET", "/bkt/k", &[(TOKEN, &token)], b""), "transfer", b"new");
        } else {
            let put = raw.ask("PUT", "/bkt/put", &[(TOKEN, &token)], b"");
            assert_refused(&put, 500, "RDMATransferFailed");
            assert_eq!(raw.get("/bkt/put").status, 404);
        }
        assert_eq!(fake.counts().refused, refused + 1);
        assert_eq!((&bytes[..3], other.bytes()), (&b"old"[..], &b"..."[..]));
    }
    // The same of hipobj-rc-v2: the session is of one transfer, and its key of memory that has gone.
    let paired = pair_for(&raw, Half::new(&fake), Operation::Get, 3);
    let memory = memory_of(&paired.domain, b"old");
    let ready = paired.ready(forebay_verbs::Remote {
        key: memory.region.remote_key(),
        address: memory.region.memory().start,
    });
    let bytes = memory.end();
    assert_refused(&ask(&raw, READY, &ready.headers()), 500, "RDMATransferFailed");
    assert_eq!(&bytes[..3], b"old");
}
