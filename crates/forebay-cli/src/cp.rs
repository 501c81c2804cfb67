//! `forebay cp`: a file through device memory.

mod layout;
mod receipt_sum;
mod verify;
mod work;

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use clap::Args;
use forebay_engine::{File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::DeviceName;
use forebay_models::Pending;
use forebay_objects::ObjectUrl;
use forebay_source::{hint_for_missing, opener_of, scheme_of};

use crate::console::{Console, Failure, ProgressLine};
use crate::interrupt::Guard;
use crate::silence;
use work::Work;

/// Copies a file or an object through device memory. The copy appears under its name only when it is whole and on the
/// disk. Holes stay holes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Copy {
    /// File to copy: a path, nfs://SERVER/EXPORT/PATH or s3://BUCKET/KEY
    #[arg(value_name = "SRC", value_parser = crate::names::source())]
    pub(crate) source: PathBuf,
    /// Name of the copy, or a directory for it: a path, nfs://SERVER/EXPORT/PATH or s3://BUCKET/KEY
    #[arg(value_name = "DST", value_parser = crate::names::new_file())]
    pub(crate) destination: PathBuf,
    /// GPU index (0 is host memory on a machine without GPU), or p2pmem:PCI-ADDRESS [default: 0; host memory where one
    /// is an object]
    #[arg(short = 'd', long, value_name = "DEVICE", value_parser = crate::load::parse::<DeviceName>)]
    pub(crate) device: Option<DeviceName>,
    /// Read both files again and compare them before the copy gets its name; an object, after. Both are also compared
    /// with the checksum that their store keeps
    #[arg(long)]
    pub(crate) verify: bool,
}

impl Copy {
    /// The name that the copy has in a folder.
    pub(crate) fn file_name(&self) -> Option<OsString> {
        match opener_of(&self.source) {
            Some(opener) => opener.file_name(&self.source),
            None => self.source.file_name().map(OsString::from),
        }
    }
}

/// Bytes that each site gave, where sites have names.
pub(crate) type BytesBySite = Vec<(String, u64)>;

/// Copies a file, and says how.
pub(crate) fn run(args: &Copy, console: &Console<'_>) -> Result<BytesBySite, Failure> {
    if let Some(opener) = opener_of(&args.source) {
        opener.check(&args.source).map_err(Failure::usage)?;
        return copy(args, console, None);
    }
    let found = fs::metadata(&args.source).map_err(|error| {
        let error = Error::from_io(&error, "cannot open file").with("path", args.source.display());
        match hint_for_missing(&args.source).filter(|_| error.kind() == ErrorKind::NotFound) {
            Some(hint) => error.hint(hint),
            None => explain(error),
        }
    })?;
    if found.is_dir() {
        let error = Error::new(ErrorKind::IsDirectory, "the source is a directory")
            .with("path", args.source.display())
            .hint("cp copies one file; name a file in it");
        return Err(match scheme_of(&args.destination) {
            Some("s3") => error.hint("all of it, through host memory: forebay s3 cp SRC DST --recursive"),
            _ => error,
        }
        .into());
    }
    if !found.is_file() {
        return Err(Error::new(ErrorKind::Unsupported, "the source is no regular file")
            .with("path", args.source.display())
            .hint("cp copies regular files; use dd for devices and pipes")
            .into());
    }
    copy(args, console, Some(&found))
}

/// Copies a file that was checked, or one of a server. An interrupted copy ends with the error of the call that it
/// waited in.
fn copy(args: &Copy, console: &Console<'_>, found: Option<&fs::Metadata>) -> Result<BytesBySite, Failure> {
    let guard = Guard::new();
    let is_whole = Cell::new(false);
    let copied = silence::told(console, || copy_guarded(args, console, found, &is_whole));
    let interrupted = Guard::caught().filter(|_| copied.is_err());
    drop(guard);
    match interrupted {
        Some(signal) if is_whole.get() => {
            Err(Failure::interrupted(signal, "the copy may have its name already"))
        }
        Some(signal) => Err(Failure::interrupted(signal, "nothing was copied")),
        None => copied,
    }
}

/// `is_whole` says whether the copy is to get its name now.
fn copy_guarded(
    args: &Copy,
    console: &Console<'_>,
    found: Option<&fs::Metadata>,
    is_whole: &Cell<bool>,
) -> Result<BytesBySite, Failure> {
    let destination = destination(args)?;
    refuse_same_object(&args.source, &destination)?;
    check_destination(&destination, found)?;
    let is_of_host =
        args.device.is_none() && (ObjectUrl::is_one(&args.source) || ObjectUrl::is_one(&args.destination));
    let session = if is_of_host { Session::of_host()? } else { Session::open()? };
    let device = session.device_named(&args.device.clone().unwrap_or_default())?;
    let source = File::open(&args.source).map_err(explain)?;
    let late_note = source.late_note();
    let mode = found.map_or(0o666, |found| found.permissions().mode());
    let pending = Pending::create_like(&destination, mode).map_err(explain)?;
    let started = Instant::now();
    let mut work = Work::new(&session, &device, &source, pending.file());
    // Files that the kernel generates (/proc) have no length, or a wrong one.
    let result = match found {
        Some(found) if found.len() == 0 || matches!(source.file_system(), "proc" | "sysfs") => {
            work.copy_to_end(&args.source)
        }
        Some(found) => work.copy(found.len(), found.blocks() * 512),
        None => source.len_lately().map_err(Failure::from).and_then(|len| work.copy(len, len)),
    };
    work.live.clear();
    result.map_err(|Failure { error, code }| {
        let is_of_source = error.kind() == ErrorKind::ShortRead;
        let error = if is_of_source { error.with("file", args.source.display()) } else { error };
        Failure { error: explain(error), code }
    })?;
    pending.sync().map_err(explain)?;
    let seconds = started.elapsed().as_secs_f64();
    // An object is read only when it is whole.
    let (verifies, verifies_whole) = match pending.file().access() {
        (true, _) => (args.verify, false),
        _ => (false, args.verify),
    };
    let mut checksums = Vec::new();
    if verifies {
        // The comparison should read from the disk where it can.
        let _ = pending.file().drop_cache();
        checksums = verify::compare(&source, pending.file(), work.len, "the copy was removed")?;
    }
    if let Some(signal) = Guard::caught() {
        return Err(Failure::interrupted(signal, "nothing was copied"));
    }
    let what = if device.info().is_host { "host memory".to_owned() } else { device.info().name.clone() };
    let verified = if args.verify { ", verified" } else { "" };
    let report = work.report(seconds, &what, verified);
    let len = work.len;
    is_whole.set(true);
    // A short object, and the rest of a long one, go to their server only now.
    let sent_late = pending.file().late_note();
    let notes = pending.commit(true).map_err(explain)?;
    if verifies_whole {
        let then = "the copy has its name already: copy again, or remove it";
        checksums = verify::compare(&source, &File::open(&destination)?, len, then)?;
    }
    console.say(report);
    let facts = source.facts();
    let of_source = [facts.way, late_note.and_then(|late_note| late_note())].into_iter().flatten();
    let sent_late = sent_late.and_then(|sent_late| sent_late());
    for note in of_source.chain(sent_late).chain(notes).chain(checksums) {
        console.say(format!("note: {note}\n"));
    }
    for (note, hint) in facts.left_out {
        console.say(format!("note: {note}\nhint: {hint}\n"));
    }
    if !is_of_host
        && device.info().is_host
        && let Some(why) = &session.devices().missing
    {
        console.say(format!("note: no GPU in use ({why})\n"));
    }
    Ok(source.bytes_by_site())
}

/// Copies one of many files through memory of the host. Returns its bytes, and those of each site.
pub(crate) fn copy_one(
    session: &Session,
    source: &Path,
    destination: &Path,
    modified: Option<SystemTime>,
) -> Result<(u64, BytesBySite), Failure> {
    let device = session.devices().host.clone();
    let source = File::open(source)?;
    let pending = Pending::create(destination)?;
    let len = source.len_lately()?;
    let mut work = Work::new(session, &device, &source, pending.file());
    work.live = ProgressLine::hidden();
    work.copy(len, len)?;
    keep_time(&pending, modified)?;
    pending.commit(false)?;
    Ok((len, source.bytes_by_site()))
}

/// Gives a file of this machine the time at which its source was written.
fn keep_time(pending: &Pending, modified: Option<SystemTime>) -> Result<()> {
    let (Some(fd), Some(modified)) = (pending.file().raw_fd(), modified) else { return Ok(()) };
    // SAFETY: the file is open for as long as `pending` is there.
    let file = ManuallyDrop::new(unsafe { fs::File::from_raw_fd(fd) });
    file.set_modified(modified).map_err(|error| Error::from_io(&error, "cannot set the time of the file"))
}

/// Fails if the destination is a directory, or the source itself.
fn check_destination(destination: &Path, source: Option<&fs::Metadata>) -> Result<()> {
    let Ok(there) = fs::metadata(destination) else { return Ok(()) };
    if there.is_dir() {
        return Err(Error::new(ErrorKind::IsDirectory, "the destination is a directory")
            .with("path", destination.display())
            .hint("name a file"));
    }
    if source.is_some_and(|source| (there.dev(), there.ino()) == (source.dev(), source.ino())) {
        return Err(Error::new(ErrorKind::InvalidInput, "source and destination are the same file")
            .with("path", destination.display())
            .hint("name another destination"));
    }
    Ok(())
}

/// Fails if an object is to become itself: its metadata would be lost. An older version may become the newest one.
pub(crate) fn refuse_same_object(source: &Path, destination: &Path) -> Result<()> {
    if !ObjectUrl::is_one(source) || !ObjectUrl::is_one(destination) {
        return Ok(());
    }
    if ObjectUrl::parse(source)? != ObjectUrl::parse(destination)? {
        return Ok(());
    }
    let error = Error::new(ErrorKind::InvalidInput, "source and destination are the same object");
    Err(error.with("url", destination.display()).hint("name another destination"))
}

/// The name of the copy, which has the source's name in a folder.
pub(crate) fn destination(args: &Copy) -> Result<PathBuf> {
    let folder = &args.destination;
    let named = |join: fn(&Path, &OsStr) -> PathBuf| match args.file_name() {
        Some(name) => Ok(join(folder, &name)),
        None => Err(Error::new(ErrorKind::InvalidInput, "the source has no name").hint("name the copy")),
    };
    if ObjectUrl::is_one(folder) {
        let url = ObjectUrl::parse(folder)?;
        if !url.is_prefix() {
            return Ok(folder.clone());
        }
        let name = args.file_name().and_then(|name| name.into_string().ok()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "the source has no name that a key can have: it is no UTF-8")
                .with("path", args.source.display())
                .hint("name the object: s3://BUCKET/KEY")
        })?;
        return Ok(url.with_key(format!("{}{name}", url.key)).to_string().into());
    }
    if opener_of(folder).is_some() {
        let is_folder = parts(folder).0.ends_with(b"/");
        return if is_folder { named(member) } else { Ok(folder.clone()) };
    }
    if folder.is_dir() { named(|folder, name| folder.join(name)) } else { Ok(folder.clone()) }
}

/// A URL, and its options from the `?` on.
fn parts(url: &Path) -> (&[u8], &[u8]) {
    let bytes = url.as_os_str().as_bytes();
    bytes.split_at(bytes.iter().position(|byte| *byte == b'?').unwrap_or(bytes.len()))
}

/// The URL of a name in a folder. Bytes of the name that begin an escape or options are escaped.
fn member(folder: &Path, name: &OsStr) -> PathBuf {
    let (folder, options) = parts(folder);
    let mut url = folder.to_vec();
    for byte in name.as_bytes() {
        match byte {
            b'%' => url.extend(b"%25"),
            b'?' => url.extend(b"%3F"),
            byte => url.push(*byte),
        }
    }
    url.extend(options);
    PathBuf::from(OsString::from_vec(url))
}

/// An error of a path of this machine with what to do about it.
pub(crate) fn explain(error: Error) -> Error {
    let is_of_server =
        error.context().iter().any(|(name, _)| matches!(*name, "url" | "endpoint" | "server" | "address"));
    if !error.hints().is_empty() || is_of_server {
        return error;
    }
    match error.kind() {
        ErrorKind::NotFound => {
            error.hint("check the path: the file, and the directory of the copy, must exist")
        }
        ErrorKind::PermissionDenied => {
            error.hint("check owner and mode of the file and its directory: ls -ld")
        }
        ErrorKind::ReadOnly => error.hint("the file system is mounted read-only: copy to another one"),
        ErrorKind::NoSpace => error.hint("free some space (df -h) or copy to another file system"),
        ErrorKind::ShortRead => error.hint("something truncated the source during the copy; copy it again"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_of_files_are_for_errors_of_this_machine() {
        let hints = |name| {
            let error = Error::new(ErrorKind::PermissionDenied, "the certificate is not trusted");
            explain(error.with(name, "x")).hints().len()
        };
        assert_eq!(["path", "server", "url", "endpoint"].map(hints), [1, 0, 0, 0]);
    }
}
