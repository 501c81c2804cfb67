//! Versions: they distinguish the states of a file.

use std::os::fd::RawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_error::Result;
use forebay_source::StateToken;

use crate::runtime::sys;

/// A file's identity and state: any change of its bytes, length or name count changes it. (Stores through a shared
/// mapping change it when the kernel notices the first of them, not for each.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// The file system's device number.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// Bytes.
    pub len: u64,
    /// Last change of the bytes: seconds and nanoseconds since 1970.
    pub modified: (i64, i64),
    /// Last change of the bytes or the inode. It cannot be set back.
    pub changed: (i64, i64),
}

/// Two ticks of the clock of file times: a change within this time may not show.
pub(crate) const STEPS: Duration = Duration::from_millis(20);

/// What names an inode.
pub(crate) type FileId = (u64, u64);

impl FileVersion {
    pub(crate) fn of(fd: RawFd) -> Result<Self> {
        let stat = sys::stat(fd)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            len: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        })
    }

    /// The version, once the next change is sure to give another: waits if the file has just changed.
    pub(crate) fn distinct(fd: RawFd) -> Result<Self> {
        let seen = Self::of(fd)?;
        if !seen.is_young(STEPS) {
            return Ok(seen);
        }
        std::thread::sleep(STEPS);
        Self::of(fd)
    }

    /// For those who only compare. Any change of the bytes changes length or time; a new name changes the time of the inode alone.
    pub(crate) fn token(&self) -> StateToken {
        let time = |(seconds, rest): (i64, i64)| [seconds.to_le_bytes(), rest.to_le_bytes()].concat();
        let content = [&self.len.to_le_bytes()[..], &time(self.modified)].concat();
        let number = [self.device, self.inode].map(u64::to_le_bytes).concat();
        StateToken::of_parts(&content, &number, &time(self.changed))
    }

    pub(crate) fn id(&self) -> FileId {
        (self.device, self.inode)
    }

    /// Whether the last change lies less than `settle` back. Another change could then bear the same times, and a
    /// direct write that began with that change may not have ended.
    pub(crate) fn is_young(&self, settle: Duration) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed =
            Duration::new(self.changed.0.max(0) as u64, self.changed.1.clamp(0, 999_999_999) as u32);
        // A change in the future: the clock was set back, and times tell nothing for a while.
        now.checked_sub(changed).is_none_or(|age| age < settle)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn changes_change_the_version() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let fd = file.as_raw_fd();
        let empty = FileVersion::of(fd).unwrap();
        assert!(empty.is_young(Duration::from_secs(5)));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!empty.is_young(Duration::from_millis(20)));
        std::fs::write(file.path(), b"bytes").unwrap();
        let written = FileVersion::of(fd).unwrap();
        assert_ne!(empty, written);
        assert_eq!(empty.id(), written.id());
        assert_eq!(written, FileVersion::of(fd).unwrap());
        assert!(!FileVersion::distinct(fd).unwrap().is_young(STEPS), "the next change may not show");
    }

    #[test]
    fn a_time_in_the_future_is_young() {
        let far = FileVersion { device: 0, inode: 0, len: 0, modified: (0, 0), changed: (1 << 40, 0) };
        assert!(far.is_young(Duration::from_secs(1)));
    }
}
