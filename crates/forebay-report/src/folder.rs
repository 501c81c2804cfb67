//! The folder of a report: one process at a time, and files that are whole.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_config::files::read_named;
use forebay_error::{Error, ErrorKind, Result};

use crate::model::{Machine, Place, Report, VERSION};

/// The state of the report, from which all else is rendered.
pub(crate) const STATE_FILE: &str = "report.json";
/// The rendered report.
pub(crate) const PAGE_FILES: [&str; 3] = ["report.md", "report.html", "report.csv"];
/// Two reports compared: as data, and for people.
pub(crate) const COMPARE_FILES: [&str; 3] = ["compare.json", "compare.md", "compare.html"];
const LOCK_FILE: &str = ".report.lock";

/// A folder that this process holds.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// The folder's lock, which the kernel releases however the process ends.
    _lock: File,
}

impl Folder {
    /// Makes it if it is not there, and takes its lock.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)
            .map_err(|error| explain(&error, "cannot create the folder of the report", path))?;
        let name = path.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        // Opening a FIFO would wait for its other end.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let options = options.create(true).write(true).truncate(false).custom_flags(flags);
        let lock = options.open(&name);
        let lock = lock.map_err(|error| explain(&error, "cannot write to the folder of the report", path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => {
                Err(Error::new(ErrorKind::Busy, "another report is being made in this folder")
                    .with("path", path.display())
                    .hint("wait for it, or name another folder with -o"))
            }
            Err(fs::TryLockError::Error(error)) => {
                Err(explain(&error, "cannot lock the folder of the report", path))
            }
        }
    }

    /// The report in the folder. With `again`, a report that this release cannot read counts as absent. A file that is
    /// no report is never replaced.
    pub(crate) fn load(&self, again: bool) -> Result<Option<Report>> {
        let path = self.path.join(STATE_FILE);
        if !is_there(&path) {
            let others = PAGE_FILES.map(|name| self.path.join(name));
            return others.iter().find(|page| is_there(page)).map_or(Ok(None), |page| Err(foreign(page)));
        }
        match load(&path) {
            Err(_) if again && is_report(&path) => Ok(None),
            Err(_) if again => Err(foreign(&path)),
            Err(error) if is_report(&path) => Err(error.hint("--again begins a new one")),
            found => found.map(Some),
        }
    }

    /// An error if a file is there that a comparison would replace and none wrote.
    pub(crate) fn check_comparison(&self) -> Result<()> {
        let is_ours = || {
            let bytes = read_named(&self.path.join(COMPARE_FILES[0]), "").unwrap_or_default();
            let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
            value["version"].is_u64() && value["outcome"].is_string() && value["changes"].is_array()
        };
        let other = COMPARE_FILES.map(|name| self.path.join(name)).into_iter().find(|path| is_there(path));
        other.filter(|_| !is_ours()).map_or(Ok(()), |path| Err(foreign(&path)))
    }

    /// Writes a file in one step: a reader, or a run after a crash, sees the old one or the new one.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let (path, temporary) = (self.path.join(name), self.path.join(format!(".{name}.new")));
        let write = || -> std::io::Result<()> {
            // A temporary file that a killed process left; of a symbolic link, only the link is removed.
            if is_there(&temporary) {
                fs::remove_file(&temporary)?;
            }
            let mut file = File::create_new(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&temporary);
            explain(&error, "cannot write the report", &path)
        })
    }

    /// Writes the state.
    pub(crate) fn save(&self, report: &Report) -> Result<()> {
        let mut text = serde_json::to_string_pretty(report)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write the report: {error}")))?;
        text.push('\n');
        self.write(STATE_FILE, &text)
    }
}

/// Reads a report.
pub(crate) fn load(path: &Path) -> Result<Report> {
    let bytes = read_named(path, "cannot read report").map_err(|error| {
        if error.hints().is_empty() { error.hint("name a report.json, or its folder") } else { error }
    })?;
    let broken = |message: String| Error::new(ErrorKind::Corrupt, message).with("path", path.display());
    let hint = "name a report.json that forebay report wrote";
    let value: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| broken(format!("not a report: {error}")).hint(hint))?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version != u64::from(VERSION) => {
            return Err(broken(format!("a report of version {version}, where this release has {VERSION}"))
                .hint("make it again by this release: --again"));
        }
        _ => {}
    }
    serde_json::from_value(value).map_err(|error| broken(format!("not a report: {error}")).hint(hint))
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Whether it is a report of any release.
fn is_report(path: &Path) -> bool {
    let bytes = read_named(path, "cannot read report").unwrap_or_default();
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    value["version"].is_u64() && value["release"].is_string() && value["tables"].is_array()
}

fn foreign(path: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, "the folder has a file of this name that no report wrote")
        .with("path", path.display())
        .hint("name another folder with -o, or move that file away: it was left as it is")
}

/// Why this run does not continue the report in the folder. The user may have `accepted` another machine or build,
/// never another command.
pub(crate) fn check_same(old: &Report, new: &Report, accepted: bool, path: &Path) -> Result<()> {
    let other = "name another folder with -o, or throw that report away with --again";
    let (differs, hint) = if old.command != new.command {
        (differing(&old.command, &new.command), other.to_owned())
    } else if let Some(differs) = old.place().differs(&new.place()).filter(|_| !accepted) {
        (differs, format!("go on all the same with --accept-changes, or {other}"))
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidInput, format!("the folder has a report of another kind: {differs}"))
        .with("path", path.display())
        .hint(hint))
}

impl Place {
    /// The first difference of machine or program.
    pub(crate) fn differs(&self, new: &Self) -> Option<String> {
        let programs = [(&self.release, &new.release, "release"), (&self.build, &new.build, "build")];
        let other = programs.into_iter().find(|(old, new, _)| old != new);
        other.map(|(old, new, what)| format!("its {what} was {old}, not {new}")).or_else(|| {
            let (old, new) = (alike(&self.machine), alike(&new.machine));
            (old != new).then(|| differing(&old, &new))
        })
    }

    /// Whether it is the same start of the same machine, and the same program.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.machine.boot == other.machine.boot && self.differs(other).is_none()
    }
}

/// The properties that must be equal for a report to continue on another machine.
pub(crate) fn alike(machine: &Machine) -> Machine {
    let mut one = machine.clone();
    one.boot.clear();
    // Some virtual machines start with little memory and grow.
    one.memory = 0;
    one.devices.iter_mut().for_each(|device| device.pci.clear());
    one.topology = forebay_doctor::topology::Topology::default();
    for path in &mut one.paths {
        // Addresses and names are each machine's own; what counts of a mount is in its options.
        path.mount.clear();
        path.disk.clear();
        // The names of drives change from start to start.
        if path.source.starts_with("/dev/") && !path.drive.is_empty() {
            path.source.clear();
        }
    }
    one
}

/// The first field that differs.
fn differing<T: serde::Serialize>(old: &T, new: &T) -> String {
    let fields = |one: &T| serde_json::to_value(one).unwrap_or_default();
    let (old, new) = (fields(old), fields(new));
    let found = old
        .as_object()
        .and_then(|old| old.iter().find(|(name, value)| new.get(name.as_str()) != Some(value)));
    found.map_or("it differs".to_owned(), |(name, value)| {
        format!("{name}: {value} then, {} now", new.get(name).unwrap_or_default())
    })
}

fn explain(error: &std::io::Error, what: &str, path: &Path) -> Error {
    let error = Error::from_io(error, what).with("path", path.display());
    match error.kind() {
        ErrorKind::NoSpace => {
            error.hint("free some space (df -h): the same command goes on from what is there")
        }
        _ => error.hint("name a folder that you may write to with -o"),
    }
}
