//! cuFileRead and cuFileWrite, one call after the other.

use std::time::Instant;

use crate::abi::{Transfer, meaning};
use crate::bench::{Bench, Pass, Work};
use crate::cuda::Buffer;
use crate::measure::nanos;
use crate::plan::Request;

/// One thread with one buffer.
#[derive(Debug)]
pub(crate) struct SyncWork<'a> {
    bench: &'a Bench,
    handle: usize,
    call: Transfer,
    name: &'static str,
    buffer: Buffer,
}

impl<'a> SyncWork<'a> {
    pub(crate) fn new(bench: &'a Bench, handle: usize) -> Result<Self, String> {
        Ok(Self::with(bench, handle, bench.buffer(bench.options.io as usize)?))
    }

    /// With a buffer of `--io` bytes that the caller made.
    pub(crate) fn with(bench: &'a Bench, handle: usize, buffer: Buffer) -> Self {
        let (call, name) = if bench.options.writes() {
            (bench.library.write, "cuFileWrite")
        } else {
            (bench.library.read, "cuFileRead")
        };
        Self { bench, handle, call, name, buffer }
    }

    /// One request; what was wrong with its result.
    pub(crate) fn transfer(&self, request: Request) -> Result<(), String> {
        let Request { offset, len } = request;
        // SAFETY: the handle is registered, and the buffer has `--io` bytes, which is the longest request.
        let moved = unsafe { (self.call)(self.handle, self.buffer.address, len as usize, offset as i64, 0) };
        if moved == len as isize {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let name = self.name;
        Err(match moved {
            -1 => format!("{name}: {} (errno={errno}, offset={offset}, len={len})", meaning(errno)),
            ..0 => {
                format!("{name}: {} (returned={moved}, offset={offset}, len={len})", meaning(-moved as i32))
            }
            _ => format!(
                "{name}: not the length that was asked for (returned={moved}, offset={offset}, len={len})"
            ),
        })
    }
}

impl Work for SyncWork<'_> {
    fn pass(&mut self, pass: &mut Pass<'_>) {
        let mut now = Instant::now();
        while !pass.is_over(now) {
            let Some(request) = pass.cursor.next() else { break };
            if let Some(checker) = &mut pass.checker {
                if let Err(error) = checker.prepare(&self.buffer, 0, request) {
                    pass.counts.faults.error(error);
                }
                now = Instant::now();
            }
            let answer = self.transfer(request);
            let then = std::mem::replace(&mut now, Instant::now());
            pass.beat.tick();
            match answer {
                Ok(()) => {
                    pass.counts.ops += 1;
                    pass.counts.bytes += request.len;
                    pass.counts.latency.saturating_record(nanos(now - then));
                    if let Some(checker) = &mut pass.checker {
                        checker.check(&self.buffer, 0, request, &mut pass.counts.faults);
                    }
                }
                Err(error) => pass.counts.faults.error(error),
            }
        }
    }

    fn close(&mut self) -> Result<(), String> {
        self.bench.free(&self.buffer)
    }
}
