//! What processes learnt of a machine, for later ones: a small file in the user's cache folder.
//!
//! It only says where to begin: what a process measures itself counts more. So nothing here is an error. A file that is not
//! the user's own, or not understood, is as one that is not there. So is one in a folder that is not the user's own. The cache
//! folder is made where only it is missing, for the user alone, as the XDG specification says.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_config::{ProfileUse, allowed_cpus, env};
use forebay_gpu::DeviceInfo;
use forebay_sys::threads;

use crate::runtime::owned::move_high;

const FIRST_LINE: &str = "forebay profile 1";
/// Larger files are not read, and none is written.
const MAX_BYTES: u64 = 8 << 10;
/// Values that are kept: those written last.
const MAX_LINES: usize = 64;

/// Its folder, in the user's cache folder, and its own name.
const FOLDER: &CStr = c"forebay";
const FILE: &CStr = c"profile";

/// The file, as far as it is about one device of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    cache: PathBuf,
    key: u64,
}

/// `(key, value, name)` of each line.
type Lines = Vec<(u64, usize, String)>;

impl Profile {
    /// `None` if it is switched off, or there is no folder for it.
    pub(crate) fn of(choice: ProfileUse, info: &DeviceInfo) -> Option<Self> {
        let cache = (choice == ProfileUse::Auto).then(env::cache_folder)??;
        Some(Self { cache, key: key_of(info) })
    }

    /// A value that an earlier process kept.
    pub(crate) fn value(&self, name: &str) -> Option<usize> {
        let lines = read(&self.folder(false)?)?;
        lines.into_iter().rev().find(|line| line.0 == self.key && line.2 == name).map(|line| line.1)
    }

    /// Keeps values, by a thread of its own.
    pub(crate) fn keep(&self, values: Vec<(&'static str, usize)>) {
        let this = self.clone();
        // Without a thread nothing is kept.
        let _ = threads::spawn("forebay-profile", move || this.write(&values));
    }

    /// Replaces these values. Other writers at the same time may lose theirs: they measure again.
    fn write(&self, values: &[(&'static str, usize)]) -> Option<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = self.folder(true)?;
        let mut lines = read(&folder).unwrap_or_default();
        lines.retain(|line| line.0 != self.key || values.iter().all(|value| value.0 != line.2));
        lines.extend(values.iter().map(|value| (self.key, value.1, value.0.to_owned())));
        let mut text = format!("{FIRST_LINE}\n");
        for (key, value, name) in lines.iter().skip(lines.len().saturating_sub(MAX_LINES)) {
            writeln!(text, "{key:016x} {value} {name}").ok()?;
        }
        // A reader sees the old file or the new one.
        let new = format!("profile.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (at, new) = (folder.as_raw_fd(), CString::new(new).ok()?);
        let mut file = open(at, &new, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW);
        let is_written = file.as_mut().is_some_and(|file| file.write_all(text.as_bytes()).is_ok());
        // SAFETY: the names live through the calls.
        unsafe {
            if is_written && libc::renameat(at, new.as_ptr(), at, FILE.as_ptr()) == 0 {
                return Some(());
            }
            // Also one that a process with this number left behind.
            libc::unlinkat(at, new.as_ptr(), 0);
        }
        None
    }

    /// The folder of the file. Made where that is asked for, in the user's own folder.
    fn folder(&self, is_made: bool) -> Option<File> {
        let cache = CString::new(self.cache.as_os_str().as_bytes()).ok()?;
        let make = |at, name: &CStr| {
            // SAFETY: the name lives through the call.
            is_made.then(|| unsafe { libc::mkdirat(at, name.as_ptr(), 0o700) })
        };
        make(libc::AT_FDCWD, &cache);
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let cache = open(libc::AT_FDCWD, &cache, flags)?;
        make(cache.as_raw_fd(), FOLDER);
        let folder = open(cache.as_raw_fd(), FOLDER, flags | libc::O_NOFOLLOW)?;
        (folder.metadata().ok()?.mode() & 0o022 == 0).then_some(folder)
    }
}

/// Opens what is the user's own.
fn open(at: RawFd, name: &CStr, flags: i32) -> Option<File> {
    // SAFETY: the name lives through the call; the new descriptor is ours alone.
    let fd = unsafe { libc::openat(at, name.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    // SAFETY: as above.
    let fd = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
    // A number that is hardly ever the program's. To close one of a file's descriptors releases the process's POSIX locks on it:
    // nobody locks these.
    let file = File::from(move_high(fd));
    // SAFETY: no pointers are passed.
    (file.metadata().ok()?.uid() == unsafe { libc::geteuid() }).then_some(file)
}

/// The lines of a file that nobody else could have written.
fn read(folder: &File) -> Option<Lines> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut file = open(folder.as_raw_fd(), FILE, flags)?;
    let facts = file.metadata().ok()?;
    if !facts.is_file() || facts.mode() & 0o022 != 0 || facts.len() > MAX_BYTES {
        return None;
    }
    let mut text = String::new();
    (&mut file).take(MAX_BYTES).read_to_string(&mut text).ok()?;
    parse(&text)
}

/// `None` for a text that is not wholly understood, also one that was cut off.
fn parse(text: &str) -> Option<Lines> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let parts = |line: &str| {
        let (key, rest) = line.split_once(' ')?;
        let (value, name) = rest.split_once(' ')?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte == b' ' || byte.is_ascii_lowercase());
        let key = (key.len() == 16).then(|| u64::from_str_radix(key, 16).ok())??;
        is_name.then_some((key, value.parse().ok()?, name.to_owned()))
    };
    lines.map(parts).collect()
}

/// What must be the same for values to hold: machine, CPUs, kernel, driver and device.
fn key_of(info: &DeviceInfo) -> u64 {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut all =
        text("/etc/machine-id") + &text("/proc/sys/kernel/osrelease") + &text("/sys/module/nvidia/version");
    all += &cpu_model();
    let _ = write!(all, "{} {} {:?} {}", allowed_cpus(), info.driver_version, info.uuid, info.pci);
    // FNV-1a.
    all.bytes()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// The CPU's name for itself. `/proc/cpuinfo` asks every CPU.
fn cpu_model() -> String {
    use std::arch::x86_64::__cpuid;
    let words = (0x8000_0002..=0x8000_0004u32).flat_map(|leaf| {
        let found = __cpuid(leaf);
        [found.eax, found.ebx, found.ecx, found.edx]
    });
    String::from_utf8_lossy(&words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const KEY: u64 = 0x0123_4567_89AB_CDEF;

    /// A profile in a folder of its own, which goes with it.
    struct Kept(Profile);

    impl Kept {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("forebay-profile-{name}-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Self(Profile { cache: folder, key: KEY })
        }

        fn folder(&self) -> PathBuf {
            self.0.cache.join("forebay")
        }

        fn path(&self) -> PathBuf {
            self.folder().join("profile")
        }

        /// With this as its file.
        fn with(name: &str, text: &[u8]) -> Self {
            let kept = Self::new(name);
            kept.0.write(&[("page cache", 1)]).unwrap();
            fs::write(kept.path(), text).unwrap();
            kept
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.cache);
        }
    }

    #[test]
    fn values_are_kept_by_device() {
        let kept = Kept::new("kept");
        assert_eq!(kept.0.value("page cache"), None);
        kept.0.write(&[("page cache", 12), ("tmpfs", 9)]).unwrap();
        kept.0.write(&[("page cache", 11)]).unwrap();
        assert_eq!((kept.0.value("page cache"), kept.0.value("tmpfs")), (Some(11), Some(9)));
        let other = Profile { key: KEY + 1, ..kept.0.clone() };
        assert_eq!(other.value("page cache"), None, "another machine's");
        let all: Vec<_> = fs::read_dir(kept.folder()).unwrap().collect();
        assert_eq!(all.len(), 1, "no half-written file stays: {all:?}");
    }

    #[test]
    fn the_file_stays_small() {
        let kept = Kept::new("small");
        for key in 0..200 {
            Profile { key, ..kept.0.clone() }.write(&[("page cache", 8)]).unwrap();
        }
        let text = fs::read_to_string(kept.path()).unwrap();
        assert_eq!(text.lines().count(), MAX_LINES + 1);
        assert!(text.len() as u64 <= MAX_BYTES);
        assert_eq!(Profile { key: 199, ..kept.0.clone() }.value("page cache"), Some(8));
    }

    #[test]
    fn a_file_that_is_not_understood_says_nothing() {
        let line = format!("{KEY:016x} 12 page cache\n");
        let good = format!("{FIRST_LINE}\n{line}");
        assert_eq!(Kept::with("good", good.as_bytes()).0.value("page cache"), Some(12));
        let bad = [
            String::new(),
            good[..good.len() - 1].to_owned(),
            good[..good.len() - 12].to_owned(),
            line.clone(),
            format!("forebay profile 2\n{line}"),
            format!("{good}{KEY:016x} -1 page cache\n"),
            format!("{good}{KEY:016x} 99999999999999999999 page cache\n"),
            format!("{good}12 page cache\n"),
            format!("{FIRST_LINE}\n{}", line.repeat(400)),
            format!("{good}\0\n"),
        ];
        for (at, text) in bad.into_iter().enumerate() {
            let kept = Kept::with(&format!("bad-{at}"), text.as_bytes());
            assert_eq!(kept.0.value("page cache"), None, "{text:?}");
            // It is replaced.
            kept.0.write(&[("page cache", 7)]).unwrap();
            assert_eq!(kept.0.value("page cache"), Some(7));
        }
    }

    #[test]
    fn a_file_that_others_could_have_written_says_nothing() {
        let good = format!("{FIRST_LINE}\n{KEY:016x} 12 page cache\n");
        for mode in [0o620, 0o602, 0o666] {
            let kept = Kept::with(&format!("mode-{mode:o}"), good.as_bytes());
            fs::set_permissions(kept.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(kept.0.value("page cache"), None, "{mode:o}");
        }
        assert_eq!(Kept::with("bytes", b"\xFF\xFE\n").0.value("page cache"), None);
        let kept = Kept::with("link", good.as_bytes());
        let real = kept.path().with_extension("real");
        fs::rename(kept.path(), &real).unwrap();
        symlink(&real, kept.path()).unwrap();
        assert_eq!(kept.0.value("page cache"), None, "a symbolic link");
        let kept = Kept::with("folder", good.as_bytes());
        fs::remove_file(kept.path()).unwrap();
        fs::create_dir(kept.path()).unwrap();
        assert_eq!((kept.0.value("page cache"), kept.0.write(&[("tmpfs", 1)])), (None, None));
        // SAFETY: no pointers are passed.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: a file of another user (only root can make one)");
            return;
        }
        let kept = Kept::with("foreign", good.as_bytes());
        chown(kept.path(), Some(65534), None).unwrap();
        assert_eq!(kept.0.value("page cache"), None, "another user's");
    }

    #[test]
    fn a_folder_that_others_could_have_made_is_not_used() {
        let text = format!("{FIRST_LINE}\n{KEY:016x} 12 page cache\n");
        let both = |kept: &Kept| (kept.0.value("page cache"), kept.0.write(&[("page cache", 1)]));
        let kept = Kept::with("folder-mode", text.as_bytes());
        fs::set_permissions(kept.folder(), fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(both(&kept), (None, None), "a group's");
        let kept = Kept::with("folder-link", text.as_bytes());
        let real = kept.0.cache.join("real");
        fs::rename(kept.folder(), &real).unwrap();
        symlink(&real, kept.folder()).unwrap();
        assert_eq!(both(&kept), (None, None), "a symbolic link");
        // SAFETY: no pointers are passed.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: a folder of another user (only root can make one)");
            return;
        }
        for which in [Kept::folder, |kept: &Kept| kept.0.cache.clone()] {
            let kept = Kept::with("folder-foreign", text.as_bytes());
            chown(which(&kept), Some(65534), None).unwrap();
            assert_eq!(both(&kept), (None, None), "another user's: {:?}", which(&kept));
        }
        let kept = Kept::new("foreign-home");
        chown(&kept.0.cache, Some(65534), None).unwrap();
        assert_eq!(both(&kept), (None, None));
        assert!(!kept.folder().exists(), "nothing is made in another user's folder");
    }

    #[test]
    fn several_writers_at_once_write_whole_files() {
        let kept = Kept::new("writers");
        std::thread::scope(|scope| {
            for key in 0..4 {
                let profile = Profile { key, ..kept.0.clone() };
                scope.spawn(move || {
                    for value in 1..100 {
                        assert_eq!(profile.write(&[("page cache", value)]), Some(()));
                        let folder = profile.folder(false).unwrap();
                        assert!(read(&folder).is_some_and(|lines| !lines.is_empty()));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(kept.folder()).unwrap().count(), 1, "no half-written file stays");
    }

    #[test]
    fn the_folder_may_be_missing_or_forbidden() {
        let home = Kept::new("home");
        let in_folder = |path: &str| {
            let profile = Profile { cache: home.0.cache.join(path), key: KEY };
            (profile.value("page cache"), profile.write(&[("page cache", 1)]))
        };
        assert_eq!(in_folder("no-home/.cache"), (None, None));
        assert!(!home.0.cache.join("no-home").exists());
        assert_eq!(in_folder("/proc"), (None, None));
        assert_eq!(in_folder(".cache"), (None, Some(())), "as the XDG specification says");
        assert_eq!(fs::metadata(home.0.cache.join(".cache")).unwrap().mode() & 0o777, 0o700);
        let info = forebay_gpu::Devices::discover().host.info().clone();
        assert!(Profile::of(ProfileUse::Off, &info).is_none());
        assert_eq!(key_of(&info), key_of(&info));
        let other = DeviceInfo { uuid: [7; 16], ..info.clone() };
        assert_ne!(key_of(&info), key_of(&other));
    }
}
