//! What the parts of the store share.

use std::fmt;
use std::os::fd::OwnedFd;

use super::runs::{FullDirs, NameRuns};
use super::sys::{User, UserGuard};
use super::tree::failed;
use crate::store::StoreResult;

/// How a store works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// An object that was published outlives a power cut.
    pub sync: bool,
    /// Whose rights hold, and who owns new files; another than the process's own needs root. `None`: the process's.
    pub user: Option<User>,
    /// Of the file system; `None`: they are probed.
    pub abilities: Option<Abilities>,
}

impl Default for Options {
    fn default() -> Self {
        Self { sync: true, user: None, abilities: None }
    }
}

/// What a file system can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Files without a name (`O_TMPFILE`) that get one later.
    pub unnamed_files: bool,
    /// `link()` refuses a name that is there: `If-None-Match: *`.
    pub link_refuses: bool,
    /// `renameat2(RENAME_NOREPLACE)`. The store does without.
    pub rename_refuses: bool,
    /// Locks of open files: `If-Match`, parts at their place, temporary files that are known to be in use.
    pub locks: bool,
    /// The longest attribute of the name that the store uses, in bytes; 0: none.
    pub attribute_room: usize,
    /// `copy_file_range()` inside the file system.
    pub copies: bool,
    /// Times are kept to the nanosecond: two writes have two ETags.
    pub fine_times: bool,
}

impl fmt::Display for Abilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |is: bool| if is { "yes" } else { "no" };
        write!(
            f,
            "unnamed files: {}, link refuses: {}, ",
            word(self.unnamed_files),
            word(self.link_refuses)
        )?;
        write!(f, "rename refuses: {}, locks: {}, ", word(self.rename_refuses), word(self.locks))?;
        write!(f, "room of an attribute: {} B, ", self.attribute_room)?;
        write!(f, "copies: {}, times to the nanosecond: {}", word(self.copies), word(self.fine_times))
    }
}

/// What the parts of the store share.
pub(super) struct Inner {
    pub(super) root: OwnedFd,
    /// The same tree, through which nothing can be written; `None` where the process may not make one.
    pub(super) view: Option<OwnedFd>,
    pub(super) options: Options,
    pub(super) abilities: Abilities,
    pub(super) name_runs: NameRuns,
    pub(super) full_dirs: FullDirs,
}

impl Inner {
    /// Until the guard is dropped, the thread has the rights of the account's user.
    pub(super) fn act(&self) -> StoreResult<Option<UserGuard>> {
        match self.options.user {
            Some(user) if rustix::process::geteuid().is_root() => {
                UserGuard::new(user).map(Some).map_err(failed("cannot act for the account's user"))
            }
            _ => Ok(None),
        }
    }
}
