//! What processes learnt of a machine, for later ones: a small file in the user's cache folder.
//!
//! It only says where to begin: what a process measures itself counts more. So nothing here is an error. A file that is not
//! the user's own, or not understood, is as one that is not there.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_config::{ProfileUse, allowed_cpus, env};
use forebay_gpu::DeviceInfo;
use forebay_sys::threads;

use crate::runtime::owned::apart;

const HEAD: &str = "forebay profile 1";
/// Larger files are not read, and none is written.
const MOST_BYTES: u64 = 8 << 10;
/// Values that are kept: those written last.
const MOST_LINES: usize = 64;

/// The file, as far as it is about one device of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    path: PathBuf,
    key: u64,
}

/// `(key, value, name)` of each line.
type Lines = Vec<(u64, usize, String)>;

impl Profile {
    /// `None` if it is switched off, or there is no folder for it.
    pub(crate) fn of(choice: ProfileUse, info: &DeviceInfo) -> Option<Self> {
        let folder = (choice == ProfileUse::Auto).then(env::cache_folder)??;
        Some(Self { path: folder.join("forebay/profile"), key: key_of(info) })
    }

    /// A value that an earlier process kept.
    pub(crate) fn value(&self, name: &str) -> Option<usize> {
        let lines = read(&self.path)?;
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
        let mut lines = read(&self.path).unwrap_or_default();
        lines.retain(|line| line.0 != self.key || values.iter().all(|value| value.0 != line.2));
        lines.extend(values.iter().map(|value| (self.key, value.1, value.0.to_owned())));
        let mut text = format!("{HEAD}\n");
        for (key, value, name) in lines.iter().skip(lines.len().saturating_sub(MOST_LINES)) {
            writeln!(text, "{key:016x} {value} {name}").ok()?;
        }
        let folder = self.path.parent()?;
        if !folder.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        }
        // A reader sees the old file or the new one.
        let new = folder.join(format!("profile.{}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&new);
        // One that a process with this number left behind.
        let file = file.inspect_err(|_| drop(fs::remove_file(&new))).ok()?;
        let written = high(file).write_all(text.as_bytes()).and_then(|()| fs::rename(&new, &self.path));
        written.inspect_err(|_| drop(fs::remove_file(&new))).ok()
    }
}

/// The lines of a file that is the user's own and of nobody else's making.
fn read(path: &Path) -> Option<Lines> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut file = high(OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?);
    let facts = file.metadata().ok()?;
    // SAFETY: no pointers are passed.
    let is_own = facts.uid() == unsafe { libc::geteuid() };
    if !facts.is_file() || !is_own || facts.mode() & 0o022 != 0 || facts.len() > MOST_BYTES {
        return None;
    }
    let mut text = String::new();
    (&mut file).take(MOST_BYTES).read_to_string(&mut text).ok()?;
    parse(&text)
}

/// `None` for a text that is not wholly understood, also one that was cut off.
fn parse(text: &str) -> Option<Lines> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    if lines.next()? != HEAD {
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

/// Under a number that is hardly ever the program's. To close one of a file's descriptors releases the process's POSIX locks on it:
/// nobody locks this file.
fn high(file: File) -> File {
    File::from(apart(OwnedFd::from(file)))
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
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: u64 = 0x0123_4567_89AB_CDEF;

    /// A profile in a folder of its own, which goes with it.
    struct Kept(Profile);

    impl Kept {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("forebay-profile-{name}-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Self(Profile { path: folder.join("forebay/profile"), key: KEY })
        }

        /// With this as its file.
        fn with(name: &str, text: &[u8]) -> Self {
            let kept = Self::new(name);
            kept.0.write(&[("page cache", 1)]).unwrap();
            fs::write(&kept.0.path, text).unwrap();
            kept
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.path.parent().unwrap().parent().unwrap());
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
        let all: Vec<_> = fs::read_dir(kept.0.path.parent().unwrap()).unwrap().collect();
        assert_eq!(all.len(), 1, "no half-written file stays: {all:?}");
    }

    #[test]
    fn the_file_stays_small() {
        let kept = Kept::new("small");
        for key in 0..200 {
            Profile { key, ..kept.0.clone() }.write(&[("page cache", 8)]).unwrap();
        }
        let text = fs::read_to_string(&kept.0.path).unwrap();
        assert_eq!(text.lines().count(), MOST_LINES + 1);
        assert!(text.len() as u64 <= MOST_BYTES);
        assert_eq!(Profile { key: 199, ..kept.0.clone() }.value("page cache"), Some(8));
    }

    #[test]
    fn a_file_that_is_not_understood_says_nothing() {
        let line = format!("{KEY:016x} 12 page cache\n");
        let good = format!("{HEAD}\n{line}");
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
            format!("{HEAD}\n{}", line.repeat(400)),
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
        let good = format!("{HEAD}\n{KEY:016x} 12 page cache\n");
        for mode in [0o620, 0o602, 0o666] {
            let kept = Kept::with(&format!("mode-{mode:o}"), good.as_bytes());
            fs::set_permissions(&kept.0.path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(kept.0.value("page cache"), None, "{mode:o}");
        }
        assert_eq!(Kept::with("bytes", b"\xFF\xFE\n").0.value("page cache"), None);
        let kept = Kept::with("link", good.as_bytes());
        let real = kept.0.path.with_extension("real");
        fs::rename(&kept.0.path, &real).unwrap();
        std::os::unix::fs::symlink(&real, &kept.0.path).unwrap();
        assert_eq!(kept.0.value("page cache"), None, "a symbolic link");
        let kept = Kept::with("folder", good.as_bytes());
        fs::remove_file(&kept.0.path).unwrap();
        fs::create_dir(&kept.0.path).unwrap();
        assert_eq!((kept.0.value("page cache"), kept.0.write(&[("tmpfs", 1)])), (None, None));
        // SAFETY: no pointers are passed.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: a file of another user (only root can make one)");
            return;
        }
        let kept = Kept::with("foreign", good.as_bytes());
        std::os::unix::fs::chown(&kept.0.path, Some(65534), None).unwrap();
        assert_eq!(kept.0.value("page cache"), None, "another user's");
    }

    #[test]
    fn the_folder_may_be_missing_or_forbidden() {
        let profile = Profile { path: "/proc/forebay/profile".into(), key: KEY };
        assert_eq!((profile.value("page cache"), profile.write(&[("page cache", 1)])), (None, None));
        let info = forebay_gpu::Devices::discover().host.info().clone();
        assert!(Profile::of(ProfileUse::Off, &info).is_none());
        assert_eq!(key_of(&info), key_of(&info));
        let other = DeviceInfo { uuid: [7; 16], ..info.clone() };
        assert_ne!(key_of(&info), key_of(&other));
    }
}
