//! READY: the client's end is paired, and its memory waits.

use std::fmt;

use forebay_verbs::Remote;

use super::prepare::is_name;
use super::{NAME, digits, header};
use crate::Refusal;

/// What a client says before the bytes go.
#[derive(Clone, PartialEq, Eq)]
pub struct Ready {
    /// The session.
    pub session: String,
    /// The number that comes behind the last byte.
    pub cookie: u32,
    /// The client's queue pair.
    pub number: u32,
    /// The client's memory, for GET; zeros for PUT.
    pub memory: Remote,
}

impl Ready {
    /// The headers of the request.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        vec![
            (header::PROTOCOL, NAME.to_owned()),
            (header::SESSION, self.session.clone()),
            (header::COOKIE, format!("{:08x}", self.cookie)),
            (header::NUMBER, format!("{:x}", self.number)),
            (header::ADDRESS, format!("{:x}", self.memory.address)),
            (header::KEY, format!("{:x}", self.memory.key)),
        ]
    }

    /// Of a request's headers.
    pub fn parse<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Self, Refusal> {
        let wrong = Refusal::Malformed("READY lacks a header, or one cannot be read");
        if get(header::PROTOCOL).map(str::trim) != Some(NAME) {
            return Err(Refusal::Malformed("the protocol is not hipobj-rc-v2"));
        }
        let of = |name: &str, most| get(name).and_then(|text| digits(text, most)).ok_or(wrong);
        let session = get(header::SESSION).map(str::trim).filter(|name| is_name(name)).ok_or(wrong)?;
        Ok(Self {
            session: session.to_owned(),
            cookie: of(header::COOKIE, 8)? as u32,
            number: of(header::NUMBER, 8)? as u32,
            memory: Remote { address: of(header::ADDRESS, 16)?, key: of(header::KEY, 8)? as u32 },
        })
    }
}

/// The headers that end a session early.
pub fn cancel(session: &str) -> Vec<(&'static str, String)> {
    vec![(header::PROTOCOL, NAME.to_owned()), (header::SESSION, session.to_owned())]
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("number", &self.number).finish_non_exhaustive()
    }
}
