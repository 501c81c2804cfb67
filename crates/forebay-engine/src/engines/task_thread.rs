//! Threads that do one thing after the other, and end when nothing has come for a while.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::threads;

use crate::runtime::lock;

/// How long the thread waits for more.
const IDLE: Duration = Duration::from_secs(2);

type Task = Box<dyn FnOnce() + Send>;

/// Asks something that another thread waits for: a panic is an answer, too.
pub(crate) fn answer<T>(ask: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = || Error::new(ErrorKind::Internal, "a thread of an engine panicked");
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| Err(panicked()))
}

/// The queue of such a thread.
#[derive(Clone)]
pub(crate) struct TaskThread(Arc<Queue>);

struct Queue {
    name: &'static str,
    /// The queue, and whether there is a thread.
    state: Mutex<(VecDeque<Task>, bool)>,
    wake: Condvar,
}

impl TaskThread {
    pub(crate) fn new(name: &'static str) -> Self {
        Self(Arc::new(Queue { name, state: Mutex::default(), wake: Condvar::new() }))
    }

    /// Does it soon; at once, where no thread is to be had.
    pub(crate) fn add(&self, task: Task) {
        if let Err(task) = self.offer(task, usize::MAX) {
            task();
        }
    }

    /// The same, if less than `most` tasks wait and there is a thread; otherwise the task comes back.
    pub(crate) fn offer(&self, task: Task, most: usize) -> std::result::Result<(), Task> {
        let mut state = lock(&self.0.state);
        if !state.1 {
            let queue = self.0.clone();
            state.1 = threads::spawn(self.0.name, move || queue.run()).is_ok();
        }
        if !state.1 || state.0.len() >= most {
            return Err(task);
        }
        state.0.push_back(task);
        self.0.wake.notify_one();
        Ok(())
    }
}

/// A server's client, which is compared by its address.
type Server = Weak<dyn Any + Send + Sync>;

/// A thread for each server: one that does not answer holds up nobody else's transfers.
pub(crate) struct ServerThreads {
    name: &'static str,
    all: Mutex<Vec<(Server, TaskThread)>>,
}

impl ServerThreads {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, all: Mutex::new(Vec::new()) }
    }

    /// The thread for a server.
    pub(crate) fn of(&self, server: &Server) -> TaskThread {
        let mut all = lock(&self.all);
        if let Some((_, thread)) =
            all.iter().find(|(known, _)| std::ptr::addr_eq(known.as_ptr(), server.as_ptr()))
        {
            return thread.clone();
        }
        all.retain(|(known, _)| known.strong_count() > 0);
        let thread = TaskThread::new(self.name);
        all.push((server.clone(), thread.clone()));
        thread
    }
}

impl Queue {
    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.0.pop_front() {
                drop(state);
                // Others are waited for behind it.
                let _ = catch_unwind(AssertUnwindSafe(task));
                state = lock(&self.state);
                continue;
            }
            let (woken, waited) = self.wake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if waited.timed_out() && state.0.is_empty() {
                state.1 = false;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_its_own_task_alone() {
        let thread = TaskThread::new("test");
        let (tell, told) = std::sync::mpsc::channel();
        let other = tell.clone();
        thread.add(Box::new(move || drop(tell.send(answer::<()>(|| panic!("asked for"))))));
        thread.add(Box::new(|| panic!("asked for")));
        thread.add(Box::new(move || drop(other.send(Ok(())))));
        let wait = || told.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(wait().unwrap_err().kind(), ErrorKind::Internal);
        wait().unwrap();
    }

    #[test]
    fn what_waits_is_bounded_where_that_is_asked_for() {
        let thread = TaskThread::new("test");
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let begun = tell.clone();
        thread.add(Box::new(move || {
            begun.send(0).unwrap();
            may_go.recv().unwrap();
        }));
        assert_eq!(told.recv().unwrap(), 0);
        let taken: Vec<_> = (1..=5)
            .filter(|task| {
                let (task, tell) = (*task, tell.clone());
                thread.offer(Box::new(move || tell.send(task).unwrap()), 3).is_ok()
            })
            .collect();
        assert_eq!(taken, [1, 2, 3]);
        go.send(()).unwrap();
        drop(tell);
        let done: Vec<_> = (0..3).map(|_| told.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        assert_eq!(done, [1, 2, 3]);
    }
}
