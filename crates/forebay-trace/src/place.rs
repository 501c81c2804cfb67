//! Which file a trace goes to, and never over one that is still needed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_config::files::open_plain;
use forebay_error::{Error, ErrorKind, Result};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::header::{HEADER, TraceHeader, is_trace};

/// The fate of a name.
enum Look {
    /// The trace has it now.
    Ours,
    /// The name belongs to another process.
    Taken,
    /// The name changed while it was looked at: look again.
    Again,
}

/// A file for the trace of this process, with its header and locked, and its name.
///
/// `%p` in the path is the process number. A trace of an earlier run is replaced; where another process of the same
/// run (or one that lives) has the name, `.PID` is added. A file that is no trace is left alone.
pub(crate) fn claim(path: &Path, header: &TraceHeader) -> Result<(File, PathBuf)> {
    let path = expand(path, header.pid);
    let draft = draft_path(&path, header.pid);
    let file = draft_file(&draft, header).map_err(|error| {
        Error::from_io(&error, "cannot make the trace")
            .with("path", path.display())
            .hint("name a file in a folder that exists and that you may write to")
    })?;
    let placed = place(&draft, &path, header);
    if placed.is_err() {
        // The reason is already reported.
        let _ = fs::remove_file(&draft);
    }
    placed.map(|path| (file, path))
}

fn place(draft: &Path, path: &Path, header: &TraceHeader) -> Result<PathBuf> {
    for number in 0..1000 {
        let name = numbered(path, header.pid, number);
        for _ in 0..100 {
            match try_name(draft, &name, header.run)? {
                Look::Ours => return Ok(name),
                Look::Taken => break,
                Look::Again => {}
            }
        }
    }
    Err(Error::new(ErrorKind::AlreadyExists, "too many traces of this name")
        .with("path", path.display())
        .hint("remove the old ones"))
}

/// `path`, then `path.PID`, `path.PID.2`, `path.PID.3`, …
fn numbered(path: &Path, pid: u32, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    if number > 0 {
        name.push(format!(".{pid}"));
    }
    if number > 1 {
        name.push(format!(".{number}"));
    }
    name.into()
}

/// The path with `%p` replaced by the process number.
fn expand(path: &Path, pid: u32) -> PathBuf {
    let (bytes, pid) = (path.as_os_str().as_bytes(), pid.to_string());
    let mut expanded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(2).position(|pair| pair == b"%p") {
        expanded.extend_from_slice(&rest[..at]);
        expanded.extend_from_slice(pid.as_bytes());
        rest = &rest[at + 2..];
    }
    expanded.extend_from_slice(rest);
    OsString::from_vec(expanded).into()
}

/// Where the trace is made before it gets its name.
fn draft_path(path: &Path, pid: u32) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{pid}.new"));
    path.with_file_name(name)
}

fn draft_file(draft: &Path, header: &TraceHeader) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = match options.open(draft) {
        // Left by a process that died: the number is ours now.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(draft)?;
            options.open(draft)?
        }
        other => other?,
    };
    if let Err(error) = file.write_all_at(&header.encode(), 0) {
        let _ = fs::remove_file(draft);
        return Err(error);
    }
    lock(&file);
    Ok(file)
}

/// Gives the draft this name if nobody needs the file that has it.
fn try_name(draft: &Path, name: &Path, run: u64) -> Result<Look> {
    let failed = |error: io::Error| {
        Error::from_io(&error, "cannot make the trace")
            .with("path", name.display())
            .hint("name a file in a folder that exists and that you may write to")
    };
    match rename_to_new(draft, name) {
        Ok(()) => return Ok(Look::Ours),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let refused = |what: &str| {
        Err(Error::new(ErrorKind::AlreadyExists, what)
            .with("path", name.display())
            .hint("name another file, or remove this one"))
    };
    let found = match fs::metadata(name) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return dangling(name),
        Err(error) => return Err(failed(error)),
    };
    if !found.is_file() {
        return refused("the trace's name is no plain file");
    }
    let mut old = match open_plain(name) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Look::Again),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    old.by_ref().take(HEADER as u64).read_to_end(&mut bytes).map_err(failed)?;
    if !bytes.is_empty() && !is_trace(&bytes) {
        return refused("the trace's name is a file that is no trace");
    }
    let same_run = run != 0 && TraceHeader::decode(&bytes).is_ok_and(|header| header.run == run);
    if same_run || !lock(&old) {
        return Ok(Look::Taken);
    }
    // With the lock on the file that has the name, only we may replace it.
    let (held, now) = (old.metadata(), fs::metadata(name));
    match (held, now) {
        (Ok(held), Ok(now)) if (held.dev(), held.ino()) == (now.dev(), now.ino()) => {
            fs::rename(draft, name).map_err(failed)?;
            Ok(Look::Ours)
        }
        _ => Ok(Look::Again),
    }
}

/// What to do with a name that is there and leads nowhere.
fn dangling(name: &Path) -> Result<Look> {
    if fs::symlink_metadata(name).is_err() {
        return Ok(Look::Again);
    }
    Err(Error::new(ErrorKind::NotFound, "the trace's name is a link that leads nowhere")
        .with("path", name.display())
        .hint("remove the link"))
}

/// Takes the file's lock, which goes with the process; says whether another process has it.
fn lock(file: &File) -> bool {
    // File systems without locks cannot tell of others.
    flock(file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
}

/// Renames unless the new name exists.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    let Err(errno) = renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) else { return Ok(()) };
    let error = io::Error::from(errno);
    match error.raw_os_error() {
        // Some network file systems cannot promise it: then look first.
        Some(libc::EINVAL | libc::ENOSYS | libc::EPERM) if fs::symlink_metadata(to).is_err() => {
            fs::rename(from, to)
        }
        Some(libc::EINVAL | libc::ENOSYS | libc::EPERM) => Err(io::ErrorKind::AlreadyExists.into()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(path: &Path, header: &TraceHeader) -> (File, String) {
        let (file, path) = claim(path, header).unwrap();
        (file, path.file_name().unwrap().to_string_lossy().into_owned())
    }

    fn header(pid: u32, run: u64) -> TraceHeader {
        TraceHeader { pid, ..TraceHeader::here(run) }
    }

    #[test]
    fn processes_of_one_run_get_names_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        for (pid, name) in [(10, "t"), (11, "t.11"), (12, "t.12"), (11, "t.11.2")] {
            // Dropped at once: a process that has ended keeps its name too.
            assert_eq!(claimed(&path, &header(pid, 7)).1, name);
        }
        assert_eq!(claimed(&path, &header(13, 8)).1, "t", "a new run replaces what an old one left");
        assert_eq!(claimed(&folder.path().join("%p-x-%p"), &header(5, 1)).1, "5-x-5");
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    }

    #[test]
    fn a_trace_that_is_being_written_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let (first, _) = claimed(&path, &header(1, 0));
        assert_eq!(claimed(&path, &header(2, 0)).1, "t.2");
        drop(first);
        assert_eq!(claimed(&path, &header(3, 0)).1, "t");
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, "weights").unwrap();
        let error = claim(&path, &header(1, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"weights");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft stays");

        fs::write(&path, "").unwrap();
        assert_eq!(claimed(&path, &header(1, 1)).1, "model", "an empty file holds nothing");
        for bad in [PathBuf::from("/dev/null"), folder.path().join("no/t"), folder.path().to_owned()] {
            let error = claim(&bad, &header(1, 1)).unwrap_err();
            assert!(!error.hints().is_empty(), "{error:?}");
        }
    }
}
