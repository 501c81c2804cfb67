//! Compares every byte with the pattern.

use std::os::unix::fs::FileExt;

use forebay_gpu::{fill_pattern, first_mismatch};

use crate::bench::Bench;
use crate::cuda::Buffer;
use crate::measure::Faults;
use crate::plan::Request;

/// What a buffer holds before a read, so that bytes that were never written are found.
const POISON: u8 = 0xA5;

/// The means of one thread to look at bytes.
#[derive(Debug)]
pub(crate) struct Checker<'a> {
    bench: &'a Bench,
    stream: usize,
    bytes: Vec<u8>,
}

impl<'a> Checker<'a> {
    pub(crate) fn new(bench: &'a Bench) -> Result<Self, String> {
        Ok(Self { bench, stream: bench.gpu.stream(true)?, bytes: Vec::new() })
    }

    /// Before a read: spoils the buffer. Before a write: puts the pattern there.
    pub(crate) fn prepare(&mut self, buffer: &Buffer, at: usize, request: Request) -> Result<(), String> {
        self.bytes.resize(request.len as usize, 0);
        if self.bench.options.writes() {
            fill_pattern(&mut self.bytes, self.bench.options.key, request.offset);
        } else {
            self.bytes.fill(POISON);
        }
        self.bench.gpu.put(buffer, at, &self.bytes, self.stream)
    }

    /// After a read: looks at the buffer. After a write: looks at the file.
    pub(crate) fn check(&mut self, buffer: &Buffer, at: usize, request: Request, faults: &mut Faults) {
        self.bytes.resize(request.len as usize, 0);
        let answer = if self.bench.options.writes() {
            self.bytes.fill(POISON);
            let read = self.bench.file.plain.read_exact_at(&mut self.bytes, request.offset);
            read.map_err(|error| {
                format!("cannot read the bytes written: {error} (offset={})", request.offset)
            })
        } else {
            self.bench.gpu.get(buffer, at, &mut self.bytes, self.stream)
        };
        match answer {
            Ok(()) => self.compare(request.offset, faults),
            Err(error) => faults.error(error),
        }
    }

    fn compare(&self, offset: u64, faults: &mut Faults) {
        let key = self.bench.options.key;
        faults.checked_bytes += self.bytes.len() as u64;
        let Some(first) = first_mismatch(&self.bytes, key, offset) else { return };
        let mut right = vec![0; self.bytes.len()];
        fill_pattern(&mut right, key, offset);
        faults.wrong_bytes +=
            self.bytes.iter().zip(&right).filter(|(is, should)| is != should).count() as u64;
        faults.first_wrong = Some(faults.first_wrong.map_or(first, |earlier| earlier.min(first)));
    }
}

impl Drop for Checker<'_> {
    fn drop(&mut self) {
        let _ = self.bench.gpu.destroy(self.stream);
    }
}
