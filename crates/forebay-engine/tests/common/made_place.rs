#![allow(clippy::unwrap_used, unreachable_pub, reason = "helpers of tests")]
//! A made-up source whose peer places its bytes: memory of this process, and a connection of the software fabric.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake_verbs::Fake;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{
    Answer, DeviceRange, Direction, Fill, HostRange, Place, PlaceScope, Request, Requests, Source, StateToken,
};
use forebay_verbs::{Access, Connection, Domain, Fabric, Memory, Options, Post, RegisteredMemory, Route};

/// The source, and what places its bytes.
#[derive(Debug)]
pub struct MadePlace {
    bytes: Mutex<Vec<u8>>,
    /// Where memory is registered.
    domain: Arc<dyn Domain>,
    peer: Mutex<Peer>,
    /// Distinguishes peers.
    server: Arc<()>,
    writes: AtomicU64,
    /// The peer says that bytes are there, and they are not.
    pub loses: AtomicBool,
    /// The peer refuses.
    pub refuses: AtomicBool,
}

/// Both ends of the connection, and the peer's domain.
#[derive(Debug)]
struct Peer {
    connection: Box<dyn Connection>,
    domain: Arc<dyn Domain>,
    _own: Box<dyn Connection>,
}

/// A file over it.
#[derive(Debug)]
pub struct MadeSource(pub Arc<MadePlace>);

impl MadePlace {
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        let fabric = Fake::new();
        let mut listener = fabric.listen("10.0.0.1:0".parse().unwrap()).unwrap();
        let to = listener.address();
        let accept = std::thread::spawn(move || {
            let incoming = listener.next(Duration::from_secs(10)).unwrap().unwrap();
            let domain = incoming.domain();
            (incoming.accept(&Options::default()).unwrap(), domain)
        });
        let domain = fabric.open(&Route::to(to)).unwrap();
        let own = domain.connect(to, &Options::default()).unwrap();
        let (connection, of_peer) = accept.join().unwrap();
        Arc::new(Self {
            bytes: Mutex::new(bytes),
            domain,
            peer: Mutex::new(Peer { connection, domain: of_peer, _own: own }),
            server: Arc::new(()),
            writes: AtomicU64::new(0),
            loses: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
        })
    }

    fn place_now(&self, offset: u64, range: DeviceRange, memory: &RegisteredMemory) -> Result<usize> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Busy, "the peer refuses"));
        }
        let bytes = self.bytes.lock().unwrap();
        let start = bytes.len().min(offset as usize);
        let len = range.len.min(bytes.len() - start);
        if len == 0 || self.loses.load(Ordering::Relaxed) {
            return Ok(len);
        }
        let remote = memory.remote(DeviceRange { len, ..range })?;
        let peer = &mut *self.peer.lock().unwrap();
        let from = Memory::Host(HostRange::of(&bytes[start..start + len]));
        // SAFETY: the bytes stay where they are until the region is dropped below; they are only read.
        let region = unsafe { peer.domain.register(from, Access::READ) }?;
        peer.connection.write(1, region.range(0, len)?, remote, Post::PLAIN)?;
        let mut ended = Vec::new();
        while peer.connection.wait(&mut ended, Duration::from_secs(10))? == 0 {}
        Ok(len)
    }
}

impl Place for MadePlace {
    fn way(&self) -> String {
        "made up".to_owned()
    }

    fn scope(&self) -> PlaceScope {
        PlaceScope { server: Arc::downgrade(&self.server) as _, file_system: (0, 0) }
    }

    fn domain(&self) -> Result<Arc<dyn Domain>> {
        Ok(self.domain.clone())
    }

    unsafe fn place(&self, offset: u64, range: DeviceRange, memory: Arc<RegisteredMemory>, answer: Answer) {
        answer(self.place_now(offset, range, &memory));
    }

    fn read_at(&self, to: &mut [u8], offset: u64) -> Result<usize> {
        let bytes = self.bytes.lock().unwrap();
        let found = &bytes[bytes.len().min(offset as usize)..];
        let len = found.len().min(to.len());
        to[..len].copy_from_slice(&found[..len]);
        Ok(len)
    }

    fn state(&self) -> Result<StateToken> {
        Ok(StateToken::new(&self.writes.load(Ordering::Relaxed).to_le_bytes()))
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(10)
    }
}

impl Source for MadeSource {
    fn name(&self) -> String {
        "made up".to_owned()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0.bytes.lock().unwrap().len() as u64)
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }

    fn place(&self) -> Option<Result<Arc<dyn Place>>> {
        Some(Ok(self.0.clone()))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn state(&self) -> Result<Option<StateToken>> {
        self.0.state().map(Some)
    }
}

impl Requests for MadeSource {
    fn start(&self, request: Request, done: Answer) {
        if request.direction == Direction::Read {
            // SAFETY: the lane keeps the buffer valid and to this request until it is answered.
            let to = unsafe { request.memory.bytes_mut() };
            return done(self.0.read_at(to, request.offset));
        }
        // SAFETY: the same.
        let from = unsafe { request.memory.bytes() };
        let mut bytes = self.0.bytes.lock().unwrap();
        let end = request.offset as usize + request.memory.len;
        let len = bytes.len().max(end);
        bytes.resize(len, 0);
        bytes[end - request.memory.len..end].copy_from_slice(from);
        drop(bytes);
        self.0.writes.fetch_add(1, Ordering::Relaxed);
        done(Ok(request.memory.len));
    }
}
