//! The bytes of an open object on their way to the socket: one piece is sent while the next is read.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use s3s::Body;
use tokio::task::JoinHandle;

use crate::lane::{FileLane, FileRange, frame};
use crate::threads::Turns;

/// Bytes that are read at a time: they are still in a core's cache when the socket takes them.
const PIECE: usize = 256 << 10;
/// Pieces that are kept for later bodies: memory of the C library's would be mapped and cleared anew for each.
const KEPT: usize = 32;

/// Memory of pieces, used again.
#[derive(Default)]
pub(crate) struct Pieces(Mutex<Vec<Vec<u8>>>);

impl Pieces {
    fn take(&self) -> Vec<u8> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| vec![0; PIECE])
    }
}

/// A piece that goes back where it came from when the socket has its bytes.
struct Piece {
    memory: Vec<u8>,
    len: usize,
    pieces: Arc<Pieces>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut kept = self.pieces.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(memory);
        }
    }
}

/// A range of an open file.
pub(crate) struct Span {
    file: File,
    at: u64,
    end: u64,
    pieces: Arc<Pieces>,
    turns: Turns,
}

impl Span {
    pub(crate) fn new(file: File, range: Range<u64>, pieces: Arc<Pieces>, turns: Turns) -> Self {
        Self { file, at: range.start, end: range.end, pieces, turns }
    }

    /// Whether one piece is not enough.
    fn is_long(&self) -> bool {
        self.end - self.at > PIECE as u64
    }

    /// Reads the next piece. Blocks. A file that has become shorter is an error: the head said how many bytes come.
    fn read(&mut self) -> io::Result<Bytes> {
        let len = (self.end - self.at).min(PIECE as u64) as usize;
        let at = self.at;
        self.at += len as u64;
        if len < PIECE / 4 {
            let mut memory = vec![0; len];
            self.file.read_exact_at(&mut memory, at)?;
            return Ok(memory.into());
        }
        let mut piece = Piece { memory: self.pieces.take(), len, pieces: Arc::clone(&self.pieces) };
        self.file.read_exact_at(&mut piece.memory[..len], at)?;
        Ok(Bytes::from_owner(piece))
    }
}

/// The body of an answer: by the lane where it is long; its first piece is read now otherwise. Blocks.
pub(crate) fn body_of(mut span: Span, lane: Option<Arc<FileLane>>) -> io::Result<Body> {
    if !span.is_long() {
        return Ok(span.read()?.into());
    }
    if let Some(lane) = lane {
        return Ok(Body::http_body(LaneBody { left: span.end - span.at, span: Some(span), lane }));
    }
    Ok(Body::http_body(SpanBody::new(span.read()?, span)))
}

/// A body that the kernel moves to the socket.
struct LaneBody {
    /// Until the first frame is asked for: an answer without a body leaves nothing in the lane.
    span: Option<Span>,
    lane: Arc<FileLane>,
    left: u64,
}

impl http_body::Body for LaneBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(Span { file, at, end, turns, .. }) = self.span.take() {
            self.lane.push(FileRange { file, range: at..end, turns });
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let frame = frame(self.left);
        self.left -= frame.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The body of an answer, read by this process.
struct SpanBody {
    /// Read already.
    first: Option<Bytes>,
    /// Absent while a thread reads, and when all is read.
    span: Option<Span>,
    reading: Option<JoinHandle<io::Result<(Bytes, Span)>>>,
    left: u64,
}

impl SpanBody {
    /// `first`: the span's first piece, which was read when the file was opened.
    fn new(first: Bytes, span: Span) -> Self {
        let left = first.len() as u64 + span.end - span.at;
        Self { first: Some(first), span: Some(span), reading: None, left }
    }

    /// Starts to read the piece behind the one that is handed out.
    fn read_ahead(&mut self) {
        let more = self.span.take().filter(|span| span.at < span.end);
        self.reading = more.map(|mut span| span.turns.clone().start(move || Ok((span.read()?, span))));
    }

    fn hand_out(&mut self, bytes: Bytes) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.left -= bytes.len() as u64;
        self.read_ahead();
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

impl http_body::Body for SpanBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return self.hand_out(first);
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(cx)).map_err(io::Error::other).flatten();
        self.reading = None;
        match read {
            Ok((bytes, span)) => {
                self.span = Some(span);
                self.hand_out(bytes)
            }
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt as _;

    use super::*;

    fn body(file: &tempfile::NamedTempFile, range: Range<u64>) -> io::Result<Body> {
        body_of(Span::new(file.reopen()?, range, Arc::default(), Turns::default()), None)
    }

    #[tokio::test]
    async fn ranges_come_whole_and_in_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..3 * PIECE + 5).map(|at| (at / 7) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        for range in [0..bytes.len(), 1..2, PIECE - 1..2 * PIECE + 1, 5..5 + PIECE] {
            let body = body(&file, range.start as u64..range.end as u64).unwrap();
            assert_eq!(body.size_hint().exact(), Some(range.len() as u64));
            assert!(body.collect().await.unwrap().to_bytes() == bytes[range]);
        }
    }

    #[tokio::test]
    async fn a_file_that_shrinks_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(2 * PIECE as u64).unwrap();
        let body = body(&file, 0..2 * PIECE as u64).unwrap();
        file.as_file().set_len(PIECE as u64).unwrap();
        assert_eq!(
            body.collect().await.unwrap_err().downcast_ref::<io::Error>().unwrap().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
