//! The one error type of the workspace.
//!
//! An [`Error`] has a [`kind`](Error::kind) (what it means, not where it arose), a message, context as
//! `(key, value)` pairs, hints (what to type) and perhaps a source. One table maps kinds to errno.
//!
//! ```
//! use forebay_error::{Error, ErrorKind};
//!
//! let error = Error::new(ErrorKind::NotFound, "cannot open file").with("path", "/data/model")
//!     .hint("check the path: ls -l /data");
//! assert_eq!(error.errno(), 2);
//! assert_eq!(error.to_string(), "cannot open file (path=/data/model)");
//! assert_eq!(error.hints(), ["check the path: ls -l /data"]);
//! ```

mod plain;

use std::fmt;
use std::sync::Arc;

pub use plain::{plain, plain_json, quoted};

/// The result of everything in forebay.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What an error means to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file, device or other named thing does not exist.
    NotFound,
    /// The operating system forbids it to this user.
    PermissionDenied,
    /// The file system is mounted read-only.
    ReadOnly,
    /// A directory where a file is needed.
    IsDirectory,
    /// The thing exists already.
    AlreadyExists,
    /// An argument, a flag or a file's content is wrong.
    InvalidInput,
    /// This machine, kernel, driver or file system cannot do it.
    Unsupported,
    /// The file ended before the asked number of bytes.
    ShortRead,
    /// The file system is full (or a quota or a size limit is reached).
    NoSpace,
    /// Host memory, or the memory that may be locked, is used up.
    OutOfMemory,
    /// The limit of open files is reached: the process's, or the machine's.
    TooManyFiles,
    /// The device's memory is used up.
    DeviceOutOfMemory,
    /// The device is gone or its context is broken.
    DeviceLost,
    /// The GPU driver's library is missing or too old.
    DriverMissing,
    /// A strict set of engines leaves none that works.
    Strict,
    /// Read bytes differ from the expected ones.
    Corrupt,
    /// In use by something else.
    Busy,
    /// Given up before it was done.
    Cancelled,
    /// Nothing happened within the time allowed.
    Timeout,
    /// The storage or the device failed (EIO and friends).
    Io,
    /// A broken promise inside forebay: please report it.
    Internal,
}

impl ErrorKind {
    /// The errno that says the same to a C program. The one table of the workspace.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::PermissionDenied => libc::EACCES,
            Self::ReadOnly => libc::EROFS,
            Self::IsDirectory => libc::EISDIR,
            Self::AlreadyExists => libc::EEXIST,
            Self::InvalidInput => libc::EINVAL,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::ShortRead => libc::ENODATA,
            Self::NoSpace => libc::ENOSPC,
            Self::OutOfMemory | Self::DeviceOutOfMemory => libc::ENOMEM,
            Self::TooManyFiles => libc::EMFILE,
            Self::DeviceLost | Self::DriverMissing => libc::ENODEV,
            Self::Strict => libc::ENOTSUP,
            Self::Corrupt => libc::EBADMSG,
            Self::Busy => libc::EBUSY,
            Self::Cancelled => libc::ECANCELED,
            Self::Timeout => libc::ETIMEDOUT,
            Self::Io | Self::Internal => libc::EIO,
        }
    }

    /// The kind that an errno of a file operation means.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOENT | libc::ENXIO => Self::NotFound,
            libc::ENODEV => Self::DeviceLost,
            libc::EACCES | libc::EPERM => Self::PermissionDenied,
            libc::EROFS => Self::ReadOnly,
            libc::EISDIR => Self::IsDirectory,
            libc::EEXIST => Self::AlreadyExists,
            libc::EINVAL | libc::EBADF | libc::EFAULT | libc::ENAMETOOLONG | libc::ENOTDIR => {
                Self::InvalidInput
            }
            libc::EOPNOTSUPP | libc::ENOSYS => Self::Unsupported,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::ENOMEM => Self::OutOfMemory,
            libc::EMFILE | libc::ENFILE => Self::TooManyFiles,
            libc::EBUSY | libc::ETXTBSY | libc::EAGAIN => Self::Busy,
            libc::ECANCELED => Self::Cancelled,
            libc::ETIMEDOUT => Self::Timeout,
            _ => Self::Io,
        }
    }
}

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    errno: Option<i32>,
    message: String,
    context: Vec<(&'static str, String)>,
    hints: Vec<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// An error with its kind, context and hints. Cheap to clone: the entries of a batch may share one.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

impl Error {
    /// A new error of `kind`. The message is a lower-case phrase without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            errno: None,
            message: message.into(),
            context: Vec::new(),
            hints: Vec::new(),
            source: None,
        }))
    }

    /// The error of a system call: `doing` names the attempt ("cannot open file").
    pub fn from_errno(errno: i32, doing: impl Into<String>) -> Self {
        let os = std::io::Error::from_raw_os_error(errno);
        let mut error =
            Self::new(ErrorKind::from_errno(errno), format!("{}: {}", doing.into(), describe(&os)));
        Arc::make_mut(&mut error.0).errno = Some(errno);
        match errno {
            libc::EMFILE => error.hint("raise the limit of open files: ulimit -n 65536"),
            libc::ENFILE => error.hint("as root: sysctl -w fs.file-max=9223372036854775807"),
            _ => error,
        }
    }

    /// The error of the system call that failed last on this thread.
    pub fn last_os(doing: impl Into<String>) -> Self {
        Self::from_errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO), doing)
    }

    /// An I/O error of the standard library.
    pub fn from_io(error: &std::io::Error, doing: impl Into<String>) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(errno, doing),
            // The standard library itself refuses names that no system call takes.
            None if error.kind() == std::io::ErrorKind::InvalidInput && error.to_string().contains("NUL") => {
                Self::new(ErrorKind::InvalidInput, format!("{}: the name has a zero byte", doing.into()))
                    .hint("leave the zero byte out")
            }
            None => Self::new(ErrorKind::Io, format!("{}: {error}", doing.into())),
        }
    }

    /// Adds a piece of context, printed as `key=value`.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        let (value, context) = (value.to_string(), &mut Arc::make_mut(&mut self.0).context);
        // What several layers know is said once.
        if !context.iter().any(|(known, text)| *known == key && *text == value) {
            context.push((key, value));
        }
        self
    }

    /// Adds a hint: what to type or to change.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.0).hints.push(hint.into());
        self
    }

    /// Sets the error that caused this one.
    #[must_use]
    pub fn source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::new(source));
        self
    }

    /// Whether this is among the errors that caused it.
    pub fn is_caused_by<T: std::error::Error + 'static>(&self) -> bool {
        let first = std::error::Error::source(self);
        std::iter::successors(first, |cause| cause.source()).any(<dyn std::error::Error>::is::<T>)
    }

    /// What the error means.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The context pairs in the order they were added.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// What the user can type or change, best first.
    pub fn hints(&self) -> &[String] {
        &self.0.hints
    }

    /// The errno of the failed system call, or the one that its kind maps to.
    pub fn errno(&self) -> i32 {
        self.0.errno.unwrap_or_else(|| self.0.kind.errno())
    }
}

/// The operating system's words for an errno, without Rust's "(os error N)".
fn describe(os: &std::io::Error) -> String {
    let text = os.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        for (index, (key, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { " (" } else { ", " })?;
        }
        if self.0.context.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)?;
        for hint in &self.0.hints {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_errno_of_the_system_call() {
        let error = Error::from_errno(libc::EDQUOT, "cannot write");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.errno(), libc::EDQUOT);
        assert_eq!(error.to_string(), "cannot write: Disk quota exceeded");
    }

    #[test]
    fn too_many_files_are_no_lack_of_memory() {
        for (errno, hint) in [(libc::EMFILE, "ulimit -n"), (libc::ENFILE, "fs.file-max")] {
            let error = Error::from_errno(errno, "cannot open file");
            assert_eq!((error.kind(), error.errno()), (ErrorKind::TooManyFiles, errno));
            assert!(error.hints().len() == 1 && error.hints()[0].contains(hint), "{error:?}");
        }
        assert_eq!(ErrorKind::TooManyFiles.errno(), libc::EMFILE);
        assert!(Error::from_errno(libc::ENOMEM, "cannot map").hints().is_empty());
    }

    #[test]
    fn a_name_with_a_zero_byte_is_a_wrong_argument() {
        let error = Error::from_io(&std::fs::metadata("a\0b").unwrap_err(), "cannot open file");
        assert_eq!((error.kind(), error.hints().len()), (ErrorKind::InvalidInput, 1));
        assert_eq!(error.to_string(), "cannot open file: the name has a zero byte");
    }

    #[test]
    fn a_clone_does_not_share_later_context() {
        let error = Error::new(ErrorKind::Io, "failed");
        let more = error.clone().with("offset", 42);
        assert!(error.context().is_empty());
        assert_eq!(more.to_string(), "failed (offset=42)");
    }

    #[test]
    fn every_kind_has_an_errno() {
        for kind in [ErrorKind::NotFound, ErrorKind::Strict, ErrorKind::ShortRead, ErrorKind::Internal] {
            assert!(kind.errno() > 0, "{kind:?}");
        }
    }
}
