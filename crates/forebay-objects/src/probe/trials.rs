//! What an endpoint can do, by trying it.

use std::time::{Duration, SystemTime};

use forebay_error::{Error, Result};
use forebay_remote::stop;

use super::Trial;
use crate::by_rdma::look;
use crate::calls::checksum;
use crate::calls::{Bucket, ObjectHead, ObjectUpload, Refusal};
use crate::wire::call::{Body, Method, ReplyHead};

pub(super) const RANGES: &str = "ranges";

/// Of the object that parts are tried with: more than one.
const PARTS_BYTES: usize = 17 << 20;

/// How long an interrupted probe waits for the removal of its object.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(2);

fn trial(name: &'static str, works: bool, seen: impl Into<String>, hint: &str) -> Trial {
    // A server's words go to a terminal.
    let seen = forebay_error::plain(&seen.into()).into_owned();
    Trial { name, works, seen, hint: (!works).then(|| hint.to_owned()) }
}

/// What needs an object that is there.
pub(super) fn reads(bucket: &Bucket, key: &str, object: &ObjectHead) -> Result<Vec<Trial>> {
    // The head of the object came by a connection, which is there still, or not.
    let kept = bucket.endpoint.network.facts().connections > 0;
    let mut all = vec![trial(
        "keep-alive",
        kept,
        if kept { "connections are kept" } else { "the server closes each connection behind its reply" },
        "turn it on at the server (versitygw: --keep-alive) or at the proxy before it: each range needs a new connection",
    )];
    if object.len > 0 {
        all.push(ranges(bucket, key, object)?);
        all.push(conditions(bucket, key)?);
    }
    let (names, hint) = (names(object), "write it again by forebay cp: its bytes cannot be checked");
    all.push(trial(
        "checksums",
        !names.is_empty(),
        if names.is_empty() { "the object has none" } else { &names },
        hint,
    ));
    let is_tls = bucket.endpoint.site.tls;
    let seen = if is_tls { "encrypted" } else { "clear text: others on the way can read it" };
    all.push(trial("tls", is_tls, seen, "name an https:// endpoint: AWS_ENDPOINT_URL=https://…"));
    all.extend(rdma(bucket, key, object));
    Ok(all)
}

/// `None`: this machine has no NIC for it on the way to the server.
fn rdma(bucket: &Bucket, key: &str, object: &ObjectHead) -> Option<Trial> {
    let found = look(bucket, key, object)?;
    let hint = "if it is forebay's gateway: forebay serve s3 DIR --rdma; to not ask: FOREBAY_S3_RDMA=off";
    let hint =
        found.as_ref().err().and_then(|error| error.hints().first().cloned()).unwrap_or(hint.to_owned());
    let works = found.is_ok();
    Some(trial("rdma", works, found.unwrap_or_else(|error| error.to_string()), &hint))
}

fn names(object: &ObjectHead) -> String {
    let of = if object.is_full_checksum { "the whole object" } else { "its parts" };
    let names: Vec<&str> = object.checksums.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() { String::new() } else { format!("{} of {of}", names.join(", ")) }
}

/// The first byte, by a request with these headers.
fn first_byte(bucket: &Bucket, key: &str, further: Option<(&str, &str)>) -> Result<ReplyHead, Refusal> {
    let mut ask = bucket.ask(Method::Get, key);
    ask.headers.push(("range".to_owned(), "bytes=0-0".to_owned()));
    ask.headers.extend(further.map(|(name, value)| (name.to_owned(), value.to_owned())));
    bucket.head_of(&ask)
}

fn ranges(bucket: &Bucket, key: &str, object: &ObjectHead) -> Result<Trial> {
    let head = first_byte(bucket, key, None).map_err(Error::from)?;
    let expected = format!("bytes 0-0/{}", object.len);
    // rclone's server says 200, and which bytes it sends.
    let works = matches!(head.status, 200 | 206) && head.header("content-range") == Some(&expected);
    let seen = if works {
        format!("{} with the bytes asked for", head.status)
    } else {
        format!("status {}", head.status)
    };
    Ok(trial(RANGES, works, seen, "use another server or proxy: objects cannot be read in parallel"))
}

/// Whether an object that was replaced is noticed.
fn conditions(bucket: &Bucket, key: &str) -> Result<Trial> {
    let name = "conditional reads";
    let hint = "do not replace objects while they are read: the server does not say so";
    match first_byte(bucket, key, Some(("if-match", "\"of-no-object\""))) {
        Err(refusal) if refusal.status == 412 => Ok(trial(name, true, "If-Match is obeyed", "")),
        Ok(head) => Ok(trial(name, false, format!("If-Match is ignored: status {}", head.status), hint)),
        Err(refusal) => Err(refusal.error),
    }
}

/// What needs new objects. They are removed in the end.
pub(super) fn writes(bucket: &Bucket, key: &str) -> Result<Vec<Trial>> {
    let folder = key.rfind('/').map_or("", |at| &key[..=at]);
    // Processes of different machines and containers may have one number.
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let new = format!("{folder}.forebay-probe-{:08x}-{now:x}", std::process::id());
    let done = write_all(bucket, &new);
    let removed = stop::patiently(REMOVAL_PATIENCE, || bucket.delete(&new));
    if stop::is_stopped() {
        return Err(stop::stopped());
    }
    removed.map(|()| done)
}

fn write_all(bucket: &Bucket, key: &str) -> Vec<Trial> {
    let mut all = Vec::new();
    let if_new = [("if-none-match", "*".to_owned())];
    let put = |headers: &[(&str, String)]| bucket.put_body(key, &Body::Bytes((*b"probe").into()), headers);
    let first = put(&if_new);
    let works = first.is_ok() && put(&if_new).is_err_and(|refusal| matches!(refusal.status, 409 | 412));
    let (seen, hint) = match &first {
        Ok(_) if works => ("If-None-Match is obeyed".to_owned(), ""),
        Ok(_) => (
            "If-None-Match is ignored".to_owned(),
            "let one writer at a time write a key: the last one stays",
        ),
        Err(refusal) => (refusal.error.to_string(), "use credentials that may write here"),
    };
    all.push(trial("conditional writes", works, seen, hint));
    if first.is_err() && put(&[]).is_err() {
        return all;
    }
    let wrong = [("x-amz-checksum-crc64nvme", checksum::text(checksum::crc64(b"other")))];
    let (works, seen) = match put(&wrong) {
        Err(refusal) => (true, format!("wrong bytes are refused ({})", refusal.code)),
        Ok(_) => (false, "wrong bytes are stored".to_owned()),
    };
    all.push(trial("checked writes", works, seen, "compare after writing: forebay cp --verify"));
    all.push(multipart(bucket, key));
    all
}

fn multipart(bucket: &Bucket, key: &str) -> Trial {
    let bytes = vec![7; PARTS_BYTES];
    match ObjectUpload::write_whole(bucket.clone(), key, &bytes) {
        Ok(()) => trial("multipart", true, "an object of two parts is whole", ""),
        Err(error) => {
            trial("multipart", false, error.to_string(), "keep objects below 16 MiB, or use another server")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They go to a terminal.
    #[test]
    fn words_of_a_server_steer_no_terminal() {
        let one = trial("ranges", false, "status 500 \u{1b}]0;title\u{7}\u{9b}2J\u{202e}", "hint");
        assert_eq!(one.seen, r"status 500 \u{1b}]0;title\u{7}\u{9b}2J\u{202e}");
    }
}
