//! Every fault that the double has, and what a real device does by itself: no receive, a queue that is full.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use fake_verbs::{Fake, FakeDevice, Fault, Side, What};
use forebay_error::ErrorKind;
use forebay_verbs::{
    Access, Completion, Connection, Down, Fabric, Failure, Kind, Options, Post, Remote, Route, Why,
};

use crate::common::{Buffer, Pair, all, connect, expect_message, next, pair};

fn readable(connection: &dyn Connection) -> bool {
    let mut poll = libc::pollfd { fd: connection.descriptor().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn a_delay_keeps_the_order() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let target = Buffer::new(&pair.client_domain, 8, Access::WRITE | Access::REMOTE_WRITE, 0);
    let source = Buffer::new(&pair.server_domain, 8, Access::READ, 9);
    let late = Duration::from_millis(100);
    fake.inject(Fault::on(Side::Server, Kind::Write, What::Delay(late)));
    let to = Remote { key: target.region.remote_key(), address: target.region.memory().start };
    let begun = Instant::now();
    pair.server.write(1, source.region.range(0, 8).unwrap(), to, Post::QUIET).unwrap();
    pair.server.send(2, b"done", Post::PLAIN).unwrap();
    assert_eq!(target.bytes(), [0; 8]);
    expect_message(&mut pair.client, b"done");
    assert!(begun.elapsed() >= late);
    assert_eq!(target.bytes(), [9; 8], "bytes written before the message arrive with it");
    assert_eq!(next(&mut pair.server), Completion::Done { id: 2, kind: Kind::Send });
}

#[test]
fn a_lost_message_looks_sent() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.inject(Fault::on(Side::Client, Kind::Send, What::Lose).after(1).times(2));
    for (id, text) in [b"1st", b"2nd", b"3rd", b"4th"].iter().enumerate() {
        pair.client.send(id as u64, *text, Post::PLAIN).unwrap();
        assert_eq!(next(&mut pair.client), Completion::Done { id: id as u64, kind: Kind::Send });
    }
    expect_message(&mut pair.server, b"1st");
    expect_message(&mut pair.server, b"4th");
    assert!(all(&mut pair.server).is_empty());
}

#[test]
fn a_held_message_comes_behind_later_ones() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.inject(Fault::on(Side::Server, Kind::Send, What::Hold(2)));
    for (id, text) in [b"a", b"b", b"c", b"d"].iter().enumerate() {
        pair.server.send(id as u64, *text, Post::QUIET).unwrap();
    }
    for text in [b"b", b"c", b"a", b"d"] {
        expect_message(&mut pair.client, text);
    }
}

#[test]
fn a_held_message_goes_with_its_connection() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.inject(Fault::on(Side::Server, Kind::Send, What::Hold(5)));
    pair.server.send(1, b"a", Post::PLAIN).unwrap();
    pair.client.disconnect();
    let flushed = all(&mut pair.server);
    assert!(flushed.contains(&Completion::Failed { id: 1, kind: Kind::Send, why: Failure::Flushed }));
}

#[test]
fn both_ends_learn_of_a_disconnection() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.inject(Fault::on(Side::Server, Kind::Send, What::Disconnect));
    pair.client.arm().unwrap();
    pair.server.send(1, b"a", Post::PLAIN).unwrap();
    assert!(readable(pair.client.as_ref()));
    assert_eq!(pair.client.down(), None, "not noted yet");
    pair.client.arm().unwrap();
    assert_eq!(pair.client.down(), Some(Down::Disconnected));
    assert_eq!(all(&mut pair.client).len(), 32);
    assert!(all(&mut pair.server).contains(&Completion::Failed {
        id: 1,
        kind: Kind::Send,
        why: Failure::Flushed
    }));
    assert_eq!(Why::of(&pair.server.send(2, b"b", Post::PLAIN).unwrap_err()), Some(Why::Down));
}

#[test]
fn an_unreachable_peer_knows_nothing() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.inject(Fault::on(Side::Client, Kind::Send, What::Unreachable));
    pair.client.send(1, b"a", Post::QUIET).unwrap();
    assert!(all(&mut pair.client).contains(&Completion::Failed {
        id: 1,
        kind: Kind::Send,
        why: Failure::Unreachable
    }));
    assert_eq!(pair.client.down(), Some(Down::Failed(Failure::Unreachable)));
    assert!(all(&mut pair.server).is_empty());
    pair.server.arm().unwrap();
    assert_eq!(pair.server.down(), None);
}

#[test]
fn a_peer_that_vanishes_is_known_by_a_probe() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    pair.client.probe(6).unwrap();
    fake.inject(Fault::on(Side::Server, Kind::Send, What::Vanish));
    pair.server.send(1, b"a", Post::QUIET).unwrap();
    drop(pair.server);
    pair.client.arm().unwrap();
    assert!(all(&mut pair.client).is_empty());
    assert_eq!(pair.client.down(), None, "not told");
    pair.client.probe(7).unwrap();
    assert!(all(&mut pair.client).contains(&Completion::Failed {
        id: 7,
        kind: Kind::Write,
        why: Failure::Unreachable
    }));
    assert_eq!(pair.client.down(), Some(Down::Failed(Failure::Unreachable)));
}

#[test]
fn a_removed_device_takes_all_with_it() {
    let two = ["10.0.0.1", "10.0.0.2"].map(|address| FakeDevice::new(address, address.parse().unwrap()));
    let fake = Fake::with(two.into());
    let mut listener = fake.listen("10.0.0.2:1".parse().unwrap()).unwrap();
    let accepting = std::thread::spawn(move || {
        listener.next(crate::common::LONG).unwrap().unwrap().accept(&Options::default()).unwrap()
    });
    let route = Route::to("10.0.0.2:1".parse().unwrap());
    let domain = fake.open(&route.clone().from("10.0.0.1".parse().unwrap())).unwrap();
    let mut client = domain.connect(route.to, &Options::default()).unwrap();
    let mut server = accepting.join().unwrap();
    let target = Buffer::new(&domain, 8, Access::WRITE | Access::REMOTE_WRITE, 0);
    fake.inject(Fault::on(Side::Client, Kind::Send, What::RemoveDevice));
    client.send(1, b"a", Post::PLAIN).unwrap();
    client.arm().unwrap();
    assert_eq!(client.down(), Some(Down::DeviceRemoved));
    server.arm().unwrap();
    assert_eq!(server.down(), None, "its device is another");
    server.send(2, b"b", Post::PLAIN).unwrap();
    assert!(all(&mut server).contains(&Completion::Failed {
        id: 2,
        kind: Kind::Send,
        why: Failure::Unreachable
    }));
    target.region.release().unwrap();
    assert_eq!(Why::of(&domain.window().unwrap_err()), Some(Why::DeviceRemoved));
    assert_eq!(
        Why::of(&domain.connect(route.to, &Options::default()).unwrap_err()),
        Some(Why::DeviceRemoved)
    );
    let gone = route.clone().from("10.0.0.1".parse().unwrap());
    assert_eq!(Why::of(&fake.open(&gone).unwrap_err()), Some(Why::NoRoute));
    fake.remove_device("10.0.0.2");
    assert_eq!(Why::of(&fake.open(&route).unwrap_err()), Some(Why::NoDevice));
    assert!(fake.devices().unwrap().is_empty());
}

#[test]
fn no_receive_fails_at_once_or_waits() {
    let fake = Fake::new();
    let few = Options { receives: 1, ..Options::default() };
    let mut pair = connect(&fake, &Options::default(), &few);
    pair.client.send(1, b"a", Post::QUIET).unwrap();
    pair.client.send(2, b"b", Post::QUIET).unwrap();
    let why = Failure::ReceiverNotReady;
    assert!(all(&mut pair.client).contains(&Completion::Failed { id: 2, kind: Kind::Send, why }));
    assert_eq!(pair.client.down(), Some(Down::Failed(why)));
    let patient = Options { receiver_retries: 7, ..Options::default() };
    let mut pair = connect(&fake, &patient, &few);
    for text in [b"a", b"b", b"c"] {
        pair.client.send(0, text, Post::PLAIN).unwrap();
    }
    assert_eq!(all(&mut pair.client).len(), 1);
    for text in [b"a", b"b", b"c"] {
        expect_message(&mut pair.server, text);
    }
    assert_eq!(all(&mut pair.client).len(), 2);
}

#[test]
fn a_message_longer_than_its_receive_breaks_the_connection() {
    let fake = Fake::new();
    let mut pair = connect(&fake, &Options::default(), &Options { receive_size: 4, ..Options::default() });
    pair.client.send(1, b"four", Post::QUIET).unwrap();
    expect_message(&mut pair.server, b"four");
    pair.client.send(2, b"five!", Post::QUIET).unwrap();
    assert!(all(&mut pair.client).contains(&Completion::Failed {
        id: 2,
        kind: Kind::Send,
        why: Failure::RemoteInvalid
    }));
    assert!(matches!(
        next(&mut pair.server),
        Completion::Failed { kind: Kind::Receive, why: Failure::LocalLength, .. }
    ));
    let longer = vec![0; 4097];
    assert_eq!(pair.server.send(3, &longer, Post::PLAIN).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_queue_has_an_end() {
    let fake = Fake::new();
    let mut pair = connect(&fake, &Options { sends: 2, ..Options::default() }, &Options::default());
    pair.client.send(1, b"a", Post::PLAIN).unwrap();
    pair.client.send(2, b"b", Post::PLAIN).unwrap();
    assert_eq!(Why::of(&pair.client.send(3, b"c", Post::PLAIN).unwrap_err()), Some(Why::QueueFull));
    assert!(matches!(next(&mut pair.client), Completion::Done { id: 1, .. }));
    pair.client.send(3, b"c", Post::PLAIN).unwrap();
}

#[test]
fn reading_needs_room_at_both_ends() {
    for (out, answered, works) in [(0, 4, false), (4, 0, false), (1, 1, true)] {
        let fake = Fake::new();
        let client = Options { reads_in: answered, ..Options::default() };
        let mut pair = connect(&fake, &client, &Options { reads_out: out, ..Options::default() });
        let source = Buffer::new(&pair.client_domain, 8, Access::REMOTE_READ, 3);
        let target = Buffer::new(&pair.server_domain, 8, Access::WRITE, 0);
        let from = Remote { key: source.region.remote_key(), address: source.region.memory().start };
        pair.server.read(1, target.region.range(0, 8).unwrap(), from, Post::PLAIN).unwrap();
        assert_eq!(matches!(next(&mut pair.server), Completion::Done { .. }), works);
        assert_eq!(target.bytes() == [3; 8], works);
    }
}

#[test]
fn connecting_fails_with_its_reason() {
    let fake = Fake::new();
    let domain = fake.open(&Route::to(crate::common::address())).unwrap();
    let connect = || domain.connect(crate::common::address(), &Options::default()).unwrap_err();
    assert_eq!(Why::of(&connect()), Some(Why::Rejected));
    fake.cut(crate::common::address().ip(), true);
    assert_eq!(Why::of(&connect()), Some(Why::Unreachable));
    fake.cut(crate::common::address().ip(), false);
    let mut listener = fake.listen(crate::common::address()).unwrap();
    assert_eq!(fake.listen(crate::common::address()).unwrap_err().errno(), libc::EADDRINUSE);
    let rejecting = std::thread::spawn(move || {
        listener.next(crate::common::LONG).unwrap().unwrap().reject().unwrap();
        drop(listener.next(crate::common::LONG).unwrap().unwrap());
        listener
    });
    assert_eq!(Why::of(&connect()), Some(Why::Rejected));
    assert_eq!(Why::of(&connect()), Some(Why::Rejected));
    let mut listener = rejecting.join().unwrap();
    let hasty = Options { timeout: Duration::from_millis(20), ..Options::default() };
    let error = domain.connect(crate::common::address(), &hasty).unwrap_err();
    assert_eq!(Why::of(&error), Some(Why::Unreachable));
    let late = listener.next(Duration::ZERO).unwrap().unwrap();
    assert_eq!(Why::of(&late.accept(&Options::default()).unwrap_err()), Some(Why::Unreachable));
    assert!(listener.next(Duration::from_millis(1)).unwrap().is_none());
    let wordy = Options { private_data: vec![0; 57], ..Options::default() };
    assert_eq!(domain.connect(crate::common::address(), &wordy).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_descriptor_tells_once_for_each_arming() {
    let fake = Fake::new();
    let Pair { mut client, mut server, .. } = pair(&fake);
    server.send(1, b"a", Post::QUIET).unwrap();
    assert!(!readable(client.as_ref()), "not armed");
    client.arm().unwrap();
    assert!(!readable(client.as_ref()), "what came before is not told");
    assert_eq!(all(&mut client).len(), 1);
    server.send(2, b"b", Post::QUIET).unwrap();
    server.send(3, b"c", Post::QUIET).unwrap();
    assert!(readable(client.as_ref()));
    client.arm().unwrap();
    assert!(!readable(client.as_ref()));
    assert_eq!(all(&mut client).len(), 2);
}

#[test]
fn polling_fills_the_room_that_there_is() {
    let fake = Fake::new();
    let Pair { mut client, mut server, .. } = pair(&fake);
    for id in 0..5 {
        server.send(id, b"a", Post::QUIET).unwrap();
    }
    let mut out = Vec::with_capacity(3);
    assert_eq!(client.poll(&mut out).unwrap(), 3);
    assert_eq!((client.poll(&mut out).unwrap(), client.poll(&mut out).unwrap()), (2, 0));
    let foreign = out.pop().unwrap();
    let Completion::Received(message) = foreign else { panic!("no message") };
    assert_eq!(server.bytes(&message).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(server.post_receive(message).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn two_threads_play_ping_pong() {
    let fake = Fake::new();
    let Pair { mut client, mut server, client_domain, server_domain } = pair(&fake);
    let target = Buffer::new(&client_domain, 4096, Access::WRITE | Access::REMOTE_WRITE, 0);
    let to = Remote { key: target.region.remote_key(), address: target.region.memory().start };
    let serving = std::thread::spawn(move || {
        for round in 1..=200_u8 {
            let source = Buffer::new(&server_domain, 4096, Access::READ, round);
            expect_message(&mut server, &[round]);
            server.write(1, source.region.range(0, 4096).unwrap(), to, Post::QUIET).unwrap();
            server.send(2, &[round; 180], Post::QUIET).unwrap();
        }
        server
    });
    for round in 1..=200_u8 {
        client.send(1, &[round], Post::QUIET).unwrap();
        expect_message(&mut client, &[round; 180]);
        assert_eq!(target.bytes(), [round; 4096]);
    }
    drop(serving.join().unwrap());
}
