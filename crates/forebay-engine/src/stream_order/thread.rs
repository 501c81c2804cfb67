//! The stream server's thread: watches how far the streams are, and does what each waits for. It never calls the driver,
//! so the device cannot hold it up.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_config::allowed_cpus;

use super::ServerState;
use super::file_work::ServerInbox;
use super::operation::Operation;
use super::running::RunningOperation;
use super::stream_state::StreamState;
use crate::runtime::lock;
use crate::runtime::{sys, wait};
use crate::tuning::machine::SHORT_LOOK;
use crate::tuning::streams::{MANY_STREAMS, SPIN_MANY};

/// Operations of a stream, in its order. Only the first one runs.
struct StreamQueue {
    stream: Arc<StreamState>,
    operations: VecDeque<Operation>,
    run: Option<RunningOperation>,
}

impl StreamQueue {
    fn is_empty(&self) -> bool {
        self.run.is_none() && self.operations.is_empty()
    }

    /// Whether the stream may get further by itself; otherwise what leads on comes into the inbox.
    fn is_moving(&self) -> bool {
        !self.run.as_ref().is_some_and(|run| run.waits_for_files(&self.stream))
    }

    /// Does what the stream waits for. Returns whether there was anything.
    fn advance(&mut self, inbox: &Arc<ServerInbox>) -> bool {
        let stream = self.stream.clone();
        let mut any = false;
        loop {
            if self.run.is_none() && !self.begin(inbox, &mut any) {
                return any;
            }
            let Some(run) = &mut self.run else { continue };
            while run.step(&stream, inbox) {
                any = true;
            }
            let is_void = stream.is_void(run.first());
            let is_over = if is_void { run.cut_short(&stream) } else { run.is_over(&stream) };
            if !is_over {
                return any;
            }
            if let Some(run) = self.run.take() {
                // Its memory is unused before the stream counts as idle.
                stream.queued.fetch_sub(1, Ordering::Release);
                run.finish();
                inbox.open.fetch_sub(1, Ordering::Release);
            }
            any = true;
        }
    }

    /// Begins the next operation if the stream reached it. Drops an operation that was refused.
    fn begin(&mut self, inbox: &ServerInbox, any: &mut bool) -> bool {
        let stream = &*self.stream;
        let Some(next) = self.operations.front() else { return false };
        if !stream.is_past(next.first) && !stream.is_void(next.first) {
            return false;
        }
        *any = true;
        let Some(operation) = self.operations.pop_front() else { return false };
        if stream.begin(operation.first) {
            self.run = Some(RunningOperation::begin(operation));
        } else {
            stream.clear_list();
            stream.go(operation.numbers().last());
            stream.queued.fetch_sub(1, Ordering::Release);
            inbox.open.fetch_sub(1, Ordering::Release);
        }
        true
    }
}

/// The thread's body.
pub(super) fn main(state: &ServerState) {
    sys::settle_thread(state.device.info().numa_node);
    let is_crowded = allowed_cpus() <= 2;
    let mut queues: HashMap<u64, StreamQueue> = HashMap::new();
    let mut last = Instant::now();
    loop {
        let mut any = false;
        if state.inbox.has_news.swap(false, Ordering::SeqCst) {
            any = true;
            take_operations(state, &mut queues);
            take_answers(&state.inbox, &mut queues);
        }
        for queue in queues.values_mut() {
            any |= queue.advance(&state.inbox);
        }
        queues.retain(|_, queue| {
            let is_dead = queue.stream.is_dead();
            if is_dead {
                abandon(state, queue);
            }
            !is_dead && !queue.is_empty()
        });
        if any {
            last = Instant::now();
        } else if queues.is_empty() {
            if state.closed.load(Ordering::SeqCst) {
                return;
            }
            sleep(&state.inbox, None);
            last = Instant::now();
        } else {
            let moving = queues.values().filter(|queue| queue.is_moving()).count();
            pause(&state.inbox, last.elapsed(), moving, is_crowded);
        }
    }
}

fn take_operations(state: &ServerState, queues: &mut HashMap<u64, StreamQueue>) {
    let new = std::mem::take(&mut *lock(&state.submitted));
    for (stream, operation) in new {
        let queue = queues.entry(stream.id).or_insert_with(|| StreamQueue {
            stream,
            operations: VecDeque::new(),
            run: None,
        });
        queue.operations.push_back(operation);
    }
}

fn take_answers(inbox: &ServerInbox, queues: &mut HashMap<u64, StreamQueue>) {
    let answers = std::mem::take(&mut *lock(&inbox.answers));
    for answer in answers {
        let run = queues.get_mut(&answer.stream).and_then(|queue| queue.run.as_mut());
        // Operations of a broken context are gone.
        if let Some(run) = run.filter(|run| run.first() == answer.first) {
            run.answer(answer.chunk, answer.end, answer.moved);
        }
    }
}

/// Operations on a broken context never run; tickets find out by themselves. Files may still be read into its memory, and
/// callers' closures may name memory that is gone: both are leaked.
fn abandon(state: &ServerState, queue: &mut StreamQueue) {
    state.taint();
    let open = queue.operations.len() + usize::from(queue.run.is_some());
    queue.operations.drain(..).for_each(std::mem::forget);
    std::mem::forget(queue.run.take());
    state.inbox.open.fetch_sub(open, Ordering::Release);
}

/// Waits for what `moving` streams do next. Where none of them moves, only an answer leads on, and it wakes the thread.
fn pause(inbox: &ServerInbox, idle: Duration, moving: usize, is_crowded: bool) {
    match wait::nap_of_watcher(idle) {
        _ if moving == 0 => sleep(inbox, None),
        Some(nap) => sleep(inbox, Some(nap)),
        None if moving > MANY_STREAMS && idle > SPIN_MANY => sleep(inbox, Some(SHORT_LOOK)),
        None if is_crowded => std::thread::yield_now(),
        None => std::hint::spin_loop(),
    }
}

/// Sleeps until something arrives, or until the limit.
fn sleep(inbox: &ServerInbox, limit: Option<Duration>) {
    inbox.sleeping.store(true, Ordering::SeqCst);
    if !inbox.has_news.load(Ordering::SeqCst) {
        match limit {
            Some(limit) => std::thread::park_timeout(limit),
            None => std::thread::park(),
        }
    }
    inbox.sleeping.store(false, Ordering::SeqCst);
}
