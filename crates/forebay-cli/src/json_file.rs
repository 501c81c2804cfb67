//! A report as JSON in a file, or on standard output.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind};
use forebay_models::Pending;
use serde::Serialize;

use crate::console::Console;

/// The target of the report. An interrupted run leaves no partial report, and does not change an old one.
pub(crate) enum JsonFile {
    /// It gets its name when it is whole.
    New(Pending),
    /// The target is written in place: a pipe, or a file that a shell has opened.
    Old(File, PathBuf),
    /// Standard output, which has nothing else then.
    Output,
}

impl JsonFile {
    /// `-` is standard output: lines of result go to standard error from now on.
    pub(crate) fn open(path: &Path, console: &Console<'_>) -> Result<Self, Error> {
        if path == Path::new("-") {
            console.keep_for_document();
            return Ok(Self::Output);
        }
        let explain = |error: Error| match error.hints() {
            [] => error.hint("name another file with --json"),
            _ => error,
        };
        if !path.exists() {
            return Pending::create(path).map(Self::New).map_err(explain);
        }
        // A FIFO that nobody reads would be waited for; this fails.
        let probe = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let fifo = path.metadata().is_ok_and(|found| found.file_type().is_fifo());
        if fifo && probe.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENXIO)) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "cannot create the report: it is a FIFO that nobody reads",
            )
            .with("path", path.display())
            .hint("start its reader first, or name another file with --json"));
        }
        let opened = probe.and_then(|_reader| OpenOptions::new().write(true).open(path));
        opened.map(|file| Self::Old(file, path.to_owned())).map_err(|error| {
            explain(Error::from_io(&error, "cannot create the report").with("path", path.display()))
        })
    }

    pub(crate) fn write(self, report: &impl Serialize, console: &Console<'_>) -> Result<(), Error> {
        let mut text = serde_json::to_string_pretty(report)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write the report: {error}")))?;
        text.push('\n');
        const HINT: &str = "name another file with --json: the results above are whole";
        let failed = |error: &std::io::Error, path: &Path| {
            Error::from_io(error, "cannot write the report").with("path", path.display()).hint(HINT)
        };
        let put = |mut file: File| -> std::io::Result<()> {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(text.as_bytes())?;
            // Some file systems report a full disk only on close.
            if file.metadata()?.is_file() { file.sync_data() } else { Ok(()) }
        };
        match self {
            Self::Output => {
                // The command fails for what standard output does not take.
                console.document(&text);
                Ok(())
            }
            Self::Old(file, path) => put(file).map_err(|error| failed(&error, &path)),
            Self::New(pending) => {
                let put = pending.file().write_host(text.as_bytes(), 0).and_then(|()| pending.sync());
                put.and_then(|()| pending.commit(false)).map(drop).map_err(|error| error.hint(HINT))
            }
        }
    }
}
