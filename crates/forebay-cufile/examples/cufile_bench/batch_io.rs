//! cuFileBatchIO: handles that are set up once and used over and over.

use std::collections::VecDeque;
use std::time::Instant;

use crate::abi::{Entry, Event, MODE_BATCH, OPCODE_READ, OPCODE_WRITE, STATUS_COMPLETE, meaning};
use crate::bench::{Bench, Pass, Work};
use crate::cuda::Buffer;
use crate::measure::{Faults, nanos};
use crate::plan::Request;

/// One thread that keeps some batches in flight.
#[derive(Debug)]
pub(crate) struct BatchWork<'a> {
    bench: &'a Bench,
    handle: usize,
    slots: Vec<Slot>,
}

/// A batch handle with its entries and the buffer that they share.
#[derive(Debug)]
struct Slot {
    batch: usize,
    buffer: Buffer,
    entries: Vec<Entry>,
    events: Vec<Event>,
    requests: Vec<Request>,
    seen: Vec<bool>,
    /// The cookie of the first entry. Every use of the handle has cookies of its own, so that an event of an earlier
    /// use is found out.
    first_cookie: usize,
    submitted: Instant,
}

impl<'a> BatchWork<'a> {
    pub(crate) fn new(bench: &'a Bench, handle: usize) -> Result<Self, String> {
        let slots = (0..bench.options.inflight).map(|number| Slot::new(bench, number as usize));
        Ok(Self { bench, handle, slots: slots.collect::<Result<_, _>>()? })
    }

    /// Takes the next requests and submits them; false when there is nothing more to do.
    fn begin(&mut self, number: usize, pass: &mut Pass<'_>) -> bool {
        let slot = &mut self.slots[number];
        slot.fill(self.bench, self.handle, pass);
        if slot.entries.is_empty() {
            return false;
        }
        slot.submitted = Instant::now();
        let count = slot.entries.len() as u32;
        let submit = self.bench.library.batch_submit;
        // SAFETY: the handle has room for as many entries; they and their memory live until the batch is done.
        let answer = unsafe { submit(slot.batch, count, slot.entries.as_mut_ptr(), 0) };
        pass.counts.submit.saturating_record(nanos(slot.submitted.elapsed()));
        pass.beat.tick();
        // Entries not accepted cannot be waited for: the pass ends.
        answer.done("cuFileBatchIOSubmit").map_err(|error| pass.counts.faults.error(error)).is_ok()
    }

    /// Waits until the batch is done, and checks the results.
    fn end(&mut self, number: usize, pass: &mut Pass<'_>) -> bool {
        let slot = &mut self.slots[number];
        if let Err(error) = slot.wait(self.bench, pass) {
            pass.counts.faults.error(error);
            return false;
        }
        pass.counts.latency.saturating_record(nanos(slot.submitted.elapsed()));
        if let Some(checker) = &mut pass.checker {
            for (at, request) in slot.requests.iter().enumerate() {
                let at = at * self.bench.options.io as usize;
                checker.check(&slot.buffer, at, *request, &mut pass.counts.faults);
            }
        }
        true
    }
}

impl Work for BatchWork<'_> {
    fn pass(&mut self, pass: &mut Pass<'_>) {
        let mut busy = VecDeque::new();
        let mut more = true;
        for number in 0..self.slots.len() {
            more = more && self.begin(number, pass);
            if more {
                busy.push_back(number);
            }
        }
        while let Some(number) = busy.pop_front() {
            // After a failure the others are still waited for: their memory must not go while it is in use.
            more = self.end(number, pass) && more;
            more = more && !pass.is_over(Instant::now()) && self.begin(number, pass);
            if more {
                busy.push_back(number);
            }
        }
    }

    fn close(&mut self) -> Result<(), String> {
        for slot in &self.slots {
            // SAFETY: set up once, nothing is in flight.
            unsafe { (self.bench.library.batch_destroy)(slot.batch) };
            self.bench.free(&slot.buffer)?;
        }
        Ok(())
    }
}

impl Slot {
    fn new(bench: &Bench, number: usize) -> Result<Self, String> {
        let entries = bench.options.batch as usize;
        let mut batch = 0;
        // SAFETY: a valid place for the handle.
        unsafe { (bench.library.batch_set_up)(&raw mut batch, entries as u32) }.done("cuFileBatchIOSetUp")?;
        Ok(Self {
            batch,
            buffer: bench.buffer(entries * bench.options.io as usize)?,
            entries: Vec::with_capacity(entries),
            events: vec![Event::default(); entries],
            requests: Vec::with_capacity(entries),
            seen: vec![false; entries],
            first_cookie: (number + 1) << 48,
            submitted: Instant::now(),
        })
    }

    fn fill(&mut self, bench: &Bench, handle: usize, pass: &mut Pass<'_>) {
        let io = bench.options.io as usize;
        self.first_cookie += self.entries.len();
        self.entries.clear();
        self.requests.clear();
        for number in 0..self.seen.len() {
            let Some(request) = pass.cursor.next() else { break };
            if let Some(checker) = &mut pass.checker
                && let Err(error) = checker.prepare(&self.buffer, number * io, request)
            {
                pass.counts.faults.error(error);
            }
            self.requests.push(request);
            self.entries.push(Entry {
                mode: MODE_BATCH,
                base: self.buffer.address,
                file_offset: request.offset as i64,
                base_offset: (number * io) as i64,
                size: request.len as usize,
                file: handle,
                opcode: if bench.options.writes() { OPCODE_WRITE } else { OPCODE_READ },
                cookie: self.first_cookie + number,
            });
        }
    }

    fn wait(&mut self, bench: &Bench, pass: &mut Pass<'_>) -> Result<(), String> {
        self.seen.fill(false);
        let mut left = self.entries.len();
        while left > 0 {
            let mut count = left as u32;
            let get = bench.library.batch_get_status;
            // SAFETY: there is room for `count` events; no timeout is a null pointer.
            unsafe {
                get(self.batch, left as u32, &raw mut count, self.events.as_mut_ptr(), std::ptr::null_mut())
            }
            .done("cuFileBatchIOGetStatus")?;
            let count = count as usize;
            if count > left {
                return Err(format!(
                    "cuFileBatchIOGetStatus: more events than entries (events={count}, left={left})"
                ));
            }
            if count > 0 {
                pass.beat.tick();
            }
            for event in 0..count {
                let event = self.events[event];
                if let Some(len) = self.judge(event, &mut pass.counts.faults) {
                    pass.counts.ops += 1;
                    pass.counts.bytes += len;
                }
            }
            left -= count;
        }
        Ok(())
    }

    /// The bytes of an entry that was done as it should be.
    fn judge(&mut self, event: Event, faults: &mut Faults) -> Option<u64> {
        let number = event.cookie.wrapping_sub(self.first_cookie);
        if number >= self.requests.len() {
            faults.error(format!("event of no entry of this batch (cookie={:#x})", event.cookie));
            return None;
        }
        if std::mem::replace(&mut self.seen[number], true) {
            faults.error(format!("second event of entry {number}"));
            return None;
        }
        let Request { offset, len } = self.requests[number];
        if event.status == STATUS_COMPLETE && event.ret as u64 == len {
            return Some(len);
        }
        let (status, ret) = (event.status, event.ret as isize);
        let why = if ret < 0 { meaning(-ret as i32) } else { "not done as asked".to_owned() };
        faults
            .error(format!("batch entry: {why} (status={status:#x}, ret={ret}, offset={offset}, len={len})"));
        None
    }
}
