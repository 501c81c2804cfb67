//! Files of the kernel's NFS mounts, read by forebay's own client over TCP beside the kernel. There is no mount here: see `mounts`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Random, Target, chill, config, pattern, turn};
use fake_nfs::{Asked, Fault};
use forebay_config::{CachePolicy, Config, IoBackend, Nfs};
use forebay_engine::{EngineKind, File, Receipt, Session};
use forebay_nfs::Url;
use forebay_nfs::handle::Version;
use forebay_nfs::mount::Mount;
use mounts::{Facts, KEY, LEN, OnMount, PATH, Place, place};

fn session(nfs: Nfs) -> Session {
    Session::with_config(Config { nfs, ..config(IoBackend::Auto, CachePolicy::Auto) }).unwrap()
}

/// Bytes beside a range, so that its address is odd.
const GUARD: usize = 77;

/// Reads a range that nobody has in the page cache.
fn read(session: &Session, file: &File, target: Target, (offset, len): (u64, usize)) -> Receipt {
    chill(file);
    let mut buffer = target.buffer(session, GUARD + len + GUARD);
    buffer.copy_from_slice(&vec![0xA5; buffer.len()]).unwrap();
    let receipt = session.read_into(file, offset, &mut buffer, GUARD..GUARD + len).unwrap();
    let bytes = buffer.to_vec().unwrap();
    assert!(bytes[GUARD..GUARD + len] == pattern(KEY, offset, len), "wrong bytes: {receipt}");
    let mut guards = bytes[..GUARD].iter().chain(&bytes[GUARD + len..]);
    assert!(guards.all(|byte| *byte == 0xA5), "bytes beside the range: {receipt}");
    assert_eq!(receipt.bytes(), len as u64);
    receipt
}

fn all(session: &Session, file: &File) -> Receipt {
    read(session, file, Target::Device, (0, LEN))
}

const BESIDE: &str = "by forebay's own client beside the kernel's mount";
const BY_KERNEL: &str = "by the kernel's mount, not by TCP beside it: ";

/// Why the kernel read it.
fn why(receipt: &Receipt) -> &str {
    let notes = receipt.election.notes.iter();
    notes.filter_map(|note| note.text.strip_prefix(BY_KERNEL)).next_back().unwrap_or("")
}

/// A mount of this version, of a file that is named by its handle or its path.
fn facts(place: &Place, version: Version, name: &str) -> Facts {
    let facts = place.facts("tcp");
    let url = Url::parse(&place.server.url(PATH, name)).unwrap();
    let path = (version == Version::V4(0)).then_some(PATH);
    Facts { mount: Mount { version, ..facts.mount }, path, url, ..facts }
}

#[test]
fn cold_reads_go_by_tcp_beside_the_kernel() {
    let _turn = turn();
    let place = place();
    for (version, name) in
        [(Version::V3, "3"), (Version::V4(0), "4.0"), (Version::V4(1), "4.1"), (Version::V4(2), "4.2")]
    {
        let session = session(Nfs::Tcp);
        let (file, kernel) = place.open(facts(&place, version, name));
        kernel.is_stuck.store(true, Ordering::Relaxed);
        for target in Target::ALL {
            let receipt = read(&session, &file, target, (0, LEN));
            let engine = if target == Target::Host { EngineKind::Host } else { EngineKind::Staged };
            assert_eq!((receipt.engine(), receipt.moved.requested), (engine, LEN as u64), "{receipt}");
            let text = receipt.to_string();
            assert!(text.contains(&format!("NFS v{name} over TCP, {BESIDE}: server 127.0.0.1")), "{text}");
            assert!(text.contains("what this host had written was on the server before"), "{text}");
            assert_eq!(why(&receipt), "");
        }
        // The kernel is asked what the mount is, then, when all is written back, what the file is; never again for an open file.
        assert_eq!(kernel.asked.load(Ordering::Relaxed), 2);
        let mut random = Random(7);
        for _ in 0..10 {
            let len = (1 << 20) + random.below(3_000_000) as usize;
            let offset = random.below((LEN - len) as u64);
            let target = if random.below(2) == 0 { Target::Host } else { Target::Device };
            let receipt = read(&session, &file, target, (offset, len));
            assert_eq!(receipt.moved.requested, len as u64, "{offset}+{len}: {receipt}");
        }
    }
}

#[test]
fn small_and_cached_reads_are_the_kernels() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Tcp));
    let (file, kernel) = place.open(place.facts("tcp"));
    let receipt = read(&session, &file, Target::Device, (0, (1 << 20) - 1));
    assert_eq!((receipt.moved.requested, why(&receipt)), (0, ""));
    assert_eq!(kernel.asked.load(Ordering::Relaxed), 0);
    assert_eq!(read(&session, &file, Target::Device, (0, 1 << 20)).moved.requested, 1 << 20);
    std::fs::read(place.scratch.path()).unwrap();
    let before = place.server.count(Asked::Read);
    let mut buffer = session.buffer(0, LEN).unwrap();
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert_eq!((receipt.moved.requested, receipt.moved.cached), (0, LEN as u64), "{receipt}");
    assert_eq!(place.server.count(Asked::Read), before);
    // What the page cache has of it is the kernel's, where the kernel says the same of the file by now.
    let (file, kernel) = place.open(place.facts("tcp"));
    let read_first = || {
        chill(&file);
        let outside = std::fs::File::open(place.scratch.path()).unwrap();
        // SAFETY: no pointers are passed. Nothing is read ahead.
        unsafe { libc::posix_fadvise(outside.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        outside.read_exact_at(&mut vec![0; 300_000], 0).unwrap();
    };
    read_first();
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    let (cached, requested) = (receipt.moved.cached, receipt.moved.requested);
    assert!(cached >= 256 << 10 && requested >= 1 << 20, "{receipt}");
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
    kernel.wrong_later.store(1, Ordering::Relaxed);
    read_first();
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert_eq!(receipt.moved.requested, 0);
    assert!(why(&receipt).contains("other facts of the file than the kernel"), "{receipt}");
}

#[test]
fn what_must_not_be_reached_is_left_to_the_kernel() {
    let _turn = turn();
    let (place, session_tcp) = (place(), session(Nfs::Tcp));
    for (change, reason) in [
        (Facts { refuses: Some("it is mounted with sec=krb5p"), ..place.facts("tcp") }, "sec=krb5p"),
        (Facts { wrong: 1, ..place.facts("tcp") }, "other facts of the file than the kernel"),
        (Facts { path: Some("/export/gone"), ..place.facts("tcp") }, "no such file"),
    ] {
        let receipt = all(&session_tcp, &place.open(change).0);
        assert!(why(&receipt).contains(reason), "{receipt}");
    }
    for nfs in [Nfs::Auto, Nfs::Off, Nfs::Rdma] {
        let receipt = read(&session(nfs), &place.open(place.facts("tcp")).0, Target::Host, (0, LEN));
        assert_eq!((receipt.moved.requested, why(&receipt)), (0, ""));
    }
    let keep = Config { nfs: Nfs::Tcp, ..config(IoBackend::Auto, CachePolicy::Keep) };
    assert_eq!(
        all(&Session::with_config(keep).unwrap(), &place.open(place.facts("tcp")).0).moved.requested,
        0
    );
    assert_eq!(place.server.count(Asked::Read), 0);
    // What the server, which knows the user alone, would give without asking how the file was opened.
    let calls = Box::new(OnMount(Arc::new(place.facts("tcp"))));
    let file = File::options().read(false).write(true).calls(calls).open(place.scratch.path()).unwrap();
    let mut buffer = session_tcp.buffer(0, LEN).unwrap();
    assert!(session_tcp.read(&file, 0, &mut buffer).is_err());
    // An fsync of ours would be told what a write of the program's has failed with.
    let calls = Box::new(OnMount(Arc::new(place.facts("tcp"))));
    let file = File::options().write(true).calls(calls).open(place.scratch.path()).unwrap();
    assert!(why(&all(&session_tcp, &file)).contains("open for writing"));
    assert_eq!(place.server.count(Asked::Read), 0);
}

#[test]
fn a_mount_of_another_network_is_read_where_that_is_asked_for() {
    let _turn = turn();
    let place = place();
    let facts = || Facts { elsewhere: true, ..place.facts("tcp") };
    let (file, _facts) = place.open(facts());
    let auto = session(Nfs::Faster);
    let receipt = settled(&auto, &file);
    assert!(why(&receipt).contains("another network"), "{receipt}");
    assert_eq!(place.server.count(Asked::Read), 0);
    assert_eq!(all(&session(Nfs::Tcp), &place.open(facts()).0).moved.requested, LEN as u64);
}

/// Pieces that come after a change are thrown away, and read by the kernel: here of an older state than the server's.
#[test]
fn a_file_that_changes_meanwhile_is_read_on_by_the_kernel() {
    let _turn = turn();
    for (version, name) in [(Version::V3, "3"), (Version::V4(1), "4.1")] {
        for target in Target::ALL {
            let (place, session) = (place(), session(Nfs::Tcp));
            let (file, _facts) = place.open(facts(&place, version, name));
            assert_eq!(read(&session, &file, target, (0, LEN)).moved.requested, LEN as u64);
            chill(&file);
            let fourth = place.server.count(Asked::Read) + 3;
            place.server.faults(move |seen| {
                (seen.asked == Asked::Read && seen.before == fourth).then_some(Fault::Overwrite(7))
            });
            let outcome = session.submit_read(&file, 0, target.buffer(&session, LEN)).unwrap().wait();
            let receipt = outcome.receipt;
            assert!(
                outcome.buffer.to_vec().unwrap() == pattern(KEY, 0, LEN),
                "bytes of two states: {receipt}"
            );
            assert_eq!(receipt.bytes(), LEN as u64);
            assert!(receipt.moved.requested < LEN as u64, "{receipt}");
            assert!(why(&receipt).starts_with("the file changed while it was read"), "{receipt}");
            // It says nothing of the server. (The kernel's view has not changed here.)
            chill(&file);
            let receipt = session.read(&file, 0, &mut target.buffer(&session, LEN)).unwrap();
            assert_eq!((receipt.moved.requested, why(&receipt)), (LEN as u64, ""), "{receipt}");
        }
    }
}

#[test]
fn a_server_that_is_gone_in_the_middle_is_left_alone() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Tcp));
    let (file, _facts) = place.open(place.facts("tcp"));
    assert_eq!(all(&session, &file).moved.requested, LEN as u64);
    let gone = place.server.count(Asked::Read) + 4;
    place
        .server
        .faults(move |seen| (seen.asked == Asked::Read && seen.before >= gone).then_some(Fault::Close));
    let receipt = all(&session, &file);
    assert!(receipt.moved.requested < LEN as u64, "{receipt}");
    assert!(why(&receipt).contains("the server does not answer"), "{receipt}");
    place.server.faults(|_| None);
    let (reads, connections) = (place.server.count(Asked::Read), place.server.connections());
    let receipt = all(&session, &file);
    assert_eq!(receipt.moved.requested, 0);
    assert!(why(&receipt).contains("the server does not answer"), "{receipt}");
    assert_eq!((place.server.count(Asked::Read), place.server.connections()), (reads, connections));
}

#[test]
fn what_the_server_refuses_is_read_by_the_kernel() {
    let _turn = turn();
    for version in [(Version::V3, "3"), (Version::V4(1), "4.1")] {
        let (place, session) = (place(), session(Nfs::Tcp));
        let (file, _facts) = place.open(facts(&place, version.0, version.1));
        place.server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Status(13)));
        let receipt = all(&session, &file);
        assert_eq!(receipt.moved.requested, 0);
        assert!(why(&receipt).contains("permission denied"), "{receipt}");
        place.server.faults(|_| None);
        let (place, session) = (mounts::place(), self::session(Nfs::Tcp));
        let (file, _facts) = place.open(facts(&place, version.0, version.1));
        place.server.hide_states(true);
        let receipt = all(&session, &file);
        assert_eq!(receipt.moved.requested, 0);
        assert!(why(&receipt).contains("does not tell the file's state"), "{receipt}");
    }
}

#[test]
fn a_cancelled_read_waits_for_no_server() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Tcp));
    let (file, _facts) = place.open(place.facts("tcp"));
    assert_eq!(all(&session, &file).moved.requested, LEN as u64);
    chill(&file);
    // The state of the file is asked for, and does not come.
    let mut is_first = true;
    place.server.faults(move |seen| {
        let is_it = seen.asked == Asked::Other && std::mem::take(&mut is_first);
        is_it.then_some(Fault::Late(Duration::from_secs(3)))
    });
    let begun = Instant::now();
    let ticket = session.submit_read(&file, 0, session.buffer(0, LEN).unwrap()).unwrap();
    ticket.cancel();
    assert_eq!(ticket.wait().receipt.bytes(), 0);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(all(&session, &file).moved.requested, LEN as u64);
}

/// Reads until the server was looked for.
fn settled(session: &Session, file: &File) -> Receipt {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let receipt = all(session, file);
        if !why(&receipt).contains("being looked for") {
            return receipt;
        }
        assert!(Instant::now() < until, "never");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads by `auto` until both ways are measured, then as often again: the bytes by TCP, and all.
fn chosen(facts: Facts, place: &Place) -> (u64, u64, Receipt) {
    let io = IoBackend::Threads;
    let session = Session::with_config(Config { nfs: Nfs::Faster, ..config(io, CachePolicy::Auto) }).unwrap();
    let (file, _facts) = place.open(facts);
    settled(&session, &file);
    let rounds = 12;
    (0..rounds).for_each(|_| drop(all(&session, &file)));
    let receipts: Vec<_> = (0..rounds).map(|_| all(&session, &file)).collect();
    let tcp = receipts.iter().map(|receipt| receipt.moved.requested).sum();
    let last = receipts.into_iter().rev().find(|receipt| receipt.moved.requested > 0);
    (tcp, (rounds * LEN) as u64, last.unwrap_or_else(|| all(&session, &file)))
}

#[test]
fn auto_takes_tcp_where_the_kernel_is_slower() {
    let _turn = turn();
    let place = place();
    let (tcp, bytes, receipt) =
        chosen(Facts { slow: Duration::from_millis(40), ..place.facts("tcp") }, &place);
    assert!(tcp > bytes * 3 / 4, "{tcp} of {bytes}: {receipt}");
    assert!(receipt.to_string().contains("(a piece at "), "{receipt}");
}

#[test]
fn auto_leaves_a_slow_server_to_the_kernel() {
    let _turn = turn();
    let place = place();
    place.server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Late(Duration::from_millis(40))));
    let (tcp, bytes, receipt) = chosen(place.facts("tcp"), &place);
    assert!(tcp < bytes / 8, "{tcp} of {bytes}: {receipt}");
    assert!(why(&receipt).starts_with("that is no faster (a piece at "), "{receipt}");
}

#[test]
fn auto_contacts_servers_by_their_mounts_transport_alone() {
    let _turn = turn();
    let place = place();
    for (facts, reason) in [
        (place.facts("rdma"), "it is mounted over rdma"),
        (Facts { path: Some(PATH), ..place.facts("tcp") }, "its path is mountd's"),
    ] {
        let (file, _facts) = place.open(facts);
        let session = session(Nfs::Faster);
        chill(&file);
        let receipt = loop {
            let receipt = read(&session, &file, Target::Host, (0, LEN));
            if !why(&receipt).contains("being looked for") {
                break receipt;
            }
        };
        assert!(why(&receipt).contains(reason), "{receipt}");
    }
    assert_eq!(place.server.count(Asked::Read), 0);
}
