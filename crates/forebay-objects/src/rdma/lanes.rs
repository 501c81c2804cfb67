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
    /// It was idle for a second, and is the only one.
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

    /// The next operation. `looks`: the last thread looks after something once a second, and does not end.
    pub(super) fn next(&self, looks: bool) -> Next {
        let until = Instant::now() + LINGER;
        let mut queue = lock(&self.queue);
        queue.idle += 1;
        let next = loop {
            if let Some(operation) = queue.waiting.pop_front() {
                break Next::Run(Box::new(operation));
            }
            let looks = looks && queue.threads == 1;
            let wait = until.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                break Next::End;
            }
            let wait = if looks { wait.min(Duration::from_secs(1)) } else { wait };
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
