//! The trait of a source.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_error::Result;

use crate::{Place, Requests, StateToken, StoredSum};

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

    /// What puts its bytes into registered memory by itself, or why it does not here. `None`: nothing does, with nothing to say.
    fn place(&self) -> Option<Result<Arc<dyn Place>>> {
        None
    }

    /// Makes written bytes durable.
    fn sync(&self) -> Result<()>;

    /// Distinguishes its present state from the next. `None` where it has nothing that does: a change during a read is
    /// not noticed then.
    fn state(&self) -> Result<Option<StateToken>>;

    /// What compares its bytes with the checksum that its store keeps, or why there is none to compare with. `None`: stores of its
    /// kind keep none.
    fn stored_sum(&self) -> Option<Result<Box<dyn StoredSum>>> {
        None
    }

    /// Whether all that is read is of the state in which it was opened, or the read fails: its state need not be compared behind that.
    fn reads_one_state(&self) -> bool {
        false
    }

    /// What receipts and reports say of it.
    fn facts(&self) -> Facts {
        Facts::default()
    }

    /// What receipts say of transfers from now on when they have ended: what held them up, which sites gave the bytes.
    fn late_note(&self) -> Option<LateNote> {
        None
    }

    /// Bytes that each of its sites gave so far, by name; none where it has one place alone.
    fn bytes_by_site(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Whether it may be read, and written.
    fn access(&self) -> (bool, bool) {
        (true, true)
    }
}

/// What receipts and reports say of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// How its bytes travel: "NFS v3 over TCP, …". `None` where there is nothing to say.
    pub way: Option<String>,
    /// Parts of its server that are not used: which and why, and what to type about it.
    pub left_out: Vec<(String, String)>,
    /// The name of its file system; `None` where it has none.
    pub file_system: Option<&'static str>,
}

/// Returns what there is to say of the time since it was made: for how long a server was silent, bytes by site. `None`: nothing.
pub type LateNote = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The capability to fill host memory with a source's bytes, or to take them from there.
#[derive(Debug)]
pub enum Fill<'a> {
    /// A file of the kernel's, open for as long as the source is there: lanes call the kernel themselves, by descriptors of their
    /// own for it.
    Descriptor(BorrowedFd<'a>),
    /// Anything else: the source works on its own threads and reports back.
    Requests(&'a dyn Requests),
}
