//! The engine `libcufile`: NVIDIA's own libcufile moves the bytes, where it works and the user requests it.
//!
//! [`register`] makes it known; `FOREBAY_ENGINE=libcufile` asks for it. It is never elected. All of its calls are made on
//! threads of its own; one that hangs is given up. Before a file system's first transfer a little of the file
//! is read into memory of our own and compared. Buffers are not registered: nobody would tell when their memory is freed.

mod abi;
mod explain;
mod handle;
mod job;
mod library;
mod opened;
mod places;
mod threads;

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_engine::{
    AskedBatch, Batch, Buffer, CallerPolled, Claim, Engine, EngineFacts, EngineKind, File, Moved, Note,
    Onward, PerProcess, Taken, Work, keep_memory,
};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device};
use forebay_sys::lock;

use crate::abi::FileHandle;
use crate::handle::{Registered, Registration};
use crate::job::{Chunk, Job, cut, width};
use crate::opened::{Mode, Opened, mode_between, ways};
use crate::threads::CallThreads;

/// Bytes of the read that tries a file system out.
const TRIAL_BYTES: usize = 64 << 10;

/// A file system, by its device number, with a GPU, by its UUID.
type Place = ((u32, u32), [u8; 16]);

/// What the process has of the library.
#[derive(Default)]
struct LibraryState {
    threads: CallThreads,
    opened: Mutex<Option<Result<Arc<Opened>>>>,
    trials: Mutex<HashMap<Place, Result<Mode>>>,
}

// SAFETY: no other kind has the name.
unsafe impl PerProcess for LibraryState {
    const NAME: &'static str = "libcufile";
}

/// Makes the engine known to sessions that are opened later.
pub fn register() {
    let registered = forebay_engine::register(EngineKind::Libcufile.name(), |device, config| {
        Ok(Arc::new(Libcufile {
            device: device.clone(),
            limit: config.libcufile_timeout,
            threads: config.effective_lanes(),
        }))
    });
    debug_assert!(registered.is_ok(), "the name is free for this crate");
}

/// The engine for one device.
#[derive(Clone)]
struct Libcufile {
    device: Arc<dyn Device>,
    limit: Duration,
    /// The most that call for one batch.
    threads: usize,
}

impl Engine for Libcufile {
    fn kind(&self) -> EngineKind {
        EngineKind::Libcufile
    }

    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim> {
        let opened = self.opened()?;
        let (handle, mode) = self.prepare_file(&opened, &asked.batch.file)?;
        let (batch, chunks) = (asked.batch.clone(), cut(&asked.batch.pieces));
        let calls = Box::new(Calls { engine: self.clone(), opened, batch, handle, mode, chunks });
        Ok(Claim::Taken(Taken { work: calls, bytes: asked.bytes(), left: Vec::new(), refusal: None }))
    }

    /// The first who asks opens the library.
    fn about(&self) -> Result<EngineFacts> {
        let opened = self.opened()?;
        Ok(about(&opened, opened.mode))
    }
}

/// A batch that is ready for the threads.
struct Calls {
    engine: Libcufile,
    opened: Arc<Opened>,
    batch: Arc<Batch>,
    handle: usize,
    mode: Mode,
    chunks: Vec<Chunk>,
}

impl Work for Calls {
    fn count(&self) -> usize {
        self.chunks.len().max(1)
    }

    fn about(&self) -> Option<EngineFacts> {
        Some(about(&self.opened, Some(self.mode)))
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        let Self { engine, opened, batch, handle, chunks, .. } = *self;
        let threads = width(&batch, engine.threads).min(chunks.len());
        let Onward { completion, base, .. } = onward;
        if chunks.is_empty() {
            completion.work_done(Moved::default());
            return None;
        }
        let (calls, limit, next) = (opened.library.calls, engine.limit, 0.into());
        let job = Arc::new(Job { batch, base, completion, chunks, calls, handle, limit, next });
        if threads > 0
            && let Err(error) = LibraryState::of_process().threads.start(&job, threads)
        {
            job.refuse_rest(&error);
        }
        None
    }
}

impl Libcufile {
    /// The open library.
    fn opened(&self) -> Result<Arc<Opened>> {
        let library_state = LibraryState::of_process();
        if let Some(error) = library_state.threads.refusal() {
            return Err(error);
        }
        let mut kept = lock(&library_state.opened);
        if kept.is_none() {
            let device = self.device.clone();
            let open = move || {
                device.enter(Context::PRIMARY)?;
                opened::open()
            };
            let made = library_state.threads.call("cuFileDriverOpen", self.limit * 2, open);
            *kept = Some(made.and_then(|opened| opened).map(Arc::new));
        }
        match &*kept {
            Some(opened) => opened.clone(),
            None => Err(Error::new(ErrorKind::Internal, "the library was not opened")),
        }
    }

    /// Registers a file, and tries its file system out if nobody has. The file's handle, and the library's mode there.
    fn prepare_file(&self, opened: &Arc<Opened>, file: &File) -> Result<(usize, Mode)> {
        let Some(registration) = file.attached::<Registration>() else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "engine libcufile cannot do this: the source is not a file",
            )
            .with("source", file.name())
            .hint("leave the choice of the engine to forebay: unset FOREBAY_ENGINE"));
        };
        let explain = |error: Error| error.with("file", file.name());
        let registered = registration.get(file, &self.device, opened, self.limit).map_err(explain)?;
        let key = (file.device_number(), self.device.info().uuid);
        let mut trials = lock(&LibraryState::of_process().trials);
        if let Some(known) = trials.get(&key) {
            return known.clone().map(|mode| (registered.handle, mode));
        }
        let tried = self.try_out(opened, file, registered).map_err(explain);
        match tried {
            // Where there was nothing to read, the next file may tell more.
            Ok(None) => Ok((registered.handle, opened.mode.unwrap_or(Mode::Unknown))),
            Ok(Some(mode)) => {
                trials.insert(key, Ok(mode));
                Ok((registered.handle, mode))
            }
            Err(error) => {
                // Too little memory is no fault of the library; a hang is, and waiting again would not help.
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Timeout) {
                    trials.insert(key, Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Reads the file's beginning into memory of our own, and compares. None if there is nothing to read.
    fn try_out(&self, opened: &Arc<Opened>, file: &File, registered: &Registered) -> Result<Option<Mode>> {
        let plain = std::fs::File::from(file.duplicate_buffered()?);
        for _ in 0..3 {
            let Ok(Some(before)) = file.state() else { return Ok(None) };
            let mut expected = vec![0; TRIAL_BYTES];
            // Whole blocks, where there are any: parts of them may go another way.
            let len = match plain.read_at(&mut expected, 0) {
                Err(_) | Ok(0) => return Ok(None),
                Ok(len) if len >= 4096 => len & !4095,
                Ok(len) => len,
            };
            let (bytes, mode) = self.read_trial(opened, registered, &expected[..len])?;
            // One that reads less at a time is right so far.
            if !bytes.is_empty() && expected.starts_with(&bytes) {
                return Ok(Some(opened.mode.unwrap_or(mode)));
            }
            if file.state().is_ok_and(|after| after.as_ref() == Some(&before)) {
                return Err(Error::new(ErrorKind::Corrupt, "NVIDIA's libcufile read wrong bytes in a trial")
                    .hint("do not use it here: unset FOREBAY_ENGINE"));
            }
        }
        // It changes all the time.
        Ok(None)
    }

    fn read_trial(
        &self,
        opened: &Arc<Opened>,
        registered: &Registered,
        expected: &[u8],
    ) -> Result<(Vec<u8>, Mode)> {
        let len = expected.len();
        let mut buffer = Buffer::new(self.device.clone(), len)?;
        // Other bytes than the file's in every place: a call that moves nothing shows.
        buffer.copy_from_slice(&expected.iter().map(|byte| !byte).collect::<Vec<u8>>())?;
        let (device, opened) = (self.device.clone(), opened.clone());
        let (handle, address) = (registered.handle, buffer.address());
        let read = move || -> Result<(isize, i32, Mode)> {
            device.enter(Context::PRIMARY)?;
            let before = ways(&opened);
            // SAFETY: errno is this thread's.
            unsafe { *libc::__errno_location() = 0 };
            // SAFETY: the handle is registered, and the buffer is kept if this never comes back.
            let got = unsafe {
                (opened.library.calls.read)(handle as FileHandle, address as *mut c_void, len, 0, 0)
            };
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            Ok((got, errno, mode_between(before, ways(&opened))))
        };
        let done = LibraryState::of_process().threads.call("cuFileRead", self.limit, read);
        let (got, errno, mode) = match done {
            Ok(done) => done?,
            Err(error) => {
                keep_memory(address..address + len as u64);
                return Err(error);
            }
        };
        if got < 0 {
            return Err(explain::bytes(got, errno, "cannot read by NVIDIA's libcufile"));
        }
        let mut bytes = buffer.to_vec()?;
        bytes.truncate(got as usize);
        Ok((bytes, mode))
    }
}

fn about(opened: &Opened, mode: Option<Mode>) -> EngineFacts {
    let note = |text: String| Note { text, hint: None };
    let mut notes = vec![note(opened.to_string())];
    if mode == Some(Mode::Compat) {
        let text = "compat mode: NVIDIA's library copies through host memory, as nvidia-fs is not loaded";
        notes.push(note(text.to_owned()));
    }
    EngineFacts { mode: mode.map(Mode::name), notes }
}
