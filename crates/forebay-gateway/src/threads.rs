//! Threads that wait for the file system. An account has some of them at once, so that a directory that hangs, or a client that copies
//! much, leaves threads to other accounts.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Of all accounts.
pub(crate) const THREADS: usize = 512;
/// Of an account.
const TURNS: usize = 64;
/// A request waits this long for a thread of its account.
const PATIENCE: Duration = Duration::from_secs(10);

/// The threads of an account.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TURNS)))
    }
}

impl Turns {
    /// A thread that a job may have; `None`: all were at work for too long.
    pub(crate) async fn take(&self) -> Option<Turn> {
        let taken = timeout(PATIENCE, Arc::clone(&self.0).acquire_owned()).await.ok()?;
        taken.ok().map(Turn)
    }

    /// Starts a job, when a thread is there for it.
    pub(crate) fn start<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let turns = Arc::clone(&self.0);
        if let Ok(permit) = Arc::clone(&turns).try_acquire_owned() {
            return Turn(permit).start(job);
        }
        tokio::spawn(async move {
            // The semaphore is never closed.
            let Ok(permit) = turns.acquire_owned().await else { return pending().await };
            let done = Turn(permit).start(job).await;
            done.unwrap_or_else(|error| resume_unwind(error.into_panic()))
        })
    }
}

/// A thread, for one job.
pub(crate) struct Turn(OwnedSemaphorePermit);

impl Turn {
    /// Starts the job. One whose request is given up leaves its thread at work.
    pub(crate) fn start<T: Send + 'static>(self, job: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let Self(permit) = self;
        spawn_blocking(move || {
            let done = job();
            drop(permit);
            done
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
