//! Questions of `check` to servers of NFS mounts: over a server in the process, and a fabric in it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Placing, Server};
use fake_verbs::Fake;
use forebay_doctor::exercise::{Answer, Hinted, ServerAnswers};
use forebay_doctor::server::{ServerRoutes, ask, ask_of_file};
use forebay_nfs::handle::NfsVersion;
use forebay_nfs::mount::{KernelMount, KernelView, MountTarget, TargetName};
use forebay_nfs::{NfsOptions, NfsUrl, RdmaOptions, open};
use forebay_verbs::Why;

fn server() -> Arc<Server> {
    let server = Arc::new(Server::start());
    server.put("/export/file", vec![7; 1000]);
    server
}

/// The export has no `insecure`.
fn refuse_high_ports(server: &Arc<Server>) {
    let of = Arc::downgrade(server);
    server.faults(move |seen| {
        let port = of.upgrade()?.ports()[seen.connection as usize];
        (port >= 1024 && seen.asked != Asked::List).then_some(Fault::Status(1))
    });
}

/// A file of the server, as the kernel has it on a mount.
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

/// No RDMA device here; the server's portmapper.
fn without_device(server: &Server) -> ServerRoutes {
    ServerRoutes { portmap: server.address().port(), rdma: Err(Why::NoDevice.error("no RDMA device")) }
}

fn told(mounted: &MountTarget, routes: &ServerRoutes) -> ServerAnswers {
    let answers = ask(mounted, "/mnt", Answer::Yes(Hinted::default()), routes);
    assert_eq!((answers.mount_point.as_str(), answers.server.as_deref()), ("/mnt", Some("127.0.0.1")));
    answers
}

fn text(answer: &Answer) -> &str {
    &answer.said().text
}

#[test]
fn an_export_with_insecure_takes_any_port_and_one_without_it_low_ones() {
    let server = server();
    let (mounted, routes) = (mounted(&server), without_device(&server));
    let before = server.ports().len();
    let open = told(&mounted, &routes).any_port;
    assert!(matches!(open, Answer::Yes(_)), "{open:?}");
    assert!(server.ports()[before..].iter().all(|port| *port >= 1024), "asked from a low port");
    refuse_high_ports(&server);
    let closed = told(&mounted, &routes).any_port;
    // SAFETY: no pointers are passed.
    if unsafe { libc::geteuid() } == 0 {
        assert!(matches!(closed, Answer::No(_)), "{closed:?}");
        assert!(text(&closed).contains("below 1024 only"), "{closed:?}");
    } else {
        // It looks like a server that refuses this user.
        assert!(matches!(closed, Answer::Unknown(_)), "{closed:?}");
    }
    assert!(closed.said().fix.as_deref().unwrap().contains("insecure"), "{closed:?}");
}

#[test]
fn without_a_device_the_portmapper_is_asked_and_what_it_does_not_list_proves_nothing() {
    let server = server();
    let (mounted, routes) = (mounted(&server), without_device(&server));
    let unlisted = told(&mounted, &routes).rdma;
    assert!(matches!(unlisted, Answer::Unknown(_)), "{unlisted:?}");
    assert!(text(&unlisted).contains("proves nothing") && text(&unlisted).contains("no RDMA device"));
    assert!(unlisted.said().fix.as_deref().unwrap().contains("portlist"));
    server.list_rdma(20049);
    let listed = told(&mounted, &routes).rdma;
    assert!(matches!(listed, Answer::Yes(_)) && text(&listed).contains("port 20049"), "{listed:?}");
    assert_eq!(server.count(Asked::List), 2);
}

#[test]
fn a_list_that_lies_is_no_answer() {
    let server = server();
    let (mounted, routes) = (mounted(&server), without_device(&server));
    server.list_rdma(20049);
    server.faults(|seen| (seen.asked == Asked::List).then_some(Fault::Truncated(60)));
    let said = told(&mounted, &routes).rdma;
    assert!(matches!(said, Answer::Unknown(_)), "{said:?}");
}

#[test]
fn by_a_device_the_server_is_connected_to() {
    let (server, fabric) = (server(), Fake::new());
    let mounted = mounted(&server);
    let rdma = RdmaOptions::by(Arc::new(fabric.clone()), Placing::address());
    let routes = ServerRoutes { rdma: Ok(rdma), ..without_device(&server) };
    let refused = told(&mounted, &routes).rdma;
    assert!(matches!(refused, Answer::No(_)) && text(&refused).contains("refuses"), "{refused:?}");
    assert!(refused.said().fix.as_deref().unwrap().contains("echo rdma 20049"), "{refused:?}");
    let _placing = Placing::start(&fabric, server.clone());
    let taken = told(&mounted, &routes).rdma;
    assert!(matches!(taken, Answer::Yes(_)) && text(&taken).contains("takes connections"), "{taken:?}");
    assert_eq!(server.count(Asked::List), 0, "a successful connection needs no list");
}

#[test]
fn a_mount_over_rdma_shows_that_the_server_takes_it() {
    let server = server();
    let mut mounted = mounted(&server);
    (mounted.mount.transport, mounted.mount.port) = ("rdma".to_owned(), 20049);
    let said = told(&mounted, &without_device(&server)).rdma;
    assert!(matches!(said, Answer::Yes(_)) && text(&said).contains("mounted so"), "{said:?}");
    assert_eq!(server.count(Asked::List), 0);
}

/// Two questions of two seconds.
#[test]
fn a_server_that_takes_connections_and_says_nothing_holds_nothing_up() {
    let server = server();
    let mut mounted = mounted(&server);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    mounted.mount.tcp_port = silent.local_addr().unwrap().port();
    let routes = ServerRoutes { portmap: mounted.mount.tcp_port, ..without_device(&server) };
    let began = Instant::now();
    let said = told(&mounted, &routes);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for answer in [&said.any_port, &said.rdma] {
        assert!(matches!(answer, Answer::Unknown(_)) && text(answer).contains("not answer"), "{answer:?}");
        assert!(answer.said().fix.is_some());
    }
}

#[test]
fn what_is_not_asked_has_its_reason() {
    let server = server();
    let file = tempfile::tempfile().unwrap();
    let routes = without_device(&server);
    let connections = server.connections();
    let local = ask_of_file(file.as_fd(), "/mnt", &routes, None);
    assert!(text(&local.any_port).starts_with("its server was not asked: "), "{local:?}");
    assert!(text(&local.any_port).contains("not NFS") && local.server.is_none(), "{local:?}");
    let off = ask_of_file(file.as_fd(), "/mnt", &routes, Some(Hinted::new("FOREBAY_NFS=off forbids it")));
    assert!(text(&off.rdma).ends_with("FOREBAY_NFS=off forbids it"), "{off:?}");
    assert_eq!(server.connections(), connections);
}
