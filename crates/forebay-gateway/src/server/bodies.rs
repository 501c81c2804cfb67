//! Bodies as they pass the server: counted, and not waited for longer than allowed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
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
}

impl Incomer {
    pub(super) fn new(inner: Incoming, came: Arc<AtomicU64>, limit: Duration) -> Self {
        Self { inner, came, limit, waiting: None, is_waiting: false }
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
