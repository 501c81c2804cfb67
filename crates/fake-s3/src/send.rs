//! Replies as they are sent, and what goes wrong with them.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use crate::content::Content;
use crate::reply::Reply;
use crate::text::http_date;
use crate::{Fault, Place, Shared, Wire, now};

/// A connection that a reply goes to.
pub(crate) struct Sending<'a> {
    pub(crate) to: &'a mut dyn Wire,
    pub(crate) shared: &'a Shared,
    pub(crate) connection: u64,
    pub(crate) is_head: bool,
    pub(crate) fault: Option<&'a Fault>,
    /// Bytes of the body that were sent.
    pub(crate) sent: u64,
}

impl Sending<'_> {
    /// Sends a reply. Returns whether the connection goes on.
    pub(crate) fn send(&mut self, mut reply: Reply) -> Result<bool> {
        let is_last = self.edit(&mut reply);
        match self.fault {
            Some(Fault::Raw(bytes)) => {
                self.to.write_all(bytes)?;
                return Ok(false);
            }
            Some(Fault::Late(time)) => self.shared.sleep(*time)?,
            Some(Fault::Interim(statuses)) => {
                for status in *statuses {
                    write!(self.to, "HTTP/1.1 {status} {}\r\nX-Before: 1\r\n\r\n", reason(*status))?;
                }
            }
            _ => {}
        }
        self.stop_at(Place::BeforeHead)?;
        let head = self.head(&reply);
        if let Some(Fault::Cut(Place::InHead(at)) | Fault::Reset(Place::InHead(at))) = self.fault {
            self.to.write_all(&head.as_bytes()[..(*at).min(head.len())])?;
            self.stop_at(Place::InHead(*at))?;
        }
        self.to.write_all(head.as_bytes())?;
        self.stop_at(Place::BehindHead)?;
        if !self.is_head && !matches!(reply.status, 204 | 304) {
            self.body(&reply)?;
        }
        if let Some(Fault::Behind(bytes)) = self.fault {
            self.to.write_all(&vec![b'x'; *bytes])?;
        }
        self.to.flush()?;
        Ok(!is_last)
    }

    /// What a fault changes in a reply. Returns whether the connection ends with it.
    fn edit(&self, reply: &mut Reply) -> bool {
        match self.fault {
            Some(Fault::Short(less)) => reply.len = reply.len.saturating_sub(*less),
            Some(Fault::Long(more)) => reply.len += more,
            Some(Fault::Header(name, value)) => reply.set(name, value),
            Some(Fault::Without(name)) => reply.remove(name),
            Some(Fault::LongHead(bytes)) => reply.set("X-Long", &"l".repeat(*bytes)),
            Some(Fault::Flip(at)) if *at < reply.len => {
                let mut bytes = vec![0; reply.len as usize];
                reply.content.copy(reply.first, &mut bytes);
                bytes[*at as usize] ^= 1;
                (reply.content, reply.first) = (Content::of(bytes), 0);
            }
            Some(Fault::Close) => {
                reply.set("Connection", "close");
                return true;
            }
            Some(Fault::CloseQuietly | Fault::UntilClose | Fault::EarlyError(..)) => return true,
            _ => {}
        }
        false
    }

    fn head(&self, reply: &Reply) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", reply.status, reason(reply.status));
        let skew = crate::lock(&self.shared.settings).skew;
        head += &format!(
            "Date: {}\r\nServer: FakeS3\r\nx-amz-request-id: FAKE00000000S3\r\n",
            http_date(now() + skew)
        );
        for (name, value) in &reply.headers {
            head += &format!("{name}: {value}\r\n");
        }
        match self.fault {
            Some(Fault::UntilClose) => {}
            Some(Fault::Chunked(_) | Fault::BadChunk(_)) => head += "Transfer-Encoding: chunked\r\n",
            _ if reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) => {}
            _ if matches!(reply.status, 204 | 304) => {}
            _ => head += &format!("Content-Length: {}\r\n", reply.len),
        }
        if matches!(self.fault, Some(Fault::Without("Content-Length"))) {
            head = head.replace(&format!("Content-Length: {}\r\n", reply.len), "");
        }
        head + "\r\n"
    }

    fn body(&mut self, reply: &Reply) -> Result<()> {
        match self.fault.cloned() {
            Some(Fault::Cut(Place::InBody(at)) | Fault::Reset(Place::InBody(at))) if at < reply.len => {
                self.part(reply, at)?;
                self.stop_at(Place::InBody(at))
            }
            Some(Fault::Slow(bytes, time)) => {
                while self.sent < reply.len {
                    self.part(reply, bytes as u64)?;
                    self.to.flush()?;
                    self.shared.sleep(time)?;
                }
                Ok(())
            }
            Some(Fault::Pause(at, time)) => {
                self.part(reply, at)?;
                self.to.flush()?;
                self.shared.sleep(time)?;
                self.part(reply, u64::MAX)
            }
            Some(Fault::Chunked(bytes)) => {
                while self.sent < reply.len {
                    write!(self.to, "{:x};odd=\"a;b\"\r\n", (bytes as u64).min(reply.len - self.sent))?;
                    self.part(reply, bytes as u64)?;
                    self.to.write_all(b"\r\n")?;
                }
                self.to.write_all(b"0\r\nX-Trailer: 1\r\n\r\n")
            }
            Some(Fault::BadChunk(line)) => {
                let half = reply.len / 2;
                write!(self.to, "{half:x}\r\n")?;
                self.part(reply, half)?;
                write!(self.to, "\r\n{line}\r\n")?;
                self.part(reply, u64::MAX)?;
                self.to.write_all(b"\r\n0\r\n\r\n")
            }
            _ => self.part(reply, u64::MAX),
        }
    }

    /// Sends the next bytes of the body, at most that many.
    fn part(&mut self, reply: &Reply, most: u64) -> Result<()> {
        let len = most.min(reply.len - self.sent);
        reply.content.write(self.to, reply.first + self.sent, len)?;
        self.sent += len;
        Ok(())
    }

    fn stop_at(&mut self, place: Place) -> Result<()> {
        match self.fault {
            Some(Fault::Cut(at)) if *at == place => {}
            Some(Fault::Reset(at)) if *at == place => {
                self.to.flush()?;
                self.shared.reset(self.connection);
            }
            _ => return Ok(()),
        }
        self.to.flush()?;
        Err(Error::new(ErrorKind::ConnectionAborted, "cut on demand"))
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        411 => "Length Required",
        412 => "Precondition Failed",
        416 => "Requested Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Slow Down",
        _ => "Unknown",
    }
}

impl Shared {
    /// Sleeps; an error where the server ends meanwhile.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        let end = std::time::Instant::now() + time;
        while let Some(left) = end.checked_duration_since(std::time::Instant::now()) {
            if self.is_over() {
                return Err(Error::other("the server ends"));
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
        Ok(())
    }
}
