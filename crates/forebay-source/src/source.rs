//! The trait of a source.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_error::Result;

use crate::request::Requests;

/// Where stored bytes live. Every source offers the capability [`Fill`]. Expose (engine `mapped`) and Place by a drive (engine
/// `p2p`) need a descriptor, which comes with [`Fill::Descriptor`]. Place by a server needs [`Source::place`].
pub trait Source: Send + Sync + fmt::Debug {
    /// A name for messages.
    fn name(&self) -> String;

    /// Its length in bytes now.
    fn len(&self) -> Result<u64>;

    /// A length that it had lately, which costs nothing to ask: a request within it is not looked at beforehand.
    fn len_lately(&self) -> Result<u64> {
        self.len()
    }

    /// Whether it holds no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// How its bytes come into host memory, and go back.
    fn fill(&self) -> Fill<'_>;

    /// What can put its bytes into registered memory by itself. `None`: nothing.
    fn place(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Makes written bytes durable.
    fn sync(&self) -> Result<()>;

    /// How its bytes travel, for receipts: "NFS v3 over TCP, …". `None` where there is nothing to say.
    fn way(&self) -> Option<String> {
        None
    }

    /// Addresses of its server that are not used, for receipts: the reason, and what to do about it.
    fn left_out(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// By what its transfers were held up since it was opened: a silent server. Receipts say it of their own transfer. `None` where nothing was.
    fn held_up(&self) -> Option<String> {
        None
    }

    /// What holds transfers up from now on.
    fn held_up_from_now(&self) -> Option<HeldUp> {
        None
    }

    /// The name of its file system, where it has one.
    fn file_system(&self) -> &'static str {
        "none"
    }

    /// Whether it may be read, and written.
    fn access(&self) -> (bool, bool) {
        (true, true)
    }
}

/// Says what has held transfers up since it was made: a silent server. `None`: nothing has.
pub type HeldUp = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The capability to fill host memory with a source's bytes, or to take them from there.
#[derive(Debug)]
pub enum Fill<'a> {
    /// A file of the kernel's, open for as long as the source is there: lanes call the kernel themselves, by descriptors of their
    /// own for it.
    Descriptor(BorrowedFd<'a>),
    /// Anything else: the source works on its own threads and reports back.
    Requests(&'a dyn Requests),
}
