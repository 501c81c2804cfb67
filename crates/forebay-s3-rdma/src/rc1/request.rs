//! What an object's request asks of RDMA, for servers.

use super::Token;
use crate::headers::{OTHER_TOKEN, TOKEN};
use crate::{Dialect, Refusal};

/// What the heads of a GET, PUT or UploadPart ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing of RDMA.
    Plain,
    /// A transfer by this dialect.
    Rc1(Token),
    /// A transfer by another one.
    Other(Dialect),
}

impl Ask {
    /// Of a request's headers, whose names are asked for in lower case. A token of no dialect is refused.
    pub fn parse<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Result<Self, Refusal> {
        let Some(token) = header(TOKEN).or_else(|| header(OTHER_TOKEN)) else { return Ok(Self::Plain) };
        match Dialect::of_token(token.trim()) {
            Some(Dialect::Rc1) => Token::parse(token.trim()).map(Self::Rc1),
            Some(other) => Ok(Self::Other(other)),
            None => Err(Refusal::Malformed("the token is of no dialect that is known")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_each_kind() {
        let of = |name: &'static str, value: &'static str| {
            Ask::parse(move |asked| (asked == name).then_some(value))
        };
        let cu = "00007f7c4a000000:00100000:001820a5:0000:012f4b:1:00000000000000000000ffff0a000001";
        assert_eq!(of("range", "bytes=0-1"), Ok(Ask::Plain));
        assert_eq!(of(TOKEN, cu), Ok(Ask::Other(Dialect::CuObject)));
        assert_eq!(of(OTHER_TOKEN, cu), Ok(Ask::Other(Dialect::CuObject)));
        let rc = of(TOKEN, "rc:000102030405060708090a0b0c0d0e0f:1:7f00:10:5");
        assert!(matches!(rc, Ok(Ask::Rc1(Token { bytes: 16, .. }))), "{rc:?}");
        for wrong in ["", "rc:1", "hello"] {
            let refused = of(TOKEN, wrong).unwrap_err();
            assert_eq!((refused.status(), refused.code(), refused.reply()), (400, "InvalidRDMAToken", None));
        }
    }
}
