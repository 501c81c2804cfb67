//! Tokens: the session, and the client's memory.

use std::fmt;

use forebay_verbs::Remote;

use crate::Refusal;
use crate::hex::{array, hex, number};

/// A session's name, which the server draws at random.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// Of random bytes.
    pub const fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// Of 32 digits.
    pub fn parse(text: &str) -> Option<Self> {
        array(text).map(Self)
    }

    /// 32 digits.
    pub fn text(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to find it among others, too little to use it.
        write!(f, "SessionId({}…)", hex(&self.0[..2]))
    }
}

/// What a request says of the client's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The session whose connection reaches it.
    pub session: SessionId,
    /// The request's number: above those of all requests of the session before. So a request that comes twice moves nothing.
    pub number: u64,
    /// The memory.
    pub memory: Remote,
    /// Bytes that go, neither more nor fewer.
    pub bytes: u64,
}

impl Token {
    /// The value of [`crate::headers::TOKEN`].
    pub fn text(&self) -> String {
        let Remote { address, key } = self.memory;
        format!("rc:{}:{:x}:{address:x}:{:x}:{key:x}", self.session.text(), self.number, self.bytes)
    }

    /// Of the header's value.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let wrong = Refusal::Malformed("the token is not rc:SESSION:NUMBER:ADDRESS:SIZE:KEY");
        let mut fields = text.split(':');
        let mut next = || fields.next().ok_or(wrong);
        if next()? != "rc" {
            return Err(wrong);
        }
        let session = SessionId::parse(next()?).ok_or(wrong)?;
        let request = number(next()?, 16).ok_or(wrong)?;
        let address = number(next()?, 16).ok_or(wrong)?;
        let bytes = number(next()?, 16).ok_or(wrong)?;
        let key = number(next()?, 8).ok_or(wrong)? as u32;
        if fields.next().is_some() {
            return Err(wrong);
        }
        if address.checked_add(bytes).is_none() {
            return Err(Refusal::Malformed("the token's memory goes beyond the last address"));
        }
        Ok(Self { session, number: request, memory: Remote { key, address }, bytes })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("session", &self.session)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SESSION: &str = "000102030405060708090a0b0c0d0e0f";

    #[test]
    fn a_recorded_token() {
        let token = Token::parse(&format!("rc:{SESSION}:1f:7f7c4a000000:100000:1820a5")).unwrap();
        assert_eq!(token.session.text(), SESSION);
        assert_eq!(token.memory, Remote { key: 0x18_20a5, address: 0x7f7c_4a00_0000 });
        assert_eq!((token.number, token.bytes), (31, 1 << 20));
    }

    #[test]
    fn malformed_ones() {
        for rest in [
            "",
            ":",
            ":7f00:10:5",
            ":1:7f00:10",
            ":1:7f00:10:5:6",
            ":1:7f00:10:",
            ":1:7f00::5",
            "::7f00:10:5",
            ":1:7F00:10:5",
            ":1:+7f:10:5",
            ":1:7f00:10:100000000",
            ":1:10000000000000000:10:5",
            ":10000000000000000:7f00:10:5",
            ":1:ffffffffffffffff:1:5",
        ] {
            let text = format!("rc:{SESSION}{rest}");
            assert!(matches!(Token::parse(&text), Err(Refusal::Malformed(_))), "{text}");
        }
        assert!(Token::parse(&format!("rc:{}:1:7f00:10:5", &SESSION[1..])).is_err());
        assert!(Token::parse(&format!("r:{SESSION}:1:7f00:10:5")).is_err());
    }

    #[test]
    fn what_reaches_memory_is_not_printed() {
        let token = Token::parse(&format!("rc:{SESSION}:1f:7f7c4a000000:10:1820a5")).unwrap();
        let shown = format!("{token:?}");
        for secret in [SESSION, "7f7c", "1820a5", "1581221"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("SessionId(0001…)") && shown.contains("bytes: 16"), "{shown}");
    }

    proptest! {
        #[test]
        fn tokens_come_back(session: [u8; 16], number: u64, address: u32, bytes: u32, key: u32) {
            let memory = Remote { key, address: address.into() };
            let token = Token { session: SessionId::new(session), number, memory, bytes: bytes.into() };
            prop_assert_eq!(Token::parse(&token.text()), Ok(token));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(rc:)?[0-9a-fA-F:+ ]{0,90}") {
            if let Ok(token) = Token::parse(&text) {
                // Zeros in front are all that another spelling may have.
                prop_assert_eq!(Token::parse(&token.text()), Ok(token));
            }
        }
    }
}
