//! Connecting: the two queue ends, as JSON in the bodies of a signed request and of its answer.

use std::fmt;

use forebay_verbs::QueueEnd;
use serde::{Deserialize, Serialize};

use super::{SessionId, VERSION};
use crate::Refusal;
use crate::hex::{array, hex};

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectAsk {
    /// Its queue end.
    pub end: QueueEnd,
    /// RDMA READs that its device answers at a time. 0: it cannot be read from, so there is no PUT by RDMA.
    pub reads: u8,
}

/// A server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectAnswer {
    /// What tokens name.
    pub session: SessionId,
    /// Its queue end.
    pub end: QueueEnd,
    /// Bytes of the longest operation.
    pub operation_bytes: u64,
    /// The session ends after this time without a request.
    pub idle_seconds: u32,
    /// Keys of memory windows are taken as those of regions are.
    pub windows: bool,
}

/// The endpoint does not connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRefused {
    /// HTTP's status.
    pub status: u16,
    /// The answer is 200, and not of the dialect.
    pub is_wrong: bool,
}

impl fmt::Display for ConnectRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_wrong {
            f.write_str("the answer to connect is not of the dialect rc1")
        } else {
            write!(f, "the endpoint answers {} to connect", self.status)
        }
    }
}

impl std::error::Error for ConnectRefused {}

#[derive(Serialize, Deserialize)]
struct WireEnd {
    qpn: u32,
    psn: u32,
    gid: String,
    lid: u16,
    port: u8,
    mtu: u32,
}

impl WireEnd {
    fn of(end: &QueueEnd) -> Self {
        Self {
            qpn: end.number,
            psn: end.first,
            gid: hex(&end.gid),
            lid: end.lid,
            port: end.port,
            mtu: end.mtu,
        }
    }

    fn read(&self) -> Option<QueueEnd> {
        let end = QueueEnd {
            number: self.qpn,
            first: self.psn,
            gid: array(&self.gid)?,
            lid: self.lid,
            port: self.port,
            mtu: self.mtu,
        };
        end.check().ok().map(|()| end)
    }
}

#[derive(Serialize, Deserialize)]
struct WireAsk {
    version: u32,
    end: WireEnd,
    reads: u8,
}

#[derive(Serialize, Deserialize)]
struct WireAnswer {
    version: u32,
    session: String,
    end: WireEnd,
    operation_bytes: u64,
    idle_seconds: u32,
    keys: Vec<String>,
}

fn json(value: &impl Serialize) -> String {
    // Numbers and texts alone: nothing that JSON has no form for.
    serde_json::to_string(value).unwrap_or_default()
}

impl ConnectAsk {
    /// The body.
    pub fn to_json(&self) -> String {
        json(&WireAsk { version: VERSION, end: WireEnd::of(&self.end), reads: self.reads })
    }

    /// Of a body. Fields that are not known are passed over.
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let wire: WireAsk = serde_json::from_slice(body)
            .map_err(|_| Refusal::Malformed("the body is not the JSON of a connect"))?;
        if wire.version != VERSION {
            return Err(Refusal::Malformed("the version of the dialect is not 1"));
        }
        let end = wire.end.read().ok_or(Refusal::Malformed("the queue end has a value that cannot be"))?;
        Ok(Self { end, reads: wire.reads })
    }
}

impl ConnectAnswer {
    /// The body.
    pub fn to_json(&self) -> String {
        let mut keys = vec!["region".to_owned()];
        if self.windows {
            keys.push("window".to_owned());
        }
        json(&WireAnswer {
            version: VERSION,
            session: self.session.text(),
            end: WireEnd::of(&self.end),
            operation_bytes: self.operation_bytes,
            idle_seconds: self.idle_seconds,
            keys,
        })
    }

    /// Of an answer.
    pub fn parse(status: u16, body: &[u8]) -> Result<Self, ConnectRefused> {
        if status != 200 {
            return Err(ConnectRefused { status, is_wrong: false });
        }
        Self::read(body).ok_or(ConnectRefused { status, is_wrong: true })
    }

    fn read(body: &[u8]) -> Option<Self> {
        let wire: WireAnswer = serde_json::from_slice(body).ok()?;
        Some(Self {
            session: SessionId::parse(&wire.session).filter(|_| wire.version == VERSION)?,
            end: wire.end.read()?,
            operation_bytes: wire.operation_bytes,
            idle_seconds: wire.idle_seconds,
            windows: wire.keys.iter().any(|key| key == "window"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ASK: &str = r#"{"version":1,"end":{"qpn":17,"psn":4711,"gid":"00000000000000000000ffff0a000001","lid":0,"port":1,"mtu":4096},"reads":16}"#;
    const ANSWER: &str = r#"{"version":1,"session":"000102030405060708090a0b0c0d0e0f","end":{"qpn":18,"psn":1,"gid":"00000000000000000000ffff0a000002","lid":0,"port":1,"mtu":1024},"operation_bytes":4294967295,"idle_seconds":300,"keys":["region","window"]}"#;

    #[test]
    fn recorded_bodies() {
        let ask = ConnectAsk::parse(ASK.as_bytes()).unwrap();
        assert_eq!((ask.end.number, ask.end.first, ask.end.mtu, ask.reads), (17, 4711, 4096, 16));
        assert_eq!(ask.end.gid[10..], [255, 255, 10, 0, 0, 1]);
        assert_eq!(ask.to_json(), ASK);
        let answer = ConnectAnswer::parse(200, ANSWER.as_bytes()).unwrap();
        assert_eq!((answer.operation_bytes, answer.idle_seconds, answer.windows), (4_294_967_295, 300, true));
        assert_eq!(answer.to_json(), ANSWER);
        let more = ASK.replacen('{', r#"{"later":[],"#, 1);
        assert_eq!(ConnectAsk::parse(more.as_bytes()), Ok(ask));
    }

    #[test]
    fn bodies_that_are_refused() {
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"psn\":4711", "\"psn\":0"),
            ("\"psn\":4711", "\"psn\":16777216"),
            ("\"qpn\":17", "\"qpn\":16777216"),
            ("\"qpn\":17", "\"qpn\":1"),
            ("\"mtu\":4096", "\"mtu\":1500"),
            ("\"mtu\":4096", "\"mtu\":8192"),
            ("\"reads\":16", "\"reads\":256"),
            ("0a000001\"", "0a0001\""),
            ("0a000001\"", "0A000001\""),
            ("}", ""),
        ] {
            let body = ASK.replacen(from, to, 1);
            let refused = ConnectAsk::parse(body.as_bytes()).unwrap_err();
            assert_eq!(refused.status(), 400, "{body}");
        }
    }

    #[test]
    fn answers_that_do_not_connect() {
        for status in [403, 404, 405, 501, 503] {
            let refused = ConnectAnswer::parse(status, b"<Error/>").unwrap_err();
            assert_eq!(refused, ConnectRefused { status, is_wrong: false });
        }
        for body in ["", "<a/>", "{}", &ANSWER.replacen("0001", "00", 1), &ANSWER.replacen(":1", ":2", 1)] {
            assert!(ConnectAnswer::parse(200, body.as_bytes()).unwrap_err().is_wrong, "{body}");
        }
    }

    proptest! {
        #[test]
        fn bodies_come_back(
            number in 2..1_u32 << 24, first in 1..1_u32 << 24, gid: [u8; 16], lid in 1_u16.., port: u8, size in 8_u32..=12,
            reads: u8, session: [u8; 16], operation_bytes: u64, idle_seconds: u32, windows: bool,
        ) {
            let end = QueueEnd { number, first, gid, lid, port, mtu: 1_u32 << size };
            let ask = ConnectAsk { end, reads };
            prop_assert_eq!(ConnectAsk::parse(ask.to_json().as_bytes()), Ok(ask));
            let session = SessionId::new(session);
            let answer = ConnectAnswer { session, end, operation_bytes, idle_seconds, windows };
            prop_assert_eq!(ConnectAnswer::parse(200, answer.to_json().as_bytes()), Ok(answer));
        }
    }
}
