//! Standard output: a failed write makes the command fail.

use std::io::{self, Write};

use forebay_error::{Error, ErrorKind};

/// A stream that remembers the first error of writing to it. Commands need not check.
pub(crate) struct Output<'a> {
    to: &'a mut (dyn Write + Send),
    failed: Option<io::Error>,
}

impl<'a> Output<'a> {
    pub(crate) fn new(to: &'a mut (dyn Write + Send)) -> Self {
        Self { to, failed: None }
    }

    /// Flushes; returns the error if a write failed. A closed pipe is no error: its reader has read enough.
    pub(crate) fn lost(&mut self) -> Option<Error> {
        let _ = self.flush();
        let error = self.failed.as_ref().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)?;
        let error = Error::from_io(error, "cannot write the output");
        let is_closed = self.failed.as_ref().and_then(io::Error::raw_os_error) == Some(libc::EBADF);
        Some(match error.kind() {
            ErrorKind::NoSpace => error.hint("free some space (df -h): the output is incomplete"),
            _ if is_closed => error.hint("standard output is closed: open it, with >FILE for example"),
            _ => error,
        })
    }

    fn keep<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
            && self.failed.is_none()
        {
            self.failed =
                Some(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error));
        }
        result
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes);
        self.keep(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.keep(flushed)
    }
}
