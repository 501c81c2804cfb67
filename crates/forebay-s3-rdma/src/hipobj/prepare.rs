//! PREPARE: what the client wants, and the server's end.

use std::fmt;

use forebay_verbs::{QueueEnd, Remote};

use super::{EndToken, MOST_BYTES, NAME, decimal, digits, header};
use crate::headers::{REPLY, TOKEN};
use crate::{Operation, Refusal};

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// GET or PUT.
    pub operation: Operation,
    /// `/bucket/key`, as a request line has it.
    pub target: String,
    /// Where the bytes begin in the object.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
    /// The client's end. Its MTU is not sent.
    pub end: QueueEnd,
    /// The number that comes behind the last byte; never 0.
    pub cookie: u32,
}

impl Prepare {
    /// The headers of the request.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        vec![
            (header::PROTOCOL, NAME.to_owned()),
            (header::OPERATION, word(self.operation).to_owned()),
            (header::TARGET, self.target.clone()),
            (header::OFFSET, self.offset.to_string()),
            (header::SIZE, self.bytes.to_string()),
            (header::FIRST, format!("{:06x}", self.end.first)),
            (header::COOKIE, format!("{:08x}", self.cookie)),
            (TOKEN, EndToken::of(&self.end).text()),
        ]
    }

    /// Of a request's headers, for servers whose port has this MTU.
    pub fn parse<'a>(mtu: u32, get: impl Fn(&str) -> Option<&'a str>) -> Result<Self, Refusal> {
        const fn wrong(why: &'static str) -> Refusal {
            Refusal::Malformed(why)
        }
        if get(header::PROTOCOL).map(str::trim) != Some(NAME) {
            return Err(wrong("the protocol is not hipobj-rc-v2"));
        }
        let operation = match get(header::OPERATION).unwrap_or_default().trim() {
            "GET" => Operation::Get,
            "PUT" => Operation::Put,
            _ => return Err(wrong("the operation is neither GET nor PUT")),
        };
        let target = get(header::TARGET).filter(|target| target.starts_with('/'));
        let target = target.ok_or(wrong("the target does not begin with /"))?.to_owned();
        let offset = get(header::OFFSET).and_then(decimal).ok_or(wrong("there is no offset"))?;
        let bytes = get(header::SIZE).and_then(decimal).filter(|bytes| (1..=MOST_BYTES).contains(bytes));
        let bytes = bytes.ok_or(wrong("the size is not from 1 to 2147483647"))?;
        let first = get(header::FIRST).and_then(|text| digits(text, 6)).unwrap_or_default() as u32;
        let cookie = get(header::COOKIE).and_then(|text| digits(text, 8)).unwrap_or_default() as u32;
        if cookie == 0 {
            return Err(wrong("the cookie is not from 1 to ffffffff"));
        }
        let token = get(TOKEN).and_then(EndToken::parse).ok_or(wrong("the token is not 88 digits"))?;
        let end = token.end(first, mtu);
        end.check().map_err(|_| wrong("no queue pair is like that"))?;
        Ok(Self { operation, target, offset, bytes, end, cookie })
    }
}

const fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Get => "GET",
        Operation::Put => "PUT",
    }
}

/// A session that waits for READY.
#[derive(Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its name.
    pub session: String,
    /// The server's end.
    pub end: QueueEnd,
    /// The server's memory, for PUT.
    pub memory: Remote,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The server does not speak it, or not for this: the bytes go by the body.
    Unsupported,
    /// More than it moves at once, or it has too many sessions: the bytes go by the body this time.
    NotNow(u16),
    /// It refuses the request, as it would refuse it without RDMA.
    Status(u16),
    /// An answer that cannot be read: why.
    Wrong(&'static str),
}

impl Prepared {
    /// The headers of the answer.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let Remote { key, address } = self.memory;
        let mut all = vec![
            (header::PROTOCOL, NAME.to_owned()),
            (REPLY, format!("200:{}", EndToken::of(&self.end).text())),
            (header::SESSION, self.session.clone()),
            (header::FIRST, format!("{:06x}", self.end.first)),
            (header::NUMBER, format!("{:x}", self.end.number)),
        ];
        if address != 0 {
            all.extend([(header::ADDRESS, format!("{address:x}")), (header::KEY, format!("{key:x}"))]);
        }
        all
    }

    /// Of an answer, for a client whose port has this MTU.
    pub fn parse<'a>(
        operation: Operation,
        mtu: u32,
        status: u16,
        get: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, Refused> {
        match status {
            200..=299 => {}
            501 => return Err(Refused::Unsupported),
            413 | 429 | 503 => return Err(Refused::NotNow(status)),
            // A server without this path takes it for a bucket's name.
            404 | 405 if get(header::PROTOCOL).is_none() => return Err(Refused::Unsupported),
            _ => return Err(Refused::Status(status)),
        }
        if get(header::PROTOCOL).map(str::trim) != Some(NAME) {
            return Err(Refused::Unsupported);
        }
        let token = get(REPLY).and_then(|reply| reply.trim().strip_prefix("200:"));
        let token = token.and_then(EndToken::parse).ok_or(Refused::Wrong("the reply has no end"))?;
        let session = get(header::SESSION).map(str::trim).filter(|name| is_name(name));
        let session = session.ok_or(Refused::Wrong("there is no session"))?.to_owned();
        let first = get(header::FIRST).and_then(|text| digits(text, 6)).unwrap_or_default() as u32;
        let end = token.end(first, mtu);
        end.check().map_err(|_| Refused::Wrong("no queue pair is like that"))?;
        let address = get(header::ADDRESS).and_then(|text| digits(text, 16)).unwrap_or_default();
        let key = get(header::KEY).and_then(|text| digits(text, 8)).unwrap_or_default() as u32;
        if operation == Operation::Put && address == 0 {
            return Err(Refused::Wrong("there is no memory to write to"));
        }
        Ok(Self { session, end, memory: Remote { key, address } })
    }
}

/// Whether it can be a session's name in a header.
pub(super) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("number", &self.end.number).finish_non_exhaustive()
    }
}
