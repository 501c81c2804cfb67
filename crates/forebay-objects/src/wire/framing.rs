//! Where the body of a reply ends.

use forebay_error::{Error, ErrorKind, Result};

/// The longest line with the size of a chunk, and all trailers of a body.
const LONGEST_CODING: usize = 64 << 10;

/// How much of a body is left, and in which form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// This number of bytes is left of the whole.
    Length { left: u64, whole: u64 },
    /// In chunks, each with its size before it.
    Chunked { at: ChunkPart, coding: usize },
    /// Until the server closes the connection.
    UntilClose,
}

/// Where in a body of chunks the next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkPart {
    /// Digits of a size that is this until now; `None`: there is none yet.
    Size(Option<u64>),
    /// Behind the size, up to the end of the line.
    Extension(u64),
    /// Bytes of the body that are left of the chunk.
    Body(u64),
    /// The end of the line behind a chunk.
    Behind,
    /// A trailer; whether its line has a byte.
    Trailer(bool),
    /// The body has ended.
    Ended,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// At most this number of bytes of the body.
    Body(u64),
    /// Bytes for [`Framing::decode`].
    Coding,
    /// The next reply.
    End,
}

impl Framing {
    pub(super) const fn of_length(length: u64) -> Self {
        Self::Length { left: length, whole: length }
    }

    pub(super) const fn chunked() -> Self {
        Self::Chunked { at: ChunkPart::Size(None), coding: 0 }
    }

    pub(super) fn next(&self) -> Next {
        match *self {
            Self::Length { left: 0, .. } | Self::Chunked { at: ChunkPart::Ended, .. } => Next::End,
            Self::Length { left, .. } | Self::Chunked { at: ChunkPart::Body(left), .. } => Next::Body(left),
            Self::Chunked { .. } => Next::Coding,
            Self::UntilClose => Next::Body(u64::MAX),
        }
    }

    /// Bytes that are left, where that is known.
    pub(super) fn left(&self) -> Option<u64> {
        match *self {
            Self::Length { left, .. } => Some(left),
            Self::Chunked { at: ChunkPart::Ended, .. } => Some(0),
            _ => None,
        }
    }

    /// This number of bytes of the body came: at most as many as [`Next::Body`] says.
    pub(super) fn received(&mut self, bytes: u64) {
        match self {
            Self::Length { left, .. } => *left -= bytes,
            Self::Chunked { at, .. } => match at {
                ChunkPart::Body(left) if *left == bytes => *at = ChunkPart::Behind,
                ChunkPart::Body(left) => *left -= bytes,
                _ => {}
            },
            Self::UntilClose => {}
        }
    }

    /// Takes bytes that are not of the body, up to the next that is; how many these are.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Result<usize> {
        let Self::Chunked { at, coding } = self else { return Ok(0) };
        for (index, byte) in bytes.iter().enumerate() {
            if matches!(at, ChunkPart::Body(_) | ChunkPart::Ended) {
                return Ok(index);
            }
            *coding += 1;
            let next = if *coding > LONGEST_CODING { None } else { at.take(*byte) };
            *at = next.ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "the chunks of the server's reply are not valid")
            })?;
            if matches!(at, ChunkPart::Body(_)) {
                *coding = 0;
            }
        }
        Ok(bytes.len())
    }

    /// The server closed the connection: an error where the body has not ended. `received`: bytes of it that came.
    pub(super) fn closed(&self, received: u64) -> Result<()> {
        let error = Error::new(ErrorKind::Io, "the server closed the connection within its reply")
            .with("received", received);
        match self {
            Self::UntilClose => Ok(()),
            _ if self.next() == Next::End => Ok(()),
            Self::Length { whole, .. } => Err(error.with("expected", whole)),
            Self::Chunked { .. } => Err(error),
        }
    }
}

impl ChunkPart {
    /// Takes a byte that is not of the body; `None` where it is not valid there.
    fn take(self, byte: u8) -> Option<Self> {
        let behind_size = |size| if size == 0 { Self::Trailer(false) } else { Self::Body(size) };
        match (self, byte) {
            (Self::Size(size), digit) if digit.is_ascii_hexdigit() => {
                let digit = char::from(digit).to_digit(16)?;
                let size = size.unwrap_or(0).checked_mul(16)?.checked_add(digit.into())?;
                Some(Self::Size(Some(size)))
            }
            (Self::Size(Some(size)) | Self::Extension(size), b'\n') => Some(behind_size(size)),
            (Self::Size(Some(size)), b'\r' | b';' | b' ' | b'\t') | (Self::Extension(size), _) => {
                Some(Self::Extension(size))
            }
            (Self::Behind, b'\n') => Some(Self::Size(None)),
            (Self::Behind, b'\r') => Some(Self::Behind),
            (Self::Trailer(false), b'\n') => Some(Self::Ended),
            (Self::Trailer(true), b'\n') => Some(Self::Trailer(false)),
            (Self::Trailer(has_byte), b'\r') => Some(Self::Trailer(has_byte)),
            (Self::Trailer(_), _) => Some(Self::Trailer(true)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a body from pieces; what came, and the bytes behind it.
    fn read(framing: &mut Framing, pieces: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>)> {
        let (mut body, mut behind) = (Vec::new(), Vec::new());
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let bytes = match framing.next() {
                    Next::End => {
                        behind.extend_from_slice(rest);
                        rest.len()
                    }
                    Next::Coding => framing.decode(rest)?,
                    Next::Body(most) => {
                        let bytes = rest.len().min(most.try_into().unwrap_or(usize::MAX));
                        body.extend_from_slice(&rest[..bytes]);
                        framing.received(bytes as u64);
                        bytes
                    }
                };
                rest = &rest[bytes..];
            }
        }
        Ok((body, behind))
    }

    const CHUNKS: &[u8] =
        b"4\r\nfour\r\n00A;name=value\r\n ten bytes\r\n0\r\nTrailer: one\r\n\r\nHTTP/1.1 200 OK";

    #[test]
    fn chunks_are_read_however_they_are_cut() {
        for cut in 0..CHUNKS.len() {
            for other in cut..CHUNKS.len() {
                let mut framing = Framing::chunked();
                let pieces = [&CHUNKS[..cut], &CHUNKS[cut..other], &CHUNKS[other..]];
                let (body, behind) = read(&mut framing, &pieces).unwrap();
                assert_eq!((&body[..], &behind[..]), (&b"four ten bytes"[..], &b"HTTP/1.1 200 OK"[..]));
            }
        }
    }

    #[test]
    fn a_body_that_ends_early_says_so() {
        let mut framing = Framing::of_length(10);
        read(&mut framing, &[b"four"]).unwrap();
        let error = framing.closed(4).unwrap_err().to_string();
        assert_eq!(error, "the server closed the connection within its reply (received=4, expected=10)");
        let end = CHUNKS.len() - b"HTTP/1.1 200 OK".len();
        for cut in 0..=end {
            let mut framing = Framing::chunked();
            read(&mut framing, &[&CHUNKS[..cut]]).unwrap();
            assert_eq!(framing.closed(0).is_ok(), cut == end, "{cut}");
        }
        assert!(Framing::UntilClose.closed(7).is_ok());
    }

    #[test]
    fn chunks_that_are_not_valid_are_refused() {
        let long = [b"1;", &vec![b'x'; LONGEST_CODING][..]].concat();
        for bad in [&b"\r\n"[..], b"g\r\n", b"-1\r\n", b"10000000000000000\r\n", b"1\r\nab\r\n", &long] {
            assert!(read(&mut Framing::chunked(), &[bad]).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    proptest! {
        #[test]
        fn bodies_are_what_was_sent(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6), step in 1usize..50) {
            let mut sent = Vec::new();
            for chunk in &chunks {
                sent.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                sent.extend_from_slice(chunk);
                sent.extend_from_slice(b"\r\n");
            }
            sent.extend_from_slice(b"0\r\n\r\n");
            let pieces: Vec<_> = sent.chunks(step).collect();
            let mut framing = Framing::chunked();
            let (body, behind) = read(&mut framing, &pieces).unwrap();
            prop_assert_eq!(body, chunks.concat());
            prop_assert!(behind.is_empty() && framing.next() == Next::End);
        }
    }
}
