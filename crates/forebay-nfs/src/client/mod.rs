//! From a URL to a file whose requests a server's clients carry.

pub(crate) mod clients;
pub(crate) mod file;
pub mod folder;
mod folder_calls;
pub(crate) mod look_up;
pub(crate) mod make;
mod mountd;
pub(crate) mod nfs_client;
pub mod open;
mod place;
pub mod portmap;
pub mod probe;
mod probe_small;
pub mod url;
