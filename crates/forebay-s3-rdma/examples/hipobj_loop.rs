//! Speaks hipobj-rc-v2 with a server of another hand, and compares each byte with what the same server gives by HTTP.
//!
//! `hipobj_loop ADDRESS HOST:PORT BUCKET`   ADDRESS: of an RDMA device on the way to the server. Keys: `AWS_ACCESS_KEY_ID`,
//! `AWS_SECRET_ACCESS_KEY`. The bucket is made where it is not there.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_s3_rdma::Operation;
use forebay_s3_rdma::hipobj::{CANCEL, Finished, PREPARE, Prepare, Prepared, READY, Ready, cancel};
use forebay_verbs::{
    Access, Completion, Connection, Domain, Fabric, HostRange, Kind, Memory, Options, Post, Region, Remote,
    Route, verbs,
};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, SignRequest};

const GUARD: u8 = 0xa5;
const LONG: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [address, server, bucket] => run(address, server, bucket),
        _ => Err(wrong("hipobj_loop ADDRESS HOST:PORT BUCKET")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: &str, server: &str, bucket: &str) -> Result<()> {
    let address: IpAddr = address.parse().map_err(|_| wrong("no address"))?;
    let to: SocketAddr = server.parse().map_err(|_| wrong("no HOST:PORT"))?;
    let peer = Peer {
        server: to,
        bucket: bucket.to_owned(),
        domain: verbs()?.open(&Route::to(to).from(address))?,
        credential: Credential {
            access_key_id: variable("AWS_ACCESS_KEY_ID")?,
            secret_access_key: variable("AWS_SECRET_ACCESS_KEY")?,
            session_token: None,
            expires_in: None,
        },
    };
    peer.http("PUT", &format!("/{bucket}"), Vec::new(), &[], true)?;
    for mebibytes in [1, 8] {
        println!("{mebibytes} MiB: {}", both_ways(&peer, mebibytes << 20)?);
    }
    println!("range: {}", range(&peer)?);
    println!("unsigned: {}", unsigned(&peer)?);
    println!("cookie: {}", other_cookie(&peer)?);
    println!("cancel: {}", canceled(&peer)?);
    println!("no object: {}", no_object(&peer)?);
    Ok(())
}

fn wrong(text: &str) -> Error {
    Error::new(ErrorKind::Corrupt, text.to_owned())
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| wrong(&format!("{name} is not set")))
}

/// A pattern that differs at every offset, and from another seed's.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + (at >> 8) * 13 + (at >> 16) * 5 + seed) as u8).collect()
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// The server, by both ways.
struct Peer {
    server: SocketAddr,
    bucket: String,
    domain: Arc<dyn Domain>,
    credential: Credential,
}

impl Peer {
    fn http(
        &self,
        method: &str,
        path: &str,
        headers: Vec<(&'static str, String)>,
        body: &[u8],
        signed: bool,
    ) -> Result<Answer> {
        let failed = |error: &dyn std::fmt::Display| wrong(&format!("{method} {path}: {error}"));
        let mut request =
            http::Request::builder().method(method).uri(format!("http://{}{path}", self.server));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request = request.header("x-amz-content-sha256", "UNSIGNED-PAYLOAD");
        let mut parts = request.body(()).map_err(|error| failed(&error))?.into_parts().0;
        if signed {
            self.sign(&mut parts)?;
        }
        let fields = parts.headers.iter().filter(|(name, _)| *name != "host");
        let fields = fields
            .map(|(name, value)| Ok(format!("{name}: {}\r\n", value.to_str().map_err(|e| failed(&e))?)));
        let fields = fields.collect::<Result<String>>()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n{fields}\r\n",
            self.server,
            body.len()
        );
        let mut stream = TcpStream::connect(self.server).map_err(|error| failed(&error))?;
        let mut answer = Vec::new();
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        sent.and_then(|()| stream.read_to_end(&mut answer)).map_err(|error| failed(&error))?;
        parsed(&answer).ok_or_else(|| wrong(&format!("{method} {path}: no answer of HTTP")))
    }

    fn sign(&self, parts: &mut http::request::Parts) -> Result<()> {
        let (signer, context) = (RequestSigner::new("s3", "us-east-1"), Context::new());
        let mut future = pin!(signer.sign_request(&context, parts, Some(&self.credential), None));
        match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(Ok(())) => Ok(()),
            other => Err(wrong(&format!("cannot sign: {other:?}"))),
        }
    }

    fn control(&self, path: &str, headers: Vec<(&'static str, String)>) -> Result<Answer> {
        self.http("POST", path, headers, &[], true)
    }

    fn target(&self, name: &str) -> String {
        format!("/{}/{name}", self.bucket)
    }

    /// A session for a transfer, both of whose ends are known.
    fn prepare(&self, operation: Operation, name: &str, offset: u64, bytes: usize) -> Result<Session> {
        let options = Options {
            receives: 1,
            receive_size: 64,
            sends: 4,
            send_size: 64,
            receiver_retries: 7,
            ..Options::default()
        };
        let end = self.domain.end(&options)?;
        let cookie = 0x0c00_0000 | end.own().first;
        let asked = Prepare {
            operation,
            target: self.target(name),
            offset,
            bytes: bytes as u64,
            end: end.own(),
            cookie,
        };
        let answer = self.control(PREPARE, asked.headers())?;
        let prepared = Prepared::parse(operation, end.own().mtu, answer.status, |name| answer.header(name))
            .map_err(|why| {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            wrong("the server refuses PREPARE").with("why", format!("{why:?}")).with("body", body)
        })?;
        let number = end.own().number;
        Ok(Session { connection: end.pair(&prepared.end)?, prepared, cookie, number, bytes: bytes as u64 })
    }
}

struct Session {
    connection: Box<dyn Connection>,
    prepared: Prepared,
    cookie: u32,
    number: u32,
    bytes: u64,
}

impl Session {
    fn ready(&self, memory: Remote) -> Vec<(&'static str, String)> {
        let session = self.prepared.session.clone();
        Ready { session, cookie: self.cookie, number: self.number, memory }.headers()
    }

    fn finish(&self, answer: &Answer) -> Result<Finished> {
        Finished::parse((self.bytes, self.cookie), answer.status, |name| answer.header(name)).map_err(|why| {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            wrong(why).with("status", answer.status).with("body", body)
        })
    }

    fn next(&mut self) -> Result<Completion> {
        let mut out = Vec::with_capacity(1);
        self.connection.wait(&mut out, LONG)?;
        out.pop().ok_or_else(|| wrong("no completion came"))
    }
}

fn parsed(bytes: &[u8]) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(begin) = head.parse(bytes).ok()? else { return None };
    let status = head.code?;
    let headers = head
        .headers
        .iter()
        .map(|header| (header.name.to_owned(), String::from_utf8_lossy(header.value).trim().to_owned()));
    Some(Answer { status, headers: headers.collect(), body: bytes[begin..].to_vec() })
}

/// Registered memory of this program, between guard bytes.
struct Buffer {
    // Goes before its bytes.
    region: Region,
    bytes: Box<[u8]>,
}

impl Buffer {
    fn new(domain: &dyn Domain, bytes: Vec<u8>) -> Result<Self> {
        let mut bytes = bytes.into_boxed_slice();
        let memory = Memory::Host(HostRange::new(bytes.as_mut_ptr(), bytes.len()));
        // SAFETY: the bytes go after the region, and are looked at only between operations.
        let region = unsafe { domain.register(memory, Access::WRITE | Access::REMOTE_WRITE) }?;
        Ok(Self { region, bytes })
    }
}

fn put(peer: &Peer, name: &str, bytes: Vec<u8>) -> Result<()> {
    let len = bytes.len();
    let source = Buffer::new(&*peer.domain, bytes)?;
    let mut session = peer.prepare(Operation::Put, name, 0, len)?;
    let heads = session.ready(Remote { key: 0, address: 0 });
    let answer = std::thread::scope(|scope| {
        let asking = scope.spawn(|| peer.control(READY, heads));
        // The server pairs its end with READY: what comes before that is sent again half a second later.
        std::thread::sleep(Duration::from_millis(30));
        let (to, cookie) = (session.prepared.memory, session.cookie);
        let written = session
            .connection
            .write_with_immediate(1, source.region.range(0, len)?, to, cookie, Post::PLAIN)
            .and_then(|()| session.next());
        let answer = asking.join().map_err(|_| wrong("READY panicked"))??;
        match written? {
            Completion::Done { id: 1, kind: Kind::Write } => Ok(answer),
            other => Err(wrong(&format!("{other:?}, no write")).with("status", answer.status)),
        }
    })?;
    session.finish(&answer)?;
    Ok(())
}

fn get(peer: &Peer, name: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
    let target = Buffer::new(&*peer.domain, vec![GUARD; len + 8192])?;
    let mut session = peer.prepare(Operation::Get, name, offset, len)?;
    let memory = Remote { key: target.region.remote_key(), address: target.region.memory().start + 4096 };
    let answer = peer.control(READY, session.ready(memory))?;
    session.finish(&answer)?;
    match session.next()? {
        Completion::Received(message) if message.immediate() == Some(session.cookie) => {}
        other => return Err(wrong(&format!("{other:?}, no cookie"))),
    }
    // Nothing of the server's arrives behind this.
    drop(session);
    let bytes = std::hint::black_box(&target.bytes);
    if bytes[..4096].iter().chain(&bytes[4096 + len..]).any(|byte| *byte != GUARD) {
        return Err(wrong("guard bytes were changed"));
    }
    Ok(bytes[4096..4096 + len].to_vec())
}

fn by_http(peer: &Peer, name: &str) -> Result<Vec<u8>> {
    let answer = peer.http("GET", &peer.target(name), Vec::new(), &[], true)?;
    if answer.status == 200 {
        Ok(answer.body)
    } else {
        Err(wrong("no such object").with("status", answer.status))
    }
}

fn same(got: &[u8], wanted: &[u8]) -> Result<()> {
    if got == wanted { Ok(()) } else { Err(wrong("bytes differ").with("bytes", got.len())) }
}

fn both_ways(peer: &Peer, len: usize) -> Result<String> {
    let began = Instant::now();
    let bytes = pattern(len, len);
    put(peer, "by-rdma", bytes.clone())?;
    same(&by_http(peer, "by-rdma")?, &bytes)?;
    same(&get(peer, "by-rdma", 0, len)?, &bytes)?;
    let other = pattern(len, len + 3);
    let answer = peer.http("PUT", &peer.target("by-http"), Vec::new(), &other, true)?;
    if answer.status != 200 {
        return Err(wrong("PUT by HTTP fails").with("status", answer.status));
    }
    same(&get(peer, "by-http", 0, len)?, &other)?;
    Ok(format!("PUT and 2 GETs by RDMA, {} bytes compared with HTTP's, in {:.1?}", 3 * len, began.elapsed()))
}

fn range(peer: &Peer) -> Result<String> {
    let whole = by_http(peer, "by-http")?;
    let got = get(peer, "by-http", 1001, 13_579)?;
    same(&got, &whole[1001..1001 + 13_579])?;
    Ok("13579 bytes from offset 1001 compared".to_owned())
}

fn unsigned(peer: &Peer) -> Result<String> {
    let end = peer.domain.end(&Options::default())?;
    let (target, own) = (peer.target("by-http"), end.own());
    let asked = Prepare { operation: Operation::Get, target, offset: 0, bytes: 5, end: own, cookie: 5 };
    match peer.http("POST", PREPARE, asked.headers(), &[], false)?.status {
        403 => Ok("403".to_owned()),
        other => Err(wrong("PREPARE without a signature is not refused").with("status", other)),
    }
}

fn other_cookie(peer: &Peer) -> Result<String> {
    let target = Buffer::new(&*peer.domain, vec![GUARD; 4096])?;
    let mut session = peer.prepare(Operation::Get, "by-http", 0, 4096)?;
    session.cookie ^= 1;
    let memory = Remote { key: target.region.remote_key(), address: target.region.memory().start };
    let answer = peer.control(READY, session.ready(memory))?;
    if session.finish(&answer).is_ok() || target.bytes.iter().any(|byte| *byte != GUARD) {
        return Err(wrong("READY with another cookie is not refused"));
    }
    Ok(format!("{}, 4096 bytes unchanged", answer.status))
}

fn canceled(peer: &Peer) -> Result<String> {
    let session = peer.prepare(Operation::Get, "by-http", 0, 4096)?;
    let name = session.prepared.session.clone();
    let first = peer.control(CANCEL, cancel(&name))?.status;
    let again = peer.control(CANCEL, cancel(&name))?.status;
    let target = Buffer::new(&*peer.domain, vec![GUARD; 4096])?;
    let memory = Remote { key: target.region.remote_key(), address: target.region.memory().start };
    let answer = peer.control(READY, session.ready(memory))?;
    if first != 200 || session.finish(&answer).is_ok() {
        return Err(wrong("a canceled session goes on").with("cancel", first).with("ready", answer.status));
    }
    Ok(format!("{first}, again {again}; READY behind it {}", answer.status))
}

fn no_object(peer: &Peer) -> Result<String> {
    match peer.prepare(Operation::Get, "not-there", 0, 5) {
        Err(error) => Ok(format!("{error}").split("body=").next().unwrap_or_default().to_owned()),
        Ok(_) => Err(wrong("an object that is not there is prepared")),
    }
}
