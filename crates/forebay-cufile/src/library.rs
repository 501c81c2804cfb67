//! The library's state in the process: whether it is open, its options, files, buffers, streams and batches.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use forebay_config::cufile::{Interface, Loaded, Log as LogOptions, LogLevel, Settings, SizeParameter};
use forebay_config::env;
use forebay_engine::Session;
use forebay_sys::forks;

use crate::abi::code;
use crate::batch::CufileBatch;
use crate::handles::{
    HandleKind, HandleTable, NumberTable, RegisteredFiles, RegisteredRange, RegisteredStream,
};
use crate::lock;
use crate::log::{log, log_error};
use crate::meter::meter;
use crate::status::{RefusedCall, code_of};

/// One for each process.
pub(crate) struct CufileLibrary {
    opening: RwLock<Opening>,
    session: OnceLock<Session>,
    pub(crate) files: RegisteredFiles,
    pub(crate) buffers: NumberTable<RegisteredRange>,
    pub(crate) streams: NumberTable<RegisteredStream>,
    /// Transfers that are queued on streams, or under way.
    pub(crate) queued: AtomicUsize,
    pub(crate) batches: HandleTable<CufileBatch>,
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
    fn settings(&mut self) -> &mut Settings {
        match &mut self.running {
            Some(running) => running,
            None => self.staged.get_or_insert_with(read_settings),
        }
    }
}

fn read_settings() -> Settings {
    let loaded = Settings::from_env();
    note_settings(&loaded);
    loaded.settings
}

/// The library of this process.
pub(crate) fn library() -> &'static CufileLibrary {
    static LIBRARY: OnceLock<CufileLibrary> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        forks::watch();
        CufileLibrary {
            opening: RwLock::default(),
            session: OnceLock::new(),
            files: RegisteredFiles::new(),
            buffers: NumberTable::default(),
            streams: NumberTable::default(),
            queued: AtomicUsize::new(0),
            batches: HandleTable::new(HandleKind::Batches),
            prepared: AtomicU64::new(0),
        }
    })
}

impl CufileLibrary {
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
    pub(crate) fn open(&self) -> Result<(), RefusedCall> {
        let mut opening = self.writing();
        if opening.users == 0 {
            self.start(&mut opening)?;
        }
        opening.users += 1;
        Ok(())
    }

    /// Opens it if nobody has.
    pub(crate) fn ensure_open(&self) -> Result<&Session, RefusedCall> {
        if self.reading().users == 0 {
            let mut opening = self.writing();
            if opening.users == 0 {
                self.start(&mut opening)?;
                opening.users = 1;
            }
        }
        self.session()
    }

    fn start(&self, opening: &mut Opening) -> Result<(), RefusedCall> {
        let settings = opening.staged.clone().unwrap_or_else(read_settings);
        if settings.refuses_to_open() {
            log().line(
                LogLevel::Error,
                "driver",
                "allow_compat_mode is false, and forebay_strict_compat is on: not opened",
            );
            return Err(RefusedCall(code::DRIVER_NOT_INITIALIZED));
        }
        open_log(&settings.log);
        forebay_sys::descriptor_table::make_room();
        if let Some(warning) = settings.compat_warning() {
            warn_once(&warning);
        }
        let session = self.session_unopened()?;
        meter().begin(session, settings.size(SizeParameter::ProfileStats) as u32);
        opening.staged = None;
        opening.running = Some(settings);
        opening.was_open = true;
        Ok(())
    }

    /// Closes it for one user; the last one ends all that is registered.
    pub(crate) fn close(&self) -> Result<(), RefusedCall> {
        let mut opening = self.writing();
        if opening.users == 1 {
            self.batches.all().iter().for_each(|batch| batch.look());
        }
        let is_busy = || self.files.is_busy() || self.queued.load(Ordering::SeqCst) > 0;
        match opening.users {
            0 => return Err(RefusedCall(code::DRIVER_NOT_INITIALIZED)),
            1 if is_busy() => return Err(RefusedCall(code::DRIVER_CLOSING)),
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
    pub(crate) fn session_unopened(&self) -> Result<&Session, RefusedCall> {
        if let Some(session) = self.session.get() {
            return Ok(session);
        }
        forebay_libcufile::register();
        forebay_nfs::register();
        forebay_objects::register();
        let session = Session::open().map_err(|error| {
            log_error("driver", &error);
            RefusedCall(code_of(&error))
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
    pub(crate) fn session(&self) -> Result<&Session, RefusedCall> {
        self.session.get().ok_or(RefusedCall(code::DRIVER_NOT_INITIALIZED))
    }

    /// Whose structures the program has: said once, by a variable.
    pub(crate) fn interface(&self) -> Interface {
        static SAID: OnceLock<Interface> = OnceLock::new();
        *SAID.get_or_init(|| self.with_settings(|settings| settings.interface))
    }

    /// Reads an option: the one in force, or the one of the next opening.
    pub(crate) fn with_settings<T>(&self, read: impl FnOnce(&Settings) -> T) -> T {
        if let Some(running) = &self.reading().running {
            return read(running);
        }
        read(self.writing().settings())
    }

    /// Sets an option of the next opening; refused while open.
    pub(crate) fn stage(
        &self,
        set: impl FnOnce(&mut Settings) -> Result<(), forebay_error::Error>,
    ) -> Result<(), RefusedCall> {
        let mut opening = self.writing();
        if opening.users > 0 {
            return Err(RefusedCall(code::DRIVER_ALREADY_OPEN));
        }
        set(opening.settings()).map_err(|_| RefusedCall(code::INVALID_VALUE))
    }

    /// Sets an option now, open or not.
    pub(crate) fn set_now(
        &self,
        set: impl FnOnce(&mut Settings) -> Result<(), forebay_error::Error>,
    ) -> Result<(), RefusedCall> {
        set(self.writing().settings()).map_err(|_| RefusedCall(code::INVALID_VALUE))
    }
}

fn open_log(options: &LogOptions) {
    let opened = log().configure(options);
    if let Err(error) = opened {
        // There is no log to tell it in.
        meter().note(&error.to_string());
    }
}

/// Writes a warning about the configuration to the log, if there is one, and to the live counters: once, however often the
/// library is opened.
fn warn_once(text: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if lock(&TOLD).insert(text.to_owned()) {
        log().line(LogLevel::default(), "config", text);
        meter().note(text);
    }
}

fn note_settings(loaded: &Loaded) {
    open_log(&loaded.settings.log);
    loaded.warnings.iter().for_each(|warning| warn_once(warning));
    for unknown in env::unknown() {
        warn_once(&unknown.to_string());
    }
}
