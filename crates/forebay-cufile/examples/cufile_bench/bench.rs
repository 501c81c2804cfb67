//! The shared state of a run, and its threads and passes.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::abi::Library;
use crate::check::Checker;
use crate::cuda::{Buffer, Gpu};
use crate::file::TestFile;
use crate::measure::{Counts, Faults, Mark, figures};
use crate::options::Options;
use crate::plan::Cursor;
use crate::watch::{Beat, Watch};

/// A thread that meets as many errors in a pass ends the pass.
const PATIENCE: u64 = 4096;

/// The library, the GPU and the file.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) options: Options,
    pub(crate) library: Library,
    pub(crate) gpu: Gpu,
    pub(crate) file: TestFile,
    pub(crate) watch: Arc<Watch>,
}

/// One thread's work of one kind: buffers, batches, streams.
pub(crate) trait Work: Send {
    /// Works until the cursor or the time ends.
    fn pass(&mut self, pass: &mut Pass<'_>);

    /// Gives everything back.
    fn close(&mut self) -> Result<(), String>;
}

/// One pass of one thread.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    pub(crate) cursor: &'a mut Cursor,
    pub(crate) deadline: Option<Instant>,
    pub(crate) checker: Option<Checker<'a>>,
    pub(crate) counts: Counts,
    pub(crate) beat: &'a Beat,
}

impl Pass<'_> {
    /// Whether to begin no further request.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.counts.faults.error_count >= PATIENCE || self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

impl Bench {
    /// Registers the file with the library.
    pub(crate) fn register(&self) -> Result<usize, String> {
        self.library.register(self.file.handed_over.as_raw_fd())
    }

    /// A buffer, registered if that was asked for.
    pub(crate) fn buffer(&self, len: usize) -> Result<Buffer, String> {
        let buffer = self.gpu.allocate(self.options.memory, len)?;
        self.register_buffer(&buffer)?;
        Ok(buffer)
    }

    /// Registers a buffer if that was asked for.
    pub(crate) fn register_buffer(&self, buffer: &Buffer) -> Result<(), String> {
        if !self.options.register_buffer {
            return Ok(());
        }
        // SAFETY: the buffer lives until it is deregistered.
        unsafe { (self.library.buf_register)(buffer.address, buffer.len, 0) }.done("cuFileBufRegister")
    }

    /// Gives back what [`Bench::buffer`] made.
    pub(crate) fn free(&self, buffer: &Buffer) -> Result<(), String> {
        if self.options.register_buffer {
            // SAFETY: registered above, and no request uses it any more.
            unsafe { (self.library.buf_deregister)(buffer.address) }.done("cuFileBufDeregister")?;
        }
        self.gpu.free(buffer)
    }

    /// Runs all passes: the figures of the timed ones, and the faults of all.
    pub(crate) fn run(&self, works: &mut [Box<dyn Work + '_>]) -> Result<(Vec<Value>, Faults), String> {
        let (size, io, threads) = (self.file.size, self.options.io, self.options.threads);
        let cursors = Cursor::divide(size, io, threads, self.options.random)
            .ok_or("the file is too short for these threads: use a smaller --io or fewer --threads")?;
        let timed = self.options.passes();
        let total = timed + u64::from(self.options.verify);
        let barrier = Barrier::new(threads as usize + 1);
        let tallies = Mutex::new(Vec::new());
        let mut passes = Vec::new();
        let mut faults = Faults::default();
        std::thread::scope(|scope| {
            for ((work, cursor), thread) in works.iter_mut().zip(cursors).zip(0..) {
                let (barrier, tallies) = (&barrier, &tallies);
                scope.spawn(move || self.worker(work.as_mut(), cursor, thread, barrier, tallies));
            }
            for pass in 0..total {
                let cached = self.before_pass(&mut faults);
                self.watch.phase(if pass < timed { "timed pass" } else { "checked pass" });
                let from = Mark::now();
                barrier.wait();
                barrier.wait();
                let to = Mark::now();
                let sum = sum(&mut tallies.lock().unwrap_or_else(PoisonError::into_inner));
                let Some(sum) = sum else { continue };
                if pass < timed {
                    passes.push(figures(from, to, cached, &sum));
                }
                faults.add(sum.faults);
            }
        });
        Ok((passes, faults))
    }

    /// Drops the file if that was asked for; tells how much of it is cached.
    fn before_pass(&self, faults: &mut Faults) -> Option<u64> {
        if self.options.drop {
            self.watch.phase("drop");
            if let Err(error) = self.file.drop_pages() {
                faults.error(format!("cannot drop the file from the page cache: {error}"));
            }
        }
        self.file.cached()
    }

    fn worker(
        &self,
        work: &mut dyn Work,
        mut cursor: Cursor,
        thread: usize,
        barrier: &Barrier,
        tallies: &Mutex<Vec<Counts>>,
    ) {
        let entered = self.gpu.enter();
        let timed = self.options.passes();
        for number in 0..timed + u64::from(self.options.verify) {
            let prepared = entered.clone().and_then(|()| self.prepare(&mut cursor, thread, number >= timed));
            barrier.wait();
            match prepared {
                Ok(mut pass) => {
                    let options = &self.options;
                    let secs = if number < timed { options.secs } else { Some(options.verify_secs) };
                    pass.deadline = secs.map(|secs| Instant::now() + Duration::from_secs_f64(secs));
                    work.pass(&mut pass);
                    push(tallies, pass.counts);
                }
                Err(error) => push_error(tallies, error),
            }
            barrier.wait();
        }
    }

    fn prepare<'a>(
        &'a self,
        cursor: &'a mut Cursor,
        thread: usize,
        checks: bool,
    ) -> Result<Pass<'a>, String> {
        cursor.start(self.options.secs.is_some() && !checks);
        Ok(Pass {
            cursor,
            deadline: None,
            checker: if checks { Some(Checker::new(self)?) } else { None },
            counts: Counts::new()?,
            beat: self.watch.worker(thread),
        })
    }
}

fn push(tallies: &Mutex<Vec<Counts>>, counts: Counts) {
    tallies.lock().unwrap_or_else(PoisonError::into_inner).push(counts);
}

fn push_error(tallies: &Mutex<Vec<Counts>>, error: String) {
    if let Ok(mut counts) = Counts::new() {
        counts.faults.error(error);
        push(tallies, counts);
    }
}

/// All threads' tallies as one; takes them.
fn sum(tallies: &mut Vec<Counts>) -> Option<Counts> {
    tallies.drain(..).reduce(|mut sum, one| {
        sum.add(one);
        sum
    })
}
