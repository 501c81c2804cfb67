//! The same server by hipobj-rc-v2: two requests and a queue pair for each transfer.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use fake_s3::{SECRET_KEY, verify_head};
use forebay_verbs::{Access, Completion, Connection, HostRange, Memory, Options, Post, QueueEnd, Remote};

use super::http::{self, Call, Reply};
use super::{Lie, Shared, Slot, lock};

const NAME: &str = "hipobj-rc-v2";

/// A transfer between its two requests.
pub struct Exchange {
    connection: Box<dyn Connection>,
    is_get: bool,
    target: String,
    range: std::ops::Range<usize>,
    cookie: u32,
    qpn: u32,
    /// What a PUT is written to.
    slot: Option<Slot>,
}

fn hex(call: &Call, name: &str) -> u64 {
    u64::from_str_radix(call.header(name).unwrap_or_else(|| panic!("no {name}")), 16).unwrap()
}

/// The client's end, of its token: numbers are little-endian.
fn end_of(call: &Call, mtu: u32) -> QueueEnd {
    let text = call.header("x-amz-rdma-token").unwrap();
    assert_eq!(text.len(), 88);
    let bytes: Vec<u8> =
        (0..44).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
    assert_eq!(bytes[0], 1, "a reliable connection");
    QueueEnd {
        number: u32::from_le_bytes(bytes[1..5].try_into().unwrap()),
        first: hex(call, "x-amz-rdma-psn") as u32,
        gid: bytes[5..21].try_into().unwrap(),
        lid: u16::from_le_bytes(bytes[42..44].try_into().unwrap()),
        port: bytes[41],
        mtu,
    }
}

fn token_of(end: &QueueEnd) -> String {
    let mut bytes = vec![1];
    bytes.extend(end.number.to_le_bytes());
    bytes.extend(end.gid);
    bytes.extend([0; 20]);
    bytes.push(end.port);
    bytes.extend(end.lid.to_le_bytes());
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

fn word(status: u16) -> Reply {
    Reply::new(status).with("x-amz-rdma-protocol", NAME)
}

impl Shared {
    /// `None`: the connection is closed.
    pub(super) fn hipobj(&self, call: &Call) -> Option<Reply> {
        if verify_head(&call.head, SECRET_KEY).is_err() {
            return Some(Reply::new(403));
        }
        let unsigned = call.names().find(|name| name.starts_with("x-amz-rdma-") && !call.is_signed(name));
        assert_eq!(unsigned, None, "not signed");
        assert_eq!((call.header("x-amz-rdma-protocol"), call.body.len()), (Some(NAME), 0));
        match call.path.as_str() {
            "/.hipobj-rc/prepare" => Some(self.prepare(call)),
            "/.hipobj-rc/ready" => {
                self.transfers.fetch_add(1, SeqCst);
                self.ready(call)
            }
            _ => {
                let session = call.header("x-amz-rdma-session").unwrap();
                self.disconnects.fetch_add(1, SeqCst);
                lock(&self.exchanges).remove(session);
                Some(word(200))
            }
        }
    }

    fn prepare(&self, call: &Call) -> Reply {
        self.prepares.fetch_add(1, SeqCst);
        let lie = if self.lies_at_prepare.load(SeqCst) { self.lie_of_now() } else { None };
        match lie {
            Some(Lie::Status501) => {
                return Reply::new(501).with("x-amz-rdma-protocol-status", "unsupported");
            }
            Some(Lie::SlowDown) => return Reply::new(503),
            Some(Lie::NotFound) => return word(404),
            Some(Lie::OtherSize) => return Reply::new(413),
            Some(Lie::NoHeader) => return Reply::new(200),
            _ => {}
        }
        let is_get = call.header("x-amz-rdma-op") == Some("GET");
        let decimal = |name: &str| call.header(name).unwrap().parse::<usize>().unwrap();
        let (offset, size) = (decimal("x-amz-rdma-offset"), decimal("x-amz-rdma-size"));
        let target = call.header("x-amz-rdma-target").unwrap().to_owned();
        if is_get && self.bytes_of(&target).is_none_or(|(bytes, _)| bytes.len() < offset + size) {
            return word(404);
        }
        let end = self.domain.end(&Options { receives: 1, ..Options::default() }).unwrap();
        let own = end.own();
        let connection = end.pair(&end_of(call, own.mtu)).unwrap();
        let slot = (!is_get).then(|| {
            let mut bytes = vec![0; size];
            let memory = Memory::Host(HostRange::of_mut(&mut bytes));
            // SAFETY: the bytes live as long as the region, and do not move.
            let region =
                unsafe { self.domain.register(memory, Access::WRITE | Access::REMOTE_WRITE) }.unwrap();
            Slot { bytes, region }
        });
        let name = format!("{:032x}", 0xbeef_0000_u64 + self.numbers.fetch_add(1, SeqCst));
        let psn = if lie == Some(Lie::OtherPsn) { own.first ^ 1 } else { own.first };
        let mut reply = word(200)
            .with("x-amz-rdma-reply", &format!("200:{}", token_of(&own)))
            .with("x-amz-rdma-session", &name)
            .with("x-amz-rdma-psn", &format!("{psn:06X}"))
            .with("x-amz-rdma-qpn", &format!("{:x}", own.number));
        if let Some(slot) = &slot {
            reply = reply
                .with("x-amz-rdma-mr-addr", &format!("{:x}", slot.bytes.as_ptr() as usize))
                .with("x-amz-rdma-mr-rkey", &format!("{:x}", slot.region.remote_key()));
        }
        let (cookie, qpn) = (hex(call, "x-amz-rdma-cookie") as u32, end_of(call, own.mtu).number);
        assert_ne!(cookie, 0);
        let range = offset..offset + size;
        lock(&self.exchanges).insert(name, Exchange { connection, is_get, target, range, cookie, qpn, slot });
        reply
    }

    /// The bytes of an object, and its ETag.
    fn bytes_of(&self, target: &str) -> Option<(std::sync::Arc<Vec<u8>>, String)> {
        let (bucket, key) = target.split('?').next()?.strip_prefix('/')?.split_once('/')?;
        let etag = self.s3.etag(bucket, key)?;
        Some((self.object(bucket, key, &etag), etag))
    }

    fn ready(&self, call: &Call) -> Option<Reply> {
        let lie = if self.lies_at_prepare.load(SeqCst) { None } else { self.lie_of_now() };
        self.dying(lie, |lie| self.ready_lying(call, lie))
    }

    fn ready_lying(&self, call: &Call, lie: Option<Lie>) -> Option<Reply> {
        match lie {
            Some(Lie::Status501) => return Some(Reply::new(501)),
            Some(Lie::SlowDown) => return Some(Reply::new(503)),
            Some(Lie::Forgets) => return Some(word(404)),
            Some(Lie::Declines) => return Some(word(500)),
            Some(Lie::Late(time)) => self.sleep(time),
            _ => {}
        }
        let found = lock(&self.exchanges).remove(call.header("x-amz-rdma-session").unwrap());
        let Some(mut exchange) = found else { return Some(word(404)) };
        assert_eq!(hex(call, "x-amz-rdma-cookie") as u32, exchange.cookie);
        assert_eq!(hex(call, "x-amz-rdma-qpn") as u32, exchange.qpn);
        let to =
            Remote { address: hex(call, "x-amz-rdma-mr-addr"), key: hex(call, "x-amz-rdma-mr-rkey") as u32 };
        if exchange.is_get {
            self.send(call, &mut exchange, to, lie)
        } else {
            self.store(call, exchange, lie)
        }
    }

    fn send(&self, call: &Call, exchange: &mut Exchange, to: Remote, lie: Option<Lie>) -> Option<Reply> {
        let (bytes, etag) = self.bytes_of(&exchange.target).unwrap();
        let mut part = bytes[exchange.range.clone()].to_vec();
        match lie {
            Some(Lie::OtherBytes) => part[exchange.range.len() / 2] ^= 1,
            Some(Lie::Half) => part.truncate(exchange.range.len() / 2),
            _ => {}
        }
        let to = if lie == Some(Lie::Beside) { Remote { address: to.address + 1, ..to } } else { to };
        let cookie = if lie == Some(Lie::OtherNumber) { exchange.cookie ^ 1 } else { exchange.cookie };
        let slot = self.slot(part);
        if lie == Some(Lie::WritesLater) {
            // The client ends its connection when this one is closed.
            call.close();
            std::thread::sleep(Duration::from_millis(300));
        }
        let from = slot.region.range(0, slot.bytes.len()).unwrap();
        let posted = match lie {
            Some(Lie::MovesNothing) => Ok(()),
            Some(Lie::NoNumber) => exchange.connection.write(1, from, to, Post::PLAIN),
            _ => exchange.connection.write_with_immediate(1, from, to, cookie, Post::PLAIN),
        };
        if lie != Some(Lie::MovesNothing) && (posted.is_err() || !self.has_ended(&mut *exchange.connection)) {
            if lie == Some(Lie::WritesLater) {
                return None;
            }
            return Some(word(500));
        }
        if lie == Some(Lie::Silent) {
            return None;
        }
        let sum = (exchange.range.len() == bytes.len()).then(|| http::sum_of(&bytes));
        Some(Self::finished(exchange, lie, &etag, sum.as_deref()))
    }

    fn store(&self, call: &Call, mut exchange: Exchange, lie: Option<Lie>) -> Option<Reply> {
        let mut out = Vec::new();
        exchange.connection.wait(&mut out, Duration::from_secs(5)).unwrap();
        let came = match out.pop() {
            Some(Completion::Received(message)) => message.immediate(),
            _ => None,
        };
        if came != Some(exchange.cookie) {
            return Some(word(500));
        }
        let bytes = exchange.slot.as_ref().unwrap().bytes.clone();
        if lie == Some(Lie::TruncatesWithWords) {
            http::put(&self.s3, &exchange.target, &bytes[..bytes.len() / 2]);
        }
        if matches!(lie, Some(Lie::StoresNothing | Lie::TruncatesWithWords)) {
            return Some(Self::finished(&exchange, None, "0", None));
        }
        if let Some(said) = call.header("x-amz-checksum-crc64nvme") {
            assert_eq!(said, http::sum_of(&bytes), "other bytes came than were summed");
        }
        // As if the bytes had come in a body.
        let reply = http::put(&self.s3, &exchange.target, &bytes);
        let Some(etag) = reply.header("etag").map(|etag| etag.trim_matches('"').to_owned()) else {
            return Some(reply);
        };
        if lie == Some(Lie::Silent) {
            return None;
        }
        let sum = match lie {
            Some(Lie::NoSum) => None,
            Some(Lie::OtherSum) => Some(http::sum_of(b"other")),
            _ => Some(http::sum_of(&bytes)),
        };
        Some(Self::finished(&exchange, lie, &etag, sum.as_deref()))
    }

    fn finished(exchange: &Exchange, lie: Option<Lie>, etag: &str, sum: Option<&str>) -> Reply {
        let size = exchange.range.len();
        let said = match lie {
            Some(Lie::Fewer) => size - 1,
            Some(Lie::More) => size + 1,
            Some(Lie::Half) => size / 2,
            _ => size,
        };
        let cookie = if lie == Some(Lie::OtherCookie) { exchange.cookie ^ 1 } else { exchange.cookie };
        if lie == Some(Lie::NoHeader) {
            return Reply::new(200);
        }
        let mut reply = word(200)
            .with("x-amz-rdma-bytes-transferred", &said.to_string())
            .with("x-amz-rdma-cookie", &format!("{cookie:08X}"));
        let etag = if lie == Some(Lie::OtherEtag) { "other" } else { etag };
        if lie != Some(Lie::NoEtag) {
            reply = reply.with("x-amz-rdma-etag", &format!("\"{etag}\""));
        }
        match sum {
            Some(sum) => reply.with("x-amz-rdma-checksum", sum),
            None => reply,
        }
    }
}
