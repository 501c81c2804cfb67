//! Writing a trace: reserve a slot, fill it, and store its first word last.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::Write;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use forebay_config::env;
use forebay_error::{Error, Result};
use forebay_sys::{OwnLine, forks, threads};

use crate::growth::{STEP, Steps};
use crate::header::{END_AT, HEADER, LOST_AT, TraceHeader};
use crate::record::{RECORD, Record, RecordSlot};
use crate::{place, slots, time};

/// Slots of a step. The first step begins with the header.
const SLOTS: u64 = (STEP / RECORD) as u64;
/// Set in the number of the next slot when nothing more is recorded.
const CLOSED: u64 = 1 << 63;
/// Number of names remembered: a file that is opened again gets its old number.
const REMEMBERED: usize = 1 << 16;

/// Told once why a trace stopped before its end.
type Note = Box<dyn Fn(&Error) + Send + Sync>;

/// A trace being written. Any number of threads may record at once.
///
/// Dropping it, or [`finish`](Self::finish), cuts the file to the recorded part. A process that dies without leaves a
/// tail of zeros, which readers skip.
pub struct Trace {
    inner: Arc<OpenTrace>,
    /// Makes the next step while the last one is filled; started when half of the first step is used.
    grower: OnceLock<Option<JoinHandle<()>>>,
}

struct OpenTrace {
    /// The next free slot, in cache lines of its own: all recording threads add to it.
    next: OwnLine<AtomicU64>,
    steps: Steps,
    /// CLOCK_MONOTONIC at the start.
    started: u64,
    /// Number of forks when the trace was begun: a child that was forked later records nothing.
    forks: u64,
    path: PathBuf,
    /// Number of steps that the background thread is to have made.
    wanted: AtomicUsize,
    finished: AtomicBool,
    names: Mutex<FileNames>,
    note: Note,
}

#[derive(Default)]
struct FileNames {
    known: HashMap<Box<[u8]>, u32>,
    last: u32,
}

impl Trace {
    /// Begins a trace. If it has to stop later (a full disk), a note goes to standard error once and the program goes
    /// on.
    ///
    /// `%p` in the path is the process number. A trace of an earlier run is replaced; if the file belongs to another
    /// process of the same run (they share the variable `FOREBAY_RUN`), or to one that still writes it, `.PID` is
    /// added to the name. A file that is no trace is never replaced.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Self::create_noting(path, |error| {
            let hints = error.hints().join("\nhint: ");
            // Standard error may be closed; then there is no place to report it.
            let _ = writeln!(std::io::stderr(), "forebay: note: {error}\nhint: {hints}");
        })
    }

    /// As [`create`](Self::create); `note` is called once, on whatever thread, if the trace has to stop.
    pub fn create_noting(
        path: impl AsRef<Path>,
        note: impl Fn(&Error) + Send + Sync + 'static,
    ) -> Result<Self> {
        forks::watch();
        let run = env::text("FOREBAY_RUN").and_then(|text| u64::from_str_radix(&text, 16).ok());
        let header = TraceHeader::here(run.unwrap_or(0));
        let (file, path) = place::claim(path.as_ref(), &header)?;
        let steps = Steps::of(file);
        if let Err(error) = steps.make(0, || false) {
            // A trace that cannot hold a record would only mislead.
            let _ = std::fs::remove_file(&path);
            return Err(error.with("path", path.display()));
        }
        let inner = OpenTrace {
            next: OwnLine(AtomicU64::new((HEADER / RECORD) as u64)),
            steps,
            started: header.clock_start,
            forks: forks::count(),
            path,
            wanted: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
            names: Mutex::default(),
            note: Box::new(note),
        };
        Ok(Self { inner: Arc::new(inner), grower: OnceLock::new() })
    }

    /// The file's name, which may differ from the one asked for.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Nanoseconds since the trace's start.
    pub fn now(&self) -> u64 {
        time::monotonic().saturating_sub(self.inner.started)
    }

    /// Records a call. Does nothing in a forked child and after [`finish`](Self::finish).
    #[inline]
    pub fn record(&self, record: &Record) {
        self.put(1, iter::once(record.encode()));
    }

    /// The number of a file in this trace, by its name. The same name has the same number (unless very many files
    /// were named meanwhile). 0 in a forked child.
    pub fn file(&self, name: impl AsRef<OsStr>) -> u32 {
        let name = name.as_ref().as_bytes();
        if self.inner.is_elsewhere() {
            return 0;
        }
        let mut names = self.inner.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = names.known.get(name) {
            return *file;
        }
        if names.known.len() >= REMEMBERED {
            names.known.clear();
        }
        names.last += 1;
        let file = names.last;
        names.known.insert(name.into(), file);
        // Write the name under the lock: a thread that gets the number writes its records behind the name.
        let slots = slots::of_name(file, name);
        self.put(slots.len(), slots.into_iter());
        file
    }

    /// Ends the trace: cuts the file to the recorded part. Later records are dropped. For a library that is never
    /// unloaded, to be called when its process exits.
    pub fn finish(&self) {
        self.inner.finish();
    }

    fn put(&self, count: usize, slots: impl Iterator<Item = RecordSlot>) {
        let inner = &*self.inner;
        if count == 0 || inner.is_elsewhere() {
            return;
        }
        let first = inner.next.fetch_add(count as u64, Ordering::Relaxed);
        if first & CLOSED != 0 {
            inner.lose(count as u64);
            return;
        }
        for (at, slot) in (first..).zip(slots) {
            if at % SLOTS == SLOTS / 2 {
                self.grow_ahead((at / SLOTS) as usize + 2);
            }
            inner.store(at, &slot);
        }
    }

    /// Makes `steps` steps in the background.
    #[cold]
    fn grow_ahead(&self, steps: usize) {
        self.inner.wanted.fetch_max(steps, Ordering::Release);
        let grower = self.grower.get_or_init(|| {
            let inner = Arc::clone(&self.inner);
            // Without the thread each step is made by the caller who needs it first.
            threads::spawn("forebay-trace", move || inner.grow()).ok()
        });
        if let Some(grower) = grower {
            grower.thread().unpark();
        }
    }
}

impl OpenTrace {
    fn is_elsewhere(&self) -> bool {
        forks::count() != self.forks
    }

    fn is_closed(&self) -> bool {
        self.next.load(Ordering::Acquire) & CLOSED != 0
    }

    #[inline]
    fn store(&self, at: u64, slot: &RecordSlot) {
        let step = (at / SLOTS) as usize;
        let Some(base) = self.steps.get(step).or_else(|| self.need(step)) else {
            self.lose(1);
            return;
        };
        let place = base.as_ptr().wrapping_add((at % SLOTS) as usize * RECORD);
        // Readers of the file look at the first word, stored last, before they look at the rest.
        // SAFETY: `place` lies in a mapped step, aligned to 64 bytes, with storage allocated for it, and the addition to
        // `next` gave it to this call alone.
        unsafe {
            std::ptr::copy_nonoverlapping(slot.0.as_ptr().add(4), place.add(4), RECORD - 4);
            AtomicU32::from_ptr(place.cast()).store(slot.tag(), Ordering::Release);
        }
    }

    /// Makes a step that is needed now; `None` if the trace cannot go on.
    #[cold]
    fn need(&self, step: usize) -> Option<std::ptr::NonNull<u8>> {
        match self.steps.make(step, || self.is_closed()) {
            Ok(()) => self.steps.get(step),
            Err(error) => {
                self.stop(&error);
                None
            }
        }
    }

    /// Ends recording before its time.
    fn stop(&self, error: &Error) {
        if self.next.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED == 0 {
            let mut note = Error::new(error.kind(), format!("tracing stopped: {}", error.message()))
                .with("path", self.path.display());
            for hint in error.hints() {
                note = note.hint(hint.as_str());
            }
            (self.note)(&note);
        }
    }

    #[cold]
    fn lose(&self, count: u64) {
        self.header_word(LOST_AT, |word| {
            word.fetch_add(count, Ordering::Relaxed);
        });
    }

    /// Changes a number in the header.
    fn header_word(&self, at: usize, change: impl FnOnce(&AtomicU64)) {
        if let Some(base) = self.steps.get(0) {
            // SAFETY: the header lies in the first step, which stays mapped and allocated; `at` is a multiple of 8.
            change(unsafe { AtomicU64::from_ptr(base.as_ptr().add(at).cast()) });
        }
    }

    /// The background thread: makes the wanted steps, ahead of the writers.
    fn grow(&self) {
        let mut made = 0;
        while !self.is_closed() {
            let wanted = self.wanted.load(Ordering::Acquire);
            if made == wanted {
                std::thread::park();
            } else {
                if self.need(wanted - 1).is_some() {
                    self.steps.populate(wanted - 1);
                }
                made = wanted;
            }
        }
    }

    fn finish(&self) {
        if self.is_elsewhere() || self.finished.swap(true, Ordering::AcqRel) {
            return;
        }
        let now = time::monotonic().saturating_sub(self.started);
        self.header_word(END_AT, |word| word.store(now, Ordering::Relaxed));
        let used = self.next.fetch_or(CLOSED, Ordering::AcqRel);
        // Threads that still write have slots below `used`. A trace that had to stop is full to its end.
        if used & CLOSED == 0 {
            self.steps.cut(used * RECORD as u64);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let grower = self.grower.take().flatten();
        if self.inner.is_elsewhere() {
            // The thread belongs to the parent process: nothing can be joined here.
            std::mem::forget(grower);
            return;
        }
        self.inner.finish();
        if let Some(grower) = grower {
            grower.thread().unpark();
            // The thread returns nothing; a panic of it has been reported by the panic hook.
            let _ = grower.join();
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("path", &self.inner.path).finish_non_exhaustive()
    }
}
