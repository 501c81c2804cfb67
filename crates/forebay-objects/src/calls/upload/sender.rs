//! The thread of an upload: it begins it, sends parts that are ready, and sends again those that failed for the time being.

use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_sys::threads;

use super::by_rdma;
use super::joint::Piece;
use super::state::{Ready, Shared};
use crate::calls::exchange::{self, End, Reply, Verdict};
use crate::calls::multipart::{Begun, PATIENCE, SentPart};
use crate::calls::{checksum, exchange::judge};
use crate::endpoint::Endpoint;
use crate::pace::DEADLINE;

/// Parts under way at most.
const MAX_IN_FLIGHT: usize = 32;

pub(super) fn start(shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    threads::spawn("forebay-upload", move || {
        run(&shared);
        shared.lock().is_sender_gone = true;
        shared.changed.notify_all();
    })
}

fn run(shared: &Arc<Shared>) {
    let began = Instant::now();
    shared.lock().began = Some(began);
    let kept = &shared.like.headers;
    let begun = shared.bucket.with_checksums(|has| Ok((shared.bucket.create(&shared.key, has, kept)?, has)));
    let (Begun { id, is_second }, has_checksums) = match begun {
        Ok(begun) => begun,
        Err(refusal) => return shared.fail(&refusal.error),
    };
    let mut state = shared.lock();
    (state.id, state.has_checksums) = (Some(id.clone()), has_checksums);
    drop(state);
    if is_second {
        shared.lock().note = note_of_others(shared, &id, began.elapsed());
    }
    let endpoint = shared.bucket.endpoint_here();
    let first = shared.like.sizes.range(1);
    let endpoint = endpoint.and_then(|endpoint| {
        by_rdma::prepare(&endpoint, (&shared.bucket.name, &shared.key), (first.end - first.start) as usize)
            .map(|()| endpoint)
    });
    match endpoint {
        Ok(endpoint) => {
            Sender { shared: shared.clone(), endpoint, id, has_checksums, later: Vec::new() }.run();
        }
        Err(error) => shared.fail(&error),
    }
    if shared.lock().error.is_some() {
        abort(shared);
    }
}

/// What to say where the reply to an earlier attempt to begin the upload was lost. An upload without parts may have stayed. It is
/// not aborted: nothing tells it from one that another program has just begun.
fn note_of_others(shared: &Shared, id: &str, time: Duration) -> Option<String> {
    let others = shared.bucket.begun_before(&shared.key, id, time).ok()?;
    let ids = others.iter().map(|other| forebay_error::quoted(&other.id)).collect::<Vec<_>>();
    // aws-cli knows no sites.
    let account = shared.bucket.site_name().and(shared.bucket.endpoint.account.settings().endpoint());
    let at = account.map_or(String::new(), |url| format!(" --endpoint-url {}", forebay_error::quoted(&url)));
    (!ids.is_empty()).then(|| {
        format!(
            "a reply was lost when the upload began, and an empty upload may have stayed: unless another program writes this \
             object, abort it: aws s3api{at} abort-multipart-upload --bucket {} --key {} --upload-id {}",
            shared.bucket.name,
            forebay_error::quoted(&shared.key),
            ids.join(" or ")
        )
    })
}

/// Has the server forget the upload. Also where waiting is to stop.
pub(super) fn abort(shared: &Shared) {
    let id = shared.lock().id.take();
    if let Some(id) = id {
        // There is nobody to tell: the error of the upload itself counts.
        let _ = stop::patiently(PATIENCE, || shared.bucket.abort(&shared.key, &id));
    }
}

struct Sender {
    shared: Arc<Shared>,
    /// That of the region which the server has named when the upload began.
    endpoint: Arc<Endpoint>,
    id: String,
    has_checksums: bool,
    /// To be sent again at these times.
    later: Vec<(Instant, Ready)>,
}

enum Step {
    Send(Ready),
    Judge(Ready, End),
    Put(Piece),
    Fail(Error),
    Over,
}

impl Sender {
    fn run(mut self) {
        loop {
            match self.next() {
                Step::Send(part) => self.send(part),
                Step::Judge(part, end) => self.judge(part, end),
                Step::Put(piece) => self.shared.put(piece),
                Step::Fail(error) => self.fail(&error),
                Step::Over => return,
            }
        }
    }

    /// Waits for something to do.
    fn next(&mut self) -> Step {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        loop {
            if let Some((part, end)) = state.ends.pop() {
                return Step::Judge(part, end);
            }
            if let Some(error) = &state.error {
                if !self.later.is_empty() {
                    return Step::Fail(error.clone());
                }
                if state.in_flight == 0 {
                    return Step::Over;
                }
            } else if stop::is_stopped() {
                return Step::Fail(stop::stopped());
            } else if let Some(part) = self.due() {
                return Step::Send(part);
            } else if state.in_flight < MAX_IN_FLIGHT
                && self.endpoint.budget.until(Instant::now()).is_none()
                && let Some(part) = state.ready.pop_front()
            {
                state.in_flight += 1;
                return Step::Send(part);
            } else if state.may_gather()
                && let Some(piece) = state.waiting.pop_front()
            {
                return Step::Put(piece);
            } else if state.is_ending && state.in_flight == 0 && state.ready.is_empty() {
                return Step::Over;
            }
            let wait = shared.changed.wait_timeout(state, stop::SLICE);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn due(&mut self) -> Option<Ready> {
        let now = Instant::now();
        let index = self.later.iter().position(|(time, _)| *time <= now)?;
        Some(self.later.swap_remove(index).1)
    }

    fn send(&self, mut part: Ready) {
        let range = part.bytes();
        // Also where the server takes none, they are compared with that of the source.
        if (self.has_checksums || self.shared.like.crc64.is_some()) && part.crc64.is_none() {
            // SAFETY: nothing writes to a part that is ready, and its memory is there until it is released.
            let bytes = unsafe { std::slice::from_raw_parts(range.start, range.len) };
            part.crc64 = Some(checksum::crc64(bytes));
        }
        part.began = Instant::now();
        let bucket = &self.shared.bucket;
        let crc64 = part.crc64.filter(|_| self.has_checksums);
        let ask = bucket.part_ask(&self.shared.key, &self.id, part.number, crc64);
        let shared = self.shared.clone();
        let done = Box::new(move |end| {
            shared.lock().ends.push((part, end));
            shared.changed.notify_all();
        });
        // SAFETY: the part has the memory, and `done` has the part.
        unsafe { by_rdma::send(&self.endpoint, ask, range, &self.shared.sent_bytes, done) };
    }

    fn judge(&mut self, mut part: Ready, end: End) {
        let bucket = &self.shared.bucket;
        let ask = bucket.part_ask(&self.shared.key, &self.id, part.number, None);
        let error = match judge(&self.endpoint, &ask, end) {
            Verdict::Good(reply) => match etag_of(&reply, part.crc64) {
                Ok(etag) => return self.keep(part, etag),
                Err(error) => error,
            },
            Verdict::Refused(refusal) => refusal.error,
            Verdict::Later(error, asked) => {
                match exchange::next_attempt(&self.endpoint, &mut part.failed, asked, DEADLINE) {
                    Some(time) => return self.later.push((time, part)),
                    None => bucket.of_write(error),
                }
            }
        };
        let error = error.with("part", part.number);
        self.give_up(part, &error);
        self.fail(&error);
    }

    /// The server has the part.
    fn keep(&self, part: Ready, etag: String) {
        let mut state = self.shared.lock();
        state.in_flight -= 1;
        let (number, len, crc64) = (part.number, part.len as u64, part.crc64);
        state.sent.push(SentPart { number, len, etag, crc64 });
        drop(state);
        self.endpoint.budget.good(part.began);
        self.shared.release(part, Ok(()));
    }

    fn give_up(&self, part: Ready, error: &Error) {
        self.shared.lock().in_flight -= 1;
        self.shared.release(part, Err(error.clone()));
    }

    fn fail(&mut self, error: &Error) {
        for (_, part) in std::mem::take(&mut self.later) {
            self.give_up(part, error);
        }
        self.shared.fail(error);
    }
}

/// The ETag of a part, where the reply fits the bytes.
pub(super) fn etag_of(reply: &Reply, crc64: Option<u64>) -> Result<String> {
    let told = reply.head.header("x-amz-checksum-crc64nvme");
    if let (Some(told), Some(sent)) = (told, crc64)
        && told != checksum::text(sent)
    {
        return Err(Error::new(ErrorKind::Corrupt, "the server has other bytes than were sent")
            .with("sent", checksum::text(sent))
            .with("stored", told));
    }
    let etag = reply.head.header("etag").filter(|etag| !etag.is_empty());
    etag.map(str::to_owned)
        .ok_or_else(|| Error::new(ErrorKind::Io, "the server does not say that it has stored the bytes"))
}
