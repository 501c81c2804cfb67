//! The access log: one line a request, without keys' secrets and without query strings, which may have signatures.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use forebay_error::{Error, Result};
use s3s::dto::{Timestamp, TimestampFormat};

/// Lines wait until they have this many bytes, or a moment.
const BATCH: usize = 32 << 10;

/// Where lines go.
pub(super) struct AccessLog {
    lines: Mutex<Vec<u8>>,
    file: File,
}

/// One request.
pub(super) struct Line<'a> {
    pub(super) began: SystemTime,
    pub(super) peer: &'a str,
    pub(super) account: &'a str,
    pub(super) operation: &'a str,
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) status: u16,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) time: Duration,
    pub(super) id: &'a str,
}

impl AccessLog {
    /// Appends to a file; `-` is the standard output.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let opened = if path == Path::new("-") {
            rustix::io::dup(io::stdout()).map(File::from).map_err(io::Error::from)
        } else {
            File::options().append(true).create(true).open(path)
        };
        let file = opened
            .map_err(|error| Error::from_io(&error, "cannot open access log").with("path", path.display()))?;
        Ok(Self { lines: Mutex::default(), file })
    }

    pub(super) fn add(&self, line: &Line<'_>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = Timestamp::from(line.began).format(TimestampFormat::DateTime, &mut *lines);
        let or_dash = |text: &'static str, value: &str| {
            if value.is_empty() { text.to_owned() } else { value.to_owned() }
        };
        let _ = writeln!(
            lines,
            " {} {} {} {} {} {} in={} out={} us={} id={}",
            line.peer,
            or_dash("-", line.account),
            or_dash("-", line.operation),
            line.method,
            line.path,
            line.status,
            line.bytes_in,
            line.bytes_out,
            line.time.as_micros(),
            line.id,
        );
        if lines.len() >= BATCH {
            self.write(&mut lines);
        }
    }

    /// Writes the lines that wait.
    pub(super) fn flush(&self) {
        self.write(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A log that cannot be written does not stop requests.
    fn write(&self, lines: &mut Vec<u8>) {
        let _ = (&self.file).write_all(lines);
        lines.clear();
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.flush();
    }
}
