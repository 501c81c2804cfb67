//! Queue pairs that are paired in band: bytes pass, and the double drops packets where a device does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_verbs::{Fake, FakeDevice, Fault, Refusal, Side, What};
use forebay_error::ErrorKind;
use forebay_verbs::{
    Access, Completion, Connection, Domain, Down, Fabric, Failure, Kind, Options, Post, QueueEnd, Remote,
    Route, Transport, Why,
};

use crate::common::{Buffer, all, expect_message, next};

fn options() -> Options {
    Options { receives: 8, sends: 16, reads_out: 4, ..Options::default() }
}

/// Both domains of a fabric, the client's and the server's.
fn domains(fake: &Fake) -> (Arc<dyn Domain>, Arc<dyn Domain>) {
    let route = Route::to(crate::common::address());
    (fake.open(&route).unwrap(), fake.serving().open(&route).unwrap())
}

struct Pair {
    client: Box<dyn Connection>,
    server: Box<dyn Connection>,
    client_domain: Arc<dyn Domain>,
    server_domain: Arc<dyn Domain>,
}

/// Pairs two ends; each is given the other as these functions change it.
fn paired_as(fake: &Fake, to_client: fn(&mut QueueEnd), to_server: fn(&mut QueueEnd)) -> Pair {
    let (client_domain, server_domain) = domains(fake);
    let (client, server) = (client_domain.end(&options()).unwrap(), server_domain.end(&options()).unwrap());
    let (mut its, mut own) = (server.own(), client.own());
    to_client(&mut its);
    to_server(&mut own);
    let (server, client) = (server.pair(&own).unwrap(), client.pair(&its).unwrap());
    Pair { client, server, client_domain, server_domain }
}

fn pair(fake: &Fake) -> Pair {
    paired_as(fake, |_| {}, |_| {})
}

fn first_of(target: &Buffer) -> Remote {
    Remote { key: target.region.remote_key(), address: target.region.memory().start }
}

fn writable() -> Access {
    Access::WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

fn failed(id: u64, kind: Kind, why: Failure) -> Completion {
    Completion::Failed { id, kind, why }
}

#[test]
fn messages_writes_and_reads_pass_both_ways() {
    let mut pair = pair(&Fake::new());
    assert!(pair.client.private_data().is_empty());
    assert_eq!(pair.client.peer().to_string(), "10.0.0.1:0");
    pair.client.send(1, b"to the server", Post::QUIET).unwrap();
    expect_message(&mut pair.server, b"to the server");
    pair.server.send(1, b"to the client", Post::QUIET).unwrap();
    expect_message(&mut pair.client, b"to the client");
    let target = Buffer::new(&pair.client_domain, 64, writable(), 0);
    let source = Buffer::new(&pair.server_domain, 64, Access::WRITE, 9);
    let (all_of_it, to) = (source.region.range(0, 64).unwrap(), first_of(&target));
    pair.server.write(2, all_of_it, to, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.server), Completion::Done { id: 2, kind: Kind::Write });
    assert_eq!(target.bytes(), [9; 64]);
    let into = Buffer::new(&pair.server_domain, 64, Access::WRITE, 0);
    pair.server.read(3, into.region.range(0, 64).unwrap(), to, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.server), Completion::Done { id: 3, kind: Kind::Read });
    assert_eq!(into.bytes(), [9; 64]);
}

#[test]
fn ends_say_what_they_are() {
    let (one, two) = domains(&Fake::new());
    let (one, two) = (one.end(&options()).unwrap().own(), two.end(&options()).unwrap().own());
    one.check().unwrap();
    assert_ne!(one.number, two.number);
    assert_ne!(one.first, two.first, "random: one time in 16 million they are the same");
    assert_eq!((one.address(), one.lid, one.mtu), (crate::common::address().ip(), 0, 4096));
    let mut small = FakeDevice::new("small0", crate::common::address().ip());
    small.mtu = 1024;
    let (small, _) = domains(&Fake::with(vec![small]));
    let small = small.end(&options()).unwrap().own();
    assert_eq!((one.path_mtu(&small), small.path_mtu(&one)), (1024, 1024));
}

#[test]
fn an_immediate_comes_behind_the_last_bytes() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let target = Buffer::new(&pair.client_domain, 64, writable(), 0);
    let source = Buffer::new(&pair.server_domain, 64, Access::READ, 9);
    let (whole, to) = (source.region.range(0, 64).unwrap(), first_of(&target));
    fake.record(true);
    pair.server.write_with_immediate(1, whole, to, 0xcafe_f00d, Post::PLAIN).unwrap();
    let Completion::Received(message) = next(&mut pair.client) else { panic!("no message") };
    assert_eq!((message.immediate(), message.len()), (Some(0xcafe_f00d), 0));
    assert_eq!(target.bytes(), [9; 64]);
    assert_eq!(next(&mut pair.server), Completion::Done { id: 1, kind: Kind::Write });
    assert!(pair.client.bytes(&message).unwrap().is_empty());
    pair.client.post_receive(message).unwrap();
    assert_eq!((fake.journal().len(), fake.counts().writes, fake.counts().written), (1, 1, 64));
    pair.server.send(2, b"plain", Post::QUIET).unwrap();
    let Completion::Received(message) = next(&mut pair.client) else { panic!("no message") };
    assert_eq!(message.immediate(), None);
}

#[test]
fn an_immediate_needs_a_receive_and_the_key() {
    let mut pair = pair(&Fake::new());
    let target = Buffer::new(&pair.client_domain, 64, writable(), 0);
    let source = Buffer::new(&pair.server_domain, 64, Access::READ, 9);
    let (whole, to) = (source.region.range(0, 64).unwrap(), first_of(&target));
    for id in 0..9 {
        pair.server.write_with_immediate(id, whole, to, 1, Post::QUIET).unwrap();
    }
    assert!(all(&mut pair.server).contains(&failed(8, Kind::Write, Failure::ReceiverNotReady)));
    assert_eq!(all(&mut pair.client).len(), 8);

    let mut pair = self::pair(&Fake::new());
    let target = Buffer::new(&pair.client_domain, 64, Access::WRITE | Access::REMOTE_READ, 0);
    let source = Buffer::new(&pair.server_domain, 64, Access::READ, 9);
    let whole = source.region.range(0, 64).unwrap();
    pair.server.write_with_immediate(1, whole, first_of(&target), 1, Post::QUIET).unwrap();
    assert!(all(&mut pair.server).contains(&failed(1, Kind::Write, Failure::RemoteAccess)));
    assert!(all(&mut pair.client).iter().all(|one| matches!(one, Completion::Failed { .. })));
    assert_eq!(target.bytes(), [0; 64]);
}

#[test]
fn an_end_that_is_told_wrong_reaches_nothing() {
    let wrong: [fn(&mut QueueEnd); 3] =
        [|end| end.first = end.first % 0xff_ffff + 1, |end| end.gid[15] += 1, |end| end.number += 100];
    for change in wrong {
        for (to_client, to_server) in [(change, (|_| {}) as fn(&mut QueueEnd)), (|_| {}, change)] {
            let mut pair = paired_as(&Fake::new(), to_client, to_server);
            let target = Buffer::new(&pair.client_domain, 64, writable(), 0);
            let source = Buffer::new(&pair.server_domain, 64, Access::READ, 9);
            let whole = source.region.range(0, 64).unwrap();
            pair.server.write(1, whole, first_of(&target), Post::QUIET).unwrap();
            assert!(all(&mut pair.server).contains(&failed(1, Kind::Write, Failure::Unreachable)));
            pair.client.send(2, b"hello", Post::QUIET).unwrap();
            assert!(all(&mut pair.client).contains(&failed(2, Kind::Send, Failure::Unreachable)));
            assert_eq!(target.bytes(), [0; 64]);
        }
    }
}

#[test]
fn ends_that_cannot_be_are_not_paired() {
    let (domain, _) = domains(&Fake::new());
    let wrong: [fn(&mut QueueEnd); 5] = [
        |end| end.number = 0,
        |end| end.number = 1 << 24,
        |end| end.first = 0,
        |end| end.mtu = 1500,
        |end| end.gid = [0; 16],
    ];
    for change in wrong {
        let mut peer = domain.end(&options()).unwrap().own();
        change(&mut peer);
        let error = domain.end(&options()).unwrap().pair(&peer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
fn a_peer_that_is_not_paired_yet_does_not_answer() {
    let (client_domain, server_domain) = domains(&Fake::new());
    let (client, server) = (client_domain.end(&options()).unwrap(), server_domain.end(&options()).unwrap());
    let mut server = server.pair(&client.own()).unwrap();
    server.send(1, b"too early", Post::QUIET).unwrap();
    assert!(all(&mut server).contains(&failed(1, Kind::Send, Failure::Unreachable)));
}

#[test]
fn iwarp_is_refused_by_name() {
    let mut device = FakeDevice::new("siw0", crate::common::address().ip());
    device.transport = Transport::Iwarp;
    let fake = Fake::with(vec![device]);
    let (domain, _) = domains(&fake);
    let error = domain.end(&options()).unwrap_err();
    assert_eq!(Why::of(&error), Some(Why::Unsupported));
    assert!(error.to_string().contains("iWARP") && error.to_string().contains("siw0"), "{error}");
    // By rdma_cm it connects, and still has no immediates.
    let mut pair = crate::common::pair(&fake);
    let target = Buffer::new(&pair.client_domain, 64, writable(), 0);
    let source = Buffer::new(&pair.server_domain, 64, Access::READ, 9);
    let whole = source.region.range(0, 64).unwrap();
    let error = pair.server.write_with_immediate(1, whole, first_of(&target), 1, Post::PLAIN).unwrap_err();
    assert_eq!(Why::of(&error), Some(Why::Unsupported));
    pair.server.write(1, whole, first_of(&target), Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.server), Completion::Done { id: 1, kind: Kind::Write });
}

#[test]
fn a_peer_does_not_hear_of_an_end_but_by_what_it_posts() {
    let mut pair = pair(&Fake::new());
    let target = Buffer::new(&pair.client_domain, 64, writable(), 0);
    let source = Buffer::new(&pair.server_domain, 64, Access::READ, 9);
    let to = first_of(&target);
    pair.server.probe(1).unwrap();
    drop(pair.client);
    pair.server.arm().unwrap();
    assert!(all(&mut pair.server).is_empty());
    assert_eq!(pair.server.down(), None);
    pair.server.write(2, source.region.range(0, 64).unwrap(), to, Post::QUIET).unwrap();
    assert!(all(&mut pair.server).contains(&failed(2, Kind::Write, Failure::Unreachable)));
    assert_eq!(pair.server.down(), Some(Down::Failed(Failure::Unreachable)));
    assert_eq!(target.bytes(), [0; 64], "nothing lands once the connection is dropped");
}

#[test]
fn disconnecting_flushes_this_side() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.inject(Fault::on(Side::Client, Kind::Send, What::Delay(Duration::from_secs(20))));
    pair.client.send(1, b"late", Post::PLAIN).unwrap();
    pair.client.disconnect();
    assert_eq!(pair.client.down(), Some(Down::Disconnected));
    let flushed = all(&mut pair.client);
    assert!(flushed.contains(&failed(1, Kind::Send, Failure::Flushed)));
    assert_eq!(flushed.len(), 1 + 8, "the message, and all receives");
    assert_eq!(Why::of(&pair.client.send(2, b"more", Post::PLAIN).unwrap_err()), Some(Why::Down));
    assert!(all(&mut pair.server).is_empty());
}

#[test]
fn a_refused_key_ends_both_sides() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let (target, mut window) = (
        Buffer::new(&pair.client_domain, 64, Access::WRITE | Access::BIND, 0),
        pair.client_domain.window().unwrap(),
    );
    let source = Buffer::new(&pair.server_domain, 64, Access::READ, 9);
    let (whole, range) = (source.region.range(0, 64).unwrap(), target.region.range(0, 64).unwrap());
    pair.client.bind(1, &mut window, range, Access::REMOTE_WRITE, Post::QUIET).unwrap();
    let to = Remote { key: window.key(), address: range.address };
    pair.server.write(2, whole, to, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.server), Completion::Done { id: 2, kind: Kind::Write });
    // Another session of the same domain, to whose connection the window is not bound.
    let (one, two) =
        (pair.client_domain.end(&options()).unwrap(), pair.server_domain.end(&options()).unwrap());
    let (own, its) = (one.own(), two.own());
    let (mut other, mut stranger) = (one.pair(&its).unwrap(), two.pair(&own).unwrap());
    fake.record(true);
    stranger.write(3, whole, to, Post::PLAIN).unwrap();
    assert!(all(&mut stranger).contains(&failed(3, Kind::Write, Failure::RemoteAccess)));
    assert_eq!(fake.journal()[0].refused, Some(Refusal::OtherConnection));
    assert!(!all(&mut other).is_empty());
    assert_eq!(other.down(), Some(Down::Disconnected));
    pair.client.invalidate(4, &mut window, Post::QUIET).unwrap();
    pair.server.write(5, whole, to, Post::PLAIN).unwrap();
    assert!(all(&mut pair.server).contains(&failed(5, Kind::Write, Failure::RemoteAccess)));
    assert_eq!(fake.journal().last().unwrap().refused, Some(Refusal::NoKey));
}

#[test]
fn faults_hold_for_paired_connections() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let target = Buffer::new(&pair.client_domain, 8, writable(), 0);
    let source = Buffer::new(&pair.server_domain, 8, Access::READ, 9);
    let (whole, to) = (source.region.range(0, 8).unwrap(), first_of(&target));
    fake.inject(Fault::on(Side::Server, Kind::Write, What::Lose));
    pair.server.write_with_immediate(1, whole, to, 5, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.server), Completion::Done { id: 1, kind: Kind::Write });
    assert_eq!((target.bytes(), all(&mut pair.client).len()), (&[0; 8][..], 0));

    let late = Duration::from_millis(60);
    fake.inject(Fault::on(Side::Server, Kind::Write, What::Delay(late)));
    let begun = Instant::now();
    pair.server.write_with_immediate(2, whole, to, 6, Post::QUIET).unwrap();
    assert_eq!(target.bytes(), [0; 8]);
    let Completion::Received(message) = next(&mut pair.client) else { panic!("no message") };
    assert!(begun.elapsed() >= late && message.immediate() == Some(6));
    assert_eq!(target.bytes(), [9; 8]);

    fake.inject(Fault::on(Side::Server, Kind::Write, What::Refuse));
    pair.server.write(3, whole, to, Post::PLAIN).unwrap();
    assert!(all(&mut pair.server).contains(&failed(3, Kind::Write, Failure::RemoteInvalid)));
    assert!(!all(&mut pair.client).is_empty());
    assert_eq!(pair.client.down(), Some(Down::Disconnected), "its device has refused");

    for what in [What::Unreachable, What::Vanish, What::Disconnect, What::RemoveDevice] {
        let fake = Fake::new();
        let mut pair = self::pair(&fake);
        fake.inject(Fault::on(Side::Server, Kind::Send, what));
        pair.server.send(4, b"a", Post::QUIET).unwrap();
        all(&mut pair.server);
        assert!(pair.server.down().is_some(), "{what:?}");
        pair.client.arm().unwrap();
        let heard = matches!(what, What::Disconnect | What::RemoveDevice);
        assert_eq!(pair.client.down().is_some(), heard, "{what:?}");
    }
}

#[test]
fn a_cut_address_and_a_removed_device_are_not_paired() {
    let fake = Fake::new();
    let (client_domain, server_domain) = domains(&fake);
    let peer = server_domain.end(&options()).unwrap();
    let end = client_domain.end(&options()).unwrap();
    fake.cut(crate::common::address().ip(), true);
    assert_eq!(Why::of(&end.pair(&peer.own()).unwrap_err()), Some(Why::Unreachable));
    fake.cut(crate::common::address().ip(), false);
    let end = client_domain.end(&options()).unwrap();
    fake.remove_device("fake0");
    assert_eq!(Why::of(&end.pair(&peer.own()).unwrap_err()), Some(Why::DeviceRemoved));
    assert_eq!(Why::of(&client_domain.end(&options()).unwrap_err()), Some(Why::DeviceRemoved));
}

#[test]
fn the_clients_messages_are_locked_memory() {
    let fake = Fake::new();
    fake.limit_locked(8 * 4096 + 16 * 4096);
    let (client, server) = domains(&fake);
    let end = client.end(&options()).unwrap();
    assert_eq!(Why::of(&client.end(&options()).unwrap_err()), Some(Why::Memlock));
    let peer = server.end(&options()).unwrap();
    let connection = end.pair(&peer.own()).unwrap();
    assert_eq!(Why::of(&client.end(&options()).unwrap_err()), Some(Why::Memlock));
    drop(connection);
    client.end(&options()).unwrap();
}
