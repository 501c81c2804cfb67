//! Requests that our client signs: a line of text each for method, key, query and headers. The gateway takes each signature, and its
//! store sees the key that the client meant.
#![no_main]

use forebay_fuzz_gateway::{Call, Server};
use forebay_objects::fuzz::{Signed, path};
use libfuzzer_sys::fuzz_target;

const METHODS: [&str; 5] = ["GET", "HEAD", "PUT", "POST", "DELETE"];
/// Names that say what the operation is, most of them.
const NAMES: [&str; 30] = [
    "uploads",
    "uploadId",
    "partNumber",
    "delete",
    "tagging",
    "acl",
    "list-type",
    "prefix",
    "delimiter",
    "marker",
    "continuation-token",
    "start-after",
    "max-keys",
    "encoding-type",
    "versions",
    "key-marker",
    "versionId",
    "location",
    "attributes",
    "range",
    "x-amz-checksum-crc32",
    "x-amz-copy-source",
    "x-amz-tagging",
    "x-amz-meta-a",
    "if-match",
    "if-none-match",
    "content-md5",
    "x-amz-object-attributes",
    "content-type",
    "x-amz-acl",
];

thread_local! { static SERVER: Server = Server::new(); }

/// `name=value`, where a digit pair stands for a known name.
fn pair(line: &str) -> (String, String) {
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    let known = name.parse::<usize>().ok().and_then(|number| NAMES.get(number));
    (known.map_or(name, |known| known).to_owned(), value.to_owned())
}

/// As HTTP has headers, and as no signature or connection needs them.
fn is_header((name, value): &(String, String)) -> bool {
    let own =
        ["host", "content-length", "transfer-encoding", "connection", "authorization", "expect", "upgrade"];
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && !own.contains(&name.as_str())
        && !["x-amz-date", "x-amz-content-sha256", "date", "te", "trailer"].contains(&name.as_str())
}

fuzz_target!(|text: &str| {
    let mut lines = text.split('\n');
    let method = METHODS[lines.next().unwrap_or_default().len() % METHODS.len()];
    let key = lines.next().unwrap_or_default();
    let mut query: Vec<_> = lines.next().unwrap_or_default().split('&').map(pair).collect();
    // A signature in the URL is another one.
    query.retain(|(name, _)| {
        !name.is_empty() && !name.to_ascii_lowercase().starts_with("x-amz-") && name != "Signature"
    });
    let mut headers: Vec<_> = lines.map(pair).filter(is_header).collect();
    headers.dedup_by(|a, b| a.0 == b.0);
    headers.sort();
    headers.dedup_by(|a, b| a.0 == b.0);
    let request = Signed {
        method,
        path: &format!("/bucket/{}", path(key)),
        query: &query,
        headers: &headers,
        payload: "UNSIGNED-PAYLOAD",
    };
    let (answer, calls) = SERVER.with(|server| server.signed(&request, b""));
    let Some(answer) = answer else { return };
    assert!(!answer.body.contains("SignatureDoesNotMatch"), "{answer:?}");
    let is_plain = query.is_empty() && headers.is_empty();
    // A key that no store has is removed already.
    if method == "DELETE" && is_plain && !key.is_empty() && !key.contains('\0') && answer.status == 204 {
        assert!(calls == [Call::Removed(key.to_owned())], "{calls:?}");
    }
});
