//! The exercise on the machine that the program runs on, through a [`Session`].

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use forebay_engine::{Buffer, File, Receipt, Session};
use forebay_error::{Error, Result};
use forebay_gpu::{Device, Devices, fill_pattern};

use crate::engines::size;
use crate::exercise::{Exercise, Exercised, FileRead, GpuSeen, Hinted, Lanes, Offered, Outcome, Target};
use crate::storage::{DiskKind, Place};

/// Bytes of a probe.
const PROBE: usize = 8 << 20;
/// Free space that a probe leaves alone.
const SPARE: u64 = 64 << 20;
/// The pattern's key.
const KEY: u64 = 0x0066_6f72_6562_6179;

/// What has not finished by then hangs: a mount whose server is gone, a GPU that fell off the bus.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tries things through the process's session. Nothing that hangs can hang it.
#[derive(Clone, Debug)]
pub struct Live {
    session: Result<Session>,
    devices: Devices,
}

impl Live {
    /// Finds the devices and opens the session. Never fails: what is missing is told by the exercise.
    pub fn open() -> Self {
        let session = Session::open();
        let devices =
            session.as_ref().map_or_else(|_| Devices::discover(), |session| session.devices().clone());
        Self { session, devices }
    }

    /// Does `work` on a thread of its own; `None` if it does not finish, and then leaves it behind.
    fn patiently<T: Send + 'static>(&self, work: impl FnOnce(&Self) -> T + Send + 'static) -> Option<T> {
        let (tell, told) = channel();
        let live = self.clone();
        std::thread::spawn(move || {
            // Nobody listens any more if it took too long.
            let _ = tell.send(work(&live));
        });
        told.recv_timeout(PATIENCE).ok()
    }

    fn device(&self, target: Target) -> Result<Arc<dyn Device>> {
        match target {
            Target::Host => Ok(self.devices.host.clone()),
            Target::Gpu(index) => self.devices.get(index),
        }
    }

    fn try_place(&self, session: &Session, target: Target, place: &Place) -> Result<Exercised> {
        let mut buffer = Buffer::new(self.device(target)?, PROBE)?;
        if place.writable && place.free.is_none_or(|free| free >= SPARE) {
            return Probe::create(&place.path)?.exercise(session, target, place, &mut buffer);
        }
        let why_not = if place.writable {
            let free = size(place.free.unwrap_or(0));
            Hinted::new(format!("only {free} are free there")).fix("free some space: df -h")
        } else if place.is_file {
            Hinted::new("a file of yours is only read")
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
            return Ok(Exercised::skipped(target, why_not.fix(fix)));
        };
        let file = File::open(sample)?;
        let plain = fs::File::open(sample).map_err(|error| Error::from_io(&error, "cannot open file"))?;
        let len = file.len()?.min(PROBE as u64) as usize;
        let mut buffer = Buffer::new(self.device(target)?, len)?;
        let mut exercised = Exercised::skipped(target, why_not);
        if len == 0 {
            let empty = Outcome::Skipped(Hinted::new("the file is empty"));
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
            _ => Outcome::Skipped(Hinted::new("the file is in the page cache, where it stays")),
        };
        let expected = plain_read(&plain, len)?;
        describe(&file, &mut exercised);
        exercised.warm = read(session, &file, &mut buffer, &expected, &mut exercised.engine);
        Ok(exercised)
    }
}

impl Exercise for Live {
    fn offered(&self) -> Offered {
        let gpus = self.devices.gpus.iter().map(|device| {
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
        Offered { gpus: gpus.collect(), missing: self.devices.missing.as_ref().map(Hinted::from) }
    }

    fn lanes(&self, target: Target) -> std::result::Result<Lanes, Hinted> {
        let report = self.patiently(move |live| {
            let device = live.device(target)?;
            live.session.as_ref().map_err(Error::clone)?.report(&device)
        });
        let report = report.ok_or_else(hangs)?.map_err(|error| Hinted::from(&error))?;
        let notes =
            report.notes.iter().map(|note| Hinted { text: note.text.clone(), fix: note.hint.clone() });
        Ok(Lanes {
            target,
            lanes: report.lanes,
            slots: report.slots,
            slot_size: report.slot_size,
            backend: report.backend.to_owned(),
            notes: notes.collect(),
        })
    }

    fn exercise(&self, target: Target, place: &Place) -> Exercised {
        let on_thread = place.clone();
        let tried = self.patiently(move |live| {
            let session = live.session.as_ref().map_err(Error::clone)?;
            live.try_place(session, target, &on_thread)
        });
        match tried {
            Some(Ok(exercised)) => exercised,
            Some(Err(error)) => failed(target, Hinted::from(&error)),
            None => failed(target, hangs()),
        }
    }

    fn read_file(&self, target: Target, path: &str) -> std::result::Result<FileRead, Hinted> {
        let path = path.to_owned();
        let run = move |live: &Self| -> Result<FileRead> {
            let session = live.session.as_ref().map_err(Error::clone)?;
            let file = File::open(&path)?;
            let len = file.len()?.min(PROBE as u64) as usize;
            let mut buffer = Buffer::new(live.device(target)?, len)?;
            let receipt = session.read(&file, 0, &mut buffer)?;
            let plain = fs::File::open(&path).map_err(|error| Error::from_io(&error, "cannot open file"))?;
            if let Some(at) = wrong(&buffer.to_vec()?, &plain_read(&plain, len)?)? {
                return Err(wrong_bytes(at));
            }
            Ok(FileRead {
                target,
                bytes: receipt.bytes(),
                engine: receipt.engine().name().to_owned(),
                cached: receipt.moved.cached,
                direct: receipt.moved.direct,
                buffered: receipt.moved.buffered,
            })
        };
        match self.patiently(run).ok_or_else(hangs)? {
            Ok(read) if read.bytes == 0 => {
                Err(Hinted::new("the file is empty: nothing was read, nothing is proven")
                    .fix("name a file with bytes in it"))
            }
            Ok(read) => Ok(read),
            Err(error) => Err(Hinted::from(&error)),
        }
    }
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).unwrap_or('0')
}

fn hangs() -> Hinted {
    Hinted::new(format!("it did not finish in {} seconds", PATIENCE.as_secs()))
        .fix("look for a mount whose server is gone, and for GPU errors: sudo dmesg | tail; nvidia-smi")
}

/// An exercise that did not get to its first transfer.
fn failed(target: Target, why: Hinted) -> Exercised {
    let mut exercised = Exercised::skipped(target, Hinted::new("an earlier step failed"));
    exercised.cold = Outcome::Failed(why);
    exercised
}

fn wrong_bytes(at: u64) -> Error {
    Error::new(forebay_error::ErrorKind::Corrupt, format!("wrong bytes arrived, the first at offset {at}"))
}

fn describe(file: &File, exercised: &mut Exercised) {
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
) -> Outcome {
    let receipt = match receipt {
        Ok(receipt) => receipt,
        Err(error) => return Outcome::Failed(Hinted::from(&error)),
    };
    *engine = Some(receipt.engine().name().to_owned());
    match check() {
        Ok(None) => Outcome::Works {
            bytes: receipt.bytes(),
            cached: receipt.moved.cached,
            direct: receipt.moved.direct,
            buffered: receipt.moved.buffered,
            elapsed_us: receipt.elapsed.as_micros() as u64,
        },
        Ok(Some(at)) => Outcome::Failed(Hinted::from(&wrong_bytes(at))),
        Err(error) => Outcome::Failed(Hinted::from(&error)),
    }
}

/// Reads into a buffer of zeros and compares.
fn read(
    session: &Session,
    file: &File,
    buffer: &mut Buffer,
    expected: &[u8],
    engine: &mut Option<String>,
) -> Outcome {
    let receipt =
        buffer.copy_from_slice(&vec![0; expected.len()]).and_then(|()| session.read(file, 0, buffer));
    checked(receipt, engine, || wrong(&buffer.to_vec()?, expected))
}

/// A file that nobody else sees, or at least one that goes away.
struct Probe {
    plain: fs::File,
    path: PathBuf,
    named: bool,
}

impl Probe {
    fn create(dir: &str) -> Result<Self> {
        // A file without a name cannot be left behind. Not every file system has that, nor every container /proc.
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

    fn exercise(
        &self,
        session: &Session,
        target: Target,
        place: &Place,
        buffer: &mut Buffer,
    ) -> Result<Exercised> {
        let mut bytes = vec![0; PROBE];
        fill_pattern(&mut bytes, KEY, 0);
        let file = File::options().read(true).write(true).open(&self.path)?;
        let mut exercised = Exercised::skipped(target, Hinted::default());
        buffer.copy_from_slice(&bytes)?;
        let receipt = session.write(&file, 0, buffer);
        exercised.write =
            checked(receipt, &mut exercised.engine, || wrong(&plain_read(&self.plain, PROBE)?, &bytes));
        if !matches!(exercised.write, Outcome::Works { .. }) {
            // Reading is tried all the same, on bytes that were written the ordinary way.
            let written = self.plain.write_all_at(&bytes, 0);
            written.map_err(|error| Error::from_io(&error, "cannot write the probe file"))?;
        }
        describe(&file, &mut exercised);
        exercised.cold = if place.kind == DiskKind::Memory {
            Outcome::Skipped(Hinted::new(format!("{} is memory, never cold", place.file_system)))
        } else {
            file.drop_cache()?;
            match file.residency(0, PROBE as u64)? {
                cold if cold.cached == 0 => read(session, &file, buffer, &bytes, &mut exercised.engine),
                kept => {
                    let text = format!("{} of the probe stay in the page cache", size(kept.cached));
                    Outcome::Skipped(Hinted::new(text))
                }
            }
        };
        let _ = plain_read(&self.plain, PROBE)?;
        exercised.warm = read(session, &file, buffer, &bytes, &mut exercised.engine);
        Ok(exercised)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.named {
            // Nothing can be done about a failure here; the name says whose file it is.
            let _ = fs::remove_file(&self.path);
        }
    }
}
