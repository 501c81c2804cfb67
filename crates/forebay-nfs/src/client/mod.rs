//! From a URL to a file whose requests a server's clients carry.

pub(crate) mod clients;
pub(crate) mod file;
pub mod folder;
pub(crate) mod look_up;
mod mountd;
pub(crate) mod nfs_client;
pub mod open;
mod place;
pub mod portmap;
pub mod probe;
pub mod url;
