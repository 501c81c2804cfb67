//! Files on mounts of the kernel's, read from their server.

pub mod mount;
pub(crate) mod open;
