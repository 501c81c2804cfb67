//! Waiting for a server ends when a program is to end. It holds for a whole process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Placing, Server};
use fake_verbs::{Fake, Fault as Cut, Side, What};
use forebay_error::{Error, ErrorKind};
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, RdmaOptions, folder, make, open};
use forebay_remote::stop::stop_waiting;
use forebay_verbs::{Fabric, Kind};

use crate::alone::is_alone;

const LEN: usize = 3 << 20;
/// Far longer than it may take.
const LONG: Duration = Duration::from_secs(20);
/// Room for one call's memory, and that of three connections.
const ROOM_FOR_ONE: u64 = 3 << 19;

/// Has waiting end a moment after `wait` has begun.
fn stopped<T>(what: &str, wait: impl FnOnce() -> Result<T, Error>) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            stop_waiting(true);
        });
        let began = Instant::now();
        let error = wait().err().unwrap();
        let took = began.elapsed();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{what} {error:?}");
        assert!(took > Duration::from_millis(250) && took < Duration::from_millis(900), "{what} {took:?}");
        assert!(error.hints().is_empty(), "{what} {error:?}");
    });
    stop_waiting(false);
}

fn read(file: &NfsFile) -> Result<usize, Error> {
    file.read_at(&mut vec![0; LEN], 0)
}

#[test]
fn what_waits_ends_when_it_is_to_stop() {
    if !is_alone() {
        return;
    }
    let (fake, server) = (Fake::new(), Arc::new(Server::start()));
    server.put("/export/file", vec![7; LEN]);
    let url = NfsUrl::parse(&server.url("/export/file", "3")).unwrap();
    let by = |to: &str| Some(RdmaOptions::by(Arc::new(fake.clone()), to.parse().unwrap()));
    let options = |rdma: &Option<RdmaOptions>| NfsOptions {
        connections: 1,
        connect: LONG,
        silence: LONG,
        rdma: rdma.clone(),
        ..NfsOptions::default()
    };
    // Nobody takes what knocks there.
    let _deaf = fake.listen("10.0.0.1:7".parse().unwrap()).unwrap();
    stopped("connecting", || open(&url, &options(&by("10.0.0.1:7"))));

    let _placing = Placing::start(&fake, server.clone());
    let rdma = by(&Placing::address().to_string());
    let holder = open(&url, &options(&rdma)).unwrap();
    // Other options make another client, which waits for the memory of the first.
    let other = NfsOptions { connections: 2, ..options(&rdma) };
    assert_eq!(read(&holder).unwrap(), LEN);
    // An answer is lost: the call keeps what it has locked.
    fake.limit_locked(ROOM_FOR_ONE);
    fake.inject(Cut::on(Side::Server, Kind::Send, What::Lose));
    std::thread::scope(|scope| {
        let before = fake.counts().written;
        let held = scope.spawn(|| holder.read_at(&mut vec![0; 1 << 20], 0));
        while fake.counts().written == before {
            std::thread::yield_now();
        }
        fake.limit_locked(0);
        stopped("locked memory", || {
            let opened = open(&url, &other);
            assert_eq!(held.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
            opened
        });
    });
    fake.limit_locked(u64::MAX);
    assert_eq!(read(&holder).unwrap(), LEN);

    // The thread that sends a call is not the one that waits for its reply.
    let by_tcp = open(&url, &options(&None)).unwrap();
    for (what, file) in [("idle, by RDMA", holder), ("idle, by TCP", by_tcp)] {
        assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
        std::thread::sleep(Duration::from_millis(800));
        server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::NoReply));
        stopped(what, || file.read_at(&mut [0; 100], 0));
        server.faults(|_| None);
    }

    let export = NfsUrl::parse(&server.url("/export", "3")).unwrap();
    server.faults(|seen| (seen.asked == Asked::Names).then(|| Fault::Names(vec![("a", 3 + seen.before)])));
    stopped("a listing without end", || folder::list(&export, &options(&None)));

    // The unfinished file is removed, though that needs a connection, and the answer comes late.
    const DELAY: u32 = 10008;
    let new = make(&url, &options(&None), 0o600).unwrap();
    assert_eq!(server.paths().len(), 2);
    server.faults(|seen| (seen.asked == Asked::Remove && seen.before == 0).then_some(Fault::Status(DELAY)));
    server.close_connections();
    stop_waiting(true);
    drop(new);
    stop_waiting(false);
    assert_eq!(server.paths(), ["/export/file"]);
}
