//! Several NICs that lead to a server: host memory by all of them, a device's by the one that is nearest and registers it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Placing, Server};
use fake_verbs::{Fake, FakeDevice};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{EngineKind, File, Receipt, Session, Way};
use forebay_nfs::NfsSource;
use forebay_nfs::{NfsOptions, NfsUrl, RdmaOptions};

use crate::common::{Target, allow_dma_bufs, config, pattern, try_placed, turn};

const KEY: u64 = 11;
const LEN: usize = 9_000_001;
const PATH: &str = "/export/file";

/// A server with an address for each of two NICs.
struct Place {
    placing: Vec<Placing>,
    server: Arc<Server>,
    fabric: Fake,
}

impl Place {
    /// `change`: what the NICs cannot do.
    fn new(change: impl Fn(&mut [FakeDevice; 2])) -> Self {
        let mut nics = [("fake0", [10, 1, 0, 1]), ("fake1", [10, 1, 0, 2])]
            .map(|(name, at)| FakeDevice::new(name, at.into()));
        change(&mut nics);
        let fabric = Fake::with(nics.to_vec());
        let mut server = Arc::new(Server::start());
        while server.listen_at([127, 0, 0, 2].into()).is_err() {
            server = Arc::new(Server::start());
        }
        server.put(PATH, pattern(KEY, 0, LEN));
        let placing = [("fake0", [10, 0, 0, 1]), ("fake1", [10, 0, 0, 2])].map(|(nic, at)| {
            fabric.route(at.into(), nic);
            Placing::start_at(&fabric, server.clone(), (at, 20049).into())
        });
        Self { placing: placing.into(), server, fabric }
    }

    /// NICs whose address has got calls since this was last asked, or since the trial.
    fn asked(&self) -> Vec<&str> {
        let asked = ["fake0", "fake1"].into_iter().zip(&self.placing);
        let asked = asked.filter(|(_, placing)| placing.most_at_once() > 0).map(|(name, _)| name).collect();
        self.placing.iter().for_each(|placing| placing.grant(4));
        asked
    }

    fn file(&self, version: &str) -> File {
        self.file_by(version, &["127.0.0.2"])
    }

    fn file_by(&self, version: &str, further: &[&str]) -> File {
        let rdma = RdmaOptions::by(Arc::new(self.fabric.clone()), Placing::address())
            .and_to(&[[10, 0, 0, 2].into()]);
        let further = further.iter().map(|name| (*name).to_owned()).collect();
        let options = NfsOptions { connections: 4, further, rdma: Some(rdma), ..NfsOptions::default() };
        let url = NfsUrl::parse(&self.server.url(PATH, version)).unwrap();
        let file = forebay_nfs::open(&url, &options).unwrap();
        let nics: Vec<_> = file.client().nics().into_iter().map(|nic| nic.name).collect();
        assert_eq!(nics, ["fake0", "fake1"]);
        File::from_source(Arc::new(NfsSource::new(file, (true, true)))).unwrap()
    }
}

fn read(session: &Session, file: &File, target: Target) -> Receipt {
    let mut buffer = target.buffer(session, LEN);
    buffer.copy_from_slice(&vec![0xA5; LEN]).unwrap();
    let receipt = session.read(file, 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "wrong bytes: {receipt}");
    assert_eq!(receipt.bytes(), LEN as u64);
    receipt
}

/// The NIC that a server's bytes came by into the device.
fn check_by(session: &Session, place: &Place, file: &File, nic: &str) {
    try_placed(session, file, 4096);
    place.asked();
    for _ in 0..3 {
        let receipt = read(session, file, Target::Device);
        assert_eq!(
            (receipt.engine(), receipt.moved[Way::Server]),
            (EngineKind::Placed, LEN as u64),
            "{receipt}"
        );
        assert!(receipt.to_string().contains(&format!("NIC {nic}; keys: per buffer")), "{receipt}");
    }
    assert_eq!((place.fabric.counts().refused, place.asked()), (0, vec![nic]));
}

#[test]
fn a_device_is_reached_by_one_nic_and_host_memory_by_all() {
    let _turn = turn();
    allow_dma_bufs();
    let place = Place::new(|_| {});
    let session = Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap();
    for version in ["3", "4.0", "4.1"] {
        place.fabric.record(true);
        let file = place.file(version);
        check_by(&session, &place, &file, "fake0");
        // Each reply is late: all connections get work.
        place
            .server
            .faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Late(Duration::from_millis(20))));
        let receipt = read(&session, &file, Target::Host);
        place.server.faults(|_| None);
        assert!(receipt.to_string().contains("to 2 addresses"), "{receipt}");
        assert_eq!(place.asked(), ["fake0", "fake1"], "{version}");
        assert_eq!((place.fabric.counts().refused, place.server.wrong_slots()), (0, 0), "{version}");
    }
}

#[test]
fn where_the_nearest_nic_does_not_register_the_memory_the_next_one_does() {
    let _turn = turn();
    allow_dma_bufs();
    let place = Place::new(|nics| nics[0].dma_bufs = false);
    let session = Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap();
    for version in ["3", "4.1"] {
        place.fabric.record(true);
        check_by(&session, &place, &place.file(version), "fake1");
    }
}

#[test]
fn where_no_nic_registers_the_memory_it_is_staged_with_the_reason() {
    let _turn = turn();
    allow_dma_bufs();
    let place = Place::new(|nics| nics.iter_mut().for_each(|nic| nic.dma_bufs = false));
    let session = Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap();
    let file = place.file("4.1");
    let looked_at = |receipt: &Receipt| receipt.to_string().contains("is being checked");
    let receipts = std::iter::repeat_with(|| read(&session, &file, Target::Device));
    let receipt = receipts.take(1000).find(|receipt| !looked_at(receipt)).unwrap();
    assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Staged, 0), "{receipt}");
    assert!(receipt.to_string().contains("cannot register a dma-buf (device=fake0)"), "{receipt}");
}

/// A transfer does not wait while the server is looked at by a NIC: an address that takes connections and stays silent
/// takes 2 s.
#[test]
fn a_silent_address_holds_up_no_transfer() {
    let _turn = turn();
    allow_dma_bufs();
    let place = Place::new(|_| {});
    let port = place.server.address().port();
    let _silent = std::net::TcpListener::bind(("127.0.0.3", port)).unwrap();
    let session = Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap();
    for version in ["3", "4.1"] {
        let file = place.file_by(version, &["127.0.0.2", "127.0.0.3"]);
        let began = Instant::now();
        let receipt = read(&session, &file, Target::Device);
        assert!(began.elapsed() < Duration::from_secs(1), "{version}: {:?}", began.elapsed());
        assert_eq!(receipt.engine(), EngineKind::Staged, "{version}: {receipt}");
        let reason = "the server is being checked by NIC fake0";
        assert!(receipt.to_string().contains(reason), "{version}: {receipt}");
        check_by(&session, &place, &file, "fake0");
    }
}
