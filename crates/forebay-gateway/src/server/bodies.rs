//! Bodies as they pass the server: counted, and not waited for longer than allowed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use s3s::crypto::{Checksum as _, Md5};
use s3s::{Body, StdError};
use tokio::time::{Instant, Sleep, sleep};

use super::request::Request;
use crate::front::BodyStalled;
use crate::warn::warn;

/// A body that a client sends.
pub(super) struct Incomer {
    inner: Incoming,
    came: Arc<AtomicU64>,
    limit: Duration,
    /// Since the last bytes came, where they are waited for.
    waiting: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    md5: Option<BodyMd5>,
}

impl Incomer {
    pub(super) fn new(inner: Incoming, came: Arc<AtomicU64>, limit: Duration, md5: Option<BodyMd5>) -> Self {
        Self { inner, came, limit, waiting: None, is_waiting: false, md5 }
    }

    /// The last bytes do not pass where they are others than `Content-MD5` says.
    fn compare(&mut self, frame: &Frame<Bytes>) -> Result<(), StdError> {
        let Some(md5) = &mut self.md5 else { return Ok(()) };
        md5.digest.update(frame.data_ref().map_or(&[][..], |bytes| &bytes[..]));
        if !http_body::Body::is_end_stream(&self.inner) {
            return Ok(());
        }
        self.md5.take().map_or(Ok(()), BodyMd5::end)
    }
}

/// The MD5 of a document, which s3s does not compare.
pub(super) struct BodyMd5 {
    digest: Md5,
    said: Vec<u8>,
    /// It was compared, and is another one.
    pub(super) is_wrong: Arc<AtomicBool>,
}

impl BodyMd5 {
    /// Of the bytes that a `Content-MD5` stands for.
    pub(super) fn new(said: Vec<u8>) -> Self {
        Self { digest: Md5::new(), said, is_wrong: Arc::default() }
    }

    /// Whether `Content-MD5` is that of no bytes.
    pub(super) fn is_of_nothing(&self) -> bool {
        Md5::new().finalize()[..] == self.said[..]
    }

    fn end(self) -> Result<(), StdError> {
        if self.digest.finalize()[..] == self.said[..] {
            return Ok(());
        }
        self.is_wrong.store(true, Relaxed);
        Err("its bytes are others than Content-MD5 says".into())
    }
}

impl http_body::Body for Incomer {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            this.is_waiting = false;
            if let Some(Ok(frame)) = &frame {
                this.came.fetch_add(frame.data_ref().map_or(0, Bytes::len) as u64, Relaxed);
                if let Err(error) = this.compare(frame) {
                    return Poll::Ready(Some(Err(error)));
                }
            }
            // A body in chunks ends behind its last bytes.
            if frame.is_none()
                && let Some(Err(error)) = this.md5.take().map(BodyMd5::end)
            {
                return Poll::Ready(Some(Err(error)));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timer = this.waiting.get_or_insert_with(|| Box::pin(sleep(this.limit)));
        if !this.is_waiting {
            timer.as_mut().reset(Instant::now() + this.limit);
            this.is_waiting = true;
        }
        timer.as_mut().poll(cx).map(|()| Some(Err(BodyStalled.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer. Its request ends when it is dropped.
pub(super) struct Outgoer {
    inner: Body,
    request: Request,
}

impl Outgoer {
    pub(super) fn new(inner: Body, request: Request) -> Self {
        Self { inner, request }
    }
}

impl http_body::Body for Outgoer {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.request.sent += frame.data_ref().map_or(0, Bytes::len) as u64,
            // The head is out: the client sees it by bytes that do not come.
            Some(Err(error)) => warn(&format!("an answer broke off: {error}")),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
