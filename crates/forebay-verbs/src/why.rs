//! Why RDMA is not to be had, as a type that programs match.

use std::fmt;

use forebay_error::{Error, ErrorKind};

/// The reason within an [`Error`] of this crate: [`Why::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// libibverbs or librdmacm is not installed.
    NoLibrary,
    /// The library is too old.
    OldLibrary,
    /// The kernel has no RDMA device, or no rdma_cm.
    NoDevice,
    /// No RDMA device is on the route to that address.
    NoRoute,
    /// This user may not open the device.
    Permission,
    /// The limit of locked memory is too low.
    Memlock,
    /// The device, or its driver, cannot do this.
    Unsupported,
    /// A fork would take registered memory from this process: an old kernel, and a library that was used before.
    Fork,
    /// The peer answered that nobody listens there, or that it does not want this connection.
    Rejected,
    /// The peer did not answer, or stopped answering.
    Unreachable,
    /// The device was removed.
    DeviceRemoved,
    /// The connection is down.
    Down,
    /// The queue is full: take completions first.
    QueueFull,
}

impl Why {
    /// The reason that an error carries.
    pub fn of(error: &Error) -> Option<Self> {
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            if let Some(why) = cause.downcast_ref::<Self>() {
                return Some(*why);
            }
            source = cause.source();
        }
        None
    }

    /// An error with this reason.
    pub fn error(self, message: impl Into<String>) -> Error {
        Error::new(self.kind(), message).source(self)
    }

    /// The reason put to an error.
    #[must_use]
    pub fn mark(self, error: Error) -> Error {
        error.source(self)
    }

    const fn kind(self) -> ErrorKind {
        match self {
            Self::NoLibrary
            | Self::OldLibrary
            | Self::NoDevice
            | Self::NoRoute
            | Self::Unsupported
            | Self::Fork => ErrorKind::Unsupported,
            Self::Permission => ErrorKind::PermissionDenied,
            Self::Memlock => ErrorKind::OutOfMemory,
            Self::Rejected | Self::Down => ErrorKind::Io,
            Self::Unreachable => ErrorKind::Timeout,
            Self::DeviceRemoved => ErrorKind::DeviceLost,
            Self::QueueFull => ErrorKind::Busy,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLibrary => "no RDMA library",
            Self::OldLibrary => "the RDMA library is too old",
            Self::NoDevice => "no RDMA device",
            Self::NoRoute => "no RDMA device on the route",
            Self::Permission => "no right to open the RDMA device",
            Self::Memlock => "the limit of locked memory is too low",
            Self::Unsupported => "the RDMA device cannot do it",
            Self::Fork => "a fork would take registered memory away",
            Self::Rejected => "the peer rejected the connection",
            Self::Unreachable => "the peer does not answer",
            Self::DeviceRemoved => "the RDMA device was removed",
            Self::Down => "the connection is down",
            Self::QueueFull => "the queue is full",
        })
    }
}

impl std::error::Error for Why {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_carries_its_reason() {
        let error =
            Why::Memlock.error("cannot register memory").with("bytes", 4096).hint("ulimit -l unlimited");
        assert_eq!(Why::of(&error), Some(Why::Memlock));
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(Why::of(&Error::new(ErrorKind::Io, "other")), None);
        let marked = Why::Permission.mark(Error::from_errno(libc::EACCES, "cannot open the device"));
        assert_eq!((Why::of(&marked), marked.errno()), (Some(Why::Permission), libc::EACCES));
    }
}
