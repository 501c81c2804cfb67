//! One engine's turn: all callers, from their beginning to their end.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_engine::{File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

use crate::Watch;
use crate::caller::{CallerDone, CallerRun};
use crate::files::ReplayFiles;
use crate::plan::{Caller, Place, ReplayPlan};

/// How often callers are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// A file, open for engines and for plain calls.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) plain: Arc<fs::File>,
}

/// What all callers of a turn share.
pub(crate) struct Turn<'a> {
    /// The session with the engine; `None`: plain calls.
    pub(crate) session: Option<&'a Session>,
    /// The session for host memory, which has an engine of its own, and the machine's devices.
    pub(crate) host: &'a Session,
    pub(crate) is_fast: bool,
    files: Vec<OpenFile>,
    begin: OnceLock<Instant>,
    bytes: AtomicU64,
    stop: AtomicBool,
}

/// What a turn came to.
#[derive(Debug, Default)]
pub(crate) struct TurnDone {
    pub(crate) callers: Vec<CallerDone>,
    /// CPU seconds of this process: user and system.
    pub(crate) cpu: (f64, f64),
}

impl<'a> Turn<'a> {
    pub(crate) fn new(
        plan: &ReplayPlan,
        files: &ReplayFiles,
        session: Option<&'a Session>,
        host: &'a Session,
        is_fast: bool,
    ) -> Result<Self> {
        let open = |(file, about): (&crate::files::ReplayFile, &crate::plan::PlanFile)| {
            let writes = !about.written.is_empty();
            let options = File::options().read(true).write(writes).cache(host.config().cache);
            Ok(OpenFile { file: file.open(options)?, plain: file.held.clone() })
        };
        Ok(Self {
            session,
            host,
            is_fast,
            files: files.files.iter().zip(&plan.files).map(open).collect::<Result<_>>()?,
            begin: OnceLock::new(),
            bytes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    pub(crate) fn begin(&self) -> Instant {
        *self.begin.get_or_init(Instant::now)
    }

    pub(crate) fn file(&self, index: usize) -> &OpenFile {
        &self.files[index]
    }

    /// The device that stands for a place of the recording.
    pub(crate) fn device(&self, place: Place) -> &Arc<dyn Device> {
        let devices = self.host.devices();
        match place.and_then(|gpu| devices.gpus.get(gpu as usize).or(devices.gpus.first())) {
            Some(gpu) => gpu,
            None => &devices.host,
        }
    }

    /// The device whose streams serve a place: a GPU's serve host memory too.
    pub(crate) fn stream_device(&self, place: Place) -> &Arc<dyn Device> {
        if place.is_some() { self.device(place) } else { self.device(Some(0)) }
    }

    /// The session that serves a place.
    pub(crate) fn session_of(&self, place: Place) -> Result<&Session> {
        let session = if self.device(place).info().is_host { Some(self.host) } else { self.session };
        session.ok_or_else(|| Error::new(ErrorKind::Internal, "plain calls have no session"))
    }

    pub(crate) fn count(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs all callers.
    pub(crate) fn run(&self, plan: &ReplayPlan, name: &str, watch: &dyn Watch) -> Result<TurnDone> {
        let total: u64 = plan.calls().map(|call| call.moved).sum();
        let (send, ready) = channel();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, caller) in plan.callers.iter().enumerate() {
                let send = send.clone();
                let thread = std::thread::Builder::new().name(format!("replay-{number}"));
                let thread = thread.spawn_scoped(scope, move || self.one(caller, send));
                threads.push(thread.map_err(|error| {
                    // Those that wait for the beginning end at it.
                    self.stop();
                    self.begin();
                    Error::from_io(&error, "cannot start a thread").hint("raise the limit: ulimit -u")
                })?);
            }
            drop(send);
            let _ = ready.iter().take(threads.len()).count();
            let before = cpu_seconds();
            let begin = self.begin();
            while threads.iter().any(|thread| !thread.is_finished()) {
                std::thread::sleep(LOOK);
                if watch.stopped() {
                    self.stop();
                }
                let bytes = self.bytes.load(Ordering::Relaxed);
                watch.progress(name, bytes, Some(bytes as f64 / total.max(1) as f64), begin.elapsed());
            }
            let now = cpu_seconds();
            let joined = threads.into_iter().map(|thread| {
                thread.join().map_err(|_| Error::new(ErrorKind::Internal, "a caller panicked"))?
            });
            // All keep their memory until all are done: freeing waits for the device.
            let all = joined.collect::<Result<Vec<_>>>()?;
            let callers = all.into_iter().map(|(done, _kept)| done).collect();
            Ok(TurnDone { callers, cpu: (now.0 - before.0, now.1 - before.1) })
        })
    }

    fn one<'b>(&'b self, caller: &'b Caller, ready: Sender<()>) -> Result<(CallerDone, CallerRun<'b>)> {
        let made = CallerRun::new(self, caller).inspect_err(|_| self.stop());
        let _ = ready.send(());
        // When no sender is left, callers that did not report have failed.
        drop(ready);
        self.begin.wait();
        let mut made = made?;
        Ok((made.run(), made))
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn cpu_seconds() -> (f64, f64) {
    // SAFETY: all-zero bytes are a valid rusage, and getrusage writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}
