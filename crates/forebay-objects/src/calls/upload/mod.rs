//! Uploads: a new object is written at any offset, and is there when it is whole.
//!
//! | file | what it has |
//! |---|---|
//! | `parts` | where parts begin and end, and which of their bytes were written |
//! | `by_rdma` | bytes that the server reads from memory by RDMA |
//! | `joint` | requests that were cut at the ends of parts |
//! | `state` | parts that are put together, ready or sent |
//! | `sender` | the thread that sends them |
//! | `writes` | the source that takes the writes |

mod by_rdma;
mod joint;
pub(crate) mod parts;
mod sender;
mod state;
mod writes;

use std::fmt;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop::is_stopped;
use forebay_source::{Direction, Fill, HostRange, Request, Source, Upload};

use super::bucket::{Bucket, ObjectHead};
use super::exchange::Reply;
use super::multipart::{PATIENCE, SentPart, checksum_of};
use super::refusal::Refusal;
use super::{checksum, time};
use crate::wire::call::Body;
use by_rdma::SentBytes;
use parts::PartSizes;
pub(crate) use state::Like;
use state::{Part, PartMemory, Ready, Shared, State};
use writes::Writes;

/// The same where nothing is in a hurry: parts under way are waited for, so that none comes behind the abortion.
const LONG_PATIENCE: Duration = Duration::from_secs(30);

/// A new object, until it is finished; dropped before, nothing of it remains.
pub(crate) struct ObjectUpload {
    shared: Arc<Shared>,
    is_finished: bool,
}

impl fmt::Debug for ObjectUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectUpload({})", self.shared.url())
    }
}

impl ObjectUpload {
    /// Begins one. Asks nobody.
    pub(crate) fn new(bucket: Bucket, key: &str) -> Self {
        Self::like(bucket, key, Like::default())
    }

    /// The same of one that is like another object.
    pub(crate) fn like(bucket: Bucket, key: &str, like: Like) -> Self {
        Self { shared: Arc::new(Shared::new(bucket, key.to_owned(), like)), is_finished: false }
    }

    /// Says in receipts why it is not written by a file of the gateway on this node.
    pub(crate) fn not_by_file(self, why: Option<(String, String)>) -> Self {
        self.shared.lock().not_by_file = why;
        self
    }

    /// Nothing more is written.
    pub(crate) fn fail(&self, error: &Error) {
        self.shared.fail(error);
    }

    /// Makes it an object. What else its user has to know; whether the server said the checksum of the bytes that it stored.
    pub(crate) fn finish_summed(mut self) -> Result<(Vec<String>, bool)> {
        let done = self.finish_now();
        let note = self.shared.lock().note.take();
        let is_summed =
            done.map_err(|error| note.iter().fold(error.with("url", self.shared.url()), Error::hint))?;
        self.is_finished = true;
        Ok((note.into_iter().collect(), is_summed))
    }

    /// Writes a whole object, by parts where it is longer than one.
    pub(crate) fn write_whole(bucket: Bucket, key: &str, bytes: &[u8]) -> Result<()> {
        let mut new = Self::new(bucket, key);
        let source = new.source();
        let Fill::Requests(requests) = source.fill() else { return Ok(()) };
        let (sender, answer) = channel();
        let memory = HostRange::of(bytes);
        let request = Request { direction: Direction::Write, offset: 0, memory, ahead: 0 };
        requests.start(request, Box::new(move |end| drop(sender.send(end))));
        // The memory is borrowed until then.
        let answered = answer.recv();
        answered.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a write was not answered")))?;
        new.finish_now()?;
        new.is_finished = true;
        Ok(())
    }

    /// Whether the server said the checksum of the bytes that it stored.
    fn finish_now(&mut self) -> Result<bool> {
        self.shared.process.check()?;
        let mut state = self.shared.lock();
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let len = state.len;
        if state.sender.is_none() && len <= parts::FIRST {
            let part = state.parts.remove(&1);
            drop(state);
            return self.put_whole(part, len);
        }
        ready_all(&mut state, self.shared.like.sizes);
        state.is_ending = true;
        self.shared.wake_sender(state);
        self.wait_for_sender(None);
        let mut state = self.shared.lock();
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let (mut sent, has_checksums) = (std::mem::take(&mut state.sent), state.has_checksums);
        let Some(id) = state.id.clone() else {
            return Err(Error::new(ErrorKind::Internal, "an upload has no name"));
        };
        drop(state);
        sent.sort_by_key(|part| part.number);
        // A server takes gaps between parts for an object without them.
        let is_all = sent.iter().zip(1..).all(|(part, number)| part.number == number)
            && sent.iter().map(|part| part.len).sum::<u64>() == len;
        if !is_all {
            return Err(Error::new(ErrorKind::Internal, "parts of the upload were not sent"));
        }
        self.shared.like.compare(checksum_of(&sent))?;
        for part in &mut sent {
            part.crc64 = part.crc64.filter(|_| has_checksums);
        }
        self.complete(&id, &sent, len)
    }

    /// Writes an object that is no longer than a part by one call.
    fn put_whole(&self, part: Option<Part>, len: u64) -> Result<bool> {
        let buffer = match part {
            Some(Part::Gathering(part)) => {
                fill_holes(&part, len as usize);
                part.buffer
            }
            _ => Arc::new(vec![0; len as usize].into()),
        };
        let bytes = crate::lock(&buffer);
        let bytes = &bytes[..len as usize];
        let Shared { bucket, key, like, sent_bytes, .. } = &*self.shared;
        if like.crc64.is_some() {
            like.compare(Some(checksum::crc64(bytes)))?;
        }
        bucket.put_like(key, bytes, &like.headers, sent_bytes)
    }

    fn complete(&self, id: &str, sent: &[SentPart], len: u64) -> Result<bool> {
        let Shared { bucket, key, .. } = &*self.shared;
        let began = self.shared.lock().began.unwrap_or_else(Instant::now);
        match bucket.complete(key, id, sent) {
            // A server that says the checksum has compared it. Others are asked, for which keys that only write have no right.
            Ok(true) => Ok(true),
            Ok(false) => bucket.check_len(key, len).map(|()| false),
            // Done before, and the reply was lost: or aborted by somebody else.
            Err(refusal) if refusal.code == "NoSuchUpload" && bucket.has_parts(key, len, sent, began) => {
                Ok(false)
            }
            Err(Refusal { error, status: 0, .. }) => {
                Err(error.hint("check the object: it may be the new one already"))
            }
            Err(refusal) => Err(refusal.error),
        }
    }

    /// Waits until the thread has ended, or until this time.
    fn wait_for_sender(&self, until: Option<Instant>) {
        let mut state = self.shared.lock();
        while state.sender.is_some()
            && !state.is_sender_gone
            && until.is_none_or(|until| Instant::now() < until)
        {
            let wait = self.shared.changed.wait_timeout(state, forebay_remote::stop::SLICE);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Has all parts sent that were not; bytes that nothing was written to are zeros.
fn ready_all(state: &mut State, sizes: PartSizes) {
    let Some(last) = state.len.checked_sub(1).and_then(|last| sizes.number_at(last)) else { return };
    let mut zeros: Option<Arc<[u8]>> = None;
    for number in 1..=last {
        let part = sizes.range(number);
        let len = (part.end.min(state.len) - part.start) as usize;
        let memory = match state.parts.insert(number, Part::Sent) {
            Some(Part::Sent) => continue,
            Some(Part::Gathering(part)) => {
                fill_holes(&part, len);
                PartMemory::Gathered(part.buffer)
            }
            None => {
                if zeros.as_ref().is_none_or(|zeros| zeros.len() < len) {
                    zeros = Some(vec![0; len].into());
                }
                PartMemory::Zeros(zeros.clone().unwrap_or_default())
            }
        };
        state.ready.push_back(Ready::new(number, memory, len));
    }
}

fn fill_holes(part: &state::Gathering, len: usize) {
    let mut buffer = crate::lock(&part.buffer);
    for hole in part.covered.holes(len) {
        buffer[hole].fill(0);
    }
}

impl Upload for ObjectUpload {
    fn source(&self) -> Arc<dyn Source> {
        Arc::new(Writes(self.shared.clone()))
    }

    fn finish(self: Box<Self>, _durable: bool) -> Result<Vec<String>> {
        self.finish_summed().map(|(notes, _)| notes)
    }
}

impl Drop for ObjectUpload {
    fn drop(&mut self) {
        // A child's upload is its parent's.
        if self.is_finished || !self.shared.process.is_current() {
            return;
        }
        let has_sender = self.shared.lock().sender.is_some();
        self.shared.fail(&Error::new(ErrorKind::Cancelled, "the upload was given up"));
        if has_sender {
            let patience = if is_stopped() { PATIENCE } else { LONG_PATIENCE };
            self.wait_for_sender(Some(Instant::now() + patience));
            sender::abort(&self.shared);
        }
    }
}

/// The object was written, and its length cannot be asked for.
fn unchecked(error: &Error, url: String) -> Error {
    let text = "the object was written, and it cannot be checked that the server has all of it";
    let new = Error::new(error.kind(), text).with("url", url).source(error.clone());
    match error.kind() {
        ErrorKind::PermissionDenied => {
            new.hint("give s3:GetObject to the credentials: the server says no checksum of what it stored")
        }
        _ => error.hints().iter().fold(new, Error::hint),
    }
}

impl Bucket {
    /// Does something with checksums; without, where the endpoint refuses these.
    fn with_checksums<T>(&self, call: impl Fn(bool) -> Result<T, Refusal>) -> Result<T, Refusal> {
        if !self.endpoint.sends_checksums() {
            return call(false);
        }
        match call(true) {
            Err(refusal)
                if matches!(refusal.status, 400 | 501) && refusal.error.kind() != ErrorKind::Corrupt =>
            {
                let done = call(false)?;
                self.endpoint.refuse_checksums();
                Ok(done)
            }
            other => other,
        }
    }

    /// Writes a whole object by one call, and checks that the server has all of it.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<()> {
        self.put_like(key, bytes, &[], &SentBytes::default()).map(drop)
    }

    /// The same with metadata. Whether the server said the checksum of the bytes.
    fn put_like(&self, key: &str, bytes: &[u8], kept: &[(String, String)], sent: &SentBytes) -> Result<bool> {
        let body = if bytes.is_empty() { Body::None } else { Body::Memory(HostRange::of(bytes)) };
        let crc64 = checksum::crc64(bytes);
        let in_body = || {
            self.with_checksums(|has| {
                let sum = has.then(|| ("x-amz-checksum-crc64nvme", checksum::text(crc64)));
                let kept = kept.iter().map(|(name, value)| (name.as_str(), value.clone()));
                self.put_body(key, &body, &kept.chain(sum).collect::<Vec<_>>())
            })
        };
        if let Some(reply) = self.put_by_rdma(key, bytes, kept, sent)? {
            match self.is_summed(key, bytes, crc64, &reply) {
                Err(error) if error.kind() == ErrorKind::Corrupt && !by_rdma::is_required() => {
                    sent.note_body(bytes.len(), error);
                }
                stored => {
                    sent.note_rdma(bytes.len());
                    return stored;
                }
            }
        }
        let reply = in_body().map_err(Error::from)?;
        self.is_summed(key, bytes, crc64, &reply)
    }

    /// Whether the reply says the checksum of the bytes; an error where the server has other ones.
    fn is_summed(&self, key: &str, bytes: &[u8], crc64: u64, reply: &Reply) -> Result<bool> {
        sender::etag_of(reply, Some(crc64))?;
        // A server that compares checksums has compared the bytes.
        if reply.head.header("x-amz-checksum-crc64nvme").is_some() || bytes.is_empty() {
            return Ok(true);
        }
        self.check_len(key, bytes.len() as u64).map(|()| false)
    }

    /// An error if the object has not this length: servers have stored nothing, and said that all is well.
    fn check_len(&self, key: &str, len: u64) -> Result<()> {
        let stored = self.head(key, None).map_err(|error| unchecked(&error, self.url(key)))?.len;
        if stored == len {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt, "the server has stored other bytes than were sent")
            .with("sent_bytes", len)
            .with("stored_bytes", stored)
            .hint("remove the object, and report this to those who run the server"))
    }

    /// Whether the object is made of these parts: it has their checksum, or else their length and number, and was written since.
    fn has_parts(&self, key: &str, len: u64, parts: &[SentPart], began: Instant) -> bool {
        let Ok(reply) = self.head_reply(key, None) else { return false };
        let Ok(head) = ObjectHead::of(&reply) else { return false };
        let told = head.checksums.iter().find(|(name, _)| name == "crc64nvme" && head.is_full_checksum);
        if let (Some((_, told)), Some(sum)) = (told, checksum_of(parts)) {
            return head.len == len && *told == checksum::text(sum);
        }
        let is_of_parts = |etag: &str| etag.trim_matches('"').ends_with(&format!("-{}", parts.len()));
        // By the server's clock, in whole seconds. S3 gives an object the time at which its upload began.
        let now = reply.header("date").and_then(time::seconds);
        let first = now.map(|now| now - began.elapsed().as_secs() as i64 - 1);
        head.len == len
            && head.etag.as_deref().is_some_and(is_of_parts)
            && first.is_some_and(|first| head.modified.is_some_and(|modified| modified >= first))
    }
}
