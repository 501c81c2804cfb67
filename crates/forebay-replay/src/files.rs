//! The files of a replay: those that were recorded, or made ones in their place.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{File, OpenOptions, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::fill_pattern;

use crate::Watch;
use crate::made::{MadeFolder, identity};
use crate::plan::{PlanFile, RANGE_GRAIN, ReplayPlan, merge};

/// The coarsest step of a file system's clock.
const CLOCK_TICK: Duration = Duration::from_millis(12);
/// A file of which at least this part is in the page cache counts as found warm.
const WARM_FRACTION: f64 = 0.5;

/// The one that holds it, and those of a turn: buffered and O_DIRECT.
const DESCRIPTORS_PER_FILE: u64 = 3;
/// Rings, devices, libraries.
const OTHER_DESCRIPTORS: u64 = 128;

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
    /// Open for the whole replay: what has its name later may be another file.
    pub(crate) held: Arc<fs::File>,
}

/// All files; made ones go when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct ReplayFiles {
    pub(crate) files: Vec<ReplayFile>,
    folder: Option<MadeFolder>,
    changed: Option<Instant>,
}

/// A file that a replay in place overwrites: its name, and what else it is known by.
#[derive(Clone, Debug)]
pub struct Overwritten {
    path: PathBuf,
    real: Option<PathBuf>,
    names: u64,
    identity: (u64, u64),
}

impl fmt::Display for Overwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(real) = &self.real {
            write!(f, ", which is {}", real.display())?;
        }
        if self.names > 1 { write!(f, ", a file with {} names (hard links)", self.names) } else { Ok(()) }
    }
}

impl ReplayPlan {
    /// The files that a replay in place overwrites.
    pub fn overwritten(&self) -> Vec<Overwritten> {
        let found = |file: &PlanFile| {
            let path = file.name.clone()?;
            let about = original(file).ok()?.metadata().ok()?;
            let real = fs::canonicalize(&path).ok().filter(|real| *real != path);
            Some(Overwritten { path, real, names: about.nlink(), identity: identity(&about) })
        };
        self.written().filter_map(found).collect()
    }

    /// The files that were written to and cannot be overwritten, and why.
    pub fn not_overwritten(&self) -> Vec<(PathBuf, String)> {
        let found = |file: &PlanFile| Some((file.name.clone().unwrap_or_default(), original(file).err()?));
        self.written().filter_map(found).collect()
    }

    /// Whether a path leads to a file of the recording.
    pub fn has(&self, path: &Path) -> bool {
        let of = |path: &Path| fs::metadata(path).ok().map(|about| identity(&about));
        let found = of(path);
        found.is_some()
            && self.files.iter().filter_map(|file| file.name.as_deref()).any(|name| of(name) == found)
    }
}

/// The recorded file, open as the replay needs it, or why it cannot stand for itself.
fn original(file: &PlanFile) -> Result<fs::File, String> {
    let is_written = !file.written.is_empty();
    let Some(name) = &file.name else { return Err("the trace has no name of it".to_owned()) };
    let failed =
        |what: &'static str| move |error: io::Error| Error::from_io(&error, what).message().to_owned();
    let is_device = |about: &fs::Metadata| about.file_type().is_block_device();
    let fits = |about: &fs::Metadata| about.is_file() || is_device(about) && !is_written;
    // Looked at before it is opened, which does something to some devices, and after, since it may be another by then.
    let mut about = fs::metadata(name).map_err(failed("it is not there"))?;
    let mut held = None;
    if fits(&about) {
        let opened = fs::OpenOptions::new().read(true).write(is_written).open(name);
        let opened = opened.map_err(failed("it cannot be opened"))?;
        about = opened.metadata().map_err(failed("it cannot be opened"))?;
        held = fits(&about).then_some(opened);
    }
    let held = held.ok_or("it is no regular file")?;
    let has_size = if file.sizes.is_empty() || is_device(&about) {
        about.len() >= file.read_end || is_device(&about)
    } else {
        file.sizes.contains(&about.len())
    };
    if has_size { Ok(held) } else { Err(format!("it has {} bytes, not those of the recording", about.len())) }
}

/// As [`original`]; a file that is written to only if it was named.
fn standing(file: &PlanFile, in_place: &HashMap<&Path, &Overwritten>) -> Result<(PathBuf, fs::File), String> {
    let path = file.name.clone().unwrap_or_default();
    if file.written.is_empty() {
        return Ok((path, original(file)?));
    }
    let held = original(file).map_err(|why| format!("it is written to, and {why}"))?;
    let named = in_place.get(path.as_path()).ok_or("it is written to")?;
    let is_named = held.metadata().is_ok_and(|about| identity(&about) == named.identity);
    if is_named { Ok((path, held)) } else { Err("another file has its name now".to_owned()) }
}

impl ReplayFile {
    /// Opens it once more.
    pub(crate) fn open(&self, options: OpenOptions) -> Result<File> {
        let file = options.open(&self.path)?;
        if file.is_behind(self.held.as_raw_fd()) {
            return Ok(file);
        }
        Err(Error::new(ErrorKind::Busy, "another file has this name now").with("path", self.path.display()))
    }

    /// The part of the read ranges in the page cache; `None`: nothing is read, or it is unknown.
    fn cached(&self, about: &PlanFile) -> Option<(u64, u64)> {
        let file = self.open(File::options()).ok()?;
        let (mut cached, mut total) = (0, 0);
        for range in &about.read {
            let found = file.residency(range.start, range.end - range.start).ok()?;
            cached += found.cached;
            total += found.total;
        }
        (total > 0).then_some((cached, total))
    }

    fn warm(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let mut part = vec![0; RANGE_GRAIN as usize];
        for range in ranges {
            for at in range.clone().step_by(RANGE_GRAIN as usize) {
                if self.held.read_at(&mut part, at)? == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl ReplayFiles {
    /// Finds the files, and makes those that are missing or must not be written to, in a temporary folder in `folder`.
    pub(crate) fn prepare(
        plan: &ReplayPlan,
        in_place: &[Overwritten],
        folder: &Path,
        watch: &dyn Watch,
    ) -> Result<Self> {
        check_descriptors(plan.files.len())?;
        let in_place = in_place.iter().map(|named| (named.path.as_path(), named)).collect();
        let found: Vec<_> = plan.files.iter().map(|file| standing(file, &in_place)).collect();
        let to_make =
            || plan.files.iter().zip(&found).filter(|(_, found)| found.is_err()).map(|(file, _)| file);
        let mut all = Self::default();
        if to_make().next().is_some() {
            check_room(folder, to_make())?;
            all.folder = Some(MadeFolder::new(folder)?);
        }
        let begun = Instant::now();
        let mut bytes = 0;
        let mut filled = |more| {
            bytes += more;
            watch.progress("making files", bytes, None, begun.elapsed());
            stopped(watch).map_or(Ok(()), Err)
        };
        for (about, found) in plan.files.iter().zip(found) {
            let file = match found {
                Ok((path, held)) => {
                    let mut file = ReplayFile { path, made: None, is_warm: true, held: Arc::new(held) };
                    file.is_warm = file
                        .cached(about)
                        .is_none_or(|(cached, total)| cached as f64 / total as f64 >= WARM_FRACTION);
                    file
                }
                Err(why) => all.make(about, why, &mut filled)?,
            };
            all.files.push(file);
        }
        Ok(all)
    }

    /// Makes a file: ranges read or written have bytes on the disk before the first turn, as before later ones.
    fn make(
        &mut self,
        about: &PlanFile,
        why: String,
        filled: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<ReplayFile> {
        let name = self.files.len().to_string();
        let Some(folder) = &mut self.folder else {
            return Err(Error::new(ErrorKind::Internal, "no folder for made files"));
        };
        let path = folder.path.join(&name);
        let failed =
            |error: io::Error| Error::from_io(&error, "cannot make a file").with("path", path.display());
        let held = folder.create(&name).map_err(failed)?;
        let mut ranges = [&about.read[..], &about.written].concat();
        merge(&mut ranges);
        let mut part = vec![0; RANGE_GRAIN as usize];
        let parts = ranges.into_iter().flat_map(|range| range.step_by(RANGE_GRAIN as usize));
        for at in parts.take_while(|at| *at < about.size()) {
            fill_pattern(&mut part, pattern_key(&path), at);
            held.write_all_at(&part, at).map_err(failed)?;
            filled(RANGE_GRAIN)?;
        }
        held.set_len(about.size()).map_err(failed)?;
        held.sync_all().map_err(failed)?;
        // As a program has a file that it only reads.
        let held = if about.written.is_empty() { folder.read(&name).map_err(failed)? } else { held };
        self.changed = Some(Instant::now());
        Ok(ReplayFile { path: path.clone(), made: Some(why), is_warm: true, held: Arc::new(held) })
    }

    /// Brings files and page cache to the state that every engine begins with.
    pub(crate) fn reset(&mut self, plan: &ReplayPlan, cache: Cache, session: &Session) -> Result<()> {
        for (file, about) in self.files.iter().zip(&plan.files) {
            let failed = |error: io::Error| {
                Error::from_io(&error, "cannot prepare a file").with("path", file.path.display())
            };
            let is_written = !about.written.is_empty();
            if is_written {
                if file.made.is_some() {
                    file.held.set_len(about.size()).map_err(failed)?;
                }
                self.changed = Some(Instant::now());
            }
            let is_warm = cache == Cache::Warm || cache == Cache::AsFound && file.is_warm;
            // A turn leaves pages of what it wrote, and dirty ones, that the next would write back in its own time.
            if is_written || !is_warm {
                file.open(File::options())?.drop_cache()?;
            }
            if is_warm {
                file.warm(&about.read).map_err(failed)?;
            }
        }
        // Pages of a file that was changed a moment ago are not read in place.
        if let Some(changed) = self.changed {
            let settled = changed + session.config().pin_settle + CLOCK_TICK;
            std::thread::sleep(settled.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// The folder of made files and its file system.
    pub(crate) fn made_in(&self) -> Option<(String, String)> {
        let made = self.files.iter().find(|file| file.made.is_some())?;
        let system = made.open(File::options()).map_or_else(|_| "unknown", |file| file.file_system());
        Some((made.path.parent()?.display().to_string(), system.to_owned()))
    }

    /// The part of the read ranges in the page cache, in a word.
    pub(crate) fn state(&self, plan: &ReplayPlan) -> &'static str {
        let (mut cached, mut total) = (0, 0);
        for (file, about) in self.files.iter().zip(&plan.files) {
            let found = file.cached(about).unwrap_or_default();
            cached += found.0;
            total += found.1;
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
fn pattern_key(path: &Path) -> u64 {
    path.as_os_str().as_bytes().iter().fold(7, |key, byte| key * 31 % (1 << 40) + u64::from(*byte))
}

/// Fails if there are more files than may be open: all are held, and open in two ways for a turn.
fn check_descriptors(files: usize) -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one rlimit, which outlives it.
    let is_told = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    let needed = files as u64 * DESCRIPTORS_PER_FILE + OTHER_DESCRIPTORS;
    if !is_told || needed <= limit.rlim_cur {
        return Ok(());
    }
    Err(Error::new(ErrorKind::TooManyFiles, "the trace has more files than may be open at once")
        .with("files", files)
        .with("limit", limit.rlim_cur)
        .hint(format!("raise the limit of open files: ulimit -n {needed}")))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Replay, Silent};

    const MIB: u64 = 1 << 20;

    fn plan(name: &Path, size: u64, written: Range<u64>) -> ReplayPlan {
        let (name, sizes, written) = (Some(name.to_owned()), vec![size], vec![written]);
        ReplayPlan {
            files: vec![PlanFile { name, sizes, written, ..PlanFile::default() }],
            ..ReplayPlan::default()
        }
    }

    /// Length, bytes on the disk, and pages in the cache.
    fn state(file: &ReplayFile) -> (u64, u64, u64) {
        let about = fs::metadata(&file.path).unwrap();
        let cached = File::open(&file.path).unwrap().residency(0, 6 * MIB).unwrap().cached;
        (about.len(), about.blocks() * 512, cached)
    }

    #[test]
    fn every_turn_begins_with_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let session = crate::session(&Replay::default(), None).unwrap();
        let plan = plan(&folder.path().join("gone"), 4 * MIB, MIB..6 * MIB);
        let mut files = ReplayFiles::prepare(&plan, &[], folder.path(), &Silent).unwrap();
        for turn in 0..3 {
            files.reset(&plan, Cache::AsFound, &session).unwrap();
            let (len, disk, cached) = state(&files.files[0]);
            assert_eq!((len, disk / MIB), (4 * MIB, 3), "turn {turn}");
            let system = File::open(&files.files[0].path).unwrap().file_system();
            if system == "tmpfs" {
                println!("the page cache is not looked at: it is where tmpfs keeps its files");
            } else {
                assert_eq!(cached, 0, "turn {turn}");
            }
            // What a turn writes, over what is there and behind it.
            files.files[0].held.write_all_at(&vec![1; 5 << 20], MIB).unwrap();
            let (len, _, cached) = state(&files.files[0]);
            assert!(len == 6 * MIB && cached > 0);
        }
    }

    #[test]
    fn another_file_of_the_name_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let session = crate::session(&Replay::default(), None).unwrap();
        let plan = plan(&folder.path().join("gone"), MIB, 0..MIB);
        let mut files = ReplayFiles::prepare(&plan, &[], folder.path(), &Silent).unwrap();
        let (path, other) = (files.files[0].path.clone(), folder.path().join("other"));
        fs::write(&other, "kept").unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let error = files.reset(&plan, Cache::AsFound, &session).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(files.files[0].open(File::options().write(true)).is_err());
        drop(files);
        assert_eq!(fs::read(&other).unwrap(), b"kept");
    }

    #[test]
    fn only_the_file_that_was_named_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("out"), folder.path().join("old"));
        fs::write(&path, vec![0; MIB as usize]).unwrap();
        let plan = plan(&path, MIB, 0..MIB);
        let named = plan.overwritten();
        let made = |in_place: &[Overwritten]| {
            let files = ReplayFiles::prepare(&plan, in_place, folder.path(), &Silent).unwrap();
            files.files[0].made.clone()
        };
        assert_eq!(made(&named), None);
        assert_eq!(made(&[]).as_deref(), Some("it is written to"));
        fs::rename(&path, old).unwrap();
        fs::write(&path, vec![0; MIB as usize]).unwrap();
        assert_eq!(made(&named).as_deref(), Some("another file has its name now"));
    }

    /// The question lists all names of a file, so that the user knows what they agree to overwrite.
    #[test]
    fn links_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (real, link) = (folder.join("real"), folder.join("link"));
        fs::write(&real, vec![0; MIB as usize]).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let said = |name: &Path| plan(name, MIB, 0..MIB).overwritten()[0].to_string();
        assert_eq!(said(&real), real.display().to_string());
        assert_eq!(said(&link), format!("{}, which is {}", link.display(), real.display()));
        fs::hard_link(&real, folder.join("second")).unwrap();
        assert_eq!(said(&real), format!("{}, a file with 2 names (hard links)", real.display()));
    }
}
