//! What the process has of this library: whether it is open, its options, files, buffers, streams and batches.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use forebay_config::cufile::{Loaded, Log as LogOptions, Settings, SizeParameter};
use forebay_engine::Session;

use crate::abi::{CUfileError, code};
use crate::batch::Batch;
use crate::buffer::Buffers;
use crate::file::Files;
use crate::log::{Level, Log};
use crate::meter::Meter;
use crate::status::{Refused, code_of};
use crate::stream::Streams;
use crate::table::{Kind, Table};

/// One for each process.
pub(crate) struct Library {
    opening: RwLock<Opening>,
    session: OnceLock<Session>,
    pub(crate) files: Files,
    pub(crate) buffers: Buffers,
    pub(crate) streams: Streams,
    pub(crate) batches: Table<Batch>,
    meter: OnceLock<Meter>,
    log: Mutex<Log>,
    /// A bit for each GPU whose kernels were loaded.
    prepared: AtomicU64,
}

/// How often it was opened, and with what.
#[derive(Default)]
struct Opening {
    users: u64,
    /// It was open once.
    was_open: bool,
    /// The options in force; `None` while closed.
    running: Option<Settings>,
    /// Those of the next opening, as far as anybody asked.
    staged: Option<Settings>,
}

impl Opening {
    /// The options that a program can see or set now.
    fn settings(&mut self, log: &dyn Fn(&Loaded)) -> &mut Settings {
        match &mut self.running {
            Some(running) => running,
            None => self.staged.get_or_insert_with(|| read_settings(log)),
        }
    }
}

fn read_settings(log: &dyn Fn(&Loaded)) -> Settings {
    let loaded = Settings::from_env();
    log(&loaded);
    loaded.settings
}

/// The library of this process.
pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        watch_forks();
        Library {
            opening: RwLock::default(),
            session: OnceLock::new(),
            files: Files::new(),
            buffers: Buffers::default(),
            streams: Streams::default(),
            batches: Table::new(Kind::Batches),
            meter: OnceLock::new(),
            log: Mutex::default(),
            prepared: AtomicU64::new(0),
        }
    })
}

static FORKED: AtomicBool = AtomicBool::new(false);

fn watch_forks() {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handler only stores to an atomic, which is allowed in the child of a threaded process.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// Whether this process is a child of the one that used the library: its threads, and the GPU's state, are gone.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const NOT_NOW: c_int = 1;

/// Runs a call of the interface; `None` where a panic ended it, or in a child of fork, before it touches any lock.
///
/// A program's `pthread_cancel` waits until it is over: a cancellation unwinds the stack from within some call of libc,
/// past locks and I/O in flight. Where the program asked for asynchronous ones it strikes at the second call here. So
/// there must be nothing to unwind from here up to the program: nothing to drop, and no frame that stops an unwinding,
/// which is why the interface is `extern "C-unwind"`.
fn run<T: Copy>(call: impl FnOnce() -> T) -> Option<T> {
    let mut before = 0;
    // SAFETY: sets a state of this thread; a place of ours.
    unsafe { pthread_setcancelstate(NOT_NOW, &raw mut before) };
    let result = caught(call);
    // SAFETY: sets it back.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

/// A frame of its own: what catches panics would stop a cancellation.
#[inline(never)]
fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    if is_forked() { None } else { catch_unwind(AssertUnwindSafe(call)).ok() }
}

/// What a call comes to that could not be carried out.
fn broken() -> c_int {
    if is_forked() { code::INVALID_CONTEXT_ERROR } else { code::INTERNAL_ERROR }
}

/// Runs a call of the interface.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), Refused>) -> CUfileError {
    crate::status::answer(run(call).unwrap_or_else(|| Err(Refused(broken()))))
}

/// As [`guarded`], for calls that give bytes or an errno.
pub(crate) fn guarded_bytes(call: impl FnOnce() -> Result<usize, c_int>) -> isize {
    crate::status::bytes_or_errno(run(call).unwrap_or_else(|| Err(broken())))
}

/// As [`guarded`], for calls that give nothing, or a number that is 0 where there is none.
pub(crate) fn guarded_plain<T: Copy + Default>(call: impl FnOnce() -> T) -> T {
    run(call).unwrap_or_default()
}

impl Library {
    fn reading(&self) -> RwLockReadGuard<'_, Opening> {
        self.opening.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Opening> {
        self.opening.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many users have it open.
    pub(crate) fn users(&self) -> u64 {
        self.reading().users
    }

    /// Whether it was open and is not now.
    pub(crate) fn is_closed_again(&self) -> bool {
        let opening = self.reading();
        opening.users == 0 && opening.was_open
    }

    /// Opens it for one more user.
    pub(crate) fn open(&self) -> Result<(), Refused> {
        let mut opening = self.writing();
        if opening.users == 0 {
            self.start(&mut opening)?;
        }
        opening.users += 1;
        Ok(())
    }

    /// Opens it if nobody has.
    pub(crate) fn ensure_open(&self) -> Result<&Session, Refused> {
        if self.reading().users == 0 {
            let mut opening = self.writing();
            if opening.users == 0 {
                self.start(&mut opening)?;
                opening.users = 1;
            }
        }
        self.session()
    }

    fn start(&self, opening: &mut Opening) -> Result<(), Refused> {
        let note = |loaded: &Loaded| self.note_settings(loaded);
        let settings = opening.staged.clone().unwrap_or_else(|| read_settings(&note));
        if settings.refuses_to_open() {
            self.log().line(
                Level::Error,
                "driver",
                "allow_compat_mode is false, and taken at its word: not opened",
            );
            return Err(Refused(code::DRIVER_NOT_INITIALIZED));
        }
        self.open_log(&settings.log);
        if let Some(warning) = settings.compat_warning() {
            self.warn(&warning);
        }
        let session = self.session_unopened()?;
        self.meter().begin(session, settings.size(SizeParameter::ProfileStats) as u32);
        opening.staged = None;
        opening.running = Some(settings);
        opening.was_open = true;
        Ok(())
    }

    /// Closes it for one user; the last one ends all that is registered.
    pub(crate) fn close(&self) -> Result<(), Refused> {
        let mut opening = self.writing();
        if opening.users == 1 {
            self.batches.all().iter().for_each(|batch| batch.look());
        }
        let is_busy = || self.files.is_busy() || self.streams.are_busy();
        match opening.users {
            0 => return Err(Refused(code::DRIVER_NOT_INITIALIZED)),
            1 if is_busy() => return Err(Refused(code::DRIVER_CLOSING)),
            1 => {}
            _ => {
                opening.users -= 1;
                return Ok(());
            }
        }
        for batch in self.batches.clear() {
            batch.drain();
        }
        self.files.clear();
        self.buffers.clear();
        self.streams.clear();
        opening.users = 0;
        opening.running = None;
        Ok(())
    }

    /// The session, whether or not anybody has opened the library.
    pub(crate) fn session_unopened(&self) -> Result<&Session, Refused> {
        if let Some(session) = self.session.get() {
            return Ok(session);
        }
        forebay_libcufile::register();
        let session = Session::open().map_err(|error| {
            self.log().error("driver", &error);
            Refused(code_of(&error))
        })?;
        // Its calls are counted here, one by one. Programs queue work on a default stream and call at once.
        Ok(self.session.get_or_init(|| session.uncounted().behind_default_streams()))
    }

    /// Loads the kernels of GPUs that the program uses, while it registers something: loading waits for all that the GPU
    /// has to do, and a program may hold a stream up when it first reads or writes.
    pub(crate) fn prepare(&self, session: &Session) {
        for (index, gpu) in session.devices().gpus.iter().enumerate().take(64) {
            let bit = 1 << index;
            if self.prepared.load(Ordering::Relaxed) & bit == 0 && gpu.is_in_use() {
                // Where kernels cannot run, copies take their place.
                let _ = gpu.kernels(forebay_gpu::Context::PRIMARY);
                self.prepared.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// The session of an open library.
    pub(crate) fn session(&self) -> Result<&Session, Refused> {
        self.session.get().ok_or(Refused(code::DRIVER_NOT_INITIALIZED))
    }

    /// Reads an option: the one in force, or the one of the next opening.
    pub(crate) fn with_settings<T>(&self, read: impl FnOnce(&Settings) -> T) -> T {
        if let Some(running) = &self.reading().running {
            return read(running);
        }
        read(self.writing().settings(&|loaded| self.note_settings(loaded)))
    }

    /// Sets an option of the next opening; refused while open.
    pub(crate) fn stage(
        &self,
        set: impl FnOnce(&mut Settings) -> Result<(), forebay_error::Error>,
    ) -> Result<(), Refused> {
        let mut opening = self.writing();
        if opening.users > 0 {
            return Err(Refused(code::DRIVER_ALREADY_OPEN));
        }
        set(opening.settings(&|loaded| self.note_settings(loaded))).map_err(|_| Refused(code::INVALID_VALUE))
    }

    /// Sets an option now, open or not.
    pub(crate) fn set_now(
        &self,
        set: impl FnOnce(&mut Settings) -> Result<(), forebay_error::Error>,
    ) -> Result<(), Refused> {
        set(self.writing().settings(&|loaded| self.note_settings(loaded)))
            .map_err(|_| Refused(code::INVALID_VALUE))
    }

    /// Counters and trace.
    pub(crate) fn meter(&self) -> &Meter {
        self.meter.get_or_init(|| Meter::new(|text| self.log().line(Level::Warn, "trace", text)))
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_log(&self, options: &LogOptions) {
        let opened = self.log().configure(options);
        if let Err(error) = opened {
            // There is no log to tell it in.
            self.meter().note(&error.to_string());
        }
    }

    /// Tells something that the user should know: in the log if there is one, and in the live counters.
    pub(crate) fn warn(&self, text: &str) {
        self.log().line(Level::Warn, "config", text);
        self.meter().note(text);
    }

    fn note_settings(&self, loaded: &Loaded) {
        self.open_log(&loaded.settings.log);
        for warning in &loaded.warnings {
            self.warn(warning);
        }
        if let Some(error) = &loaded.error {
            self.warn(&error.to_string());
        }
    }
}

/// The address of `base` and `offset` bytes; `None` where the address space ends.
pub(crate) fn address(base: *const c_void, offset: i64) -> Option<u64> {
    (base as u64).checked_add_signed(offset)
}
