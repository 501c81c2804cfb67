//! The engine `vendor`: NVIDIA's own libcufile moves the bytes, where it works and somebody asked for it.
//!
//! It is never elected. All of its calls are made on threads of a [`Crew`], which gives up those that hang. Before a file
//! system's first transfer a little of the file is read into memory of our own and compared. Buffers are not registered:
//! nobody would tell when their memory is freed.

mod abi;
mod crew;
mod explain;
mod handle;
mod job;
mod library;
mod opened;
mod places;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device};

use self::abi::FileHandle;
use self::crew::Crew;
use self::handle::Registered;
use self::handle::Registration;
use self::job::{Job, cut, width};
use self::opened::{Mode, Opened, mode_between, ways};
use crate::request::buffer::{Buffer, keep};
use crate::request::file::File;
use crate::request::metrics::Tally;
use crate::request::receipt::{Election, EngineKind, Moved, Note};
use crate::request::ticket::{Completion, Ticket, Totals};
use crate::request::transfer::Batch;
use crate::runtime::lock::lock;
use crate::runtime::process::PerProcess;
use crate::runtime::sys;
use crate::source::version::FileVersion;
use crate::source::{Descriptors, Fill};

/// Bytes of the read that tries a file system out.
const TRIAL: usize = 64 << 10;

/// A file system, by its device number, with a GPU, by its UUID.
type Place = (u64, [u8; 16]);

/// What the process has of the library.
#[derive(Default)]
pub(crate) struct Office {
    crew: Crew,
    opened: Mutex<Option<Result<Arc<Opened>>>>,
    trials: Mutex<HashMap<Place, Result<Mode>>>,
}

impl PerProcess for Office {
    const NAME: &'static str = "libcufile";
}

/// The engine for one device.
pub(crate) struct Vendor {
    device: Arc<dyn Device>,
    limit: Duration,
    lanes: usize,
    elections: Mutex<Vec<(Mode, Arc<Election>)>>,
}

impl Vendor {
    pub(crate) fn new(device: Arc<dyn Device>, config: &Config) -> Self {
        Self {
            device,
            limit: config.vendor_timeout,
            lanes: config.effective_lanes(),
            elections: Mutex::default(),
        }
    }

    /// The election of all files, or of those where the library works in this mode.
    pub(crate) fn election(&self) -> Result<Election> {
        let opened = self.opened()?;
        Ok(elected(&opened, opened.mode))
    }

    /// The open library. The first who asks opens it.
    fn opened(&self) -> Result<Arc<Opened>> {
        let office = &Office::of_process();
        if let Some(error) = office.crew.refusal() {
            return Err(error);
        }
        let mut kept = lock(&office.opened);
        if kept.is_none() {
            let device = self.device.clone();
            let open = move || {
                device.enter(Context::PRIMARY)?;
                opened::open()
            };
            let made = office.crew.call("cuFileDriverOpen", self.limit * 2, open);
            *kept = Some(made.and_then(|opened| opened).map(Arc::new));
        }
        match &*kept {
            Some(opened) => opened.clone(),
            None => Err(Error::new(ErrorKind::Internal, "the library was not opened")),
        }
    }

    /// Starts a submission. Nothing has moved where this fails.
    pub(crate) fn launch(
        &self,
        batches: Vec<Batch>,
        wanted: Vec<u64>,
        allow_short: Vec<bool>,
        totals: Arc<Totals>,
        tally: Option<Tally>,
    ) -> Result<Ticket> {
        let opened = self.opened()?;
        let mut ready = Vec::with_capacity(batches.len());
        let mut election = None;
        for batch in batches {
            let (handle, mode) = self.prepare(&opened, &batch.file)?;
            election.get_or_insert_with(|| self.elected(&opened, mode));
            let chunks = cut(&batch.pieces);
            ready.push((batch, handle, chunks));
        }
        let election = election.unwrap_or_else(|| self.elected(&opened, Mode::Unknown));
        let works: usize = ready.iter().map(|(_, _, chunks)| chunks.len()).sum();
        let completion = Completion::new(wanted.into(), works.max(1), allow_short, election, totals, None);
        completion.count_in(tally);
        if works == 0 {
            completion.work_done(Moved::default());
        }
        let mut base = 0;
        for (batch, handle, chunks) in ready {
            let (pieces, threads) = (batch.pieces.len() as u32, width(&batch, self.lanes).min(chunks.len()));
            let job = Arc::new(Job {
                batch: Arc::new(batch),
                base,
                completion: completion.clone(),
                chunks,
                calls: opened.library.calls,
                handle,
                limit: self.limit,
                next: AtomicUsize::new(0),
            });
            base += pieces;
            if threads > 0
                && let Err(error) = Office::of_process().crew.start(&job, threads)
            {
                job.refuse_rest(&error);
            }
        }
        Ok(Ticket::new(completion, (), false))
    }

    fn elected(&self, opened: &Opened, mode: Mode) -> Arc<Election> {
        let mut known = lock(&self.elections);
        if let Some((_, election)) = known.iter().find(|(other, _)| *other == mode) {
            return election.clone();
        }
        let election = Arc::new(elected(opened, Some(mode)));
        known.push((mode, election.clone()));
        election
    }

    /// Registers a file, and tries its file system out if nobody has. The file's handle, and the library's mode there.
    fn prepare(&self, opened: &Arc<Opened>, file: &File) -> Result<(usize, Mode)> {
        let Fill::Descriptor(descriptors) = file.source().fill() else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "engine vendor cannot do this: the source is not a file",
            )
            .with("source", file.name())
            .hint("leave the choice of the engine to forebay: unset FOREBAY_ENGINE"));
        };
        let explain = |error: Error| error.with("file", file.name());
        let registration = descriptors.attached.get::<Registration>();
        let registered = registration.get(descriptors, &self.device, opened, self.limit).map_err(explain)?;
        let key = (descriptors.nature.mount, self.device.info().uuid);
        let mut trials = lock(&Office::of_process().trials);
        if let Some(known) = trials.get(&key) {
            return known.clone().map(|mode| (registered.handle, mode));
        }
        let tried = self.try_out(opened, descriptors, registered).map_err(explain);
        match tried {
            // Where there was nothing to read, the next file may tell more.
            Ok(None) => Ok((registered.handle, opened.mode.unwrap_or(Mode::Unknown))),
            Ok(Some(mode)) => {
                trials.insert(key, Ok(mode));
                Ok((registered.handle, mode))
            }
            Err(error) => {
                // Too little memory says nothing of the library; a hang does, and waiting again helps nobody.
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Timeout) {
                    trials.insert(key, Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Reads the file's beginning into memory of our own, and compares. None if there is nothing to read.
    fn try_out(
        &self,
        opened: &Arc<Opened>,
        file: &Descriptors,
        registered: &Registered,
    ) -> Result<Option<Mode>> {
        use std::os::fd::AsRawFd;
        let fd = file.buffered.as_raw_fd();
        for _ in 0..3 {
            let Ok(before) = FileVersion::of(fd) else { return Ok(None) };
            let mut expected = vec![0; TRIAL];
            // SAFETY: the buffer is writable.
            let len = unsafe { sys::read_at(fd, expected.as_mut_ptr(), TRIAL, 0, false) };
            // Whole blocks, where there are any: parts of them may go another way.
            let len = match usize::try_from(len) {
                Err(_) | Ok(0) => return Ok(None),
                Ok(len) if len >= 4096 => len & !4095,
                Ok(len) => len,
            };
            let (bytes, mode) = self.read_trial(opened, registered, &expected[..len])?;
            // One that reads less at a time is right so far.
            if !bytes.is_empty() && expected.starts_with(&bytes) {
                return Ok(Some(opened.mode.unwrap_or(mode)));
            }
            if FileVersion::of(fd).is_ok_and(|after| after == before) {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "NVIDIA's libcufile read wrong bytes when it was tried out",
                )
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
        let done = Office::of_process().crew.call("cuFileRead", self.limit, read);
        let (got, errno, mode) = match done {
            Ok(done) => done?,
            Err(error) => {
                keep(address..address + len as u64);
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

fn elected(opened: &Opened, mode: Option<Mode>) -> Election {
    let note = |text: String, hint: Option<&str>| Note { text, hint: hint.map(str::to_owned) };
    let mut notes = vec![note(opened.to_string(), None)];
    if mode == Some(Mode::Compat) {
        let text = "compat mode: NVIDIA's library copies through host memory, as nvidia-fs is not loaded";
        notes.push(note(text.to_owned(), None));
    }
    Election { engine: EngineKind::Vendor, refused: Vec::new(), notes, mode: mode.map(Mode::name) }
}
