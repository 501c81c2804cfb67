//! Requests by hand: signed as they should be, or as a test wants them.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::{digest, hmac};

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The code of an error.
    pub fn code(&self) -> String {
        self.between("Code")
    }

    /// The text of the first element of this name.
    pub fn between(&self, name: &str) -> String {
        let text = self.text();
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let rest = text.split_once(&open).map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        rest.split_once(&close).map(|(text, _)| text.to_owned()).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }
}

/// What signs.
#[derive(Clone)]
pub struct Raw {
    pub address: SocketAddr,
    pub key: String,
    pub secret: String,
    /// How far this clock goes before the server's, in seconds.
    pub skew: i64,
}

impl Raw {
    pub fn new(address: SocketAddr, key: &str, secret: &str) -> Self {
        Self { address, key: key.to_owned(), secret: secret.to_owned(), skew: 0 }
    }

    pub fn get(&self, target: &str) -> Reply {
        self.ask("GET", target, &[], b"")
    }

    pub fn put(&self, target: &str, body: &[u8]) -> Reply {
        self.ask("PUT", target, &[], body)
    }

    /// A signed request on a connection of its own.
    pub fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut socket = self.connect();
        let head = self.head(method, target, headers, body.len(), "UNSIGNED-PAYLOAD");
        // A server may answer before it has read all.
        let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body));
        read_reply(&mut socket, method)
    }

    /// A head, signed or not, and a body.
    pub fn send(&self, head: &str, body: &[u8], method: &str) -> Reply {
        let mut socket = self.connect();
        let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body));
        read_reply(&mut socket, method)
    }

    /// A request without a signature in its head.
    pub fn unsigned(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Reply {
        let lines: String = headers.iter().flat_map(|(name, value)| [name, ": ", value, "\r\n"]).collect();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\ncontent-length: 0\r\n{lines}\r\n",
            self.address
        );
        self.send(&head, b"", method)
    }

    /// A signed request with a header that is not.
    pub fn with_unsigned(&self, method: &str, target: &str, name: &str, value: &str) -> Reply {
        let head = self.head(method, target, &[], 0, "UNSIGNED-PAYLOAD");
        self.send(&head.replacen("\r\n", &format!("\r\n{name}: {value}\r\n"), 1), b"", method)
    }

    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    /// The signed head of a request. The target's query has its names in order.
    pub fn head(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        len: usize,
        payload: &str,
    ) -> String {
        let date = date(self.skew);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut all = vec![
            ("host".to_owned(), self.address.to_string()),
            ("x-amz-content-sha256".to_owned(), payload.to_owned()),
            ("x-amz-date".to_owned(), date.clone()),
        ];
        all.extend(headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), (*value).to_owned())));
        all.sort();
        let names = all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
        let (mut lines, mut sent) = (String::new(), String::new());
        for (name, value) in &all {
            writeln!(lines, "{name}:{value}").unwrap();
            write!(sent, "{name}: {value}\r\n").unwrap();
        }
        let query_canonical = canonical(query);
        let request = format!("{method}\n{path}\n{query_canonical}\n{lines}\n{names}\n{payload}");
        let signature = self.sign(&date, &request);
        let scope = format!("{}/us-east-1/s3/aws4_request", &date[..8]);
        format!(
            "{method} {target} HTTP/1.1\r\n{sent}content-length: {len}\r\nauthorization: AWS4-HMAC-SHA256 \
             Credential={}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\r\n",
            self.key,
        )
    }

    /// A URL's path and query that anybody may read by, signed at this clock.
    pub fn presigned(&self, path: &str, expires: u32) -> String {
        let date = date(self.skew);
        let credential = format!("{}%2F{}%2Fus-east-1%2Fs3%2Faws4_request", self.key, &date[..8]);
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={date}\
             &X-Amz-Expires={expires}&X-Amz-SignedHeaders=host"
        );
        let request = format!("GET\n{path}\n{query}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD", self.address);
        format!("{path}?{query}&X-Amz-Signature={}", self.sign(&date, &request))
    }

    /// A form that a browser would send: its fields, with the policy's conditions and signature, and the file.
    pub fn form(&self, bucket: &str, conditions: &str, fields: &[(&str, &str)], file: &[u8]) -> Reply {
        let now = date(self.skew);
        let credential = format!("{}/{}/us-east-1/s3/aws4_request", self.key, &now[..8]);
        let end = date(self.skew + 600);
        let end = format!(
            "{}-{}-{}T{}:{}:{}Z",
            &end[..4],
            &end[4..6],
            &end[6..8],
            &end[9..11],
            &end[11..13],
            &end[13..15]
        );
        let policy = format!(
            r#"{{"expiration":"{end}","conditions":[{{"bucket":"{bucket}"}},{{"x-amz-algorithm":"AWS4-HMAC-SHA256"}},
            {{"x-amz-credential":"{credential}"}},{{"x-amz-date":"{now}"}}{conditions}]}}"#
        );
        let policy = base64_simd::STANDARD.encode_to_string(policy);
        let signature = self.sign_text(&now, &policy);
        let mut all = vec![
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-credential", &credential),
            ("x-amz-date", &now),
            ("policy", &policy),
            ("x-amz-signature", &signature),
        ];
        all.extend_from_slice(fields);
        self.plain_form(bucket, &all, file)
    }

    /// A form with these fields and no others.
    pub fn plain_form(&self, bucket: &str, fields: &[(&str, &str)], file: &[u8]) -> Reply {
        let mut body = Vec::new();
        for (name, value) in fields {
            write!(body, "--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
                .unwrap();
        }
        let head = "--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(file);
        body.extend_from_slice(b"\r\n--edge--\r\n");
        let mut socket = self.connect();
        let head = format!(
            "POST /{bucket} HTTP/1.1\r\nhost: {}\r\ncontent-type: multipart/form-data; boundary=edge\r\n\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&body));
        read_reply(&mut socket, "POST")
    }

    fn sign(&self, date: &str, request: &str) -> String {
        let scope = format!("{}/us-east-1/s3/aws4_request", &date[..8]);
        let hash = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
        self.sign_text(date, &format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hash}"))
    }

    fn sign_text(&self, date: &str, text: &str) -> String {
        let mut key = format!("AWS4{}", self.secret).into_bytes();
        for part in [&date[..8], "us-east-1", "s3", "aws4_request", text] {
            key = mac(&key, part);
        }
        hex(&key)
    }
}

fn canonical(query: &str) -> String {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
        .collect::<Vec<_>>()
        .join("&")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// `20260102T030405Z`.
fn date(skew: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + skew;
    let (days, rest) = (now.div_euclid(86_400), now.rem_euclid(86_400));
    // Days since 1 March 0000, in cycles of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Reads an answer; of one without a length, all that comes.
pub fn read_reply(socket: &mut TcpStream, method: &str) -> Reply {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 65_536];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        match socket.read(&mut piece) {
            Ok(0) | Err(_) => return Reply { status: 0, head: String::new(), body: bytes },
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut reply = Reply { status, head, body: bytes[end..].to_vec() };
    let len = reply.header("content-length").and_then(|text| text.parse::<usize>().ok());
    let want = if method == "HEAD" || status == 304 || status == 204 { Some(0) } else { len };
    while want.is_none_or(|want| reply.body.len() < want) {
        match socket.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(len) => reply.body.extend_from_slice(&piece[..len]),
        }
    }
    reply
}
