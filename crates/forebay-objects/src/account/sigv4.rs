//! Signatures of version 4: <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqsign_core::hash::{hex_hmac_sha256, hex_sha256};

use super::keys::Keys;

/// The SHA-256 of nothing.
pub(super) const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// What stands for the hash of a body that is not hashed.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A moment as requests have it: `20130524T000000Z`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment(String);

impl Moment {
    pub(super) fn of(time: SystemTime) -> Self {
        let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        Self(format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z"))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    fn day(&self) -> &str {
        &self.0[..8]
    }
}

/// Year, month and day of a day since 1970, by Howard Hinnant's `civil_from_days`.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + u64::from(month <= 2), month, of_year - (153 * shifted + 2) / 5 + 1)
}

/// What a signature is for: a region and a service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope<'a> {
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

impl Scope<'_> {
    /// With the day: `20130524/us-east-1/s3/aws4_request`.
    pub(super) fn at(&self, moment: &Moment) -> String {
        format!("{}/{}/{}/aws4_request", moment.day(), self.region, self.service)
    }
}

/// A request as it is signed.
#[derive(Debug)]
pub(super) struct Signable<'a> {
    pub(super) method: &'a str,
    /// Percent-encoded once.
    pub(super) path: &'a str,
    pub(super) query: &'a [(String, String)],
    /// Headers that are signed; their names in lower case.
    pub(super) headers: &'a [(String, String)],
    /// The hash of the body, or a word for it.
    pub(super) payload: &'a str,
}

impl Signable<'_> {
    /// The names of its headers as a signature lists them.
    pub(super) fn signed_headers(&self) -> String {
        let mut names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.join(";")
    }

    /// The signature: 64 hexadecimal digits.
    pub(super) fn sign(&self, keys: &Keys, moment: &Moment, scope: Scope<'_>) -> String {
        let scope = scope.at(moment);
        let hash = hex_sha256(self.canonical().as_bytes());
        let text = format!("{ALGORITHM}\n{}\n{scope}\n{hash}", moment.as_str());
        hex_hmac_sha256(&keys.derived(&scope), text.as_bytes())
    }

    /// The value of `Authorization`.
    pub(super) fn authorization(&self, keys: &Keys, moment: &Moment, scope: Scope<'_>) -> String {
        let (id, at, headers) = (&keys.id, scope.at(moment), self.signed_headers());
        let signature = self.sign(keys, moment, scope);
        format!("{ALGORITHM} Credential={id}/{at}, SignedHeaders={headers}, Signature={signature}")
    }

    fn canonical(&self) -> String {
        let mut text = format!("{}\n{}\n{}\n", self.method, self.path, query(self.query, true));
        let mut headers: Vec<_> = self.headers.iter().collect();
        headers.sort_by(|a, b| a.0.cmp(&b.0));
        let mut last = None;
        for (name, value) in headers {
            let again = last == Some(name);
            if !again {
                let line = if last.is_some() { "\n" } else { "" };
                let _ = write!(text, "{line}{name}:");
            }
            text.push_str(if again { "," } else { "" });
            for (index, word) in value.split_ascii_whitespace().enumerate() {
                text.push_str(if index == 0 { "" } else { " " });
                text.push_str(word);
            }
            last = Some(name);
        }
        let _ = write!(text, "\n\n{}\n{}", self.signed_headers(), self.payload);
        text
    }
}

/// A query: sorted, encoded. One that is signed has a `=` behind each name; one that is sent has none behind a bare name.
pub(super) fn query(pairs: &[(String, String)], is_signed: bool) -> String {
    let mut pairs: Vec<_> =
        pairs.iter().map(|(name, value)| (encoded(name, false), encoded(value, false))).collect();
    pairs.sort();
    let mut text = String::new();
    for (name, value) in pairs {
        text.push_str(if text.is_empty() { "" } else { "&" });
        text.push_str(&name);
        if is_signed || !value.is_empty() {
            let _ = write!(text, "={value}");
        }
    }
    text
}

/// A text with all but letters, digits, `-._~`, and `/` where it is kept, by the numbers of its bytes.
pub(crate) fn encoded(text: &str, keeps_slash: bool) -> String {
    let mut coded = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keeps_slash && byte == b'/') {
            coded.push(byte as char);
        } else {
            let _ = write!(coded, "%{byte:02X}");
        }
    }
    coded
}

#[cfg(test)]
impl Moment {
    /// A moment that a request has.
    pub(super) fn read(text: &str) -> Self {
        Self(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (1_709_251_199, "20240229T235959Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(Moment::of(UNIX_EPOCH + Duration::from_secs(seconds)).as_str(), text);
        }
    }

    #[test]
    fn texts_are_encoded_once() {
        assert_eq!(encoded("a b/+%ü~", true), "a%20b/%2B%25%C3%BC~");
        assert_eq!(encoded("a/b", false), "a%2Fb");
        let pairs = [("b".to_owned(), String::new()), ("a".to_owned(), "x/y".to_owned())];
        assert_eq!(query(&pairs, true), "a=x%2Fy&b=");
        assert_eq!(query(&pairs, false), "a=x%2Fy&b");
    }
}
