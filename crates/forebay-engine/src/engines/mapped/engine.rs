//! `mapped` as an engine of the list.

use std::sync::{Arc, LazyLock};

use forebay_error::Result;

use super::caller_thread::ReadyBatch;
use super::{Mapped, MappedJob, Reason, Writers};
use crate::engines::permission::Permission;
use crate::engines::{Asked, Claim, Done, Engine, Known, Onward, Ran, Taken, Work};
use crate::request::file::File;
use crate::request::receipt::{EngineKind, Note, Refusal, Told};
use crate::request::ticket::CallerPolled;
use crate::request::transfer::{Batch, Transfer};

/// Why a small read is staged whose pages are not pinned.
static NOT_PINNED: LazyLock<Refusal> = LazyLock::new(|| {
    Reason::new("its pages are not pinned, and a small read alone does not pin them").refusal()
});

/// What there is to say of reads in place, by who may have been writing.
static NOTES: LazyLock<[Option<Note>; Writers::ALL.len()]> =
    LazyLock::new(|| Writers::ALL.map(Writers::note));

impl Engine for Arc<Mapped> {
    fn kind(&self) -> EngineKind {
        EngineKind::Mapped
    }

    unsafe fn run(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Ran> {
        // SAFETY: passed on.
        match unsafe { self.run_here(transfer, known) } {
            None if *self.mode() == Permission::Only => Ok(Ran::Later),
            None => Ok(Ran::Passed(Some(Told::Always(&NOT_PINNED)))),
            Some(done) => {
                let done = done?;
                let note =
                    NOTES[done.writers as usize].as_ref().filter(|_| done.moved.mapped > 0).map(Told::Always);
                let refusal = done.reason.map(|reason| Told::Now(Arc::new(reason.refusal())));
                Ok(Ran::Done(Done { good: done.moved.total() as usize, moved: done.moved, refusal, note }))
            }
        }
    }

    fn claim(&self, asked: &Asked<'_>) -> Result<Claim> {
        if asked.parts.is_some() {
            // What the drive left of a batch is too little to be pinned for.
            return Ok(Claim::Passed(None));
        }
        let taken = |work: Box<dyn Work>| {
            // How much of it is moved in place shows when it ends.
            Ok(Claim::Taken(Taken { work, bytes: 0, left: Vec::new(), refusal: None }))
        };
        if asked.is_alone
            && let Some(ready) = self.ready_batch(asked.batch)
        {
            let (engine, batch) = (self.clone(), asked.batch.clone());
            return taken(Box::new(CallerStart { engine, batch, ready }));
        }
        match self.takes(asked.batch, asked.warmth()) {
            Ok(()) => taken(Box::new(Queued { engine: self.clone(), batch: asked.batch.clone() })),
            Err(reason) if *self.mode() == Permission::Only => {
                Err(reason.error().with("file", asked.known.file.name()))
            }
            Err(reason) => Ok(Claim::Passed(Some(Told::Now(Arc::new(reason.refusal()))))),
        }
    }

    fn before_write(&self, file: &File) {
        if let crate::source::Fill::Descriptor(file) = file.source().fill() {
            self.forget(file);
        }
    }
}

/// A batch whose pages are all pinned: the submitting thread starts it.
struct CallerStart {
    engine: Arc<Mapped>,
    batch: Arc<Batch>,
    ready: ReadyBatch,
}

impl Work for CallerStart {
    fn count(&self) -> usize {
        1
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        let Self { engine, batch, ready } = *self;
        let job = MappedJob { batch, base: onward.base, completion: onward.completion };
        engine.start_ready(ready, job).map(|flight| flight as Arc<dyn CallerPolled>)
    }
}

/// A batch for the engine's own thread.
struct Queued {
    engine: Arc<Mapped>,
    batch: Arc<Batch>,
}

impl Work for Queued {
    fn count(&self) -> usize {
        1
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        let Self { engine, batch } = *self;
        engine.submit(MappedJob { batch, base: onward.base, completion: onward.completion });
        None
    }
}
