//! Only registered, granted and living memory is reached; every other access breaks the connection.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use fake_verbs::{Fake, FakeDevice, Refusal, Side};
use forebay_error::ErrorKind;
use forebay_verbs::{
    Access, Completion, DeviceRange, Domain, Down, Fabric, Failure, HostRange, Kind, Memory, Options, Post,
    Region, Remote, Route, Why,
};
use proptest::prelude::*;

use crate::common::{Buffer, Pair, all, bindable, connect, expect_message, next, pair};

fn writable() -> Access {
    Access::WRITE | Access::REMOTE_WRITE
}

/// The first byte of a region, as the peer names it.
fn first_of(region: &Region) -> Remote {
    Remote { key: region.remote_key(), address: region.memory().start }
}

/// Memory of the peer's, from which it writes.
fn source(pair: &Pair, len: usize) -> Buffer {
    Buffer::new(&pair.server_domain, len, Access::READ, 9)
}

/// The peer's attempt is refused: its operation fails, and both ends are down.
fn assert_refused(fake: &Fake, pair: &mut Pair, refusal: Refusal) {
    let Completion::Failed { why, .. } = next(&mut pair.server) else { panic!("not refused") };
    assert_eq!(why, Failure::RemoteAccess);
    assert_eq!(pair.server.down(), Some(Down::Failed(Failure::RemoteAccess)));
    let flushed = all(&mut pair.client);
    assert!(
        flushed
            .iter()
            .all(|one| matches!(one, Completion::Failed { kind: Kind::Receive, why: Failure::Flushed, .. }))
    );
    assert_eq!(flushed.len(), Options::default().receives as usize);
    assert_eq!(pair.client.down(), Some(Down::Disconnected));
    let more = pair.server.send(9, b"more", Post::PLAIN);
    assert_eq!(more.err().and_then(|error| Why::of(&error)), Some(Why::Down));
    assert_eq!(fake.journal().last().and_then(|entry| entry.refused), Some(refusal));
}

#[test]
fn the_peer_writes_and_reads_and_tells() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let target = Buffer::new(&pair.client_domain, 4096, writable() | Access::REMOTE_READ, 7);
    let source = Buffer::new(&pair.server_domain, 1000, Access::WRITE, 42);
    let remote = Remote { key: target.region.remote_key(), address: target.region.memory().start + 3 };
    pair.client.send(1, b"give", Post::QUIET).unwrap();
    expect_message(&mut pair.server, b"give");
    pair.server.write(2, source.region.range(0, 1000).unwrap(), remote, Post::QUIET).unwrap();
    pair.server.send(3, b"done", Post::PLAIN).unwrap();
    expect_message(&mut pair.client, b"done");
    let bytes = target.bytes();
    assert!(bytes[..3] == [7; 3] && bytes[3..1003] == [42; 1000] && bytes[1003..] == [7; 3093]);
    assert_eq!(next(&mut pair.server), Completion::Done { id: 3, kind: Kind::Send });
    let back = first_of(&target.region);
    pair.server.read(4, source.region.range(0, 5).unwrap(), back, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.server), Completion::Done { id: 4, kind: Kind::Read });
    assert_eq!(source.bytes()[..6], [7, 7, 7, 42, 42, 42]);
    assert!(all(&mut pair.client).is_empty() && all(&mut pair.server).is_empty());
    let counts = fake.counts();
    assert_eq!((counts.sends, counts.writes, counts.written), (2, 1, 1000));
    assert_eq!((counts.reads, counts.read, counts.refused), (1, 5, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A write lands whole where it fits the region, and otherwise not one byte of it; guard bytes stay in both cases.
    #[test]
    fn no_byte_beside_the_region(start in 0_usize..40, len in 1_usize..100, offset in -20_i64..140, count in 0_usize..60) {
        let fake = Fake::new();
        let mut pair = pair(&fake);
        let mut memory = vec![1_u8; 200];
        let first = memory[start..].as_mut_ptr();
        // SAFETY: `memory` lives until the end, and is looked at when nothing is under way.
        let region = unsafe { pair.client_domain.register(Memory::Host(HostRange::new(first, len)), writable()) }.unwrap();
        let source = Buffer::new(&pair.server_domain, 64, Access::READ, 2);
        let to = Remote { key: region.remote_key(), address: region.memory().start.wrapping_add_signed(offset) };
        pair.server.write(1, source.region.range(0, count).unwrap(), to, Post::PLAIN).unwrap();
        let fits = offset >= 0 && offset as usize + count <= len;
        let done = matches!(next(&mut pair.server), Completion::Done { .. });
        prop_assert_eq!(done, fits);
        prop_assert_eq!(pair.server.down().is_none(), fits);
        drop(region);
        let begin = start as i64 + offset;
        for (at, byte) in std::hint::black_box(memory).into_iter().enumerate() {
            let written = fits && (begin..begin + count as i64).contains(&(at as i64));
            prop_assert_eq!(byte, if written { 2 } else { 1 });
        }
    }
}

#[test]
fn a_key_ends_with_its_region() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.record(true);
    let target = Buffer::new(&pair.client_domain, 64, writable(), 0);
    let source = source(&pair, 64);
    let to = first_of(&target.region);
    drop(target);
    // The same memory under a new key does not bring the old one back.
    let again = Buffer::new(&pair.client_domain, 64, writable(), 0);
    assert_ne!(again.region.remote_key(), to.key);
    pair.server.write(1, source.region.range(0, 64).unwrap(), to, Post::PLAIN).unwrap();
    assert_refused(&fake, &mut pair, Refusal::NoKey);
    assert_eq!(again.bytes(), [0; 64]);
}

#[test]
fn rights_are_what_was_granted() {
    for (access, reads, refused) in [
        (Access::WRITE, true, true),
        (Access::WRITE, false, true),
        (Access::REMOTE_READ, false, true),
        (writable(), true, true),
        (writable(), false, false),
        (Access::REMOTE_READ, true, false),
    ] {
        let fake = Fake::new();
        let mut pair = pair(&fake);
        fake.record(true);
        let target = Buffer::new(&pair.client_domain, 64, access, 5);
        let own = Buffer::new(&pair.server_domain, 64, Access::WRITE, 6);
        let remote = first_of(&target.region);
        let range = own.region.range(0, 64).unwrap();
        let id = if reads {
            pair.server.read(1, range, remote, Post::PLAIN)
        } else {
            pair.server.write(1, range, remote, Post::PLAIN)
        };
        id.unwrap();
        if refused {
            assert_refused(&fake, &mut pair, Refusal::Rights);
            assert_eq!((target.bytes(), own.bytes()), (&[5; 64][..], &[6; 64][..]));
        } else {
            assert!(matches!(next(&mut pair.server), Completion::Done { id: 1, .. }));
        }
    }
}

#[test]
fn this_sides_own_ranges_are_checked_too() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let target = Buffer::new(&pair.client_domain, 64, Access::REMOTE_READ, 5);
    // Not writable by the device: an RDMA READ may not land there.
    let own = Buffer::new(&pair.server_domain, 64, Access::READ, 6);
    let remote = first_of(&target.region);
    pair.server.read(1, own.region.range(0, 64).unwrap(), remote, Post::PLAIN).unwrap();
    assert_eq!(
        next(&mut pair.server),
        Completion::Failed { id: 1, kind: Kind::Read, why: Failure::LocalProtection }
    );
    assert_eq!(own.bytes(), [6; 64]);
}

#[test]
fn a_key_is_good_in_its_domain_only() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.record(true);
    let other = fake.open(&Route::to(crate::common::address())).unwrap();
    let target = Buffer::new(&other, 64, writable(), 0);
    let source = source(&pair, 64);
    let to = first_of(&target.region);
    pair.server.write(1, source.region.range(0, 64).unwrap(), to, Post::PLAIN).unwrap();
    assert_refused(&fake, &mut pair, Refusal::OtherDomain);
}

#[test]
fn a_window_opens_its_range_until_it_is_invalidated() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.record(true);
    let (target, mut window) = bindable(&pair, 4096);
    let source = source(&pair, 4096);
    let unbound = window.key();
    let range = target.region.range(1000, 100).unwrap();
    pair.client.bind(1, &mut window, range, Access::REMOTE_WRITE, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.client), Completion::Done { id: 1, kind: Kind::Bind });
    assert_ne!(window.key(), unbound);
    let to = Remote { key: window.key(), address: range.address };
    pair.server.write(2, source.region.range(0, 100).unwrap(), to, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.server), Completion::Done { id: 2, kind: Kind::Write });
    assert_eq!(target.bytes()[1000..1100], [9; 100]);
    assert!(target.bytes()[..1000].iter().chain(&target.bytes()[1100..]).all(|byte| *byte == 0));
    pair.client.invalidate(3, &mut window, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.client), Completion::Done { id: 3, kind: Kind::Invalidate });
    // Bound again it has another key; the first one stays dead.
    pair.client.bind(4, &mut window, range, Access::REMOTE_WRITE, Post::QUIET).unwrap();
    assert_ne!(window.key(), to.key);
    pair.server.write(5, source.region.range(0, 100).unwrap(), to, Post::PLAIN).unwrap();
    assert_refused(&fake, &mut pair, Refusal::NoKey);
}

#[test]
fn a_window_is_narrower_than_its_region() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.record(true);
    let (target, mut window) = bindable(&pair, 4096);
    let source = source(&pair, 4096);
    let range = target.region.range(1000, 100).unwrap();
    pair.client.bind(1, &mut window, range, Access::REMOTE_WRITE, Post::QUIET).unwrap();
    let to = Remote { key: window.key(), address: range.address };
    pair.server.write(2, source.region.range(0, 101).unwrap(), to, Post::PLAIN).unwrap();
    assert_refused(&fake, &mut pair, Refusal::Bounds);
    assert_eq!(target.bytes(), [0; 4096]);
}

#[test]
fn a_window_is_for_one_connection() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    fake.record(true);
    let mut listener = fake.listen("10.0.0.1:1".parse().unwrap()).unwrap();
    let accepting = std::thread::spawn(move || {
        let incoming = listener.next(crate::common::LONG).unwrap().unwrap();
        incoming.accept(&Options::default()).unwrap()
    });
    let mut other = pair.client_domain.connect("10.0.0.1:1".parse().unwrap(), &Options::default()).unwrap();
    let _accepted = accepting.join().unwrap();
    let (target, mut window) = bindable(&pair, 64);
    let source = source(&pair, 64);
    let range = target.region.range(0, 64).unwrap();
    other.bind(1, &mut window, range, Access::REMOTE_WRITE, Post::PLAIN).unwrap();
    assert!(matches!(next(&mut other), Completion::Done { .. }));
    let to = Remote { key: window.key(), address: range.address };
    pair.server.write(2, source.region.range(0, 64).unwrap(), to, Post::PLAIN).unwrap();
    assert_refused(&fake, &mut pair, Refusal::OtherConnection);
}

#[test]
fn a_region_stays_while_a_window_is_bound() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let mut memory = vec![0_u8; 64];
    let host = Memory::Host(HostRange::new(memory.as_mut_ptr(), 64));
    // SAFETY: `memory` lives until the end.
    let region = unsafe { pair.client_domain.register(host, Access::WRITE | Access::BIND) }.unwrap();
    let mut window = pair.client_domain.window().unwrap();
    let range = region.range(0, 64).unwrap();
    pair.client.bind(1, &mut window, range, Access::REMOTE_WRITE, Post::QUIET).unwrap();
    assert_eq!(region.release().unwrap_err().kind(), ErrorKind::Busy);
    pair.client.invalidate(2, &mut window, Post::QUIET).unwrap();
    window.release().unwrap();
    assert!(all(&mut pair.client).is_empty());
}

/// The window's end opens the way, also where its connection is gone and invalidates nothing more.
#[test]
fn a_window_goes_before_its_region() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let (target, mut window) = bindable(&pair, 64);
    let range = target.region.range(0, 64).unwrap();
    pair.client.bind(1, &mut window, range, Access::REMOTE_WRITE, Post::QUIET).unwrap();
    drop(pair);
    window.release().unwrap();
    target.region.release().unwrap();
}

#[test]
fn a_message_may_invalidate_a_window_but_no_region() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let target = Buffer::new(&pair.client_domain, 64, writable() | Access::BIND, 0);
    let mut window = pair.client_domain.window().unwrap();
    let range = target.region.range(0, 64).unwrap();
    pair.client.bind(1, &mut window, range, Access::REMOTE_WRITE, Post::QUIET).unwrap();
    pair.server.send(2, b"over", Post { invalidate: Some(window.key()), ..Post::PLAIN }).unwrap();
    let Completion::Received(message) = next(&mut pair.client) else { panic!("no message") };
    assert_eq!(message.invalidated(), Some(window.key()));
    window.set_invalid();
    pair.client.bind(3, &mut window, range, Access::REMOTE_WRITE, Post::PLAIN).unwrap();
    assert_eq!(next(&mut pair.client), Completion::Done { id: 3, kind: Kind::Bind });
    assert!(matches!(next(&mut pair.server), Completion::Done { id: 2, .. }));
    let plain = target.region.remote_key();
    pair.server.send(4, b"over", Post { invalidate: Some(plain), ..Post::PLAIN }).unwrap();
    assert_eq!(
        next(&mut pair.server),
        Completion::Failed { id: 4, kind: Kind::Send, why: Failure::RemoteInvalid }
    );
    assert!(
        all(&mut pair.client).iter().all(|one| matches!(one, Completion::Failed { .. })),
        "no message came"
    );
}

#[test]
fn a_connection_that_is_gone_reaches_nothing() {
    let fake = Fake::new();
    let Pair { client, mut server, client_domain, server_domain } = pair(&fake);
    let target = Buffer::new(&client_domain, 64, writable(), 0);
    let source = Buffer::new(&server_domain, 64, Access::READ, 9);
    let to = first_of(&target.region);
    drop(client);
    server.write(1, source.region.range(0, 64).unwrap(), to, Post::PLAIN).unwrap();
    assert!(all(&mut server).contains(&Completion::Failed {
        id: 1,
        kind: Kind::Write,
        why: Failure::Flushed
    }));
    assert_eq!(server.down(), Some(Down::Disconnected));
    assert_eq!(target.bytes(), [0; 64]);
}

/// A region without a window stays open behind the reply: the journal shows who used that.
#[test]
fn what_comes_behind_the_reply_is_in_the_journal() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    let target = Buffer::new(&pair.client_domain, 64, writable(), 0);
    let source = source(&pair, 64);
    let to = first_of(&target.region);
    fake.record(true);
    pair.server.write(1, source.region.range(0, 32).unwrap(), to, Post::QUIET).unwrap();
    pair.server.send(2, b"done", Post::QUIET).unwrap();
    pair.server.write(3, source.region.range(0, 16).unwrap(), to, Post::QUIET).unwrap();
    fake.record(false);
    pair.server.send(4, b"more", Post::QUIET).unwrap();
    let seen: Vec<_> =
        fake.journal().iter().map(|entry| (entry.kind, entry.side, entry.remote, entry.len)).collect();
    let write = |len| (Kind::Write, Side::Server, Some(to), len);
    assert_eq!(seen, [write(32), (Kind::Send, Side::Server, None, 4), write(16)]);
    assert_eq!((fake.counts().sends, fake.counts().written), (2, 48));
}

#[test]
fn dma_bufs_are_written_where_their_pages_are() {
    let fake = Fake::new();
    let mut pair = pair(&fake);
    // SAFETY: a new descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"buffer".as_ptr(), libc::MFD_CLOEXEC)) };
    let file = std::fs::File::from(fd);
    file.set_len(1 << 20).unwrap();
    let memory =
        Memory::DmaBuf { fd: file.as_fd(), offset: 8192 + 5, range: DeviceRange::new((1 << 45) + 5, 1000) };
    // SAFETY: no memory of this process.
    let register = |memory, access| unsafe { pair.client_domain.register(memory, access) };
    assert_eq!(Why::of(&register(memory, Access::WRITE | Access::BIND).unwrap_err()), Some(Why::Unsupported));
    let region = register(memory, writable()).unwrap();
    assert_eq!(region.memory().start, (1 << 45) + 5);
    let source = source(&pair, 1000);
    let to = first_of(&region);
    pair.server.write(1, source.region.range(0, 1000).unwrap(), to, Post::PLAIN).unwrap();
    assert!(matches!(next(&mut pair.server), Completion::Done { .. }));
    region.release().unwrap();
    let mut bytes = vec![0; 1 << 20];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    let mut expected = vec![0; 1 << 20];
    expected[8197..9197].fill(9);
    assert!(bytes == expected);
}

#[test]
fn what_a_device_cannot_do_is_said() {
    let mut device = FakeDevice::new("plain0", "10.0.0.1".parse().unwrap());
    (device.windows, device.dma_bufs) = (false, false);
    let fake = Fake::with(vec![device]);
    let domain = fake.open(&Route::to(crate::common::address())).unwrap();
    assert_eq!(domain.device().windows, Some(false));
    assert_eq!(Why::of(&domain.window().unwrap_err()), Some(Why::Unsupported));
    let file = std::fs::File::open("/dev/zero").unwrap();
    let memory = Memory::DmaBuf { fd: file.as_fd(), offset: 0, range: DeviceRange::new(0, 4096) };
    // SAFETY: nothing is registered.
    let refused = unsafe { domain.register(memory, Access::READ) };
    assert_eq!(Why::of(&refused.unwrap_err()), Some(Why::Unsupported));
}

#[test]
fn locked_memory_has_a_limit() {
    let fake = Fake::new();
    fake.limit_locked(100);
    let domain: std::sync::Arc<dyn Domain> = fake.open(&Route::to(crate::common::address())).unwrap();
    let first = Buffer::new(&domain, 60, Access::READ, 0);
    let mut more = [0_u8; 60];
    let memory = Memory::Host(HostRange::new(more.as_mut_ptr(), 60));
    // SAFETY: nothing is registered.
    let error = unsafe { domain.register(memory, Access::READ) }.unwrap_err();
    assert_eq!(
        (Why::of(&error), error.hints()),
        (Some(Why::Memlock), &["ulimit -l unlimited".to_owned()][..])
    );
    drop(first);
    drop(Buffer::new(&domain, 100, Access::READ, 0));
}

#[test]
fn options_of_both_ends_meet() {
    let fake = Fake::new();
    let client = Options { private_data: b"from the client".to_vec(), ..Options::default() };
    let server = Options { private_data: b"from the server".to_vec(), ..Options::default() };
    let pair = connect(&fake, &client, &server);
    assert_eq!(pair.client.private_data(), b"from the server");
    assert_eq!(pair.server.private_data(), b"from the client");
    assert_eq!(pair.client.peer(), crate::common::address());
    assert_ne!(pair.client.number(), pair.server.number());
}
