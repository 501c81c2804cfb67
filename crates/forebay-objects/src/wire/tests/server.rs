//! A server that does what a test says, and calls to it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_error::{Error, Result};
use forebay_source::HostRange;

use super::super::Network;
use super::super::call::{Ask, Body, Heads, Method, ReplyHead, Resume, Room, Sink};
use super::super::pool::Limits;
use super::super::site::Site;
use crate::lock;

/// The time limit of all that tests wait for.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// A server: each connection is served by `serve`, with its number.
pub(super) fn server(serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream.unwrap(), number));
        }
    });
    Site { tls: false, host: "127.0.0.1".to_owned(), port, proxy: None, ca_file: None }
}

/// Reads the head of a request; `None`: the client closed the connection.
pub(super) fn request(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8(head).unwrap())
}

/// Answers each request with what `answer` says; an empty answer closes the connection.
pub(super) fn answers(mut stream: impl Read + Write, answer: impl Fn(usize, &str) -> Vec<u8>) {
    for number in 0.. {
        let Some(head) = request(&mut stream) else { return };
        let answer = answer(number, &head);
        if answer.is_empty() || stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// A reply with this body.
pub(super) fn reply(body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

/// Bytes that differ from place to place.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

/// Heads without a signature.
#[derive(Debug, Default)]
pub(super) struct PlainHeads;

impl Heads for PlainHeads {
    fn are_keys_at_hand(&self) -> bool {
        true
    }

    fn head(&self, ask: &Ask, body: &Body) -> Result<Vec<u8>> {
        let method = format!("{:?}", ask.method).to_uppercase();
        Ok(format!("{method} /{} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", ask.key, body.len())
            .into_bytes())
    }
}

/// A network with short limits.
pub(super) fn network(site: Site) -> Arc<Network> {
    let (silence, work) = (Duration::from_secs(2), Duration::from_secs(6));
    let limits = Limits { silence, work, thread: Duration::from_millis(300), ..Limits::default() };
    Network::with_limits(Arc::new(PlainHeads), site, limits)
}

pub(super) fn ask(method: Method, key: &str) -> Ask {
    Ask { method, bucket: String::new(), key: key.to_owned(), query: Vec::new(), headers: Vec::new() }
}

/// A call that has ended, or not.
pub(super) struct Started {
    ended: Receiver<(Result<()>, Reply)>,
    pub(super) resume: Arc<dyn Resume>,
    pub(super) place: Arc<Mutex<Places>>,
}

/// What came.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) head: Option<ReplyHead>,
    pub(super) body: Vec<u8>,
}

/// Which room there is.
#[derive(Debug)]
pub(super) struct Places {
    /// Bytes that the sink takes before it has no room; then it has some where this grows.
    pub(super) most: usize,
    /// Behind them it wants no more.
    pub(super) enough: usize,
    /// Bytes of a room.
    pub(super) step: usize,
    /// The head is refused.
    pub(super) refuses: bool,
    /// How often there was no room.
    pub(super) pauses: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self { most: usize::MAX, enough: usize::MAX, step: 1000, refuses: false, pauses: 0 }
    }
}

struct TestSink {
    reply: Reply,
    filled: usize,
    places: Arc<Mutex<Places>>,
    ended: Sender<(Result<()>, Reply)>,
}

impl Sink for TestSink {
    fn head(&mut self, head: ReplyHead) -> Result<()> {
        assert!(self.reply.head.replace(head).is_none(), "a second head");
        if lock(&self.places).refuses {
            return Err(Error::new(forebay_error::ErrorKind::InvalidInput, "refused"));
        }
        Ok(())
    }

    fn room(&mut self) -> Room {
        let mut places = lock(&self.places);
        if self.filled >= places.enough {
            return Room::Enough;
        }
        if self.filled >= places.most {
            places.pauses += 1;
            return Room::Later;
        }
        let step = places.step.min(places.most - self.filled).min(places.enough - self.filled);
        self.reply.body.resize(self.filled + step, 0xEE);
        Room::Memory(HostRange::of_mut(&mut self.reply.body[self.filled..]))
    }

    fn filled(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    fn end(mut self: Box<Self>, result: Result<()>) {
        self.reply.body.truncate(self.filled);
        let _ = self.ended.send((result, self.reply));
    }
}

impl Started {
    pub(super) fn end(&self) -> (Result<()>, Reply) {
        self.ended.recv_timeout(LIMIT).expect("the call ends")
    }

    /// The error that it ends with.
    pub(super) fn error(&self) -> Error {
        self.end().0.expect_err("an error")
    }

    /// The body, where it ends well.
    pub(super) fn body(&self) -> Vec<u8> {
        let (result, reply) = self.end();
        result.expect("a reply");
        reply.body
    }
}

pub(super) fn start(network: &Network, ask: Ask, body: Body, places: Places) -> Started {
    let ((tell, ended), places) = (channel(), Arc::new(Mutex::new(places)));
    let sink = TestSink { reply: Reply::default(), filled: 0, places: places.clone(), ended: tell };
    let resume = network.start(ask, body, Box::new(sink));
    Started { ended, resume, place: places }
}

/// A GET into rooms of 1000 bytes.
pub(super) fn get(network: &Network, key: &str) -> Started {
    start(network, ask(Method::Get, key), Body::None, Places::default())
}
