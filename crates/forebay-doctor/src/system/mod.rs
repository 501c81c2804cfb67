//! The seam to the machine: every question that a probe may ask it.
//!
//! [`RealSystem`] is the machine that the program runs on, [`RootedSystem`] a machine by its files alone,
//! [`ProcessView`] the machine as a running process sees it.

mod collected;
mod process;
mod rooted;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use forebay_config::env;
use forebay_config::files::{self, MAX_TEXT_BYTES};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit};

pub use collected::{COLLECT, CollectedFiles};
pub use process::ProcessView;
pub use rooted::RootedSystem;

/// The result of `uname`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uname {
    /// Kernel release, as `6.18.44`.
    pub release: String,
    /// Instruction set, as `x86_64`.
    pub machine: String,
    /// Host name.
    pub host: String,
}

/// The pause settings of an interface (`ethtool -a`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseFrames {
    /// It reacts to pause frames.
    pub rx: bool,
    /// It sends pause frames.
    pub tx: bool,
}

/// The machine, as far as probes look at it.
pub trait System {
    /// The bytes of a file of the kernel (`/proc`, `/sys`), or of a plain file of at most [`MAX_TEXT_BYTES`].
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    /// The bytes of a file that a variable of a program names: plain files only: reading `/proc/kmsg` would consume it.
    fn read_plain(&self, path: &str) -> io::Result<Vec<u8>> {
        self.read(path)
    }
    /// Names in a directory, sorted; empty if it cannot be listed.
    fn list(&self, path: &str) -> Vec<String>;
    /// Whether the path exists.
    fn exists(&self, path: &str) -> bool;
    /// Whether the path is a directory.
    fn is_dir(&self, path: &str) -> bool;
    /// The path without symbolic links, if it exists.
    fn resolve(&self, path: &str) -> Option<String>;
    /// The target of a symbolic link.
    fn link(&self, path: &str) -> Option<String>;
    /// An environment variable.
    fn env(&self, name: &str) -> Option<String>;
    /// Kernel, machine, host.
    fn uname(&self) -> Uname;
    /// Tries to make an io_uring; the errno if that fails.
    fn io_uring(&self) -> Result<(), i32>;
    /// The soft RLIMIT_MEMLOCK in bytes; `None` is unlimited.
    fn memlock(&self) -> Option<u64>;
    /// CPUs that this process may run on.
    fn cpus(&self) -> usize;
    /// Whether this user may read (or write) there.
    fn access(&self, path: &str, write: bool) -> bool;
    /// Bytes that this user may still write to the file system of `path`.
    fn free_space(&self, path: &str) -> Option<u64>;
    /// Device number of the file system that holds `path`.
    fn device_number(&self, path: &str) -> Option<(u32, u32)>;
    /// The working directory.
    fn cwd(&self) -> String;
    /// Bytes of a regular file; `None` for all else.
    fn file_len(&self, path: &str) -> Option<u64>;
    /// The kernel's log, and where it was read.
    fn kernel_log(&self) -> io::Result<(String, String)>;
    /// The pause frames of a network interface.
    fn pause_frames(&self, interface: &str) -> Option<PauseFrames>;
    /// Whether these are another machine's files, some of which may not have been copied.
    fn is_copy(&self) -> bool {
        false
    }

    /// The text of a file as it is: lines can be counted in it; `None` if it cannot be read.
    fn whole_text(&self, path: &str) -> Option<String> {
        self.read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The text of a file without white space at its ends; `None` if it cannot be read.
    fn text(&self, path: &str) -> Option<String> {
        self.whole_text(path).map(|text| text.trim().to_owned())
    }

    /// The number in a file (decimal, or hexadecimal with `0x`).
    fn number(&self, path: &str) -> Option<i64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }
}

/// The machine that this program runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealSystem;

/// Time limit for a mount whose server is gone.
const HANG_LIMIT: Duration = Duration::from_secs(2);

/// Asks the file system of `path` on its own thread: some never answer.
fn with_time_limit<T: Send + 'static>(
    path: &str,
    ask: impl FnOnce(&str) -> Option<T> + Send + 'static,
) -> Option<T> {
    let path = path.to_owned();
    files::within(HANG_LIMIT, move || ask(&path)).flatten()
}

/// Reads a plain file of a user.
fn plain_bytes(path: &str) -> io::Result<Vec<u8>> {
    with_time_limit(path, |path| Some(files::read_plain_bytes(path.as_ref(), MAX_TEXT_BYTES)))
        .unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// Whether the file is on one of the kernel's own file systems, which always answer. Another process's root is not.
fn is_of_kernel(path: &str) -> bool {
    let below = |dir: &str| path.starts_with(dir);
    (below("/proc/") || below("/sys/")) && path.split('/').nth(3).is_none_or(|name| name != "root")
}

/// `<5>[ 1.0] …` as dmesg shows it.
fn without_level(line: &str) -> &str {
    line.strip_prefix('<').and_then(|rest| Some(rest.split_once('>')?.1)).unwrap_or(line)
}

fn names(path: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort_unstable();
    names
}

impl System for RealSystem {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        if is_of_kernel(path) { std::fs::read(path) } else { plain_bytes(path) }
    }

    fn read_plain(&self, path: &str) -> io::Result<Vec<u8>> {
        plain_bytes(path)
    }

    fn list(&self, path: &str) -> Vec<String> {
        // The kernel's own file systems always answer.
        if ["/proc", "/sys"].iter().any(|dir| path.starts_with(dir)) {
            return names(path);
        }
        with_time_limit(path, |path| Some(names(path))).unwrap_or_default()
    }

    fn exists(&self, path: &str) -> bool {
        if is_of_kernel(path) {
            return Path::new(path).exists();
        }
        with_time_limit(path, |path| Some(Path::new(path).exists())).unwrap_or(false)
    }

    fn is_dir(&self, path: &str) -> bool {
        with_time_limit(path, |path| Some(Path::new(path).is_dir())).unwrap_or(false)
    }

    fn resolve(&self, path: &str) -> Option<String> {
        with_time_limit(path, |path| Some(std::fs::canonicalize(path).ok()?.to_string_lossy().into_owned()))
    }

    fn link(&self, path: &str) -> Option<String> {
        Some(std::fs::read_link(path).ok()?.to_string_lossy().into_owned())
    }

    fn env(&self, name: &str) -> Option<String> {
        env::text(name).filter(|value| !value.is_empty())
    }

    fn uname(&self) -> Uname {
        let name = rustix::system::uname();
        let text = |field: &CStr| field.to_string_lossy().into_owned();
        Uname { release: text(name.release()), machine: text(name.machine()), host: text(name.nodename()) }
    }

    fn io_uring(&self) -> Result<(), i32> {
        // struct io_uring_params is 120 bytes, all zero for a plain ring.
        let mut params = [0u64; 15];
        // SAFETY: `params` is a zeroed io_uring_params that outlives the call.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4u32, params.as_mut_ptr()) };
        if fd < 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        // SAFETY: the call returned a new descriptor that nobody else owns; it is closed here.
        let ring = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        debug_assert!(ring.as_raw_fd() >= 0);
        Ok(())
    }

    fn memlock(&self) -> Option<u64> {
        getrlimit(Resource::Memlock).current
    }

    fn cpus(&self) -> usize {
        forebay_config::allowed_cpus()
    }

    fn access(&self, path: &str, write: bool) -> bool {
        let mode = if write { Access::WRITE_OK } else { Access::READ_OK };
        let ask = move |path: &str| accessat(CWD, path, mode, AtFlags::EACCESS).ok();
        with_time_limit(path, ask).is_some()
    }

    fn free_space(&self, path: &str) -> Option<u64> {
        with_time_limit(path, |path| {
            let stat = rustix::fs::statvfs(path).ok()?;
            Some(stat.f_bavail * stat.f_frsize)
        })
    }

    fn device_number(&self, path: &str) -> Option<(u32, u32)> {
        let device = std::fs::metadata(path).ok()?.dev();
        Some((libc::major(device), libc::minor(device)))
    }

    fn cwd(&self) -> String {
        std::env::current_dir().map_or_else(|_| "/".to_owned(), |dir| dir.to_string_lossy().into_owned())
    }

    fn file_len(&self, path: &str) -> Option<u64> {
        with_time_limit(path, |path| {
            std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file).map(|facts| facts.len())
        })
    }

    fn kernel_log(&self) -> io::Result<(String, String)> {
        const READ_ALL: libc::c_int = 3;
        const SIZE: libc::c_int = 10;
        // SAFETY: this action takes no buffer.
        let size = unsafe { libc::klogctl(SIZE, std::ptr::null_mut(), 0) };
        let mut log = vec![0u8; usize::try_from(size).map_err(|_| io::Error::last_os_error())?];
        // SAFETY: the buffer has that many bytes.
        let read = unsafe { libc::klogctl(READ_ALL, log.as_mut_ptr().cast(), size) };
        log.truncate(usize::try_from(read).map_err(|_| io::Error::last_os_error())?);
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().map(without_level).collect();
        Ok((lines.join("\n"), "the kernel's log (dmesg)".to_owned()))
    }

    fn pause_frames(&self, interface: &str) -> Option<PauseFrames> {
        pause_frames(interface)
    }
}

/// Asks the driver of a network interface, as `ethtool -a` does.
fn pause_frames(interface: &str) -> Option<PauseFrames> {
    const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    // struct ethtool_pauseparam: cmd, autoneg, rx_pause, tx_pause.
    let mut words = [ETHTOOL_GPAUSEPARAM, 0, 0, 0];
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let socket = socket.ok()?;
    // SAFETY: `request` and the words that it points to outlive the call, which writes no more than these.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    (code == 0).then_some(PauseFrames { rx: words[2] != 0, tx: words[3] != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_machine_answers() {
        assert!(!RealSystem.uname().release.is_empty());
        assert!(RealSystem.cpus() >= 1);
        assert!(RealSystem.is_dir("/") && RealSystem.exists("/proc"));
        assert!(RealSystem.device_number("/").is_some());
        assert!(RealSystem.free_space("/").is_some());
        assert!(!RealSystem.access("/no/such/thing", false));
        assert!(RealSystem.list("/no/such/thing").is_empty());
        assert_eq!(RealSystem.resolve("/no/such/thing"), None);
        assert_eq!(without_level("<5>[    1.0] nfs: a <b>"), "[    1.0] nfs: a <b>");
        assert_eq!(without_level("[    1.0] x"), "[    1.0] x");
    }
}
