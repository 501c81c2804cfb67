//! A connection that lends files, and has left HTTP for that.
//!
//! It begins with a request for a file, signed and checked as any, that has `upgrade: forebay-files`. A signature and its check take
//! longer than all that is done for the file, so the connection stands for the key of that request from then on.
//!
//! | | bytes |
//! |---|---|
//! | ask | the path of a request, percent-encoded; a space and an ETag with its quotes, where the object is to be that one; a line feed |
//! | answer | a head of HTTP: 200, and a descriptor beside its first byte; or 421: ask by a signed request, whose answer says why |
//!
//! One ask is answered before the next comes. The account is looked up for each: a key that is gone, or has another secret, ends the
//! connection.

use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hyper::StatusCode;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::access_log::Line;
use super::passing::{Listening, Passing};
use super::site::{Phase, Site};
use super::watch::Watched;
use crate::front::{FILES, FileGrant, LentFile, LocalPeer};

/// Each byte of the longest key takes three in a path.
const LONGEST_ASK: usize = 4 << 10;
const BY_REQUEST: &str = "HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n";

/// Makes an answer the last one by HTTP.
pub(super) fn switch<T>(answer: &mut hyper::Response<T>) {
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(FILES));
}

/// A connection whose last answer by HTTP is out.
pub(super) struct FileConnection {
    socket: Listening,
    peer: Arc<LocalPeer>,
    grant: FileGrant,
    site: Arc<Site>,
    from: String,
}

impl FileConnection {
    /// `None`: it is not one, or the client did not wait for the answer.
    pub(super) async fn begin(
        mut grant: FileGrant,
        peer: Arc<LocalPeer>,
        site: Arc<Site>,
        from: String,
    ) -> Option<Self> {
        let upgraded: Upgraded = (&mut grant.upgrade).await.ok()?;
        let parts = upgraded.downcast::<TokioIo<Watched<Passing>>>().ok()?;
        let socket = parts.io.into_inner().into_inner().listening().ok()?;
        parts.read_buf.is_empty().then_some(Self { socket, peer, grant, site, from })
    }

    /// Answers until an end closes it, the account is gone, or the server ends.
    pub(super) async fn serve(self) -> io::Result<()> {
        let (mut phase, idle_time) = (self.site.phase.clone(), self.site.limits.idle_time);
        let mut room = [0; LONGEST_ASK];
        loop {
            let ask = tokio::select! {
                ask = timeout(idle_time, self.receive(&mut room)) => ask??,
                _ = phase.wait_for(|phase| *phase >= Phase::Ending) => return Ok(()),
            };
            let Some(answer) = self.answer(ask).await else { return Ok(()) };
            // A client that has not read the answers before gets no more of them.
            if self.socket.send(answer.as_bytes())? < answer.len() {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
    }

    /// One ask, without its line feed.
    async fn receive<'a>(&self, room: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let mut len = 0;
        while !room[..len].contains(&b'\n') {
            match self.socket.next(&mut room[len..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                came => len += came,
            }
        }
        Ok(&room[..len - 1])
    }

    /// `None`: the connection ends.
    async fn answer(&self, ask: &[u8]) -> Option<String> {
        let began = (SystemTime::now(), Instant::now());
        let account = self.grant.account(&self.site.accounts)?;
        let (path, etag) = parts_of(ask)?;
        let lent = LentFile::open(&account, path, etag).await;
        let Some(LentFile { head, parcel }) = lent else { return Some(BY_REQUEST.to_owned()) };
        *self.peer.parcel() = Some(parcel);
        let (operation, status, time) = ("GetObject", 200, began.1.elapsed());
        self.site.metrics.count(operation, status, time, 0, 0);
        if let Some(log) = &self.site.log {
            log.add(&Line {
                began: began.0,
                peer: &self.from,
                account: &account.entry.access_key,
                operation,
                method: "GET",
                path,
                status,
                bytes_in: 0,
                bytes_out: 0,
                bytes_rdma: 0,
                time,
                id: &self.site.next_id(),
            });
        }
        Some(head)
    }
}

/// Path and ETag of an ask. A path is what a request could have: nothing that breaks a line of the log.
fn parts_of(ask: &[u8]) -> Option<(&str, Option<&str>)> {
    let text = std::str::from_utf8(ask).ok()?;
    let is_plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let parts = text.split_once(' ').map_or((text, None), |(path, etag)| (path, Some(etag)));
    (is_plain && text.starts_with('/')).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_have_a_path_and_perhaps_an_etag() {
        assert_eq!(parts_of(b"/bucket/a%20b"), Some(("/bucket/a%20b", None)));
        assert_eq!(parts_of(b"/bucket/k \"a-b c\""), Some(("/bucket/k", Some("\"a-b c\""))));
        for wrong in [&b"/bucket/\r"[..], b"/bucket/\xc3\xbc", b"/\xff", b"/\0", b"/b/k a\n/b/k", b"GET /b/k"]
        {
            assert_eq!(parts_of(wrong), None);
        }
    }
}
