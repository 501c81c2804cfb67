//! The system calls that the standard library lacks, each a thin function. What rustix has is asked of it, for less `unsafe`; raw
//! memory that others may touch is read and written by libc, since a slice of it would be a wrong promise.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use forebay_error::{Error, Result};
use forebay_source::HostRange;
use forebay_sys::kernel_text::cpu_list;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, SealFlags, Stat, Statx, StatxAttributes, StatxFlags,
};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::process::{Resource, geteuid, getrlimit};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity, set_current_timer_slack};

/// The errno of the libc call that failed last.
fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A descriptor for a call, which may be the program's and closed meanwhile: the call then fails with EBADF.
pub(crate) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // The type forbids -1, and rustix other numbers below 0. No table of descriptors reaches the highest.
    let number = if fd < 0 { i32::MAX } else { fd };
    // SAFETY: not as the type asks: the number may be closed, or name another file. What gets it only passes the number to one call of
    // the kernel's, neither closes nor keeps it, and takes no promise of memory from it.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// `preadv2` with one buffer; with `nowait` only bytes that are in the page cache already.
///
/// # Safety
/// The memory is writable.
pub(crate) unsafe fn read_at(fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
    let got = if nowait {
        let iov = iovec(memory);
        // SAFETY: the caller vouches for the buffer; the iovec lives through the call.
        unsafe { libc::preadv2(fd, &iov, 1, offset as libc::off_t, libc::RWF_NOWAIT) }
    } else {
        // SAFETY: the caller vouches for the buffer.
        unsafe { libc::pread(fd, memory.start.cast(), memory.len, offset as libc::off_t) }
    };
    if got < 0 { -(last_errno() as isize) } else { got }
}

/// Memory as the kernel takes it.
pub(crate) fn iovec(memory: HostRange) -> libc::iovec {
    libc::iovec { iov_base: memory.start.cast(), iov_len: memory.len }
}

/// `pwrite`.
///
/// # Safety
/// The memory is readable.
pub(crate) unsafe fn write_at(fd: RawFd, memory: HostRange, offset: u64) -> isize {
    // SAFETY: the caller vouches for the buffer.
    let put = unsafe { libc::pwrite(fd, memory.start.cast(), memory.len, offset as libc::off_t) };
    if put < 0 { -(last_errno() as isize) } else { put }
}

/// Opens a file with raw flags.
pub(crate) fn open(path: &Path, flags: i32, mode: u32) -> Result<OwnedFd, i32> {
    let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::from_raw_mode(mode)))
        .map_err(rustix::io::Errno::raw_os_error)
}

/// `fstat`.
pub(crate) fn stat(fd: RawFd) -> Result<Stat> {
    rustix::fs::fstat(borrow(fd)).map_err(|errno| failed(errno, "cannot read the file's attributes"))
}

fn failed(errno: rustix::io::Errno, doing: &str) -> Error {
    Error::from_errno(errno.raw_os_error(), doing)
}

/// `statx` of an open file.
fn statx(fd: RawFd, flags: AtFlags, mask: StatxFlags) -> Option<Statx> {
    rustix::fs::statx(borrow(fd), c"", flags | AtFlags::EMPTY_PATH, mask).ok()
}

/// When the file was made, where its file system keeps that: seconds and nanoseconds since 1970.
pub(crate) fn made(fd: RawFd) -> Option<(i64, i64)> {
    let about = statx(fd, AtFlags::empty(), StatxFlags::BTIME)?;
    let is_known = about.stx_mask & StatxFlags::BTIME.bits() != 0;
    is_known.then(|| (about.stx_btime.tv_sec, i64::from(about.stx_btime.tv_nsec)))
}

/// The handle by which a server of the file system would name the file: inode and generation, as a rule. `None` where the file system
/// has none, or a container's profile forbids the call.
pub(crate) fn handle(fd: RawFd) -> Option<Vec<u8>> {
    /// `MAX_HANDLE_SZ`.
    const MOST: usize = 128;
    #[repr(C)]
    struct Handle {
        len: u32,
        kind: i32,
        bytes: [u8; MOST],
    }
    let (mut handle, mut mount) = (Handle { len: MOST as u32, kind: 0, bytes: [0; MOST] }, 0i32);
    // SAFETY: the structure has the layout of fcntl.h and says how long it is; all places live through the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd,
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    (answer == 0).then(|| handle.bytes[..MOST.min(handle.len as usize)].to_vec())
}

/// The flags that the file was opened with.
pub(crate) fn flags(fd: RawFd) -> Result<i32> {
    let flags = rustix::fs::fcntl_getfl(borrow(fd));
    flags.map(|flags| flags.bits() as i32).map_err(|errno| failed(errno, "cannot use the descriptor"))
}

/// Device and inode, which identify a file.
pub(crate) type Identity = (u64, u64);

/// The file of a descriptor; `None` if it is closed. Unlike `fstat` it asks no server and waits for no writes.
pub(crate) fn identity(fd: RawFd) -> Option<Identity> {
    if let Some(about) = statx(fd, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) {
        return Some((libc::makedev(about.stx_dev_major, about.stx_dev_minor), about.stx_ino));
    }
    // Old profiles of containers forbid `statx`.
    stat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether a memory file is sealed against writing.
pub(crate) fn is_sealed(fd: RawFd) -> bool {
    // Files that cannot be sealed answer with an error.
    rustix::fs::fcntl_get_seals(borrow(fd))
        .is_ok_and(|seals| seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE))
}

/// Whether a memory file may still be sealed.
pub(crate) fn can_be_sealed(fd: RawFd) -> bool {
    rustix::fs::fcntl_get_seals(borrow(fd)).is_ok_and(|seals| !seals.contains(SealFlags::SEAL))
}

/// Memory and offset alignment for O_DIRECT by `statx`: `Some((0, 0))` if the file refuses it, `None` if the kernel
/// does not say.
pub(crate) fn direct_alignment(fd: RawFd) -> Option<(u32, u32)> {
    let about = statx(fd, AtFlags::empty(), StatxFlags::DIOALIGN)?;
    (about.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .then_some((about.stx_dio_mem_align, about.stx_dio_offset_align))
}

/// Whether the file is memory that the kernel does not cache (fsdax).
pub(crate) fn is_dax(fd: RawFd) -> bool {
    statx(fd, AtFlags::empty(), StatxFlags::TYPE)
        .is_some_and(|about| about.stx_attributes.contains(StatxAttributes::DAX))
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
    rustix::fs::fstatfs(borrow(fd)).map_or(0, |about| about.f_type)
}

/// Bytes of a page.
pub(crate) fn page() -> u64 {
    forebay_sys::page_size() as u64
}

/// `cachestat` (Linux 6.5): bytes of the range's pages that are in the page cache, whole pages. An errno on failure.
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
    if rc < 0 { Err(last_errno()) } else { Ok(counts[0] * forebay_sys::kernel_page() as u64) }
}

/// Whether this process owns the file or has it open for writing.
pub(crate) fn owns_or_writes(fd: RawFd) -> bool {
    let user = geteuid();
    flags(fd).is_ok_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
        || user.is_root()
        || stat(fd).is_ok_and(|stat| stat.st_uid == user.as_raw())
}

/// Whether a file is open, or mapped, for writing anywhere. An errno where the kernel does not tell.
///
/// A read lease tells; it is given back at once. `fd` is open for reading only, and its open file description is ours alone.
/// If a writer opens the file meanwhile the kernel signals the description's owner: `thread`, which blocks SIGIO.
pub(crate) fn is_open_for_writing(fd: RawFd, thread: i32) -> Result<bool, i32> {
    /// `F_SETOWN_EX`, and its owner that is a thread.
    const SET_OWNER: i32 = 15;
    const THREAD: i32 = 0;
    let owner = [THREAD, thread];
    // SAFETY: a readable `struct f_owner_ex`.
    if unsafe { libc::fcntl(fd, SET_OWNER, owner.as_ptr()) } < 0 {
        return Err(last_errno());
    }
    // SAFETY: no pointers are passed.
    if unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) } < 0 {
        return match last_errno() {
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
    }
    gettid().as_raw_nonzero().get()
}

/// Whether all pages of a range of whole pages are in this process's page tables, by an open `/proc/self/pagemap`. `None`
/// before Linux 6.7.
pub(crate) fn has_all_pages(pagemap: RawFd, address: u64, len: u64) -> Option<bool> {
    /// `PAGEMAP_SCAN`, and the category of pages that are there.
    const SCAN: libc::c_ulong = 0xC060_6610;
    const PRESENT: u64 = 1 << 3;
    // struct page_region: the first range that was found.
    let mut found = [0u64; 3];
    // struct pm_scan_arg: size, flags, start, end, where the walk ended, the result buffer and its length, the
    // most pages, categories: inverted, all of these, any of these, to return.
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
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
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
pub(crate) fn allocate(
    fd: RawFd,
    mode: FallocateFlags,
    start: u64,
    len: u64,
) -> std::result::Result<(), i32> {
    rustix::fs::fallocate(borrow(fd), mode, start, len).map_err(rustix::io::Errno::raw_os_error)
}

/// How long a file of this process may become (`ulimit -f`).
pub(crate) fn file_size_limit() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Maps a range of a file, shared, and brings in none of its pages. In a program that called `mlockall(MCL_FUTURE)` the kernel reads
/// and locks all pages of a new mapping at once; to one without access no page comes, and then the lock is taken off.
///
/// # Safety
/// `place` is null, or the beginning of reserved addresses that this takes the place of.
pub(crate) unsafe fn map_file(
    fd: RawFd,
    (from, len): (u64, usize),
    access: MprotectFlags,
    place: *mut u8,
) -> Result<usize> {
    let fixed = if place.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | fixed;
    let cannot = |errno| failed(errno, "cannot map the file").with("bytes", len);
    // SAFETY: a fresh mapping, or as promised by the caller.
    let start =
        unsafe { mmap(place.cast(), len, ProtFlags::empty(), flags, borrow(fd), from) }.map_err(cannot)?;
    // SAFETY: mapped above; nothing uses it yet.
    let ready =
        unsafe { rustix::mm::munlock(start, len).and_then(|()| rustix::mm::mprotect(start, len, access)) };
    if ready.is_err() && place.is_null() {
        // SAFETY: the same. A place that was reserved is its owner's to give back.
        let _ = unsafe { rustix::mm::munmap(start, len) };
    }
    ready.map(|()| start as usize).map_err(cannot)
}

/// New anonymous memory, or addresses for it, from a multiple of `align` on; `len` and `align` are of whole pages. `error` says what
/// could not be had.
pub(crate) fn map_aligned(len: usize, align: usize, access: ProtFlags, error: &str) -> Result<*mut u8> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping; no address is asked for.
    let found = unsafe { mmap_anonymous(std::ptr::null_mut(), len + align, access, flags) }
        .map_err(|errno| failed(errno, error).with("bytes", len))?
        .cast::<u8>();
    let before = found.align_offset(align);
    // SAFETY: both ends belong to the mapping made above, and nothing uses them.
    unsafe {
        let start = found.add(before);
        for (end, spare) in [(found, before), (start.add(len), align - before)] {
            if spare > 0 {
                let _ = rustix::mm::munmap(end.cast(), spare);
            }
        }
        Ok(start)
    }
}

/// A counter in the kernel.
pub(crate) fn eventfd() -> Result<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
        .map_err(|errno| failed(errno, "cannot create an eventfd"))
}

/// Anonymous memory of whole pages, zeroed, given back on drop. Huge pages where the system has them.
#[derive(Debug)]
pub(crate) struct Pages(HostRange);

impl Pages {
    const HUGE: usize = 2 << 20;

    pub(crate) fn new(len: usize) -> Result<Self> {
        let len = len.next_multiple_of(page() as usize);
        let start =
            map_aligned(len, Self::HUGE, ProtFlags::READ | ProtFlags::WRITE, "cannot allocate host memory")?;
        // SAFETY: mapped above.
        let _ = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxHugepage) };
        Ok(Self(HostRange::new(start, len)))
    }

    /// All of it: who may touch which part when is its owner's business.
    pub(crate) fn range(&self) -> HostRange {
        self.0
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and is not used any more.
        let _ = unsafe { rustix::mm::munmap(self.0.start.cast(), self.0.len) };
    }
}

/// Restricts the calling thread to the CPUs of a NUMA node, if the machine has more than one node.
pub(crate) fn bind_to_node(node: u32) {
    if Path::new("/sys/devices/system/node/node1").exists() {
        let list = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut both = CpuSet::new();
        list.map(|text| cpu_list(&text))
            .unwrap_or_default()
            .into_iter()
            .filter(|cpu| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu))
            .for_each(|cpu| both.set(cpu));
        if both.count() > 0 {
            let _ = sched_setaffinity(None, &both);
        }
    }
}

/// Prepares a thread of ours that works for a device: it runs on CPUs near the device, and its short waits are short.
pub(crate) fn settle_thread(numa_node: Option<u32>) {
    if let Some(node) = numa_node {
        bind_to_node(node);
    }
    let _ = set_current_timer_slack(std::num::NonZeroU64::new(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_and_zero() {
        let pages = Pages::new(5000).unwrap();
        assert_eq!(pages.range().start as usize % Pages::HUGE, 0);
        assert_eq!(pages.range().len, 8192);
        // SAFETY: all of it is mapped.
        assert!(unsafe { pages.range().bytes() }.iter().all(|byte| *byte == 0));
    }
}
