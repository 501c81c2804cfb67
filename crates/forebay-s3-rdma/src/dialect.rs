//! Dialects by their tokens.

use std::fmt;

use crate::hex::is_hex;

/// A dialect that is known by its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// [`crate::rc1`]: `rc:SESSION:NUMBER:ADDRESS:SIZE:KEY`.
    Rc1,
    /// cuObject's descriptor of 81 characters; older programs put `:ADDRESS:SIZE` behind it.
    CuObject,
    /// hipObject's 44 bytes in 88 digits, and `:ADDRESS:SIZE` behind them.
    HipObject,
    /// A libfabric endpoint.
    Libfabric,
    /// 24 bytes in 48 digits: address, key, length, offset.
    Nixl,
}

/// Digits of each field of cuObject's descriptor: address, size, key, LID, DCT number, whether there is a GID, GID.
const CU_FIELDS: [usize; 7] = [16, 8, 8, 4, 6, 1, 32];
/// Digits of hipObject's token.
const HIP_DIGITS: usize = 88;
/// Digits of NIXL's.
const NIXL_DIGITS: usize = 48;

impl Dialect {
    /// The dialect that a token is of. The token itself may still be malformed.
    pub fn of_token(token: &str) -> Option<Self> {
        let fields: Vec<&str> = token.split(':').collect();
        match fields[..] {
            ["rc", ..] => Some(Self::Rc1),
            [_, _, "ofi1", ..] => Some(Self::Libfabric),
            [one] if one.len() == NIXL_DIGITS && is_hex(one) => Some(Self::Nixl),
            [one] | [one, _, _] if one.len() == HIP_DIGITS && is_hex(one) => Some(Self::HipObject),
            _ if is_cu_object(&fields) => Some(Self::CuObject),
            _ => None,
        }
    }

    /// As receipts and the access log have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc1 => "rc1",
            Self::CuObject => "cuobject",
            Self::HipObject => "hipobject",
            Self::Libfabric => "libfabric",
            Self::Nixl => "nixl",
        }
    }
}

fn is_cu_object(fields: &[&str]) -> bool {
    let (count, extra) = (CU_FIELDS.len(), fields.len().saturating_sub(CU_FIELDS.len()));
    fields.len() >= count
        && (extra == 0 || extra == 2)
        && fields.iter().zip(CU_FIELDS).all(|(field, digits)| field.len() == digits && is_hex(field))
        && fields[count..].iter().all(|field| is_hex(field))
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CU: &str = "00007f7c4a000000:00100000:001820a5:0000:012f4b:1:00000000000000000000ffff0a000001";

    #[test]
    fn tokens_of_each() {
        assert_eq!(CU.len(), 81);
        let hip = "01".repeat(44);
        let appended = format!("{CU}:00007f7c4a000000:0000000000100000");
        let table = [
            ("rc:000102030405060708090a0b0c0d0e0f:1:7f00:10:5", Some(Dialect::Rc1)),
            ("rc:", Some(Dialect::Rc1)),
            (CU, Some(Dialect::CuObject)),
            (&appended, Some(Dialect::CuObject)),
            (&hip, Some(Dialect::HipObject)),
            (&format!("{hip}:7f00:10"), Some(Dialect::HipObject)),
            ("7f00:100000:ofi1:verbs:0a0b:5", Some(Dialect::Libfabric)),
            (&"0".repeat(48), Some(Dialect::Nixl)),
            ("", None),
            (&CU[..80], None),
            (&CU.to_uppercase(), None),
            (&format!("{CU}:1"), None),
            (&hip[..86], None),
            ("rca:1", None),
        ];
        for (token, dialect) in table {
            assert_eq!(Dialect::of_token(token), dialect, "{token}");
        }
    }
}
