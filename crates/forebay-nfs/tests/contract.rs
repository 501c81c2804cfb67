//! Files of a server by their URL do what every source must.
//!
//! `FOREBAY_TEST_NFS=nfs://SERVER/FOLDER?version=3` runs it over files of a real server, by the transport of `FOREBAY_NFS`;
//! `FOREBAY_TEST_DIR` is that folder as the server itself has it: there the files are made, and written bytes are
//! checked.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay-engine/tests/common/mod.rs"]
mod common;
mod mounts;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    Scratch, Target, allow_dma_bufs, chill, config, disk, install_gpu, session_with_bar, try_placed,
};
use fake_nfs::{Placing, Server};
use forebay_config::{CachePolicy, Config, IoBackend, Nfs};
use forebay_contract::{Case, KEY, LEN, Subject, pattern, run_in, run_reads, whole_file};
use forebay_engine::{File, ReadPiece, Session, Way};
use forebay_error::ErrorKind;
use forebay_nfs::{NfsOptions, NfsSource, NfsUrl, RdmaOptions};

/// The contract in sessions of each kind, over each memory.
fn each(make: impl Fn(&Session, Target) -> Subject) {
    for io in [IoBackend::Auto, IoBackend::Threads, IoBackend::Polled] {
        for cache in [CachePolicy::Auto, CachePolicy::Keep, CachePolicy::Bypass] {
            let session = session_with_bar(config(io, cache));
            // The polling thread matters to the kernel only: one memory is enough.
            for target in
                Target::WITH_BAR.into_iter().filter(|at| io != IoBackend::Polled || *at == Target::Bar)
            {
                println!("{io} {cache} {target:?}");
                run_in(&session, &|len| target.buffer(&session, len), &|| make(&session, target));
            }
        }
    }
}

/// All bytes go that way.
fn goes_by(way: Way, session: &Session, target: Target, Subject { file, outside, is_slow, .. }: &Subject) {
    let buffer = &|len| target.buffer(session, len);
    let receipt = whole_file(&Case { session, file, outside, buffer, is_slow: *is_slow });
    assert_eq!(receipt.moved[way], LEN as u64, "{receipt}");
}

#[test]
fn files_of_a_server_keep_the_contract() {
    forebay_nfs::register();
    each(|session, target| {
        if let Ok(folder) = std::env::var("FOREBAY_TEST_NFS") {
            return on_real_server(&folder);
        }
        let subject = by_url();
        goes_by(Way::Requested, session, target, &subject);
        subject
    });
}

/// A file of a server in the process.
fn by_url() -> Subject {
    let server = Server::start();
    server.put("/export/file", pattern(KEY, 0, LEN));
    let file = File::options().write(true).open(server.url("/export/file", "4.1")).unwrap();
    let outside = Box::new(move || server.durable("/export/file"));
    Subject { name: "nfs", file, outside, is_slow: false }
}

/// A file of the server that a variable names; seen from outside without it.
fn on_real_server(folder: &str) -> Subject {
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let (folder, options) = folder.split_once('?').unwrap_or((folder, ""));
    let name = scratch.path().file_name().unwrap().to_str().unwrap();
    let url = format!("{}/{name}?{options}", folder.trim_end_matches('/'));
    let file = File::options().write(true).open(&url).unwrap();
    let outside = Box::new(move || std::fs::read(scratch.path()).unwrap());
    Subject { name: "server", file, outside, is_slow: true }
}

#[test]
fn files_whose_bytes_the_server_places_keep_the_contract() {
    if std::env::var_os("FOREBAY_TEST_NFS").is_some() {
        return;
    }
    each(|session, target| {
        let subject = by_rdma();
        if target == Target::Device {
            try_placed(session, &subject.file, 4096);
            goes_by(Way::Server, session, target, &subject);
        } else {
            goes_by(Way::Requested, session, target, &subject);
        }
        subject
    });
}

/// A file of a server in the process, over a fabric in the process.
fn by_rdma() -> Subject {
    let (fake, server) = (fake_verbs::Fake::new(), Arc::new(Server::start()));
    server.put("/export/file", pattern(KEY, 0, LEN));
    let placing = Placing::start(&fake, server.clone());
    let rdma = RdmaOptions::by(Arc::new(fake), Placing::address());
    let options = NfsOptions { connections: 2, rdma: Some(rdma), ..Default::default() };
    let url = NfsUrl::parse(&server.url("/export/file", "3")).unwrap();
    let source = NfsSource::new(forebay_nfs::open(&url, &options).unwrap(), (true, true));
    Subject {
        name: "nfs by rdma",
        file: File::from_source(Arc::new(source)).unwrap(),
        outside: Box::new(move || {
            let _kept = &placing;
            server.durable("/export/file")
        }),
        is_slow: false,
    }
}

/// They are read beside a mount of the kernel's: by TCP into both memories, by RDMA into the GPU's.
#[test]
fn files_of_mounts_keep_the_contract_of_reads() {
    if std::env::var_os("FOREBAY_TEST_NFS").is_some() {
        return;
    }
    install_gpu();
    allow_dma_bufs();
    for io in [IoBackend::Auto, IoBackend::Threads] {
        for (nfs, target) in
            [(Nfs::Tcp, Target::Host), (Nfs::Tcp, Target::Device), (Nfs::Rdma, Target::Device)]
        {
            let session = Session::with_config(Config { nfs, ..config(io, CachePolicy::Auto) }).unwrap();
            run_reads(&session, &|len| target.buffer(&session, len), &|| on_mount(&session, (nfs, target)));
            large_reads_go_beside_the_kernel(&session, (nfs, target));
        }
    }
}

fn on_mount(session: &Session, how: (Nfs, Target)) -> Subject {
    let (file, place) = mount(session, how);
    let outside = move || {
        let kept = &place;
        kept.server.durable(mounts::PATH)
    };
    Subject { name: "mount", file, outside: Box::new(outside), is_slow: false }
}

/// A file of a mount whose server was found, and the way tried.
fn mount(session: &Session, (nfs, target): (Nfs, Target)) -> (File, mounts::Place) {
    let place = mounts::place();
    place.server.put(mounts::PATH, pattern(KEY, 0, LEN));
    std::fs::write(place.scratch.path(), pattern(KEY, 0, LEN)).unwrap();
    let (file, _facts) = place.open(place.facts(if nfs == Nfs::Rdma { "rdma" } else { "tcp" }));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        chill(&file);
        let receipt = session.read(&file, 0, &mut target.buffer(session, LEN)).unwrap();
        if receipt.moved[beside(nfs)] == LEN as u64 {
            break;
        }
        assert!(Instant::now() < until, "never: {receipt}");
    }
    chill(&file);
    (file, place)
}

/// The way past the kernel.
fn beside(nfs: Nfs) -> Way {
    if nfs == Nfs::Rdma { Way::Server } else { Way::Requested }
}

/// Small transfers are the kernel's, the contract's tickets among them. Here the kernel's file has other bytes.
fn large_reads_go_beside_the_kernel(session: &Session, (nfs, target): (Nfs, Target)) {
    let (file, place) = mount(session, (nfs, target));
    std::fs::write(place.scratch.path(), pattern(KEY + 1, 0, LEN)).unwrap();
    chill(&file);
    let len = 1_200_000;
    let submit = |at: usize| {
        let offset = at as u64 * 450_011;
        (offset, session.submit_read(&file, offset, target.buffer(session, len)).unwrap())
    };
    let tickets: Vec<_> = (0..4).map(submit).collect();
    for (offset, ticket) in tickets {
        let (receipt, buffer) = ticket.wait().into_result().unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, offset, len), "{receipt}");
        assert_eq!(receipt.moved[beside(nfs)], len as u64, "{receipt}");
    }
    // The last piece ends 100,000 bytes past the end.
    let (last, short) = ((LEN - len) as u64, len + 100_000);
    let piece = |offset, start, len| ReadPiece { offset, range: start..start + len };
    let pieces = [piece(5, 0, len), piece(777_777, len + 3, len), piece(last, 2 * len + 10, short)];
    let buffer = target.buffer(session, 2 * len + 10 + short);
    let outcome = session.read_batch(&file, &pieces, buffer).unwrap().wait();
    let bytes = outcome.buffer.to_vec().unwrap();
    for piece in &pieces {
        let got = &bytes[piece.range.start..piece.range.start + len];
        assert!(got == pattern(KEY, piece.offset, len), "{}", outcome.receipt);
    }
    assert_eq!(outcome.receipt.moved[beside(nfs)], 3 * len as u64, "{}", outcome.receipt);
    let [Ok(_), Ok(_), Err(error)] = &outcome.entries[..] else { panic!("{:?}", outcome.entries) };
    assert_eq!(error.kind(), ErrorKind::ShortRead, "{error:?}");
}
