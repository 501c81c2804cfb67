//! Signatures beside a second implementation: reqsign's.

use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::hash::hex_sha256;
use reqsign_core::{Context, SignRequest};

use super::head::Signing;
use super::keys::Keys;
use super::place::Place;
use super::sigv4::{EMPTY_SHA256, Moment, Scope, Signable, UNSIGNED};
use crate::wire::call::{Ask, Body, Method};
use crate::wire::site::Site;

const REGION: &str = "eu-west-1";

/// Requests of the quick tests, and of those of the night.
const SOME: u32 = 1_000;
const MANY: u32 = 100_000;

/// Published examples for any service, from the test suite of version 4 that AWS has for authors of clients.
#[test]
fn published_suite() {
    let keys = Keys::new("AKIDEXAMPLE".into(), "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into(), None, None);
    let moment = Moment::of(UNIX_EPOCH + Duration::from_mins(24_015_636));
    let scope = Scope { region: "us-east-1", service: "service" };
    let form = hex_sha256(b"Param1=value1");
    for (name, method, path, query, headers, payload, signature) in [
        (
            "get-vanilla",
            "GET",
            "/",
            &[][..],
            &[][..],
            EMPTY_SHA256,
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "post-vanilla",
            "POST",
            "/",
            &[],
            &[],
            EMPTY_SHA256,
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            "get-vanilla-query-order-key-case",
            "GET",
            "/",
            &[("Param2", "value2"), ("Param1", "value1")],
            &[],
            EMPTY_SHA256,
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "get-header-key-duplicate",
            "GET",
            "/",
            &[],
            &[("my-header1", "value2"), ("my-header1", "value2"), ("my-header1", "value1")],
            EMPTY_SHA256,
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        ),
        (
            "get-header-value-trim",
            "GET",
            "/",
            &[],
            &[("my-header1", " value1"), ("my-header2", " \"a   b   c\"")],
            EMPTY_SHA256,
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
        (
            "get-unreserved",
            "GET",
            "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            &[],
            &[],
            EMPTY_SHA256,
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        (
            "get-utf8",
            "GET",
            "/%E1%88%B4",
            &[],
            &[],
            EMPTY_SHA256,
            "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        ),
        (
            "post-x-www-form-urlencoded",
            "POST",
            "/",
            &[],
            &[("content-type", "application/x-www-form-urlencoded")],
            &form,
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ] {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>()
        };
        let mut all = owned(&[("host", "example.amazonaws.com"), ("x-amz-date", moment.as_str())]);
        all.extend(owned(headers));
        let signed = Signable { method, path, query: &owned(query), headers: &all, payload };
        assert_eq!(signed.sign(&keys, &moment, scope), signature, "{name}");
    }
}

/// A request, and whether its keys have a token.
#[derive(Clone, Debug)]
struct Case {
    ask: Ask,
    body: Vec<u8>,
    token: Option<String>,
    in_path: bool,
    requester_pays: bool,
}

/// Pieces of keys and values that encoders get wrong.
fn text() -> impl Strategy<Value = String> {
    const PIECES: [&str; 20] = [
        "/", "//", "..", "/./", "+", "%", "%41", "%2F", " ", "  ", "~", "&", "=", "?", "#", "ü", "🦀",
        "\u{7f}", "*", "'",
    ];
    let piece = prop_oneof![
        proptest::sample::select(&PIECES[..]).prop_map(ToOwned::to_owned),
        "[a-zA-Z0-9._-]{1,8}",
        "\\PC{0,4}"
    ];
    vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

fn cases() -> impl Strategy<Value = Case> {
    let method =
        proptest::sample::select(&[Method::Get, Method::Head, Method::Put, Method::Post, Method::Delete][..]);
    let name = proptest::sample::select(
        &["prefix", "delimiter", "uploads", "partNumber", "versionId", "x y", "ü"][..],
    );
    let header = proptest::sample::select(
        &["range", "if-match", "content-type", "x-amz-meta-a", "x-amz-checksum-crc32c"][..],
    );
    let value = vec("[!-~]{1,6}", 0..4).prop_map(|words| words.join(" "));
    let token = proptest::option::of("[A-Za-z0-9+/=]{1,80}");
    let pairs = proptest::collection::btree_map(name, text(), 0..4);
    let headers = proptest::collection::btree_map(header, value, 0..3);
    let flags = (any::<bool>(), any::<bool>());
    (method, text(), pairs, headers, vec(any::<u8>(), 0..40), token, flags).prop_map(
        |(method, key, query, headers, body, token, (in_path, requester_pays))| {
            let query = query.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            Case {
                ask: Ask { method, bucket: "bucket".into(), key, query, headers },
                body,
                token,
                in_path,
                requester_pays,
            }
        },
    )
}

impl Case {
    fn keys(&self) -> Keys {
        Keys::new("AKIDEXAMPLE".into(), "wJalr/secret+".into(), self.token.clone(), None)
    }

    fn credential(&self) -> Credential {
        let keys = self.keys();
        Credential {
            access_key_id: keys.id.clone(),
            secret_access_key: keys.secret.clone(),
            session_token: keys.token.clone(),
            expires_in: None,
        }
    }

    fn place(&self) -> Place {
        let host = if self.in_path { "localhost" } else { "bucket.localhost" }.to_owned();
        let authority = format!("{host}:9000");
        let site = Site { tls: false, host, port: 9000, proxy: None, ca_file: None };
        Place { site, authority, path: if self.in_path { "/bucket".into() } else { String::new() } }
    }

    fn signing<'a>(&self, keys: &'a Keys, now: SystemTime) -> Signing<'a> {
        Signing { keys: Some(keys), region: REGION, requester_pays: self.requester_pays, now }
    }

    fn body(&self) -> Body {
        if self.body.is_empty() { Body::None } else { Body::Bytes(self.body.as_slice().into()) }
    }

    /// Ours as a request of the `http` crate.
    fn signed_head(&self, now: SystemTime) -> http::request::Parts {
        let keys = self.keys();
        let head = self.signing(&keys, now).head(&self.place(), &self.ask, &self.body()).unwrap();
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut parsed = httparse::Request::new(&mut headers);
        assert!(parsed.parse(&head).unwrap().is_complete());
        let url = format!("http://{}{}", self.place().authority, parsed.path.unwrap());
        let mut request = http::Request::builder().method(parsed.method.unwrap()).uri(url);
        for header in parsed.headers {
            request = request.header(header.name, header.value);
        }
        request.body(()).unwrap().into_parts().0
    }
}

/// Has reqsign sign a request, now.
fn sign_by_reqsign(parts: &mut http::request::Parts, credential: &Credential, expires: Option<Duration>) {
    let (signer, context) = (RequestSigner::new("s3", REGION), Context::new());
    let mut future = pin!(signer.sign_request(&context, parts, Some(credential), expires));
    let answer = future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(answer, std::task::Poll::Ready(Ok(()))), "{answer:?}");
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%')
            .then(|| u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).unwrap()
}

/// Whether the signature of a request is that of the keys, as a server looks at it.
fn verify(parts: &http::request::Parts, keys: &Keys) -> bool {
    let pairs = parts.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut query: Vec<_> = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
    let of_query = |name: &str| query.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let header = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let (names, signature, date, payload) = if let Some(text) = header("authorization") {
        let part =
            |name: &str| text.split([' ', ',']).find_map(|part| part.strip_prefix(name)).unwrap().to_owned();
        let payload = header("x-amz-content-sha256").unwrap();
        (part("SignedHeaders="), part("Signature="), header("x-amz-date").unwrap(), payload)
    } else {
        let part = |name: &str| of_query(name).unwrap();
        let payload = header("x-amz-content-sha256").unwrap_or_else(|| UNSIGNED.to_owned());
        (part("X-Amz-SignedHeaders"), part("X-Amz-Signature"), part("X-Amz-Date"), payload)
    };
    query.retain(|(name, _)| name != "X-Amz-Signature");
    let mut headers = Vec::new();
    for name in names.split(';') {
        let host = || parts.uri.authority().unwrap().to_string();
        headers.push((
            name.to_owned(),
            header(name).unwrap_or_else(|| if name == "host" { host() } else { panic!("{name}") }),
        ));
    }
    let signed = Signable {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: &query,
        headers: &headers,
        payload: &payload,
    };
    signed.sign(keys, &Moment::read(&date), Scope { region: REGION, service: "s3" }) == signature
}

fn run(count: u32, test: impl Fn(&Case)) {
    let config = Config { cases: count, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new(config).run(&cases(), |case| {
        test(&case);
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

/// reqsign signs what a client sends for a request, by header and by URL; ours verifies.
fn reqsign_signs(case: &Case) {
    let keys = case.keys();
    for expires in [None, Some(Duration::from_mins(5))] {
        let mut parts = case.signed_head(UNIX_EPOCH);
        for name in ["authorization", "x-amz-date", "x-amz-security-token"] {
            parts.headers.remove(name);
        }
        sign_by_reqsign(&mut parts, &case.credential(), expires);
        assert!(verify(&parts, &keys), "{case:?}: {parts:?}");
        let other = Keys::new("AKIDEXAMPLE".into(), "another".into(), None, None);
        assert!(!verify(&parts, &other));
    }
}

/// Ours signs; reqsign signs the same request in the same second, and comes to the same.
fn ours_signs(case: &Case) {
    loop {
        let ours = case.signed_head(SystemTime::now());
        assert!(verify(&ours, &case.keys()));
        let mut again = ours.clone();
        // reqsign signs every header.
        for name in ["authorization", "content-length", "accept-encoding", "user-agent"] {
            again.headers.remove(name);
        }
        sign_by_reqsign(&mut again, &case.credential(), None);
        if Moment::of(SystemTime::now()).as_str() == ours.headers["x-amz-date"] {
            assert_eq!(again.headers["authorization"], ours.headers["authorization"], "{case:?}");
            return;
        }
    }
}

#[test]
fn what_reqsign_signs_ours_verifies() {
    run(SOME, reqsign_signs);
}

#[test]
fn ours_signs_as_reqsign_does() {
    run(SOME, ours_signs);
}

#[test]
#[ignore = "200 000 requests take minutes: make nightly"]
fn many_signatures() {
    run(MANY, reqsign_signs);
    run(MANY, ours_signs);
}
