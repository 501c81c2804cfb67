//! The copying.

use std::collections::VecDeque;
use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_bench::text::bytes;
use forebay_engine::{Buffer, File, ReadPiece, Session, Ticket};
use forebay_error::Error;
use forebay_gpu::Device;

use super::layout;
use super::receipt_sum::ReceiptSum;
use crate::console::{Failure, ProgressLine};
use crate::interrupt::Guard;

/// Bytes per buffer.
const BUFFER_BYTES: usize = 16 << 20;
/// Buffers in use: some are read while others are written.
const BUFFERS: usize = 4;

pub(super) struct Work<'a> {
    session: &'a Session,
    device: &'a Arc<dyn Device>,
    source: &'a File,
    target: &'a File,
    /// Bytes of the copy.
    pub(super) len: u64,
    /// Of them, bytes that are holes.
    holes: u64,
    /// The source was read to its end by plain reads.
    is_plain: bool,
    read: ReceiptSum,
    write: ReceiptSum,
    pub(super) live: ProgressLine,
    started: Instant,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        session: &'a Session,
        device: &'a Arc<dyn Device>,
        source: &'a File,
        target: &'a File,
    ) -> Self {
        Self {
            session,
            device,
            source,
            target,
            len: 0,
            holes: 0,
            is_plain: false,
            read: ReceiptSum::default(),
            write: ReceiptSum::default(),
            live: ProgressLine::new("cp"),
            started: Instant::now(),
        }
    }

    /// Copies the first `len` bytes, of which `stored` take space in the source.
    pub(super) fn copy(&mut self, len: u64, stored: u64) -> Result<(), Failure> {
        self.len = len;
        let ranges = layout::data(self.source.raw_fd().filter(|_| stored < len), len);
        let data: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        self.holes = len - data;
        if self.holes == 0 {
            self.target.preallocate(len)?;
        } else {
            // The target is new: ranges that are not written stay holes.
            self.target.set_len(len)?;
        }
        self.pump(layout::loads(ranges, BUFFER_BYTES), data)
    }

    /// Reads ahead and writes behind over a ring of buffers.
    fn pump(&mut self, loads: Vec<Vec<ReadPiece>>, data: u64) -> Result<(), Failure> {
        let room = data.min(BUFFER_BYTES as u64) as usize;
        let mut free: Vec<Buffer> = (0..loads.len().min(BUFFERS))
            .map(|_| Buffer::new(self.device.clone(), room))
            .collect::<Result<_, _>>()?;
        let mut loads = loads.into_iter();
        let mut reading: VecDeque<(Vec<ReadPiece>, Ticket<Buffer>)> = VecDeque::new();
        let mut writing: VecDeque<Ticket<Buffer>> = VecDeque::new();
        let mut done = 0;
        loop {
            refuse_interrupted()?;
            while !free.is_empty()
                && let Some(load) = loads.next()
                && let Some(buffer) = free.pop()
            {
                let ticket = self.session.read_batch(self.source, &load, buffer)?;
                reading.push_back((load, ticket));
            }
            let writes_next = reading.is_empty() || (writing.len() >= BUFFERS / 2 && free.is_empty());
            if writes_next && let Some(ticket) = writing.pop_front() {
                let (receipt, buffer) = ticket.wait().into_result()?;
                done += receipt.bytes();
                self.write.add(&receipt);
                self.live.show(done, Some(done as f64 / data as f64), self.started.elapsed());
                free.push(buffer);
                continue;
            }
            let Some((load, ticket)) = reading.pop_front() else { break };
            let (receipt, buffer) = ticket.wait().into_result()?;
            self.read.add(&receipt);
            writing.push_back(self.session.write_batch(self.target, &load, buffer)?);
        }
        Ok(())
    }

    /// Copies by plain reads to the end, for files that report no length.
    pub(super) fn copy_to_end(&mut self, path: &Path) -> Result<(), Failure> {
        let failed =
            |error: &std::io::Error| Error::from_io(error, "cannot read").with("path", path.display());
        let mut plain = fs::File::open(path).map_err(|error| failed(&error))?;
        let mut part = Vec::new();
        let mut room: Option<Buffer> = None;
        loop {
            refuse_interrupted()?;
            part.clear();
            Read::by_ref(&mut plain)
                .take(BUFFER_BYTES as u64)
                .read_to_end(&mut part)
                .map_err(|error| failed(&error))?;
            if part.is_empty() {
                return Ok(());
            }
            let buffer = match &mut room {
                Some(buffer) => buffer,
                // Only the last part is shorter than the first.
                None => room.insert(Buffer::new(self.device.clone(), part.len())?),
            };
            buffer.copy_from_slice(&part)?;
            self.write.add(&self.session.write_from(self.target, self.len, buffer, 0..part.len())?);
            self.len += part.len() as u64;
            self.is_plain = true;
            self.live.show(self.len, None, self.started.elapsed());
        }
    }

    /// The summary, in a few lines.
    pub(super) fn report(&self, seconds: f64, what: &str, verified: &str) -> String {
        let moved = self.len - self.holes;
        let rate = moved as f64 / 1e9 / seconds.max(1e-9);
        let read = if self.is_plain {
            format!("{} to its end: it does not tell its length", bytes(self.len))
        } else {
            self.read.text()
        };
        let mut text = format!(
            "{} in {seconds:.2} s ({rate:.2} GB/s) through {what}{verified}\n  read   {read}\n  write  {}\n",
            bytes(self.len),
            self.write.text(),
        );
        if self.holes > 0 {
            let _ = writeln!(text, "  holes  {}", bytes(self.holes));
        }
        text
    }
}

fn refuse_interrupted() -> Result<(), Failure> {
    match Guard::caught() {
        Some(signal) => Err(Failure::interrupted(signal, "nothing was copied")),
        None => Ok(()),
    }
}
