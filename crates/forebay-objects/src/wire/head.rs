//! Heads of replies.

use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};

use super::call::{Method, ReplyHead};
use super::framing::Framing;

/// The longest head.
pub(super) const LONGEST: usize = 64 << 10;
/// The most headers in one.
const MOST_HEADERS: usize = 256;
/// How heads begin.
const BEGINS: &[u8] = b"HTTP/1.";
/// The message of an error where a reply begins in another way.
pub(super) const NO_HTTP: &str = "the server does not answer in HTTP/1.1";

/// A head as it came.
#[derive(Debug)]
pub(super) struct RawHead {
    pub(super) head: ReplyHead,
    /// Bytes of it.
    pub(super) bytes: usize,
    pub(super) framing: Framing,
    /// Whether the connection may be used again, and for how long the server keeps it, where it says that.
    pub(super) keeps: bool,
    pub(super) keeps_for: Option<Duration>,
}

impl RawHead {
    /// Whether another head follows: 100 Continue and the like.
    pub(super) fn is_interim(&self) -> bool {
        (100..200).contains(&self.head.status)
    }
}

/// Finds the end of a head in bytes that come piece by piece.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    /// Bytes that were searched.
    searched: usize,
}

impl HeadReader {
    /// Whether it needs more than these bytes.
    pub(super) fn has_read(&self, came: &[u8]) -> bool {
        self.searched >= came.len()
    }

    /// The head at the beginning of what came until now; `None` where it has not ended yet.
    pub(super) fn read(&mut self, came: &[u8], method: Method) -> Result<Option<RawHead>> {
        let blank = came.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let known = BEGINS.len().min(came.len() - blank);
        if came[blank..][..known] != BEGINS[..known] {
            return Err(strange(NO_HTTP));
        }
        let from = self.searched.saturating_sub(3).max(blank);
        let is_whole = came[from..].windows(3).any(|end| end[..2] == *b"\n\n" || end == b"\n\r\n")
            || came[from..].ends_with(b"\n\n");
        self.searched = came.len();
        match is_whole {
            true => parse(came, method).map(Some),
            false if came.len() >= LONGEST => {
                Err(strange("the head of the server's reply is too long").with("most", LONGEST))
            }
            false => Ok(None),
        }
    }
}

fn strange(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

fn parse(came: &[u8], method: Method) -> Result<RawHead> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut reply = httparse::Response::new(&mut headers);
    let bytes = match reply.parse(came) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Err(strange("the head of the server's reply is cut")),
        Err(error) => {
            return Err(strange("the head of the server's reply is no HTTP").with("reason", error));
        }
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
    let headers = reply.headers.iter().map(|one| (one.name.to_ascii_lowercase(), text(one.value))).collect();
    let mut head = ReplyHead { status: reply.code.unwrap_or_default(), headers, length: None };
    let (is_chunked, length) = (is_chunked(&head)?, length(&head)?);
    head.length = length.filter(|_| !is_chunked);
    let has_body = method != Method::Head && head.status >= 200 && !matches!(head.status, 204 | 304);
    let framing = match head.length {
        _ if !has_body => Framing::of_length(0),
        _ if is_chunked => Framing::chunked(),
        Some(length) => Framing::of_length(length),
        None => Framing::UntilClose,
    };
    // Both lengths at once: where the next reply begins is in doubt.
    let is_doubtful = is_chunked && length.is_some();
    let keeps = keeps(&head, reply.version == Some(1)) && framing != Framing::UntilClose && !is_doubtful;
    let keeps_for = keeps_for(&head);
    Ok(RawHead { head, bytes, framing, keeps, keeps_for })
}

/// All values of a header, of which there may be several.
fn values<'a>(head: &'a ReplyHead, name: &'a str) -> impl Iterator<Item = &'a str> {
    let of_name = head.headers.iter().filter(move |(found, _)| found == name);
    of_name.flat_map(|(_, value)| value.split(',')).map(str::trim).filter(|value| !value.is_empty())
}

fn is_chunked(head: &ReplyHead) -> Result<bool> {
    let codings: Vec<_> = values(head, "transfer-encoding").collect();
    match codings[..] {
        [] => Ok(false),
        [one] if one.eq_ignore_ascii_case("chunked") => Ok(true),
        _ => Err(strange("the server's reply has an encoding that was not asked for")
            .with("encoding", codings.join(", "))),
    }
}

fn length(head: &ReplyHead) -> Result<Option<u64>> {
    let mut all = values(head, "content-length");
    let Some(first) = all.next() else { return Ok(None) };
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    match first.parse() {
        Ok(length) if is_number && all.all(|other| other == first) => Ok(Some(length)),
        _ => Err(strange("the server's reply has no valid length").with("content-length", first)),
    }
}

fn keeps(head: &ReplyHead, is_newer: bool) -> bool {
    let has = |word: &str| values(head, "connection").any(|value| value.eq_ignore_ascii_case(word));
    !has("close") && (is_newer || has("keep-alive"))
}

fn keeps_for(head: &ReplyHead) -> Option<Duration> {
    let timeout = values(head, "keep-alive").find_map(|value| value.strip_prefix("timeout="))?;
    timeout.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, method: Method) -> Result<RawHead> {
        Ok(HeadReader::default().read(text.as_bytes(), method)?.expect("a whole head"))
    }

    fn refused(text: &str) -> String {
        read(text, Method::Get).unwrap_err().to_string()
    }

    #[test]
    fn a_head_says_how_long_its_body_is() {
        let get = |text: &str| read(text, Method::Get).unwrap();
        let head = get("HTTP/1.1 206 Partial Content\r\nContent-Length: 12\r\nETag: \"a\"\r\n\r\nbody");
        assert_eq!(
            (head.head.status, head.head.length, head.framing),
            (206, Some(12), Framing::of_length(12))
        );
        assert_eq!(head.head.header("etag"), Some("\"a\""));
        assert!(head.keeps && head.keeps_for.is_none());
        assert_eq!(get("HTTP/1.1 200 OK\nContent-Length: 3\n\n").head.length, Some(3));
        let head = read("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", Method::Head).unwrap();
        assert_eq!((head.head.length, head.framing), (Some(7), Framing::of_length(0)));
        for status in [204, 304] {
            let head = get(&format!("HTTP/1.1 {status} x\r\nContent-Length: 7\r\n\r\n"));
            assert_eq!(head.framing, Framing::of_length(0));
        }
        let head = get("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Length: 7\r\n\r\n");
        assert_eq!((head.head.length, head.framing, head.keeps), (None, Framing::chunked(), false));
        let head = get("HTTP/1.1 200\r\n\r\n");
        assert_eq!((head.framing, head.keeps), (Framing::UntilClose, false));
        assert!(get("HTTP/1.1 100 Continue\r\n\r\n").is_interim());
    }

    #[test]
    fn a_head_says_whether_the_connection_stays() {
        let keeps = |more: &str, version: &str| {
            let text = format!("HTTP/{version} 200 OK\r\nContent-Length: 0\r\n{more}\r\n\r\n");
            let head = read(&text, Method::Get).unwrap();
            (head.keeps, head.keeps_for.map(|time| time.as_secs()))
        };
        assert_eq!(keeps("Connection: CLOSE", "1.1"), (false, None));
        assert_eq!(keeps("Connection: te, close", "1.1"), (false, None));
        assert_eq!(keeps("Keep-Alive: timeout=5, max=100", "1.1"), (true, Some(5)));
        assert_eq!(keeps("X: y", "1.0"), (false, None));
        assert_eq!(keeps("Connection: keep-alive", "1.0"), (true, None));
    }

    #[test]
    fn what_is_no_head_is_refused() {
        assert!(refused("\x15\x03\x01").contains("does not answer in HTTP/1.1"));
        assert!(refused("HTTP/2 200\r\n\r\n").contains("does not answer in HTTP/1.1"));
        assert!(refused("HTTP/1.1 two\r\n\r\n").contains("no HTTP"));
        for length in ["-1", "+1", "1, 2", "18446744073709551616", "0x10"] {
            let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            assert!(refused(&text).contains("no valid length"), "{length}");
        }
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
        assert!(refused(text).contains("encoding=gzip, chunked"));
        let many = "A: b\r\n".repeat(MOST_HEADERS + 1);
        assert!(refused(&format!("HTTP/1.1 200 OK\r\n{many}\r\n")).contains("too many headers"));
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(LONGEST));
        assert!(refused(&long).contains("too long"));
    }

    proptest! {
        #[test]
        fn a_head_is_the_same_however_it_is_cut(cuts in proptest::collection::vec(0usize..90, 0..6), bare in any::<bool>()) {
            let text = "\r\nHTTP/1.1 206 Partial Content\r\nContent-Length: 12\r\nETag: \"a\"\r\nA: b\r\n\r\nthe rest of it";
            let text = if bare { text.replace('\r', "") } else { text.to_owned() };
            let mut ends: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([text.len()]).collect();
            ends.sort_unstable();
            let mut reader = HeadReader::default();
            let found = ends.into_iter().find_map(|end| reader.read(&text.as_bytes()[..end], Method::Get).unwrap());
            let found = found.unwrap();
            prop_assert_eq!(&text[found.bytes..], "the rest of it");
            prop_assert_eq!(found.head.header("a"), Some("b"));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = HeadReader::default().read(&bytes, Method::Get);
            let _ = HeadReader::default().read(&[b"HTTP/1.1 200 OK\r\n", &bytes[..], b"\r\n\r\n"].concat(), Method::Get);
        }
    }
}
