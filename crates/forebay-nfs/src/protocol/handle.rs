//! Names of files and facts about them, alike for all versions.

use std::fmt;

use crate::protocol::xdr::Malformed;

/// A version of NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NfsVersion {
    /// Version 3 (RFC 1813).
    V3,
    /// Version 4 with this minor number (RFC 7530, 8881, 7862).
    V4(u8),
}

impl NfsVersion {
    /// Whether calls stand in the slots of a session.
    pub const fn has_session(self) -> bool {
        matches!(self, Self::V4(1..))
    }

    /// The version that users type: `3`, `4.1`, …
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "3" => Some(Self::V3),
            "4.0" => Some(Self::V4(0)),
            "4.1" => Some(Self::V4(1)),
            "4.2" => Some(Self::V4(2)),
            _ => None,
        }
    }
}

impl fmt::Display for NfsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V3 => f.write_str("v3"),
            Self::V4(minor) => write!(f, "v4.{minor}"),
        }
    }
}

/// A file as its server names it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NfsHandle {
    len: u8,
    bytes: [u8; Self::MAX_BYTES],
}

impl NfsHandle {
    /// The most bytes, of version 4.
    pub const MAX_BYTES: usize = 128;

    /// The handle of these bytes, of which there are 1 to 128.
    pub fn new(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.is_empty() || bytes.len() > Self::MAX_BYTES {
            return Err(Malformed("a file handle of no bytes, or too many"));
        }
        let mut handle = Self { len: bytes.len() as u8, bytes: [0; Self::MAX_BYTES] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(handle)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for NfsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, pipe or socket.
    Other,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "file",
            Self::Directory => "directory",
            Self::Link => "symbolic link",
            Self::Other => "device, pipe or socket",
        })
    }
}

impl FileKind {
    /// By the number of `ftype3`, and of `nfs_ftype4`.
    pub const fn of(number: u32) -> Self {
        match number {
            1 => Self::Regular,
            2 => Self::Directory,
            5 => Self::Link,
            _ => Self::Other,
        }
    }
}

/// Facts about a file, as a server tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAttributes {
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Its file system on the server.
    pub file_system: (u64, u64),
    /// Its number in its file system.
    pub file_id: u64,
    /// When it was last written: seconds and nanoseconds.
    pub modified: (u64, u32),
    /// What changes with the file: the change attribute of v4, the time of the last change of v3.
    pub change: u64,
}

/// Distinguishes the states of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    /// Bytes.
    pub size: u64,
    /// As of [`FileAttributes`].
    pub change: u64,
}

impl FileAttributes {
    /// Its state.
    pub const fn state(&self) -> FileState {
        FileState { size: self.size, change: self.change }
    }
}

/// What a server takes in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Bytes of a READ.
    pub read: u32,
    /// Bytes of a WRITE.
    pub write: u32,
}

impl CallLimits {
    /// More than this is never asked for in one call: servers announce up to 64 MiB and fail with less.
    pub const MAX_BYTES: u32 = 1 << 20;
    /// Less than this is no limit that a server means.
    const MIN_BYTES: u32 = 512;

    /// The part of a server's answer that is used.
    pub fn of_told(read: u64, write: u64) -> Self {
        let sane = |told: u64| match told.min(Self::MAX_BYTES.into()) as u32 {
            told if told < Self::MIN_BYTES => 4096,
            told => told & !(Self::MIN_BYTES - 1),
        };
        Self { read: sane(read), write: sane(write) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sane_whatever_a_server_tells() {
        assert_eq!(CallLimits::of_told(64 << 20, 0), CallLimits { read: 1 << 20, write: 4096 });
        assert_eq!(CallLimits::of_told(u64::MAX, 65_537), CallLimits { read: 1 << 20, write: 65_536 });
        assert_eq!(CallLimits::of_told(1, 262_144), CallLimits { read: 4096, write: 262_144 });
    }

    #[test]
    fn handles_have_1_to_128_bytes() {
        assert!(NfsHandle::new(&[]).is_err());
        assert!(NfsHandle::new(&[0; 129]).is_err());
        assert_eq!(NfsHandle::new(&[7; 128]).unwrap().bytes(), [7; 128]);
    }
}
