//! The contract: what every (source, engine, memory) must do alike. Each test runs over all combinations.
//!
//! `FOREBAY_TEST_NFS=nfs://SERVER/FOLDER?version=3` runs it over files of a real server alone, by the transport of `FOREBAY_NFS`;
//! `FOREBAY_TEST_DIR` is that folder as the server itself has it: there the files are made, and what was written is looked at.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "../examples/toy_engine.rs"]
mod toy_engine;
#[path = "../examples/toy_source.rs"]
mod toy_source;

use std::sync::Arc;
use std::time::Duration;

use common::{Random, Scratch, Target, bar, chill, config, disk, pattern, session_with_bar};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::source::MemorySource;
use forebay_engine::{EngineKind, File, ReadPiece, Session, Source, Way};
use forebay_error::ErrorKind;
use forebay_nfs::NfsSource;

const LEN: usize = 3_000_001;
const KEY: u64 = 77;

/// A source with LEN pattern bytes and a way to look at it from outside.
struct Subject {
    name: &'static str,
    file: File,
    outside: Box<dyn Fn() -> Vec<u8> + Sync>,
    _scratch: Option<Scratch>,
    is_cold: bool,
}

fn on_disk(directory: &std::path::Path, name: &'static str, is_cold: bool) -> Subject {
    let scratch = Scratch::with_pattern(directory, KEY, LEN);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    let path = scratch.path().to_owned();
    Subject {
        name,
        file,
        outside: Box::new(move || std::fs::read(&path).unwrap()),
        _scratch: Some(scratch),
        is_cold,
    }
}

fn subjects() -> Vec<Subject> {
    if let Some(folder) = real_server() {
        return vec![on_server(&folder)];
    }
    let memory = Arc::new(MemorySource::new(pattern(KEY, 0, LEN), Duration::from_micros(50)));
    let file = File::from_source(memory.clone() as Arc<dyn Source>).unwrap();
    let requests = Subject {
        name: "requests",
        file,
        outside: Box::new(move || memory.snapshot()),
        _scratch: None,
        is_cold: false,
    };
    vec![
        parts(),
        on_nfs(),
        on_nfs_by_rdma(),
        on_disk(&disk(), "warm file", false),
        on_disk(&disk(), "cold file", true),
        on_disk(std::path::Path::new("/dev/shm"), "tmpfs file", false),
        requests,
    ]
}

/// The URL of a folder on a real NFS server, where one is to be tried.
fn real_server() -> Option<String> {
    std::env::var("FOREBAY_TEST_NFS").ok()
}

/// A file of that server, by forebay's own client; seen from outside without it.
fn on_server(folder: &str) -> Subject {
    forebay_nfs::register();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let path = scratch.path().to_owned();
    let (folder, options) = folder.split_once('?').unwrap_or((folder, ""));
    let name = path.file_name().unwrap().to_str().unwrap();
    let url = format!("{}/{name}?{options}", folder.trim_end_matches('/'));
    let file = File::options().write(true).open(&url).unwrap();
    Subject {
        name: "server",
        file,
        outside: Box::new(move || std::fs::read(&path).unwrap()),
        _scratch: Some(scratch),
        is_cold: false,
    }
}

/// A file of an NFS server in the process, by forebay's own client.
fn on_nfs() -> Subject {
    forebay_nfs::register();
    let server = fake_nfs::Server::start();
    server.put("/export/file", pattern(KEY, 0, LEN));
    let file = File::options().write(true).open(server.url("/export/file", "4.1")).unwrap();
    Subject {
        name: "nfs",
        file,
        outside: Box::new(move || server.durable("/export/file")),
        _scratch: None,
        is_cold: false,
    }
}

/// The same over a fabric in the process: the server places the bytes.
fn on_nfs_by_rdma() -> Subject {
    let (fake, server) = (fake_verbs::Fake::new(), Arc::new(fake_nfs::Server::start()));
    server.put("/export/file", pattern(KEY, 0, LEN));
    let placing = fake_nfs::Placing::start(&fake, server.clone());
    let rdma = forebay_nfs::RdmaOptions::by(Arc::new(fake), fake_nfs::Placing::address());
    let options = forebay_nfs::NfsOptions { connections: 2, rdma: Some(rdma), ..Default::default() };
    let url = forebay_nfs::NfsUrl::parse(&server.url("/export/file", "3")).unwrap();
    let source = NfsSource::new(forebay_nfs::open(&url, &options).unwrap(), (true, true));
    Subject {
        name: "nfs by rdma",
        file: File::from_source(Arc::new(source)).unwrap(),
        outside: Box::new(move || {
            let _kept = &placing;
            server.durable("/export/file")
        }),
        _scratch: None,
        is_cold: false,
    }
}

/// Two files as one source.
fn parts() -> Subject {
    let scratches = [Scratch::with_pattern(&disk(), KEY, LEN), Scratch::with_pattern(&disk(), KEY, LEN)];
    let paths: Vec<_> = scratches.iter().map(|scratch| scratch.path().to_owned()).collect();
    let bytes = pattern(KEY, 0, LEN);
    let (first, second) = bytes.split_at(LEN / 2 + 777);
    std::fs::write(&paths[0], first).unwrap();
    std::fs::write(&paths[1], second).unwrap();
    let file = File::from_source(Arc::new(toy_source::Parts::open(&paths).unwrap())).unwrap();
    let read = |path: &std::path::PathBuf| std::fs::read(path).unwrap();
    Subject {
        name: "parts",
        file,
        outside: Box::new(move || {
            let _kept = &scratches;
            paths.iter().flat_map(read).collect()
        }),
        _scratch: None,
        is_cold: false,
    }
}

/// All memories; only the one in a PCI BAR where a real one is to be tried.
fn targets() -> &'static [Target] {
    if bar::is_real() { &[Target::Bar] } else { &Target::WITH_BAR }
}

/// How often a test does something at random. Machines with a real BAR are emulated ones as a rule, where the CPU reads
/// that memory at a few MB/s, and those with a real server are: there fewer times do, over the same kinds of ranges.
fn times(count: u64) -> u64 {
    if bar::is_real() || real_server().is_some() { count.div_ceil(3) } else { count }
}

/// The engine of most of a large transfer.
fn engine(session: &Session, subject: &Subject, target: Target) -> EngineKind {
    let by_drive = subject.file.alignment().is_some() && session.config().cache != CachePolicy::Keep;
    match target {
        _ if session.config().engine.as_deref() == Some("toy") => EngineKind::Registered("toy"),
        Target::Host => EngineKind::Host,
        Target::Device if session.config().engine.is_some() => EngineKind::Libcufile,
        Target::Device if subject.name == "nfs by rdma" => EngineKind::Placed,
        Target::Bar if by_drive => EngineKind::P2p,
        Target::Bar | Target::Device => EngineKind::Staged,
    }
}

/// Out of the page cache, if that is what the subject is; and by the server, if that can be, from the first transfer on.
fn prepare(session: &Session, subject: &Subject, target: Target) {
    if subject.is_cold {
        chill(&subject.file);
    }
    if subject.name == "nfs by rdma" && target == Target::Device {
        common::try_placed(session, &subject.file, 4096);
    }
}

fn each(test: impl Fn(&Session, &Subject, Target)) {
    for io in [IoBackend::Auto, IoBackend::Threads, IoBackend::Polled] {
        for cache in [CachePolicy::Auto, CachePolicy::Keep, CachePolicy::Bypass] {
            let session = session_with_bar(config(io, cache));
            // Who polls matters to the kernel alone: one memory is enough.
            for target in targets().iter().filter(|target| io != IoBackend::Polled || **target == Target::Bar)
            {
                for subject in subjects() {
                    prepare(&session, &subject, *target);
                    println!("{io} {cache} {target:?} {}", subject.name);
                    test(&session, &subject, *target);
                }
            }
        }
    }
    // These two are shown files with descriptors.
    if !bar::is_real() && real_server().is_none() {
        each_by_libcufile(&test);
        each_by_toy(&test);
    }
}

/// The engine `libcufile`, over a test double of NVIDIA's library. It takes files and device memory.
fn each_by_libcufile(test: impl Fn(&Session, &Subject, Target)) {
    common::install_gpu();
    fake_cufile::install().unwrap();
    forebay_libcufile::register();
    let config = common::config(IoBackend::Auto, CachePolicy::Auto);
    let session = Session::with_config(Config { engine: Some("libcufile".to_owned()), ..config }).unwrap();
    each_file(&session, &[Target::Device], test);
}

/// An engine that a program registered: `examples/toy_engine.rs`.
fn each_by_toy(test: impl Fn(&Session, &Subject, Target)) {
    common::install_gpu();
    forebay_engine::register("toy", |_, _| Ok(Arc::new(toy_engine::ToyEngine))).unwrap();
    let config = common::config(IoBackend::Auto, CachePolicy::Auto);
    let session = Session::with_config(Config { engine: Some("toy".to_owned()), ..config }).unwrap();
    each_file(&session, &[Target::Host, Target::Device], test);
}

fn each_file(session: &Session, targets: &[Target], test: impl Fn(&Session, &Subject, Target)) {
    for target in targets {
        for subject in subjects().into_iter().filter(|subject| subject.file.raw_fd().is_some()) {
            if subject.is_cold {
                chill(&subject.file);
            }
            println!("{:?} {target:?} {}", session.config().engine, subject.name);
            test(session, &subject, *target);
        }
    }
}

#[test]
fn a_whole_file_comes_over_byte_for_byte() {
    each(|session, subject, target| {
        let mut buffer = target.buffer(session, LEN);
        let receipt = session.read(&subject.file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "wrong bytes");
        assert_eq!(receipt.bytes(), LEN as u64);
        assert_eq!(receipt.engine(), engine(session, subject, target), "{receipt}");
        let placed = if receipt.engine() == EngineKind::P2p { LEN as u64 / 4096 * 4096 } else { 0 };
        assert_eq!(receipt.moved[Way::Drive], placed);
        let by_server = if receipt.engine() == EngineKind::Placed { LEN as u64 } else { 0 };
        assert_eq!(receipt.moved[Way::Server], by_server);
    });
}

#[test]
fn any_range_comes_over_and_nothing_beside_it_changes() {
    each(|session, subject, target| {
        let mut random = Random(1);
        for round in 0..times(30) {
            let most = if round % 3 == 0 { 1_500_000 } else { 20_000 };
            let len = random.below(most) as usize + 1;
            let offset = random.below((LEN - len) as u64 + 1);
            let before = random.below(4097) as usize;
            let mut buffer = target.buffer(session, before + len + 77);
            let blank = vec![0xA5u8; buffer.len()];
            buffer.copy_from_slice(&blank).unwrap();
            session.read_into(&subject.file, offset, &mut buffer, before..before + len).unwrap();
            let bytes = buffer.to_vec().unwrap();
            assert!(bytes[..before].iter().all(|byte| *byte == 0xA5), "bytes before the range changed");
            assert!(
                bytes[before..before + len] == pattern(KEY, offset, len),
                "wrong bytes at {offset}+{len}"
            );
            assert!(bytes[before + len..].iter().all(|byte| *byte == 0xA5), "bytes after the range changed");
        }
    });
}

#[test]
fn writes_of_any_range_leave_the_rest_alone() {
    each(|session, subject, target| {
        let mut expected = pattern(KEY, 0, LEN);
        let mut random = Random(2);
        for round in 0..times(12) {
            let most = if round % 3 == 0 { 1_500_000 } else { 20_000 };
            let len = random.below(most) as usize + 1;
            let offset = random.below((LEN - len) as u64 + 1) as usize;
            let bytes = pattern(100 + round, offset as u64, len);
            let mut buffer = target.buffer(session, len);
            buffer.copy_from_slice(&bytes).unwrap();
            let receipt = session.write(&subject.file, offset as u64, &buffer).unwrap();
            assert_eq!(receipt.bytes(), len as u64);
            expected[offset..offset + len].copy_from_slice(&bytes);
        }
        assert!((subject.outside)() == expected, "the file differs");
    });
}

#[test]
fn aligned_ranges_go_there_and_back() {
    each(|session, subject, target| {
        let mut expected = pattern(KEY, 0, LEN);
        for (round, (offset, len)) in
            [(8192, 4096), (65536, 262_144), (1 << 20, (1 << 20) + 8192)].into_iter().enumerate()
        {
            let bytes = pattern(200 + round as u64, 0, len);
            let mut buffer = target.buffer(session, len);
            buffer.copy_from_slice(&bytes).unwrap();
            let written = session.write(&subject.file, offset as u64, &buffer).unwrap();
            expected[offset..offset + len].copy_from_slice(&bytes);
            buffer.copy_from_slice(&vec![0; len]).unwrap();
            let read = session.read(&subject.file, offset as u64, &mut buffer).unwrap();
            assert!(buffer.to_vec().unwrap() == bytes, "wrong bytes at {offset}+{len}");
            if engine(session, subject, target) == EngineKind::P2p {
                assert_eq!(
                    (written.moved[Way::Drive], read.moved[Way::Drive]),
                    (len as u64, len as u64),
                    "{written}\n{read}"
                );
            }
        }
        assert!((subject.outside)() == expected, "the file differs");
    });
}

#[test]
fn a_write_beyond_the_end_extends_the_source() {
    each(|session, subject, target| {
        let bytes = pattern(5, 0, 600_123);
        let mut buffer = target.buffer(session, bytes.len());
        buffer.copy_from_slice(&bytes).unwrap();
        session.write(&subject.file, LEN as u64 + 1000, &buffer).unwrap();
        let outside = (subject.outside)();
        assert_eq!(outside.len(), LEN + 1000 + bytes.len());
        assert!(outside[LEN + 1000..] == bytes && outside[LEN..LEN + 1000].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_read_beyond_the_end_is_a_short_read() {
    each(|session, subject, target| {
        for (offset, len) in
            [(LEN - 10, 4096), (LEN - 1_200_000, 1_300_000), (LEN, 1), (LEN + 5_000_000, 100)]
        {
            let mut buffer = target.buffer(session, len);
            let error = session.read(&subject.file, offset as u64, &mut buffer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ShortRead, "{error:?}");
        }
    });
}

#[test]
fn nothing_is_moved_for_an_empty_range() {
    each(|session, subject, target| {
        let mut buffer = target.buffer(session, 0);
        assert_eq!(session.read(&subject.file, 10, &mut buffer).unwrap().bytes(), 0);
        assert_eq!(session.write(&subject.file, 10, &buffer).unwrap().bytes(), 0);
        assert!((subject.outside)() == pattern(KEY, 0, LEN));
    });
}

#[test]
fn a_batch_gives_each_piece_its_own_result() {
    each(|session, subject, target| {
        let mut random = Random(3);
        let mut pieces = Vec::new();
        let mut at = 0;
        for index in 0..times(700) {
            let len = if index % 50 == 0 { 300_000 } else { random.below(9000) as usize };
            let offset = if index % 100 == 99 { LEN as u64 - 1 } else { random.below((LEN - len) as u64) };
            pieces.push(ReadPiece { offset, range: at..at + len });
            at += len + random.below(3) as usize;
        }
        let buffer = target.buffer(session, at);
        let outcome = session.read_batch(&subject.file, &pieces, buffer).unwrap().wait();
        let bytes = outcome.buffer.to_vec().unwrap();
        assert_eq!(outcome.entries.len(), pieces.len());
        for (piece, result) in pieces.iter().zip(&outcome.entries) {
            let len = piece.range.len();
            if piece.offset + len as u64 > LEN as u64 {
                assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::ShortRead);
            } else {
                assert_eq!(*result.as_ref().unwrap(), len as u64);
                assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, len));
            }
        }
    });
}

#[test]
fn many_tickets_in_flight_resolve_from_any_thread() {
    each(|session, subject, target| {
        let len = 40_000;
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let tickets: Vec<_> = (0..times(20))
                        .map(|index| {
                            let offset = (thread * times(20) + index) * 30_011;
                            let buffer = target.buffer(session, len);
                            (offset, session.submit_read(&subject.file, offset, buffer).unwrap())
                        })
                        .collect();
                    for (offset, ticket) in tickets {
                        let (_, buffer) = ticket.wait().into_result().unwrap();
                        assert!(buffer.to_vec().unwrap() == pattern(KEY, offset, len));
                    }
                });
            }
        });
    });
}

#[test]
fn the_receipt_tells_the_way_of_the_bytes() {
    let session = session_with_bar(config(IoBackend::Auto, CachePolicy::Auto));
    for target in targets().iter().copied() {
        for subject in subjects() {
            prepare(&session, &subject, target);
            let mut buffer = target.buffer(&session, 2 << 20);
            let moved = session.read(&subject.file, 0, &mut buffer).unwrap().moved;
            let all = 2 << 20;
            if engine(&session, &subject, target) == EngineKind::P2p {
                assert_eq!((moved[Way::Drive], moved.total()), (2 << 20, 2 << 20));
                continue;
            }
            if engine(&session, &subject, target) == EngineKind::Placed {
                assert_eq!((moved[Way::Server], moved.total()), (2 << 20, 2 << 20));
                continue;
            }
            if subject.name == "mount" {
                // Which way is faster turns out as it may.
                assert_eq!(moved.total(), all);
                continue;
            }
            let (cached, direct, requested) = match subject.name {
                "cold file" if subject.file.alignment().is_some() => (0, all, 0),
                "cold file" => {
                    println!("skipped: no O_DIRECT here: {:?}", subject.file.direct_refused());
                    continue;
                }
                "requests" | "parts" | "nfs" | "nfs by rdma" | "server" => (0, 0, all),
                _ => (all, 0, 0),
            };
            assert_eq!(
                (moved[Way::Cached], moved[Way::Direct], moved[Way::Requested]),
                (cached, direct, requested),
                "{}",
                subject.name
            );
        }
    }
}

#[test]
fn a_future_resolves() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    each(|session, subject, target| {
        let buffer = target.buffer(session, 1_000_000);
        let mut ticket = pin!(session.submit_read(&subject.file, 17, buffer).unwrap());
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let outcome = loop {
            match ticket.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => std::thread::park_timeout(Duration::from_secs(20)),
            }
        };
        assert!(outcome.buffer.to_vec().unwrap() == pattern(KEY, 17, 1_000_000));
    });
}
