//! The threads that call NVIDIA's library, and the one that watches them.
//!
//! The library may hang, in any of its calls, for ever. So none is made on a caller's thread, and the watch looks at how
//! long each has taken. One that takes too long is given up: its thread is left alone and touches no memory of the
//! engine any more should it ever come back, its transfers fail, and the library is not called again.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_engine::threads;
use forebay_error::{Error, ErrorKind, Result};

use crate::job::Job;
use crate::lock;

/// Threads at most, and so callers that are served at once. Chosen.
const MAX_THREADS: usize = 64;
/// A thread that gets no work for this long ends. Chosen.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Time between two looks of the watch while calls are under way. Chosen.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Something to do.
enum Task {
    /// Takes part in a job until nothing of it is left.
    Job(Arc<Job>),
    /// One call, and how long it may take.
    Call(&'static str, Duration, Box<dyn FnOnce() + Send>),
}

/// The call of the library that a thread is in.
struct CurrentCall {
    what: &'static str,
    limit: Duration,
    since: Instant,
    /// The chunk of a job that waits for it, and how many of its bytes are good.
    waiting: Option<(Arc<Job>, usize, usize)>,
}

/// A thread, as the watch sees it.
#[derive(Default)]
pub(super) struct CallPost(Mutex<Option<CurrentCall>>);

impl CallPost {
    /// The thread is about to call.
    pub(super) fn begin(
        &self,
        what: &'static str,
        limit: Duration,
        waiting: Option<(Arc<Job>, usize, usize)>,
    ) {
        *lock(&self.0) = Some(CurrentCall { what, limit, since: Instant::now(), waiting });
    }

    /// It came back; false if it was given up.
    pub(super) fn end(&self) -> bool {
        lock(&self.0).take().is_some()
    }

    /// When it will have taken too long.
    fn deadline(&self) -> Option<Instant> {
        lock(&self.0).as_ref().map(|call| call.since + call.limit)
    }

    /// Gives it up if it has taken too long.
    fn give_up(&self, now: Instant) -> Option<CurrentCall> {
        lock(&self.0).take_if(|call| now >= call.since + call.limit)
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<Task>,
    posts: Vec<Arc<CallPost>>,
    idle: usize,
    has_watch: bool,
    watch_sleeps: bool,
    /// Why the library is not called any more.
    hung: Option<Error>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    watch: Condvar,
}

/// The threads. There are none before the first call.
#[derive(Default)]
pub(super) struct CallThreads(Arc<Shared>);

/// The result of a call, and the signal that it is there.
struct Answer<T>(Mutex<Option<T>>, Condvar);

impl CallThreads {
    /// Makes a call on one of the threads, and waits for it.
    pub(super) fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let answer = Arc::new(Answer(Mutex::new(None), Condvar::new()));
        let told = answer.clone();
        let operation = Box::new(move || {
            *lock(&told.0) = Some(call());
            told.1.notify_all();
        });
        self.push([Task::Call(what, limit, operation)])?;
        let deadline = Instant::now() + limit;
        let mut got = lock(&answer.0);
        while got.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(hung(what, limit));
            }
            got = answer.1.wait_timeout(got, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        got.take().ok_or_else(|| hung(what, limit))
    }

    /// Makes a call that nobody waits for.
    pub(super) fn send(&self, what: &'static str, limit: Duration, call: impl FnOnce() + Send + 'static) {
        // Where it cannot be made, the library is not called any more.
        let _ = self.push([Task::Call(what, limit, Box::new(call))]);
    }

    /// Has a job done by up to `width` threads.
    pub(super) fn start(&self, job: &Arc<Job>, width: usize) -> Result<()> {
        self.push((0..width.max(1)).map(|_| Task::Job(job.clone())))
    }

    /// Why the library is not called any more, if it is not.
    pub(super) fn refusal(&self) -> Option<Error> {
        lock(&self.0.state).hung.clone()
    }

    fn push(&self, tasks: impl IntoIterator<Item = Task>) -> Result<()> {
        let mut state = lock(&self.0.state);
        if let Some(error) = &state.hung {
            return Err(error.clone());
        }
        if !state.has_watch {
            let shared = self.0.clone();
            spawn("forebay-cufile-watch", move || watch(&shared))?;
            state.has_watch = true;
        }
        state.queue.extend(tasks);
        while state.queue.len() > state.idle && state.posts.len() < MAX_THREADS {
            let (shared, post) = (self.0.clone(), Arc::<CallPost>::default());
            let own = post.clone();
            match spawn("forebay-cufile", move || serve(&shared, &own)) {
                Ok(()) => state.posts.push(post),
                // Others will do it, later.
                Err(_) if !state.posts.is_empty() => break,
                Err(error) => {
                    state.queue.clear();
                    return Err(error);
                }
            }
        }
        if state.watch_sleeps {
            self.0.watch.notify_one();
        }
        drop(state);
        self.0.work.notify_all();
        Ok(())
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = threads::spawn(name, body);
    thread.map(drop).map_err(|error| {
        Error::from_io(&error, "cannot start a thread for NVIDIA's libcufile").hint("ulimit -u unlimited")
    })
}

/// The body of a thread that calls the library.
fn serve(shared: &Shared, post: &Arc<CallPost>) {
    while let Some(task) = next(shared, post) {
        let is_back = match task {
            Task::Job(job) => job.run(post),
            Task::Call(what, limit, call) => {
                post.begin(what, limit, None);
                call();
                post.end()
            }
        };
        if !is_back {
            return;
        }
    }
}

/// Waits for something to do; none if the thread is to end.
fn next(shared: &Shared, post: &Arc<CallPost>) -> Option<Task> {
    let mut state = lock(&shared.state);
    loop {
        if let Some(task) = state.queue.pop_front() {
            return Some(task);
        }
        state.idle += 1;
        let (back, waited) =
            shared.work.wait_timeout(state, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
        state = back;
        state.idle -= 1;
        if waited.timed_out() && state.queue.is_empty() {
            state.posts.retain(|other| !Arc::ptr_eq(other, post));
            return None;
        }
    }
}

/// The watch's thread.
fn watch(shared: &Shared) {
    let mut state = lock(&shared.state);
    loop {
        state = sleep_until_look(shared, state);
        let now = Instant::now();
        let given_up: Vec<CurrentCall> = state.posts.iter().filter_map(|post| post.give_up(now)).collect();
        let Some(first) = given_up.first() else { continue };
        // Threads in the library may be stuck as well: no one is counted on any more.
        state.hung.get_or_insert_with(|| not_again(first.what));
        let left: Vec<Task> = state.queue.drain(..).collect();
        let refusal = state.hung.clone();
        drop(state);
        for CurrentCall { what, limit, waiting, .. } in given_up {
            if let Some((job, chunk, good)) = waiting {
                job.give_up(chunk, good, &hung(what, limit));
                if let Some(error) = &refusal {
                    job.refuse_rest(error);
                }
            }
        }
        for task in left {
            if let (Task::Job(job), Some(error)) = (task, &refusal) {
                job.refuse_rest(error);
            }
        }
        state = lock(&shared.state);
    }
}

/// Sleeps until the next call may have taken too long.
fn sleep_until_look<'a>(shared: &Shared, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    let next = state.posts.iter().filter_map(|post| post.deadline()).min();
    if next.is_none() && state.queue.is_empty() && state.posts.len() == state.idle {
        state.watch_sleeps = true;
        state = shared.watch.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.watch_sleeps = false;
        return state;
    }
    let now = Instant::now();
    let left = next.map_or(LOOK_INTERVAL, |next| next.saturating_duration_since(now).min(LOOK_INTERVAL));
    let left = left.max(Duration::from_millis(1));
    shared.watch.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
}

fn hung(what: &str, limit: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("NVIDIA's libcufile hangs: it did not return from {what}"))
        .with("waited", format!("{:.1} s", limit.as_secs_f64()))
        .hint("end the process: the library may still use the memory of that transfer")
        .hint("leave the choice of the engine to forebay: unset FOREBAY_ENGINE")
        .hint("if it is only slow: FOREBAY_VENDOR_TIMEOUT=120000")
}

fn not_again(what: &str) -> Error {
    let text =
        format!("NVIDIA's libcufile is not called any more: it hangs in {what}, since an earlier transfer");
    Error::new(ErrorKind::Timeout, text)
        .hint("end the process, and leave the choice of the engine to forebay: unset FOREBAY_ENGINE")
}
