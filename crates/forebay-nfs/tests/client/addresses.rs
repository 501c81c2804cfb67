//! Further addresses of a server: bytes go to those alone that were shown to be its own.

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Placing, Server};
use fake_verbs::{Fake, FakeDevice};
use forebay_nfs::{LeftOutAddress, NfsFile, NfsOptions, NfsUrl, RdmaOptions, open};

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];
/// As many calls as connections.
const LEN: usize = 6 << 20;

fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

fn at(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

/// A server at 127.0.0.1 and 127.0.0.2.
fn server() -> Server {
    let server = (0..20).find_map(|_| {
        let server = Server::start();
        server.listen_at(at(2)).is_ok().then_some(server)
    });
    let server = server.unwrap();
    server.put("/export/file", pattern(LEN));
    // Each reply is late: all connections get work.
    server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Late(Duration::from_millis(30))));
    server
}

/// Another one, on the same port of another address.
fn another(server: &Server, last: u8) -> Server {
    Server::start_on(TcpListener::bind((at(last), server.address().port())).unwrap())
}

fn options(further: &[&str]) -> NfsOptions {
    let further = further.iter().map(|name| (*name).to_owned()).collect();
    NfsOptions { connections: 6, depth: 2, further, ..NfsOptions::default() }
}

fn opened(server: &Server, version: &str, further: &[&str]) -> NfsFile {
    opened_as(server, "/export/file", version, &options(further))
}

fn opened_as(server: &Server, path: &str, version: &str, options: &NfsOptions) -> NfsFile {
    open(&NfsUrl::parse(&server.url(path, version)).unwrap(), options).unwrap()
}

/// Whether it comes true within half a minute: machines that test are busy.
fn within(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Reads by all connections.
fn read(file: &NfsFile) -> Vec<u8> {
    let mut bytes = vec![0xAA; LEN];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), LEN);
    bytes
}

fn told(left_out: &LeftOutAddress) -> String {
    format!("{} {}", left_out.address, left_out.reason)
}

/// Connections that carry bytes: one more goes to the first address for all else, one to each further address to look at it.
#[test]
fn connections_go_to_all_addresses_in_turn() {
    for version in VERSIONS {
        let server = server();
        let file = opened(&server, version, &["127.0.0.2"]);
        assert_eq!((file.client().addresses_in_use(), file.client().left_out()), (2, vec![]), "{version}");
        let before = [server.connections_to(at(1)), server.connections_to(at(2))];
        assert!(read(&file) == pattern(LEN), "{version}");
        let made = [server.connections_to(at(1)) - before[0], server.connections_to(at(2)) - before[1]];
        assert_eq!((made, file.client().traffic().connections), ([3, 3], 6), "{version}");
        assert_eq!((server.wrong_slots(), file.client().traffic().resent), (0, 0), "{version}");
    }
}

#[test]
fn another_server_and_a_dead_address_are_left_out_and_the_rest_goes_on() {
    for version in VERSIONS {
        let server = server();
        let other = another(&server, 3);
        // The same handle there.
        other.put("/export/file", vec![0x55; LEN + 1]);
        let file = opened(&server, version, &["127.0.0.2", "127.0.0.3", "127.0.0.4", "no-such-name.invalid"]);
        let reasons: Vec<_> = file.client().left_out().iter().map(told).collect();
        assert_eq!(reasons.len(), 3, "{version}: {reasons:?}");
        for (reason, (name, words)) in reasons.iter().zip([
            (
                "127.0.0.3 ",
                if version < "4.1" { "in another state there" } else { "another server answers there" },
            ),
            ("127.0.0.4 ", "cannot connect to the server"),
            ("no-such-name.invalid ", "its name has no address"),
        ]) {
            assert!(reason.starts_with(name) && reason.contains(words), "{version}: {reason}");
        }
        assert_eq!(file.client().addresses_in_use(), 2, "{version}");
        assert!(read(&file) == pattern(LEN), "{version}");
        assert!(server.connections_to(at(2)) > 1, "{version}");
        assert_eq!(other.count(Asked::Read), 0, "{version}");
    }
}

/// Nothing in versions without sessions says who a server is: a file that differs in anything shows that it is another one.
#[test]
fn a_server_whose_file_is_in_another_state_is_left_out() {
    for (version, prepare) in [("3", 0), ("4.0", 0), ("3", 1), ("4.0", 1), ("3", 2), ("4.0", 2)] {
        let server = server();
        let other = another(&server, 3);
        match prepare {
            // Another size; another handle, so that this one is stale; written since.
            0 => other.put("/export/file", vec![0x55; LEN - 1]),
            1 => {
                other.put("/export/first", vec![1]);
                other.put("/export/file", vec![0x55; LEN]);
            }
            _ => {
                other.put("/export/file", vec![0x55; LEN]);
                let url = other.url("/export/file", version).replace("127.0.0.1", "127.0.0.3");
                let file = open(&NfsUrl::parse(&url).unwrap(), &options(&[])).unwrap();
                file.write_at(&[1], 0).unwrap();
            }
        }
        let file = opened(&server, version, &["127.0.0.3"]);
        assert_eq!(file.client().left_out().len(), 1, "{version} {prepare}");
        assert!(read(&file) == pattern(LEN), "{version} {prepare}");
        assert_eq!(other.count(Asked::Read), 0, "{version} {prepare}");
    }
}

/// Each file that is opened is looked at: an old copy of the server may have the first one.
#[test]
fn a_second_file_that_differs_leaves_the_address_out() {
    for version in ["3", "4.0"] {
        let server = server();
        let other = another(&server, 3);
        other.put("/export/file", pattern(LEN));
        let first = opened(&server, version, &["127.0.0.3"]);
        assert_eq!(first.client().addresses_in_use(), 2, "{version}");
        // By connections to both.
        assert!(read(&first) == pattern(LEN), "{version}");
        let before = other.count(Asked::Read);
        assert!(before > 0, "{version}");
        server.put("/export/second", pattern(LEN));
        other.put("/export/second", vec![0x55; LEN - 1]);
        let second = opened_as(&server, "/export/second", version, &options(&["127.0.0.3"]));
        assert_eq!(second.client().addresses_in_use(), 1, "{version}");
        assert!(read(&second) == pattern(LEN), "{version}");
        assert!(read(&first) == pattern(LEN), "{version}");
        assert_eq!(other.count(Asked::Read), before, "{version}");
    }
}

/// Calls sent there are sent again by other connections.
#[test]
fn an_address_that_is_left_out_ends_its_connections_while_a_file_is_read() {
    for version in ["3", "4.0"] {
        let server = server();
        let other = another(&server, 3);
        other.put("/export/file", pattern(LEN));
        // It takes calls, and answers none.
        other.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::NoReply));
        let first = opened(&server, version, &["127.0.0.3"]);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&first));
            assert!(within(|| other.count(Asked::Read) > 0), "{version}");
            server.put("/export/second", vec![1; 100]);
            let began = Instant::now();
            let _second = opened_as(&server, "/export/second", version, &options(&["127.0.0.3"]));
            assert!(reading.join().unwrap() == pattern(LEN), "{version}");
            // The server may be silent for a minute.
            assert!(began.elapsed() < Duration::from_secs(10), "{version}: {:?}", began.elapsed());
        });
        assert!(first.client().traffic().resent > 0, "{version}");
    }
}

/// A file that was opened while an address was left out is compared there before it returns; so are all that are open.
#[test]
fn an_address_does_not_return_on_another_file() {
    for version in ["3", "4.0"] {
        let server = server();
        server.put("/export/first", pattern(LEN));
        let options = NfsOptions { left_out: Duration::from_millis(200), ..options(&["127.0.0.3"]) };
        let first = opened_as(&server, "/export/file", version, &options);
        assert_eq!(first.client().addresses_in_use(), 1, "{version}");
        // Another one comes up that has the last file alone.
        server.put("/export/last", pattern(LEN));
        let last = opened_as(&server, "/export/last", version, &options);
        let other = another(&server, 3);
        other.put("/export/file", vec![0x55; LEN - 1]);
        other.put("/export/first", pattern(LEN));
        other.put("/export/last", pattern(LEN));
        let looked =
            || other.connections_to(at(3)) > 0 && told(&first.client().left_out()[0]).contains("there");
        let is_looked_at = within(|| {
            assert!(read(&last) == pattern(LEN), "{version}");
            looked()
        });
        assert!(is_looked_at, "{version}: {:?}", first.client().left_out());
        assert!(read(&first) == pattern(LEN), "{version}");
        assert_eq!((first.client().addresses_in_use(), other.count(Asked::Read)), (1, 0), "{version}");
        // A file that nobody has open any more proves nothing.
        drop(first);
        assert!(within(|| read(&last) == pattern(LEN) && last.client().addresses_in_use() == 2), "{version}");
    }
}

/// No connection need break for it.
#[test]
fn an_address_returns_while_others_are_read_and_gets_connections() {
    for version in VERSIONS {
        let server = Server::start();
        server.put("/export/file", pattern(LEN));
        server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Late(Duration::from_millis(30))));
        let options = NfsOptions { left_out: Duration::from_millis(200), ..options(&["127.0.0.2"]) };
        let file = opened_as(&server, "/export/file", version, &options);
        assert!(read(&file) == pattern(LEN), "{version}");
        assert_eq!(file.client().addresses_in_use(), 1, "{version}");
        server.listen_at(at(2)).unwrap();
        let used = || server.connections_to(at(2)) >= 4;
        let returns = within(|| read(&file) == pattern(LEN) && used());
        assert!(returns, "{version}: {:?}", file.client().left_out());
        assert_eq!((file.client().addresses_in_use(), file.client().traffic().resent), (2, 0), "{version}");
    }
}

/// RFC 8881 §2.10.5: sessions are shared where major and minor id are the same, and the client is known.
#[test]
fn an_address_that_shares_no_session_is_left_out_with_the_reason() {
    for version in ["4.1", "4.2"] {
        for (minor, words) in [(1, "another node of the server"), (0, "does not know th")] {
            let server = server();
            let other = another(&server, 3);
            other.own(&server.owner(), minor);
            other.put("/export/file", vec![0x55; LEN]);
            let file = opened(&server, version, &["127.0.0.3"]);
            let reason = told(&file.client().left_out()[0]);
            assert!(reason.contains(words), "{version} {minor}: {reason}");
            assert!(read(&file) == pattern(LEN), "{version} {minor}");
        }
    }
}

#[test]
fn an_address_that_takes_connections_and_says_nothing_is_left_out_soon() {
    for version in VERSIONS {
        let server = server();
        let _silent = TcpListener::bind((at(3), server.address().port())).unwrap();
        let began = Instant::now();
        let file = opened(&server, version, &["127.0.0.2", "127.0.0.3"]);
        assert!(began.elapsed() < Duration::from_secs(8), "{version}: {:?}", began.elapsed());
        let reason = told(&file.client().left_out()[0]);
        assert!(
            reason.starts_with("127.0.0.3 ") && reason.contains("does not answer"),
            "{version}: {reason}"
        );
        assert!(read(&file) == pattern(LEN), "{version}");
    }
}

/// What was under way there is asked for again by other addresses.
#[test]
fn an_address_that_goes_away_while_it_is_used_is_left_out() {
    for version in VERSIONS {
        let server = server();
        let file = opened(&server, version, &["127.0.0.2"]);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&file));
            std::thread::sleep(Duration::from_millis(50));
            server.leave(at(2));
            assert!(reading.join().unwrap() == pattern(LEN), "{version}");
        });
        assert!(read(&file) == pattern(LEN), "{version}");
        assert_eq!(file.client().addresses_in_use(), 1, "{version}");
        assert!(told(&file.client().left_out()[0]).starts_with("127.0.0.2 "), "{version}");
    }
}

/// Another server has the address by now: bytes of it are never taken, though it has the same handle.
#[test]
fn an_address_that_becomes_another_servers_is_left_out() {
    for version in VERSIONS {
        let server = server();
        let file = opened(&server, version, &["127.0.0.2"]);
        assert!(read(&file) == pattern(LEN), "{version}");
        server.leave(at(2));
        let other = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            TcpListener::bind((at(2), server.address().port())).ok().map(Server::start_on)
        });
        let other = other.unwrap();
        other.put("/export/file", vec![0x55; LEN - 1]);
        assert!(read(&file) == pattern(LEN), "{version}");
        assert!(read(&file) == pattern(LEN), "{version}");
        assert_eq!((file.client().addresses_in_use(), other.count(Asked::Read)), (1, 0), "{version}");
    }
}

/// A COMMIT is of the server that took the bytes, and who that is two addresses of versions without sessions do not say.
#[test]
fn writes_over_several_addresses_are_durable() {
    for version in VERSIONS {
        let server = server();
        let file = opened(&server, version, &["127.0.0.2"]);
        let new: Vec<_> = pattern(LEN).iter().map(|byte| !byte).collect();
        assert_eq!(file.write_at(&new, 0).unwrap(), LEN, "{version}");
        assert!(server.durable("/export/file") == new, "{version}");
        assert_eq!(server.count(Asked::Commit), u64::from(version >= "4.1"), "{version}");
    }
}

#[test]
fn a_restart_of_the_server_ends_well() {
    for version in VERSIONS {
        let server = server();
        let file = opened(&server, version, &["127.0.0.2"]);
        assert!(read(&file) == pattern(LEN), "{version}");
        for _ in 0..3 {
            server.restart();
            let before = server.connections_to(at(2));
            assert!(read(&file) == pattern(LEN), "{version}");
            assert!(read(&file) == pattern(LEN), "{version}");
            assert!(server.connections_to(at(2)) > before, "{version}");
            assert_eq!(file.client().left_out(), [], "{version}");
            assert_eq!(file.client().addresses_in_use(), 2, "{version}");
        }
    }
}

const VIPS: [[u8; 4]; 3] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]];

/// A fabric of two devices: one leads to the first address, the other to the second.
fn two_devices() -> Fake {
    let fake = Fake::with(vec![
        FakeDevice::new("fake0", [10, 0, 1, 1].into()),
        FakeDevice::new("fake1", [10, 0, 1, 2].into()),
    ]);
    fake.route(VIPS[0].into(), "fake0");
    fake.route(VIPS[1].into(), "fake1");
    fake
}

fn by_rdma(fake: &Fake, further: &[&str]) -> NfsOptions {
    let rdma = RdmaOptions::by(Arc::new(fake.clone()), (VIPS[0], 20049).into());
    let rdma = rdma.and_to(&[VIPS[1].into(), VIPS[2].into()]);
    NfsOptions { rdma: Some(rdma), ..options(further) }
}

/// A client of one NIC has memory that is registered with it, and no other one takes its place.
#[test]
fn a_client_of_one_nic_does_not_go_by_another() {
    for version in ["3", "4.1"] {
        let (server, fake) = (Arc::new(server()), two_devices());
        let at_vip = |vip: &[u8; 4]| Placing::start_at(&fake, server.clone(), (*vip, 20049).into());
        let _placing: Vec<_> = VIPS[..2].iter().map(at_vip).collect();
        let file = opened_as(&server, "/export/file", version, &by_rdma(&fake, &["127.0.0.2"]));
        let one = file.by_nic("fake1").unwrap();
        assert_eq!(one.client().addresses_in_use(), 1, "{version}");
        fake.cut(VIPS[1].into(), true);
        server.leave(at(2));
        let error = one.read_at(&mut vec![0; LEN], 0).unwrap_err();
        assert!(error.to_string().contains("the NIC leads to no address"), "{version}: {error}");
        assert_eq!(one.client().addresses_in_use(), 0, "{version}");
        assert_eq!(one.client().traffic().connections, 0, "{version}");
        // The other NIC goes on.
        assert!(read(&file) == pattern(LEN), "{version}");
    }
}

/// Addresses on the fabric go with the names, whichever of these are taken.
#[test]
fn addresses_on_the_fabric_are_those_of_the_names() {
    let (server, fake) = (Arc::new(server()), two_devices());
    let at_vip = |vip: &[u8; 4]| Placing::start_at(&fake, server.clone(), (*vip, 20049).into());
    let _placing: Vec<_> = VIPS[..2].iter().map(at_vip).collect();
    let rdma = RdmaOptions::by(Arc::new(fake.clone()), (VIPS[0], 20049).into());
    let rdma = rdma.and_to(&[VIPS[0].into(), VIPS[1].into()]);
    // The first is no further one.
    let options = NfsOptions { rdma: Some(rdma), ..options(&["127.0.0.1", "127.0.0.2"]) };
    let file = opened_as(&server, "/export/file", "3", &options);
    let names: Vec<_> = file.client().nics().iter().map(|nic| nic.name.clone()).collect();
    assert_eq!(names, ["fake0", "fake1"]);
}

#[test]
fn connections_over_rdma_go_to_all_addresses_by_the_device_that_leads_there() {
    for version in VERSIONS {
        for fake in [Fake::new(), two_devices()] {
            let server = Arc::new(server());
            let _placing = VIPS[..2]
                .iter()
                .map(|vip| Placing::start_at(&fake, server.clone(), (*vip, 20049).into()))
                .collect::<Vec<_>>();
            let url = NfsUrl::parse(&server.url("/export/file", version)).unwrap();
            // The third is the server's over TCP, too, but nobody takes RDMA there.
            server.listen_at(at(3)).unwrap();
            let file = open(&url, &by_rdma(&fake, &["127.0.0.2", "127.0.0.3"])).unwrap();
            let reasons: Vec<_> = file.client().left_out().iter().map(told).collect();
            assert!(
                reasons.len() == 1 && reasons[0].starts_with("127.0.0.3 cannot connect: rejected"),
                "{reasons:?}"
            );
            fake.record(true);
            // A connection is made when a request wants it: on a busy machine a read may be over before all are wanted.
            let reads = (1..=50).find(|_| {
                assert!(read(&file) == pattern(LEN), "{version}");
                file.client().traffic().connections == 6
            });
            assert_eq!(reads.map(|reads| reads * LEN as u64), Some(fake.counts().written), "{version}");
            assert_eq!((fake.counts().refused, file.client().traffic().resent), (0, 0), "{version}");
            let new: Vec<_> = pattern(LEN).iter().map(|byte| !byte).collect();
            assert_eq!(file.write_at(&new, 0).unwrap(), LEN, "{version}");
            assert!(server.durable("/export/file") == new, "{version}");
            // One goes away: its connections go to the other.
            fake.cut(VIPS[1].into(), true);
            server.leave(at(2));
            assert!(read(&file) == new, "{version}");
        }
    }
}
