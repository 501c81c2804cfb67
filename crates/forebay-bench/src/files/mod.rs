//! The files of a run: found or made, guarded, opened, and their pages in the page cache.

pub(crate) mod block_device;
pub(crate) mod cache;
pub(crate) mod empty;
pub(crate) mod foreign;
pub(crate) mod made;
pub(crate) mod open;
pub(crate) mod room;
