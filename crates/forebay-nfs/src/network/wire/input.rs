//! Records of a stream, as they come: fragments of any size, heads that are looked at, bytes that go where they belong.

use std::io::IoSliceMut;

use forebay_source::HostRange;

use crate::protocol::xdr::Malformed;

/// Bytes received beyond those requested: small replies, or the next reply's head.
const READ_AHEAD_BYTES: usize = 16 << 10;

/// The same while large READs are received, of whose bytes few are to be copied: a record mark and a reply's head.
const LARGE_HEAD_BYTES: usize = 4 + 1024;

/// Bytes from which on they are received where they belong. Fewer are received ahead, and copied.
const DIRECT_FROM: usize = 2048;

/// The most bytes of a record beside those that were asked for.
const MAX_RECORD_BYTES: u64 = 4 << 20;

/// Where bytes come from. Waits for the first of them.
pub(crate) trait RecordStream {
    /// Why no more bytes come.
    type Error: From<Malformed>;

    /// At least one byte into these ranges, in order.
    fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Self::Error>;
}

/// The received bytes, and their place in a record.
pub(crate) struct RecordInput {
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes left of the fragment.
    left: usize,
    is_last: bool,
    /// Bytes of the record so far that went nowhere.
    skipped: u64,
    /// Bytes to receive ahead.
    most: usize,
}

impl RecordInput {
    pub(crate) fn new() -> Self {
        Self {
            ahead: vec![0; READ_AHEAD_BYTES].into(),
            start: 0,
            end: 0,
            left: 0,
            is_last: true,
            skipped: 0,
            most: READ_AHEAD_BYTES,
        }
    }

    /// Goes to the next record and receives its head: as much of it as `head` holds, or all of it.
    pub(crate) fn head<S: RecordStream>(
        &mut self,
        stream: &mut S,
        head: &mut [u8],
    ) -> Result<usize, S::Error> {
        (self.left, self.is_last, self.skipped) = (0, false, 0);
        self.some(stream, head)
    }

    /// Receives as much of the record as `place` holds, or all that is left of it.
    pub(crate) fn some<S: RecordStream>(
        &mut self,
        stream: &mut S,
        place: &mut [u8],
    ) -> Result<usize, S::Error> {
        let mut got = 0;
        while got < place.len() && self.enter(stream)? {
            let bytes = self.left.min(place.len() - got);
            // SAFETY: the range is of `place`.
            unsafe { self.take(stream, HostRange::of_mut(&mut place[got..got + bytes]))? };
            got += bytes;
        }
        Ok(got)
    }

    /// Receives the next bytes of the record, as many as `place` has.
    ///
    /// # Safety
    /// `place` is valid memory that nobody else uses.
    pub(crate) unsafe fn read<S: RecordStream>(
        &mut self,
        stream: &mut S,
        mut place: HostRange,
    ) -> Result<(), S::Error> {
        self.most = if place.len < READ_AHEAD_BYTES { READ_AHEAD_BYTES } else { LARGE_HEAD_BYTES };
        while place.len > 0 {
            if !self.enter(stream)? {
                return Err(Malformed("it ends before its bytes").into());
            }
            let part = place.first(self.left);
            // SAFETY: within the range that the caller vouches for.
            unsafe { self.take(stream, part)? };
            place = place.after(part.len);
        }
        Ok(())
    }

    /// Leaves out the rest of the record.
    pub(crate) fn skip<S: RecordStream>(&mut self, stream: &mut S) -> Result<(), S::Error> {
        let mut nowhere = [0; 1024];
        while self.enter(stream)? {
            let bytes = self.left.min(nowhere.len());
            self.skipped += bytes as u64;
            if self.skipped > MAX_RECORD_BYTES {
                return Err(Malformed("a record has no end").into());
            }
            // SAFETY: the range is of `nowhere`.
            unsafe { self.take(stream, HostRange::of_mut(&mut nowhere[..bytes]))? };
        }
        Ok(())
    }

    /// Whether the record has more bytes; enters its next fragment where one ends.
    fn enter<S: RecordStream>(&mut self, stream: &mut S) -> Result<bool, S::Error> {
        while self.left == 0 {
            if self.is_last {
                return Ok(false);
            }
            let mut mark = [0; 4];
            // SAFETY: four bytes.
            unsafe { self.receive(stream, HostRange::of_mut(&mut mark))? };
            let mark = u32::from_be_bytes(mark);
            (self.is_last, self.left) = (mark >> 31 != 0, (mark & !(1 << 31)) as usize);
            if self.left == 0 && !self.is_last {
                return Err(Malformed("a fragment without bytes").into());
            }
        }
        Ok(true)
    }

    /// # Safety
    /// As of `read`; it is at most the rest of the fragment.
    unsafe fn take<S: RecordStream>(&mut self, stream: &mut S, place: HostRange) -> Result<(), S::Error> {
        self.left -= place.len;
        // SAFETY: passed on.
        unsafe { self.receive(stream, place) }
    }

    /// # Safety
    /// As of `read`.
    unsafe fn receive<S: RecordStream>(
        &mut self,
        stream: &mut S,
        mut place: HostRange,
    ) -> Result<(), S::Error> {
        loop {
            let bytes = (self.end - self.start).min(place.len);
            // SAFETY: both ranges have that many bytes, and lie apart: one is ours alone.
            unsafe { std::ptr::copy_nonoverlapping(self.ahead[self.start..].as_ptr(), place.start, bytes) };
            self.start += bytes;
            place = place.after(bytes);
            if place.len == 0 {
                return Ok(());
            }
            (self.start, self.end) = (0, 0);
            if place.len < DIRECT_FROM {
                self.end = stream.receive(&mut [IoSliceMut::new(&mut self.ahead[..self.most])])?;
                continue;
            }
            // SAFETY: the range is the caller's, and nobody else's.
            let straight = unsafe { place.bytes_mut() };
            let got = stream
                .receive(&mut [IoSliceMut::new(straight), IoSliceMut::new(&mut self.ahead[..self.most])])?;
            let bytes = got.min(place.len);
            (place, self.end) = (place.after(bytes), got - bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A stream of bytes that come in pieces of any size.
    struct Pieces(Vec<u8>, Vec<usize>);

    impl RecordStream for Pieces {
        type Error = Malformed;
        fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Malformed> {
            if self.0.is_empty() {
                return Err(Malformed("over"));
            }
            let most = self.1.pop().unwrap_or(usize::MAX).max(1).min(self.0.len());
            let mut got = 0;
            for range in into {
                let bytes = range.len().min(most - got);
                range[..bytes].copy_from_slice(&self.0[got..got + bytes]);
                got += bytes;
            }
            self.0.drain(..got);
            Ok(got)
        }
    }

    fn in_fragments(record: &[u8], cuts: &[usize]) -> Vec<u8> {
        let (mut rest, mut made) = (record, Vec::new());
        for cut in cuts {
            let (head, tail) = rest.split_at((*cut).min(rest.len()));
            if !head.is_empty() {
                made.extend((head.len() as u32).to_be_bytes());
                made.extend(head);
            }
            rest = tail;
        }
        made.extend((1 << 31 | rest.len() as u32).to_be_bytes());
        made.extend(rest);
        made
    }

    proptest! {
        #[test]
        fn records_are_the_same_however_they_come(
            lens in prop::collection::vec(0usize..9000, 1..5),
            cuts in prop::collection::vec(1usize..4000, 0..6),
            pieces in prop::collection::vec(1usize..5000, 0..64),
            head_len in 1usize..600,
        ) {
            let records: Vec<Vec<u8>> =
                lens.iter().map(|len| (0..*len).map(|at| (at * 7 + len) as u8).collect()).collect();
            let all = records.iter().flat_map(|record| in_fragments(record, &cuts)).collect();
            let (mut stream, mut input) = (Pieces(all, pieces), RecordInput::new());
            for record in &records {
                let mut head = vec![0; head_len];
                let got = input.head(&mut stream, &mut head).unwrap();
                prop_assert_eq!(&head[..got], &record[..head_len.min(record.len())]);
                let mut middle = vec![0; (record.len() - got) / 2];
                // SAFETY: the range is of `middle`.
                unsafe { input.read(&mut stream, HostRange::of_mut(&mut middle)).unwrap() };
                prop_assert_eq!(&middle[..], &record[got..got + middle.len()]);
                input.skip(&mut stream).unwrap();
            }
            prop_assert!(stream.0.is_empty());
        }
    }

    #[test]
    fn a_record_that_ends_early_or_never_is_malformed() {
        let mut input = RecordInput::new();
        let mut stream = Pieces(in_fragments(&[1; 40], &[]), vec![]);
        let mut place = [0; 64];
        assert_eq!(input.head(&mut stream, &mut place[..8]), Ok(8));
        // SAFETY: the range is of `place`.
        let read = unsafe { input.read(&mut stream, HostRange::of_mut(&mut place).first(33)) };
        assert_eq!(read, Err(Malformed("it ends before its bytes")));
        let mut endless = Pieces(vec![0x7F, 0xFF, 0xFF, 0xFF], vec![]);
        endless.0.resize(6 << 20, 0);
        let mut input = RecordInput::new();
        input.head(&mut endless, &mut place).unwrap();
        assert_eq!(input.skip(&mut endless), Err(Malformed("a record has no end")));
        let mut empty = Pieces(vec![0; 64], vec![]);
        assert_eq!(
            RecordInput::new().head(&mut empty, &mut place),
            Err(Malformed("a fragment without bytes"))
        );
    }
}
