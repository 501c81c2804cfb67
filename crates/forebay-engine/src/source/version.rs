//! Versions: they distinguish the states of a file.

use std::os::fd::RawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_error::Result;
use forebay_source::StateToken;
use forebay_sys::file_systems;

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
    ///
    /// `fd` is the file, and `magic` its file system's number.
    pub(crate) fn token(&self, fd: RawFd, magic: i64) -> StateToken {
        let time = |(seconds, rest): (i64, i64)| [seconds.to_le_bytes(), rest.to_le_bytes()].concat();
        let content = [&self.len.to_le_bytes()[..], &time(self.modified)].concat();
        let object = self.object(fd, file_systems::keeps_inode_numbers(magic));
        let number = [&self.device.to_le_bytes()[..], &object].concat();
        StateToken::of_parts(&content, &number, &time(self.changed))
    }

    /// Distinguishes the file from the others of its file system. A handle also distinguishes it from earlier ones that had its inode;
    /// where there is none, the time when it was made does. A file system that changes inode numbers changes handles, too: there the time of
    /// the inode's change has to do, which a file made in the same tick of the clock may share.
    fn object(&self, fd: RawFd, keeps_numbers: bool) -> Vec<u8> {
        let time = |(seconds, rest): (i64, i64)| [seconds.to_le_bytes(), rest.to_le_bytes()].concat();
        if !keeps_numbers {
            return time(self.changed);
        }
        let by_inode =
            || [&self.inode.to_le_bytes()[..], &time(sys::made(fd).unwrap_or(self.changed))].concat();
        sys::handle(fd).unwrap_or_else(by_inode)
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
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

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

    const EXT4: i64 = 0xEF53;
    const FUSE: i64 = 0x6573_5546;

    fn look(path: &Path, magic: i64) -> (FileVersion, StateToken) {
        let file = File::open(path).unwrap();
        let version = FileVersion::of(file.as_raw_fd()).unwrap();
        (version, version.token(file.as_raw_fd(), magic))
    }

    /// Tokens of a file, and of another one that took its place so soon that all their times are equal.
    fn replaced(magic: i64) -> [StateToken; 2] {
        let folder = tempfile::tempdir().unwrap();
        let [path, new] = ["file", "new"].map(|name| folder.path().join(name));
        for _ in 0..1000 {
            // A new file: the kernel gives the next change of one whose time was asked for a finer time.
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, b"first").unwrap();
            let (before, first) = look(&path, magic);
            std::fs::write(&new, b"other").unwrap();
            std::fs::rename(&new, &path).unwrap();
            let (after, second) = look(&path, magic);
            if (before.modified, before.changed) == (after.modified, after.changed) {
                assert!(first.has_bytes_of(&second));
                return [first, second];
            }
        }
        panic!("no two files were made within a tick of the clock");
    }

    #[test]
    fn a_file_made_within_a_tick_of_the_clock_is_another() {
        let [first, second] = replaced(EXT4);
        assert!(!first.is_object_of(&second));
        // Where inode numbers change, the time is all that there is.
        let [first, second] = replaced(FUSE);
        assert!(first.is_object_of(&second));
    }

    #[test]
    fn a_file_that_has_the_inode_of_a_removed_one_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // ext4 and XFS give the number to the next file.
        for _ in 0..20 {
            std::fs::write(&path, b"first").unwrap();
            let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
            let (_, first) = look(&path, EXT4);
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, b"other").unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
            let (_, second) = look(&path, EXT4);
            assert!(first.has_bytes_of(&second) && !first.is_object_of(&second));
        }
    }

    #[test]
    fn another_name_and_other_rights_make_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let [path, moved] = ["file", "moved"].map(|name| folder.path().join(name));
        std::fs::write(&path, b"bytes").unwrap();
        let file = File::open(&path).unwrap();
        let token = || FileVersion::of(file.as_raw_fd()).unwrap().token(file.as_raw_fd(), EXT4);
        let before = token();
        std::thread::sleep(STEPS);
        std::fs::rename(&path, &moved).unwrap();
        std::fs::set_permissions(&moved, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(token() != before && token().is_object_of(&before));
    }

    #[test]
    fn a_time_in_the_future_is_young() {
        let far = FileVersion { device: 0, inode: 0, len: 0, modified: (0, 0), changed: (1 << 40, 0) };
        assert!(far.is_young(Duration::from_secs(1)));
    }
}
