//! The system calls that the standard library lacks, each a thin function. Results are bytes or a negative errno.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use forebay_error::{Error, Result};
use forebay_sys::kernel_text::cpu_list;

/// The negative errno of the call that failed last.
fn negative_errno() -> isize {
    -(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) as isize)
}

/// `preadv2` with one buffer; with `nowait` only bytes that are in the page cache already.
///
/// # Safety
/// `buffer..buffer+len` is writable.
pub(crate) unsafe fn read_at(fd: RawFd, buffer: *mut u8, len: usize, offset: u64, nowait: bool) -> isize {
    let got = if nowait {
        let iov = libc::iovec { iov_base: buffer.cast(), iov_len: len };
        // SAFETY: the caller vouches for the buffer; the iovec lives through the call.
        unsafe { libc::preadv2(fd, &iov, 1, offset as libc::off_t, libc::RWF_NOWAIT) }
    } else {
        // SAFETY: the caller vouches for the buffer.
        unsafe { libc::pread(fd, buffer.cast(), len, offset as libc::off_t) }
    };
    if got < 0 { negative_errno() } else { got }
}

/// `pwrite`.
///
/// # Safety
/// `buffer..buffer+len` is readable.
pub(crate) unsafe fn write_at(fd: RawFd, buffer: *const u8, len: usize, offset: u64) -> isize {
    // SAFETY: the caller vouches for the buffer.
    let put = unsafe { libc::pwrite(fd, buffer.cast(), len, offset as libc::off_t) };
    if put < 0 { negative_errno() } else { put }
}

/// Opens a file with raw flags.
pub(crate) fn open(path: &Path, flags: i32, mode: u32) -> Result<OwnedFd, i32> {
    use std::os::unix::ffi::OsStrExt;
    let Ok(name) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return Err(libc::EINVAL) };
    loop {
        // SAFETY: `name` is a NUL-terminated string that outlives the call.
        let fd = unsafe { libc::open(name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
        if fd >= 0 {
            // SAFETY: the descriptor is new and ours alone.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if errno != libc::EINTR {
            return Err(errno);
        }
    }
}

/// `fstat`.
pub(crate) fn stat(fd: RawFd) -> Result<libc::stat> {
    // SAFETY: a zeroed stat is a valid value for the kernel to overwrite.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable.
    if unsafe { libc::fstat(fd, &mut stat) } < 0 {
        return Err(Error::last_os("cannot read the file's attributes"));
    }
    Ok(stat)
}

/// Device and inode, which identify a file.
pub(crate) type Identity = (u64, u64);

/// The file of a descriptor; `None` if it is closed. Unlike `fstat` it asks no server and waits for no writes.
pub(crate) fn identity(fd: RawFd) -> Option<Identity> {
    // SAFETY: a zeroed statx is a valid value for the kernel to overwrite.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor; `statx` is writable.
    if unsafe { libc::statx(fd, c"".as_ptr(), flags, libc::STATX_INO, &mut statx) } == 0 {
        return Some((libc::makedev(statx.stx_dev_major, statx.stx_dev_minor), statx.stx_ino));
    }
    // Old profiles of containers forbid `statx`.
    stat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether a memory file is sealed against writing.
pub(crate) fn is_sealed(fd: RawFd) -> bool {
    // SAFETY: no pointers are passed.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    // Files that cannot be sealed answer with an error.
    seals > 0 && seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0
}

/// Memory and offset alignment for O_DIRECT by `statx`: `Some((0, 0))` if the file refuses it, `None` if the kernel
/// does not say.
pub(crate) fn direct_alignment(fd: RawFd) -> Option<(u32, u32)> {
    // SAFETY: a zeroed statx is a valid value for the kernel to overwrite.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor; `statx` is writable.
    let rc = unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut statx) };
    (rc == 0 && statx.stx_mask & libc::STATX_DIOALIGN != 0)
        .then_some((statx.stx_dio_mem_align, statx.stx_dio_offset_align))
}

/// Whether the file is memory that the kernel does not cache (fsdax).
pub(crate) fn is_dax(fd: RawFd) -> bool {
    const ATTR_DAX: u64 = 0x0020_0000;
    // SAFETY: a zeroed statx is a valid value for the kernel to overwrite.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor; `statx` is writable.
    let rc = unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_TYPE, &mut statx) };
    rc == 0 && statx.stx_attributes & ATTR_DAX != 0
}

/// Whether an XFS file's bytes lie on the file system's realtime device, rather than on the one that its number names.
pub(crate) fn is_realtime(fd: RawFd) -> bool {
    /// `FS_IOC_FSGETXATTR`, and the flag that it tells.
    const GET: libc::c_ulong = 0x801C_581F;
    const REALTIME: u32 = 1;
    // struct fsxattr: flags, extent size, extents, project, cow extent size, 8 bytes to spare.
    let mut told = [0u32; 7];
    // SAFETY: a writable place of the structure's 28 bytes.
    let answer = unsafe { libc::ioctl(fd, GET as _, told.as_mut_ptr()) };
    answer == 0 && told[0] & REALTIME != 0
}

/// The magic number of the file system that holds `fd`.
pub(crate) fn file_system_magic(fd: RawFd) -> i64 {
    // SAFETY: a zeroed statfs is a valid value for the kernel to overwrite.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `statfs` is writable.
    if unsafe { libc::fstatfs(fd, &mut statfs) } < 0 { 0 } else { statfs.f_type }
}

/// `cachestat` (Linux 6.5): pages of the range that are in the page cache. A negative errno on failure.
pub(crate) fn cachestat(fd: RawFd, offset: u64, len: u64) -> Result<u64, i32> {
    const CACHESTAT: libc::c_long = 451;
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }
    let range = Range { offset, len };
    let mut counts = [0u64; 5];
    // SAFETY: both structures have the layout of linux/mman.h and live through the call.
    let rc = unsafe { libc::syscall(CACHESTAT, fd, &range, counts.as_mut_ptr(), 0) };
    if rc < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(counts[0]) }
}

/// Whether this process owns the file or has it open for writing.
pub(crate) fn owns_or_writes(fd: RawFd) -> bool {
    // SAFETY: no pointers are passed.
    let (flags, user) = unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::geteuid()) };
    flags & libc::O_ACCMODE != libc::O_RDONLY || user == 0 || stat(fd).is_ok_and(|stat| stat.st_uid == user)
}

/// Whether a file is open, or mapped, for writing anywhere. An errno where the kernel does not tell.
///
/// A read lease tells; it is given back at once. `fd` is open for reading only, and its open file description is ours alone.
/// If a writer opens the file meanwhile the kernel signals the description's owner: `thread`, which blocks SIGIO.
pub(crate) fn is_open_for_writing(fd: RawFd, thread: i32) -> Result<bool, i32> {
    /// `F_SETOWN_EX`, and its owner that is a thread.
    const SET_OWNER: i32 = 15;
    const THREAD: i32 = 0;
    let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    let owner = [THREAD, thread];
    // SAFETY: a readable `struct f_owner_ex`.
    if unsafe { libc::fcntl(fd, SET_OWNER, owner.as_ptr()) } < 0 {
        return Err(errno());
    }
    // SAFETY: no pointers are passed.
    if unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) } < 0 {
        return match errno() {
            libc::EAGAIN => Ok(true),
            errno => Err(errno),
        };
    }
    // Another thread that asked at the same time may have given the lease back.
    // SAFETY: as above.
    unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
    Ok(false)
}

/// Blocks SIGIO for the calling thread. Returns the thread's number.
pub(crate) fn take_no_sigio() -> i32 {
    // SAFETY: an all-zero signal set is a valid place for `sigemptyset`; the old mask is not asked for.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGIO);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::gettid()
    }
}

/// Whether all pages of a range of whole pages are in this process's page tables, by an open `/proc/self/pagemap`. `None`
/// before Linux 6.7.
pub(crate) fn has_all_pages(pagemap: RawFd, address: u64, len: u64) -> Option<bool> {
    /// `PAGEMAP_SCAN`, and the category of pages that are there.
    const SCAN: libc::c_ulong = 0xC060_6610;
    const PRESENT: u64 = 1 << 3;
    // struct page_region: the first range that was found.
    let mut found = [0u64; 3];
    // struct pm_scan_arg: size, flags, start, end, where the walk ended, the place for what is found and its length, the
    // most pages, categories: inverted, all of these, any of these, to be told.
    let end = address + len;
    let place = found.as_mut_ptr() as u64;
    let mut scan = [96, 0, address, end, 0, place, 1, 1, PRESENT, PRESENT, 0, PRESENT];
    // SAFETY: the structure has the layout of linux/fs.h, and the place has room for one range.
    let count = unsafe { libc::ioctl(pagemap, SCAN as _, scan.as_mut_ptr()) };
    // The scan looks for missing pages.
    (count >= 0).then_some(count == 0)
}

/// A length in bytes: of a regular file by `fstat`, of a block device by asking it.
pub(crate) fn length(fd: RawFd) -> Result<u64> {
    let stat = stat(fd)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFBLK {
        return Ok(stat.st_size as u64);
    }
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut bytes = 0u64;
    // SAFETY: the request writes one u64.
    if unsafe { libc::ioctl(fd, BLKGETSIZE64, &mut bytes) } < 0 {
        return Err(Error::last_os("cannot read the block device's size"));
    }
    Ok(bytes)
}

/// `fallocate`. An error is an errno.
pub(crate) fn allocate(fd: RawFd, mode: i32, start: u64, len: u64) -> std::result::Result<(), i32> {
    // SAFETY: no pointers are passed.
    let rc = unsafe { libc::fallocate(fd, mode, start as libc::off_t, len as libc::off_t) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) }
}

/// How long a file of this process may become (`ulimit -f`).
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur
}

/// Maps a range of a file, shared, and brings in none of its pages. In a program that called `mlockall(MCL_FUTURE)` the kernel reads
/// and locks all pages of a new mapping at once; to one without access no page comes, and then the lock is taken off.
///
/// # Safety
/// `place` is null, or the beginning of reserved addresses that this takes the place of.
pub(crate) unsafe fn map_file(
    fd: RawFd,
    (from, len): (u64, usize),
    access: libc::c_int,
    place: *mut u8,
) -> Result<usize> {
    let fixed = if place.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
    // SAFETY: a fresh mapping, or as promised by the caller.
    let start = unsafe { libc::mmap(place.cast(), len, libc::PROT_NONE, flags, fd, from as libc::off_t) };
    if start == libc::MAP_FAILED {
        return Err(Error::last_os("cannot map the file").with("bytes", len));
    }
    // SAFETY: mapped above; nothing uses it yet.
    let is_ready = unsafe { libc::munlock(start, len) == 0 && libc::mprotect(start, len, access) == 0 };
    if is_ready {
        return Ok(start as usize);
    }
    let error = Error::last_os("cannot map the file").with("bytes", len);
    if place.is_null() {
        // SAFETY: the same. A place that was reserved is its owner's to give back.
        unsafe { libc::munmap(start, len) };
    }
    Err(error)
}

/// A counter in the kernel.
pub(crate) fn eventfd() -> Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os("cannot create an eventfd"));
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Anonymous memory of whole pages, zeroed, given back on drop. Huge pages where the system has them.
#[derive(Debug)]
pub(crate) struct Pages {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory; who may touch which part of it when is its owner's business.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    const HUGE: usize = 2 << 20;

    pub(crate) fn new(len: usize) -> Result<Self> {
        let len = len.next_multiple_of(4096);
        let over = len + Self::HUGE;
        // SAFETY: a fresh anonymous mapping; no address is asked for.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                over,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(Error::last_os("cannot allocate host memory").with("bytes", len));
        }
        // Trim to a huge-page boundary, so that the kernel can back it with huge pages.
        let address = raw as usize;
        let start = address.next_multiple_of(Self::HUGE);
        // SAFETY: both trimmed ranges belong to the mapping made above and nothing uses them.
        unsafe {
            if start > address {
                libc::munmap(raw, start - address);
            }
            let end = address + over;
            if end > start + len {
                libc::munmap((start + len) as *mut _, end - (start + len));
            }
            libc::madvise(start as *mut _, len, libc::MADV_HUGEPAGE);
        }
        Ok(Self { start: start as *mut u8, len })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and is not used any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Restricts the calling thread to the CPUs of a NUMA node, if the machine has more than one node.
pub(crate) fn bind_to_node(node: u32) {
    if Path::new("/sys/devices/system/node/node1").exists() {
        let list = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
        let wanted = list.map(|text| cpu_list(&text)).unwrap_or_default();
        // SAFETY: a zeroed CPU set is the empty set; both calls are given its size.
        unsafe {
            let mut allowed: libc::cpu_set_t = std::mem::zeroed();
            let size = size_of::<libc::cpu_set_t>();
            if libc::sched_getaffinity(0, size, &mut allowed) < 0 {
                return;
            }
            let mut both: libc::cpu_set_t = std::mem::zeroed();
            wanted
                .iter()
                .filter(|cpu| **cpu < libc::CPU_SETSIZE as usize && libc::CPU_ISSET(**cpu, &allowed))
                .for_each(|cpu| libc::CPU_SET(*cpu, &mut both));
            if libc::CPU_COUNT(&both) > 0 {
                libc::sched_setaffinity(0, size, &both);
            }
        }
    }
}

/// Prepares a thread of ours that works for a device: it runs on CPUs near the device, and its short waits are short.
pub(crate) fn settle_thread(numa_node: Option<u32>) {
    if let Some(node) = numa_node {
        bind_to_node(node);
    }
    // SAFETY: no pointers are passed; the timer slack is the thread's own.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_and_zero() {
        let pages = Pages::new(5000).unwrap();
        assert_eq!(pages.as_ptr() as usize % Pages::HUGE, 0);
        assert_eq!(pages.len(), 8192);
        // SAFETY: 8192 mapped bytes.
        assert!(unsafe { std::slice::from_raw_parts(pages.as_ptr(), 8192) }.iter().all(|byte| *byte == 0));
    }
}
