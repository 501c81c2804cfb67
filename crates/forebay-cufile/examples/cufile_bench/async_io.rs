//! cuFileReadAsync and cuFileWriteAsync: rounds of many requests on a few streams, and then a wait.

use std::time::Instant;

use crate::abi::{TransferAsync, meaning};
use crate::bench::{Bench, Pass, Work};
use crate::cuda::Buffer;
use crate::measure::nanos;
use crate::plan::Request;

/// What a result holds until the library writes it.
const NO_RESULT: isize = isize::MIN;
/// The result of a request that was refused when it was submitted; the error was returned then.
const REFUSED: isize = isize::MIN + 1;

/// One thread with its streams.
#[derive(Debug)]
pub(crate) struct AsyncWork<'a> {
    bench: &'a Bench,
    handle: usize,
    call: TransferAsync,
    name: &'static str,
    streams: Vec<usize>,
    buffer: Buffer,
    /// What the library reads and writes while the requests are in flight; never moved.
    arguments: Box<[Arguments]>,
    requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug)]
struct Arguments {
    size: usize,
    file_offset: i64,
    base_offset: i64,
    result: isize,
}

impl<'a> AsyncWork<'a> {
    pub(crate) fn new(bench: &'a Bench, handle: usize) -> Result<Self, String> {
        let (call, name) = if bench.options.writes() {
            (bench.library.write_async, "cuFileWriteAsync")
        } else {
            (bench.library.read_async, "cuFileReadAsync")
        };
        let count = bench.options.inflight as usize;
        let nothing = Arguments { size: 0, file_offset: 0, base_offset: 0, result: NO_RESULT };
        let buffer = bench.buffer(count * bench.options.io as usize)?;
        let streams = (0..bench.options.streams).map(|_| stream(bench)).collect::<Result<_, _>>()?;
        let arguments = vec![nothing; count].into_boxed_slice();
        Ok(Self {
            bench,
            handle,
            call,
            name,
            streams,
            buffer,
            arguments,
            requests: Vec::with_capacity(count),
        })
    }

    /// Submits as many requests as may be in flight; false when there was none.
    fn submit(&mut self, pass: &mut Pass<'_>) -> bool {
        let io = self.bench.options.io as usize;
        self.requests.clear();
        for number in 0..self.arguments.len() {
            let Some(request) = pass.cursor.next() else { break };
            self.requests.push(request);
            if let Some(checker) = &mut pass.checker
                && let Err(error) = checker.prepare(&self.buffer, number * io, request)
            {
                pass.counts.faults.error(error);
            }
        }
        let arguments = self.arguments.as_mut_ptr();
        for (number, request) in self.requests.iter().enumerate() {
            let stream = self.streams[number % self.streams.len()];
            let (size, file_offset) = (request.len as usize, request.offset as i64);
            let before =
                Arguments { size, file_offset, base_offset: (number * io) as i64, result: NO_RESULT };
            // SAFETY: `number` is within the slice, whose places stay until all streams are synchronised; the buffer
            // has room for every request.
            let (answer, taken) = unsafe {
                let place = arguments.add(number);
                place.write(before);
                let (size, file_offset) = (&raw mut (*place).size, &raw mut (*place).file_offset);
                let (base_offset, result) = (&raw mut (*place).base_offset, &raw mut (*place).result);
                let then = Instant::now();
                let base = self.buffer.address;
                let answer = (self.call)(self.handle, base, size, file_offset, base_offset, result, stream);
                (answer, then.elapsed())
            };
            pass.counts.submit.saturating_record(nanos(taken));
            pass.beat.tick();
            if let Err(error) = answer.done(self.name) {
                // SAFETY: as above; the library has not kept the pointers of a request that it refused.
                unsafe { (*arguments.add(number)).result = REFUSED };
                pass.counts.faults.error(format!("{error}, request {number} of the round"));
            }
        }
        !self.requests.is_empty()
    }

    /// Waits for all streams and looks at every result.
    fn finish(&mut self, begun: Instant, pass: &mut Pass<'_>) {
        for stream in &self.streams {
            if let Err(error) = self.bench.gpu.synchronize(*stream) {
                pass.counts.faults.error(error);
            }
            pass.beat.tick();
        }
        pass.counts.latency.saturating_record(nanos(begun.elapsed()));
        for (number, request) in self.requests.iter().enumerate() {
            // SAFETY: within the slice; the library wrote it from another thread before the stream was done.
            let result = unsafe { (&raw const self.arguments[number].result).read_volatile() };
            if result == request.len as isize {
                pass.counts.ops += 1;
                pass.counts.bytes += request.len;
            } else if result != REFUSED {
                pass.counts.faults.error(self.complain(result, number, *request));
            }
            if let Some(checker) = &mut pass.checker {
                let at = number * self.bench.options.io as usize;
                checker.check(&self.buffer, at, *request, &mut pass.counts.faults);
            }
        }
    }

    fn complain(&self, result: isize, number: usize, Request { offset, len }: Request) -> String {
        let why = match result {
            -1 => "failed".to_owned(),
            -9999..-1 => meaning(-result as i32),
            0.. => "not the length that was asked for".to_owned(),
            _ => "no result was written".to_owned(),
        };
        let name = self.name;
        format!("{name}: {why} (result={result}, request={number} of the round, offset={offset}, len={len})")
    }
}

impl Work for AsyncWork<'_> {
    fn pass(&mut self, pass: &mut Pass<'_>) {
        let mut begun = Instant::now();
        while !pass.is_over(begun) && self.submit(pass) {
            self.finish(begun, pass);
            begun = Instant::now();
        }
    }

    fn close(&mut self) -> Result<(), String> {
        for stream in &self.streams {
            if self.bench.options.stream_flags.is_some() {
                // SAFETY: registered once, nothing is in flight.
                let answer = unsafe { (self.bench.library.stream_deregister)(*stream) };
                answer.done("cuFileStreamDeregister")?;
            }
            self.bench.gpu.destroy(*stream)?;
        }
        self.bench.free(&self.buffer)
    }
}

/// A stream, registered if flags were given.
fn stream(bench: &Bench) -> Result<usize, String> {
    let stream = bench.gpu.stream(false)?;
    if let Some(flags) = bench.options.stream_flags {
        // SAFETY: a live stream.
        unsafe { (bench.library.stream_register)(stream, flags) }.done("cuFileStreamRegister")?;
    }
    Ok(stream)
}
