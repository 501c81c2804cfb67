//! Files of a server by their URL do what every source must.
//!
//! `FOREBAY_TEST_NFS=nfs://SERVER/FOLDER?version=3` runs it over files of a real server, by the transport of `FOREBAY_NFS`;
//! `FOREBAY_TEST_DIR` is that folder as the server itself has it: there the files are made, and what was written is looked at.
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
use forebay_contract::{Case, KEY, LEN, Subject, pattern, run_in, run_reads};
use forebay_engine::{EngineKind, File, Session};
use forebay_nfs::{NfsOptions, NfsSource, NfsUrl, RdmaOptions};

/// The contract in sessions of each kind, over each memory.
fn each(make: impl Fn(&Session, Target) -> Subject) {
    for io in [IoBackend::Auto, IoBackend::Threads, IoBackend::Polled] {
        for cache in [CachePolicy::Auto, CachePolicy::Keep, CachePolicy::Bypass] {
            let session = session_with_bar(config(io, cache));
            // Who polls matters to the kernel alone: one memory is enough.
            for target in
                Target::WITH_BAR.into_iter().filter(|at| io != IoBackend::Polled || *at == Target::Bar)
            {
                println!("{io} {cache} {target:?}");
                run_in(&session, &|len| target.buffer(&session, len), &|| make(&session, target));
            }
        }
    }
}

#[test]
fn files_of_a_server_keep_the_contract() {
    forebay_nfs::register();
    each(|_, _| match std::env::var("FOREBAY_TEST_NFS") {
        Ok(folder) => on_real_server(&folder),
        Err(_) => by_url(),
    });
}

/// A file of a server in the process.
fn by_url() -> Subject {
    let server = Server::start();
    server.put("/export/file", pattern(KEY, 0, LEN));
    let file = File::options().write(true).open(server.url("/export/file", "4.1")).unwrap();
    Subject { name: "nfs", file, outside: Box::new(move || server.durable("/export/file")) }
}

/// A file of the server that a variable names; seen from outside without it.
fn on_real_server(folder: &str) -> Subject {
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let (folder, options) = folder.split_once('?').unwrap_or((folder, ""));
    let name = scratch.path().file_name().unwrap().to_str().unwrap();
    let url = format!("{}/{name}?{options}", folder.trim_end_matches('/'));
    let file = File::options().write(true).open(&url).unwrap();
    Subject { name: "server", file, outside: Box::new(move || std::fs::read(scratch.path()).unwrap()) }
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
            let case = Case {
                session,
                file: &subject.file,
                outside: &*subject.outside,
                buffer: &|len| target.buffer(session, len),
                is_slow: true,
            };
            assert_eq!(forebay_contract::whole_file(&case).engine(), EngineKind::Placed);
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
        }
    }
}

fn on_mount(session: &Session, (nfs, target): (Nfs, Target)) -> Subject {
    let place = mounts::place();
    place.server.put(mounts::PATH, pattern(KEY, 0, LEN));
    std::fs::write(place.scratch.path(), pattern(KEY, 0, LEN)).unwrap();
    let (file, _facts) = place.open(place.facts(if nfs == Nfs::Rdma { "rdma" } else { "tcp" }));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        chill(&file);
        let receipt = session.read(&file, 0, &mut target.buffer(session, LEN)).unwrap();
        let is_beside = match nfs {
            Nfs::Rdma => receipt.engine() == EngineKind::Placed,
            _ => receipt.to_string().contains("beside the kernel's mount"),
        };
        if is_beside {
            break;
        }
        assert!(Instant::now() < until, "never: {receipt}");
    }
    chill(&file);
    let outside = move || {
        let kept = &place;
        kept.server.durable(mounts::PATH)
    };
    Subject { name: "mount", file, outside: Box::new(outside) }
}
