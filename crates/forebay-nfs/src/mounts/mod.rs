//! Files on mounts of the kernel's, read from their server.

pub(crate) mod facts;
mod lookups;
pub mod mount;
pub(crate) mod mounted_file;
pub(crate) mod open;
mod reads;
