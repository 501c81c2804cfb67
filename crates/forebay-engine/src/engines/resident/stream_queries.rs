//! Order behind the default streams for many callers: one asks the driver, and the answer counts for all whose calls had begun.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_gpu::{Context, DefaultWork, Device, Wait};
use forebay_sys::OwnLine;

use super::wait::CallerWait;
use crate::request::copy_order::{self, PriorWork};
use crate::tuning::machine::POLL;
use crate::tuning::resident::START_LIMIT;

/// Questions to the default streams of one context. A call has read the clock when it began, and a question reads it before the driver
/// is asked: the clock is the same on all CPUs, so that calls can be compared without writing anything. Those who wait
/// look at `answered` alone most of the time, so that the other word can be written meanwhile.
#[derive(Debug)]
pub(super) struct StreamQueries {
    clock: Instant,
    /// The last answer.
    answered: OwnLine<AtomicU64>,
    /// Whether a query is in progress.
    is_asked: OwnLine<AtomicBool>,
}

/// Nothing is left of what stood on the streams when this question began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    /// When, in nanoseconds of the clock.
    began: u64,
    /// A capture forbade to ask.
    met_capture: bool,
}

impl Answer {
    fn word(self) -> u64 {
        self.began << 1 | u64::from(self.met_capture)
    }

    fn of(word: u64) -> Self {
        Self { began: word >> 1, met_capture: word & 1 == 1 }
    }
}

impl Default for StreamQueries {
    fn default() -> Self {
        Self { clock: Instant::now(), answered: OwnLine::default(), is_asked: OwnLine::default() }
    }
}

/// This caller asks the driver; the others wait until it is dropped.
struct QueryGuard<'a>(&'a StreamQueries);

impl Drop for QueryGuard<'_> {
    fn drop(&mut self) {
        self.0.is_asked.store(false, Ordering::Release);
    }
}

/// The end of a wait for an answer.
enum WaitOutcome<'a> {
    /// Another caller's answer counts.
    Answered(Answer),
    /// Nobody asks: this caller may.
    Asks(QueryGuard<'a>),
}

impl StreamQueries {
    /// Waits until a question that began after the call is answered; asks it if nobody does. Returns whether a capture forbade
    /// to ask.
    pub(super) fn pass(
        &self,
        call: Instant,
        wait: CallerWait,
        device: &dyn Device,
        context: Context,
    ) -> Result<bool> {
        // The user's work may take long.
        let wait = wait.at_most(START_LIMIT);
        loop {
            match self.wait(call, wait, Duration::MAX) {
                Some(WaitOutcome::Asks(_guard)) => return self.ask(device, context),
                Some(WaitOutcome::Answered(answer)) => return Ok(answer.met_capture),
                None => {}
            }
        }
    }

    /// Whether a capture forbade to ask, by a question that began after this call did: another caller's, if one asks. `None` if
    /// something stands on the streams, which is not waited for.
    pub(super) fn find_clear(&self, device: &dyn Device, context: Context) -> Result<Option<bool>> {
        let _guard = match self.wait(Instant::now(), CallerWait::POLL, POLL) {
            Some(WaitOutcome::Asks(guard)) => guard,
            Some(WaitOutcome::Answered(answer)) => return Ok(Some(answer.met_capture)),
            None => return Ok(None),
        };
        let began = self.now();
        match device.default_work(context)? {
            DefaultWork::Pending => Ok(None),
            work => Ok(Some(self.answer(began, work))),
        }
    }

    /// Waits for an answer that counts, or until nobody asks. `None`: neither came within the limit.
    fn wait(&self, call: Instant, wait: CallerWait, limit: Duration) -> Option<WaitOutcome<'_>> {
        let call = self.nanoseconds(call);
        let mut waiting = wait.start();
        loop {
            for _ in 0..waiting.looks() {
                // Many need no more than this: whose file was read while another asked.
                let answer = Answer::of(self.answered.load(Ordering::SeqCst));
                if answer.began > call {
                    return Some(WaitOutcome::Answered(answer));
                }
                if let Some(guard) = self.try_ask() {
                    // The answer of a caller that asked in between.
                    let answer = Answer::of(self.answered.load(Ordering::SeqCst));
                    return Some(if answer.began > call {
                        WaitOutcome::Answered(answer)
                    } else {
                        WaitOutcome::Asks(guard)
                    });
                }
                waiting.pause();
            }
            let elapsed = waiting.elapsed();
            if elapsed > limit {
                return None;
            }
            waiting.rest(elapsed);
        }
    }

    /// Looks before it writes: many may look.
    fn try_ask(&self) -> Option<QueryGuard<'_>> {
        let is_free = || !self.is_asked.load(Ordering::Relaxed);
        let take = || self.is_asked.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed);
        (is_free() && take().is_ok()).then(|| QueryGuard(self))
    }

    fn ask(&self, device: &dyn Device, context: Context) -> Result<bool> {
        let began = self.now();
        let mut work = device.default_work(context)?;
        if work == DefaultWork::Pending {
            match PriorWork::recorded(device, context)? {
                Some(prior_work) => prior_work.wait(Wait::Nap(copy_order::LOOK))?,
                // A capture has begun since.
                None => work = DefaultWork::Captured,
            }
        }
        Ok(self.answer(began, work))
    }

    /// When a question begins.
    fn now(&self) -> u64 {
        self.nanoseconds(Instant::now())
    }

    /// A time by the clock; what was before it is its beginning.
    fn nanoseconds(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.clock).as_nanos() as u64
    }

    /// Answers a question: nothing is left of what stood there. Returns whether a capture forbade to ask.
    fn answer(&self, began: u64, work: DefaultWork) -> bool {
        let met_capture = work == DefaultWork::Captured;
        self.answered.store(Answer { began, met_capture }.word(), Ordering::SeqCst);
        met_capture
    }
}

#[cfg(test)]
mod tests {
    use forebay_config::Objective;

    use super::*;

    fn pass(queries: &StreamQueries, call: Instant) -> bool {
        let wait = CallerWait::new(Objective::Throughput, 16, 16, false);
        queries.pass(call, wait, forebay_gpu::host::device().as_ref(), Context::PRIMARY).unwrap()
    }

    #[test]
    fn an_answer_counts_for_calls_that_began_before_its_question() {
        let queries = StreamQueries::default();
        let last = || Answer::of(queries.answered.load(Ordering::SeqCst)).began;
        let (first, second) = (Instant::now(), Instant::now());
        assert!(!pass(&queries, first));
        let answered = last();
        assert!(answered > queries.nanoseconds(first));
        assert!(!pass(&queries, second));
        assert_eq!(last(), answered, "one question for both");
        assert!(!pass(&queries, Instant::now()));
        assert!(last() > answered, "this call began after the last one");
        let call = Instant::now();
        std::thread::sleep(Duration::from_micros(1));
        queries.answer(queries.now(), DefaultWork::Captured);
        assert!(pass(&queries, call), "the answer tells of the capture");
    }

    #[test]
    fn one_asks_and_the_others_wait_for_it() {
        let queries = StreamQueries::default();
        let call = Instant::now();
        let guard = queries.try_ask().unwrap();
        assert!(queries.try_ask().is_none());
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..8).map(|_| scope.spawn(|| pass(&queries, call))).collect();
            std::thread::sleep(Duration::from_millis(5));
            assert!(!others.iter().any(std::thread::ScopedJoinHandle::is_finished));
            queries.answer(queries.now(), DefaultWork::Done);
            // Nobody is woken by the one that asks: those who wait look at the answer.
            assert!(others.into_iter().all(|other| !other.join().unwrap()));
        });
        drop(guard);
    }

    /// CPU time of this thread.
    fn busy() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid place.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[test]
    fn who_waits_for_the_users_work_sleeps_whatever_the_objective() {
        let queries = StreamQueries::default();
        for callers in [1, 16] {
            let call = Instant::now();
            let guard = queries.try_ask().unwrap();
            let took = std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let wait = CallerWait::new(Objective::Latency, callers, 16, false);
                    let device = forebay_gpu::host::device();
                    let before = busy();
                    assert!(!queries.pass(call, wait, device.as_ref(), Context::PRIMARY).unwrap());
                    busy().saturating_sub(before)
                });
                std::thread::sleep(Duration::from_millis(200));
                queries.answer(queries.now(), DefaultWork::Done);
                drop(guard);
                other.join().unwrap()
            });
            assert!(took < Duration::from_millis(60), "{callers} callers: {took:?} of CPU");
        }
    }
}
