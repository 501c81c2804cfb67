//! Operations that wait, and the threads that do them. Each does one at a time: registering memory, and ending connections, waits for the
//! device, which threads of the network must not.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::operation::Operation;
use crate::lock;

/// Threads of a server at most. Each has a session while it moves bytes.
pub(super) const MOST_LANES: usize = 8;
/// How long a thread waits for another operation.
const LINGER: Duration = Duration::from_secs(5);
/// How often idle sessions are looked after.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Lanes {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    threads: usize,
    /// Threads that have no operation.
    idle: usize,
}

/// What a thread does next.
pub(super) enum Next {
    Run(Box<Operation>),
    /// It was idle for a second.
    LookAround,
    End,
}

impl Lanes {
    /// Puts an operation there. True: the caller starts one more thread.
    pub(super) fn push(&self, operation: Operation) -> bool {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(operation);
        let starts = queue.waiting.len() > queue.idle && queue.threads < MOST_LANES;
        queue.threads += usize::from(starts);
        drop(queue);
        self.changed.notify_one();
        starts
    }

    /// A thread has ended, or did not begin. Returns operations that no thread is left for.
    pub(super) fn ended(&self) -> VecDeque<Operation> {
        let mut queue = lock(&self.queue);
        queue.threads -= 1;
        if queue.threads == 0 { std::mem::take(&mut queue.waiting) } else { VecDeque::new() }
    }

    /// The next operation of a thread that had its last one then. `looks`: there is something to look after once a second, for which the
    /// last thread stays.
    pub(super) fn next(&self, looks: bool, last: Instant) -> Next {
        let mut queue = lock(&self.queue);
        queue.idle += 1;
        let next = loop {
            if let Some(operation) = queue.waiting.pop_front() {
                break Next::Run(Box::new(operation));
            }
            let left = LINGER.saturating_sub(last.elapsed());
            if left.is_zero() && !(looks && queue.threads == 1) {
                break Next::End;
            }
            let wait = if looks { LOOK } else { left };
            let (back, over) = self.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner);
            queue = back;
            if looks && over.timed_out() && queue.waiting.is_empty() {
                break Next::LookAround;
            }
        };
        queue.idle -= 1;
        // Under the same lock: an operation that is put there from now on starts a thread.
        if matches!(next, Next::End) {
            queue.threads -= 1;
        }
        next
    }
}
