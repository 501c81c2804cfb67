//! The courier's thread: watches how far the streams are, and does what each waits for. It never calls the driver, so
//! nothing that the device does can hold it up.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use forebay_config::allowed_cpus;

use super::Shared;
use super::file_work::Letterbox;
use super::operation::Operation;
use super::running::Run;
use super::stream_state::Track;

/// How long to look without a pause after something happened.
const SPIN: Duration = Duration::from_micros(100);
/// The shortest and the longest nap between looks, and that after a long time without anything.
const NAP: Duration = Duration::from_micros(5);
const NAP_MOST: Duration = Duration::from_micros(200);
const NAP_IDLE: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(10);

/// What is queued on a stream, in its order. Only the first is looked at.
struct Line {
    track: Arc<Track>,
    queue: VecDeque<Operation>,
    run: Option<Run>,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.run.is_none() && self.queue.is_empty()
    }

    /// Does what the stream waits for; whether there was anything.
    fn advance(&mut self, letterbox: &Arc<Letterbox>) -> bool {
        let track = self.track.clone();
        let mut any = false;
        loop {
            if self.run.is_none() && !self.begin(letterbox, &mut any) {
                return any;
            }
            let Some(run) = &mut self.run else { continue };
            while run.step(&track, letterbox) {
                any = true;
            }
            let is_void = track.is_void(run.first());
            let is_over = if is_void { run.cut_short(&track) } else { run.is_over(&track) };
            if !is_over {
                return any;
            }
            if let Some(run) = self.run.take() {
                // Whoever finds the stream idle afterwards finds its memory unused.
                track.queued.fetch_sub(1, Ordering::Release);
                run.finish();
                letterbox.open.fetch_sub(1, Ordering::Release);
            }
            any = true;
        }
    }

    /// Begins the next operation if the stream got there. An operation that its submitter took back is dropped.
    fn begin(&mut self, letterbox: &Letterbox, any: &mut bool) -> bool {
        let track = &*self.track;
        let Some(next) = self.queue.front() else { return false };
        if !track.is_past(next.first) && !track.is_void(next.first) {
            return false;
        }
        *any = true;
        let Some(operation) = self.queue.pop_front() else { return false };
        if track.begin(operation.first) {
            self.run = Some(Run::begin(operation));
        } else {
            track.clear_list();
            track.go(operation.numbers().last());
            track.queued.fetch_sub(1, Ordering::Release);
            letterbox.open.fetch_sub(1, Ordering::Release);
        }
        true
    }
}

/// The thread's body.
pub(super) fn main(shared: &Shared) {
    // SAFETY: no pointers; it only makes this thread's short waits short.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    if let Some(node) = shared.device.info().numa_node {
        crate::runtime::sys::bind_to_node(node);
    }
    let is_crowded = allowed_cpus() <= 2;
    let mut lines: HashMap<u64, Line> = HashMap::new();
    let mut last = Instant::now();
    loop {
        let mut any = false;
        if shared.letterbox.mail.swap(false, Ordering::SeqCst) {
            any = true;
            take_operations(shared, &mut lines);
            take_answers(&shared.letterbox, &mut lines);
        }
        for line in lines.values_mut() {
            any |= line.advance(&shared.letterbox);
        }
        lines.retain(|_, line| {
            let is_dead = line.track.is_dead();
            if is_dead {
                bury(shared, line);
            }
            !is_dead && !line.is_empty()
        });
        if any {
            last = Instant::now();
        } else if lines.is_empty() {
            if shared.closed.load(Ordering::SeqCst) {
                return;
            }
            sleep(&shared.letterbox, None);
            last = Instant::now();
        } else {
            pause(&shared.letterbox, last.elapsed(), is_crowded);
        }
    }
}

fn take_operations(shared: &Shared, lines: &mut HashMap<u64, Line>) {
    let new = std::mem::take(&mut *shared.inbox.lock().unwrap_or_else(PoisonError::into_inner));
    for (track, operation) in new {
        let line = lines.entry(track.id).or_insert_with(|| Line { track, queue: VecDeque::new(), run: None });
        line.queue.push_back(operation);
    }
}

fn take_answers(letterbox: &Letterbox, lines: &mut HashMap<u64, Line>) {
    let answers = std::mem::take(&mut *letterbox.answers.lock().unwrap_or_else(PoisonError::into_inner));
    for answer in answers {
        let run = lines.get_mut(&answer.track).and_then(|line| line.run.as_mut());
        // An operation of a broken context is not there any more.
        if let Some(run) = run.filter(|run| run.first() == answer.first) {
            run.answer(answer.chunk, answer.result, answer.moved);
        }
    }
}

/// What is queued on a broken context never runs; whoever holds a ticket finds out by himself. Files may still be read
/// into its memory, and callers' closures may name what is gone: both stay as long as the process.
fn bury(shared: &Shared, line: &mut Line) {
    shared.taint();
    let open = line.queue.len() + usize::from(line.run.is_some());
    line.queue.drain(..).for_each(std::mem::forget);
    std::mem::forget(line.run.take());
    shared.letterbox.open.fetch_sub(open, Ordering::Release);
}

fn pause(letterbox: &Letterbox, idle: Duration, is_crowded: bool) {
    if idle < SPIN {
        if is_crowded {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        return;
    }
    let nap = if idle > LONG { NAP_IDLE } else { (idle / 8).clamp(NAP, NAP_MOST) };
    sleep(letterbox, Some(nap));
}

/// Sleeps until the letterbox rings, or for so long.
fn sleep(letterbox: &Letterbox, limit: Option<Duration>) {
    letterbox.sleeping.store(true, Ordering::SeqCst);
    if !letterbox.mail.load(Ordering::SeqCst) {
        match limit {
            Some(limit) => std::thread::park_timeout(limit),
            None => std::thread::park(),
        }
    }
    letterbox.sleeping.store(false, Ordering::SeqCst);
}
