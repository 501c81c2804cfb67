//! The files of a replay: those that were recorded, or made ones in their place.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_engine::{File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::fill_pattern;
use tempfile::TempDir;

use crate::Watch;
use crate::plan::{GRAIN, PlanFile, ReplayPlan};

/// The coarsest clock of a file system.
const TICK: Duration = Duration::from_millis(12);
/// Files that are at least this warm were found warm.
const MOSTLY: f64 = 0.5;

/// What the page cache holds before each engine's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// What it was found to hold: files that were mostly in it are read into it again, others are dropped.
    #[default]
    AsFound,
    /// All files.
    Warm,
    /// None.
    Cold,
}

/// A file of the recording and where its bytes are now.
#[derive(Debug)]
pub(crate) struct ReplayFile {
    pub(crate) path: PathBuf,
    /// Why it is a made one.
    pub(crate) made: Option<String>,
    pub(crate) is_warm: bool,
}

/// All files; made ones go when it is dropped.
#[derive(Debug)]
pub(crate) struct ReplayFiles {
    pub(crate) files: Vec<ReplayFile>,
    _folder: Option<TempDir>,
    changed: Option<Instant>,
}

/// What stands for a file: itself, or a made one and why.
fn obstacle(file: &PlanFile, in_place: bool) -> Option<String> {
    let is_written = !file.written.is_empty();
    if is_written && !in_place {
        return Some("it is written to".to_owned());
    }
    let Some(name) = &file.name else { return Some("the trace has no name of it".to_owned()) };
    let about = match fs::metadata(name) {
        Ok(about) => about,
        Err(error) => return Some(Error::from_io(&error, "it is not there").message().to_owned()),
    };
    let is_device = about.file_type().is_block_device();
    if !(about.is_file() || is_device && !is_written) {
        return Some("it is no regular file".to_owned());
    }
    let opened = fs::OpenOptions::new().read(true).write(is_written).open(name);
    if let Err(error) = opened {
        return Some(Error::from_io(&error, "it cannot be opened").message().to_owned());
    }
    let has_size = if file.sizes.is_empty() || is_device {
        about.len() >= file.read_end || is_device
    } else {
        file.sizes.contains(&about.len())
    };
    (!has_size).then(|| format!("it has {} bytes, not those of the recording", about.len()))
}

impl ReplayPlan {
    /// The files that a replay in place would overwrite.
    pub fn overwritten(&self) -> Vec<&Path> {
        let written = self.written().filter(|file| obstacle(file, true).is_none());
        written.filter_map(|file| file.name.as_deref()).collect()
    }
}

impl ReplayFiles {
    /// Finds the files, and makes those that are missing or must not be written to, in a temporary folder in `folder`.
    pub(crate) fn prepare(
        plan: &ReplayPlan,
        in_place: bool,
        folder: &Path,
        watch: &dyn Watch,
    ) -> Result<Self> {
        let made: Vec<_> = plan.files.iter().map(|file| obstacle(file, in_place)).collect();
        let to_make = || plan.files.iter().zip(&made).filter(|(_, why)| why.is_some()).map(|(file, _)| file);
        let folder = if made.iter().any(Option::is_some) {
            check_room(folder, to_make())?;
            Some(make_folder(folder)?)
        } else {
            None
        };
        let root = folder.as_ref().map_or(Path::new(""), TempDir::path);
        let place = |(index, (file, made)): (usize, (&PlanFile, Option<String>))| {
            let path = match (&made, &file.name) {
                (None, Some(name)) => name.clone(),
                _ => root.join(format!("{index}")),
            };
            ReplayFile { path, made, is_warm: true }
        };
        let files = plan.files.iter().zip(made).enumerate().map(place).collect();
        let mut all = Self { files, _folder: folder, changed: None };
        all.make(plan, watch)?;
        for (file, about) in all.files.iter_mut().zip(&plan.files) {
            file.is_warm = file.made.is_some() || cached(&file.path, about).is_none_or(|part| part >= MOSTLY);
        }
        Ok(all)
    }

    fn make(&mut self, plan: &ReplayPlan, watch: &dyn Watch) -> Result<()> {
        let begun = Instant::now();
        let mut part = vec![0; GRAIN as usize];
        let mut bytes = 0;
        for (file, about) in self.files.iter().zip(&plan.files).filter(|(file, _)| file.made.is_some()) {
            let failed = |error: &io::Error| {
                Error::from_io(error, "cannot make a file").with("path", file.path.display())
            };
            let made = fs::OpenOptions::new().write(true).create_new(true).open(&file.path);
            let made = made.map_err(|error| failed(&error))?;
            for at in about.read.iter().flat_map(|range| range.clone().step_by(GRAIN as usize)) {
                if let Some(stop) = stopped(watch) {
                    return Err(stop);
                }
                fill_pattern(&mut part, self_key(&file.path), at);
                made.write_all_at(&part, at).map_err(|error| failed(&error))?;
                bytes += GRAIN;
                watch.progress("making files", bytes, None, begun.elapsed());
            }
            made.set_len(about.size()).map_err(|error| failed(&error))?;
            made.sync_all().map_err(|error| failed(&error))?;
            self.changed = Some(Instant::now());
        }
        Ok(())
    }

    /// Brings files and page cache to the state that every engine begins with.
    pub(crate) fn reset(&mut self, plan: &ReplayPlan, cache: Cache, session: &Session) -> Result<()> {
        for (file, about) in self.files.iter().zip(&plan.files) {
            let failed = |error: &io::Error| {
                Error::from_io(error, "cannot prepare a file").with("path", file.path.display())
            };
            if file.made.is_some() && !about.written.is_empty() {
                let made =
                    fs::OpenOptions::new().write(true).open(&file.path).map_err(|error| failed(&error))?;
                made.set_len(about.size()).map_err(|error| failed(&error))?;
                self.changed = Some(Instant::now());
            }
            match (cache, file.is_warm) {
                (Cache::Warm, _) | (Cache::AsFound, true) => {
                    warm(&file.path, &about.read).map_err(|error| failed(&error))?;
                }
                (Cache::Cold, _) | (Cache::AsFound, false) => File::open(&file.path)?.drop_cache()?,
            }
        }
        // Pages of a file that was changed a moment ago are not read in place.
        if let Some(changed) = self.changed {
            let settled = changed + session.config().pin_settle + TICK;
            std::thread::sleep(settled.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// The folder of made files and its file system.
    pub(crate) fn made_in(&self) -> Option<(String, String)> {
        let made = self.files.iter().find(|file| file.made.is_some())?;
        let system = File::open(&made.path).map_or_else(|_| "unknown", |file| file.file_system());
        Some((made.path.parent()?.display().to_string(), system.to_owned()))
    }

    /// How much of what is read is in the page cache, in a word.
    pub(crate) fn state(&self, plan: &ReplayPlan) -> &'static str {
        let (mut cached, mut total) = (0, 0);
        for (file, about) in self.files.iter().zip(&plan.files) {
            let Ok(open) = File::open(&file.path) else { continue };
            for range in &about.read {
                if let Ok(found) = open.residency(range.start, range.end - range.start) {
                    cached += found.cached;
                    total += found.total;
                }
            }
        }
        match cached as f64 / total.max(1) as f64 {
            _ if total == 0 => "–",
            part if part >= 0.99 => "warm",
            part if part <= 0.01 => "cold",
            _ => "mixed",
        }
    }
}

/// The pattern of a made file.
fn self_key(path: &Path) -> u64 {
    path.as_os_str().as_bytes().iter().fold(7, |key, byte| key * 31 % (1 << 40) + u64::from(*byte))
}

fn cached(path: &Path, about: &PlanFile) -> Option<f64> {
    let file = File::open(path).ok()?;
    let (mut cached, mut total) = (0, 0);
    for range in &about.read {
        let found = file.residency(range.start, range.end - range.start).ok()?;
        cached += found.cached;
        total += found.total;
    }
    (total > 0).then(|| cached as f64 / total as f64)
}

fn warm(path: &Path, ranges: &[Range<u64>]) -> io::Result<()> {
    let mut file = fs::File::open(path)?;
    let mut part = vec![0; GRAIN as usize];
    for range in ranges {
        file.seek(SeekFrom::Start(range.start))?;
        for _ in range.clone().step_by(GRAIN as usize) {
            if file.read(&mut part)? == 0 {
                break;
            }
        }
    }
    Ok(())
}

fn make_folder(folder: &Path) -> Result<TempDir> {
    tempfile::Builder::new().prefix("forebay-replay-").tempdir_in(folder).map_err(|error| {
        Error::from_io(&error, "cannot make a folder for made files")
            .with("path", folder.display())
            .hint("name another: --dir DIRECTORY")
    })
}

/// Fails if the made files would fill the disk.
fn check_room<'a>(folder: &Path, files: impl Iterator<Item = &'a PlanFile>) -> Result<()> {
    let of = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
    let needed = files.map(|file| of(&file.read) + of(&file.written)).sum::<u64>();
    let free = free_space(folder)?;
    if needed <= free {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NoSpace, "there is no room for the files that have to be made")
        .with("path", folder.display())
        .with("needed", needed)
        .with("free", free)
        .hint("name a folder on a larger disk: --dir DIRECTORY"))
}

fn free_space(folder: &Path) -> Result<u64> {
    let failed = |error: &io::Error| {
        Error::from_io(error, "cannot use the folder for made files")
            .with("path", folder.display())
            .hint("name another: --dir DIRECTORY")
    };
    let name = std::ffi::CString::new(folder.as_os_str().as_bytes())
        .map_err(|_| failed(&io::Error::from(io::ErrorKind::InvalidInput)))?;
    // SAFETY: all-zero bytes are a valid statvfs, the name ends with a zero, and both outlive the call.
    let (found, about) = unsafe {
        let mut about: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(name.as_ptr(), &mut about), about)
    };
    if found != 0 {
        return Err(failed(&io::Error::last_os_error()));
    }
    Ok(about.f_bavail * about.f_frsize)
}

/// The error of a replay that was stopped.
pub(crate) fn stopped(watch: &dyn Watch) -> Option<Error> {
    watch.stopped().then(|| Error::new(ErrorKind::Cancelled, "the replay was stopped"))
}
