//! Bodies in aws-chunked with trailers. What a reader of a few lines takes has these bytes; chunks that are made rightly are taken.
#![no_main]

use base64_simd::STANDARD as BASE64;
use crc_fast::{CrcAlgorithm, checksum};
use forebay_fuzz_gateway::{Call, Server};
use forebay_objects::fuzz::Signed;
use libfuzzer_sys::fuzz_target;

const KINDS: [&str; 3] = [
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
];
const NAME: &str = "x-amz-checksum-crc64nvme";

thread_local! { static SERVER: Server = Server::new(); }

/// The bytes of chunks, as far as there are any: the plainest reading of the format.
fn plain(mut body: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = body.windows(2).position(|part| part == b"\r\n") {
        let line = String::from_utf8_lossy(&body[..end]).into_owned();
        let Ok(len) = usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16) else { break };
        let rest = &body[end + 2..];
        if len == 0 || rest.len() < len + 2 {
            break;
        }
        all.extend_from_slice(&rest[..len]);
        body = &rest[len + 2..];
    }
    all
}

/// Chunks of these lengths, and the trailer.
fn chunked(bytes: &[u8], lengths: &[u8]) -> Vec<u8> {
    let (mut body, mut rest, mut lengths) = (Vec::new(), bytes, lengths.iter().cycle());
    while !rest.is_empty() {
        let len = (usize::from(*lengths.next().unwrap_or(&9)) * 7 + 1).min(rest.len());
        body.extend_from_slice(format!("{len:x}\r\n").as_bytes());
        body.extend_from_slice(&rest[..len]);
        body.extend_from_slice(b"\r\n");
        rest = &rest[len..];
    }
    let sum = checksum(CrcAlgorithm::Crc64Nvme, bytes);
    let sum = BASE64.encode_to_string(sum.to_be_bytes());
    body.extend_from_slice(format!("0\r\n{NAME}:{sum}\r\n\r\n").as_bytes());
    body
}

fn put(kind: &str, said: usize, body: &[u8]) -> (Option<u16>, Option<Vec<u8>>) {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut headers = vec![
        header("content-encoding", "aws-chunked"),
        header("x-amz-decoded-content-length", &said.to_string()),
    ];
    if kind.ends_with("TRAILER") {
        headers.push(header("x-amz-trailer", NAME));
    }
    let request = Signed { method: "PUT", path: "/bucket/key", query: &[], headers: &headers, payload: kind };
    let (answer, calls) = SERVER.with(|server| server.signed(&request, body));
    let written = calls.into_iter().find_map(|call| match call {
        Call::Written(_, bytes, _) => Some(bytes),
        _ => None,
    });
    (answer.map(|answer| answer.status), written)
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    if choice % 4 == 3 {
        let (lengths, bytes) = rest.split_at(rest.len().min(4));
        let (status, written) = put(KINDS[0], bytes.len(), &chunked(bytes, lengths));
        assert!(status == Some(200) && written.as_deref() == Some(bytes), "{status:?}");
        return;
    }
    let Some((said, body)) = rest.split_at_checked(2) else { return };
    let said = usize::from(u16::from_be_bytes([said[0], said[1]]));
    let kind = KINDS[usize::from(choice % 4)];
    let (status, written) = put(kind, said, body);
    assert!(written.is_none() || status == Some(200), "{status:?}");
    if let Some(written) = written {
        // What follows a body that is said, and signed, to have no bytes is not looked at.
        let read = if said == 0 { Vec::new() } else { plain(body) };
        assert!(written.len() == said && written == read, "{} bytes", written.len());
        // Nobody but the account signs a chunk.
        assert!(kind == KINDS[0] || said == 0, "{kind}");
    }
});
