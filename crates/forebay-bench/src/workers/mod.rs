//! Threads that start together, are measured, and stop.

pub(crate) mod live;
pub(crate) mod measure;
pub(crate) mod numa;
pub(crate) mod rate;
pub(crate) mod steady;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use crate::observer::Observer;
use crate::plan::PassTime;
use measure::{SharedMeter, WorkerMeter};
use watch::PassWatch;
pub(crate) use watch::Watched;

/// One worker's part of a pass.
pub(crate) trait PassWorker: Sync {
    /// The worker's state; it lives until all workers are measured, since freeing memory takes time.
    type Kept;

    /// Its job and its number in it.
    fn place(&self) -> (usize, usize);

    /// Gets ready, on the worker's own thread and outside of the clock.
    fn set_up(&self) -> Result<Self::Kept>;

    /// The timed part. Gives how many I/Os were taken from each source.
    fn work(&self, kept: &mut Self::Kept, meter: &mut WorkerMeter) -> Result<Vec<u64>>;
}

/// The outcome of one worker.
pub(crate) struct WorkerDone {
    pub(crate) job: usize,
    pub(crate) worker: usize,
    pub(crate) meter: WorkerMeter,
    /// I/Os taken from each source.
    pub(crate) taken: Vec<u64>,
}

/// The outcome of all workers.
pub(crate) struct WorkersDone {
    pub(crate) done: Vec<WorkerDone>,
    pub(crate) watched: Watched,
    pub(crate) shared: Arc<SharedMeter>,
}

/// The observer, and the totals for its progress.
#[derive(Clone, Copy)]
pub(crate) struct PassObserver<'a> {
    /// Bytes in all, if that is known.
    pub(crate) total: Option<u64>,
    /// How long it goes, if that is fixed.
    pub(crate) time: Option<PassTime>,
    pub(crate) observer: Option<&'a dyn Observer>,
}

/// An event that many threads wait for, once.
#[derive(Default)]
struct StartGate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl StartGate {
    fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(is_open, |is_open| !*is_open));
    }
}

/// A message from a worker.
enum WorkerNews {
    /// Ready to begin, or not.
    Ready(Result<()>),
    /// Done.
    Done(Box<Result<WorkerDone>>),
}

/// Runs one thread for each worker.
pub(crate) fn run<S: PassWorker>(workers: &[S], watch: PassObserver<'_>) -> Result<WorkersDone> {
    let shared = Arc::new(SharedMeter::default());
    let (begin, end) = (StartGate::default(), StartGate::default());
    let (send, receive) = channel();
    let timed = std::thread::scope(|scope| {
        for worker in workers {
            let (send, mine, begin, end) = (send.clone(), shared.clone(), &begin, &end);
            let ramp = watch.time.map_or(Duration::ZERO, |time| time.ramp);
            let (job, number) = worker.place();
            let name = format!("bench-{job}.{number}");
            let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, move || {
                run_worker(worker, &send, &mine, (begin, end), ramp);
            });
            if let Err(error) = spawned {
                // Threads already started find no work.
                shared.stop.store(true, Ordering::Relaxed);
                begin.open();
                end.open();
                return Err(Error::from_io(&error, "cannot start a thread").hint("use fewer threads (-w)"));
            }
        }
        drop(send);
        let ready = wait_ready(&receive, workers.len());
        if ready.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let observer = watch.observer.filter(|_| ready.is_ok());
        let mut watch = PassWatch::begin(PassObserver { observer, ..watch }, &shared);
        begin.open();
        let done = collect(&mut watch, &receive, workers.len());
        let watched = watch.end();
        end.open();
        ready.and(done).map(|done| (done, watched))
    });
    let (done, watched) = timed?;
    Ok(WorkersDone { done, watched, shared })
}

fn run_worker<S: PassWorker>(
    worker: &S,
    send: &Sender<WorkerNews>,
    shared: &Arc<SharedMeter>,
    (begin, end): (&StartGate, &StartGate),
    ramp: Duration,
) {
    let set_up = guarded(|| Ok((worker.set_up()?, WorkerMeter::new(shared.clone())?)));
    let _ = send.send(WorkerNews::Ready(set_up.as_ref().map(|_| ()).map_err(Clone::clone)));
    begin.wait();
    let mut held = None;
    let result = set_up.and_then(|(kept, mut meter)| {
        let kept = held.insert(kept);
        guarded(|| {
            let now = Instant::now();
            meter.start(now, now + ramp);
            let taken = match worker.work(kept, &mut meter) {
                // An interrupt ended a wait: the work until then was measured.
                Err(error) if error.kind() == ErrorKind::Cancelled => {
                    shared.cut();
                    Vec::new()
                }
                taken => taken?,
            };
            let (job, worker) = worker.place();
            Ok(WorkerDone { job, worker, meter, taken })
        })
    });
    if result.is_err() {
        shared.stop.store(true, Ordering::Relaxed);
    }
    let _ = send.send(WorkerNews::Done(Box::new(result)));
    end.wait();
    drop(held);
}

/// Turns a panic into an error: the other workers wait for this one.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Internal, "a worker panicked")
            .hint("please report it with the message above"))
    })
}

fn wait_ready(receive: &Receiver<WorkerNews>, workers: usize) -> Result<()> {
    let mut result = Ok(());
    for _ in 0..workers {
        if let Ok(WorkerNews::Ready(Err(error))) = receive.recv() {
            result = result.and(Err(error));
        }
    }
    result
}

fn collect(
    watch: &mut PassWatch<'_>,
    receive: &Receiver<WorkerNews>,
    workers: usize,
) -> Result<Vec<WorkerDone>> {
    let mut done = Vec::new();
    let mut failed = None;
    let mut left = workers;
    while left > 0 {
        match receive.recv_timeout(watch.pause()) {
            Ok(WorkerNews::Done(result)) => {
                left -= 1;
                match *result {
                    Ok(one) => done.push(one),
                    Err(error) => {
                        failed.get_or_insert(error);
                    }
                }
            }
            Ok(WorkerNews::Ready(_)) => {}
            Err(RecvTimeoutError::Timeout) => watch.look(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    failed.map_or(Ok(done), Err)
}
