//! HTTP, as far as the server needs it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use fake_s3::FakeS3;

/// A request.
pub struct Call {
    pub head: Vec<u8>,
    pub method: String,
    pub path: String,
    pub query: String,
    headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    stream: TcpStream,
}

/// A head with the empty line, the first line, and headers.
type Head = (Vec<u8>, String, BTreeMap<String, String>);

fn head(stream: &mut impl BufRead) -> Option<Head> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read_until(b'\n', &mut bytes).ok()? == 0 {
            return None;
        }
    }
    let text = String::from_utf8(bytes.clone()).unwrap();
    let mut lines = text.lines();
    let first = lines.next()?.to_owned();
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Some((bytes, first, headers))
}

fn body(stream: &mut impl BufRead, headers: &BTreeMap<String, String>) -> Option<Vec<u8>> {
    let len = headers.get("content-length").map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

impl Call {
    pub fn read(stream: &mut BufReader<&TcpStream>) -> Option<Self> {
        let (head, first, headers) = head(stream)?;
        let body = body(stream, &headers)?;
        let mut words = first.split(' ');
        let method = words.next()?.to_owned();
        let (path, query) = words.next().map(|target| target.split_once('?').unwrap_or((target, "")))?;
        let (path, query) = (path.to_owned(), query.to_owned());
        Some(Self { head, method, path, query, headers, body, stream: stream.get_ref().try_clone().unwrap() })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.headers.keys().map(String::as_str)
    }

    /// Whether the signature is of this header.
    pub fn is_signed(&self, name: &str) -> bool {
        let signed = self.header("authorization").and_then(|text| text.split("SignedHeaders=").nth(1));
        signed
            .and_then(|text| text.split(',').next())
            .is_some_and(|text| text.split(';').any(|one| one == name))
    }

    /// Bucket and key.
    pub fn key(&self) -> Option<(&str, &str)> {
        self.path.strip_prefix('/')?.split_once('/')
    }

    /// Closes its connection.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// An answer.
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    is_twice: bool,
}

impl Reply {
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), is_twice: false }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    /// Without a word of RDMA.
    pub fn wordless(mut self) -> Self {
        self.headers.retain(|(name, _)| !name.starts_with("x-amz-rdma-"));
        self
    }

    pub fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    pub fn twice(mut self) -> Self {
        self.is_twice = true;
        self
    }

    /// False: the connection is closed.
    pub fn write(&self, mut stream: &TcpStream, method: &str) -> bool {
        let mut text = format!("HTTP/1.1 {} Said\r\n", self.status);
        let has_length = self.headers.iter().any(|(name, _)| name == "content-length");
        if !has_length {
            write!(text, "content-length: {}\r\n", self.body.len()).unwrap();
        }
        for (name, value) in &self.headers {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        text += "\r\n";
        let mut bytes = text.into_bytes();
        if method != "HEAD" {
            bytes.extend_from_slice(&self.body);
        }
        let times = if self.is_twice { 2 } else { 1 };
        (0..times).all(|_| stream.write_all(&bytes).is_ok())
    }
}

fn ask(to: SocketAddr, (head_bytes, body_bytes): (&[u8], &[u8]), method: &str) -> Reply {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(head_bytes).unwrap();
    stream.write_all(body_bytes).unwrap();
    let mut stream = BufReader::new(&stream);
    let (_, first, mut headers) = head(&mut stream).unwrap();
    let status = first.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if method == "HEAD" { Vec::new() } else { body(&mut stream, &headers).unwrap() };
    headers.remove("connection");
    if method != "HEAD" {
        headers.remove("content-length");
    }
    Reply { status, headers: headers.into_iter().collect(), body, is_twice: false }
}

/// The answer of the server behind this one.
pub fn forward(to: SocketAddr, call: &Call) -> Reply {
    ask(to, (&call.head, &call.body), &call.method)
}

/// The same to a PUT whose bytes came by RDMA: they are stored as those of a body. Their length is not signed.
pub fn forward_put(s3: &FakeS3, call: &Call, bytes: &[u8]) -> Reply {
    let text = String::from_utf8(call.head.clone()).unwrap();
    let text = text.replace("content-length: 0\r\n", &format!("content-length: {}\r\n", bytes.len()));
    let reply = ask(s3.address(), (text.as_bytes(), bytes), "PUT");
    Reply { body: if reply.status < 300 { Vec::new() } else { reply.body }, ..reply }
}

/// The answer of the server behind this one to a PUT whose bytes came without a head.
pub fn put(s3: &FakeS3, target: &str, bytes: &[u8]) -> Reply {
    let (len, sum) = (bytes.len(), sum_of(bytes));
    let head = format!(
        "PUT {target} HTTP/1.1\r\nhost: server\r\ncontent-length: {len}\r\nx-amz-checksum-crc64nvme: {sum}\r\n\r\n"
    );
    ask(s3.address(), (head.as_bytes(), bytes), "PUT")
}

/// The CRC-64/NVME of bytes, as headers have it.
pub fn sum_of(bytes: &[u8]) -> String {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
    reqsign_core::hash::base64_encode(&sum.to_be_bytes())
}

/// A number of a flat JSON.
pub fn number_of(json: &[u8], name: &str) -> u64 {
    let text = String::from_utf8_lossy(json).into_owned();
    let rest = text.split(&format!("\"{name}\":")).nth(1).unwrap().to_owned();
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// A text of a flat JSON.
pub fn text_of(json: &[u8], name: &str) -> String {
    let text = String::from_utf8_lossy(json).into_owned();
    text.split(&format!("\"{name}\":\"")).nth(1).unwrap().split('"').next().unwrap().to_owned()
}
