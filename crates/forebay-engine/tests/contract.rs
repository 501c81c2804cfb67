//! The contract: what every (source, engine, memory) must do alike. Each test runs over all combinations. A source of another crate
//! has a test of its own, by `forebay_contract`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "../examples/toy_engine.rs"]
mod toy_engine;
#[path = "../examples/toy_source.rs"]
mod toy_source;

use std::sync::Arc;
use std::time::Duration;

use common::{Scratch, Target, bar, chill, config, disk, pattern, session_with_bar};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_contract::{KEY, LEN};
use forebay_engine::source::MemorySource;
use forebay_engine::{EngineKind, File, Session, Source, Way};

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
        on_disk(&disk(), "warm file", false),
        on_disk(&disk(), "cold file", true),
        on_disk(std::path::Path::new("/dev/shm"), "tmpfs file", false),
        requests,
    ]
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

/// The engine of most of a large transfer.
fn engine(session: &Session, subject: &Subject, target: Target) -> EngineKind {
    if let Some(name) = &session.config().engine {
        return name.parse().unwrap_or(EngineKind::Registered("toy"));
    }
    let by_drive = subject.file.alignment().is_some() && session.config().cache != CachePolicy::Keep;
    match target {
        Target::Host => EngineKind::Host,
        Target::Bar if by_drive => EngineKind::P2p,
        Target::Bar | Target::Device => EngineKind::Staged,
    }
}

/// A check of the contract over one of the subjects.
fn with_case<T>(
    session: &Session,
    subject: &Subject,
    target: Target,
    check: impl FnOnce(&forebay_contract::Case<'_>) -> T,
) -> T {
    check(&forebay_contract::Case {
        session,
        file: &subject.file,
        outside: &*subject.outside,
        buffer: &|len| target.buffer(session, len),
        is_slow: bar::is_real(),
    })
}

fn each(test: impl Fn(&Session, &Subject, Target)) {
    for io in [IoBackend::Auto, IoBackend::Threads, IoBackend::Polled] {
        for cache in [CachePolicy::Auto, CachePolicy::Keep, CachePolicy::Bypass] {
            let session = session_with_bar(config(io, cache));
            // The polling thread matters to the kernel only: one memory is enough.
            for target in targets().iter().filter(|target| io != IoBackend::Polled || **target == Target::Bar)
            {
                for subject in subjects() {
                    if subject.is_cold {
                        chill(&subject.file);
                    }
                    println!("{io} {cache} {target:?} {}", subject.name);
                    test(&session, &subject, *target);
                }
            }
        }
    }
    if !bar::is_real() {
        fake_cufile::install().unwrap();
        forebay_libcufile::register();
        forebay_engine::register("toy", |_, _| Ok(Arc::new(toy_engine::ToyEngine))).unwrap();
        each_by("libcufile", &[Target::Device], &test);
        each_by("toy", &[Target::Host, Target::Device], &test);
    }
}

/// An engine that is asked for by name, over files with descriptors.
fn each_by(name: &str, targets: &[Target], test: &impl Fn(&Session, &Subject, Target)) {
    common::install_gpu();
    let config = common::config(IoBackend::Auto, CachePolicy::Auto);
    let session = Session::with_config(Config { engine: Some(name.to_owned()), ..config }).unwrap();
    for target in targets {
        for subject in subjects().into_iter().filter(|subject| subject.file.raw_fd().is_some()) {
            if subject.is_cold {
                chill(&subject.file);
            }
            println!("{name} {target:?} {}", subject.name);
            test(&session, &subject, *target);
        }
    }
}

#[test]
fn a_whole_file_comes_over_byte_for_byte() {
    each(|session, subject, target| {
        let receipt = with_case(session, subject, target, forebay_contract::whole_file);
        assert_eq!(receipt.engine(), engine(session, subject, target), "{receipt}");
        let placed = if receipt.engine() == EngineKind::P2p { LEN as u64 / 4096 * 4096 } else { 0 };
        assert_eq!(receipt.moved[Way::Drive], placed);
    });
}

#[test]
fn any_range_comes_over_and_nothing_beside_it_changes() {
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::any_range));
}

#[test]
fn writes_of_any_range_leave_the_rest_alone() {
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::writes));
}

#[test]
fn aligned_ranges_go_there_and_back() {
    each(|session, subject, target| {
        let receipts = with_case(session, subject, target, forebay_contract::aligned_ranges);
        if engine(session, subject, target) == EngineKind::P2p {
            for receipt in receipts.iter().flatten() {
                assert_eq!(receipt.moved[Way::Drive], receipt.bytes(), "{receipt}");
            }
        }
    });
}

#[test]
fn a_write_beyond_the_end_extends_the_source() {
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::write_beyond_end));
}

#[test]
fn a_read_beyond_the_end_is_a_short_read() {
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::read_beyond_end));
}

#[test]
fn nothing_is_moved_for_an_empty_range() {
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::empty_range));
}

#[test]
fn a_batch_gives_each_piece_its_own_result() {
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::batch));
}

#[test]
fn runs_that_lie_apart_come_without_what_is_between_them() {
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::strided));
}

#[test]
fn many_tickets_in_flight_resolve_from_any_thread() {
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::many_tickets));
}

#[test]
fn the_receipt_tells_the_way_of_the_bytes() {
    let session = session_with_bar(config(IoBackend::Auto, CachePolicy::Auto));
    for target in targets().iter().copied() {
        for subject in subjects() {
            if subject.is_cold {
                chill(&subject.file);
            }
            let mut buffer = target.buffer(&session, 2 << 20);
            let moved = session.read(&subject.file, 0, &mut buffer).unwrap().moved;
            let all = 2 << 20;
            if engine(&session, &subject, target) == EngineKind::P2p {
                assert_eq!((moved[Way::Drive], moved.total()), (2 << 20, 2 << 20));
                continue;
            }
            let (cached, direct, requested) = match subject.name {
                "cold file" if subject.file.alignment().is_some() => (0, all, 0),
                "cold file" => {
                    println!("skipped: no O_DIRECT here: {:?}", subject.file.direct_refused());
                    continue;
                }
                "requests" | "parts" => (0, 0, all),
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
    each(|session, subject, target| with_case(session, subject, target, forebay_contract::future));
}
