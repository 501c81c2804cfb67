//! Files of the kernel's mounts: which ports of this side are used, how many connections, how long a server is waited for.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Server};
use forebay_error::{ErrorKind, Result};
use forebay_nfs::handle::NfsVersion;
use forebay_nfs::mount::{KernelMount, KernelView, MountTarget, TargetName};
use forebay_nfs::of_mount;
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, open};
use forebay_source::HostRange;

const LEN: usize = 8 << 20;

/// A server that can be set to refuse calls from ports that any program may have.
fn server() -> Arc<Server> {
    let server = Arc::new(Server::start());
    server.put("/export/file", vec![7; LEN]);
    server
}

fn refuse_high_ports(server: &Arc<Server>) {
    let of = Arc::downgrade(server);
    server.faults(move |seen| {
        let port = of.upgrade()?.ports()[seen.connection as usize];
        (port >= 1024).then_some(Fault::Status(1))
    });
}

fn mounted(server: &Server) -> MountTarget {
    let url = NfsUrl::parse(&server.url("/export/file", "3")).unwrap();
    let file = open(&url, &NfsOptions { connections: 1, ..NfsOptions::default() }).unwrap();
    let (told, at) = (file.attributes().unwrap(), server.address());
    let mount = KernelMount {
        server: "server".to_owned(),
        path: "/export".to_owned(),
        place: "/mnt".to_owned(),
        version: NfsVersion::V3,
        address: at.ip(),
        port: at.port(),
        tcp_port: at.port(),
        is_guess: false,
        mount_port: None,
        transport: "tcp".to_owned(),
        sizes: (1 << 20, 1 << 20),
        is_read_only: false,
    };
    let seen = KernelView {
        inode: told.file_id,
        size: told.size,
        modified: (told.modified.0 as i64, told.modified.1.into()),
    };
    MountTarget {
        mount,
        named: TargetName::Handle(*file.handle()),
        file_system: Some(told.file_system),
        seen,
    }
}

fn options() -> NfsOptions {
    let second = Duration::from_secs(1);
    let keep = Duration::ZERO;
    NfsOptions { low_ports: false, silence: second, deadline: second / 2, keep, ..NfsOptions::default() }
}

fn start(file: &NfsFile, place: &mut [u8]) -> Receiver<Result<usize>> {
    let (tell, told) = sync_channel(1);
    let state = file.opened().state();
    let memory = HostRange::of_mut(place);
    // SAFETY: the tests wait for the answer before the place goes, and use it not before.
    unsafe { file.start_in(state, 0, memory, Box::new(move |result| drop(tell.send(result)))) };
    told
}

#[test]
fn low_ports_are_taken_where_the_export_asks_for_them() {
    // Elsewhere other programs may have all of them.
    if !crate::network::alone(low_ports_are_taken) {
        low_ports_are_taken();
    }
}

fn low_ports_are_taken() {
    let server = server();
    let mounted = mounted(&server);
    let before = server.ports().len();
    let file = of_mount(&mounted, &options()).unwrap();
    assert_eq!(start(&file, &mut vec![0; LEN]).recv().unwrap().unwrap(), LEN);
    let ports = server.ports().split_off(before);
    assert!(!ports.is_empty() && ports.iter().all(|port| *port >= 1024), "{ports:?}");
    drop(file);
    refuse_high_ports(&server);
    let before = server.ports().len();
    let found = of_mount(&mounted, &options());
    let is_refused = |port| {
        let refused = TcpListener::bind(("127.0.0.1", port)).map_err(|error| error.kind());
        refused.err() == Some(std::io::ErrorKind::PermissionDenied)
    };
    if (900..910).all(is_refused) {
        assert_eq!(found.unwrap_err().kind(), ErrorKind::PermissionDenied);
        println!("skipped: this process may have no port below 1024");
        return;
    }
    let file = found.unwrap();
    assert_eq!(start(&file, &mut vec![0; LEN]).recv().unwrap().unwrap(), LEN);
    // The next file of the server asks no more.
    drop(of_mount(&mounted, &options()).unwrap());
    let ports = server.ports().split_off(before);
    assert_eq!(ports.iter().filter(|port| **port >= 1024).count(), 1, "{ports:?}");
}

/// Connections belong to the network namespace of the thread that makes them: at the same address there may be another server.
#[test]
fn threads_of_another_network_namespace_make_no_connection() {
    for is_mounted in [false, true] {
        let server = server();
        let file = if is_mounted {
            of_mount(&mounted(&server), &options()).unwrap()
        } else {
            open(&NfsUrl::parse(&server.url("/export/file", "3")).unwrap(), &options()).unwrap()
        };
        let before = server.connections();
        let elsewhere = std::thread::scope(|scope| {
            let read = || {
                // SAFETY: takes no pointers; of this thread alone.
                let is_there = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
                let began = Instant::now();
                is_there.then(|| (file.read_at(&mut [0; 9], 0), began.elapsed()))
            };
            scope.spawn(read).join().unwrap()
        });
        let Some((elsewhere, took)) = elsewhere else {
            println!("skipped: this process may make no network namespace");
            return;
        };
        let error = elsewhere.unwrap_err();
        assert!(error.message().contains("another network namespace"), "{error:?}");
        assert!(took < Duration::from_millis(400), "{took:?}");
        assert_eq!(server.connections(), before);
        // The thread that it was opened in has its connections all the same.
        assert_eq!(file.read_at(&mut [0; 9], 0).unwrap(), 9);
    }
}

#[test]
fn a_server_is_waited_for_longer_than_its_requests_take_of_late() {
    let server = server();
    let file = of_mount(&mounted(&server), &NfsOptions { connections: 1, ..options() }).unwrap();
    let silent = || {
        server.faults(|_| Some(Fault::NoReply));
        // The silence is counted from the first call that gets no reply, which is the question.
        let begun = Instant::now();
        // A question that is given up ends no connection of reads.
        let asked = file.clone();
        let asked = std::thread::spawn(move || asked.attributes().unwrap_err());
        let mut places = vec![vec![0; LEN]; 4];
        let told: Vec<_> = places.iter_mut().map(|place| start(&file, place)).collect();
        let error = told[0].recv().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let first = begun.elapsed();
        // A call that waits for room waits for the server, too, unless it gets an error.
        file.client().fail_waiting(&error);
        for told in &told[1..] {
            told.recv().unwrap().unwrap_err();
        }
        assert!(begun.elapsed() < first * 5 / 2, "{first:?} {:?}", begun.elapsed());
        asked.join().unwrap();
        server.faults(|_| None);
        file.attributes().unwrap();
        first
    };
    let first = silent();
    assert!((Duration::from_millis(900)..Duration::from_secs(2)).contains(&first), "{first:?}");
    for _ in 0..20 {
        file.client().record_duration(Duration::from_secs(1));
    }
    let later = silent();
    assert!((Duration::from_millis(1900)..Duration::from_secs(4)).contains(&later), "{later:?}");
    assert_eq!(file.client().traffic().resent, 0);
}

#[test]
fn a_slow_server_that_answers_is_not_silent() {
    let server = server();
    let file = of_mount(&mounted(&server), &NfsOptions { connections: 1, ..options() }).unwrap();
    // 8 calls are under way: each waits for those before it, longer than twice the silence.
    let late = Duration::from_millis(350);
    server.faults(move |seen| (seen.asked == Asked::Read).then_some(Fault::Late(late)));
    let begun = Instant::now();
    assert_eq!(start(&file, &mut vec![0; LEN]).recv().unwrap().unwrap(), LEN);
    assert!(begun.elapsed() > 2 * options().silence, "the replies were not late: {:?}", begun.elapsed());
}
