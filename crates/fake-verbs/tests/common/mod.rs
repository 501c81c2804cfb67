//! Two ends in one test.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fake_verbs::Fake;
use forebay_verbs::{
    Access, Completion, Connection, Domain, Fabric, HostRange, Memory, Options, Region, Route, Window,
};

pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) fn address() -> SocketAddr {
    "10.0.0.1:20049".parse().unwrap()
}

/// A connection: each end with its domain.
pub(crate) struct Pair {
    pub(crate) client: Box<dyn Connection>,
    pub(crate) server: Box<dyn Connection>,
    pub(crate) client_domain: Arc<dyn Domain>,
    pub(crate) server_domain: Arc<dyn Domain>,
}

pub(crate) fn connect(fake: &Fake, client: &Options, server: &Options) -> Pair {
    let mut listener = fake.listen(address()).unwrap();
    let server = server.clone();
    let accepting = std::thread::spawn(move || {
        let incoming = listener.next(LONG).unwrap().unwrap();
        (incoming.domain(), incoming.accept(&server).unwrap())
    });
    let client_domain = fake.open(&Route::to(address())).unwrap();
    let client = client_domain.connect(address(), client).unwrap();
    let (server_domain, server) = accepting.join().unwrap();
    Pair { client, server, client_domain, server_domain }
}

pub(crate) fn pair(fake: &Fake) -> Pair {
    let options = Options { reads_out: 4, ..Options::default() };
    connect(fake, &options, &options)
}

/// Memory of its own, and its registration, which goes first.
pub(crate) struct Buffer {
    pub(crate) region: Region,
    bytes: Box<[u8]>,
}

impl Buffer {
    pub(crate) fn new(domain: &Arc<dyn Domain>, len: usize, access: Access, fill: u8) -> Self {
        let mut bytes = vec![fill; len].into_boxed_slice();
        let memory = Memory::Host(HostRange::new(bytes.as_mut_ptr(), len));
        // SAFETY: the bytes go after the region, and are looked at only between operations.
        let region = unsafe { domain.register(memory, access) }.unwrap();
        Self { region, bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        std::hint::black_box(&self.bytes)
    }
}

/// Memory that the peer reaches by a window alone, and a window.
pub(crate) fn bindable(pair: &Pair, len: usize) -> (Buffer, Window) {
    let target = Buffer::new(&pair.client_domain, len, Access::WRITE | Access::BIND, 0);
    (target, pair.client_domain.window().unwrap())
}

/// The next completion.
pub(crate) fn next(connection: &mut Box<dyn Connection>) -> Completion {
    let mut out = Vec::with_capacity(1);
    assert_eq!(connection.wait(&mut out, LONG).unwrap(), 1, "no completion");
    out.remove(0)
}

/// All that is there now.
pub(crate) fn all(connection: &mut Box<dyn Connection>) -> Vec<Completion> {
    let mut out = Vec::new();
    while connection.poll(&mut out).unwrap() > 0 {}
    out
}

/// The next completion is this message; its receive is posted again.
pub(crate) fn expect_message(connection: &mut Box<dyn Connection>, text: &[u8]) {
    match next(connection) {
        Completion::Received(message) => {
            assert_eq!(connection.bytes(&message).unwrap(), text);
            connection.post_receive(message).unwrap();
        }
        other => panic!("no message: {other:?}"),
    }
}
