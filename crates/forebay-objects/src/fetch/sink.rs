//! The reply to a range: its head is checked, its body goes to the memory of requests.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::HostRange;

use super::limits::SCRATCH;
use super::object::ObjectFetch;
use super::plan::{NewRange, RangeRoom};
use super::replaced;
use super::route::Route;
use crate::calls::checked::CheckedBody;
use crate::calls::content_range;
use crate::calls::etag::replaced;
use crate::calls::refusal;
use crate::wire::call::{ReplyHead, Room, Sink};

/// Bytes before a range that are received and thrown away where a server sends the whole object.
const MOST_SKIPPED: u64 = 8 << 20;
/// Whole objects in place of ranges, in a row, behind which a server gives none.
const MOST_WHOLES: u32 = 3;

/// The reply to a range.
pub(super) struct RangeSink {
    object: Arc<ObjectFetch>,
    route: Arc<Route>,
    range: NewRange,
    began: Instant,
    /// When bytes came first.
    first: Option<Instant>,
    reply: Reply,
    /// For bytes that nobody wants, and bodies of errors.
    scratch: Vec<u8>,
    came: u64,
    /// Of a whole object.
    check: Option<CheckedBody>,
    /// Where the next bytes go.
    room: HostRange,
    /// Its bytes are wrong.
    wrong: Option<Error>,
    /// Cleared: another call asks for the rest.
    is_wanted: Arc<AtomicBool>,
    /// The plan wants no more.
    is_enough: bool,
}

enum Reply {
    /// It did not come yet.
    Missing,
    /// Bytes of the range, behind this number of bytes that nobody wants.
    Bytes(u64),
    /// A refusal, and how many bytes of its body came.
    Refused(ReplyHead, usize),
    /// It has other bytes than those of the range.
    Wrong,
}

impl RangeSink {
    pub(super) fn new(
        object: Arc<ObjectFetch>,
        route: Arc<Route>,
        range: NewRange,
        is_wanted: Arc<AtomicBool>,
    ) -> Self {
        let (began, scratch) = (Instant::now(), Vec::new());
        let (check, room, wrong) = (None, HostRange::NONE, None);
        Self {
            object,
            route,
            range,
            began,
            first: None,
            reply: Reply::Missing,
            scratch,
            came: 0,
            check,
            room,
            wrong,
            is_wanted,
            is_enough: false,
        }
    }

    fn scratch(&mut self, from: usize, bytes: u64) -> Room {
        self.scratch.resize(SCRATCH, 0);
        let most = usize::try_from(bytes).unwrap_or(usize::MAX);
        Room::Memory(HostRange::of_mut(&mut self.scratch[from..]).first(most))
    }

    /// Whether a reply has the bytes that were asked for, and how many others before them.
    fn check(&self, head: &ReplyHead) -> Result<u64> {
        let target = &self.route.target;
        if let Some((ours, theirs)) = target.etag.as_deref().zip(head.header("etag"))
            && ours != theirs
        {
            return Err(replaced(Some(ours), Some(theirs)));
        }
        let wrong = |what: &str| {
            let asked = format!("{}-{}/{}", self.range.start, self.range.end - 1, target.len);
            let got = head.header("content-range").unwrap_or("none").to_owned();
            Err(Error::new(ErrorKind::Io, format!("cannot read the object: {what}"))
                .with("asked", asked)
                .with("got", forebay_error::plain(&got)))
        };
        // rclone's server answers ranges with 200, and says which bytes they are.
        if head.status == 200 && head.header("content-range").is_none() {
            return match head.length {
                Some(length) if length != target.len => wrong("its length is another one than its head said"),
                // Some servers with much to do leave a range out now and then.
                _ if self.range.start > MOST_SKIPPED
                    && self.object.wholes.fetch_add(1, Relaxed) < MOST_WHOLES =>
                {
                    Err(Error::new(ErrorKind::ShortRead, "cannot read the object: the server gave no range"))
                }
                _ if self.range.start > MOST_SKIPPED => Err(Error::new(
                    ErrorKind::Unsupported,
                    "cannot read the object: the server gives no ranges",
                )
                .hint(format!("forebay s3 probe {}", forebay_error::quoted(&self.route.url().to_string())))),
                _ => Ok(self.range.start),
            };
        }
        let Some((start, end, len)) = head.header("content-range").and_then(content_range) else {
            return wrong("the server does not say which bytes it sends");
        };
        let is_length = head.length.is_none_or(|length| length == end.saturating_sub(start));
        let is_asked = start == self.range.start && start < end && end <= self.range.end;
        if !is_asked || len.is_some_and(|len| len != target.len) || !is_length {
            return wrong("the server sends other bytes than were asked for");
        }
        self.object.wholes.store(0, Relaxed);
        Ok(0)
    }

    fn is_whole(&self) -> bool {
        (self.range.start, self.range.end) == (0, self.object.target.len)
    }

    /// Takes bytes into the checksum; with the last ones it is compared, before their request is answered.
    fn compare(&mut self, bytes: usize) -> Result<()> {
        let Some(mut check) = self.check.take() else { return Ok(()) };
        let (is_first, is_one) = (self.came == bytes as u64, self.room.len as u64 == self.range.end);
        if is_first && !is_one && check.needs_all() {
            return Ok(());
        }
        // SAFETY: the plan gave the memory, and its request is answered behind this. One that needs all has one request.
        unsafe { check.add(self.room.first(bytes)) };
        if self.came < self.range.end {
            self.check = Some(check);
            return Ok(());
        }
        check.end().inspect_err(|error| self.wrong = Some(error.clone()))
    }

    /// What the server says in place of the bytes: the error, and whether it may pass.
    fn refusal(&self, head: &ReplyHead, body: &[u8]) -> (Error, bool) {
        let ask = self.route.target.ask(Some((self.range.start, self.range.end)));
        let refused = refusal(self.route.endpoint(), &ask, head, body);
        if let Some(region) = self.route.region_of(&refused)
            && self.object.moves(&self.route, region, self.began)
        {
            return (refused.error, true);
        }
        if head.status == 404 && self.object.leaves_site(&self.route, &refused.error, true) {
            return (refused.error, true);
        }
        if refused.is_passing {
            let asked = head.header("retry-after").and_then(|text| text.trim().parse().ok());
            let is_load = matches!(head.status, 429 | 503);
            ObjectFetch::refused(&self.route, is_load, asked.map(Duration::from_secs));
        }
        (refused.error, refused.is_passing)
    }
}

impl Sink for RangeSink {
    fn head(&mut self, head: ReplyHead) -> Result<()> {
        if !matches!(head.status, 200 | 206) {
            self.reply = Reply::Refused(head, 0);
            return Ok(());
        }
        match self.check(&head) {
            Ok(skipped) => {
                self.reply = Reply::Bytes(skipped);
                self.check = if self.is_whole() { CheckedBody::of(&head) } else { None };
            }
            Err(error) => {
                self.reply = Reply::Wrong;
                return Err(error);
            }
        }
        Ok(())
    }

    fn room(&mut self) -> Room {
        if self.wrong.is_some() {
            return Room::Enough;
        }
        match self.reply {
            Reply::Bytes(0) => {}
            Reply::Bytes(skipped) => return self.scratch(0, skipped),
            Reply::Refused(_, SCRATCH..) | Reply::Missing | Reply::Wrong => return Room::Enough,
            Reply::Refused(_, came) => return self.scratch(came, SCRATCH as u64),
        }
        match self.object.room(self.range.id) {
            RangeRoom::Memory(memory) => {
                self.room = memory;
                Room::Memory(memory)
            }
            RangeRoom::Skip(bytes) => {
                let room = self.scratch(0, bytes);
                if let Room::Memory(memory) = room {
                    self.room = memory;
                }
                room
            }
            RangeRoom::Later => Room::Later,
            RangeRoom::Enough => {
                self.is_enough = true;
                Room::Enough
            }
        }
    }

    fn is_wanted(&self) -> bool {
        self.is_wanted.load(Relaxed)
    }

    fn filled(&mut self, bytes: usize) {
        match &mut self.reply {
            Reply::Bytes(0) => {
                self.came += bytes as u64;
                self.route.bytes.fetch_add(bytes as u64, Relaxed);
                let first = *self.first.get_or_insert_with(Instant::now);
                self.route.endpoint().budget.bytes_came(first);
                if self.check.is_some() && self.compare(bytes).is_err() {
                    return;
                }
                self.object.filled(self.range.id, bytes as u64);
            }
            Reply::Bytes(skipped) => *skipped -= bytes as u64,
            Reply::Refused(_, came) => *came += bytes,
            Reply::Missing | Reply::Wrong => {}
        }
    }

    fn end(mut self: Box<Self>, result: Result<()>) {
        let reply = std::mem::replace(&mut self.reply, Reply::Missing);
        let (error, retries) = match (result, reply) {
            _ if let Some(error) = self.wrong.take() => (error, false),
            (_, Reply::Refused(head, _)) if head.status == 412 => {
                return replaced::look(self.object, self.route, self.range.id);
            }
            (_, Reply::Refused(head, came)) => {
                self.refusal(&head, &self.scratch[..came.min(self.scratch.len())])
            }
            (Ok(()), _) if self.came > 0 || self.is_enough || !self.is_wanted() => {
                if self.came > 0 || self.is_enough {
                    self.route.endpoint().budget.good(self.began);
                    self.route.endpoint().account.is_there_now();
                }
                return self.object.ended(self.range.id, &Ok(()), false);
            }
            (Ok(()), _) => {
                let error =
                    Error::new(ErrorKind::ShortRead, "cannot read the object: the server sends no bytes");
                ObjectFetch::refused(&self.route, false, None);
                (error, true)
            }
            (Err(error), Reply::Wrong) if error.kind() != ErrorKind::ShortRead => (error, false),
            (Err(error), _) => {
                let passes =
                    matches!(error.kind(), ErrorKind::Io | ErrorKind::Timeout | ErrorKind::ShortRead);
                if passes {
                    ObjectFetch::refused(&self.route, false, None);
                }
                (error, passes)
            }
        };
        if retries {
            self.object.leaves_site(&self.route, &error, false);
        }
        if error.kind() == ErrorKind::Busy && !retries {
            self.object.fail_all(&error);
        }
        self.object.ended(self.range.id, &Err(error), retries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_contents_are_read_strictly() {
        for (text, expected) in [
            ("bytes 0-9/100", Some((0, 10, Some(100)))),
            ("bytes 5-5/*", Some((5, 6, None))),
            ("bytes */100", None),
            ("bytes 0-18446744073709551615/1", None),
            ("items 0-9/100", None),
            ("bytes 0-9", None),
            ("bytes 0-9/x", None),
        ] {
            assert_eq!(content_range(text), expected, "{text}");
        }
    }
}
