//! Sources that lie behind files of the kernel's: the server of a mount, reached by this process past the kernel.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use forebay_config::Config;
use forebay_error::Result;

use crate::{Facts, Place, Requests, Source};

/// Finds what lies behind files of the kernel's.
pub trait Beside: Send + Sync {
    /// What lies behind an open file, of a file system with this number (`f_type` of `statfs`). Asked when a large read of the file comes
    /// first, and never again for it. `None`: nothing of this kind.
    fn of(&self, fd: BorrowedFd<'_>, magic: i64) -> Option<Arc<dyn BesideFile>>;
}

/// A file of the kernel's whose bytes its server gives to this process, too. The `file` of its functions is the kernel's.
pub trait BesideFile: Send + Sync + fmt::Debug {
    /// What places its bytes, or why nothing does. It is looked for beside the call that asks first, which is refused meanwhile; a
    /// call that `waits` gets the result.
    fn place(&self, file: &Arc<dyn Source>, config: &Config, waits: bool) -> Result<Arc<dyn Place>>;

    /// Whether reads into host memory are to go to the server. Costs nothing.
    fn takes_reads(&self, config: &Config) -> bool;

    /// Reads into host memory, or why the kernel is to do them.
    fn reads(&self, file: &Arc<dyn Source>, config: &Config) -> Result<Arc<dyn BesideReads>>;
}

/// Reads of one transfer. A request is an error where the server says that the file's state is another than when the file was found.
pub trait BesideReads: Requests {
    /// The server's client: transfers of one server wait for each other in [`BesideReads::begin`], and for no other's.
    fn server(&self) -> Weak<dyn Any + Send + Sync>;

    /// Comes before the requests: has what this host wrote go to the server. Where some of the range is in the page cache (`is_mixed`),
    /// the kernel must be in the same state of the file as the server.
    fn begin(&self, file: &dyn Source, is_mixed: bool) -> Result<()>;

    /// An error where requests of others have shown that the server does not answer.
    fn check(&self) -> Result<()>;

    /// The kernel reads the rest of the transfer, because of this error.
    fn give_up(&self, error: &forebay_error::Error);

    /// What receipts say of the source.
    fn facts(&self) -> Facts;
}

static BESIDE: RwLock<Vec<Arc<dyn Beside>>> = RwLock::new(Vec::new());

/// Registers one for the process. Files whose first large read came before stay the kernel's.
pub fn register_beside(beside: Arc<dyn Beside>) {
    BESIDE.write().unwrap_or_else(PoisonError::into_inner).push(beside);
}

/// What lies behind an open file: see [`Beside::of`].
pub fn beside(fd: BorrowedFd<'_>, magic: i64) -> Option<Arc<dyn BesideFile>> {
    BESIDE.read().unwrap_or_else(PoisonError::into_inner).iter().find_map(|beside| beside.of(fd, magic))
}
