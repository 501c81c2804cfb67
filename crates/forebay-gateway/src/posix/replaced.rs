//! Objects that were replaced: their blocks are freed beside the answer, not before it. For 64 MiB that is an eighth of a PUT.
//!
//! While a descriptor stands for the old file the kernel keeps its blocks. That is so where the kernel itself has the file system;
//! over NFS the server frees them, and a file that is held there gets another name first.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{OFlags, StatFs, fstatfs};

use super::tree::{open_below, stat_name};

/// Less is freed in less time than another thread takes to start with it.
const LEAST: u64 = 1 << 20;
/// Files that wait at a time; the next one is freed by the one who replaced it.
const WAITING: usize = 16;
/// Room that is left beside a file that waits, in files of its size.
const ROOM: u64 = 4 * WAITING as u64;
/// A write that finds no room waits this long for the ones that are being freed.
const PATIENCE: Duration = Duration::from_secs(10);

const TMPFS: u64 = 0x0102_1994;
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;

/// The file that has a name now, held so that it outlives its name. `None`: nothing is gained by that.
pub(super) fn hold(dir: impl AsFd, name: &str) -> Option<OwnedFd> {
    let size = stat_name(&dir, name).ok()?.stx_size;
    if size < LEAST {
        return None;
    }
    let old = open_below(&dir, name, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
    let system = fstatfs(&old).ok()?;
    (is_local(&system) && has_room(&system, size)).then_some(old)
}

fn is_local(system: &StatFs) -> bool {
    matches!(system.f_type as u64 & 0xffff_ffff, TMPFS | EXT4 | XFS | BTRFS)
}

/// Whether nobody misses the room that it takes for a moment longer.
fn has_room(system: &StatFs, size: u64) -> bool {
    system.f_bavail.saturating_mul(system.f_bsize as u64) / ROOM >= size
}

/// Frees a file that has lost its name, on another thread.
pub(super) fn free(old: OwnedFd) {
    static SENDER: LazyLock<Option<SyncSender<OwnedFd>>> = LazyLock::new(start);
    *waiting() += 1;
    // Where it is not taken it is dropped, and so freed, here.
    let is_taken = SENDER.as_ref().is_some_and(|sender| sender.try_send(old).is_ok());
    if !is_taken {
        freed();
    }
}

fn start() -> Option<SyncSender<OwnedFd>> {
    let (sender, receiver) = sync_channel::<OwnedFd>(WAITING);
    let free_all = move || {
        for old in receiver {
            drop(old);
            freed();
        }
    };
    std::thread::Builder::new().name("forebay-s3-free".to_owned()).spawn(free_all).ok().map(|_| sender)
}

static COUNT: Mutex<usize> = Mutex::new(0);
static NONE_LEFT: Condvar = Condvar::new();

fn waiting() -> std::sync::MutexGuard<'static, usize> {
    COUNT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn freed() {
    let mut count = waiting();
    *count -= 1;
    if *count == 0 {
        NONE_LEFT.notify_all();
    }
}

/// Waits until those that were replaced before are freed; `false`: there were none, so that no room was made.
pub(super) fn wait() -> bool {
    let count = waiting();
    if *count == 0 {
        return false;
    }
    let waited = NONE_LEFT.wait_timeout_while(count, PATIENCE, |count| *count > 0);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
    true
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_replaced_file_is_freed_beside_the_answer() {
        let dir = tempfile::tempdir().unwrap();
        let open: OwnedFd = File::open(dir.path()).unwrap().into();
        let path = dir.path().join("object");
        std::fs::write(&path, b"short").unwrap();
        assert!(hold(&open, "object").is_none(), "it is short");
        assert!(hold(&open, "missing").is_none());
        std::fs::write(&path, vec![1; LEAST as usize]).unwrap();
        let Some(old) = hold(&open, "object") else {
            eprintln!("skipped: the temporary directory is of another file system, or full");
            return;
        };
        std::fs::remove_file(&path).unwrap();
        let held = File::from(old);
        assert!(held.metadata().unwrap().blocks() > 0, "it outlives its name");
        free(held.into());
        wait();
        assert_eq!(*waiting(), 0);
        assert!(!wait());
    }
}
