//! Ranges of an object: each is cut into operations, and answered behind the last of them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use forebay_error::{Error, ErrorKind, Result};
use forebay_s3_rdma::headers::SUM;
use forebay_source::{Answer, Direction, FileReplaced, HostRange, Request};

use crate::calls::etag::replaced;
use crate::calls::refusal;
use crate::endpoint::Endpoint;
use crate::fetch::{ObjectFetch, Target};
use crate::lock;
use crate::rdma::{Expected, MemoryOf, NotMoved, Operation, RdmaPeer, Wanted};
use crate::wire::call::{Ask, ReplyHead};

/// Bytes of an operation at most: long ranges keep several sessions busy.
const PIECE: u64 = 8 << 20;

/// Bytes of a trial at most.
pub(super) const SAMPLE: u64 = 64 << 10;

/// An object, as it is read at its server now.
#[derive(Clone)]
pub(super) struct Reading {
    pub(super) fetch: Arc<ObjectFetch>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) target: Target,
    pub(super) peer: Arc<RdmaPeer>,
    /// Bytes in host memory that were compared with a checksum of the server's.
    pub(super) compared: Arc<AtomicU64>,
}

/// The operations of a range.
struct Joint {
    left: AtomicUsize,
    bytes: usize,
    failed: Mutex<Option<Error>>,
    answer: Mutex<Option<Answer>>,
}

impl Joint {
    fn ended(&self, result: Result<()>) {
        if let Err(error) = result {
            lock(&self.failed).get_or_insert(error);
        }
        if self.left.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        let failed = lock(&self.failed).take();
        let answer = lock(&self.answer).take();
        if let Some(answer) = answer {
            answer(failed.map_or(Ok(self.bytes), Err));
        }
    }
}

impl Reading {
    /// What finds out whether its server takes RDMA.
    pub(super) fn wanted(&self) -> Wanted {
        let Target { bucket, key, version, len, .. } = &self.target;
        Wanted::read(bucket, key, version.as_deref(), (*len).min(SAMPLE))
    }

    /// Reads `len` bytes from `offset` on, all of which the object has; `memory` says where bytes of the range belong.
    ///
    /// # Safety
    /// The memory is valid, and nobody else uses it, until the answer.
    pub(super) unsafe fn start(
        &self,
        offset: u64,
        len: usize,
        memory: impl Fn(usize, usize) -> MemoryOf,
        answer: Answer,
    ) {
        let piece = usize::try_from(self.peer.operation_bytes().clamp(1, PIECE)).unwrap_or(len).max(1);
        let left = AtomicUsize::new(len.div_ceil(piece));
        if len == 0 {
            return answer(Ok(0));
        }
        let joint =
            Arc::new(Joint { left, bytes: len, failed: Mutex::default(), answer: Mutex::new(Some(answer)) });
        for at in (0..len).step_by(piece) {
            let (start, bytes) = (offset + at as u64, piece.min(len - at));
            // SAFETY: passed on.
            unsafe { self.operation((start, start + bytes as u64), memory(at, bytes), joint.clone()) };
        }
    }

    /// Reads by HTTP, and waits: for comparisons.
    pub(super) fn read_by_http(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let (tell, told) = sync_channel(1);
        let memory = HostRange::of_mut(bytes);
        let request = Request { direction: Direction::Read, offset, memory, ahead: 0 };
        // SAFETY: the memory is borrowed, and the answer is waited for.
        unsafe { self.fetch.start(request, Box::new(move |result| drop(tell.send(result)))) };
        told.recv().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a read was not answered")))
    }

    /// # Safety
    /// As [`Reading::start`].
    unsafe fn operation(&self, (start, end): (u64, u64), memory: MemoryOf, joint: Arc<Joint>) {
        let ask = self.target.ask(Some((start, end)));
        let is_range = (start, end) != (0, self.target.len);
        let expected = Expected {
            etag: self.target.etag.clone(),
            content_range: is_range.then(|| format!("bytes {start}-{}/{}", end - 1, self.target.len)),
            sum: None,
        };
        let (this, asked) = (self.clone(), ask.clone());
        let done = Box::new(move |ended: Result<_, NotMoved>| {
            let result = ended.map(|head: ReplyHead| {
                this.fetch.came(end - start);
                if !is_range && head.header(SUM).is_some() {
                    this.compared.fetch_add(end - start, Relaxed);
                }
            });
            joint.ended(result.map_err(|why| this.error(&asked, why)));
        });
        // SAFETY: passed on.
        self.peer.start(unsafe { Operation::new((Direction::Read, ask), memory, expected, done) });
    }

    fn error(&self, ask: &Ask, why: NotMoved) -> Error {
        let error = match why {
            NotMoved::Declined(error) | NotMoved::Failed(error) => error,
            NotMoved::Refused(head, document) => {
                let error = match head.status {
                    // The object had all bytes of the range when it was opened.
                    412 | 416 => replaced(self.target.etag.as_deref(), None),
                    _ => refusal(&self.endpoint, ask, &head, &document).error,
                };
                if matches!(head.status, 404 | 412 | 416) { error.source(FileReplaced) } else { error }
            }
            NotMoved::Replaced(head) => {
                replaced(self.target.etag.as_deref(), head.header("etag")).source(FileReplaced)
            }
            NotMoved::Unknown => Error::new(ErrorKind::Internal, "a read has no known end"),
        };
        let has_url = error.context().iter().any(|(key, _)| *key == "url");
        if has_url { error } else { error.with("url", self.target.url()) }
    }
}
