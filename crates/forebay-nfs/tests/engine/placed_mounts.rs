//! The engine `placed` on files of the kernel's NFS mounts. There is no mount here: see `mounts`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault as Trouble, Placing};
use fake_verbs::{Fault, Side, What};
use forebay_config::{CachePolicy, Config, IoBackend, Nfs};
use forebay_engine::{EngineKind, File, Receipt, Session, Way};
use forebay_nfs::handle::NfsVersion;
use forebay_nfs::mount::KernelMount;
use forebay_nfs::{NfsOptions, NfsUrl};
use forebay_verbs::Kind;

use crate::common::{Scratch, allow_dma_bufs, chill, config, disk, pattern, turn};
use crate::mounts::{Facts, KEY, LEN, PATH, Place, mounted, place};

fn session(nfs: Nfs) -> Session {
    allow_dma_bufs();
    Session::with_config(Config { nfs, ..config(IoBackend::Auto, CachePolicy::Auto) }).unwrap()
}

/// Reads the first `len` bytes, which nobody has in the page cache.
fn read(session: &Session, file: &File, len: usize) -> Receipt {
    chill(file);
    let mut buffer = session.buffer(0, len).unwrap();
    buffer.copy_from_slice(&vec![0xA5; len]).unwrap();
    let receipt = session.read(file, 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len), "wrong bytes: {receipt}");
    receipt
}

/// Reads until the server was found and the way was tried.
fn settle(session: &Session, file: &File) {
    let until = Instant::now() + Duration::from_secs(20);
    while ["is in progress", "not found yet"]
        .iter()
        .any(|word| reason(&read(session, file, LEN)).contains(word))
    {
        assert!(Instant::now() < until, "never");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn reason(receipt: &Receipt) -> &str {
    let refused = receipt.election.refused.iter().find(|refusal| refusal.engine == EngineKind::Placed);
    refused.map_or("", |refusal| &refusal.reason)
}

#[test]
fn a_mount_over_rdma_is_read_from_its_server_beside_the_kernel() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Auto));
    let (file, facts) = place.open(place.facts("rdma"));
    let first = read(&session, &file, LEN);
    assert_eq!((first.engine(), first.moved[Way::Server]), (EngineKind::Staged, 0), "{first}");
    assert_eq!(reason(&first), "the mount's server is not found yet");
    let until = Instant::now() + Duration::from_secs(20);
    let receipt = loop {
        let receipt = read(&session, &file, LEN);
        if receipt.engine() == EngineKind::Placed {
            break receipt;
        }
        assert!(Instant::now() < until, "never: {receipt}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(receipt.moved[Way::Server], LEN as u64);
    let text = receipt.to_string();
    assert!(text.contains("this host's writes were on the server before"), "{text}");
    assert!(text.contains("keys: per buffer"), "{text}");
    // The kernel is asked what the file is when all is written back; never again for an open file.
    read(&session, &file, LEN);
    assert_eq!(facts.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_mount_over_tcp_is_the_kernels_unless_rdma_is_asked_for() {
    let _turn = turn();
    let place = place();
    let (file, _facts) = place.open(place.facts("tcp"));
    let auto = session(Nfs::Auto);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let receipt = read(&auto, &file, LEN);
        assert_eq!(receipt.moved[Way::Server], 0);
        if reason(&receipt) == "it is mounted over tcp" {
            break;
        }
        assert!(Instant::now() < until, "{receipt}");
    }
    // Asked for, it is found out at once.
    let (file, _facts) = place.open(place.facts("tcp"));
    let asked = session(Nfs::Rdma);
    let receipt = read(&asked, &file, LEN);
    assert!(reason(&receipt).contains("is in progress"), "{receipt}");
    settle(&asked, &file);
    let receipt = read(&asked, &file, LEN);
    assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Placed, LEN as u64), "{receipt}");
    for nfs in [Nfs::Off, Nfs::Tcp] {
        let receipt = read(&session(nfs), &file, LEN);
        assert_eq!((receipt.moved[Way::Server], reason(&receipt)), (0, "FOREBAY_NFS forbids it"));
    }
}

#[test]
fn a_session_that_may_only_place_says_that_options_forbid_it_for_mounts() {
    let _turn = turn();
    allow_dma_bufs();
    for nfs in [Nfs::Off, Nfs::Tcp, Nfs::Rdma] {
        let (engine, strict) = (Some("placed".to_owned()), vec!["placed".to_owned()]);
        let asked = Config { nfs, engine, ..config(IoBackend::Auto, CachePolicy::Auto) };
        let strict = Config { nfs, strict, ..config(IoBackend::Auto, CachePolicy::Auto) };
        for config in [asked, strict] {
            let place = place();
            let session = Session::with_config(config).unwrap();
            let (file, _facts) = place.open(place.facts("rdma"));
            chill(&file);
            let read = session.read(&file, 0, &mut session.buffer(0, LEN).unwrap());
            assert_eq!(read.is_ok(), nfs == Nfs::Rdma, "{nfs}: {read:?}");
            if let Err(error) = read {
                assert!(error.to_string().contains("FOREBAY_NFS forbids it"), "{error:?}");
                assert_eq!(error.hints(), ["unset FOREBAY_NFS, or FOREBAY_NFS=rdma"]);
            }
            // Other sources can be placed: the session opens.
            session.elect(&session.device(0).unwrap()).unwrap();
        }
    }
}

/// Version 4.0, long handles, kernels and filters without name_to_handle_at: the path is walked, and what lies there is compared.
#[test]
fn a_file_without_a_handle_is_found_by_its_path_and_compared() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Rdma));
    place.server.put("/export/other", pattern(KEY, 0, LEN));
    for (version, name) in [(NfsVersion::V3, "3"), (NfsVersion::V4(0), "4.0"), (NfsVersion::V4(1), "4.1")] {
        let facts = |path| {
            let facts = place.facts("tcp");
            let url = NfsUrl::parse(&place.server.url(PATH, name)).unwrap();
            Facts { mount: KernelMount { version, ..facts.mount }, path: Some(path), url, ..facts }
        };
        let (file, _facts) = place.open(facts(PATH));
        settle(&session, &file);
        let receipt = read(&session, &file, LEN);
        assert_eq!(
            (receipt.engine(), receipt.moved[Way::Server]),
            (EngineKind::Placed, LEN as u64),
            "{receipt}"
        );
        // Renamed meanwhile: the same bytes, another file.
        let receipt = read(&session, &place.open(facts("/export/other")).0, LEN);
        assert!(reason(&receipt).contains("its path on the server is another's"), "{receipt}");
        let receipt = read(&session, &place.open(facts("/export/gone")).0, LEN);
        assert!(reason(&receipt).contains("no such file"), "{receipt}");
    }
}

#[test]
fn small_and_cached_reads_are_the_kernels() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Rdma));
    let (file, facts) = place.open(place.facts("tcp"));
    let receipt = read(&session, &file, 1 << 19);
    assert_eq!((receipt.engine(), reason(&receipt)), (EngineKind::Staged, ""));
    assert_eq!(facts.asked.load(Ordering::Relaxed), 0);
    settle(&session, &file);
    assert_eq!(read(&session, &file, LEN).engine(), EngineKind::Placed);
    std::fs::read(place.scratch.path()).unwrap();
    let mut buffer = session.buffer(0, LEN).unwrap();
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert_eq!(
        (receipt.moved[Way::Server], reason(&receipt)),
        (0, "the bytes are in this host's page cache")
    );
}

#[test]
fn what_must_not_be_reached_is_left_to_the_kernel() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Rdma));
    let facts = Facts { refuses: Some("it is mounted with sec=krb5p"), ..place.facts("tcp") };
    let receipt = read(&session, &place.open(facts).0, LEN);
    assert!(reason(&receipt).contains("sec=krb5p"), "{receipt}");
    // The handle is of another file than the kernel's.
    let facts = Facts { wrong: 1, ..place.facts("tcp") };
    let receipt = read(&session, &place.open(facts).0, LEN);
    assert!(reason(&receipt).contains("attributes of the file differ from the kernel"), "{receipt}");
    assert_eq!(place.server.count(Asked::Read), 0);
}

#[test]
fn a_server_without_rdma_is_tried_once_for_all_its_files() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Rdma));
    place.fabric.cut(Placing::address().ip(), true);
    let opened = || {
        let before = place.server.connections();
        let receipt = read(&session, &place.open(place.facts("tcp")).0, LEN);
        assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Staged, 0));
        assert!(reason(&receipt).contains("10.0.0.1") || reason(&receipt).contains("connect"), "{receipt}");
        place.server.connections() - before
    };
    // What this test's kernel asks of the server for its facts is a connection or two, too.
    let (first, second) = (opened(), opened());
    assert!(first > second, "{first} connections for the first file, {second} for the second");
    assert_eq!(place.server.count(Asked::Read), 0);
}

#[test]
fn a_file_that_changes_meanwhile_is_read_again_by_the_kernel() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Rdma));
    let (file, _facts) = place.open(place.facts("tcp"));
    settle(&session, &file);
    assert_eq!(read(&session, &file, LEN).engine(), EngineKind::Placed);
    chill(&file);
    place.fabric.inject(Fault::on(Side::Server, Kind::Write, What::Delay(Duration::from_millis(800))));
    let asked = place.server.count(Asked::Read);
    let ticket = session.submit_read(&file, 0, session.buffer(0, LEN).unwrap()).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while place.server.count(Asked::Read) == asked {
        assert!(Instant::now() < until, "nothing is asked");
        std::thread::yield_now();
    }
    let other = NfsUrl::parse(&place.server.url(PATH, "3")).unwrap();
    let other = forebay_nfs::open(&other, &NfsOptions { connections: 1, ..NfsOptions::default() }).unwrap();
    other.write_at(&[7; 100], 0).unwrap();
    let outcome = ticket.wait();
    let receipt = outcome.receipt;
    assert_eq!(
        (receipt.engine(), receipt.moved[Way::Server], receipt.bytes()),
        (EngineKind::Staged, 0, LEN as u64),
        "{receipt}"
    );
    assert!(reason(&receipt).contains("the file changed while the server placed its bytes"), "{receipt}");
    assert!(outcome.buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
}

/// The server knows this process's user; only the kernel knows the descriptor's mode and its opener.
#[test]
fn a_descriptor_gives_no_more_than_it_was_opened_for() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Rdma));
    let (file, _facts) = place.open_with(File::options().read(false).write(true), place.facts("tcp"));
    let mut buffer = session.buffer(0, LEN).unwrap();
    assert!(session.read(&file, 0, &mut buffer).is_err());
    // Opened by another user, whom the server lets in, and not this one: the kernel reads it.
    let (file, _facts) = place.open(place.facts("tcp"));
    settle(&session, &file);
    place.server.faults(|seen| (seen.asked == Asked::Read).then_some(Trouble::Status(13)));
    let receipt = read(&session, &file, LEN);
    assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Staged, 0), "{receipt}");
    assert!(reason(&receipt).contains("permission denied"), "{receipt}");
}

#[test]
fn a_server_that_does_not_answer_holds_up_nobody_else() {
    let _turn = turn();
    let (slow, quick, session) = (place(), place(), session(Nfs::Rdma));
    let files = [&slow, &quick].map(|place| {
        let (file, _facts) = place.open(place.facts("tcp"));
        settle(&session, &file);
        file
    });
    chill(&files[0]);
    let mut is_first = true;
    slow.server.faults(move |seen| {
        let is_it = seen.asked == Asked::Other && std::mem::take(&mut is_first);
        is_it.then_some(Trouble::Late(Duration::from_secs(4)))
    });
    let ticket = session.submit_read(&files[0], 0, session.buffer(0, LEN).unwrap()).unwrap();
    assert_eq!(read(&session, &files[1], LEN).moved[Way::Server], LEN as u64);
    assert!(!ticket.is_done(), "the other server was waited for");
    assert_eq!(ticket.wait().receipt.moved[Way::Server], LEN as u64);
}

#[test]
fn a_panic_while_the_server_is_looked_for_is_not_for_good() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Auto));
    let (file, facts) = place.open(Facts { panics: true, ..place.facts("rdma") });
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let receipt = read(&session, &file, LEN);
        if receipt.moved[Way::Server] == LEN as u64 {
            break;
        }
        assert!(Instant::now() < until, "{receipt}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(facts.asked.load(Ordering::Relaxed) > 1);
}

#[test]
fn a_mount_of_another_network_is_read_beside_the_kernel_where_that_is_asked_for() {
    let _turn = turn();
    let place = place();
    let facts = || Facts { elsewhere: true, ..place.facts("rdma") };
    let (file, _facts) = place.open(facts());
    let auto = session(Nfs::Auto);
    settle(&auto, &file);
    let receipt = read(&auto, &file, LEN);
    assert!(reason(&receipt).contains("another network"), "{receipt}");
    assert_eq!(place.server.count(Asked::Read), 0);
    let asked = session(Nfs::Rdma);
    let (file, _facts) = place.open(facts());
    settle(&asked, &file);
    assert_eq!(read(&asked, &file, LEN).moved[Way::Server], LEN as u64);
    // Another server at the same address has another file there.
    let (file, _facts) = place.open(Facts { wrong: 1, ..facts() });
    settle(&asked, &file);
    let receipt = read(&asked, &file, LEN);
    assert_eq!(receipt.moved[Way::Server], 0, "{receipt}");
}

/// Two files of a server, both of which it places; the first is at [`PATH`]. The second's lies there as long as its [`Scratch`].
fn two_placed(place: &Place, session: &Session) -> ([File; 2], Scratch) {
    let other_path = "/export/other";
    place.server.put(other_path, pattern(KEY, 0, LEN));
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let (file, _facts) = place.open(place.facts("rdma"));
    let url = NfsUrl::parse(&place.server.url(other_path, "3")).unwrap();
    let other = File::open(scratch.path()).unwrap();
    mounted(&other, &Arc::new(Facts { url, ..place.facts("rdma") }));
    let files = [file, other];
    for file in &files {
        settle(session, file);
        let receipt = read(session, file, LEN);
        assert_eq!(receipt.engine(), EngineKind::Placed, "{receipt}");
    }
    (files, scratch)
}

/// It was removed or replaced on the server.
#[test]
fn a_stale_file_is_the_kernels_and_others_of_its_server_are_placed() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Rdma));
    let ([stale, good], _scratch) = two_placed(&place, &session);
    place.server.remove(PATH);
    for _ in 0..3 {
        let receipt = read(&session, &stale, LEN);
        assert_eq!(receipt.moved[Way::Server], 0, "{receipt}");
        assert!(reason(&receipt).contains("stale handle"), "{receipt}");
        let receipt = read(&session, &good, LEN);
        assert_eq!(receipt.engine(), EngineKind::Placed, "{receipt}");
    }
}

#[test]
fn a_server_that_asks_to_wait_is_left_alone_with_all_its_files() {
    let _turn = turn();
    let (place, session) = (place(), session(Nfs::Rdma));
    let (files, _scratch) = two_placed(&place, &session);
    let buffers = [(); 2].map(|()| session.buffer(0, LEN).unwrap());
    files.iter().for_each(chill);
    // Until the client sends the calls no more.
    place.server.faults(|seen| (seen.asked == Asked::Read).then_some(Trouble::Status(10008)));
    let mut asked = 0;
    for (file, mut buffer) in files.iter().zip(buffers) {
        let receipt = session.read(file, 0, &mut buffer).unwrap();
        assert_eq!(receipt.moved[Way::Server], 0, "{receipt}");
        assert!(reason(&receipt).contains("the server asks to wait"), "{receipt}");
        let before = std::mem::replace(&mut asked, place.server.count(Asked::Read));
        assert!(before == 0 || asked == before, "the server was asked again, for the other file");
    }
}
