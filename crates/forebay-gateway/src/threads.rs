//! Threads that wait for the file system. An account has some of them at once, so that a directory that hangs, or a client that copies
//! much, leaves threads to other accounts.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Of all accounts.
pub(crate) const THREADS: usize = 512;
/// Of an account.
const TURNS: usize = 64;
/// Of these, the ones that may send long files: the others are left to requests, however many readers there are.
const SENDING: usize = 48;
/// A request waits this long for a thread of its account.
const PATIENCE: Duration = Duration::from_secs(10);

/// The threads of an account.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    /// Those of them that may send long files, each of which keeps its thread for a while.
    sending: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(TURNS)), sending: Arc::new(Semaphore::new(SENDING)) }
    }
}

impl Turns {
    /// A thread that a job may have; `None`: all were at work for too long.
    pub(crate) async fn take(&self) -> Option<Turn> {
        let taken = timeout(PATIENCE, Arc::clone(&self.all).acquire_owned()).await.ok()?;
        taken.ok().map(|permit| Turn { _permit: permit, _sending: None })
    }

    /// Starts a job, when a thread is there for it.
    pub(crate) fn start<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let all = Arc::clone(&self.all);
        match Arc::clone(&all).try_acquire_owned() {
            Ok(permit) => Turn { _permit: permit, _sending: None }.start(job),
            Err(_) => wait_and_start(all, None, job),
        }
    }

    /// Starts a job that sends a long file, when one of the threads for that is there.
    pub(crate) fn start_sending<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let (all, sending) = (Arc::clone(&self.all), Arc::clone(&self.sending));
        let now =
            Arc::clone(&sending).try_acquire_owned().ok().zip(Arc::clone(&all).try_acquire_owned().ok());
        match now {
            Some((sending, permit)) => Turn { _permit: permit, _sending: Some(sending) }.start(job),
            None => wait_and_start(all, Some(sending), job),
        }
    }
}

/// Starts a job when both have a turn. One that is given up before leaves nothing.
fn wait_and_start<T: Send + 'static>(
    all: Arc<Semaphore>,
    sending: Option<Arc<Semaphore>>,
    job: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(async move {
        let sending = match sending {
            Some(sending) => sending.acquire_owned().await.ok(),
            None => None,
        };
        // No semaphore is ever closed.
        let Ok(permit) = all.acquire_owned().await else { return pending().await };
        let done = Turn { _permit: permit, _sending: sending }.start(job).await;
        done.unwrap_or_else(|error| resume_unwind(error.into_panic()))
    })
}

/// Connections of this machine's processes that have a thread of their own. The others share the threads of all connections.
const OWN: usize = 128;
/// How many there are.
static OWNERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread one, for good.
#[cfg(feature = "fuzz")]
pub(crate) fn be_own() {
    IS_OWN.set(true);
}

/// A thread for one connection, which may wait for the file system itself.
pub(crate) struct OwnThread(());

/// One more of them, if there are not too many.
pub(crate) fn own() -> Option<OwnThread> {
    let one_more = |count| (count < OWN).then_some(count + 1);
    OWNERS.try_update(Relaxed, Relaxed, one_more).is_ok().then_some(OwnThread(()))
}

/// Whether this thread is one.
pub(crate) fn is_own() -> bool {
    IS_OWN.get()
}

impl OwnThread {
    /// Starts it. It ends with the future.
    pub(crate) fn run(self, connection: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let body = move || {
            IS_OWN.set(true);
            runtime.block_on(connection);
            drop(self);
        };
        std::thread::Builder::new().name("forebay-s3-own".to_owned()).spawn(body).map(drop)
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        OWNERS.fetch_sub(1, Relaxed);
    }
}

/// What may take a while to end, as queue pairs and registered memory do. Where it is dropped, a thread ends it that may wait.
pub(crate) struct Aside<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Aside<T> {
    pub(crate) const fn new(last: T) -> Self {
        Self(Some(last))
    }

    /// For a thread that may wait itself.
    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().unwrap_or_else(|| unreachable!("it is there until it is dropped"))
    }
}

impl<T: Send + 'static> Drop for Aside<T> {
    fn drop(&mut self) {
        if let Some((last, runtime)) = self.0.take().zip(Handle::try_current().ok()) {
            runtime.spawn_blocking(move || drop(last));
        }
    }
}

/// A thread, for one job.
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
    _sending: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Starts the job. One whose request is given up leaves its thread at work.
    pub(crate) fn start<T: Send + 'static>(self, job: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        spawn_blocking(move || {
            let done = job();
            drop(self);
            done
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_takes_a_while_to_end_is_ended_by_another_thread() {
        struct Last(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.send(std::thread::current().id()).unwrap();
            }
        }
        let (tell, told) = std::sync::mpsc::channel();
        drop(Aside::new(Last(tell.clone())));
        let ender = told.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_ne!(ender, std::thread::current().id());
        drop(Aside::new(Last(tell)).into_inner());
        assert_eq!(told.recv().unwrap(), std::thread::current().id());
    }

    #[tokio::test]
    async fn senders_of_long_files_leave_threads_to_requests() {
        let turns = Turns::default();
        let (hang, free) = std::sync::mpsc::channel::<()>();
        let free = Arc::new(std::sync::Mutex::new(free));
        let senders: Vec<_> = (0..2 * TURNS)
            .map(|_| {
                let free = Arc::clone(&free);
                turns.start_sending(move || free.lock().unwrap().recv().is_ok())
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let small = turns.start(|| 7);
        assert_eq!(timeout(Duration::from_secs(5), small).await.unwrap().unwrap(), 7);
        // One that waits is given up with all that it holds.
        let (held, gone) = std::sync::mpsc::channel::<()>();
        let waiting = turns.start_sending(move || drop(held));
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled() && gone.recv().is_err());
        drop(hang);
        for one in senders {
            one.await.unwrap();
        }
    }

    #[tokio::test]
    async fn one_account_leaves_threads_to_others() {
        let (ana, ben) = (Turns::default(), Turns::default());
        let (hang, free) = std::sync::mpsc::channel::<()>();
        let free = Arc::new(std::sync::Mutex::new(free));
        let hanging: Vec<_> = (0..TURNS + 5)
            .map(|_| {
                let free = Arc::clone(&free);
                ana.start(move || free.lock().unwrap().recv().is_ok())
            })
            .collect();
        assert_eq!(ben.start(|| 7).await.unwrap(), 7);
        assert!(timeout(Duration::from_millis(50), ana.take()).await.is_err());
        drop(hang);
        for one in hanging {
            one.await.unwrap();
        }
        assert!(ana.take().await.is_some());
    }
}
