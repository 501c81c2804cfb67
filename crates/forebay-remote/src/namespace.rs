//! Which network a thread reaches servers by.

use std::os::unix::fs::MetadataExt;

use forebay_error::{Error, ErrorKind, Result};

/// A network namespace: threads of a process may have different ones. By default one that no thread has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkNamespace {
    device: u64,
    inode: u64,
}

impl NetworkNamespace {
    /// That of this thread; `None` where the kernel does not tell.
    pub fn of_thread() -> Option<Self> {
        let told = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
        Some(Self { device: told.dev(), inode: told.ino() })
    }

    /// An error where this thread has another one: what it reaches by a server's address may be another server.
    pub fn check(self) -> Result<()> {
        if Some(self) == Self::of_thread() {
            return Ok(());
        }
        let what = "cannot connect to the server: the file was opened in another network namespace than this thread's";
        Err(Error::new(ErrorKind::Unsupported, what).hint(
            "make the session and open the file in threads of one network namespace: setns before both",
        ))
    }
}
