//! Heads of requests, and signed URLs.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use forebay_error::{Error, ErrorKind, Result};
use reqsign_core::hash::hex_sha256;

use super::keys::Keys;
use super::place::Place;
use super::sigv4::{ALGORITHM, EMPTY_SHA256, Moment, Scope, Signable, UNSIGNED, encoded, query};
use crate::wire::call::{Ask, Body, Method};

/// Bytes of the longest body whose hash is signed. Longer ones are checked by checksums.
const LONGEST_HASHED: usize = 64 << 10;

/// How long a signed URL lives at most.
const LONGEST_URL: Duration = Duration::from_hours(7 * 24);

impl Method {
    /// Its word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// What signs, and what every request of an account says.
pub(super) struct Signing<'a> {
    /// `None`: nobody signs.
    pub(super) keys: Option<&'a Keys>,
    pub(super) region: &'a str,
    pub(super) requester_pays: bool,
    pub(super) now: SystemTime,
}

impl Signing<'_> {
    /// A header with a line break would be two: values come from users, from files and from providers of keys.
    fn check(&self, ask: &Ask) -> Result<()> {
        check(&ask.headers)?;
        let Some(keys) = self.keys else { return Ok(()) };
        let of_keys = [("the access key", Some(&keys.id)), ("the session token", keys.token.as_ref())];
        match of_keys.into_iter().find(|(_, value)| value.is_some_and(|value| !fits(value))) {
            None => Ok(()),
            Some((what, _)) => {
                let text = format!("cannot sign requests: {what} has a control character");
                Err(Error::new(ErrorKind::InvalidInput, text))
            }
        }
    }

    fn scope(&self) -> Scope<'_> {
        Scope { region: self.region, service: "s3" }
    }

    /// The head of a request as it is sent.
    pub(super) fn head(&self, place: &Place, ask: &Ask, body: &Body) -> Result<Vec<u8>> {
        self.check(ask)?;
        let moment = Moment::of(self.now);
        let path = place.path(&ask.key);
        let mut headers = vec![("host".to_owned(), place.authority.clone())];
        headers.extend(ask.headers.iter().map(|(name, value)| (name.clone(), value.trim_ascii().to_owned())));
        if self.requester_pays {
            headers.push(("x-amz-request-payer".to_owned(), "requester".to_owned()));
        }
        if let Some(keys) = self.keys {
            let payload = payload(ask, body);
            if ask.header("x-amz-content-sha256").is_none() {
                headers.push(("x-amz-content-sha256".to_owned(), payload.clone()));
            }
            headers.push(("x-amz-date".to_owned(), moment.as_str().to_owned()));
            headers.extend(keys.token.iter().map(|token| ("x-amz-security-token".to_owned(), token.clone())));
            let method = ask.method.as_str();
            let signed =
                Signable { method, path: &path, query: &ask.query, headers: &headers, payload: &payload };
            let authorization = signed.authorization(keys, &moment, self.scope());
            headers.push(("authorization".to_owned(), authorization));
        }
        Ok(written(place, ask, body, &path, &headers))
    }

    /// A URL that anyone may use for a while, without keys.
    pub(super) fn url(&self, place: &Place, ask: &Ask, expires: Duration) -> Result<String> {
        self.check(ask)?;
        let seconds = expires.as_secs();
        if seconds == 0 || expires > LONGEST_URL {
            let error = Error::new(ErrorKind::InvalidInput, "cannot sign a URL for so long");
            return Err(error.with("seconds", seconds).hint("from 1 second to 604800, which are 7 days"));
        }
        let Some(keys) = self.keys else {
            let error = Error::new(ErrorKind::InvalidInput, "cannot sign a URL without keys");
            return Err(error.hint("unset AWS_NO_SIGN_REQUEST and AWS_SKIP_SIGNATURE"));
        };
        let moment = Moment::of(self.now);
        let path = place.path(&ask.key);
        let mut headers = vec![("host".to_owned(), place.authority.clone())];
        headers.extend(ask.headers.iter().cloned());
        let unsigned = Signable {
            method: ask.method.as_str(),
            path: &path,
            query: &[],
            headers: &headers,
            payload: UNSIGNED,
        };
        let mut pairs = ask.query.clone();
        let mut add = |name: &str, value: String| pairs.push((name.to_owned(), value));
        add("X-Amz-Algorithm", ALGORITHM.to_owned());
        add("X-Amz-Credential", format!("{}/{}", keys.id, self.scope().at(&moment)));
        add("X-Amz-Date", moment.as_str().to_owned());
        add("X-Amz-Expires", seconds.to_string());
        add("X-Amz-SignedHeaders", unsigned.signed_headers());
        if let Some(token) = &keys.token {
            add("X-Amz-Security-Token", token.clone());
        }
        if self.requester_pays {
            add("x-amz-request-payer", "requester".to_owned());
        }
        let signature = Signable { query: &pairs, ..unsigned }.sign(keys, &moment, self.scope());
        let scheme = if place.site.tls { "https" } else { "http" };
        Ok(format!(
            "{scheme}://{}{path}?{}&X-Amz-Signature={signature}",
            place.authority,
            query(&pairs, true)
        ))
    }
}

impl Ask {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

fn fits(value: &str) -> bool {
    value.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

fn check(headers: &[(String, String)]) -> Result<()> {
    let is_token = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    match headers.iter().find(|(name, value)| !is_token(name) || !fits(value)) {
        None => Ok(()),
        Some((name, _)) => {
            let error =
                Error::new(ErrorKind::InvalidInput, "cannot send a header: it has a control character");
            Err(error.with("header", name))
        }
    }
}

/// The hash of the body, where it is short or absent.
fn payload(ask: &Ask, body: &Body) -> String {
    match (ask.header("x-amz-content-sha256"), body) {
        (Some(given), _) => given.to_owned(),
        (None, Body::None) => EMPTY_SHA256.to_owned(),
        (None, Body::Bytes(bytes)) if bytes.len() <= LONGEST_HASHED => hex_sha256(bytes),
        (None, Body::Bytes(_) | Body::Memory(_)) => UNSIGNED.to_owned(),
    }
}

fn written(place: &Place, ask: &Ask, body: &Body, path: &str, headers: &[(String, String)]) -> Vec<u8> {
    let mut text = String::with_capacity(1024);
    let _ = write!(text, "{} ", ask.method.as_str());
    // A proxy of plain HTTP is asked for whole URLs; through one with TLS there is a tunnel.
    let proxy = place.site.proxy.as_ref().filter(|_| !place.site.tls);
    if proxy.is_some() {
        let _ = write!(text, "http://{}", place.authority);
    }
    text.push_str(path);
    if !ask.query.is_empty() {
        let _ = write!(text, "?{}", query(&ask.query, false));
    }
    text.push_str(" HTTP/1.1\r\n");
    let mut line = |name: &str, value: &str| {
        let _ = write!(text, "{name}: {value}\r\n");
    };
    for (name, value) in headers {
        line(name, value);
    }
    let length = match body {
        Body::None => matches!(ask.method, Method::Put | Method::Post).then_some(0),
        Body::Bytes(bytes) => Some(bytes.len()),
        Body::Memory(range) => Some(range.len),
    };
    if let Some(length) = length {
        line("content-length", &length.to_string());
    }
    // Not signed: servers in between change it.
    line("accept-encoding", "identity");
    line("user-agent", concat!("forebay/", env!("CARGO_PKG_VERSION")));
    if let Some(authorization) = proxy.and_then(|proxy| proxy.authorization.as_deref()) {
        line("proxy-authorization", authorization);
    }
    text.push_str("\r\n");
    text.into_bytes()
}

impl Place {
    /// The path of a key, encoded once.
    pub(super) fn path(&self, key: &str) -> String {
        match key.is_empty() {
            true if self.path.is_empty() => "/".to_owned(),
            true => self.path.clone(),
            false => format!("{}/{}", self.path, encoded(key, true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::wire::site::Site;

    fn example_keys(token: Option<&str>) -> Keys {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        Keys::new("AKIAIOSFODNN7EXAMPLE".into(), secret.into(), token.map(ToOwned::to_owned), None)
    }

    fn example_place() -> Place {
        let host = "examplebucket.s3.amazonaws.com".to_owned();
        let site = Site { tls: true, host: host.clone(), port: 443, proxy: None, ca_file: None };
        Place { site, authority: host, path: String::new() }
    }

    fn signing(keys: &Keys) -> Signing<'_> {
        let now = UNIX_EPOCH + Duration::from_hours(380_376);
        Signing { keys: Some(keys), region: "us-east-1", requester_pays: false, now }
    }

    fn ask(method: Method, key: &str, query: &[(&str, &str)], headers: &[(&str, &str)]) -> Ask {
        let owned =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let (query, headers) = (owned(query), owned(headers));
        Ask { method, bucket: "examplebucket".into(), key: key.into(), query, headers }
    }

    /// The examples of AWS's pages on signatures by header and by query for S3.
    #[test]
    fn published_examples() {
        let text: std::sync::Arc<[u8]> = b"Welcome to Amazon S3.".as_slice().into();
        let put = [("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")];
        for (ask, body, signature) in [
            (
                ask(Method::Get, "test.txt", &[], &[("range", "bytes=0-9")]),
                Body::None,
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                ask(Method::Put, "test$file.text", &[], &put),
                Body::Bytes(text),
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                ask(Method::Get, "", &[("lifecycle", "")], &[]),
                Body::None,
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                ask(Method::Get, "", &[("max-keys", "2"), ("prefix", "J")], &[]),
                Body::None,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let head = signing(&example_keys(None)).head(&example_place(), &ask, &body).unwrap();
            let head = String::from_utf8(head).unwrap();
            assert!(head.contains(&format!("Signature={signature}\r\n")), "{head}");
        }
    }

    #[test]
    fn published_url() {
        let asked = ask(Method::Get, "test.txt", &[], &[]);
        let url =
            signing(&example_keys(None)).url(&example_place(), &asked, Duration::from_hours(24)).unwrap();
        assert_eq!(
            url,
            "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
    }
}
