//! The exercise on the machine that the program runs on, through a [`Session`].

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use forebay_config::{Config, Nfs};
use forebay_engine::{Buffer, EngineKind, File, Receipt, Session, Way};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Device, DeviceName, Devices, fill_pattern};

use crate::engines::size;
use crate::exercise::{
    Answer, DriverOffer, Exercise, ExerciseOutcome, ExerciseResult, ExerciseTarget, FileRead, GpuSeen,
    Hinted, InPlace, LaneFacts, PinBudget, ServerAnswers,
};
use crate::server::{ServerRoutes, ask_of_file, unasked};
use crate::storage::{DiskKind, StoragePlace};

/// Bytes of a probe.
const PROBE_BYTES: usize = 8 << 20;
/// Free space that a probe leaves alone.
const SPARE_BYTES: u64 = 64 << 20;
/// The pattern's key.
const PATTERN_KEY: u64 = 0x0066_6f72_6562_6179;

/// Time limit of a try: a mount whose server is gone, or a GPU that fell off the bus, hangs.
const HANG_LIMIT: Duration = Duration::from_secs(30);

/// How long probe files rest before their pages are pinned: nobody else writes to them.
const PROBE_SETTLE: Duration = Duration::from_millis(20);

/// Tries transfers through the process's session, and through sessions limited to one engine. Each try has a time
/// limit.
#[derive(Clone, Debug)]
pub struct LiveExercise {
    session: Result<Session>,
    /// For host memory.
    host: Result<Session>,
    /// For GPUs by one engine of forebay's alone.
    alone: BTreeMap<EngineKind, Result<Session>>,
    devices: Devices,
}

impl LiveExercise {
    /// Finds the devices and opens the session. Never fails: the exercise reports what is missing.
    pub fn open() -> Self {
        let session = Session::open();
        let devices =
            session.as_ref().map_or_else(|_| Devices::discover(), |session| session.devices().clone());
        let of_gpus = |engine: &EngineKind| engine.is_forebays() && *engine != EngineKind::Host;
        let alone = |engine| session.as_ref().map_err(Error::clone).and_then(|session| only(engine, session));
        let alone =
            EngineKind::ALL.into_iter().filter(of_gpus).map(|engine| (engine, alone(engine))).collect();
        let host = session.as_ref().map_err(Error::clone).and_then(for_host);
        Self { session, host, alone, devices }
    }

    /// The session that a target is exercised with: GPU memory by `staged`, without election.
    fn session_for(&self, target: &ExerciseTarget) -> Result<&Session> {
        match target {
            ExerciseTarget::Host => self.host.as_ref().map_err(Error::clone),
            _ => self.by(EngineKind::Staged),
        }
    }

    /// The session of one engine alone.
    fn by(&self, engine: EngineKind) -> Result<&Session> {
        let missing = || Error::new(ErrorKind::Internal, "this engine is not tried alone");
        self.alone.get(&engine).ok_or_else(missing)?.as_ref().map_err(Error::clone)
    }

    /// Runs `work` on its own thread; `None` if it does not finish in time: the thread is left running.
    fn with_time_limit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = channel();
        let live = self.clone();
        std::thread::spawn(move || {
            // The receiver is gone if it took too long.
            let _ = tell.send(work(&live));
        });
        told.recv_timeout(HANG_LIMIT).ok()
    }

    fn device(&self, target: &ExerciseTarget) -> Result<Arc<dyn Device>> {
        match target {
            ExerciseTarget::Host => Ok(self.devices.host.clone()),
            ExerciseTarget::Gpu(index) => self.devices.get(*index),
            ExerciseTarget::Bar(name) => self.devices.named(&DeviceName::Bar(name.clone())),
        }
    }

    /// Reads a file at a place by a session of one engine: a probe file, or a file of the user.
    fn try_alone(
        &self,
        target: &ExerciseTarget,
        place: &StoragePlace,
        read: impl FnOnce(&Arc<dyn Device>, &File, &[u8]) -> Result<InPlace>,
    ) -> Result<InPlace> {
        let device = self.device(target)?;
        if place.writable && place.free.is_none_or(|free| free >= SPARE_BYTES) {
            let probe = Probe::create(&place.path)?;
            let mut bytes = vec![0; PROBE_BYTES];
            fill_pattern(&mut bytes, PATTERN_KEY, 0);
            probe.write(&bytes)?;
            return read(&device, &File::open(&probe.path)?, &bytes);
        }
        let Some(sample) = &place.sample else {
            return Ok(InPlace::Skipped(Hinted::new("there is no file to try it with")));
        };
        let file = File::open(sample)?;
        let plain = fs::File::open(sample).map_err(|error| Error::from_io(&error, "cannot open file"))?;
        let len = file.len()?.min(PROBE_BYTES as u64) as usize;
        if len == 0 {
            return Ok(InPlace::Skipped(Hinted::new("the file is empty")));
        }
        read(&device, &file, &plain_read(&plain, len)?)
    }

    /// Tries one engine on a thread of its own.
    fn alone(&self, work: impl FnOnce(&Self) -> Result<InPlace> + Send + 'static) -> InPlace {
        match self.with_time_limit(work) {
            Some(Ok(tried)) => tried,
            // An engine that an option forbids is no failure of the machine.
            Some(Err(error)) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Strict) => {
                InPlace::Refused(refusal(&error))
            }
            Some(Err(error)) => InPlace::Failed(Hinted::from(&error)),
            None => InPlace::Failed(hangs()),
        }
    }

    /// By a file of the place: an empty probe file, or a file of the user.
    fn ask_server_of(&self, place: &StoragePlace) -> Result<ServerAnswers> {
        let is_off = self.session.as_ref().is_ok_and(|session| session.config().nfs == Nfs::Off);
        let silent = is_off.then(|| Hinted::new("FOREBAY_NFS=off forbids it").fix("unset FOREBAY_NFS"));
        let (routes, point) = (ServerRoutes::of_machine(), &place.mount_point);
        if place.writable && !place.is_file {
            let probe = Probe::create(&place.path)?;
            return Ok(ask_of_file(probe.plain.as_fd(), point, &routes, silent));
        }
        let Some(sample) = &place.sample else {
            let error = Error::new(ErrorKind::Unsupported, "there is no file to ask with");
            return Err(error.hint("forebay check FILE, with a file there that you can read"));
        };
        let plain = fs::File::open(sample).map_err(|error| Error::from_io(&error, "cannot open file"))?;
        Ok(ask_of_file(plain.as_fd(), point, &routes, silent))
    }

    fn try_place(
        &self,
        session: &Session,
        target: &ExerciseTarget,
        place: &StoragePlace,
    ) -> Result<ExerciseResult> {
        let mut buffer = Buffer::new(self.device(target)?, PROBE_BYTES)?;
        if place.writable && place.free.is_none_or(|free| free >= SPARE_BYTES) {
            return Probe::create(&place.path)?.exercise(session, target, place, &mut buffer);
        }
        let why_not = if place.writable {
            let free = size(place.free.unwrap_or(0));
            Hinted::new(format!("only {free} are free there")).fix("free some space: df -h")
        } else if place.is_file {
            Hinted::new("your file is only read, never written")
        } else if place.read_only {
            Hinted::new("mounted read-only")
        } else {
            Hinted::new("this user may not write there")
        };
        let Some(sample) = &place.sample else {
            let fix = why_not
                .fix
                .clone()
                .unwrap_or_else(|| "forebay check -f FILE, with a file there that you can read".to_owned());
            return Ok(ExerciseResult::skipped(target.clone(), why_not.fix(fix)));
        };
        let file = File::open(sample)?;
        let plain = fs::File::open(sample).map_err(|error| Error::from_io(&error, "cannot open file"))?;
        let len = file.len()?.min(PROBE_BYTES as u64) as usize;
        let mut buffer = Buffer::new(self.device(target)?, len)?;
        let mut exercised = ExerciseResult::skipped(target.clone(), why_not);
        if len == 0 {
            let empty = ExerciseOutcome::Skipped(Hinted::new("the file is empty"));
            (exercised.cold, exercised.warm) = (empty.clone(), empty);
            return Ok(exercised);
        }
        // The page cache of a user's file is the user's: only a file that is cold already is read cold.
        exercised.cold = match file.residency(0, len as u64)? {
            cold if cold.cached == 0 => {
                let receipt = session.read(&file, 0, &mut buffer);
                checked(receipt, &mut exercised.engine, || {
                    wrong(&buffer.to_vec()?, &plain_read(&plain, len)?)
                })
            }
            _ => ExerciseOutcome::Skipped(Hinted::new("the file is in the page cache, where it stays")),
        };
        let expected = plain_read(&plain, len)?;
        describe(&file, &mut exercised);
        exercised.warm = read(session, &file, &mut buffer, &expected, &mut exercised.engine);
        Ok(exercised)
    }
}

impl Exercise for LiveExercise {
    fn offered(&self) -> DriverOffer {
        offered(&self.devices)
    }

    fn lanes(&self, target: ExerciseTarget) -> std::result::Result<LaneFacts, Hinted> {
        let asked = target.clone();
        let report = self.with_time_limit(move |live| {
            let device = live.device(&asked)?;
            live.session_for(&asked)?.report(&device)
        });
        let report = report.ok_or_else(hangs)?.map_err(|error| Hinted::from(&error))?;
        let notes =
            report.notes.iter().map(|note| Hinted { text: note.text.clone(), fix: note.hint.clone() });
        Ok(LaneFacts {
            target,
            lanes: report.lanes,
            most: report.most,
            slots: report.slots,
            slot_size: report.slot_size,
            backend: report.backend.to_owned(),
            notes: notes.collect(),
        })
    }

    fn exercise(&self, target: ExerciseTarget, place: &StoragePlace) -> ExerciseResult {
        let on_thread = (place.clone(), target.clone());
        let tried = self.with_time_limit(move |live| {
            let (place, target) = &on_thread;
            live.try_place(live.session_for(target)?, target, place)
        });
        match tried {
            Some(Ok(exercised)) => exercised,
            Some(Err(error)) => failed(target, Hinted::from(&error)),
            None => failed(target, hangs()),
        }
    }

    fn bar(&self, name: &str) -> std::result::Result<ExerciseTarget, Hinted> {
        let found = self.devices.named(&DeviceName::Bar(name.to_owned()));
        found
            .map(|device| ExerciseTarget::Bar(device.info().name.clone()))
            .map_err(|error| Hinted::from(&error))
    }

    fn exercise_by_drive(&self, target: ExerciseTarget, place: &StoragePlace) -> ExerciseResult {
        let on_thread = (place.clone(), target.clone());
        let tried = self.with_time_limit(move |live| {
            let (place, target) = &on_thread;
            live.try_place(live.by(EngineKind::P2p)?, target, place)
        });
        match tried {
            Some(Ok(exercised)) => exercised,
            // There is no path, or an option forbids it.
            Some(Err(error)) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Strict) => {
                ExerciseResult::skipped(target, refusal(&error))
            }
            Some(Err(error)) => failed(target, Hinted::from(&error)),
            None => failed(target, hangs()),
        }
    }

    fn read_in_place(&self, target: ExerciseTarget, place: &StoragePlace) -> InPlace {
        let place = place.clone();
        self.alone(move |live| {
            let session = live.by(EngineKind::Mapped)?;
            live.try_alone(&target, &place, |device, file, bytes| read_in_place(session, device, file, bytes))
        })
    }

    fn read_by_server(&self, target: ExerciseTarget, place: &StoragePlace) -> Option<InPlace> {
        let place = place.clone();
        Some(self.alone(move |live| {
            let session = live.by(EngineKind::Placed)?;
            live.try_alone(&target, &place, |device, file, bytes| {
                read_by_server(session, device, file, bytes)
            })
        }))
    }

    fn ask_server(&self, place: &StoragePlace) -> Option<ServerAnswers> {
        place.nfs.as_ref()?;
        let on_thread = place.clone();
        let said = self.with_time_limit(move |live| live.ask_server_of(&on_thread));
        let not_asked = |why: &Hinted| unasked(&place.mount_point, Answer::Unknown(why.clone()), why);
        Some(match said {
            Some(Ok(said)) => said,
            Some(Err(error)) => not_asked(&Hinted::from(&error)),
            None => not_asked(&hangs()),
        })
    }

    fn pin_budget(&self, target: ExerciseTarget) -> Option<PinBudget> {
        let ExerciseTarget::Gpu(_) = target else { return None };
        let pins = self.by(EngineKind::Mapped).ok()?.pins(&self.device(&target).ok()?).ok()?;
        let (bytes, limited_by) = (pins.budget.bytes, pins.budget.limiter.to_string());
        Some(PinBudget { bytes, limited_by, registering: pins.registering })
    }

    fn read_file(&self, target: ExerciseTarget, path: &str) -> std::result::Result<FileRead, Hinted> {
        let path = path.to_owned();
        let run = move |live: &Self| -> Result<FileRead> {
            let session = live.session.as_ref().map_err(Error::clone)?;
            let file = File::open(&path)?;
            let len = file.len()?.min(PROBE_BYTES as u64) as usize;
            let mut buffer = Buffer::new(live.device(&target)?, len)?;
            let receipt = session.read(&file, 0, &mut buffer)?;
            let plain = fs::File::open(&path).map_err(|error| Error::from_io(&error, "cannot open file"))?;
            if let Some(at) = wrong(&buffer.to_vec()?, &plain_read(&plain, len)?)? {
                return Err(wrong_bytes(at));
            }
            Ok(FileRead {
                target,
                bytes: receipt.bytes(),
                engine: receipt.engine().name().to_owned(),
                moved: receipt.moved,
            })
        };
        match self.with_time_limit(run).ok_or_else(hangs)? {
            Ok(read) if read.bytes == 0 => {
                Err(Hinted::new("the file is empty: nothing was read, nothing is proven")
                    .fix("name a file with bytes in it"))
            }
            Ok(read) => Ok(read),
            Err(error) => Err(Hinted::from(&error)),
        }
    }
}

/// The devices that the driver offers.
pub fn offered(devices: &Devices) -> DriverOffer {
    let gpus = devices.gpus.iter().map(|device| {
        let info = device.info();
        GpuSeen {
            index: Some(info.index),
            name: info.name.clone(),
            pci: info.pci.clone(),
            uuid: info.uuid.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(hex_digit).collect(),
            memory: info.total_memory,
            driver_api: info.driver_version,
        }
    });
    DriverOffer { gpus: gpus.collect(), missing: devices.missing.as_ref().map(Hinted::from) }
}

/// A session that uses one engine, unless the user's options say otherwise.
fn only(engine: EngineKind, session: &Session) -> Result<Session> {
    let engine = engine.name();
    let mut config = session.config().clone();
    if config.engine.is_none()
        && (config.strict.is_empty() || config.strict.iter().any(|name| name == engine))
    {
        config.engine = Some(engine.to_owned());
    }
    config.pin_settle = PROBE_SETTLE;
    Session::on_devices(config, session.devices().clone())
}

/// A session for host memory. A request for NVIDIA's library is about GPUs only.
fn for_host(session: &Session) -> Result<Session> {
    if session.config().engine.as_deref() != Some(EngineKind::Libcufile.name()) {
        return Ok(session.clone());
    }
    let config = Config { engine: None, ..session.config().clone() };
    Session::on_devices(config, session.devices().clone())
}

/// An error of one engine as a reason, without the engine's name, which the report prints beside it.
fn refusal(error: &Error) -> Hinted {
    let said = error.message();
    let of_engine = |engine: EngineKind| said.strip_prefix(&format!("engine {engine} cannot do this: "));
    let text = EngineKind::ALL.into_iter().find_map(of_engine).unwrap_or(said);
    Hinted { text: text.to_owned(), fix: error.hints().first().cloned() }
}

/// Reads the file's beginning in place, once it has rested, and compares.
fn read_in_place(
    session: &Session,
    device: &Arc<dyn Device>,
    file: &File,
    expected: &[u8],
) -> Result<InPlace> {
    // The error of an option that forbids it has its own hint.
    if let Err(error) = session.elect(device).and_then(|_| session.probe_mapped(file, device)) {
        return Ok(InPlace::Refused(refusal(&error)));
    }
    std::thread::sleep(PROBE_SETTLE * 2);
    let mut buffer = Buffer::new(device.clone(), expected.len())?;
    let receipt = session.read(file, 0, &mut buffer)?;
    let wrong = wrong(&buffer.to_vec()?, expected)?;
    session.trim_file(file);
    Ok(match wrong {
        Some(at) => InPlace::Failed(Hinted::from(&wrong_bytes(at))),
        None if receipt.moved[Way::Mapped] < expected.len() as u64 => {
            another_way(&receipt, EngineKind::Mapped, expected.len() as u64 - receipt.moved[Way::Mapped])
        }
        None => InPlace::Works { bytes: receipt.bytes(), elapsed_us: receipt.elapsed.as_micros() as u64 },
    })
}

/// Has the server write the file's beginning, and compares.
fn read_by_server(
    session: &Session,
    device: &Arc<dyn Device>,
    file: &File,
    expected: &[u8],
) -> Result<InPlace> {
    let mut buffer = Buffer::new(device.clone(), expected.len())?;
    let receipt = session.read(file, 0, &mut buffer)?;
    let elapsed_us = receipt.elapsed.as_micros() as u64;
    Ok(match wrong(&buffer.to_vec()?, expected)? {
        Some(at) => InPlace::Failed(Hinted::from(&wrong_bytes(at))),
        None if receipt.moved[Way::Server] < expected.len() as u64 => {
            another_way(&receipt, EngineKind::Placed, expected.len() as u64 - receipt.moved[Way::Server])
        }
        None => InPlace::Works { bytes: receipt.moved[Way::Server], elapsed_us },
    })
}

/// The error where an engine moved only part of the bytes.
fn another_way(receipt: &Receipt, engine: EngineKind, bytes: u64) -> InPlace {
    let text = format!("{bytes} of {} bytes went another way", receipt.bytes());
    let refusal = receipt.election.refused.iter().find(|refusal| refusal.engine == engine);
    let text = refusal.map_or(text.clone(), |refusal| format!("{text}: {}", refusal.reason));
    InPlace::Refused(Hinted { text, fix: refusal.and_then(|refusal| refusal.hint.clone()) })
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).unwrap_or('0')
}

fn hangs() -> Hinted {
    Hinted::new(format!("it did not finish in {} seconds", HANG_LIMIT.as_secs()))
        .fix("look for a mount whose server is gone, and for GPU errors: sudo dmesg | tail; nvidia-smi")
}

/// An exercise that did not get to its first transfer.
fn failed(target: ExerciseTarget, why: Hinted) -> ExerciseResult {
    let mut exercised = ExerciseResult::skipped(target, Hinted::new("an earlier step failed"));
    exercised.cold = ExerciseOutcome::Failed(why);
    exercised
}

fn wrong_bytes(at: u64) -> Error {
    Error::new(ErrorKind::Corrupt, format!("wrong bytes arrived, the first at offset {at}"))
}

fn describe(file: &File, exercised: &mut ExerciseResult) {
    exercised.alignment = file.alignment().map(|alignment| (alignment.memory, alignment.offset));
    exercised.direct_refused = file.direct_refused().map(str::to_owned);
    exercised.residency = file.residency(0, 4096).ok().map(|residency| residency.method.to_owned());
}

/// The first byte that differs.
#[allow(clippy::unnecessary_wraps)] // fits the checks of `checked`, which may fail before they compare
fn wrong(got: &[u8], expected: &[u8]) -> Result<Option<u64>> {
    if got == expected {
        return Ok(None);
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
    Ok(Some(at as u64))
}

fn plain_read(file: &fs::File, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).map_err(|error| Error::from_io(&error, "cannot read file"))?;
    Ok(bytes)
}

/// The outcome of a transfer whose bytes `check` compares.
fn checked(
    receipt: Result<Receipt>,
    engine: &mut Option<String>,
    check: impl FnOnce() -> Result<Option<u64>>,
) -> ExerciseOutcome {
    let receipt = match receipt {
        Ok(receipt) => receipt,
        Err(error) => return ExerciseOutcome::Failed(Hinted::from(&error)),
    };
    *engine = Some(receipt.engine().name().to_owned());
    match check() {
        Ok(None) => ExerciseOutcome::Works {
            bytes: receipt.bytes(),
            moved: receipt.moved,
            elapsed_us: receipt.elapsed.as_micros() as u64,
        },
        Ok(Some(at)) => ExerciseOutcome::Failed(Hinted::from(&wrong_bytes(at))),
        Err(error) => ExerciseOutcome::Failed(Hinted::from(&error)),
    }
}

/// Reads into a buffer of zeros and compares.
fn read(
    session: &Session,
    file: &File,
    buffer: &mut Buffer,
    expected: &[u8],
    engine: &mut Option<String>,
) -> ExerciseOutcome {
    let receipt =
        buffer.copy_from_slice(&vec![0; expected.len()]).and_then(|()| session.read(file, 0, buffer));
    checked(receipt, engine, || wrong(&buffer.to_vec()?, expected))
}

/// A file without a name, or else one that is removed at the end.
struct Probe {
    plain: fs::File,
    path: PathBuf,
    named: bool,
}

impl Probe {
    fn create(dir: &str) -> Result<Self> {
        // A file without a name cannot be left behind. Not every file system has O_TMPFILE, and not every container has
        // /proc.
        if Path::new("/proc/self/fd").is_dir()
            && let Ok(plain) = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_TMPFILE)
                .mode(0o600)
                .open(dir)
        {
            let path = PathBuf::from(format!("/proc/self/fd/{}", plain.as_raw_fd()));
            return Ok(Self { plain, path, named: false });
        }
        let path = Path::new(dir).join(format!(".forebay-check-{}", std::process::id()));
        let plain =
            fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(
                |error| Error::from_io(&error, "cannot create a probe file").with("path", path.display()),
            )?;
        Ok(Self { plain, path, named: true })
    }

    /// Writes by plain calls.
    fn write(&self, bytes: &[u8]) -> Result<()> {
        self.plain
            .write_all_at(bytes, 0)
            .map_err(|error| Error::from_io(&error, "cannot write the probe file"))
    }

    fn exercise(
        &self,
        session: &Session,
        target: &ExerciseTarget,
        place: &StoragePlace,
        buffer: &mut Buffer,
    ) -> Result<ExerciseResult> {
        let mut bytes = vec![0; PROBE_BYTES];
        fill_pattern(&mut bytes, PATTERN_KEY, 0);
        let file = File::options().read(true).write(true).open(&self.path)?;
        let mut exercised = ExerciseResult::skipped(target.clone(), Hinted::default());
        buffer.copy_from_slice(&bytes)?;
        let receipt = session.write(&file, 0, buffer);
        exercised.write =
            checked(receipt, &mut exercised.engine, || wrong(&plain_read(&self.plain, PROBE_BYTES)?, &bytes));
        if !matches!(exercised.write, ExerciseOutcome::Works { .. }) {
            // Reading is tried anyway, on bytes written by plain calls.
            self.write(&bytes)?;
        }
        describe(&file, &mut exercised);
        exercised.cold = if place.kind == DiskKind::Memory {
            ExerciseOutcome::Skipped(Hinted::new(format!("{} is memory, never cold", place.file_system)))
        } else {
            file.drop_cache()?;
            match file.residency(0, PROBE_BYTES as u64)? {
                cold if cold.cached == 0 => read(session, &file, buffer, &bytes, &mut exercised.engine),
                kept => {
                    let text = format!("{} of the probe stay in the page cache", size(kept.cached));
                    ExerciseOutcome::Skipped(Hinted::new(text))
                }
            }
        };
        let _ = plain_read(&self.plain, PROBE_BYTES)?;
        exercised.warm = read(session, &file, buffer, &bytes, &mut exercised.engine);
        Ok(exercised)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.named {
            // Ignore a failure: there is no remedy, and the file's name tells its origin.
            let _ = fs::remove_file(&self.path);
        }
    }
}
