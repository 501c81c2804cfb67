//! Decides by the mappings below a range whether the driver registers it.

use std::ffi::{CString, c_int, c_uint};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

use super::pinned::PinnedFilePages;
use crate::result::{Answer, INVALID_VALUE, NOT_SUPPORTED, UNKNOWN};

pub(crate) const PORTABLE: c_uint = 1;
const READ_ONLY: c_uint = 8;
const PAGE: u64 = 4096;
/// The driver takes less than this at a time.
const LEN_MAX: usize = 512 << 30;
/// The attribute "read-only registration is supported".
pub(crate) const READ_ONLY_SUPPORTED: c_int = 113;

/// What is special about registered memory.
#[derive(Clone, Debug)]
pub(crate) struct HostRegistration {
    /// Every GPU may use it, not only the one that registered it.
    pub(crate) portable: bool,
    /// No GPU may write it.
    pub(crate) read_only: bool,
    /// Pages of a file, which the file may lose.
    pub(crate) pinned: Option<Arc<PinnedFilePages>>,
}

/// Why a range was not registered.
#[derive(Debug)]
pub(crate) enum RegistrationRefusal {
    Code(c_int),
    /// The real driver would not come back from its system call.
    Hangs,
}

impl From<c_int> for RegistrationRefusal {
    fn from(code: c_int) -> Self {
        Self::Code(code)
    }
}

/// Registers a range as `flags` say, or says what the driver would.
pub(crate) fn examine(
    start: u64,
    len: usize,
    flags: c_uint,
    read_only_supported: bool,
) -> Result<HostRegistration, RegistrationRefusal> {
    let read_only = flags & READ_ONLY != 0;
    if read_only && !read_only_supported {
        return Err(RegistrationRefusal::Code(NOT_SUPPORTED));
    }
    if start == 0 || len == 0 || len >= LEN_MAX {
        return Err(RegistrationRefusal::Code(INVALID_VALUE));
    }
    let pages = start / PAGE * PAGE..(start + len as u64).next_multiple_of(PAGE);
    let mappings = match mappings(&pages) {
        // The real driver needs no /proc, nor a descriptor: plain memory is taken unseen.
        Err(UNKNOWN) if !read_only => Vec::new(),
        answer => answer?,
    };
    for mapping in &mappings {
        mapping.judge(read_only)?;
    }
    let of_a_file = mappings.iter().any(|mapping| mapping.shared && mapping.of_a_file());
    let pinned = of_a_file
        .then(|| PinnedFilePages::new(pages.start, (pages.end - pages.start) as usize))
        .transpose()?;
    Ok(HostRegistration { portable: flags & PORTABLE != 0, read_only, pinned })
}

/// One line of `/proc/self/maps`.
#[derive(Debug)]
struct MapsLine {
    range: Range<u64>,
    readable: bool,
    writable: bool,
    shared: bool,
    inode: u64,
    path: String,
}

impl MapsLine {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let flags = words.next()?.as_bytes();
        let inode = words.nth(2)?.parse().ok()?;
        let path = words.next().unwrap_or_default().trim_start().to_owned();
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            range: hexadecimal(start)?..hexadecimal(end)?,
            readable: flags.first() == Some(&b'r'),
            writable: flags.get(1) == Some(&b'w'),
            shared: flags.get(3) == Some(&b's'),
            inode,
            path,
        })
    }

    /// Shared anonymous memory is a file to the kernel, but one that nobody can change from outside.
    fn of_a_file(&self) -> bool {
        self.inode != 0 && !self.path.starts_with("/dev/zero")
    }

    /// What the driver says of pages like these.
    fn judge(&self, read_only: bool) -> Result<(), RegistrationRefusal> {
        if !self.readable || (!self.writable && !read_only) {
            return Err(RegistrationRefusal::Code(INVALID_VALUE));
        }
        if self.of_a_file() && !self.shared {
            // Pinning needs private pages in place of the file's, and gets EAGAIN for ever.
            return Err(RegistrationRefusal::Hangs);
        }
        // Kernels from 6.5 on: a device that writes to a file's pages past the file system is refused.
        if self.of_a_file() && !read_only && !in_memory(&self.path) {
            return Err(RegistrationRefusal::Code(INVALID_VALUE));
        }
        Ok(())
    }
}

/// Reading takes long enough for a program to close the descriptor and open a file of its own, which is not to be closed
/// here: so it is read under a number that it does not get.
fn own_maps() -> std::io::Result<Vec<u8>> {
    let low = File::open("/proc/self/maps")?;
    // SAFETY: no pointers are passed.
    let high = unsafe { libc::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 512) };
    let mut file = low;
    if high >= 0 {
        // SAFETY: the descriptor is new and nobody else's. The low number is closed here.
        file = unsafe { File::from_raw_fd(high) };
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// The mappings that hold `pages` from end to end.
fn mappings(pages: &Range<u64>) -> Answer<Vec<MapsLine>> {
    let text = own_maps().map_err(|_| UNKNOWN)?;
    let text = String::from_utf8_lossy(&text);
    let overlaps = |found: &MapsLine| found.range.start < pages.end && found.range.end > pages.start;
    let found: Vec<_> = text.lines().filter_map(MapsLine::parse).filter(overlaps).collect();
    let mut next = pages.start;
    for mapping in &found {
        if mapping.range.start > next {
            return Err(INVALID_VALUE);
        }
        next = mapping.range.end;
    }
    if next < pages.end { Err(INVALID_VALUE) } else { Ok(found) }
}

/// Whether a mapped file lives in memory only: tmpfs, huge pages, System V and memfd memory.
fn in_memory(path: &str) -> bool {
    if path.starts_with("/memfd:") || path.starts_with("/SYSV") {
        return true;
    }
    // A file that was deleted has left its folder behind.
    let kind = match path.strip_suffix(" (deleted)") {
        Some(gone) => file_system(gone.rsplit_once('/').map_or("/", |(folder, _)| folder)),
        None => file_system(path),
    };
    const RAMFS: i64 = 0x8584_58f6;
    kind.is_some_and(|kind| [libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC, RAMFS].contains(&kind))
}

fn file_system(path: &str) -> Option<i64> {
    let path = CString::new(if path.is_empty() { "/" } else { path }).ok()?;
    // SAFETY: all zeros are a valid value for the kernel to overwrite.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a valid place.
    let code = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    (code == 0).then_some(found.f_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read() {
        let line =
            "7f2bf5381000-7f2bf5383000 r--s 00000000 fe:00 9977858                    /tmp/with a space";
        let found = MapsLine::parse(line).expect("a mapping");
        assert_eq!(found.range, 0x7f2b_f538_1000..0x7f2b_f538_3000);
        assert_eq!((found.readable, found.writable, found.shared), (true, false, true));
        assert_eq!((found.inode, found.path.as_str()), (9_977_858, "/tmp/with a space"));
        assert!(found.of_a_file());
        let anonymous = MapsLine::parse("7ffe0000-7fff0000 rw-p 00000000 00:00 0 ").expect("a mapping");
        assert!(!anonymous.of_a_file() && anonymous.writable && !anonymous.shared);
    }

    #[test]
    fn file_systems_in_memory_are_told_apart() {
        assert!(in_memory("/memfd:x (deleted)") && in_memory("/dev/shm/gone (deleted)"));
        assert!(!in_memory("/proc/self/status") && !in_memory("/nowhere/at all"));
    }

    #[test]
    fn holes_and_lengths_are_refused() {
        let code = |start, len, flags| match examine(start, len, flags, false) {
            Err(RegistrationRefusal::Code(code)) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(1 << 12, 4096, 0), INVALID_VALUE, "nothing is mapped there");
        assert_eq!(code(1 << 46, 512 << 30, 0), INVALID_VALUE);
        assert_eq!(code(1 << 12, 4096, READ_ONLY), NOT_SUPPORTED);
        let bytes = vec![0u8; 10_000];
        let found = examine(bytes.as_ptr() as u64, bytes.len(), PORTABLE, false).expect("plain memory");
        assert!(found.portable && !found.read_only && found.pinned.is_none());
    }
}
