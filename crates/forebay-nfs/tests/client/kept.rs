//! Clients are kept for some seconds behind their last file: the next one that is opened has their connections and their session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Placing, Server};
use fake_verbs::Fake;
use forebay_error::ErrorKind;
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, RdmaOptions, open};

use crate::alone::{is_alone, this_test};

const VERSIONS: [&str; 3] = ["3", "4.0", "4.1"];
/// The program that a test starts opens this.
const URL: &str = "FOREBAY_NFS_TEST_URL";
fn started() -> Server {
    let server = Server::start();
    server.put("/export/file", vec![7; 1000]);
    server
}

fn kept(keep: Duration) -> NfsOptions {
    NfsOptions { connections: 1, low_ports: false, keep, ..NfsOptions::default() }
}

fn opened(server: &Server, version: &str, options: &NfsOptions) -> NfsFile {
    open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), options).unwrap()
}

fn read(file: &NfsFile) {
    let mut place = [0; 1000];
    assert_eq!(file.read_at(&mut place, 0).unwrap(), 1000);
    assert!(place == [7; 1000]);
}

/// Waits until the server has neither sessions nor clients.
fn assert_ended(server: &Server) {
    let began = Instant::now();
    while server.sessions() != (0, 0) {
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", server.sessions());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn files_that_are_opened_one_after_the_other_share_connections_and_session() {
    for version in VERSIONS {
        let server = started();
        for _ in 0..400 {
            read(&opened(&server, version, &kept(Duration::from_mins(1))));
        }
        // Mountd's are a question's own.
        let (own, mountd) = (2, if version == "3" { 400 } else { 0 });
        assert_eq!(server.connections(), own + mountd, "{version}");
        let sessions = usize::from(version == "4.1");
        assert_eq!((server.sessions(), server.count(Asked::End)), ((sessions, sessions), 0));
        // With other options it is another one.
        read(&opened(&server, version, &NfsOptions { depth: 3, ..kept(Duration::from_mins(1)) }));
        assert_eq!(server.connections(), 2 * own + mountd + mountd / 400, "{version}");
    }
}

#[test]
fn files_that_are_looked_for_in_vain_share_them_too() {
    for version in VERSIONS {
        let server = started();
        let url = NfsUrl::parse(&server.url("/export/none", version)).unwrap();
        for _ in 0..20 {
            assert_eq!(open(&url, &kept(Duration::from_mins(1))).unwrap_err().kind(), ErrorKind::NotFound);
        }
        read(&opened(&server, version, &kept(Duration::from_mins(1))));
        // Version 3 looks twice.
        assert_eq!(server.connections(), 2 + if version == "3" { 41 } else { 0 }, "{version}");
    }
}

#[test]
fn kept_clients_end_after_their_time() {
    if !is_alone() {
        return;
    }
    let (keep, pause) = (Duration::from_millis(300), Duration::from_millis(200));
    let server = started();
    // Each file prolongs it.
    for _ in 0..4 {
        read(&opened(&server, "4.1", &kept(keep)));
        std::thread::sleep(pause);
    }
    assert_eq!((server.sessions(), server.connections()), ((1, 1), 2));
    let began = Instant::now();
    assert_ended(&server);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // And one that is open holds it.
    let file = opened(&server, "4.1", &kept(keep));
    std::thread::sleep(2 * keep);
    read(&file);
    assert_eq!(server.sessions(), (1, 1));
    drop(file);
    assert_ended(&server);
}

#[test]
fn no_more_than_eight_clients_are_kept() {
    if !is_alone() {
        return;
    }
    let servers: Vec<_> = (0..12).map(|_| started()).collect();
    for server in &servers {
        opened(server, "4.1", &kept(Duration::from_mins(1)));
    }
    servers[..4].iter().for_each(assert_ended);
    assert!(servers[4..].iter().all(|server| server.sessions() == (1, 1)));
}

/// Servers write down on stable storage which clients they have, by a program of their own: it takes long.
#[test]
fn the_end_of_a_session_is_not_waited_for() {
    for keep in [Duration::from_mins(1), Duration::ZERO] {
        let server = started();
        server.faults(|seen| (seen.asked == Asked::End).then(|| Fault::Late(Duration::from_millis(100))));
        let began = Instant::now();
        for _ in 0..50 {
            opened(&server, "4.1", &kept(keep));
        }
        assert!(began.elapsed() < Duration::from_secs(2), "{keep:?} {:?}", began.elapsed());
    }
}

/// What a server takes may be more, or less, when a file is opened anew.
#[test]
fn a_server_that_takes_other_calls_is_not_the_one_that_was_kept() {
    for version in VERSIONS {
        let server = started();
        for bytes in [1 << 20, 1 << 16, 1 << 18] {
            server.limit(bytes);
            let file = opened(&server, version, &kept(Duration::from_mins(1)));
            assert_eq!(u64::from(file.client().limits().read), bytes, "{version}");
            read(&file);
        }
    }
}

#[test]
fn a_server_that_has_forgotten_the_session_is_asked_for_another_one() {
    let server = started();
    for _ in 0..3 {
        read(&opened(&server, "4.1", &kept(Duration::from_mins(1))));
        server.restart();
    }
}

/// A child's are its own: those of its parent it neither uses nor ends.
#[test]
fn a_forked_child_has_none_of_its_parents() {
    if !is_alone() {
        return;
    }
    let server = started();
    let options = kept(Duration::from_mins(1));
    read(&opened(&server, "4.1", &options));
    let (before, url) = (server.connections(), NfsUrl::parse(&server.url("/export/file", "4.1")).unwrap());
    // SAFETY: the child opens and reads a file, and ends by the functions for that.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let read = open(&url, &options).and_then(|file| file.read_at(&mut [0; 1000], 0));
            libc::exit(i32::from(read.ok() != Some(1000)));
        }
        let mut status = 0;
        assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
    }
    assert_eq!(server.connections(), before + 2);
    // The child has ended its own.
    assert_eq!(server.sessions(), (1, 1));
    read(&opened(&server, "4.1", &options));
    assert_eq!(server.connections(), before + 2);
}

#[test]
fn what_is_kept_ends_in_order_with_the_process() {
    if let Some(url) = std::env::var_os(URL) {
        let url = NfsUrl::parse(url.to_str().unwrap()).unwrap();
        return read(&open(&url, &kept(Duration::from_mins(1))).unwrap());
    }
    let server = started();
    let program = || {
        assert!(this_test().env(URL, server.url("/export/file", "4.1")).output().unwrap().status.success());
    };
    let began = Instant::now();
    program();
    assert_eq!((server.sessions(), server.count(Asked::End)), ((0, 0), 1));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // One that does not answer holds it up for a moment.
    server.faults(|seen| (seen.asked == Asked::End).then_some(Fault::NoReply));
    let began = Instant::now();
    program();
    assert_eq!(server.count(Asked::End), 2);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Of RDMA the session is kept, and no connection: these have memory locked.
#[test]
fn connections_by_rdma_are_not_kept() {
    if !is_alone() {
        return;
    }
    // Each connection has a thread.
    let has_connections = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let mut names =
            threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.any(|name| name.starts_with("forebay-nfs-"))
    };
    let (fake, server) = (Fake::new(), Arc::new(started()));
    let _placing = Placing::start(&fake, server.clone());
    let rdma = Some(RdmaOptions::by(Arc::new(fake.clone()), Placing::address()));
    let options = NfsOptions { rdma, ..kept(Duration::from_mins(1)) };
    for _ in 0..20 {
        read(&opened(&server, "4.1", &options));
        let began = Instant::now();
        while has_connections() {
            assert!(began.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!((server.sessions(), server.count(Asked::End)), ((1, 1), 0));
    // Over TCP, for all that carries no bytes.
    assert_eq!(server.connections(), 1);
}
