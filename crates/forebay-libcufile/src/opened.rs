//! The library, opened: what it says of itself, and in which mode it works.

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use forebay_error::Result;

use crate::abi::{
    Calls, GPU_STATISTICS, GPUS_IN_STATISTICS, NVIDIA_FS_READS, P2P_READS, POSIX_READS, Properties,
    STATISTICS_LEVEL, STATISTICS_ROOM, USE_PCI_P2PDMA, gpus_in_statistics,
};
use crate::explain;
use crate::library::Library;

/// How the library moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By ordinary reads and writes, through host memory.
    Compat,
    /// By its kernel module.
    NvidiaFs,
    /// By the kernel's peer-to-peer DMA.
    P2pDma,
    /// It does not tell.
    Unknown,
}

impl Mode {
    /// As receipts name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Compat => "compat",
            Self::NvidiaFs => "nvidia-fs",
            Self::P2pDma => "p2pdma",
            Self::Unknown => "mode unknown",
        }
    }
}

/// An open library.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) library: Library,
    /// As 1000 × major + 10 × minor; 0 if it does not say.
    pub(super) version: i32,
    /// The mode of all files, where that is known from the start.
    pub(super) mode: Option<Mode>,
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.version > 0 {
            write!(f, "libcufile {}.{} ", self.version / 1000, self.version % 1000 / 10)?;
        } else {
            f.write_str("libcufile ")?;
        }
        write!(f, "at {}", self.library.path.display())
    }
}

/// Finds, loads and opens the library. The thread's context must be current.
pub(super) fn open() -> Result<Opened> {
    let library = Library::find()?;
    let calls = &library.calls;
    let standard_input = StandardInput::hold();
    // SAFETY: takes nothing.
    let status = unsafe { (calls.open)() };
    standard_input.restore();
    if !explain::is_ok(status) {
        return Err(explain::status(status, "NVIDIA's libcufile cannot be opened")
            .with("library", library.path.display()));
    }
    let version = version(calls);
    let mode = mode(calls);
    if mode.is_none() {
        watch(calls, version);
    }
    Ok(Opened { library, version, mode })
}

fn version(calls: &Calls) -> i32 {
    let mut version = 0;
    // SAFETY: the place is writable.
    let is_told = calls.version.is_some_and(|ask| explain::is_ok(unsafe { ask(&raw mut version) }));
    if is_told { version } else { 0 }
}

/// Without its module, and without peer-to-peer DMA asked for, nothing but ordinary reads and writes is left.
fn mode(calls: &Calls) -> Option<Mode> {
    let mut properties = Properties::default();
    // SAFETY: the place is writable and has the structure's size.
    let is_told = calls.properties.is_some_and(|ask| explain::is_ok(unsafe { ask(&raw mut properties) }));
    let mut p2p = false;
    if let Some(ask) = calls.get_bool {
        // SAFETY: the place is writable. A version that does not know the option leaves it alone.
        unsafe { ask(USE_PCI_P2PDMA, &raw mut p2p) };
    }
    let has_module = properties.nvidia_fs_major != 0 || properties.nvidia_fs_minor != 0;
    (is_told && !has_module && !p2p).then_some(Mode::Compat)
}

/// The first version with statistics that programs can read.
const FIRST_WITH_STATISTICS: i32 = 1150;

/// Has the library count what takes which way.
fn watch(calls: &Calls, version: i32) {
    if version < FIRST_WITH_STATISTICS {
        return;
    }
    if let (Some(set), Some(start)) = (calls.set_statistics, calls.start_statistics) {
        // SAFETY: no pointers are passed. Where it refuses, the mode stays unknown.
        unsafe {
            set(STATISTICS_LEVEL);
            start();
        }
    }
}

/// Reads that took each way so far: peer-to-peer, nvidia-fs, ordinary.
pub(super) fn ways(opened: &Opened) -> Option<[u64; 3]> {
    let ask = opened.library.calls.statistics.filter(|_| opened.version >= FIRST_WITH_STATISTICS)?;
    let mut room = vec![0u64; STATISTICS_ROOM / 8];
    // SAFETY: more room than the structure of any version needs.
    if !explain::is_ok(unsafe { ask(room.as_mut_ptr().cast::<c_void>()) }) {
        return None;
    }
    let first = gpus_in_statistics(opened.version);
    let sum = |field: usize| {
        let gpu = |index: usize| room[(first + index * GPU_STATISTICS + field) / 8];
        (0..GPUS_IN_STATISTICS).map(gpu).fold(0, u64::wrapping_add)
    };
    Some([sum(P2P_READS), sum(NVIDIA_FS_READS), sum(POSIX_READS)])
}

/// The mode by what the counts did during a read.
pub(super) fn mode_between(before: Option<[u64; 3]>, after: Option<[u64; 3]>) -> Mode {
    let (Some(before), Some(after)) = (before, after) else { return Mode::Unknown };
    let grew = |way: usize| after[way] != before[way];
    match (grew(0), grew(1), grew(2)) {
        (true, _, _) => Mode::P2pDma,
        (false, true, _) => Mode::NvidiaFs,
        (false, false, true) => Mode::Compat,
        _ => Mode::Unknown,
    }
}

/// Standard input, should the library close it: where it finds only half of what it looks for it closes a descriptor that
/// it never opened, and that is number 0.
struct StandardInput(Option<OwnedFd>);

impl StandardInput {
    fn hold() -> Self {
        // SAFETY: no pointers are passed.
        let copy = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3) };
        // SAFETY: the descriptor is new and ours alone.
        Self((copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) }))
    }

    fn restore(self) {
        let Some(copy) = self.0 else { return };
        // What another thread has opened meanwhile under that number is not touched.
        // SAFETY: no pointers are passed.
        if unsafe { libc::fcntl(0, libc::F_GETFD) } < 0 {
            // SAFETY: no pointers are passed; number 0 is free.
            unsafe { libc::dup2(copy.as_raw_fd(), 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_that_grew_tells_the_mode() {
        let none = Some([0; 3]);
        assert_eq!(mode_between(none, Some([1, 0, 0])), Mode::P2pDma);
        assert_eq!(mode_between(none, Some([0, 3, 0])), Mode::NvidiaFs);
        assert_eq!(mode_between(Some([0, 3, 4]), Some([0, 3, 5])), Mode::Compat);
        assert_eq!(mode_between(none, none), Mode::Unknown);
        assert_eq!(mode_between(None, Some([1, 0, 0])), Mode::Unknown);
    }
}
