//! Files of the kernel's NFS mounts, read by forebay's own client over TCP beside the kernel. There is no mount here: see `mounts`.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault};
use forebay_config::{CachePolicy, Config, IoBackend, Nfs};
use forebay_engine::{EngineKind, File, Receipt, Session, Way};
use forebay_nfs::NfsUrl;
use forebay_nfs::handle::NfsVersion;
use forebay_nfs::mount::KernelMount;

use crate::common::{Random, Target, chill, config, pattern, turn};
use crate::mounts::{Facts, KEY, LEN, PATH, Place, place};

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
const BY_KERNEL: &str = "by the kernel's mount, not beside it: ";

/// Why the kernel read it.
fn why(receipt: &Receipt) -> &str {
    let notes = receipt.election.notes.iter();
    notes.filter_map(|note| note.text.strip_prefix(BY_KERNEL)).next_back().unwrap_or("")
}

/// A mount of this version, of a file that is named by its handle or its path.
fn facts(place: &Place, version: NfsVersion, name: &str) -> Facts {
    let facts = place.facts("tcp");
    let url = NfsUrl::parse(&place.server.url(PATH, name)).unwrap();
    let path = (version == NfsVersion::V4(0)).then_some(PATH);
    Facts { mount: KernelMount { version, ..facts.mount }, path, url, ..facts }
}

#[test]
fn cold_reads_go_by_tcp_beside_the_kernel() {
    let _turn = turn();
    let place = place();
    for (version, name) in [
        (NfsVersion::V3, "3"),
        (NfsVersion::V4(0), "4.0"),
        (NfsVersion::V4(1), "4.1"),
        (NfsVersion::V4(2), "4.2"),
    ] {
        let session = session(Nfs::Tcp);
        let (file, kernel) = place.open(facts(&place, version, name));
        kernel.is_stuck.store(true, Ordering::Relaxed);
        for target in Target::ALL {
            let receipt = read(&session, &file, target, (0, LEN));
            let engine = if target == Target::Host { EngineKind::Host } else { EngineKind::Staged };
            assert_eq!((receipt.engine(), receipt.moved[Way::Requested]), (engine, LEN as u64), "{receipt}");
            let text = receipt.to_string();
            assert!(text.contains(&format!("NFS v{name} over TCP, {BESIDE}: server 127.0.0.1")), "{text}");
            assert!(text.contains("this host's writes were on the server before"), "{text}");
            assert_eq!(why(&receipt), "");
        }
        // The kernel is asked what the file is when all is written back; never again for an open file.
        assert_eq!(kernel.asked.load(Ordering::Relaxed), 1);
        let mut random = Random(7);
        for _ in 0..10 {
            let len = (1 << 20) + random.below(3_000_000) as usize;
            let offset = random.below((LEN - len) as u64);
            let target = if random.below(2) == 0 { Target::Host } else { Target::Device };
            let receipt = read(&session, &file, target, (offset, len));
            assert_eq!(receipt.moved[Way::Requested], len as u64, "{offset}+{len}: {receipt}");
        }
    }
}

/// Named by the server's name, or by the mount's address.
#[test]
fn connections_go_to_further_addresses_that_are_the_servers() {
    let _turn = turn();
    let mut place = place();
    while place.server.listen_at([127, 0, 0, 2].into()).is_err() {
        place = crate::mounts::place();
    }
    // Each reply is late: all connections get work.
    place.server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Late(Duration::from_millis(20))));
    for (version, name) in [(NfsVersion::V3, "3"), (NfsVersion::V4(1), "4.1")] {
        for named in ["127.0.0.1", "NAS"] {
            let nfs_servers = format!("other=10.0.0.1,{named}=127.0.0.2,127.0.0.3").parse().unwrap();
            let config = config(IoBackend::Auto, CachePolicy::Auto);
            let session = Session::with_config(Config { nfs: Nfs::Tcp, nfs_servers, ..config }).unwrap();
            let facts = facts(&place, version, name);
            let mount = KernelMount { server: "nas".to_owned(), ..facts.mount };
            let (file, _kernel) = place.open(Facts { mount, ..facts });
            let before = place.server.connections_to([127, 0, 0, 2].into());
            let receipt = all(&session, &file);
            assert_eq!((receipt.moved[Way::Requested], why(&receipt)), (LEN as u64, ""), "{receipt}");
            // One that looks at it, and at least one for bytes.
            assert!(place.server.connections_to([127, 0, 0, 2].into()) > before + 1, "{name}");
            let text = receipt.to_string();
            assert!(text.contains("up to 8 connections to 2 addresses"), "{text}");
            assert!(
                text.contains("address 127.0.0.3 of server 127.0.0.1 left out: cannot connect"),
                "{text}"
            );
        }
    }
}

#[test]
fn small_and_cached_reads_are_the_kernels() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Tcp));
    let (file, kernel) = place.open(place.facts("tcp"));
    let receipt = read(&session, &file, Target::Device, (0, (1 << 20) - 1));
    assert_eq!((receipt.moved[Way::Requested], why(&receipt)), (0, ""));
    assert_eq!(kernel.asked.load(Ordering::Relaxed), 0);
    assert_eq!(read(&session, &file, Target::Device, (0, 1 << 20)).moved[Way::Requested], 1 << 20);
    std::fs::read(place.scratch.path()).unwrap();
    let before = place.server.count(Asked::Read);
    let mut buffer = session.buffer(0, LEN).unwrap();
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert_eq!((receipt.moved[Way::Requested], receipt.moved[Way::Cached]), (0, LEN as u64), "{receipt}");
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
    let (cached, requested) = (receipt.moved[Way::Cached], receipt.moved[Way::Requested]);
    assert!(cached >= 256 << 10 && requested >= 1 << 20, "{receipt}");
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
    kernel.wrong_later.store(1, Ordering::Relaxed);
    read_first();
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert_eq!(receipt.moved[Way::Requested], 0);
    assert!(why(&receipt).contains("attributes of the file differ from the kernel"), "{receipt}");
}

#[test]
fn what_must_not_be_reached_is_left_to_the_kernel() {
    let _turn = turn();
    let (place, session_tcp) = (place(), session(Nfs::Tcp));
    for (change, reason) in [
        (Facts { refuses: Some("it is mounted with sec=krb5p"), ..place.facts("tcp") }, "sec=krb5p"),
        (Facts { wrong: 1, ..place.facts("tcp") }, "attributes of the file differ from the kernel"),
        (Facts { path: Some("/export/gone"), ..place.facts("tcp") }, "no such file"),
    ] {
        let receipt = all(&session_tcp, &place.open(change).0);
        assert!(why(&receipt).contains(reason), "{receipt}");
    }
    for nfs in [Nfs::Off, Nfs::Rdma] {
        let receipt = read(&session(nfs), &place.open(place.facts("tcp")).0, Target::Host, (0, LEN));
        assert_eq!((receipt.moved[Way::Requested], why(&receipt)), (0, ""));
    }
    let keep = Config { nfs: Nfs::Tcp, ..config(IoBackend::Auto, CachePolicy::Keep) };
    assert_eq!(
        all(&Session::with_config(keep).unwrap(), &place.open(place.facts("tcp")).0).moved[Way::Requested],
        0
    );
    assert_eq!(place.server.count(Asked::Read), 0);
    // What the server, which knows the user alone, would give without asking how the file was opened.
    let (file, _facts) = place.open_with(File::options().read(false).write(true), place.facts("tcp"));
    let mut buffer = session_tcp.buffer(0, LEN).unwrap();
    assert!(session_tcp.read(&file, 0, &mut buffer).is_err());
    assert_eq!(place.server.count(Asked::Read), 0);
}

/// The server knows the user alone, and would give more than the descriptor does.
#[test]
fn a_descriptor_of_less_access_is_not_read_by_the_server() {
    let _turn = turn();
    for nfs in [Nfs::Tcp, Nfs::Rdma] {
        let (place, session) = (place(), session(nfs));
        let adopted = |opened: &std::fs::File| -> forebay_error::Result<File> {
            // SAFETY: it is open until this returns.
            let file = unsafe { File::adopt(opened.as_raw_fd()) }?;
            crate::mounts::mounted(&file, &Arc::new(place.facts("tcp")));
            Ok(file)
        };
        let write_only = std::fs::OpenOptions::new().write(true).open(place.scratch.path()).unwrap();
        let file = adopted(&write_only).unwrap();
        for target in Target::ALL {
            let mut buffer = target.buffer(&session, LEN);
            let error = session.read(&file, 0, &mut buffer).unwrap_err();
            assert_eq!(error.errno(), libc::EBADF, "{nfs:?} {error:?}");
        }
        let mut only_named = std::fs::OpenOptions::new();
        only_named.read(true).custom_flags(libc::O_PATH);
        assert!(adopted(&only_named.open(place.scratch.path()).unwrap()).is_err());
        assert_eq!((place.server.count(Asked::Read), place.server.connections()), (0, 0), "{nfs:?}");
    }
}

/// The program's opener may read the file, other users on the server may not: the server is asked as this process's
/// user, refuses, and the kernel reads.
#[test]
fn the_server_is_asked_as_this_user_and_not_as_the_one_that_opened_the_file() {
    const NOBODY: u32 = 65534;
    let _turn = turn();
    let place = place();
    std::fs::set_permissions(place.scratch.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    let (file, _facts) = place.open(place.facts("tcp"));
    let users = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen_users = users.clone();
    place.server.faults(move |seen| {
        seen_users.lock().unwrap().extend(seen.user.filter(|_| seen.asked == Asked::Read));
        (seen.asked == Asked::Read && seen.user == Some(NOBODY)).then_some(Fault::Status(13))
    });
    let other = || {
        // SAFETY: no pointers; of this thread, and of those that it starts.
        if unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1) } != 0 {
            println!("skipped: this process may not have another user");
            return true;
        }
        assert_eq!(
            std::fs::File::open(place.scratch.path()).unwrap_err().kind(),
            std::io::ErrorKind::PermissionDenied
        );
        let session = session(Nfs::Tcp);
        let mut buffer = Target::Host.buffer(&session, LEN);
        let receipt = session.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "wrong bytes: {receipt}");
        assert_eq!(receipt.moved[Way::Requested], 0);
        let users = std::mem::take(&mut *users.lock().unwrap());
        assert!(users.iter().all(|user| *user == NOBODY), "{users:?}");
        assert_eq!(users.is_empty(), why(&receipt).is_empty(), "{receipt}");
        assert!(users.is_empty() || why(&receipt).contains("permission denied"), "{receipt}");
        !users.is_empty()
    };
    // The kernel tells another user nothing of its cache. The engine looks by reading, and that starts readahead: on a busy
    // machine the pages may be there before the server would be asked for them.
    let asked = (0..50).any(|_| {
        chill(&file);
        std::thread::scope(|scope| scope.spawn(other).join().unwrap())
    });
    assert!(asked, "the server was never asked");
}

/// An fsync by the engine would consume the error of a program's write.
#[test]
fn a_file_that_is_open_for_writing_stays_the_kernels() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Tcp));
    let (file, facts) = place.open_with(File::options().write(true), place.facts("tcp"));
    let receipt = all(&session, &file);
    assert!(why(&receipt).contains("open for writing"), "{receipt}");
    assert_eq!((receipt.moved[Way::Requested], facts.asked.load(Ordering::Relaxed)), (0, 0));
    assert_eq!(place.server.connections(), 0);
}

#[test]
fn a_mount_of_another_network_is_read_where_that_is_asked_for() {
    let _turn = turn();
    let place = place();
    let facts = Facts { elsewhere: true, ..place.facts("tcp") };
    assert_eq!(all(&session(Nfs::Tcp), &place.open(facts).0).moved[Way::Requested], LEN as u64);
}

/// Pieces that come after a change are thrown away, and read by the kernel: here of an older state than the server's.
#[test]
fn a_file_that_changes_meanwhile_is_read_on_by_the_kernel() {
    let _turn = turn();
    for (version, name) in [(NfsVersion::V3, "3"), (NfsVersion::V4(1), "4.1")] {
        for target in Target::ALL {
            let (place, session) = (place(), session(Nfs::Tcp));
            let (file, _facts) = place.open(facts(&place, version, name));
            assert_eq!(read(&session, &file, target, (0, LEN)).moved[Way::Requested], LEN as u64);
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
            assert!(receipt.moved[Way::Requested] < LEN as u64, "{receipt}");
            assert!(why(&receipt).starts_with("the file changed while it was read"), "{receipt}");
            // It does not concern the server. (The kernel's view has not changed here.)
            chill(&file);
            let receipt = session.read(&file, 0, &mut target.buffer(&session, LEN)).unwrap();
            assert_eq!((receipt.moved[Way::Requested], why(&receipt)), (LEN as u64, ""), "{receipt}");
        }
    }
}

#[test]
fn a_server_that_is_gone_in_the_middle_is_left_alone() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Tcp));
    let (file, _facts) = place.open(place.facts("tcp"));
    assert_eq!(all(&session, &file).moved[Way::Requested], LEN as u64);
    let gone = place.server.count(Asked::Read) + 4;
    place
        .server
        .faults(move |seen| (seen.asked == Asked::Read && seen.before >= gone).then_some(Fault::Close));
    let receipt = all(&session, &file);
    assert!(receipt.moved[Way::Requested] < LEN as u64, "{receipt}");
    assert!(why(&receipt).contains("the server does not answer"), "{receipt}");
    place.server.faults(|_| None);
    let (reads, connections) = (place.server.count(Asked::Read), place.server.connections());
    let receipt = all(&session, &file);
    assert_eq!(receipt.moved[Way::Requested], 0);
    assert!(why(&receipt).contains("the server does not answer"), "{receipt}");
    assert_eq!((place.server.count(Asked::Read), place.server.connections()), (reads, connections));
}

#[test]
fn what_the_server_refuses_is_read_by_the_kernel() {
    let _turn = turn();
    for version in [(NfsVersion::V3, "3"), (NfsVersion::V4(1), "4.1")] {
        let (place, session) = (place(), session(Nfs::Tcp));
        let (file, _facts) = place.open(facts(&place, version.0, version.1));
        place.server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Status(13)));
        let receipt = all(&session, &file);
        assert_eq!(receipt.moved[Way::Requested], 0);
        assert!(why(&receipt).contains("permission denied"), "{receipt}");
        place.server.faults(|_| None);
        let (place, session) = (crate::mounts::place(), self::session(Nfs::Tcp));
        let (file, _facts) = place.open(facts(&place, version.0, version.1));
        place.server.hide_states(true);
        let receipt = all(&session, &file);
        assert_eq!(receipt.moved[Way::Requested], 0);
        assert!(why(&receipt).contains("does not send the file's attributes"), "{receipt}");
    }
}

/// The server is asked nothing before a transfer: what it takes to answer is waited for by no other one.
#[test]
fn many_reads_at_once_wait_for_no_question() {
    let _turn = turn();
    for (version, name) in [(NfsVersion::V3, "3"), (NfsVersion::V4(1), "4.1")] {
        let (place, session) = (place(), session(Nfs::Tcp));
        let (file, _facts) = place.open(facts(&place, version, name));
        assert_eq!(all(&session, &file).moved[Way::Requested], LEN as u64);
        place
            .server
            .faults(|seen| (seen.asked != Asked::Read).then_some(Fault::Late(Duration::from_millis(20))));
        chill(&file);
        let before = place.server.count(Asked::Other);
        println!("32 reads of 2 MiB at once: {:?}", many(&session, &file));
        assert_eq!(place.server.count(Asked::Other), before);
        println!("by the kernel: {:?}", many(&self::session(Nfs::Off), &file));
    }
}

/// 32 reads of 2 MiB at once, and how long they take.
fn many(session: &Session, file: &File) -> Duration {
    let asked = |at: u64| (at * 77_777, session.buffer(0, 2 << 20).unwrap());
    let buffers: Vec<_> = (0..32).map(asked).collect();
    let begun = Instant::now();
    let submit = |(offset, buffer)| (offset, session.submit_read(file, offset, buffer).unwrap());
    let tickets: Vec<_> = buffers.into_iter().map(submit).collect();
    let outcomes: Vec<_> = tickets.into_iter().map(|(offset, ticket)| (offset, ticket.wait())).collect();
    let took = begun.elapsed();
    for (offset, outcome) in outcomes {
        assert!(outcome.buffer.to_vec().unwrap() == pattern(KEY, offset, 2 << 20), "{}", outcome.receipt);
    }
    took
}

/// What nobody has asked for costs the server nothing.
#[test]
fn auto_leaves_mounts_over_tcp_to_the_kernel() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Auto));
    for target in Target::ALL {
        let (file, kernel) = place.open(place.facts("tcp"));
        for _ in 0..5 {
            let receipt = read(&session, &file, target, (0, LEN));
            assert_eq!((receipt.moved[Way::Requested], why(&receipt)), (0, ""));
        }
        assert_eq!(kernel.asked.load(Ordering::Relaxed), 0);
    }
    assert_eq!(place.server.connections(), 0);
}

#[test]
fn a_silent_server_costs_little_and_once() {
    let _turn = turn();
    for (version, name) in [(NfsVersion::V3, "3"), (NfsVersion::V4(1), "4.1")] {
        let (place, session) = (place(), session(Nfs::Tcp));
        let (file, _facts) = place.open(facts(&place, version, name));
        assert_eq!(all(&session, &file).moved[Way::Requested], LEN as u64);
        place.server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::NoReply));
        chill(&file);
        // More pieces than are under way at a time.
        let buffers: Vec<_> = (0..40).map(|_| session.buffer(0, LEN).unwrap()).collect();
        let begun = Instant::now();
        let submit = |buffer| session.submit_read(&file, 0, buffer).unwrap();
        let tickets: Vec<_> = buffers.into_iter().map(submit).collect();
        let outcomes: Vec<_> = tickets.into_iter().map(forebay_engine::Ticket::wait).collect();
        let took = begun.elapsed();
        println!("40 reads of a server that has become silent: {took:?}");
        for outcome in outcomes {
            assert!(outcome.buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "{}", outcome.receipt);
        }
        assert!(took < Duration::from_secs(4), "{took:?}");
        let (begun, reads) = (Instant::now(), place.server.count(Asked::Read));
        let receipt = all(&session, &file);
        assert!(why(&receipt).contains("the server does not answer"), "{receipt}");
        assert_eq!((receipt.moved[Way::Requested], place.server.count(Asked::Read)), (0, reads));
        assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    }
}

/// What the server was asked for is waited for before the memory is the caller's again.
#[test]
fn a_lane_that_panics_waits_for_what_the_server_was_asked_for() {
    let _turn = turn();
    let place = place();
    let lanes = Config { lanes: 1, slots: 8, slot_size: 1 << 20, nfs: Nfs::Tcp, ..Config::default() };
    let session = Session::with_config(Config { io: IoBackend::Threads, ..lanes }).unwrap();
    let (file, _facts) = place.open(place.facts("tcp"));
    let (other, kernel) = place.open(Facts { refuses: Some("not this one"), ..place.facts("tcp") });
    const LEN: usize = 2 << 20;
    // The lane gets all its memory.
    assert_eq!(
        read(&session, &file, Target::Host, (0, crate::mounts::LEN)).moved[Way::Requested],
        crate::mounts::LEN as u64
    );
    read(&session, &other, Target::Host, (0, LEN));
    place
        .server
        .faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Late(Duration::from_millis(800))));
    chill(&file);
    let mut buffer = Target::Host.buffer(&session, LEN);
    buffer.copy_from_slice(&vec![0xA5; LEN]).unwrap();
    let reads = place.server.count(Asked::Read);
    let ticket = session.submit_read(&file, 0, buffer).unwrap();
    while place.server.count(Asked::Read) < reads + 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    kernel.breaks.store(true, Ordering::Relaxed);
    chill(&other);
    let broken = session.submit_read(&other, 0, Target::Host.buffer(&session, 1 << 19)).unwrap();
    let outcome = ticket.wait();
    let then = outcome.buffer.to_vec().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(
        outcome.buffer.to_vec().unwrap() == then,
        "the memory was written to when it had been given back"
    );
    broken.wait().result().unwrap_err();
    // Another lane has taken its place.
    let late = session.submit_read(&file, 0, Target::Host.buffer(&session, LEN)).unwrap();
    assert!(late.wait_timeout(Duration::from_secs(10)), "it waits for ever");
    assert!(late.wait().into_result().unwrap().1.to_vec().unwrap() == pattern(KEY, 0, LEN));
}
