//! Keys that sign, and the keys that are derived from them once a day.

use std::fmt;
use std::sync::Mutex;
use std::time::SystemTime;

use reqsign_core::hash::hmac_sha256;

use crate::lock;

/// Derived keys that are kept: of days and regions.
const KEPT: usize = 8;

/// Keys of an account. Its secrets are shown nowhere.
pub(crate) struct Keys {
    pub(super) id: String,
    pub(super) secret: String,
    pub(super) token: Option<String>,
    /// When they are over.
    pub(crate) expires: Option<SystemTime>,
    derived: Mutex<Vec<(String, Vec<u8>)>>,
}

impl Keys {
    pub(super) fn new(
        id: String,
        secret: String,
        token: Option<String>,
        expires: Option<SystemTime>,
    ) -> Self {
        Self { id, secret, token, expires, derived: Mutex::new(Vec::new()) }
    }

    /// The key that signs in a scope: `DAY/REGION/SERVICE/aws4_request`.
    pub(super) fn derived(&self, scope: &str) -> Vec<u8> {
        let mut all = lock(&self.derived);
        if let Some((_, key)) = all.iter().find(|(known, _)| known == scope) {
            return key.clone();
        }
        let begin = format!("AWS4{}", self.secret).into_bytes();
        let key = scope.split('/').fold(begin, |key, part| hmac_sha256(&key, part.as_bytes()));
        if all.len() == KEPT {
            all.remove(0);
        }
        all.push((scope.to_owned(), key.clone()));
        key
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("expires", &self.expires).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From AWS's page on deriving a signing key.
    #[test]
    fn derived_keys_are_right_and_kept() {
        let keys =
            Keys::new("AKIDEXAMPLE".into(), "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into(), None, None);
        for _ in 0..2 {
            let key = keys.derived("20150830/us-east-1/iam/aws4_request");
            assert_eq!(key[..4], [0xc4, 0xaf, 0xb1, 0xcc]);
            assert_eq!(key[28..], [0xc1, 0x54, 0xa4, 0xb9]);
        }
        for day in 0..2 * KEPT {
            keys.derived(&format!("{day}/r/s3/aws4_request"));
        }
        assert_eq!(lock(&keys.derived).len(), KEPT);
    }

    #[test]
    fn secrets_are_not_shown() {
        let keys = Keys::new("AKID".into(), "wJalr".into(), Some("token".into()), None);
        assert_eq!(format!("{keys:?}"), "Keys { expires: None, .. }");
    }
}
